package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSetComparison: the manifest and the chart have the lines that SetComparison changes.
func TestSetComparison(t *testing.T) {
	tree := t.TempDir()
	for _, name := range []string{"base/nodens.yaml", "chart/values.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "daemonset", name))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(tree, "daemonset", name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetComparison(tree, CompareSeconds); err != nil {
		t.Fatal(err)
	}
	if err := SetComparison(tree, CompareSeconds); err == nil {
		t.Error("changed twice without an error")
	}
}

// TestWithComparison: a manifest gets the argument once, at the place and with the indentation of
// -skipteardown.
func TestWithComparison(t *testing.T) {
	got, err := WithComparison("args:\n  - -skipteardown\n  - -more\n", 7)
	if want := "args:\n  - -skipteardown\n  - -handover-compare=7s\n  - -more\n"; got != want || err != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, manifest := range []string{got, "args: []\n", "args:\n- -skipteardown\n- -more\n- -skipteardown\n"} {
		if text, err := WithComparison(manifest, 7); err == nil {
			t.Errorf("%q becomes %q, want an error", manifest, text)
		}
	}
}
