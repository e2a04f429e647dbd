package harness

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// questions are the pages about a question, by the name of a section's page that is a part of it.
var questions = map[string]string{
	"query-targets.md": "queries.md", "hits.md": "queries.md", "low-rates.md": "queries.md", "tcp.md": "queries.md",
	"misses.md": "queries.md", "memory.md": "queries.md", "transports.md": "queries.md", "readers.md": "queries.md",
	"upstreams.md": "upstreams.md", "upstreams-that-fail.md": "upstreams.md",
	"fair-shares.md": "tenants.md", "attribution.md": "tenants.md", "watching.md": "tenants.md",
	"kernel-path.md": "kernel-path.md", "program-time.md": "kernel-path.md",
	"large-cluster.md": "cluster-scale.md", "fleet.md": "cluster-scale.md",
	"agents-that-go-away.md": "going-away.md", "start.md": "going-away.md",
}

// IsPart reports whether a section's page is a part of a page about a question.
func IsPart(page string) bool { return questions[page] != "" }

// Question returns the name of the file that has a section's page, as a part or alone.
func Question(page string) string {
	if IsPart(page) {
		return questions[page]
	}
	return page
}

// marks are the lines around a part of a page.
func marks(page string) (begin, end string) {
	name := strings.TrimSuffix(page, ".md")
	return "<!-- begin measured: " + name + " -->\n", "<!-- end measured: " + name + " -->\n"
}

// ReadPage returns the text of a section's page in the folder, also if it is a part of a page.
func ReadPage(dir, page string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, Question(page)))
	if err != nil || !IsPart(page) {
		return string(text), err
	}
	begin, end := marks(page)
	_, rest, found := strings.Cut(string(text), begin)
	part, _, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New(Question(page) + " lacks the part " + page)
	}
	return part, nil
}

// writePage writes a section's page, or replaces the part of a page that it is. A part that is not there
// yet goes to the end.
func writePage(dir string, p Page) error {
	file := filepath.Join(dir, Question(p.File))
	if !IsPart(p.File) {
		return os.WriteFile(file, p.Text, 0o644)
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	begin, end := marks(p.File)
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		head, tail = string(old)+"\n", ""
	}
	return os.WriteFile(file, []byte(head+begin+"\n"+Lowered(string(p.Text))+"\n"+end+tail), 0o644)
}

// Lowered returns a page as a part of another one: its headings are one level lower.
func Lowered(text string) string {
	var b bytes.Buffer
	fence := false
	for line := range strings.Lines(text) {
		title, first := strings.CutPrefix(line, "# Benchmarks: ")
		switch {
		case strings.HasPrefix(line, "```"):
			fence = !fence
		case fence:
		case first:
			line = "## " + strings.ToUpper(title[:1]) + title[1:]
		case strings.HasPrefix(line, "#"):
			line = "#" + line
		}
		b.WriteString(line)
	}
	return b.String()
}
