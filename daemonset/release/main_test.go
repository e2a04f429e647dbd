package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseImage(t *testing.T) {
	tests := []struct {
		name, args string
		want       string // of the error; "" for none
	}{
		{"image", "-out x.tar", ""},
		{"root", "-root x -arch arm64", ""},
		{"registry", "-out x.tar -name registry.example:5000/nodens:1.0", ""},
		{"neither", "", "-out FILE"},
		{"both", "-out x.tar -root x -arch amd64", "either -out FILE"},
		{"root-of-two", "-root x", "one architecture"},
		{"unknown-arch", "-out x.tar -arch riscv64", "amd64, arm64"},
		{"empty-arch", "-out x.tar -arch=", "amd64, arm64"},
		{"arch-twice", "-out x.tar -arch amd64,amd64", "twice"},
		{"no-tag", "-out x.tar -name nodens", "no tag"},
		{"port-is-no-tag", "-out x.tar -name registry.example:5000/nodens", "no tag"},
		{"argument", "-out x.tar amd64", "unexpected argument"},
		{"version-for-the-linker", "-out x.tar -version 1\t-s", "-version"},
		{"revision-for-the-linker", "-out x.tar -revision a'b", "-revision"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parseImage(strings.FieldsFunc(tt.args, func(r rune) bool { return r == ' ' }), io.Discard)
			switch {
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want == "" && s.version == "":
				t.Error("there is no version")
			}
		})
	}
}

// TestComplete: the time is the one that the environment names, or none is taken.
func TestComplete(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	s := &source{revision: "r1"}
	if err := s.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := time.Unix(86400, 0).UTC(); !s.now.Equal(want) || s.revision != "r1" {
		t.Errorf("time %v, revision %s, want %v and r1", s.now, s.revision, want)
	}
	if _, err := os.Stat(filepath.Join(s.top, "cmd", "nodens")); err != nil {
		t.Errorf("the tree is not at %s", s.top)
	}
	for _, bad := range []string{"yesterday", "-1", "1.5"} {
		t.Setenv("SOURCE_DATE_EPOCH", bad)
		if err := s.complete(t.Context()); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
			t.Errorf("%s: error %v, want one that names SOURCE_DATE_EPOCH", bad, err)
		}
	}
	t.Chdir(t.TempDir())
	if err := (&source{}).complete(t.Context()); err == nil || !strings.Contains(err.Error(), "daemonset/release") {
		t.Errorf("outside of the tree: error %v", err)
	}
}

// TestWrite: a file that could not be written to its end is not there, and the one
// before it is.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "file")
	text := func(s string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, _ = io.WriteString(w, s)
			return err
		}
	}
	if err := write(path, text("whole", nil)); err != nil {
		t.Fatal(err)
	}
	if err := write(path, text("ha", io.ErrUnexpectedEOF)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names the file", err)
	}
	got, err := os.ReadFile(path)
	if string(got) != "whole" || err != nil {
		t.Errorf("%q in the file (%v), want what was whole", got, err)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPackRefuses(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.tar")
	for name, args := range map[string][]string{
		"no root":         {"-out", out, "-name", "a:1"},
		"no output":       {"-root", t.TempDir(), "-name", "a:1"},
		"no name":         {"-root", t.TempDir(), "-out", out},
		"no such root":    {"-root", filepath.Join(t.TempDir(), "none"), "-out", out, "-name", "a:1"},
		"unknown setting": {"-layers", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := runPack(t.Context(), args, io.Discard, io.Discard); err == nil {
				t.Errorf("pack %v succeeds", args)
			}
		})
	}
}
