package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// report prints what failed and what did not run. It reports whether a test failed.
func (r *runner) report(w io.Writer) bool {
	slices.SortFunc(r.packages, func(a, b *testPackage) int { return cmp.Compare(a.ImportPath, b.ImportPath) })
	var tests, runs, skips, failures int
	for _, p := range r.packages {
		for _, t := range p.tests {
			tests, runs = tests+1, runs+t.runs
			if t.skips {
				skips++
			}
		}
		failures += len(p.failures)
		p.printMissing(w)
	}
	if failures > 0 {
		r.printFailures(w)
	}
	fmt.Fprintf(w, "\n%d tests, %d runs, %d failed; %d tests skipped themselves\n", tests, runs, failures, skips)
	return failures > 0
}

// printMissing lists the tests that have run less often than they should.
func (p *testPackage) printMissing(w io.Writer) {
	for _, t := range p.tests {
		if t.runs < t.wanted {
			fmt.Fprintf(w, "not run: %s %s, %d of %d times\n", p.name(), t.name, t.wanted-t.runs, t.wanted)
		}
	}
}

func (r *runner) printFailures(w io.Writer) {
	fmt.Fprintf(w, "\n%-28s %-60s %8s %8s\n", "package", "test", "runs", "failures")
	for _, p := range r.packages {
		for _, name := range slices.Sorted(maps.Keys(p.failures)) {
			runs := "-"
			top, _, _ := strings.Cut(name, "/")
			if t := p.test(top); t != nil {
				runs = strconv.Itoa(t.runs)
			}
			fmt.Fprintf(w, "%-28s %-60s %8s %8d\n", p.name(), label(name), runs, p.failures[name].count)
		}
	}
}

// label is the name of what failed.
func label(name string) string {
	if name == "" {
		return "(the test binary)"
	}
	return name
}
