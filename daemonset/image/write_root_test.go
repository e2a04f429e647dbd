package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// TestWriteRoot: the directory has the files of the image, whatever the umask is.
func TestWriteRoot(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := filepath.Join(t.TempDir(), "root")
	layers := []oci.Layer{
		{{Path: "usr/sbin/nft", Mode: 0o755, Body: []byte("nft")}, {Path: "sbin", Mode: fs.ModeSymlink | 0o777, Link: "usr/sbin"}},
		{{Path: "run", Mode: fs.ModeDir | 0o755}, {Path: "etc/passwd", Mode: 0o644, Body: []byte("root")}},
		{{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}},
	}
	if err := writeRoot(root, layers); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"usr": 0o755, "usr/sbin/nft": 0o755, "sbin/nft": 0o755, "run": 0o755, "etc": 0o755, "etc/passwd": 0o644, "tmp": fs.ModeSticky | 0o777} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode()&^fs.ModeDir != mode || info.ModTime().Unix() != 0 {
			t.Errorf("%s is %v of %v, want %v of 1970", name, info.Mode(), info.ModTime(), mode)
		}
	}
	if to, err := os.Readlink(filepath.Join(root, "sbin")); to != "usr/sbin" {
		t.Errorf("sbin leads to %q (%v)", to, err)
	}
	if err := writeRoot(root, layers); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a folder with files: error %v", err)
	}
}
