package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/file"
)

// The lines around the part of the document that this command writes.
const (
	beginTable = "<!-- begin generated: conformance -->\n"
	endTable   = "<!-- end generated -->"
)

// writeDocument replaces the generated part of the document. What it says of releases that are not in results stays.
func writeDocument(path string, results []result) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, begun := strings.Cut(string(old), beginTable)
	part, tail, ended := strings.Cut(rest, endTable)
	if !begun || !ended {
		return fmt.Errorf("%s has no part between %q and %q", path, strings.TrimSpace(beginTable), endTable)
	}
	return file.Replace(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, head+beginTable); err != nil {
			return err
		}
		if err := writeTables(w, results, readTables(part, results)); err != nil {
			return err
		}
		_, err := io.WriteString(w, endTable+tail)
		return err
	})
}

// tables are the rows of the document: of the forms, and the tests that did not run.
type tables struct {
	forms   []string
	skipped []skippedTest
}

// readTables returns the rows of part, the document's, whose release is not among those of results.
func readTables(part string, results []result) (t tables) {
	again := func(version string) bool {
		return slices.ContainsFunc(results, func(r result) bool { return minor(r.version) == minor(version) })
	}
	reason := ""
	for line := range strings.Lines(part) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		switch {
		case len(cells) == 8 && strings.HasPrefix(cells[0], "v") && !again(cells[0]):
			t.forms = append(t.forms, line)
		case len(cells) == 3 && strings.HasPrefix(cells[1], "v"):
			if cells[2] != sameReason {
				reason = cells[2]
			}
			if versions := slices.DeleteFunc(strings.Split(cells[1], ", "), again); len(versions) > 0 {
				t.skipped = append(t.skipped, skippedTest{skipped{cells[0], reason}, versions})
			}
		}
	}
	return t
}

// minor returns the minor release of a version such as v1.36.3.
func minor(version string) string { return version[:strings.LastIndex(version, ".")] }

// sameReason stands for the reason in the row above.
const sameReason = "the same"

// writeTables writes the results in Markdown, with the rows that are kept: a row for each form, and the tests that did not
// run.
func writeTables(w io.Writer, results []result, kept tables) error {
	var b strings.Builder
	b.WriteString("\n| Kubernetes | CoreDNS | kernel path | passed | not run | queries to the agents | answered in the kernel | s |\n")
	b.WriteString("|---|---|---|---|--:|--:|--:|--:|\n")
	rows := slices.Clone(kept.forms)
	for _, r := range results {
		rows = append(rows, r.row())
	}
	slices.SortStableFunc(rows, func(a, b string) int { return strings.Compare(a[:len("| v1.36")], b[:len("| v1.36")]) })
	b.WriteString(strings.Join(rows, ""))
	fmt.Fprintf(&b, "\nMeasured on %d CPUs. These tests match the focus and did not run:\n\n| test | Kubernetes | reason |\n|---|---|---|\n", runtime.NumCPU())
	last := ""
	for _, t := range skippedTests(results, kept.skipped) {
		reason := t.reason
		if reason == last {
			reason = sameReason
		}
		last = t.reason
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.name, strings.Join(t.versions, ", "), reason)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// row is the line of r in the table.
func (r result) row() string {
	coreDNS, kernel := "scaled to zero", "off"
	if r.form.coreDNS {
		coreDNS = "running"
	}
	if r.form.kernelPath {
		kernel = "on"
	}
	return fmt.Sprintf("| %s | %s | %s | %d of %d | %d | %.0f | %.0f | %.0f |\n", r.version, coreDNS, kernel,
		r.report.passed, r.report.total()-len(r.report.skipped), len(r.report.skipped), r.agentQueries, r.kernelQueries, r.took.Seconds())
}

// skippedTest is a test that did not run, in the form of a table's cells, and in which versions.
type skippedTest struct {
	skipped
	versions []string
}

// skippedTests returns the tests that did not run in any form, and what is kept of them, each test once, in a fixed order; the order of
// the reports is random.
func skippedTests(results []result, kept []skippedTest) []skippedTest {
	var list []skippedTest
	at := map[skipped]int{}
	add := func(t skipped, versions ...string) {
		i, ok := at[t]
		if !ok {
			i = len(list)
			at[t], list = i, append(list, skippedTest{skipped: t})
		}
		list[i].versions = slices.Compact(slices.Sorted(slices.Values(append(list[i].versions, versions...))))
	}
	for _, t := range kept {
		add(t.skipped, t.versions...)
	}
	for _, r := range results {
		for _, t := range r.report.skipped {
			add(skipped{cell(t.name), cell(t.reason)}, r.version)
		}
	}
	slices.SortFunc(list, func(a, b skippedTest) int {
		return cmp.Or(slices.Compare(a.versions, b.versions), strings.Compare(a.name, b.name))
	})
	return list
}

// cell returns text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "[", `\[`, "]", `\]`).Replace(strings.TrimSpace(text))
}
