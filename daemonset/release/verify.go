package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// verifier checks a release in a directory. Each check relies on those before it.
type verifier struct {
	dir string
	// key is the key that must have signed; nil to leave signatures out.
	key     *ecdsa.PublicKey
	version string
	sums    map[string]string
	// image, digest and commit are what the provenance says.
	image, digest, commit string
	platforms             []platform
	// programs are those of the archives for Linux, by architecture.
	programs map[string][]byte
}

// runVerify checks a release as its users do. It writes a line for each check and returns an error
// if one fails. It needs neither a network nor other programs.
func runVerify(_ context.Context, args []string, stdout, stderr io.Writer) error {
	fset := flag.NewFlagSet("verify", flag.ContinueOnError)
	fset.SetOutput(stderr)
	key := fset.String("key", "", "PEM `file` with the public key of who signed (default: signatures are left out)")
	if err := fset.Parse(args); err != nil {
		return err
	}
	if fset.NArg() != 1 {
		return errors.New("give the directory of a release")
	}
	_, err := verifyRelease(fset.Arg(0), *key, stdout)
	return err
}

// verifyRelease checks the release in a directory, with the public key in a file, if that is
// not "".
func verifyRelease(dir, key string, stdout io.Writer) (*verifier, error) {
	v := &verifier{dir: dir, programs: make(map[string][]byte)}
	if key != "" {
		var err error
		if v.key, err = readPublicKey(key); err != nil {
			return nil, err
		}
	}
	failed := 0
	for _, c := range []struct {
		name  string
		check func() error
	}{
		{"checksums", v.checkSums}, {"signatures", v.checkSignatures}, {"provenance", v.checkProvenance},
		{"programs", v.checkPrograms}, {"image", v.checkImage}, {"manifests", v.checkManifests}, {"chart", v.checkChart},
		{"index", v.checkIndex}, {"krew", v.checkKrew}, {"notes", v.checkNotes},
	} {
		err := c.check()
		if err == nil {
			fmt.Fprintf(stdout, "ok    %s\n", c.name)
			continue
		}
		failed++
		fmt.Fprintf(stdout, "FAIL  %s: %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		if v.version == "" {
			break
		}
	}
	if failed > 0 {
		return nil, fmt.Errorf("%s is not a sound release: do not use it", v.dir)
	}
	if v.key == nil {
		fmt.Fprintln(stdout, "      no -key: the signatures were not checked; anybody can have made these files")
	}
	fmt.Fprintf(stdout, "      nodens %s for %v, commit %s, image %s@%s\n", v.version, v.platforms, v.commit, v.image, v.digest)
	return v, nil
}

// read reads a file of the release.
func (v *verifier) read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(v.dir, name)) }

// provenanceFile matches the file that names the version.
var provenanceFile = regexp.MustCompile(`^nodens-(.+)\.provenance\.json$`)

// checkSums compares the files with the list of checksums, in both directions.
func (v *verifier) checkSums() error {
	if err := v.readSums(); err != nil {
		return err
	}
	var errs []error
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if v.sums[e.Name()] == "" && e.Name() != sumsName && !strings.HasSuffix(e.Name(), bundleSuffix) {
			errs = append(errs, fmt.Errorf("%s is not in %s", e.Name(), sumsName))
		}
	}
	for name, sum := range v.sums {
		body, err := v.read(name)
		if err == nil && sha256Hex(body) != sum {
			err = fmt.Errorf("%s differs from its checksum", name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readSums reads the list of checksums, and the version in the name of a file.
func (v *verifier) readSums() error {
	list, err := v.read(sumsName)
	if err != nil {
		return err
	}
	v.sums = make(map[string]string)
	for line := range strings.Lines(string(list)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || filepath.Base(name) != name {
			return fmt.Errorf("%s has the line %q", sumsName, line)
		}
		v.sums[name] = sum
		if m := provenanceFile.FindStringSubmatch(name); m != nil {
			v.version = m[1]
		}
	}
	if v.version == "" {
		return fmt.Errorf("%s lists no provenance", sumsName)
	}
	return nil
}

// checkSignatures checks the signatures of the checksums, which stand for all files, of the
// provenance and of the image.
func (v *verifier) checkSignatures() error {
	if v.key == nil {
		return nil
	}
	var errs []error
	for _, name := range []string{sumsName, provenanceName(v.version)} {
		body, err := v.read(name)
		if err != nil {
			return err
		}
		errs = append(errs, v.checkSignature(name, body))
	}
	return errors.Join(errs...)
}

// checkSignature checks the bundle that belongs to a file of the release.
func (v *verifier) checkSignature(name string, body []byte) error {
	bundle, err := v.read(name + bundleSuffix)
	if err != nil {
		return err
	}
	if err := verifyBundle(v.key, bundle, body); err != nil {
		return fmt.Errorf("%s: %w", name+bundleSuffix, err)
	}
	return nil
}

// checkProvenance checks that the provenance is about each file and names source and image.
func (v *verifier) checkProvenance() error {
	name := provenanceName(v.version)
	statement, err := v.readProvenance(name)
	if err != nil {
		return err
	}
	definition := statement.GetPredicate().GetFields()["buildDefinition"].GetStructValue().GetFields()
	if err := v.readParameters(definition["externalParameters"].GetStructValue().GetFields()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := v.readSource(definition["resolvedDependencies"].GetListValue().GetValues()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	about := make(map[string]string)
	for _, s := range statement.GetSubject() {
		about[s.GetName()] = s.GetDigest()["sha256"]
	}
	v.digest = "sha256:" + about[v.image]
	for file, sum := range v.sums {
		if file != name && about[file] != sum {
			return fmt.Errorf("%s is not about this %s", name, file)
		}
	}
	return nil
}

func (v *verifier) readProvenance(name string) (*intoto.Statement, error) {
	text, err := v.read(name)
	if err != nil {
		return nil, err
	}
	statement := new(intoto.Statement)
	if err := protojson.Unmarshal(text, statement); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := statement.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if t := statement.GetPredicateType(); t != provenanceType {
		return nil, fmt.Errorf("%s is of type %s, want %s", name, t, provenanceType)
	}
	return statement, nil
}

// readParameters reads what was given to the build.
func (v *verifier) readParameters(parameters map[string]*structpb.Value) (err error) {
	v.image = parameters["image"].GetStringValue()
	if got := parameters["version"].GetStringValue(); got != v.version || v.image == "" {
		return fmt.Errorf("it is about version %q and image %q", got, v.image)
	}
	v.platforms, err = parsePlatforms(parameters["platforms"].GetStringValue())
	return err
}

// readSource reads the commit, which has to be the first of the build's materials.
func (v *verifier) readSource(materials []*structpb.Value) error {
	if len(materials) == 0 {
		return errors.New("it does not say what the release was made from")
	}
	source := materials[0].GetStructValue().GetFields()
	v.commit = source["digest"].GetStructValue().GetFields()["gitCommit"].GetStringValue()
	if got, want := source["uri"].GetStringValue(), "git+"+home+"@refs/tags/v"+v.version; got != want || v.commit == "" {
		return fmt.Errorf("made from commit %q of %s, want %s", v.commit, got, want)
	}
	return nil
}

// openArchive returns the files of a program's archive.
func openArchive(name string, body []byte) (fs.FS, error) {
	if strings.HasSuffix(name, ".zip") {
		return zip.NewReader(bytes.NewReader(body), int64(len(body)))
	}
	plain, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return readTar(plain)
}

// readTar returns the regular files and the links of a tar file.
func readTar(r io.Reader) (fstest.MapFS, error) {
	files := make(fstest.MapFS)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		f := &fstest.MapFile{Mode: h.FileInfo().Mode(), ModTime: h.ModTime}
		switch h.Typeflag {
		case tar.TypeReg:
			f.Data, err = io.ReadAll(in)
		case tar.TypeSymlink:
			f.Data = []byte(h.Linkname)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		files[h.Name] = f
	}
}

// checkManifests checks that every manifest names the image by its digest.
func (v *verifier) checkManifests() error {
	for _, name := range plainManifests {
		name = path.Base(name)
		text, err := v.read(name)
		if err != nil {
			return err
		}
		if err := v.checkReferences(name, text); err != nil {
			return err
		}
	}
	files, err := v.tarball(manifestsName(v.version))
	if err != nil {
		return err
	}
	settings, err := fs.ReadFile(files, settingsPath)
	if err != nil {
		return err
	}
	if !strings.Contains(string(settings), "newName: "+v.image+"\n") || !strings.Contains(string(settings), " digest: "+v.digest+"\n") {
		return fmt.Errorf("%s in %s does not name the image by its digest", settingsPath, manifestsName(v.version))
	}
	return nil
}

// imageLine matches the images of a manifest.
var imageLine = regexp.MustCompile(`(?m)^[ -]*image: *(\S*)`)

func (v *verifier) checkReferences(name string, text []byte) error {
	found := imageLine.FindAllSubmatch(text, -1)
	if len(found) == 0 {
		return fmt.Errorf("%s has no image", name)
	}
	for _, f := range found {
		if got, want := string(f[1]), v.image+"@"+v.digest; got != want {
			return fmt.Errorf("%s has the image %s, want %s", name, got, want)
		}
	}
	return nil
}

// tarball returns the files of a compressed tar file.
func (v *verifier) tarball(name string) (fs.FS, error) {
	body, err := v.read(name)
	if err != nil {
		return nil, err
	}
	files, err := openArchive(name, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return files, nil
}

// checkChart checks the chart's version and image.
func (v *verifier) checkChart() error {
	files, err := v.tarball(chartName(v.version))
	if err != nil {
		return err
	}
	for file, lines := range map[string][]string{
		"nodens/Chart.yaml":  {"name: nodens", "version: " + v.version, "appVersion: " + v.version},
		"nodens/values.yaml": {"  repository: " + v.image, "  digest: " + v.digest},
	} {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return err
		}
		have := strings.Split(string(text), "\n")
		for _, line := range lines {
			if !slices.Contains(have, line) {
				return fmt.Errorf("%s in %s has no line %q", file, chartName(v.version), line)
			}
		}
	}
	return nil
}

// checkKrew checks that the manifest has each archive of the plugin with its checksum.
func (v *verifier) checkKrew() error {
	text, err := v.read(krewName)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "\n  platforms:\n")
	for _, p := range v.platforms {
		name := p.archive(pluginName, v.version)
		want := fmt.Sprintf("/%s\n    sha256: %s\n", name, v.sums[name])
		if !strings.Contains(rest, want) {
			return fmt.Errorf("%s has not the checksum of %s", krewName, name)
		}
	}
	if n := strings.Count(rest, "  - selector:"); n != len(v.platforms) {
		return fmt.Errorf("%s is about %d platforms, want %d", krewName, n, len(v.platforms))
	}
	return nil
}

// checkNotes checks that the notes are about this version.
func (v *verifier) checkNotes() error {
	text, err := v.read(notesName)
	if err == nil && !strings.HasPrefix(string(text), "# nodens "+v.version+"\n") {
		err = fmt.Errorf("%s is not about %s", notesName, v.version)
	}
	return err
}

// checkIndex checks that the index is the one that chartIndex makes from the chart.
func (v *verifier) checkIndex() error {
	text, err := v.read(indexName)
	if err != nil {
		return err
	}
	name := chartName(v.version)
	chart, err := v.read(name)
	if err != nil {
		return err
	}
	want, err := chartIndex(name, chart)
	if err != nil {
		return err
	}
	lines, wanted := strings.Split(string(text), "\n"), strings.Split(string(want), "\n")
	for i, line := range lines[:min(len(lines), len(wanted))] {
		if line != wanted[i] {
			return fmt.Errorf("%s has the line %q, want %q of %s", indexName, line, wanted[i], name)
		}
	}
	if len(lines) != len(wanted) {
		return fmt.Errorf("%s has %d lines, want %d", indexName, len(lines), len(wanted))
	}
	return nil
}
