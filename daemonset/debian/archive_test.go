// Inside the package: the tests set package sources and call parseControl and selectSuites.

package debian

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

func TestParseControl(t *testing.T) {
	tests := []struct {
		name, control, want string // name, version, architecture and source
	}{
		{"own-source", "Package: nft\nVersion: 1:1.0-2\nArchitecture: amd64\n", "nft 1:1.0-2 amd64 nft"},
		{"source", "Package: libc6\nSource: glibc\nVersion: 2\nArchitecture: arm64\n", "libc6 2 arm64 glibc"},
		{"source-of-another-version", "Package: libgcc-s1\nSource: gcc-12 (12.2)\nVersion: 2\nArchitecture: all\n", "libgcc-s1 2 all gcc-12"},
		{"longer-lines", "Package: a\nDescription: b\n Version of a\nVersion: 1\nArchitecture: all\n", "a 1 all a"},
		{"no-version", "Package: a\nArchitecture: all\n", ""},
		{"nothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &Package{Control: tt.control}
			err := d.parseControl()
			if got := strings.Join([]string{d.Name, d.Version, d.Arch, d.Source}, " "); tt.want != "" && (got != tt.want || err != nil) {
				t.Errorf("parsed as %s (%v), want %s", got, err, tt.want)
			}
			if tt.want == "" && err == nil {
				t.Error("no error")
			}
		})
	}
}

// requirePrograms skips the test if a program is missing.
func requirePrograms(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestUnpack: the files of a package are read; those in /lib become files in /usr/lib.
func TestUnpack(t *testing.T) {
	requirePrograms(t, "dpkg-deb")
	dir := t.TempDir()
	root, file := filepath.Join(dir, "root"), filepath.Join(dir, "tool.deb")
	writeFile(t, filepath.Join(root, "DEBIAN", "control"), "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.test>\nDescription: x\n")
	writeFile(t, filepath.Join(root, "lib", "libtool.so.1.0"), "library")
	writeFile(t, filepath.Join(root, "usr", "bin", "tool"), "program")
	if err := os.Symlink("libtool.so.1.0", filepath.Join(root, "lib", "libtool.so.1")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", root, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d, err := Unpack(t.Context(), file, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if d.Name != "tool" || len(d.Sum) != 64 || len(d.Files) != 3 {
		t.Errorf("%s of sum %s has %d files, want tool with three", d.Name, d.Sum, len(d.Files))
	}
	if f := d.Files["usr/lib/libtool.so.1"]; f.Mode.Type() != fs.ModeSymlink || f.Link != "libtool.so.1.0" {
		t.Errorf("the link is %+v", f)
	}
	for path, want := range map[string]string{"usr/lib/libtool.so.1.0": "library", "usr/bin/tool": "program"} {
		if got := string(d.Files[path].Body); got != want {
			t.Errorf("/%s is %q, want %q", path, got, want)
		}
	}
	writeFile(t, file, "no package")
	if _, err := Unpack(t.Context(), file, 1<<20); err == nil {
		t.Error("a file that is not a package was unpacked")
	}
}

// TestCached: cached packages are read without a download, and stay if a download fails.
func TestCached(t *testing.T) {
	requirePrograms(t, "apt-get", "dpkg-deb")
	t.Setenv("NODENS_CACHE", t.TempDir())
	dir := t.TempDir()
	root, list := filepath.Join(dir, "root"), filepath.Join(dir, "sources.list")
	writeFile(t, filepath.Join(root, "DEBIAN", "control"), "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.test>\nDescription: x\n")
	writeFile(t, list, "deb file:"+filepath.Join(dir, "archive")+" stable main\n")
	a := Archive{Arch: "amd64", Names: []string{"tool"}, Limit: 1 << 20, sources: list}
	_, text, err := a.sourcesList()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := toolcache.Open()
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := cache.Use(t.Context(), a.cacheEntry(text), func(dir string) error {
		return exec.Command("dpkg-deb", "--root-owner-group", "--build", root, filepath.Join(dir, "tool.deb")).Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	release()
	for _, update := range []bool{false, true, false} {
		packages, err := a.Packages(t.Context(), update)
		if update && err == nil {
			t.Error("an update without an archive succeeded")
		}
		if !update && (err != nil || len(packages) != 1 || packages[0].Name != "tool") {
			t.Errorf("got %d packages, %v, want the cached one", len(packages), err)
		}
	}
}

// TestUnsigned: unsigned packages are refused, and no file is left behind.
func TestUnsigned(t *testing.T) {
	requirePrograms(t, "apt-get")
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "archive", "dists", "stable", "Release"), "Origin: unknown\nSuite: stable\nComponents: main\n")
	list, out := filepath.Join(dir, "sources.list"), filepath.Join(dir, "debs")
	writeFile(t, list, "deb file:"+filepath.Join(dir, "archive")+" stable main\n")
	a := Archive{Arch: "amd64", Names: []string{"some-package"}, sources: list}
	name, text, err := a.sourcesList()
	if err != nil {
		t.Fatal(err)
	}
	err = a.download(t.Context(), name, text, out)
	if err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("error %v, want one about the signature", err)
	}
	if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMergedPath(t *testing.T) {
	for name, want := range map[string]string{
		"lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6",
		"lib64/ld-linux-x86-64.so.2":     "usr/lib64/ld-linux-x86-64.so.2",
		"usr/lib/os-release":             "usr/lib/os-release",
		"library/x":                      "library/x",
		"etc/services":                   "etc/services",
	} {
		if got := MergedPath(name); got != want {
			t.Errorf("/%s is /%s, want /%s", name, got, want)
		}
	}
}

// TestSelectSuites: packages of another release come from the machine's mirror, with its keys.
func TestSelectSuites(t *testing.T) {
	const text = "Types: deb\n# a remark\nURIs: http://mirror.example.test/debian\nSuites: here here-updates\nSigned-By: /a/key\n\n" +
		"Types: deb\nURIs: http://other.example.test\nSuites: here-security\n"
	got, err := selectSuites([]byte(text), []string{"there", "there-backports"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "Types: deb\n# a remark\nURIs: http://mirror.example.test/debian\nSuites: there there-backports\nSigned-By: /a/key\n"
	if string(got) != want {
		t.Errorf("the list is\n%swant\n%s", got, want)
	}
	if _, err := selectSuites([]byte("deb http://mirror.example.test/debian here main\n"), []string{"there"}); err == nil || !strings.Contains(err.Error(), "deb822") {
		t.Errorf("error %v, want one that names the format", err)
	}
}
