package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/file"
)

// columns are the features in the order of the table, as test/kernels/guest names them.
func columns() []string {
	return []string{"answers", "dummy interface", "socket per CPU", "read-only root", "cgroup v2", "hand-over",
		"iptables-nft", "iptables-legacy", "nftables", "owner table", "container", "missing modules", "kernel path"}
}

// row has what one machine has reported.
type row struct {
	kernel, arch string
	cells        map[string]string // by column
}

// The lines of a document between which the table is.
const (
	tableBegin = "<!-- Written by make kernels -->\n"
	tableEnd   = "<!-- End of what make kernels writes -->\n"
)

// noReport is the cell of a feature that a machine did not come to.
const noReport = "no: the machine ended before"

// parseFeatures returns the cells that a machine has written, by column.
func parseFeatures(said []byte) map[string]string {
	cells := make(map[string]string)
	for line := range strings.Lines(string(said)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "feature "); ok {
			if name, cell, ok := strings.Cut(rest, ": "); ok && slices.Contains(columns(), name) {
				cells[name] = cell
			}
		}
	}
	return cells
}

// table returns the rows in Markdown. A cell that is more than a word refers to a line below the table.
func table(rows []row) string {
	var b, notes strings.Builder
	fmt.Fprintf(&b, "| Linux | processor | %s |\n|---|---%s|\n", strings.Join(columns(), " | "), strings.Repeat("|---", len(columns())))
	numbers := make(map[string]int)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", r.kernel, r.arch)
		for _, c := range columns() {
			cell, ok := r.cells[c]
			if !ok {
				cell = noReport
			}
			word, note, long := strings.Cut(cell, ": ")
			if long {
				if numbers[note] == 0 {
					numbers[note] = len(numbers) + 1
					fmt.Fprintf(&notes, "%d. `%s`\n", numbers[note], strings.ReplaceAll(note, "`", "'"))
				}
				word += fmt.Sprintf(" (%d)", numbers[note])
			}
			fmt.Fprintf(&b, " %s |", word)
		}
		b.WriteByte('\n')
	}
	if notes.Len() > 0 {
		b.WriteString("\n" + notes.String())
	}
	return b.String()
}

// parseTable returns the rows of a text that table has written.
func parseTable(text string) (rows []row) {
	notes := make(map[string]string)
	for line := range strings.Lines(text) {
		number, note, ok := strings.Cut(strings.TrimSpace(line), ". `")
		if _, err := strconv.Atoi(number); ok && err == nil {
			notes[number] = strings.TrimSuffix(note, "`")
		}
	}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(fields) != 2+len(columns()) || strings.HasPrefix(line, "| Linux ") || strings.HasPrefix(line, "|--") {
			continue
		}
		r := row{strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1]), make(map[string]string)}
		for i, c := range columns() {
			cell := strings.TrimSpace(fields[2+i])
			if word, number, ok := strings.Cut(cell, " ("); ok {
				cell = word + ": " + notes[strings.TrimSuffix(number, ")")]
			}
			r.cells[c] = cell
		}
		rows = append(rows, r)
	}
	return rows
}

// merge returns the rows of the kernels that there are, in their order: the new ones, and the old ones
// of kernels that were not tried.
func merge(old, tried []row) (rows []row) {
	for _, k := range kernels() {
		is := func(r row) bool { return r.kernel == k.version() && r.arch == k.arch }
		for _, from := range [][]row{tried, old} {
			if i := slices.IndexFunc(from, is); i >= 0 {
				rows = append(rows, from[i])
				break
			}
		}
	}
	return rows
}

// writeTable replaces the table in a document.
func writeTable(path string, tried []row) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	old, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q for the table", path, tableBegin, tableEnd)
	}
	return file.Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, before+tableBegin+"\n"+table(merge(parseTable(old), tried))+"\n"+tableEnd+after)
		return err
	})
}
