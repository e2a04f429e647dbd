package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing/fstest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
)

// checkPrograms checks for each system that both archives hold the same program, that the
// program was compiled from the provenance's commit, that its SBOM lists the modules that are
// linked into it, and that the licences of all of these are beside it.
func (v *verifier) checkPrograms() error {
	var errs []error
	for _, p := range v.platforms {
		if err := v.checkProgram(p); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func (v *verifier) checkProgram(p platform) error {
	binary, notices, err := v.readProgram(p)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return err
	}
	if err := v.checkBuild(p, info); err != nil {
		return err
	}
	if p.os == "linux" {
		v.programs[p.arch] = binary
	}
	modules := linkedModules(info)
	for _, m := range modules {
		if !bytes.Contains(notices, []byte(m.heading()+"\n")) {
			return fmt.Errorf("%s lacks the licence of %s %s", noticesName, m.name(), m.version)
		}
	}
	doc, err := v.readSBOM(sbomName(p, v.version))
	if err != nil {
		return err
	}
	return checkModules(doc, sbomName(p, v.version), modules, binary)
}

// readProgram returns the program in both archives, and the licences beside it.
func (v *verifier) readProgram(p platform) (binary, notices []byte, err error) {
	for _, program := range []string{"nodens", pluginName} {
		name := p.archive(program, v.version)
		files, err := v.tarball(name)
		if err != nil {
			return nil, nil, err
		}
		found, err := fs.ReadFile(files, p.file(program))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if notices, err = fs.ReadFile(files, noticesName); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if binary != nil && !bytes.Equal(binary, found) {
			return nil, nil, fmt.Errorf("the program in %s is not that of nodens", name)
		}
		binary = found
	}
	return binary, notices, nil
}

// checkBuild checks how a program was compiled, and from what.
func (v *verifier) checkBuild(p platform, info *buildinfo.BuildInfo) error {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{
		"GOOS": p.os, "GOARCH": p.arch, "CGO_ENABLED": "0", "vcs.revision": v.commit, "vcs.modified": "false",
	} {
		if settings[key] != want {
			return fmt.Errorf("the program was compiled with %s=%q, want %q", key, settings[key], want)
		}
	}
	if info.Path != agentModule+"/cmd/nodens" || info.Main.Version != "v"+v.version {
		return fmt.Errorf("the program is %s of %s, want nodens of v%s", info.Path, info.Main.Version, v.version)
	}
	return nil
}

func (v *verifier) readSBOM(name string) (*spdx.Document, error) {
	text, err := v.read(name)
	if err != nil {
		return nil, err
	}
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return doc, nil
}

// checkModules checks that an SBOM is about this program, and lists these modules and no others.
func checkModules(doc *spdx.Document, name string, modules []module, binary []byte) error {
	want := make(map[string]string)
	for _, m := range modules {
		want[m.name()] = m.version
	}
	for _, p := range doc.Packages {
		switch {
		case p.PackageSPDXIdentifier == agentID:
			if !slices.Equal(p.PackageChecksums, checksums(binary)[1:]) {
				return fmt.Errorf("%s is about another program", name)
			}
		case strings.HasPrefix(string(p.PackageSPDXIdentifier), "go-"):
			if want[p.PackageName] != p.PackageVersion {
				return fmt.Errorf("%s has %s %s; in the program it is %q", name, p.PackageName, p.PackageVersion, want[p.PackageName])
			}
			delete(want, p.PackageName)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("%s lacks %s", name, slices.Sorted(maps.Keys(want))[0])
	}
	return nil
}

// checkImage checks the image's signature, digest and parts, and for each architecture that it has
// the archive's program and exactly the files that its SBOM lists.
func (v *verifier) checkImage() error {
	name := imageName(v.version)
	if v.key != nil {
		claim, err := imageStatement(v.image, v.digest)
		if err != nil {
			return err
		}
		if err := v.checkSignature(name, claim); err != nil {
			return err
		}
	}
	index, done, err := v.openImage()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer done()
	if err := validate.Index(index); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if digest.String() != v.digest {
		return fmt.Errorf("%s has the digest %s; the provenance names %s", name, digest, v.digest)
	}
	return v.checkArchitectures(name, index)
}

func (v *verifier) checkArchitectures(name string, index v1.ImageIndex) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	var have []string
	for _, d := range manifest.Manifests {
		have = append(have, d.Platform.Architecture)
		image, err := index.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := v.checkArchitecture(d.Platform.Architecture, image); err != nil {
			return fmt.Errorf("%s for %s: %w", name, d.Platform.Architecture, err)
		}
	}
	if slices.Sort(have); !slices.Equal(have, slices.Sorted(maps.Keys(v.programs))) {
		return fmt.Errorf("%s is for %v", name, have)
	}
	return nil
}

// openImage returns the index in the image's file. Call done when it is no longer used.
func (v *verifier) openImage() (index v1.ImageIndex, done func(), err error) {
	body, err := v.read(imageName(v.version))
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "nodens-verify-")
	if err != nil {
		return nil, nil, err
	}
	done = func() { os.RemoveAll(dir) }
	if index, err = readLayout(dir, body); err != nil {
		done()
		return nil, nil, err
	}
	return index, done, nil
}

// readLayout unpacks a layout into a directory, and returns the index of its image.
func readLayout(dir string, body []byte) (v1.ImageIndex, error) {
	files, err := readTar(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, f := range files {
		if sum, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && sha256Hex(f.Data) != sum {
			return nil, fmt.Errorf("/%s differs from its name, which is its checksum", name)
		}
	}
	if err := os.CopyFS(dir, files); err != nil {
		return nil, err
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return nil, err
	}
	if n := len(manifest.Manifests); n != 1 {
		return nil, fmt.Errorf("the layout holds %d images, want one", n)
	}
	return root.ImageIndex(manifest.Manifests[0].Digest)
}

// checkArchitecture compares the files of an image with the SBOM beside it, which must also be in
// it.
func (v *verifier) checkArchitecture(arch string, image v1.Image) error {
	plain := mutate.Extract(image)
	defer plain.Close()
	files, err := readTar(plain)
	if err != nil {
		return err
	}
	if f := files[agentPath]; f == nil || !bytes.Equal(f.Data, v.programs[arch]) {
		return fmt.Errorf("/%s is not the program in %s", agentPath, platform{"linux", arch}.archive("nodens", v.version))
	}
	name := imageSBOMName(v.version, arch)
	text, err := v.read(name)
	if err != nil {
		return err
	}
	if f := files[sbomPath]; f == nil || !bytes.Equal(f.Data, text) {
		return fmt.Errorf("/%s differs from %s", sbomPath, name)
	}
	doc, err := v.readSBOM(name)
	if err != nil {
		return err
	}
	return checkListed(doc, name, files)
}

// checkListed checks that an image has the files that its SBOM lists, and no others.
func checkListed(doc *spdx.Document, name string, files fstest.MapFS) error {
	listed := map[string]bool{sbomPath: true}
	for _, f := range doc.Files {
		at := path.Clean(f.FileName)
		listed[at] = true
		if files[at] == nil || !slices.Equal(f.Checksums, checksums(files[at].Data)) {
			return fmt.Errorf("/%s is missing or not as in %s", at, name)
		}
	}
	for at, f := range files {
		if f.Mode.IsRegular() && !listed[at] {
			return fmt.Errorf("/%s is not in %s", at, name)
		}
	}
	return nil
}
