package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	line           int // of the opening fence
}

// fences returns all fenced pieces. One that is not closed ends with the text.
func fences(text string) []fence {
	var list []fence
	open := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		language, mark := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case mark && open:
			open = false
		case mark:
			list = append(list, fence{language: language, line: n})
			open = true
		case open:
			list[len(list)-1].text += line
		}
	}
	return list
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
	got := fences("x\n```sh\nmake\n```\n```\ny\n```\n")
	want := []fence{{"sh", "make\n", 2}, {"", "y\n", 5}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(fence{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
