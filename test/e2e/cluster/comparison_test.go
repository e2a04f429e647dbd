package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSetComparison: the manifest and the chart have the lines that ShortenComparisons changes.
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
