// These tests use maxSearch, searches and podSearch, which are not exported.

package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// search is a resolv.conf file with n search domains.
func search(n int) string {
	line := "search"
	for i := range n {
		line += fmt.Sprintf(" s%d.test", i)
	}
	return line + "\n"
}

func TestSearches(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"none", "nameserver 192.0.2.1\noptions ndots:5\n", nil},
		{"search", "search a.test b.test\n", []string{"a.test", "b.test"}},
		{"domain", "domain a.test\n", []string{"a.test"}},
		{"one domain only", "domain a.test b.test\n", []string{"a.test"}},
		{"the last line counts", "search a.test b.test\nsearch c.test\n", []string{"c.test"}},
		{"domain behind search", "search a.test b.test\ndomain c.test\n", []string{"c.test"}},
		{"search behind domain", "domain c.test\nsearch a.test b.test\n", []string{"a.test", "b.test"}},
		{"a line without names", "search a.test\nsearch\ndomain\n", []string{"a.test"}},
		{"comments", "# search c.test\n;search d.test\nsearch\ta.test \n", []string{"a.test"}},
		{"case and dot", "search A.Test. a.test\n", []string{"a.test"}},
		{"the root", "search .\n", nil},
		{"the root among others", "search . a.test\n", []string{"a.test"}},
		{"no names", "search a..b " + strings.Repeat("x", 64) + " a.test\n", []string{"a.test"}},
		{"no last line break", "search a.test", []string{"a.test"}},
		{"another keyword", "searches a.test\nSearch b.test\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []wire.Name
			if tt.want != nil {
				want = names(t, tt.want...)
			}
			if diff := cmp.Diff(want, searches([]byte(tt.text))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAutopathFiles holds which files are read, and that each of them is told of.
func TestAutopathFiles(t *testing.T) {
	folder := t.TempDir()
	own := write(t, folder, "own.conf", search(maxSearch))
	host := write(t, folder, "host.conf", search(maxSearch))
	for _, tt := range []struct {
		name, from, host string
		search           int
		files            []string
	}{
		{"named file", own, host, maxSearch, []string{own}},
		{"pods", "@kubernetes", host, maxSearch - podSearch, []string{host}},
		{"a machine without the file", "@kubernetes", filepath.Join(folder, "none"), 0, nil},
		{"a machine without search domains", "@kubernetes", write(t, folder, "bare.conf", "nameserver ::1\n"), 0, []string{filepath.Join(folder, "bare.conf")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := node(t)
			opts.ResolvConf = tt.host
			text := "example.org {\nkubernetes\nautopath " + tt.from + "\n}\n"
			c, err := Parse(Source{Path: "Corefile", Text: []byte(text), Options: opts})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Blocks[0].Autopath.Search; len(got) != tt.search || tt.search > 0 && got[0] != names(t, "s0.test")[0] {
				t.Errorf("%d search domains %v, want %d", len(got), got, tt.search)
			}
			if diff := cmp.Diff(append([]string{"Corefile"}, tt.files...), c.Files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
	opts := node(t)
	opts.ResolvConf = folder
	_, err := Parse(Source{Path: "Corefile", Text: []byte(". {\nkubernetes\nautopath @kubernetes\n}\n"), Options: opts})
	want := fmt.Sprintf(`Corefile:3: autopath: can't read %q, whose search domains are at the end of a pod's search path: %s is a folder`, folder, folder)
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}

// FuzzSearches holds that a resolv.conf file's text never panics and gives names
// below the root, each once.
func FuzzSearches(f *testing.F) {
	f.Add([]byte("domain a\nsearch a.b . c\\046d a.b\n#x\nsearch"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list := searches(text)
		for i, name := range list {
			if again, err := wire.ParseName(name.String()); err != nil || again != name || name == wire.Root {
				t.Fatalf("search domain %q (%v)", name, err)
			}
			if slices.Contains(list[:i], name) {
				t.Fatalf("%s stands twice", name)
			}
		}
	})
}
