package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// document reads one of the tree's documents, and returns the tree's folder too.
func document(t *testing.T, name string) (text, root string) {
	t.Helper()
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b), root
}

// table returns the rows of the table whose header begins with the given cells,
// cells trimmed; nil if there is no such table.
func table(text string, header ...string) [][]string {
	var rows [][]string
	inside := false
	for line := range strings.Lines(text) {
		cells, ok := row(line)
		switch {
		case !ok && inside:
			return rows
		case !ok:
		case inside:
			rows = append(rows, cells)
		default:
			inside = len(cells) >= len(header) && slices.Equal(cells[:len(header)], header)
		}
	}
	return rows
}

// row splits a line of a table into its cells. The line of dashes below the
// header is a row without cells.
func row(line string) (cells []string, ok bool) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") || len(line) < 2 {
		return nil, false
	}
	if strings.Trim(line, "|-: ") == "" {
		return nil, true
	}
	for cell := range strings.SplitSeq(line[1:len(line)-1], "|") {
		cells = append(cells, strings.TrimSpace(cell))
	}
	return cells, true
}

// data drops the rows without cells.
func data(rows [][]string) [][]string {
	return slices.DeleteFunc(rows, func(r []string) bool { return len(r) == 0 })
}

// code takes the backquotes off a cell that is nothing but code.
func code(cell string) (string, bool) {
	if len(cell) < 3 || cell[0] != '`' || cell[len(cell)-1] != '`' {
		return "", false
	}
	inner := cell[1 : len(cell)-1]
	return inner, !strings.Contains(inner, "`")
}

// fence is a fenced piece of a document.
type fence struct {
	language, text string
	line           int    // of the opening fence
	before         string // the line before it, trimmed
}

// fences returns all fenced pieces. Those in a list item lose its indentation. One that is not
// closed ends with the text.
func fences(text string) []fence {
	var list []fence
	open, indent, last, n := false, "", "", 0
	for line := range strings.Lines(text) {
		n++
		trimmed := strings.TrimSpace(line)
		language, mark := strings.CutPrefix(trimmed, "```")
		switch {
		case mark && open:
			open = false
		case mark:
			list = append(list, fence{language: language, line: n, before: last})
			open, indent = true, line[:strings.Index(line, "`")]
		case open:
			list[len(list)-1].text += strings.TrimPrefix(line, indent)
		}
		last = trimmed
	}
	return list
}

// withoutFences returns the text with fenced pieces and comments replaced by empty lines, so that
// line numbers stay.
func withoutFences(text string) string {
	text = comment.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	var b strings.Builder
	open := false
	for line := range strings.Lines(text) {
		mark := strings.HasPrefix(strings.TrimSpace(line), "```")
		if !open && !mark {
			b.WriteString(line)
		} else {
			b.WriteString("\n")
		}
		open = open != mark
	}
	return b.String()
}

// comment is an HTML comment.
var comment = regexp.MustCompile(`(?s)<!--.*?-->`)

// inlineCode is a code span.
var inlineCode = regexp.MustCompile("``[^\n]+?``|`[^`\n]+`")

// withoutCode returns the text without fenced pieces, comments and code spans.
func withoutCode(text string) string {
	return inlineCode.ReplaceAllString(withoutFences(text), "`")
}

// lineOf returns the number of the line at an offset.
func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }

// heading is a line that begins with number signs.
var heading = regexp.MustCompile(`(?m)^(#{1,6}) +(.+?) *#* *$`)

// anchors returns the fragments that GitHub makes for the headings of a page, and those that
// the page names with id or name attributes.
func anchors(text string) map[string]bool {
	text = withoutFences(text)
	found := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := slugOf(m[2])
		for n := 1; found[slug]; n++ {
			slug = slugOf(m[2]) + "-" + strconv.Itoa(n)
		}
		found[slug] = true
	}
	for _, m := range explicitAnchor.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

var (
	explicitAnchor = regexp.MustCompile(`<[a-z0-9]+ [^>]*?(?:id|name)="([^"]+)"`)
	linkText       = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// slugOf returns the fragment that GitHub makes of a heading: lower case, spaces become hyphens,
// and only letters, digits, hyphens and underscores stay.
func slugOf(heading string) string {
	heading = linkText.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestTable(t *testing.T) {
	text := "| a | b |\n|---|---|\n| 1 | 2 |\n\n| a | c |\n|:--|--:|\n| `3` |  |\n| 5 | 6 |\nend\n| 7 | 8 |\n"
	tests := []struct {
		name   string
		header []string
		want   [][]string
	}{
		{"first", []string{"a", "b"}, [][]string{{"1", "2"}}},
		{"second", []string{"a", "c"}, [][]string{{"`3`", ""}, {"5", "6"}}},
		{"part of a header", []string{"a"}, [][]string{{"1", "2"}}},
		{"none", []string{"b"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, data(table(text, tt.header...))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestFences(t *testing.T) {
	got := fences("x\n```sh\nmake\n```\n```\ny\n```\n- z\n  ```text\n  a\n    b\n  ```\n")
	want := []fence{{"sh", "make\n", 2, "x"}, {"", "y\n", 5, "```"}, {"text", "a\n  b\n", 9, "- z"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(fence{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAnchors(t *testing.T) {
	text := "# A `b` c\n## D, e: F!\n### [g](h) & i\n## D, e: F!\n```sh\n# no heading\n```\n<a id=\"named\"></a>\n## under_score-hyphen\n## Ünïcode 1.36\n"
	want := map[string]bool{
		"a-b-c": true, "d-e-f": true, "d-e-f-1": true, "g--i": true, "named": true, "under_score-hyphen": true, "ünïcode-136": true,
	}
	if d := cmp.Diff(want, anchors(text)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestWithoutCode(t *testing.T) {
	got := withoutCode("a `b` c\n```sh\nd\n```\ne <!-- f\ng --> h\n")
	if want := "a ` c\n\n\n\ne \n h\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
