package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing/fstest"
)

// templateImage matches the image in the repository's manifests.
var templateImage = regexp.MustCompile(`(image: )nodens:[0-9.]+\b`)

func manifestsName(version string) string { return "nodens-" + version + "-manifests.tar.gz" }

// plainManifests are the manifests that kubectl applies as they are.
var plainManifests = []string{"base/nodens.yaml", "cleanup/cleanup.yaml"}

// writeManifests adds the plain manifests, and an archive of the kustomizations. In all of them
// the image has its digest.
func (m *maker) writeManifests(context.Context) error {
	for _, name := range plainManifests {
		text, err := os.ReadFile(filepath.Join(m.top, "daemonset", name))
		if err != nil {
			return err
		}
		made := templateImage.ReplaceAll(text, []byte("${1}"+m.reference()))
		if bytes.Equal(made, text) {
			return fmt.Errorf("%s has no image nodens with a version", name)
		}
		if err := m.add(path.Base(name), made); err != nil {
			return err
		}
	}
	return m.writeKustomizations()
}

// writeKustomizations adds the archive of the kustomizations, which get the digest from settings.
func (m *maker) writeKustomizations() (err error) {
	files := make(fstest.MapFS)
	for _, dir := range []string{"base", "cleanup", "components", "monitoring", "network-policy", "overlays", "seccomp", "settings"} {
		if err := readTree(files, filepath.Join(m.top, "daemonset"), dir); err != nil {
			return err
		}
	}
	maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool {
		return path.Ext(name) != ".yaml" && path.Ext(name) != ".json"
	})
	settings := files[settingsPath]
	if settings == nil {
		return errors.New("there is no " + settingsPath)
	}
	settings.Data, err = replaceOnce(settings.Data, `(?m)^( +)newName: nodens$`, "${1}newName: "+m.image+"\n${1}digest: "+m.digest)
	if err != nil {
		return fmt.Errorf("%s: %w", settingsPath, err)
	}
	return m.addTarball(manifestsName(m.version), files)
}

// settingsPath is the file in which kustomizations get the image's name.
const settingsPath = "settings/kustomization.yaml"

// readTree adds the files of a directory below top.
func readTree(files fstest.MapFS, top, dir string) error {
	root := os.DirFS(top)
	return fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(root, name)
		files[name] = &fstest.MapFile{Mode: 0o644, Data: body}
		return err
	})
}

// replaceOnce replaces what matches the expression, which has to match once.
func replaceOnce(text []byte, expression, by string) ([]byte, error) {
	re := regexp.MustCompile(expression)
	if n := len(re.FindAll(text, -1)); n != 1 {
		return nil, fmt.Errorf("%s matches %d times, not once", expression, n)
	}
	return re.ReplaceAll(text, []byte(by)), nil
}

func chartName(version string) string { return "nodens-" + version + ".tgz" }

// writeChart adds the chart with the version, the image by digest, and Artifact Hub's annotations. Its
// README, which Artifact Hub shows, tells to install it from the registry.
func (m *maker) writeChart(context.Context) error {
	files := make(fstest.MapFS)
	if err := readTree(files, filepath.Join(m.top, "daemonset"), "chart"); err != nil {
		return err
	}
	registry := "YOUR-REGISTRY"
	if dir := path.Dir(m.image); dir != "." {
		registry = dir
	}
	chart := make(fstest.MapFS)
	for name, f := range files {
		chart["nodens"+strings.TrimPrefix(name, "chart")] = f
	}
	for _, edit := range []struct{ file, expression, by string }{
		{"nodens/Chart.yaml", `(?m)^version: .*$`, "version: " + m.version},
		{"nodens/Chart.yaml", `(?m)^appVersion: .*$`, "appVersion: " + m.version},
		{"nodens/values.yaml", `(?m)^  repository: nodens$`, "  repository: " + m.image},
		{"nodens/values.yaml", `(?m)^(  # The name of the image\.) .*$`, "$1"},
		{"nodens/README.md", `(The name of the image\.) It is not published[^|]*`, "$1 "},
		{"nodens/README.md", `(?s)The image is not published\..*?helm upgrade --install node-local-dns daemonset/chart (.*?) --set [^\n]*`,
			"With Helm 3.17 or later:\n\n```console\n$$ helm upgrade --install node-local-dns oci://" + registry + "/charts/nodens --version " + m.version + " $1"},
		{"nodens/values.yaml", `(?m)^  digest: ""$`, "  digest: " + m.digest},
	} {
		f := chart[edit.file]
		if f == nil {
			return fmt.Errorf("the chart has no %s", edit.file)
		}
		var err error
		if f.Data, err = replaceOnce(f.Data, edit.expression, edit.by); err != nil {
			return fmt.Errorf("%s: %w", edit.file, err)
		}
	}
	readme := chart["nodens/README.md"]
	readme.Data = relativeLink.ReplaceAll(readme.Data, []byte("]("+home+"/blob/v"+m.version+"/daemonset/chart/$1)"))
	about := chart["nodens/Chart.yaml"]
	about.Data = append(about.Data, m.annotations()...)
	return m.addTarball(chartName(m.version), chart)
}

// annotations is what Artifact Hub shows beside the chart.
func (m *maker) annotations() string {
	var b strings.Builder
	fmt.Fprintf(&b, "annotations:\n  artifacthub.io/category: networking\n  artifacthub.io/license: Apache-2.0\n")
	fmt.Fprintf(&b, "  artifacthub.io/images: |\n    - name: nodens\n      image: %s\n      platforms: [%s]\n", m.reference(), strings.Join(m.imagePlatforms(), ", "))
	fmt.Fprintf(&b, "  artifacthub.io/links: |\n    - name: source\n      url: %s\n", home)
	b.WriteString("  artifacthub.io/changes: |\n")
	for _, c := range changes(m.notes) {
		fmt.Fprintf(&b, "    - kind: %s\n      description: %q\n", c.kind, c.text)
	}
	return b.String()
}

// imagePlatforms are the platforms of the image.
func (m *maker) imagePlatforms() (names []string) {
	for _, p := range m.linux {
		names = append(names, platform{p.os, p.arch}.String())
	}
	return names
}

const (
	krewName  = "krew-nodens.yaml"
	notesName = "RELEASE-NOTES.md"
)

// writeKrew adds the manifest of the plugin for krew's index.
func (m *maker) writeKrew(context.Context) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: nodens
spec:
  version: v%s
  homepage: %s
  shortDescription: Show what the node-local DNS agents do
  description: |
    Asks the nodens agents of a cluster who queries what, why a name is slow
    or fails, and which workloads waste queries: top, tail, explain, advise.
  platforms:
`, m.version, home)
	for _, p := range m.platforms {
		name := p.archive(pluginName, m.version)
		fmt.Fprintf(&b, `  - selector:
      matchLabels: {os: %s, arch: %s}
    uri: %s/releases/download/v%s/%s
    sha256: %s
    bin: %s
`, p.os, p.arch, home, m.version, name, m.sums[name], p.file(pluginName))
	}
	return m.add(krewName, b.Bytes())
}

// relativeLink matches a link to another page of the repository.
var relativeLink = regexp.MustCompile(`\]\(([^):]+)\)`)

// writeNotes adds the version's section of the changelog, with links that work everywhere.
func (m *maker) writeNotes(context.Context) error {
	text, err := os.ReadFile(filepath.Join(m.top, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if m.notes, err = section(string(text), m.version); err != nil {
		return err
	}
	m.notes = relativeLink.ReplaceAllString(m.notes, "]("+home+"/blob/v"+m.version+"/$1)")
	return m.add(notesName, []byte("# nodens "+m.version+"\n\n"+m.notes))
}

// section returns the text below the heading of a version in a changelog.
func section(changelog, version string) (string, error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(version) + `\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	at := heading.FindStringIndex(changelog)
	if at == nil {
		return "", fmt.Errorf("CHANGELOG.md has no heading \"## [%s] - YYYY-MM-DD\"; rename Unreleased in the commit that you tag", version)
	}
	text, _, _ := strings.Cut(changelog[at[1]:], "\n## ")
	text, _, _ = strings.Cut(text, "\n[") // links
	if text = strings.TrimSpace(text); text == "" {
		return "", fmt.Errorf("the section %s of CHANGELOG.md is empty", version)
	}
	return text + "\n", nil
}

// change is an item of a changelog.
type change struct{ kind, text string }

// changes returns the items of a section, each with the heading above it, in lower case. Lines of
// an item are joined.
func changes(section string) (list []change) {
	kind, open := "", false
	for line := range strings.Lines(section) {
		line = strings.TrimRight(line, "\n")
		switch text, item := strings.CutPrefix(line, "- "); {
		case strings.HasPrefix(line, "### "):
			kind, open = strings.ToLower(line[len("### "):]), false
		case item && kind != "":
			list, open = append(list, change{kind, text}), true
		case strings.HasPrefix(line, "  ") && open:
			list[len(list)-1].text += " " + strings.TrimSpace(line)
		default:
			open = false
		}
	}
	return list
}

// writeIndex adds the index.
func (m *maker) writeIndex(context.Context) error {
	name := chartName(m.version)
	body, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		return err
	}
	text, err := chartIndex(name, body)
	if err != nil {
		return err
	}
	return m.add(indexName, text)
}
