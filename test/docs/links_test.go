package docs

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documents are the names of all Markdown files of the tree, from its root.
func documents(t *testing.T) []string {
	t.Helper()
	return files(t, func(name string) bool { return strings.HasSuffix(name, ".md") })
}

// files are the names of the tree's files that want accepts. What git ignores at the root, and
// folders of tools, is left out.
func files(t *testing.T, want func(name string) bool) []string {
	t.Helper()
	_, root := document(t, "README.md")
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || name == ".git"):
			return fs.SkipDir
		case d.Type().IsRegular() && want(name):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Targets of links: of inline links and images, of link definitions, and of HTML.
var (
	inlineTarget     = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	definitionTarget = regexp.MustCompile(`(?m)^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)`)
	htmlTarget       = regexp.MustCompile(`<[a-z]+ [^>]*?(?:href|src|srcset)="([^"\s]+)`)
)

// hyperlink is a link of a page.
type hyperlink struct {
	target string
	line   int
}

// hyperlinks returns the links of a page outside of code.
func hyperlinks(text string) []hyperlink {
	text = withoutCode(text)
	var all []hyperlink
	for _, form := range []*regexp.Regexp{inlineTarget, definitionTarget, htmlTarget} {
		for _, m := range form.FindAllStringSubmatchIndex(text, -1) {
			all = append(all, hyperlink{text[m[2]:m[3]], lineOf(text, m[0])})
		}
	}
	slices.SortStableFunc(all, func(a, b hyperlink) int { return a.line - b.line })
	return all
}

// ownURL is an absolute link to a file of this repository.
var ownURL = regexp.MustCompile(`^https://github\.com/nodens-dns/nodens/(?:blob|tree|raw)/main/?(.*)$`)

// resolve returns the file of the tree and the fragment that a link of the page leads to; no file
// if it leads out of the tree.
func resolve(page, target string) (file, fragment string, err error) {
	if m := ownURL.FindStringSubmatch(target); m != nil {
		target = "/" + m[1]
	}
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return "", "", err
	case u.Scheme == "http" || u.Scheme == "https" || u.Scheme == "mailto":
		return "", "", nil
	case u.Scheme != "":
		return "", "", errors.New("unknown scheme " + u.Scheme)
	case u.Path == "":
		return page, u.Fragment, nil
	case strings.HasPrefix(u.Path, "/"):
		return path.Clean(strings.TrimLeft(u.Path, "/")), u.Fragment, nil
	}
	file = path.Join(path.Dir(page), u.Path)
	if file == ".." || strings.HasPrefix(file, "../") {
		return "", "", errors.New("leads out of the tree")
	}
	return file, u.Fragment, nil
}

// lineFragment is a fragment of source files, whose lines GitHub numbers.
var lineFragment = regexp.MustCompile(`^L[0-9]+(-L[0-9]+)?$`)

// TestLinks: each link of each Markdown file leads to a file of the tree and to one of its
// headings. Links to other sites are not followed.
func TestLinks(t *testing.T) {
	_, root := document(t, "README.md")
	known := make(map[string]map[string]bool) // anchors by page
	for _, name := range documents(t) {
		text, _ := document(t, name)
		known[name] = anchors(text)
	}
	for name := range known {
		text, _ := document(t, name)
		for _, l := range hyperlinks(text) {
			file, fragment, err := resolve(name, l.target)
			if err != nil {
				t.Errorf("%s:%d: %s: %v", name, l.line, l.target, err)
				continue
			}
			if file == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s:%d: the link to %s leads to no file", name, l.line, l.target)
				continue
			}
			is, markdown := known[file]
			if fragment != "" && (markdown && !is[fragment] || !markdown && !lineFragment.MatchString(fragment)) {
				t.Errorf("%s:%d: %s has no heading for the link to %s", name, l.line, file, l.target)
			}
		}
	}
}

// namedPage is a page as sources and manifests name it.
var namedPage = regexp.MustCompile(`\b(docs/[a-z0-9/-]+\.md)(?:#([a-z0-9_-]+))?`)

// TestNamedPages: the pages that sources, manifests and scripts name are there.
func TestNamedPages(t *testing.T) {
	kinds := []string{".go", ".yaml", ".sh", ".tpl", ".json", ".c", ".txt", ""}
	names := files(t, func(name string) bool {
		return slices.Contains(kinds, path.Ext(name)) && !strings.HasPrefix(name, "test/docs/")
	})
	_, root := document(t, "README.md")
	for _, name := range names {
		text, _ := document(t, name)
		if !strings.Contains(text, "docs/") {
			continue
		}
		for _, m := range namedPage.FindAllStringSubmatch(text, -1) {
			b, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil {
				t.Errorf("%s names %s, which is not in the tree", name, m[1])
			} else if m[2] != "" && !anchors(string(b))[m[2]] {
				t.Errorf("%s names %s, but %s has no such heading", name, m[0], m[1])
			}
		}
	}
}

func TestHyperlinks(t *testing.T) {
	text := "[a](b.md) `[c](d)` ![e](f.svg \"g\")\n\n[h]: i.md#j\n<img alt=\"k\" src=\"l.png\">\n```text\n[m](n)\n```\n[o](<p.md>)\n"
	want := []hyperlink{{"b.md", 1}, {"f.svg", 1}, {"i.md#j", 3}, {"l.png", 4}, {"p.md", 8}}
	if d := cmp.Diff(want, hyperlinks(text), cmp.AllowUnexported(hyperlink{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestResolve(t *testing.T) {
	tests := []struct{ page, target, file, fragment string }{
		{"docs/a/b.md", "c.md#d", "docs/a/c.md", "d"},
		{"docs/a/b.md", "../../README.md", "README.md", ""},
		{"docs/a/b.md", "#e", "docs/a/b.md", "e"},
		{"docs/a/b.md", "/LICENSE", "LICENSE", ""},
		{"docs/a/b.md", "https://example.org/x#y", "", ""},
		{"docs/a/b.md", "https://github.com/nodens-dns/nodens/blob/main/docs/c.md#d", "docs/c.md", "d"},
	}
	for _, tt := range tests {
		file, fragment, err := resolve(tt.page, tt.target)
		if err != nil || file != tt.file || fragment != tt.fragment {
			t.Errorf("%s in %s: %q, %q, %v; want %q, %q", tt.target, tt.page, file, fragment, err, tt.file, tt.fragment)
		}
	}
	for _, target := range []string{"../../../x", "gopher://x"} {
		if file, _, err := resolve("docs/a/b.md", target); err == nil {
			t.Errorf("%s: no error, file %q", target, file)
		}
	}
}
