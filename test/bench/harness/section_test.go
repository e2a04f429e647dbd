package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// stubSection is a section with one page.
type stubSection struct {
	*Report
	page Page
}

func (s stubSection) Tables() []string                          { return nil }
func (s stubSection) Targets() []Target                         { return nil }
func (s stubSection) Render([]figures.PlotFile) ([]Page, error) { return []Page{s.page}, nil }

// TestWrite: each run replaces its own pages and parts of pages, and leaves the others as they are.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "docs", "benchmarks")
	for _, p := range []Page{{"a.md", []byte("first\n")}, {"b.md", []byte("other\n")}, {"a.md", []byte("2nd\n")},
		{"hits.md", []byte("old\n")}, {"tcp.md", []byte("# Benchmarks: tCP\n\n## x\n\n```text\n# y\n```\n")}, {"hits.md", []byte("new\n")}} {
		if err := Write(stubSection{&Report{}, p}, dir); err != nil {
			t.Fatal(err)
		}
	}
	queries := "\n<!-- begin measured: hits -->\n\nnew\n\n<!-- end measured: hits -->\n" +
		"\n<!-- begin measured: tcp -->\n\n## TCP\n\n### x\n\n```text\n# y\n```\n\n<!-- end measured: tcp -->\n"
	for file, want := range map[string]string{"a.md": "2nd\n", "b.md": "other\n", "queries.md": queries} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
}
