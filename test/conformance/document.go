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

// writeDocument replaces the generated part of the document.
func writeDocument(path string, results []result) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, begun := strings.Cut(string(old), beginTable)
	_, tail, ended := strings.Cut(rest, endTable)
	if !begun || !ended {
		return fmt.Errorf("%s has no part between %q and %q", path, strings.TrimSpace(beginTable), endTable)
	}
	return file.Replace(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, head+beginTable); err != nil {
			return err
		}
		if err := writeTables(w, results); err != nil {
			return err
		}
		_, err := io.WriteString(w, endTable+tail)
		return err
	})
}

// writeTables writes the results in Markdown: a row for each form, and the tests that did not
// run.
func writeTables(w io.Writer, results []result) error {
	var b strings.Builder
	b.WriteString("\n| Kubernetes | CoreDNS | kernel path | passed | not run | queries to the agents | answered in the kernel | s |\n")
	b.WriteString("|---|---|---|---|--:|--:|--:|--:|\n")
	for _, r := range results {
		coreDNS, kernel := "scaled to zero", "off"
		if r.form.coreDNS {
			coreDNS = "running"
		}
		if r.form.kernelPath {
			kernel = "on"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d of %d | %d | %.0f | %.0f | %.0f |\n", r.version, coreDNS, kernel,
			r.report.passed, r.report.total()-len(r.report.skipped), len(r.report.skipped), r.agentQueries, r.kernelQueries, r.took.Seconds())
	}
	fmt.Fprintf(&b, "\nMeasured on %d CPUs. These tests match the focus and did not run:\n\n| test | Kubernetes | reason |\n|---|---|---|\n", runtime.NumCPU())
	last := ""
	for _, t := range skippedTests(results) {
		reason := t.reason
		if reason == last {
			reason = "the same"
		}
		last = t.reason
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(t.name), t.versions, cell(reason))
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// skippedTest is a test that did not run, and in which versions.
type skippedTest struct {
	skipped
	versions string
}

// skippedTests returns the tests that did not run in any form, each once, in a fixed order; the order of
// the reports is random.
func skippedTests(results []result) []skippedTest {
	var list []skippedTest
	at := map[skipped]int{}
	for _, r := range results {
		for _, t := range r.report.skipped {
			i, ok := at[t]
			switch {
			case !ok:
				at[t] = len(list)
				list = append(list, skippedTest{t, r.version})
			case !strings.HasSuffix(list[i].versions, r.version):
				list[i].versions += ", " + r.version
			}
		}
	}
	slices.SortFunc(list, func(a, b skippedTest) int {
		return cmp.Or(strings.Compare(a.versions, b.versions), strings.Compare(a.name, b.name))
	})
	return list
}

// cell returns text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "[", `\[`, "]", `\]`).Replace(strings.TrimSpace(text))
}
