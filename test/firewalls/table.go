package firewalls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// Table collects the outcomes of cells. It is safe for concurrent use.
type Table struct {
	mu            sync.Mutex
	rows, columns []string
	cells         map[[2]string]string // by row and column
}

// Place gives a row and a column their place, behind those that have one.
func (t *Table) Place(row, column string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}
}

// Add adds the outcomes of a cell.
func (t *Table) Add(row, column string, outcomes []Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cells == nil {
		t.cells = make(map[[2]string]string)
	}
	t.cells[[2]string{row, column}] = cellText(outcomes)
}

// cellText returns what was lost of the queries that must be answered, then what was lost until the agent had
// repaired what others changed, and the events that failed.
func cellText(outcomes []Outcome) string {
	var wanted, gaps load.Counts
	var failed []string
	for _, o := range outcomes {
		if o.Wanted {
			wanted.Add(o.Counts)
		} else {
			gaps.Add(o.Counts)
		}
		if o.Failed() {
			failed = append(failed, o.Event)
		}
	}
	text := fmt.Sprintf("%d/%d", wanted.Failed(), wanted.Asked)
	if gaps.Failed() > 0 {
		text += fmt.Sprintf(" + %d", gaps.Failed())
	}
	if len(failed) > 0 {
		text += " **" + strings.Join(failed, ", ") + "**"
	}
	return text
}

// marker is the line of a page that is followed by the tables.
const marker = "<!-- Written by go test ./test/firewalls -args -table FILE -->\n"

// Write writes the table below the marker of the file, under a heading. It replaces the heading's table, if there
// is one, and leaves the others.
func (t *Table) Write(file, title string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	head, tables, _ := strings.Cut(string(text), marker)
	tables, _, _ = strings.Cut(tables, "\n## Versions\n")
	heading := "\n## " + strings.ToUpper(title[:1]) + title[1:] + "\n"
	before, after, _ := strings.Cut(tables, heading)
	if at := strings.Index(after, "\n## "); at >= 0 {
		after = after[at:]
	} else {
		after = ""
	}
	return os.WriteFile(file, []byte(head+marker+before+heading+"\n"+t.markdown()+after+versionList()), 0o644)
}

// markdown returns the table.
func (t *Table) markdown() string {
	var b strings.Builder
	b.WriteString("| firewall | " + strings.Join(t.columns, " | ") + " |\n|---" + strings.Repeat("|---", len(t.columns)) + "|\n")
	for _, row := range t.rows {
		b.WriteString("| " + row + " |")
		for _, column := range t.columns {
			b.WriteString(" " + t.cells[[2]string{row, column}] + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// versionList returns the section about the programs' versions.
func versionList() string {
	short := func(version string) string {
		v, _, _ := strings.Cut(strings.TrimPrefix(version, "1:"), "-") // without the epoch and Debian's revision
		return v
	}
	text := "\n## Versions\n\n"
	for _, r := range Releases() {
		text += fmt.Sprintf("- Debian %s: nft %s, iptables %s, ufw %s, firewalld %s, keepalived %s\n", r.Number,
			short(r.Nft), short(r.Iptables), short(r.Ufw), short(r.Firewalld), short(r.Keepalived))
	}
	return text
}
