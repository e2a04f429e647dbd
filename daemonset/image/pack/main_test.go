package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

func TestRead(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "tool"), []byte("tool"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("bin", filepath.Join(root, "sbin")); err != nil {
		t.Fatal(err)
	}
	got, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := oci.Layer{
		{Path: "bin", Mode: fs.ModeDir | 0o755},
		{Path: "bin/tool", Mode: 0o700, Body: []byte("tool")},
		{Path: "sbin", Mode: fs.ModeSymlink | 0o777, Link: "bin"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("layer (-want +got):\n%s", d)
	}
}

func TestRunRefuses(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.tar")
	for name, args := range map[string][]string{
		"no root":         {"-out", out, "-name", "a:1"},
		"no output":       {"-root", t.TempDir(), "-name", "a:1"},
		"no name":         {"-root", t.TempDir(), "-out", out},
		"no such root":    {"-root", filepath.Join(t.TempDir(), "none"), "-out", out, "-name", "a:1"},
		"unknown setting": {"-layers", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(args); err == nil {
				t.Errorf("pack %v succeeds", args)
			}
		})
	}
}
