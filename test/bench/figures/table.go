package figures

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Table writes rows, the first of which is the header, as a Markdown table with
// its columns aligned: the text to the left, the numbers to the right, as the first row that has a
// figure shows. It is empty for a header without rows.
func Table(rows [][]string) string {
	if len(rows) == 1 {
		return ""
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	rule := make([]string, len(widths))
	numeric := make([]bool, len(widths))
	for i, width := range widths {
		if at := slices.IndexFunc(rows[1:], func(row []string) bool { return row[i] != varies }); at >= 0 {
			numeric[i] = isNumber(rows[1+at][i])
		}
		rule[i] = strings.Repeat("-", max(width, 1))
		if numeric[i] {
			rule[i] = rule[i][:max(width-1, 0)] + ":"
		}
	}
	var b strings.Builder
	for _, row := range slices.Insert(slices.Clone(rows), 1, rule) {
		for i, text := range row {
			gap := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(text)))
			if numeric[i] {
				text, gap = gap+text, ""
			}
			b.WriteString("| " + text + gap + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

func isNumber(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return text != "" && text[0] >= '0' && text[0] <= '9'
}
