package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/release/oci"
)

// newKey makes a key, with a file of the private and one of the public key.
func newKey(t *testing.T) (key *ecdsa.PrivateKey, private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "key.pem"), filepath.Join(dir, "public.pem")
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if der, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
		t.Fatal(err)
	}
	writeFile(t, public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return key, private, public
}

func writeFile(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// smallProgram has a dependency, and little else that has to be compiled for each system.
const smallProgram = `package main

import "golang.org/x/sync/semaphore"

var version, revision string

func main() { println(version, revision, semaphore.NewWeighted(1)) }
`

// git runs git without the user's settings, with a fixed author and time.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.test", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.test",
		"GIT_AUTHOR_DATE=2020-02-03T04:05:06Z", "GIT_COMMITTER_DATE=2020-02-03T04:05:06Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// newSource makes a repository that a release can be made from quickly: a small program, and the
// manifests and the chart of this one.
func newSource(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	for _, name := range []string{"LICENSE", "go.mod", "go.sum"} {
		writeFile(t, filepath.Join(top, name), content(t, filepath.Join("..", "..", name)))
	}
	for _, dir := range []string{"base", "chart", "cleanup", "components", "monitoring", "network-policy", "overlays", "seccomp", "settings"} {
		if err := os.CopyFS(filepath.Join(top, "daemonset", dir), os.DirFS(filepath.Join("..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(top, "cmd/nodens/main.go"), []byte(smallProgram))
	writeFile(t, filepath.Join(top, "CHANGELOG.md"), []byte("# Changelog\n\n## [0.1.0] - 2020-02-03\n\n### Added\n\n- Everything,\n  [in short](docs/features.md#seeing).\n\n## [0.0.1] - 2020-01-01\n"))
	git(t, top, "init", "-q")
	git(t, top, "add", "-A")
	git(t, top, "commit", "-q", "-m", "first")
	git(t, top, "tag", "v0.1.0")
	return top
}

// smallMaker makes releases of such a repository, with few packages in the image.
func smallMaker(top string, key *ecdsa.PrivateKey, image string) *maker {
	platforms, err := parsePlatforms(allPlatforms)
	if err != nil {
		panic(err) // unreachable: the list is a constant
	}
	return &maker{
		platforms: platforms,
		source:    source{top: top, version: "0.1.0"}, image: image, builder: home, key: key, log: io.Discard,
		packages: func(_ context.Context, arch string) ([]*debian.Package, error) {
			return debs(few(architectures[arch])), nil
		},
	}
}

// sameFiles reports every file that differs between two directories.
func sameFiles(t *testing.T, first, second string) {
	t.Helper()
	names := make(map[string]bool)
	for _, dir := range []string{first, second} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names[e.Name()] = true
		}
	}
	for name := range names {
		a, errA := os.ReadFile(filepath.Join(first, name))
		b, errB := os.ReadFile(filepath.Join(second, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is not the same in both releases (%v, %v)", name, errA, errB)
		}
	}
}

// verify returns what runVerify writes, and its error.
func verify(t *testing.T, public, dir string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := runVerify(t.Context(), []string{"-key", public, dir}, &out, &out)
	return out.String(), err
}

// TestRelease: a release is the same on another path; it passes every check, and each way to
// tamper with it is found; it can be pushed.
func TestRelease(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	key, _, public := newKey(t)
	top := newSource(t)
	m := smallMaker(top, key, host+"/nodens")
	dir := filepath.Join(t.TempDir(), "release")
	if err := m.make(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Run("same again", func(t *testing.T) {
		clone := filepath.Join(t.TempDir(), "another", "path")
		git(t, top, "clone", "-q", top, clone)
		t.Setenv("TMPDIR", t.TempDir())
		t.Setenv("GOFLAGS", "-v")
		again := filepath.Join(t.TempDir(), "again")
		if err := smallMaker(clone, key, m.image).make(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		sameFiles(t, dir, again)
	})
	t.Run("sound", func(t *testing.T) {
		out, err := verify(t, public, dir)
		if err != nil || strings.Count(out, "ok ") != 10 || !strings.Contains(out, m.revision) {
			t.Errorf("%v\n%s", err, out)
		}
		var unsigned bytes.Buffer
		if err := runVerify(t.Context(), []string{dir}, &unsigned, &unsigned); err != nil || !strings.Contains(unsigned.String(), "signatures were not checked") {
			t.Errorf("without a key: %v\n%s", err, &unsigned)
		}
	})
	t.Run("one system", func(t *testing.T) { checkOneSystem(t, m, public) })
	t.Run("texts", func(t *testing.T) { checkTexts(t, host, dir) })
	t.Run("helm repo", func(t *testing.T) { checkRepository(t, dir) })
	t.Run("push", func(t *testing.T) { checkPush(t, m, host, dir, public) })
	for _, tt := range tampered {
		t.Run(tt.name, func(t *testing.T) {
			bad := &tamperer{t: t, m: *m, dir: t.TempDir()}
			if err := os.CopyFS(bad.dir, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			tt.change(bad)
			if out, err := verify(t, public, bad.dir); err == nil || !strings.Contains(out, "FAIL  "+tt.want) {
				t.Errorf("error %v, want a line with %q in\n%s", err, tt.want, out)
			}
		})
	}
}

// checkOneSystem makes and checks a release for only the first system of m.
func checkOneSystem(t *testing.T, m *maker, public string) {
	t.Helper()
	small := smallMaker(m.top, m.key, m.image)
	small.platforms = m.platforms[:1]
	dir := filepath.Join(t.TempDir(), "small")
	if err := small.make(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(t, public, dir); err != nil || !strings.Contains(out, "nodens 0.1.0 for [linux/amd64],") {
		t.Errorf("%v\n%s", err, out)
	}
}

// checkTexts looks at what people read: the notes, and the chart's README.
func checkTexts(t *testing.T, host, dir string) {
	t.Helper()
	const wantNotes = "# nodens 0.1.0\n\n### Added\n\n- Everything,\n  [in short](" + home + "/blob/v0.1.0/docs/features.md#seeing).\n"
	if got := string(content(t, filepath.Join(dir, notesName))); got != wantNotes {
		t.Errorf("the notes are %q, want %q", got, wantNotes)
	}
	files, err := openArchive(chartName("0.1.0"), content(t, filepath.Join(dir, chartName("0.1.0"))))
	if err != nil {
		t.Fatal(err)
	}
	readme := string(files.(fstest.MapFS)["nodens/README.md"].Data)
	want := "\n$ helm upgrade --install node-local-dns oci://" + host + "/charts/nodens --version 0.1.0 --namespace kube-system --take-ownership\n"
	if !strings.Contains(readme, want) || strings.Contains(readme, "not published") || strings.Contains(readme, "](../") {
		t.Errorf("the chart's README does not contain %q, or is about the repository:\n%.2000s", want, readme)
	}
}

// tamperer changes a copy of a release.
type tamperer struct {
	t   *testing.T
	m   maker
	dir string
}

func (b *tamperer) path(name string) string { return filepath.Join(b.dir, name) }

// replace replaces text in a file.
func (b *tamperer) replace(name, old, by string) {
	b.t.Helper()
	text := content(b.t, b.path(name))
	if !bytes.Contains(text, []byte(old)) {
		b.t.Fatalf("%s has no %q", name, old)
	}
	writeFile(b.t, b.path(name), bytes.ReplaceAll(text, []byte(old), []byte(by)))
}

// repack changes the files of an archive.
func (b *tamperer) repack(name string, change func(fstest.MapFS)) {
	b.t.Helper()
	files, err := openArchive(name, content(b.t, b.path(name)))
	if err != nil {
		b.t.Fatal(err)
	}
	change(files.(fstest.MapFS))
	b.m.dir = b.dir
	if err := b.m.addTarball(name, files); err != nil {
		b.t.Fatal(err)
	}
}

// seal makes checksums, provenance and signatures anew, as who has stolen the key.
func (b *tamperer) seal() {
	b.t.Helper()
	b.m.dir, b.m.sums = b.dir, make(map[string]string)
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != sumsName && name != provenanceName("0.1.0") && !strings.HasSuffix(name, bundleSuffix) {
			b.m.sums[name] = sha256Hex(content(b.t, b.path(name)))
		}
	}
	for _, step := range []func(context.Context) error{b.m.writeProvenance, b.m.writeSums} {
		if err := step(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

const (
	linuxArchive  = "nodens_0.1.0_linux_amd64.tar.gz"
	pluginArchive = "kubectl-nodens_0.1.0_linux_amd64.tar.gz"
)

// tampered are ways to tamper with a release, and the line that says so. The first ones are
// open to everyone who can write the files, the others only to who has the key.
var tampered = []struct {
	name, want string
	change     func(*tamperer)
}{
	{"another archive", "checksums: " + linuxArchive + " differs from its checksum", func(b *tamperer) {
		b.repack(linuxArchive, func(f fstest.MapFS) { f["nodens"].Data = []byte("other") })
	}},
	{"a file less", "checksums: open ", func(b *tamperer) {
		if err := os.Remove(b.path(krewName)); err != nil {
			b.t.Fatal(err)
		}
	}},
	{"a file more", "checksums: install.sh is not in SHA256SUMS", func(b *tamperer) { writeFile(b.t, b.path("install.sh"), nil) }},
	{"another checksum", "signatures: SHA256SUMS.sigstore.json: the signature is not by this key", func(b *tamperer) {
		before := sha256Hex(content(b.t, b.path(notesName)))
		b.replace(notesName, "Everything", "Something")
		b.replace(sumsName, before, sha256Hex(content(b.t, b.path(notesName))))
	}},
	{"another key", "signatures: SHA256SUMS.sigstore.json: the signature is not by this key", func(b *tamperer) {
		b.m.key, _, _ = newKey(b.t)
		b.seal()
	}},
	{"no signature", "signatures: open ", func(b *tamperer) {
		if err := os.Remove(b.path(sumsName + bundleSuffix)); err != nil {
			b.t.Fatal(err)
		}
	}},
	{"another provenance", "signatures: nodens-0.1.0.provenance.json.sigstore.json: the bundle is about another statement", func(b *tamperer) {
		kept := content(b.t, b.path(provenanceName("0.1.0")+bundleSuffix))
		b.m.revision = strings.Repeat("0", 40)
		b.seal()
		writeFile(b.t, b.path(provenanceName("0.1.0")+bundleSuffix), kept)
	}},
	{"provenance of other files", "provenance: nodens-0.1.0.provenance.json is not about this RELEASE-NOTES.md", func(b *tamperer) {
		kept := content(b.t, b.path(provenanceName("0.1.0")))
		b.replace(notesName, "Everything", "Something")
		b.seal()
		writeFile(b.t, b.path(provenanceName("0.1.0")), kept)
	}},
	{"another commit", `programs: linux/amd64: the program was compiled with vcs.revision=`, func(b *tamperer) {
		b.m.revision = strings.Repeat("0", 40)
		b.seal()
	}},
	{"a program for another system", `programs: linux/amd64: the program was compiled with GOARCH="arm64", want "amd64"`, func(b *tamperer) {
		for _, name := range []string{linuxArchive, pluginArchive} {
			b.repack(name, func(f fstest.MapFS) { f[strings.SplitN(name, "_", 2)[0]].Data = b.m.linux[1].binary })
		}
		b.seal()
	}},
	{"another plugin", "programs: linux/amd64: the program in " + pluginArchive + " is not that of nodens", func(b *tamperer) {
		b.repack(pluginArchive, func(f fstest.MapFS) { f[pluginName].Data = append(f[pluginName].Data, 0) })
		b.seal()
	}},
	{"a licence less", "programs: linux/amd64: THIRD-PARTY-LICENSES lacks the licence of golang.org/x/sync v", func(b *tamperer) {
		for _, name := range []string{linuxArchive, pluginArchive} {
			b.repack(name, func(f fstest.MapFS) {
				f[noticesName].Data = bytes.ReplaceAll(f[noticesName].Data, []byte("golang.org/x/sync"), []byte("golang.org/x/other"))
			})
		}
		b.seal()
	}},
	{"another module in the SBOM", "programs: windows/arm64: nodens_0.1.0_windows_arm64.spdx.json has golang.org/x/other v", func(b *tamperer) {
		b.replace("nodens_0.1.0_windows_arm64.spdx.json", `"name": "golang.org/x/sync"`, `"name": "golang.org/x/other"`)
		b.seal()
	}},
	{"another image", "image: nodens-0.1.0-image.tar has the digest sha256:", func(b *tamperer) {
		b.image(fstest.MapFS{"extra": {Data: []byte("x")}})
		b.m.digest = "sha256:" + strings.Repeat("0", 64)
		b.seal()
	}},
	{"a damaged image", "image: nodens-0.1.0-image.tar: /blobs/sha256/", func(b *tamperer) {
		b.replace(imageName("0.1.0"), `"Entrypoint":["/usr/local/bin/nodens"]`, `"Entrypoint":["/usr/local/bin/xodens"]`)
		b.seal()
	}},
	{"a file more in the image", "image: nodens-0.1.0-image.tar for amd64: /extra is not in nodens-0.1.0-image_amd64.spdx.json", func(b *tamperer) {
		b.image(fstest.MapFS{"extra": {Data: []byte("x")}})
		b.seal()
	}},
	{"an image of another program", "image: nodens-0.1.0-image.tar for amd64: /usr/local/bin/nodens is not the program in " + linuxArchive, func(b *tamperer) {
		b.image(fstest.MapFS{agentPath: {Mode: 0o755, Data: []byte("other")}})
		b.seal()
	}},
	{"a manifest with a tag", "manifests: nodens.yaml has the image 127.0.0.1:", func(b *tamperer) {
		b.replace("nodens.yaml", "@"+b.m.digest, ":0.1.0")
		b.seal()
	}},
	{"settings with a tag", "manifests: settings/kustomization.yaml in ", func(b *tamperer) {
		b.repack(manifestsName("0.1.0"), func(f fstest.MapFS) {
			f[settingsPath].Data = bytes.ReplaceAll(f[settingsPath].Data, []byte("digest: "), []byte("newTag: "))
		})
		b.seal()
	}},
	{"a chart with another image", `chart: nodens/values.yaml in nodens-0.1.0.tgz has no line "  repository: 127.0.0.1:`, func(b *tamperer) {
		b.repack(chartName("0.1.0"), func(f fstest.MapFS) {
			f["nodens/values.yaml"].Data = bytes.ReplaceAll(f["nodens/values.yaml"].Data, []byte("  repository: 127.0.0.1:"), []byte("  repository: other.example:"))
		})
		b.seal()
	}},
	{"an index with another chart", `index: index.yaml has the line "    digest: 0`, func(b *tamperer) {
		b.replace(indexName, sha256Hex(content(b.t, b.path(chartName("0.1.0")))), strings.Repeat("0", 64))
		b.seal()
	}},
	{"an index with another place", `index: index.yaml has the line "    - https://other.example/nodens-0.1.0.tgz", want "    - nodens-0.1.0.tgz"`, func(b *tamperer) {
		b.replace(indexName, "- nodens-0.1.0.tgz", "- https://other.example/nodens-0.1.0.tgz")
		b.seal()
	}},
	{"an index with one chart more", "index: index.yaml has ", func(b *tamperer) {
		writeFile(b.t, b.path(indexName), append(content(b.t, b.path(indexName)), "more: true\n"...))
		b.seal()
	}},
	{"another plugin for krew", "krew: krew-nodens.yaml has not the checksum of kubectl-nodens_0.1.0_darwin_arm64.tar.gz", func(b *tamperer) {
		b.replace(krewName, b.m.sums["kubectl-nodens_0.1.0_darwin_arm64.tar.gz"], strings.Repeat("0", 64))
		b.seal()
	}},
	{"notes of another version", "notes: RELEASE-NOTES.md is not about 0.1.0", func(b *tamperer) {
		b.replace(notesName, "nodens 0.1.0", "nodens 0.2.0")
		b.seal()
	}},
}

// image makes the image anew, with another layer.
func (b *tamperer) image(files fstest.MapFS) {
	b.t.Helper()
	b.m.dir, b.m.sums = b.dir, make(map[string]string)
	err := b.m.addFilled(imageName("0.1.0"), func(w io.Writer) (err error) {
		var images []oci.Image
		for _, p := range b.m.linux {
			debs, err := b.m.packages(b.t.Context(), p.arch)
			if err != nil {
				return err
			}
			image, _, err := b.m.assemble(p, debs)
			if err != nil {
				return err
			}
			image.Layers = append(image.Layers, fs.FS(files))
			images = append(images, image)
		}
		b.m.digest, err = oci.Write(w, b.m.image+":0.1.0", b.m.now, images...)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestMakeRefuses: what can't be released is refused before anything is compiled.
func TestMakeRefuses(t *testing.T) {
	top := newSource(t)
	out := filepath.Join(t.TempDir(), "out")
	for _, tt := range []struct {
		name   string
		change func(*maker)
		want   string
	}{
		{"no such tag", func(m *maker) { m.version = "0.2.0" }, "not that of the tag v0.2.0"},
		{"a changed file", func(*maker) { writeFile(t, filepath.Join(top, "LICENSE"), []byte("mine")) }, "is not that of the tag"},
		{"a new file", func(*maker) { git(t, top, "checkout", "-q", "LICENSE"); writeFile(t, filepath.Join(top, "x"), nil) }, "?? x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := smallMaker(top, nil, "nodens")
			tt.change(m)
			if err := m.make(t.Context(), out); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	for _, args := range [][]string{{"-version", "v0.1.0", "-out", out}, {"-version", "0.1.0", "-out", top}, {"-version", "0.1.0"}, {"-version", "0.1.0", "-out", out, "-platforms", "plan9/arm"}, {"-version", "0.1.0", "-out", out, "-platforms", "darwin/arm64"}, {"-version", "0.1.0", "-out", out, "-key", top}} {
		if err := runMake(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("make %v succeeds", args)
		}
	}
}
