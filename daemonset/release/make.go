package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/release/oci"
)

// platform is a system that there are programs for.
type platform struct{ os, arch string }

// allPlatforms are the systems of a release.
const allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// parsePlatforms reads a list of platforms, at least one of which has Linux, for the image.
func parsePlatforms(list string) (platforms []platform, err error) {
	linux := false
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(strings.Split(allPlatforms, ","), name) {
			return nil, fmt.Errorf("there is no platform %q; there are %s", name, allPlatforms)
		}
		goos, arch, _ := strings.Cut(name, "/")
		platforms = append(platforms, platform{goos, arch})
		linux = linux || goos == "linux"
	}
	if !linux {
		return nil, fmt.Errorf("the platforms %s are none for an image: add linux/amd64", list)
	}
	return platforms, nil
}

func (p platform) String() string { return p.os + "/" + p.arch }

// archive returns the file name of a program's archive.
func (p platform) archive(program, version string) string {
	name := fmt.Sprintf("%s_%s_%s_%s", program, version, p.os, p.arch)
	if p.os == "windows" {
		return name + ".zip"
	}
	return name + ".tar.gz"
}

// file returns the name of a program's file.
func (p platform) file(program string) string {
	if p.os == "windows" {
		return program + ".exe"
	}
	return program
}

// maker makes a release in a directory.
type maker struct {
	source
	// image is the name of the image's repository; builder identifies who runs the build.
	image, builder string
	// platforms are the systems to make programs for; the image is for those with Linux.
	platforms []platform
	// key signs; nil for no signatures.
	key *ecdsa.PrivateKey
	// packages returns the Debian packages of an architecture.
	packages func(ctx context.Context, arch string) ([]*debian.Package, error)
	// dir is the directory, and sums are the SHA-256 of the files in it.
	dir   string
	sums  map[string]string
	debs  []*debian.Package
	began time.Time
	log   io.Writer
	notes string
	// linux are the programs for the image, in the order of platforms; digest is the image's.
	linux  []*program
	digest string
}

// runMake makes a release from the tag of its version: for each system an archive with the
// program, one with the kubectl plugin, and an SBOM; the image, the chart, manifests, the krew
// manifest, the release notes, the provenance, checksums and signatures.
func runMake(ctx context.Context, args []string, _, stderr io.Writer) error {
	m := &maker{log: stderr, began: time.Now()}
	fset := flag.NewFlagSet("make", flag.ContinueOnError)
	fset.SetOutput(stderr)
	fset.StringVar(&m.version, "version", "", "`version`, without v; HEAD must be the tag of it")
	out := fset.String("out", "", "`directory` to make; it must not exist")
	fset.StringVar(&m.image, "image", "nodens", "`name` of the image, with the registry that it will be pushed to")
	fset.StringVar(&m.builder, "builder", home+"/blob/main/Makefile", "`URI` of what runs the build, for the provenance")
	list := fset.String("platforms", allPlatforms, "comma-separated `systems` to make programs for; fewer are for tests")
	key := fset.String("key", "", "PEM `file` with an ECDSA key to sign with (default: no signatures)")
	update := fset.Bool("update", false, "look for newer Debian packages than the cached ones")
	if err := fset.Parse(args); err != nil {
		return err
	}
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`).MatchString(m.version) {
		return fmt.Errorf("-version %q is not a version like 0.1.0", m.version)
	}
	if _, err := os.Stat(*out); *out == "" || err == nil {
		return fmt.Errorf("-out %q must name a directory that does not exist", *out)
	}
	var err error
	if m.platforms, err = parsePlatforms(*list); err != nil {
		return err
	}
	if *key != "" {
		if m.key, err = readKey(*key); err != nil {
			return err
		}
	}
	m.packages = func(ctx context.Context, arch string) ([]*debian.Package, error) {
		return architectures[arch].packages(ctx, *update)
	}
	return m.make(ctx, *out)
}

// make makes the directory out. After an error there is none.
func (m *maker) make(ctx context.Context, out string) error {
	if err := m.complete(ctx); err != nil {
		return err
	}
	if err := m.checkTag(ctx); err != nil {
		return err
	}
	m.tagged, m.sums, m.dir = true, make(map[string]string), out+".part"
	if err := errors.Join(os.RemoveAll(m.dir), os.MkdirAll(m.dir, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(m.dir)
	for _, step := range []func(context.Context) error{
		m.writeNotes, m.writePrograms, m.writeImage, m.writeManifests, m.writeChart, m.writeIndex, m.writeKrew, m.writeProvenance, m.writeSums,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := os.Rename(m.dir, out); err != nil {
		return err
	}
	m.say("made %s with %d files; next: make release-verify DIR=%s", out, len(m.sums), out)
	return nil
}

// say writes a line of progress.
func (m *maker) say(format string, args ...any) {
	fmt.Fprintf(m.log, "release: %3.0f s  %s\n", time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
}

// checkTag returns an error unless HEAD is the version's tag and the work tree has no changes.
func (m *maker) checkTag(ctx context.Context) error {
	tag, err := firstLine(ctx, m.top, "git", "rev-parse", "--verify", "--quiet", "v"+m.version+"^{commit}")
	if err != nil || tag != m.revision {
		return fmt.Errorf("the commit %s is not that of the tag v%s: commit all changes, tag the commit and check the tag out", m.revision, m.version)
	}
	changed, err := firstLine(ctx, m.top, "git", "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("the work tree differs from the tag v%s: %s", m.version, changed)
	}
	return err
}

// add writes a file of the release.
func (m *maker) add(name string, body []byte) error {
	m.sums[name] = sha256Hex(body)
	return os.WriteFile(filepath.Join(m.dir, name), body, 0o644)
}

// addFilled adds a file whose content a function writes.
func (m *maker) addFilled(name string, fill func(io.Writer) error) error {
	var body bytes.Buffer
	if err := fill(&body); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return m.add(name, body.Bytes())
}

// addTarball adds a compressed tar file.
func (m *maker) addTarball(name string, files fs.FS) error {
	return m.addFilled(name, func(w io.Writer) error {
		zip := gzip.NewWriter(w)
		return errors.Join(oci.WriteTar(zip, files, m.now), zip.Close())
	})
}

// addZip adds a zip file, whose files have the time of the release.
func (m *maker) addZip(name string, files fstest.MapFS) error {
	return m.addFilled(name, func(w io.Writer) error {
		dated := make(fstest.MapFS)
		for name, f := range files {
			dated[name] = &fstest.MapFile{Mode: f.Mode, Data: f.Data, ModTime: m.now}
		}
		zip := zip.NewWriter(w)
		return errors.Join(zip.AddFS(dated), zip.Close())
	})
}

// pluginName is the program's name as a plugin of kubectl.
const pluginName = "kubectl-nodens"

// noticesName is the file with the licences of all modules in a program.
const noticesName = "THIRD-PARTY-LICENSES"

// writePrograms adds two archives for each system, with the program under both of its names, and
// its SBOM.
func (m *maker) writePrograms(ctx context.Context) error {
	for i, target := range m.platforms {
		m.say("compiling for %s, %d of %d; the first time takes minutes", target, i+1, len(m.platforms))
		p, err := m.compile(ctx, target.os, target.arch)
		if err != nil {
			return err
		}
		for _, name := range []string{"nodens", pluginName} {
			files := fstest.MapFS{
				target.file(name): {Mode: 0o755, Data: p.binary},
				"LICENSE":         {Mode: 0o644, Data: p.license},
				noticesName:       {Mode: 0o644, Data: p.notices()},
			}
			archive := target.archive(name, m.version)
			if strings.HasSuffix(archive, ".zip") {
				err = m.addZip(archive, files)
			} else {
				err = m.addTarball(archive, files)
			}
			if err != nil {
				return err
			}
		}
		if err := m.addFilled(sbomName(target, m.version), m.programSBOM(p).write); err != nil {
			return err
		}
		if target.os == "linux" {
			m.linux = append(m.linux, p)
		}
	}
	return nil
}

func sbomName(p platform, version string) string {
	return fmt.Sprintf("nodens_%s_%s_%s.spdx.json", version, p.os, p.arch)
}

func imageName(version string) string { return "nodens-" + version + "-image.tar" }

func imageSBOMName(version, arch string) string {
	return fmt.Sprintf("nodens-%s-image_%s.spdx.json", version, arch)
}

// notices returns the licences of the modules, each under a line with its name and version.
func (p *program) notices() []byte {
	var b bytes.Buffer
	for _, m := range p.modules {
		fmt.Fprintf(&b, "%s\n", m.heading())
		for _, name := range slices.Sorted(maps.Keys(m.files)) {
			fmt.Fprintf(&b, "\n%s\n", bytes.TrimSpace(m.files[name].Data))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// writeImage adds the image for all architectures, and an SBOM for each.
func (m *maker) writeImage(ctx context.Context) error {
	m.say("making the image")
	var images []oci.Image
	for _, p := range m.linux {
		debs, err := m.packages(ctx, p.arch)
		if err != nil {
			return err
		}
		image, b, err := m.assemble(p, debs)
		if err != nil {
			return fmt.Errorf("the image for %s: %w", p.arch, err)
		}
		m.debs = append(m.debs, debs...)
		images = append(images, image)
		if err := m.addFilled(imageSBOMName(m.version, p.arch), b.write); err != nil {
			return err
		}
	}
	return m.addFilled(imageName(m.version), func(w io.Writer) (err error) {
		m.digest, err = oci.Write(w, m.image+":"+m.version, m.now, images...)
		return err
	})
}

// reference is the image by digest.
func (m *maker) reference() string { return m.image + "@" + m.digest }

func (m *maker) writeProvenance(context.Context) error {
	statement, err := provenance(m)
	if err != nil {
		return err
	}
	return m.add(provenanceName(m.version), statement)
}

// writeSums adds the list of checksums and, with a key, the signatures: of the list, which stands
// for all files; of the provenance; and of the image, for registries.
func (m *maker) writeSums(context.Context) error {
	var list bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(m.sums)) {
		fmt.Fprintf(&list, "%s  %s\n", m.sums[name], name)
	}
	if err := m.add(sumsName, list.Bytes()); err != nil {
		return err
	}
	if m.key == nil {
		m.say("no -key: nothing is signed")
		return nil
	}
	sums, err := signBlob(m.key, list.Bytes())
	if err != nil {
		return err
	}
	statement, err := os.ReadFile(filepath.Join(m.dir, provenanceName(m.version)))
	if err != nil {
		return err
	}
	signedStatement, err := signStatement(m.key, statement)
	if err != nil {
		return err
	}
	claim, err := imageStatement(m.image, m.digest)
	if err != nil {
		return err
	}
	image, err := signStatement(m.key, claim)
	return cmp.Or(err,
		m.add(sumsName+bundleSuffix, sums),
		m.add(provenanceName(m.version)+bundleSuffix, signedStatement),
		m.add(imageName(m.version)+bundleSuffix, image))
}

// sumsName is the list of checksums, in the form of sha256sum.
const sumsName = "SHA256SUMS"
