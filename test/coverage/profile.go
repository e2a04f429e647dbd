// Package coverage reads the coverage profiles that `go test -coverprofile` and `go tool
// covdata textfmt` write. It adds up what several test binaries reached of the same code, counts
// statements per package, and finds the functions and blocks that no test reaches.
package coverage

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Block is a run of statements that are all executed or none.
type Block struct {
	Start, End Position
	Statements int
}

// Position is a place in a source file. Both numbers start at 1.
type Position struct{ Line, Column int }

// before reports whether p is before q.
func (p Position) before(q Position) bool {
	return cmp.Or(cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column)) < 0
}

// Profile maps a file, named by its package's import path, to the blocks in it and whether a
// test reached each.
type Profile map[string]map[Block]bool

// Add reads a profile and adds it to p. A block counts as reached if any profile says so.
func (p Profile) Add(r io.Reader) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "mode: ") {
			if err := p.add(line); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// add adds a line, such as "example.com/cache/store.go:10.20,12.3 2 1": the file, the block's
// start and end, its statements, and how often it ran.
func (p Profile) add(line string) error {
	colon := strings.LastIndexByte(line, ':')
	if colon < 0 {
		return fmt.Errorf("coverage profile: no position in %q", line)
	}
	var b Block
	var runs int
	if _, err := fmt.Sscanf(line[colon+1:], "%d.%d,%d.%d %d %d", &b.Start.Line, &b.Start.Column,
		&b.End.Line, &b.End.Column, &b.Statements, &runs); err != nil {
		return fmt.Errorf("coverage profile: %q: %w", line, err)
	}
	name := line[:colon]
	if p[name] == nil {
		p[name] = make(map[Block]bool)
	}
	p[name][b] = p[name][b] || runs > 0
	return nil
}

// Count is the number of statements and how many of them a test reached.
type Count struct{ Statements, Covered int }

func (c *Count) add(b Block, covered bool) {
	c.Statements += b.Statements
	if covered {
		c.Covered += b.Statements
	}
}

// percent formats the covered share. It prints 100.0 only if nothing is missing.
func (c Count) percent() string {
	if c.Statements == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(c.Covered*1000/c.Statements)/10, 'f', 1, 64)
}

// Packages counts the statements of each package, by import path.
func (p Profile) Packages() map[string]Count {
	counts := make(map[string]Count)
	for file, blocks := range p {
		pkg := path.Dir(file)
		c := counts[pkg]
		for b, covered := range blocks {
			c.add(b, covered)
		}
		counts[pkg] = c
	}
	return counts
}

// WriteTable prints a line for each package, and the total. It cuts prefix off their import paths.
func (p Profile) WriteTable(w io.Writer, prefix string) {
	counts := p.Packages()
	var total Count
	fmt.Fprintf(w, "%-40s %10s %10s %8s\n", "package", "statements", "covered", "%")
	for _, pkg := range slices.Sorted(maps.Keys(counts)) {
		c := counts[pkg]
		total.Statements, total.Covered = total.Statements+c.Statements, total.Covered+c.Covered
		fmt.Fprintf(w, "%-40s %10d %10d %8s\n", strings.TrimPrefix(pkg, prefix), c.Statements, c.Covered, c.percent())
	}
	fmt.Fprintf(w, "%-40s %10d %10d %8s\n", "total", total.Statements, total.Covered, total.percent())
}
