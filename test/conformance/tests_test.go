package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// spec returns a test's entry in a report.
func spec(kind, name, state, message string) string {
	return `{"ContainerHierarchyTexts":["[sig-network] DNS"],"LeafNodeType":"` + kind + `","LeafNodeText":"` + name + `","State":"` + state + `","Failure":{"Message":"` + message + `"}}`
}

// TestParseReport: what passed, failed and did not run is counted, and tests outside of the focus
// are not.
func TestParseReport(t *testing.T) {
	const other = `{"ContainerHierarchyTexts":["[sig-network] Services"],"LeafNodeType":"It","LeafNodeText":"works","State":"failed"}`
	const configMap = `{"ContainerHierarchyTexts":["[sig-network] DNS configMap nameserver","Change stubDomain"],"LeafNodeType":"It","LeafNodeText":"changes","State":"skipped"}`
	const off = "d [Alpha] [Feature:OffByDefault]"
	for _, tt := range []struct {
		name  string
		specs []string
		want  report
		err   string
	}{
		{
			name: "all pass",
			specs: []string{
				spec("SynchronizedBeforeSuite", "", "passed", ""), spec("It", "a", "passed", ""), spec("It", "b", "passed", ""), other, configMap,
				spec("It", "c", "skipped", "only for gce"), spec("It", off, "skipped", ""),
			},
			want: report{passed: 2, skipped: []skipped{
				{"[sig-network] DNS configMap nameserver Change stubDomain changes", skipReason("")}, {"[sig-network] DNS c", "only for gce"},
				{"[sig-network] DNS " + off, "needs a feature that is off in this release unless a feature gate is set"},
			}},
		},
		{
			name:  "one fails",
			specs: []string{spec("It", "a", "passed", ""), spec("It", "b", "timedout", "too late")},
			want:  report{passed: 1, failures: []string{"[sig-network] DNS b: timedout: too late"}},
			err:   "1 of 2 tests failed",
		},
		{
			name:  "the preparation fails",
			specs: []string{spec("SynchronizedBeforeSuite", "", "failed", "no nodes"), spec("It", "a", "skipped", "")},
			want:  report{failures: []string{"SynchronizedBeforeSuite: failed: no nodes"}, skipped: []skipped{{"[sig-network] DNS a", ""}}},
			err:   "no nodes",
		},
		{
			name:  "none runs",
			specs: []string{other},
			err:   "no test ran",
		},
		{
			name:  "one is left out for no reason",
			specs: []string{spec("It", "a", "passed", ""), spec("It", "b", "skipped", "")},
			want:  report{passed: 1, skipped: []skipped{{"[sig-network] DNS b", ""}}},
			err:   "unknown reason",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseReport([]byte(`[{"SpecReports":[` + strings.Join(tt.specs, ",") + `]}]`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(report{}, skipped{})); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
			if err := got.check(); (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("check: %v, want %q", err, tt.err)
			}
		})
	}
	if _, err := parseReport([]byte("{")); err == nil {
		t.Error("a broken report is read without an error")
	}
}

// TestCheckQueries: a form in which the agents were not asked, or in which the kernel answered
// with the kernel path off, is an error.
func TestCheckQueries(t *testing.T) {
	for _, tt := range []struct {
		name           string
		agents, kernel float64
		on, ok         bool
	}{
		{name: "off", agents: 9, ok: true},
		{name: "on", agents: 9, kernel: 9, on: true, ok: true},
		{name: "off, but the kernel answers", agents: 9, kernel: 9},
		{name: "nobody asks", on: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := result{form: form{kernelPath: tt.on}, agentQueries: tt.agents, kernelQueries: tt.kernel}
			if err := r.checkQueries(); (err == nil) != tt.ok {
				t.Errorf("error %v, want ok: %t", err, tt.ok)
			}
		})
	}
}

// TestWriteDocument: only the part between the marks changes.
func TestWriteDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	results := []result{
		{version: "v1.37.2", form: form{coreDNS: true}, report: report{passed: 17, skipped: []skipped{{"[sig] a", "x|y"}}}, agentQueries: 10, took: time.Minute},
		{version: "v1.36.3", form: form{kernelPath: true}, report: report{passed: 16, skipped: []skipped{{"[sig] a", "x|y"}}}, agentQueries: 9, kernelQueries: 8},
	}
	if err := os.WriteFile(path, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeDocument(path, results); err == nil {
		t.Error("a page without a generated part is written")
	}
	if err := os.WriteFile(path, []byte("before\n"+beginTable+"old\n"+endTable+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeDocument(path, results); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if !strings.HasPrefix(got, "before\n"+beginTable+"\n| Kubernetes |") || !strings.HasSuffix(got, "\n\n"+endTable+"\nafter\n") {
		t.Errorf("the page is\n%s", got)
	}
	for _, line := range []string{
		"| v1.37.2 | running | off | 17 of 17 | 1 | 10 | 0 | 60 |\n",
		"| v1.36.3 | scaled to zero | on | 16 of 16 | 1 | 9 | 8 | 0 |\n",
		"| \\[sig\\] a | v1.36.3, v1.37.2 | x\\|y |\n",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
}

// TestKeptRows: rows of releases that did not run stay, and the others' are replaced.
func TestKeptRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte(beginTable+endTable), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(versions ...string) string {
		t.Helper()
		var results []result
		for _, v := range versions {
			results = append(results, result{version: v, form: form{coreDNS: true}, report: report{
				passed: 17, skipped: []skipped{{"[sig] a", "x|y"}, {"[sig] b of " + minor(v), "x|y"}},
			}})
		}
		if err := writeDocument(path, results); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	all := run("v1.34.4", "v1.35.5", "v1.36.3")
	if diff := cmp.Diff(all, run("v1.34.4")); diff != "" {
		t.Errorf("after another run of the first release:\n%s", diff)
	}
	if got, want := run("v1.36.7"), strings.ReplaceAll(all, "v1.36.3", "v1.36.7"); got != want {
		t.Errorf("after a run of another patch of the last release:\n%s", cmp.Diff(want, got))
	}
}

// TestSkippedTests: a test that does not run in several forms is listed once, and the list does not
// depend on the order in which the tests ran.
func TestSkippedTests(t *testing.T) {
	a, b := skipped{"[sig] a", "no"}, skipped{"[sig] b", "no"}
	results := []result{
		{version: "v1.36.3", report: report{skipped: []skipped{b, a}}},
		{version: "v1.36.3", report: report{skipped: []skipped{a, b}}},
		{version: "v1.37.2", report: report{skipped: []skipped{b}}},
	}
	a.name, b.name = `\[sig\] a`, `\[sig\] b`
	want := []skippedTest{{a, []string{"v1.36.3"}}, {b, []string{"v1.36.3", "v1.37.2"}}}
	if diff := cmp.Diff(want, skippedTests(results, nil), cmp.AllowUnexported(skippedTest{}, skipped{})); diff != "" {
		t.Errorf("skipped tests (-want +got):\n%s", diff)
	}
}
