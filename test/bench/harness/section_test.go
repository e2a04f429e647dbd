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

// TestWrite: each run replaces its own pages and leaves the others as they are.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "docs", "benchmarks")
	for _, p := range []Page{{"a.md", []byte("first\n")}, {"b.md", []byte("other\n")}, {"a.md", []byte("2nd\n")}} {
		if err := Write(stubSection{&Report{}, p}, dir); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{"a.md": "2nd\n", "b.md": "other\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
}
