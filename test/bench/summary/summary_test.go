package summary

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
)

var update = flag.Bool("update", false, "write the generated parts of BENCHMARKS.md and README.md, and the charts")

const remedy = "run go test ./test/bench/summary -update"

// folder is where the pages are, seen from the repository's root.
const folder = "docs/benchmarks"

// TestSummary holds BENCHMARKS.md to the pages: its tables are made from their tables of targets,
// and it says about each missed target whether that matters.
func TestSummary(t *testing.T) {
	root, targets := read(t)
	file := filepath.Join(root, "BENCHMARKS.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	want := replace(t, text, "pages", PageTable(targets, folder))
	want = replace(t, want, "missed", MissedTable(targets))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(want, text); d != "" {
		t.Errorf("BENCHMARKS.md differs from %s; %s (-want +got):\n%s", folder, remedy, d)
	}
	list := Missed(targets)
	if len(list) == 0 {
		t.Error("no target is missed: is the tables' form another?")
	}
	for _, m := range list {
		if !strings.Contains(want, "**"+m.What+"**") {
			t.Errorf("BENCHMARKS.md does not say whether it matters that %q is missed", m.What)
		}
	}
}

// replace replaces the part of the text between the two comments of the name.
func replace(t *testing.T, text, name, part string) string {
	t.Helper()
	begin := "<!-- begin generated: " + name + " -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, also := strings.Cut(rest, "<!-- end generated -->")
	if !ok || !also {
		t.Fatalf("the text lacks the part %s", name)
	}
	return before + begin + part + "<!-- end generated -->" + after
}

// TestNumbers holds the README to the pages.
func TestNumbers(t *testing.T) {
	root, _ := read(t)
	file := filepath.Join(root, "README.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := Numbers(filepath.Join(root, folder), folder)
	if err != nil {
		t.Fatal(err)
	}
	want := replace(t, string(b), "numbers", table)
	if *update {
		err = os.WriteFile(file, []byte(want), 0o644)
	} else if d := cmp.Diff(want, string(b)); d != "" {
		t.Errorf("README.md differs from %s; %s (-want +got):\n%s", folder, remedy, d)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T) (root string, targets []Target) {
	t.Helper()
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	if targets, err = ReadTargets(filepath.Join(root, folder)); err != nil {
		t.Fatal(err)
	}
	return root, targets
}

// TestCharts holds the charts to the pages' tables.
func TestCharts(t *testing.T) {
	root, _ := read(t)
	pages := filepath.Join(root, folder)
	charts, err := Charts(pages)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if _, err := figures.Draw(charts, pages); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range charts {
		if len(c.Rows) < 3 {
			t.Errorf("%s has %d rows", c.File, len(c.Rows))
		}
		got, err := os.ReadFile(filepath.Join(pages, figures.PlotDir, "bench-"+c.File))
		if err != nil {
			t.Errorf("%v; %s", err, remedy)
			continue
		}
		if d := cmp.Diff(string(c.SVG()), string(got)); d != "" {
			t.Errorf("%s differs from the table; %s (-want +got):\n%s", c.File, remedy, d)
		}
	}
}

func TestFindTable(t *testing.T) {
	text := "| a | b |\n|---|--:|\n| 1 | 2 |\n\n| a | c |\n|---|---|\n| x |  |\nend\n"
	if d := cmp.Diff([][]string{{"a", "b"}, {"1", "2"}}, findTable(text, "a")); d != "" {
		t.Errorf("first table (-want +got):\n%s", d)
	}
	if d := cmp.Diff([][]string{{"a", "c"}, {"x", ""}}, findTable(text, "a", "c")); d != "" {
		t.Errorf("second table (-want +got):\n%s", d)
	}
	if rows := findTable(text, "b"); rows != nil {
		t.Errorf("a table that is not there: %q", rows)
	}
}

// TestProse holds the pages to the templates: prose that is changed in a page alone would be lost
// with the next measurement.
func TestProse(t *testing.T) {
	root, _ := read(t)
	templates := map[string]string{
		"agents-that-go-away.md": "failover/section.md.tmpl",
		"attacks.md":             "attack/section.md.tmpl",
		"attribution.md":         "counting/section.md.tmpl",
		"watching.md":            "counting/watching.md.tmpl",
		"policies.md":            "counting/policies.md.tmpl",
		"large-cluster.md":       "scale/section.md.tmpl",
		"fleet.md":               "scale/fleet.md.tmpl",
		"fair-shares.md":         "fairness/section.md.tmpl",
		"transports.md":          "transports/section.md.tmpl",
		"start.md":               "startup/section.md.tmpl",
		"readers.md":             "readers/section.md.tmpl",
		"kernel-path.md":         "kernel/section.md.tmpl",
		"upstreams-that-fail.md": "outage/section.md.tmpl",
	}
	list, err := filepath.Glob(filepath.Join("..", "queries", "pages", "*.md.tmpl"))
	if err != nil || len(list) == 0 {
		t.Fatalf("%d templates of queries: %v", len(list), err)
	}
	for _, file := range list {
		name := filepath.Base(file)
		templates[strings.TrimSuffix(name, ".tmpl")] = "queries/pages/" + name
	}
	for name, file := range templates {
		page, err := harness.ReadPage(filepath.Join(root, folder), name)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Error(err)
			continue
		}
		prose := string(text)
		if harness.IsPart(name) {
			prose = harness.Lowered(prose)
		}
		for line := range strings.Lines(prose) {
			if !strings.Contains(line, "{{") && !strings.Contains("\n"+page, "\n"+line) {
				t.Errorf("%s lacks a line of test/bench/%s: %q", name, file, line)
			}
		}
	}
}
