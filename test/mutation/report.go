package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// tally counts outcomes per package.
type tally map[string]map[outcome]int

func (t tally) add(pkg string, result outcome) {
	if t[pkg] == nil {
		t[pkg] = make(map[outcome]int)
	}
	t[pkg][result]++
}

// write prints the table. A mutant that timed out counts as killed.
func (t tally) write(w io.Writer) {
	columns := []outcome{killed, timedOut, survived, equivalent, notViable}
	fmt.Fprintf(w, "\n%-24s %10s", "package", "mutants")
	for _, c := range columns {
		fmt.Fprintf(w, " %10s", c)
	}
	fmt.Fprintln(w)
	total := make(map[outcome]int)
	line := func(name string, counts map[outcome]int) {
		fmt.Fprintf(w, "%-24s %10d", name, counts[killed]+counts[timedOut]+counts[survived]+counts[equivalent])
		for _, c := range columns {
			fmt.Fprintf(w, " %10d", counts[c])
		}
		fmt.Fprintln(w)
	}
	for _, pkg := range slices.Sorted(maps.Keys(t)) {
		line(pkg, t[pkg])
		for c, n := range t[pkg] {
			total[c] += n
		}
	}
	line("total", total)
}

// known holds changes that no test can notice. The key is the file, a zero byte, and the marked
// line, so that it stays when lines above it change.
type known map[string]bool

// readKnown reads the list of equivalent mutants: a line with a file, and below it the marked
// lines, each indented by a tab and preceded by a comment with the reason.
func readKnown(name string) (known, error) {
	k := make(known)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		switch text := strings.TrimSpace(line); {
		case text == "" || text[0] == '#':
		case line[0] == '\t':
			k[file+"\x00"+text] = true
		default:
			file = text
		}
	}
	return k, lines.Err()
}

// readSurvivors reads the mutants that survived in an earlier run's output.
func readSurvivors(name string) ([]mutant, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []mutant
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), string(survived))
		if !ok {
			continue
		}
		m, err := parseMutant(strings.TrimSpace(rest))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, m)
	}
	return list, lines.Err()
}

// parseMutant reads what mutant.String writes.
func parseMutant(text string) (m mutant, err error) {
	position, what, ok := strings.Cut(text, ": ")
	parts := strings.Split(position, ":")
	if !ok || len(parts) != 3 {
		return mutant{}, fmt.Errorf("no mutant: %q", text)
	}
	m.file = parts[0]
	var errs [2]error
	m.line, errs[0] = strconv.Atoi(parts[1])
	m.column, errs[1] = strconv.Atoi(parts[2])
	m.kind, _, _ = strings.Cut(what, " ")
	return m, errors.Join(errs[:]...)
}
