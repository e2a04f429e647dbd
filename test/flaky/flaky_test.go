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

	"github.com/nodens-dns/nodens/test/gotest"
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
	o := mustParse(t, "-fast", "1h", "-race=false", "-load", "0")
	failed, err := test(t.Context(), o, exampleRoot(t), &out)
	if err != nil || !failed {
		t.Fatalf("failed %v, %v\n%s", failed, err, &out)
	}
	// The first run is one more, in a process of its own. TestPanics panics in the third
	// run of each process, so of a round's processes one runs all tests three times, and the next ones what the first lacks.
	got := make(map[string]string)
	_, table, _ := strings.Cut(out.String(), "\npackage ")
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "example" {
			got[f[1]] = f[2] + " runs, " + f[3] + " failed"
		}
	}
	want := map[string]string{
		"TestSometimes": "21 runs, 5 failed",
		"TestParts/b":   "21 runs, 5 failed",
		"TestPanics":    "21 runs, 5 failed",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("failures (-want +got):\n%s\n%s", d, &out)
	}
	for _, text := range []string{"run 2\n", "panic: boom", "b is wrong", "8 tests, 148 runs, 3 failed; 1 tests skipped themselves"} {
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
	for _, args := range [][]string{{"-fast", "0s", "-run", "^TestPasses$"}, {"-fast", "10ms", "-run", "^TestWaits$"}} {
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
	for _, args := range [][]string{{"./server"}, {"-rounds", "0"}, {"-p", "0"}, {"-load", "-1"}, {"-run", "("}, {"-unknown"}} {
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
		events []gotest.Event
		err    error
		got    map[string]int
		failed map[string]string
	}{
		{"pass", []gotest.Event{{Action: "run", Test: "A"}, {Action: "pass", Test: "A", Elapsed: 1.5}}, nil, map[string]int{"A": 1}, nil},
		{"parallel subtests", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "pause", Test: "A"}, {Time: time.Unix(10, 0), Action: "cont", Test: "A"},
			{Time: time.Unix(11, 5e8), Action: "pass", Test: "A", Elapsed: 0.1},
		}, nil, map[string]int{"A": 1}, nil},
		{"subtest", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "A/x"}, {Action: "output", Test: "A/x", Output: "wrong\n"},
			{Action: "output", Test: "A", Output: "--- FAIL: A (0.00s)\n"}, {Action: "fail", Test: "A/x"}, {Action: "fail", Test: "A"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A/x": "wrong\n"}},
		{"subtest and test", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "A/x"}, {Action: "fail", Test: "A/x"},
			{Action: "output", Test: "A", Output: "a leak\n"}, {Action: "fail", Test: "A"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A/x": "", "A": "a leak\n"}},
		{"panic beside a parallel test", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "pause", Test: "A"}, {Action: "run", Test: "B"}, {Action: "pause", Test: "B"},
			{Action: "cont", Test: "A"}, {Action: "cont", Test: "B"}, {Action: "output", Test: "B", Output: "--- FAIL: B (0.00s)\n"}, {Action: "output", Test: "B", Output: "panic\n"},
		}, exit, map[string]int{"B": 1}, map[string]string{"B": "--- FAIL: B (0.00s)\npanic\n\nexit status 2\n"}},
		{"failure before a timeout", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "output", Test: "A", Output: "wrong\n"}, {Action: "fail", Test: "A"}, {Action: "run", Test: "B"},
		}, exit, map[string]int{"A": 1, "B": 1}, map[string]string{"A": "wrong\n", "B": "\nexit status 2\n"}},
		{"timeout", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "run", Test: "B"}, {Action: "pause", Test: "B"},
			{Action: "output", Test: "A", Output: "=== NAME  A\n"}, {Action: "output", Test: "A", Output: "hangs\n"},
		}, exit, map[string]int{"A": 1}, map[string]string{"A": "hangs\n\nexit status 2\n"}},
		{"exit", []gotest.Event{
			{Action: "run", Test: "A"}, {Action: "pass", Test: "A"}, {Action: "output", Output: "leak\n"}, {Action: "fail"},
		}, exit, map[string]int{"A": 1}, map[string]string{"": "leak\n\nexit status 2\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &testPackage{failures: make(map[string]*failure), tests: []*testCase{{name: "A"}, {name: "B"}}}
			o := newOutcome(p)
			for _, e := range tt.events {
				o.add(e)
			}
			o.finish(tt.err)
			if d := cmp.Diff(tt.got, o.runs); d != "" {
				t.Errorf("runs (-want +got):\n%s", d)
			}
			if tt.err == nil && p.tests[0].elapsed != 1500*time.Millisecond {
				t.Errorf("the test took %v, want 1.5s", p.tests[0].elapsed)
			}
			texts := make(map[string]string)
			for name, f := range p.failures {
				texts[name] = f.first
			}
			if len(o.failed) != len(tt.failed) || len(texts) != len(tt.failed) || len(tt.failed) > 0 && !cmp.Equal(tt.failed, texts) {
				t.Errorf("failed %v with %q, want %q", o.failed, texts, tt.failed)
			}
		})
	}
}

// TestChanged: a change selects the packages that contain it or are built with it.
func TestChanged(t *testing.T) {
	for _, tt := range []struct {
		file  string
		owned bool
		want  []string
	}{
		{"leaf/a.go", true, []string{"m/leaf", "m/user"}},
		{"user/testdata/x/file", true, []string{"m/user"}},
		{"nested/go.mod", false, nil},
		{"go.sum", true, []string{"m/leaf", "m/user"}},
		{"README.md", false, nil},
	} {
		g := &graph{module: "/r", paths: map[string]string{"/r/leaf": "m/leaf", "/r/user": "m/user"}, changed: make(map[string]bool), deps: map[string][]string{"m/user": {"m/leaf", "m/user", "[m/user.test]"}}}
		if owned := g.change("/r", filepath.Join("/r", tt.file)); owned != tt.owned {
			t.Errorf("%s: a package owns it: %v", tt.file, owned)
		}
		var got []string
		for _, path := range []string{"m/leaf", "m/user"} {
			if g.affects(path) {
				got = append(got, path)
			}
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s selects (-want +got):\n%s", tt.file, d)
		}
	}
}

// TestSelectChanged reads the packages of a module that git has.
func TestSelectChanged(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	write("leaf/leaf.go", "package leaf\n")
	write("user/user_test.go", "package user_test\n\nimport _ \"m/leaf\"\n")
	write("other/other_test.go", "package other_test\n")
	commit(t, root)
	write("leaf/new.go", "package leaf\n")
	packages, err := listPackages(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	selected, err := selectChanged(t.Context(), packages, root, "HEAD", &out)
	if err != nil || len(selected) != 1 || selected[0].ImportPath != "m/user" {
		t.Errorf("%v, %v\n%s", selected, err, &out)
	}
}

// commit commits everything in root.
func commit(t *testing.T, root string) {
	t.Helper()
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "first"}} {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// TestChangedFiles: files that git tracks and files that it does not know yet both count.
func TestChangedFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("same", "")
	write("changed", "")
	write(".gitignore", "ignored\n")
	commit(t, root)
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

// TestInterrupt: an interrupt ends the command with an error.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := test(ctx, mustParse(t, "-race=false"), exampleRoot(t), io.Discard); err == nil {
		t.Error("no error")
	}
}
