package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/release/oci"
)

// TestImage makes the image as its users do, and looks at what it has become.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the compiler, and Debian's packages: skipped under -short")
	}
	if _, err := debian.Sources(); err != nil {
		t.Skip(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	out := filepath.Join(t.TempDir(), "nodens.tar")
	build := func(t *testing.T, args ...string) {
		t.Helper()
		var said bytes.Buffer
		if err := runImage(t.Context(), append(args, "-arch", "amd64", "-revision", "abc123"), &said, &said); err != nil {
			t.Fatalf("%v\n%s", err, &said)
		}
	}
	build(t, "-out", out)
	layers := unpackImage(t, out)
	if len(layers) != 2 {
		t.Fatalf("%d layers, want two", len(layers))
	}
	files := maps.Clone(layers[0])
	maps.Copy(files, layers[1])

	t.Run("same again", func(t *testing.T) {
		// In another folder, by somebody with other habits.
		t.Setenv("GOFLAGS", "-v")
		t.Setenv("GOAMD64", "v3")
		t.Setenv("TMPDIR", t.TempDir())
		defer syscall.Umask(syscall.Umask(0o077))
		again := filepath.Join(t.TempDir(), "again.tar")
		build(t, "-out", again)
		for _, suffix := range []string{".tar", ".amd64.spdx.json"} {
			if !bytes.Equal(content(t, strings.TrimSuffix(out, ".tar")+suffix), content(t, strings.TrimSuffix(again, ".tar")+suffix)) {
				t.Errorf("the second %s differs from the first", suffix)
			}
		}
	})
	t.Run("next version", func(t *testing.T) {
		t.Setenv("SOURCE_DATE_EPOCH", "1100000000")
		var images [2]oci.Image
		for i, version := range []string{"0.1.0", "9.9.9"} {
			s, err := parseImage([]string{"-out", "x.tar", "-arch", "amd64", "-revision", "abc123", "-version", version}, io.Discard)
			if err == nil {
				err = s.complete(t.Context())
			}
			if err == nil {
				images[i], _, err = s.image(t.Context(), "amd64")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(images[0].Layers[0], images[1].Layers[0]) {
			t.Error("the first layer differs: a node would fetch Debian's files in every upgrade")
		}
		if reflect.DeepEqual(images[0].Layers[1], images[1].Layers[1]) {
			t.Error("the agent tells the same version")
		}
	})
	root := filepath.Join(t.TempDir(), "root")
	t.Run("folder", func(t *testing.T) {
		build(t, "-root", root)
		for name, e := range files {
			info, err := os.Lstat(filepath.Join(root, name))
			if err != nil || info.Mode().Type() != e.header.FileInfo().Mode().Type() {
				t.Errorf("/%s is not in the folder as in the image (%v)", name, err)
			} else if info.Mode().IsRegular() && !bytes.Equal(content(t, filepath.Join(root, name)), e.body) {
				t.Errorf("/%s differs from the image's", name)
			}
		}
	})
	t.Run("runs", func(t *testing.T) { checkRuns(t, root) })
	t.Run("programs", func(t *testing.T) { checkPrograms(t, files, elf.EM_X86_64) })
	t.Run("sbom", func(t *testing.T) {
		if !bytes.Equal(files[sbomPath].body, content(t, strings.TrimSuffix(out, ".tar")+".amd64.spdx.json")) {
			t.Error("the SBOM beside the image differs from the one in it")
		}
		checkSBOM(t, files)
	})
	t.Run("authorities", func(t *testing.T) {
		// A hundred: the list of those that browsers trust has 140.
		pool := x509.NewCertPool()
		if n := bytes.Count(files[certificatesPath].body, []byte("BEGIN CERTIFICATE")); !pool.AppendCertsFromPEM(files[certificatesPath].body) || n < 100 {
			t.Errorf("%d authorities, or none can be read", n)
		}
	})
	t.Run("nothing else", func(t *testing.T) {
		var programs []string
		for name, e := range files {
			if dir := path.Base(path.Dir(name)); (dir == "bin" || dir == "sbin") && e.header.Typeflag == tar.TypeReg {
				programs = append(programs, name)
			}
		}
		slices.Sort(programs)
		want := []string{agentPath, "usr/sbin/xtables-legacy-multi", "usr/sbin/xtables-nft-multi"}
		if !slices.Equal(programs, want) {
			t.Errorf("the programs are %q, want %q", programs, want)
		}
		for name, e := range files {
			if base := path.Base(name); slices.Contains([]string{"sh", "bash", "dash", "perl", "dpkg", "apt-get", "openssl", "sleep"}, base) {
				t.Errorf("there is a /%s", name)
			}
			if e.header.Uid != 0 || e.header.Gid != 0 || e.header.Mode&0o6022 != 0 && e.header.Typeflag != tar.TypeSymlink {
				t.Errorf("/%s is of %d:%d, with mode %o: it can be changed, or changes who runs it", name, e.header.Uid, e.header.Gid, e.header.Mode)
			}
		}
	})
}

// TestNoDebian: who has no apt-get is told what it takes.
func TestNoDebian(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := architectures["amd64"].packages(t.Context(), false)
	for _, want := range []string{"apt-get", "Debian"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// entry is a file of an image.
type entry struct {
	header *tar.Header
	body   []byte
}

// entries are the files of a tar file, but for folders.
func entries(t *testing.T, text []byte) map[string]entry {
	t.Helper()
	files := make(map[string]entry)
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			files[h.Name] = entry{h, body}
		}
	}
}

// unpackImage are the files of each layer of an image of one architecture.
func unpackImage(t *testing.T, file string) (layers []map[string]entry) {
	t.Helper()
	blobs := entries(t, content(t, file))
	type descriptor struct{ Digest string }
	var root, index struct{ Manifests []descriptor }
	var manifest struct{ Layers []descriptor }
	blob := func(d descriptor) []byte { return blobs["blobs/"+strings.Replace(d.Digest, ":", "/", 1)].body }
	if err := json.Unmarshal(blobs["index.json"].body, &root); err != nil || len(root.Manifests) != 1 {
		t.Fatalf("a layout of %d images, want one: %v", len(root.Manifests), err)
	}
	if err := json.Unmarshal(blob(root.Manifests[0]), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index of %d manifests, want one: %v", len(index.Manifests), err)
	}
	if err := json.Unmarshal(blob(index.Manifests[0]), &manifest); err != nil {
		t.Fatal(err)
	}
	for _, l := range manifest.Layers {
		zip, err := gzip.NewReader(bytes.NewReader(blob(l)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(zip)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, entries(t, plain))
	}
	return layers
}

func content(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// resolve follows the links of an image from a path, at most as many as Linux does.
func resolve(files map[string]entry, name string) (entry, bool) {
	name = strings.Trim(name, "/")
	for range 40 {
		e, ok := files[name]
		if ok && e.header.Typeflag != tar.TypeSymlink {
			return e, true
		}
		at, rest := name, ""
		for !ok && at != "." { // a link among the folders above
			rest = path.Join(path.Base(at), rest)
			at = path.Dir(at)
			e, ok = files[at]
		}
		if !ok {
			return entry{}, false
		}
		to := e.header.Linkname
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(at), to)
		}
		name = strings.Trim(path.Join(to, rest), "/")
	}
	return entry{}, false
}

// checkPrograms: all that netsetup runs is there, and all that this loads; it is for one
// machine, and no link leads nowhere.
func checkPrograms(t *testing.T, files map[string]entry, machine elf.Machine) {
	t.Helper()
	for _, name := range []string{"iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "iptables-nft", "ip6tables-nft",
		"iptables-nft-restore", "ip6tables-nft-restore", "iptables-legacy", "ip6tables-legacy", "iptables-legacy-restore", "ip6tables-legacy-restore"} {
		if _, ok := resolve(files, "usr/sbin/"+name); !ok {
			t.Errorf("%s is missing", name)
		}
	}
	// What the agent's rules match, and where they lead.
	for _, name := range []string{"comment", "conntrack", "socket", "statistic", "tcp", "udp", "standard", "DNAT", "MASQUERADE", "NOTRACK"} {
		there := func(n string) bool { return path.Base(n) == "libxt_"+name+".so" }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), there) {
			t.Errorf("iptables' extension %s is missing", name)
		}
	}
	programs, loaders := 0, 0
	for name, e := range files {
		if e.header.Typeflag == tar.TypeSymlink && !slices.Contains(debian.MergedDirs(), name) {
			if _, ok := resolve(files, name); !ok {
				t.Errorf("/%s leads to %s, where nothing is", name, e.header.Linkname)
			}
		}
		if !bytes.HasPrefix(e.body, []byte(elf.ELFMAG)) {
			continue
		}
		programs++
		f, err := elf.NewFile(bytes.NewReader(e.body))
		if err != nil || f.Machine != machine {
			t.Errorf("/%s is for %v, want %v (%v)", name, f.Machine, machine, err)
			continue
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			t.Error(err)
		}
		for _, library := range needed {
			there := slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(n string) bool { return path.Base(n) == library })
			if !there {
				t.Errorf("/%s needs %s, which is missing", name, library)
			}
		}
		if section := f.Section(".interp"); section != nil {
			interp, _ := section.Data()
			if _, ok := resolve(files, strings.Trim(string(interp), "\x00")); !ok {
				t.Errorf("/%s is loaded by %s, which is missing", name, interp)
			}
			loaders++
		}
	}
	// Two programs of iptables, a dozen libraries, and some hundred extensions.
	if programs < 100 || loaders < 2 {
		t.Errorf("%d programs and libraries, %d with a loader: too few for iptables", programs, loaders)
	}
}

// checkSBOM: the document is valid SPDX 2.3 and lists these files.
func checkSBOM(t *testing.T, files map[string]entry) {
	t.Helper()
	doc, err := spdxjson.Read(bytes.NewReader(files[sbomPath].body))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.DocumentName == "" || !strings.HasPrefix(doc.DocumentNamespace, home+"/") {
		t.Errorf("not a document of SPDX 2.3: %.300s", files[sbomPath].body)
	}
	if c := doc.CreationInfo; c == nil || c.Created != "2001-09-09T01:46:40Z" || len(c.Creators) == 0 {
		t.Errorf("creation info is %+v", c)
	}
	versions, known := make(map[string]string), map[spdx.ElementID]bool{documentID: true}
	identify := func(id spdx.ElementID) {
		if id == "" || known[id] {
			t.Errorf("element ID %q is empty or used twice", id)
		}
		known[id] = true
	}
	for _, p := range doc.Packages {
		identify(p.PackageSPDXIdentifier)
		versions[p.PackageName] = p.PackageVersion
		for _, field := range []string{p.PackageName, p.PackageVersion, p.PackageDownloadLocation, p.PackageLicenseConcluded, p.PackageLicenseDeclared, p.PackageCopyrightText} {
			if field == "" {
				t.Errorf("package %s lacks a field: %+v", p.PackageSPDXIdentifier, p)
			}
		}
		if p.FilesAnalyzed != (p.PackageVerificationCode != nil) {
			t.Errorf("package %s: files analyzed %v, verification code %v", p.PackageName, p.FilesAnalyzed, p.PackageVerificationCode)
		}
		if strings.HasPrefix(string(p.PackageSPDXIdentifier), "go-") && p.PackageLicenseDeclared == noAssertion {
			t.Errorf("the license of module %s is unknown", p.PackageName)
		}
	}
	for _, want := range []string{"nodens", "iptables", "libc6", "ca-certificates", "stdlib", "k8s.io/client-go", "github.com/vishvananda/netlink"} {
		if versions[want] == "" {
			t.Errorf("%s is not listed, or has no version", want)
		}
	}
	listed := make(map[string]bool)
	for _, f := range doc.Files {
		identify(f.FileSPDXIdentifier)
		name := strings.TrimPrefix(f.FileName, "./")
		listed[name] = true
		if !slices.Equal(f.Checksums, checksums(files[name].body)) {
			t.Errorf("checksums of %s differ from the file's", f.FileName)
		}
	}
	for name, e := range files {
		if e.header.Typeflag == tar.TypeReg && !listed[name] && name != sbomPath {
			t.Errorf("/%s is not in the SBOM", name)
		}
	}
	described := false
	for _, r := range doc.Relationships {
		if !known[r.RefA.ElementRefID] || !known[r.RefB.ElementRefID] {
			t.Errorf("unknown element in %v %s %v", r.RefA, r.Relationship, r.RefB)
		}
		described = described || r.RefA.ElementRefID == documentID && r.Relationship == "DESCRIBES" && r.RefB.ElementRefID == imageID
	}
	if !described {
		t.Error("the document describes nothing")
	}
}
