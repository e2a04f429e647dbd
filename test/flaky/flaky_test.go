package main

// Inside the package: there is only a command outside.

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exampleRoot is a module whose tests fail in certain runs.
func exampleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("testdata/example")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func mustParse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parseOptions(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestCommand runs the example's tests. Each is repeated as often as the options say, a
// panic takes no run away from the others, and every failure is counted under its name.
func TestCommand(t *testing.T) {
	var out strings.Builder
	o := mustParse(t, "-seconds", "3600", "-race=false", "-load", "0")
	failed, err := test(t.Context(), o, exampleRoot(t), &out)
	if err != nil || !failed {
		t.Fatalf("failed %v, %v\n%s", failed, err, &out)
	}
	// The first run is one more, in a process of its own. TestPanics panics in the eighth
	// run of each process, so one process runs all tests eight times, the next eight times,
	// and the third four times.
	got := make(map[string]string)
	_, table, _ := strings.Cut(out.String(), "\npackage ")
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "example" {
			got[f[1]] = f[2] + " runs, " + f[3] + " failed"
		}
	}
	want := map[string]string{
		"TestSometimes": "21 runs, 5 failed",
		"TestParts/b":   "21 runs, 2 failed",
		"TestPanics":    "21 runs, 2 failed",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("failures (-want +got):\n%s\n%s", d, &out)
	}
	for _, text := range []string{"run 4\n", "panic: boom", "b is wrong", "9 tests, 169 runs, 3 failed; 1 tests skipped themselves"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("the output lacks %q:\n%s", text, &out)
		}
	}
	if strings.Contains(out.String(), "not run:") {
		t.Errorf("something did not run:\n%s", &out)
	}
}

// TestSlow: tests that take longer than the threshold run less often.
func TestSlow(t *testing.T) {
	for _, args := range [][]string{{"-seconds", "0", "-run", "^TestPasses$"}, {"-seconds", "0.01", "-run", "^TestWaits$"}} {
		var out strings.Builder
		o := mustParse(t, append(args, "-race=false", "-load", "0")...)
		if failed, err := test(t.Context(), o, exampleRoot(t), &out); failed || err != nil || !strings.Contains(out.String(), "\n1 tests, 6 runs, 0 failed") {
			t.Errorf("%v: failed %v, %v\n%s", args, failed, err, &out)
		}
	}
}

// TestLimit: what the limit leaves out is listed and is not a failure.
func TestLimit(t *testing.T) {
	var out strings.Builder
	o := mustParse(t, "-limit", "1ns", "-run", "Passes|Skips", "-race=false", "-load", "0")
	failed, err := test(t.Context(), o, exampleRoot(t), &out)
	if err != nil || failed {
		t.Fatalf("failed %v, %v", failed, err)
	}
	for _, line := range []string{"not run: example TestPasses, 21 of 21 times\n", "not run: example TestSkips, 21 of 21 times\n", "\n2 tests, 0 runs, 0 failed"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the output lacks %q:\n%s", line, &out)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{{"./server"}, {"-fast", "0"}, {"-p", "0"}, {"-load", "-1"}, {"-run", "("}, {"-unknown"}} {
		if _, err := parseOptions(args, io.Discard); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// TestRecord: failures are blamed on tests and subtests, and the end of the process on the
// tests that run at that time.
func TestRecord(t *testing.T) {
	exit := errors.New("exit status 2")
	for _, tt := range []struct {
		name   string
		events []event
		err    error
		got    map[string]int
		failed map[string]string
	}{
		{"pass", []event{{Action: "run", Test: "A"}, {Action: "pass", Test: "A", Elapsed: 1.5}}, nil, map[string]int{"A": 1}, nil},
		{"parallel subtests", []event{
			{Action: "run", Test: "A"}, {Action: "pause", Test: "A"}, {Time: time.Unix(10, 0), Action: "cont", Test: "A"},
			{Time: time.Unix(11, 5e8), Action: "pass", Test: "A", Elapsed: 0.1},
		}, nil, map[string]int{"A": 1}, nil},
		{"subtest", []event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "A/x"}, {Action: "output", Test: "A/x", Output: "wrong\n"},
			{Action: "output", Test: "A", Output: "--- FAIL: A (0.00s)\n"}, {Action: "fail", Test: "A/x"}, {Action: "fail", Test: "A"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A/x": "wrong\n"}},
		{"subtest and test", []event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "A/x"}, {Action: "fail", Test: "A/x"},
			{Action: "output", Test: "A", Output: "a leak\n"}, {Action: "fail", Test: "A"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A/x": "", "A": "a leak\n"}},
		{"panic beside a parallel test", []event{
			{Action: "run", Test: "A"}, {Action: "pause", Test: "A"}, {Action: "run", Test: "B"}, {Action: "pause", Test: "B"},
			{Action: "cont", Test: "A"}, {Action: "cont", Test: "B"}, {Action: "output", Test: "B", Output: "--- FAIL: B (0.00s)\n"}, {Action: "output", Test: "B", Output: "panic\n"},
		}, exit, map[string]int{"B": 1}, map[string]string{"B": "--- FAIL: B (0.00s)\npanic\n\nexit status 2\n"}},
		{"failure before a timeout", []event{
			{Action: "run", Test: "A"}, {Action: "output", Test: "A", Output: "wrong\n"}, {Action: "fail", Test: "A"}, {Action: "run", Test: "B"},
		}, exit, map[string]int{"A": 1, "B": 1}, map[string]string{"A": "wrong\n", "B": "\nexit status 2\n"}},
		{"timeout", []event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "B"}, {Action: "pause", Test: "B"},
			{Action: "output", Test: "A", Output: "=== NAME  A\n"}, {Action: "output", Test: "A", Output: "hangs\n"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A": "hangs\n\nexit status 2\n"}},
		{"exit", []event{
			{Action: "run", Test: "A"}, {Action: "pass", Test: "A"}, {Action: "output", Output: "leak\n"}, {Action: "fail"},
		}, exit, map[string]int{"A": 1}, map[string]string{"": "leak\n\nexit status 2\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &testPackage{failures: make(map[string]*failure), tests: []*testCase{{name: "A"}, {name: "B"}}}
			o := new(outcome)
			for _, e := range tt.events {
				o.add(e)
			}
			got, failed := p.record(o, tt.err)
			if d := cmp.Diff(tt.got, got); d != "" {
				t.Errorf("runs (-want +got):\n%s", d)
			}
			if tt.err == nil && p.tests[0].elapsed != 1500*time.Millisecond {
				t.Errorf("the test took %v, want 1.5s", p.tests[0].elapsed)
			}
			texts := make(map[string]string)
			for name, f := range p.failures {
				texts[name] = f.first
			}
			if len(failed) != len(tt.failed) || len(texts) != len(tt.failed) || len(tt.failed) > 0 && !cmp.Equal(tt.failed, texts) {
				t.Errorf("failed %v with %q, want %q", failed, texts, tt.failed)
			}
		})
	}
}

// describe writes jobs as text.
func describe(jobs []job) (list []string) {
	for _, j := range jobs {
		var names []string
		for _, t := range j.tests {
			names = append(names, t.name)
		}
		list = append(list, strings.Join(names, "+")+" "+strings.Repeat("x", j.count))
	}
	return list
}

func TestPlan(t *testing.T) {
	o := mustParse(t, "-fast", "4", "-slow", "3")
	tests := []*testCase{
		{name: "none"}, {name: "short", elapsed: 100 * time.Millisecond}, {name: "skips", skips: true},
		{name: "long", elapsed: 25 * time.Second}, {name: "limit", elapsed: time.Second}, {name: "last", elapsed: 10 * time.Millisecond},
	}
	got := describe(plan(tests, o))
	want := []string{"long xx", "long x", "limit xxx", "none+short+last xxxx"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("jobs (-want +got):\n%s", d)
	}
	if tests[0].wanted != 4 || tests[2].wanted != 0 || tests[3].wanted != 3 {
		t.Errorf("wanted %d, %d and %d runs, want 4, 0 and 3", tests[0].wanted, tests[2].wanted, tests[3].wanted)
	}
	j := job{tests: tests[:3], count: 3}
	if d := cmp.Diff([]string{"short x", "none xx"}, describe(j.rest(map[string]int{"none": 1, "short": 2, "skips": 3}))); d != "" {
		t.Errorf("the rest (-want +got):\n%s", d)
	}
	if rest := j.rest(nil); rest != nil {
		t.Errorf("a job that ran no test is repeated: %v", describe(rest))
	}
}

func TestGroups(t *testing.T) {
	o := mustParse(t)
	var tests []*testCase
	for range 10 {
		tests = append(tests, &testCase{name: "t", elapsed: 900 * time.Millisecond}) // 18 s for all runs
	}
	want := []string{"t+t+t " + strings.Repeat("x", 20), "t+t+t " + strings.Repeat("x", 20), "t+t+t " + strings.Repeat("x", 20), "t " + strings.Repeat("x", 20)}
	if d := cmp.Diff(want, describe(plan(tests, o))); d != "" {
		t.Errorf("jobs (-want +got):\n%s", d)
	}
}

func TestExcerpt(t *testing.T) {
	var e excerpt
	e.write("beginning ")
	if got := e.String(); got != "beginning " {
		t.Errorf("got %q", got)
	}
	for range 100 {
		e.write(strings.Repeat("x", 1000))
	}
	e.write(" end")
	got := e.String()
	if !strings.HasPrefix(got, "beginning x") || !strings.HasSuffix(got, "x end") || !strings.Contains(got, "bytes left out") || len(got) > 2*maxExcerpt+100 {
		t.Errorf("%d bytes: %.20q … %q", len(got), got, got[len(got)-20:])
	}
}

// TestChanged: a change selects the packages that contain it or are built with it.
func TestChanged(t *testing.T) {
	leaf := &testPackage{ImportPath: "m/leaf", Dir: "/r/leaf", module: "/r"}
	user := &testPackage{ImportPath: "m/user", Dir: "/r/user", module: "/r", deps: map[string]bool{"m/leaf": true, "m/user": true}}
	tool := &testPackage{ImportPath: "n/tool", Dir: "/r/nested/tool", module: "/r/nested"}
	all := []*testPackage{leaf, user, tool}
	for _, tt := range []struct {
		file    string
		want    []*testPackage
		outside []string
	}{
		{"leaf/a.go", []*testPackage{leaf, user}, nil},
		{"user/testdata/x/file", []*testPackage{user}, nil},
		{"nested/go.mod", []*testPackage{tool}, nil},
		{"go.sum", []*testPackage{leaf, user}, nil},
		{"README.md", nil, []string{"README.md"}},
	} {
		selected, outside := selectChanged(all, "/r", []string{tt.file})
		if !cmp.Equal(paths(tt.want), paths(selected)) || !cmp.Equal(tt.outside, outside) {
			t.Errorf("%s selects %v and leaves %v, want %v and %v", tt.file, paths(selected), outside, paths(tt.want), tt.outside)
		}
	}
}

func paths(packages []*testPackage) (list []string) {
	for _, p := range packages {
		list = append(list, p.ImportPath)
	}
	return list
}

// TestChangedFiles: files that git tracks and files that it does not know yet both count.
func TestChangedFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	write("same", "")
	write("changed", "")
	write(".gitignore", "ignored\n")
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	write("changed", "more")
	write("new file", "")
	write("ignored", "")
	got, err := changedFiles(t.Context(), root, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"changed", "new file"}, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if _, err := changedFiles(t.Context(), root, "no-such-revision"); err == nil {
		t.Error("an unknown revision is accepted")
	}
}

// TestOccupy: the load ends with its input.
func TestOccupy(t *testing.T) {
	r, w := io.Pipe()
	go w.Close()
	occupy(r, 1)
}

// TestInterrupt: an interrupt ends the command with an error.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := test(ctx, mustParse(t, "-race=false"), exampleRoot(t), io.Discard); err == nil {
		t.Error("no error")
	}
}
