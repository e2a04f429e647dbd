package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

func TestConsoleBlocks(t *testing.T) {
	const text = "# t\n\n## One\n\n```console\n$ a b\nout\n$ c\n```\n\n```yaml\n$ no\n```\n\n```console\n$ d\n```\n\n## Two\n\n```console\n$ e\n```\n\n## Three\n\nnothing\n\n## Four\n\n```console\n$ f\n"
	tests := []struct {
		section string
		want    [][]string
	}{
		{"One", [][]string{{"a b", "c"}, {"d"}}},
		{"Two", [][]string{{"e"}}},
		{"Three", nil},
		{"Four", nil},
		{"Five", nil},
	}
	for _, tt := range tests {
		t.Run(tt.section, func(t *testing.T) {
			got, err := consoleBlocks(text, tt.section)
			if (err != nil) != (tt.want == nil) {
				t.Errorf("error %v", err)
			}
			if d := cmp.Diff(tt.want, got); err == nil && d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// The copy has the tree's files as they are, links as links.
func TestCopyTree(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := copyTree(root, to); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "daemonset/base/nodens.yaml", "test/run.sh"} {
		var bodies [2]string
		for i, dir := range []string{root, to} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			bodies[i] = string(text)
		}
		if bodies[0] != bodies[1] {
			t.Errorf("%s is another one in the copy", name)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "daemonset/nodens.yaml")); err != nil || target != "base/nodens.yaml" {
		t.Errorf("daemonset/nodens.yaml leads to %q (%v), want base/nodens.yaml", target, err)
	}
	if _, err := os.Stat(filepath.Join(to, ".git")); err == nil {
		t.Error("the copy has git's own folder")
	}
}

// The sections that the cluster runs have commands.
func TestGuides(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		guide, section string
		program        string // of one command at least
	}{
		{"install.md", "Install with kustomize", "kubectl"},
		{"choose-a-mode.md", "Takeover", "kubectl"},
		{"install.md", "Install with Helm", "helm"},
	}
	for _, tt := range tests {
		t.Run(tt.guide+"/"+tt.section, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, "docs", "how-to", tt.guide))
			if err != nil {
				t.Fatal(err)
			}
			list, err := consoleBlocks(string(text), tt.section)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(slices.Concat(list...), func(c string) bool { return strings.HasPrefix(c, tt.program+" ") }) {
				t.Errorf("section %q: no command begins with %s", tt.section, tt.program)
			}
		})
	}
}
