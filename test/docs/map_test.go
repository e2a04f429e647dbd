package docs

import (
	"strings"
	"testing"
)

// Lines that a page may have. References and measurements may be longer.
const (
	maxReadme = 150
	maxPage   = 300
)

// isLong reports whether a page may have more than maxPage lines.
func isLong(name string) bool {
	return strings.HasPrefix(name, "docs/benchmarks/") || strings.HasPrefix(name, "docs/reference/")
}

// TestSizes: the README and the pages of docs have a bounded number of lines.
func TestSizes(t *testing.T) {
	for _, name := range documents(t) {
		limit := maxPage
		switch {
		case name == "README.md":
			limit = maxReadme
		case !strings.HasPrefix(name, "docs/"):
			continue
		}
		text, _ := document(t, name)
		if n := strings.Count(text, "\n"); n > limit && !isLong(name) {
			t.Errorf("%s has %d lines, want %d at most", name, n, limit)
		}
	}
}

// TestMap: every page of docs is in docs/README.md, or linked from a page that is.
func TestMap(t *testing.T) {
	const start = "docs/README.md"
	reached := map[string]bool{start: true}
	for next := []string{start}; len(next) > 0; next = next[1:] {
		text, _ := document(t, next[0])
		for _, l := range hyperlinks(text) {
			file, _, err := resolve(next[0], l.target)
			if err == nil && strings.HasPrefix(file, "docs/") && strings.HasSuffix(file, ".md") && !reached[file] {
				reached[file] = true
				next = append(next, file)
			}
		}
	}
	for _, name := range documents(t) {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("%s is not linked from %s, nor from a page linked there; add a line to it", name, start)
		}
	}
}

// TestTitles: every page of docs begins with its title, and then says what it gives.
func TestTitles(t *testing.T) {
	for _, name := range documents(t) {
		if !strings.HasPrefix(name, "docs/") {
			continue
		}
		text, _ := document(t, name)
		lines := strings.Split(strings.TrimLeft(withoutFences(text), "\n"), "\n")
		if len(lines) < 3 || !strings.HasPrefix(lines[0], "# ") || lines[1] != "" || strings.HasPrefix(lines[2], "#") {
			t.Errorf("%s does not begin with its title, an empty line and a paragraph", name)
		}
	}
}
