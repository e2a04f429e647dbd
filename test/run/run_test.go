package main // the program has no API

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestRunStage runs stages of both kinds. The events of one are kept in a file.
func TestRunStage(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	const events = `{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":1.5}` + "\n"
	r := &runner{opts: options{events: dir, soak: true}, results: newResults(&out), start: time.Now(), cpuDir: t.TempDir(), running: make(map[string]stage)}
	for _, s := range []stage{
		{name: "unit tests", args: []string{"echo", strings.TrimSpace(events)}, events: true, tests: 1},
		{name: "setting", args: []string{"sh", "-c", `test "$NODENS_SOAK" = 1 && test "$A" = b`}, env: []string{"A=b"}},
		{name: "broken", args: []string{"sh", "-c", "echo why >&2; exit 3"}},
		{name: "no such program", args: []string{filepath.Join(dir, "none")}, events: true},
	} {
		r.runStage(t.Context(), s)
	}
	if err := r.finish(t.Context()); !errors.Is(err, errFailed) {
		t.Errorf("the run returned %v, want errFailed", err)
	}
	var failed []string
	for _, s := range r.times {
		if s.failed {
			failed = append(failed, s.name)
		}
	}
	if diff := cmp.Diff([]string{"broken", "no such program"}, failed); diff != "" {
		t.Errorf("stages that failed (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "unit-tests.json")); err != nil || string(text) != events {
		t.Errorf("the kept events are %q (%v)", text, err)
	}
	for _, want := range []string{"--- FAIL broken broken\nwhy\nexit status 3\n", "2 passed, 1 failed, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

// TestPlan: every package with tests is in exactly one of the stages that run all of them, and
// no two packages of a stage have a test binary of the same name. Stages with many tests run no
// benchmarks.
func TestPlan(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	lists, err := plan(t.Context(), options{}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stages := make(map[string][]string) // names, by package
	for _, list := range lists {
		for _, s := range list {
			if s.binaries != "" || s.name == "pins" {
				continue // it repeats packages
			}
			if s.tests > 10 && slices.Contains(s.args, "-bench") {
				t.Errorf("the stage %s has benchmarks, so the go command would run its packages one at a time", s.name)
			}
			byName := make(map[string]string)
			for _, arg := range s.args {
				if name, ok := strings.CutPrefix(arg, module); ok {
					stages[name] = append(stages[name], s.name)
					if other := byName[path.Base(name)]; other != "" {
						t.Errorf("%s and %s have the same name, which the go command refuses with -o", other, name)
					}
					byName[path.Base(name)] = name
				}
			}
		}
	}
	want := map[string]string{
		"cache": "unit tests", "server/resolver": "unit tests", "cmd/nodens": "unit tests",
		"test/node": "suites", "test/prometheus": "suites", "test/run": "suites", "daemonset/image": "image", "test/dnstap": "dnstap",
	}
	for name, names := range stages {
		if len(names) != 1 || want[name] != "" && names[0] != want[name] {
			t.Errorf("%s is in the stages %q, want %q", name, names, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("no stage has %v", want)
	}
}

// TestCPUTimes: a package's line has the CPU time of its test binary, and the binary's exit code
// is the program's.
func TestCPUTimes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "unit-tests")
	t.Setenv(cpuVariable, file)
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(root, "test/run"))
	for code, args := range [][]string{{"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"}, {"false"}, {"sh", "-c", "kill -9 $$"}} {
		if got := execTest(args); got != code {
			t.Errorf("%q: exit code %d, want %d", args, got, code)
		}
	}
	if got := execTest([]string{filepath.Join(root, "none")}); got != 1 {
		t.Errorf("no such program: exit code %d, want 1", got)
	}
	times, err := readCPUTimes(file, root)
	if err != nil {
		t.Fatal(err)
	}
	if len(times) != 1 || times[module+"test/run"] <= 0 {
		t.Fatalf("CPU times are %v", times)
	}
	var out bytes.Buffer
	r := newResults(&out)
	r.add("unit tests", event{Action: "pass", Package: module + "test/run", Test: "TestOne"})
	r.addCPUTimes("unit tests", map[string]time.Duration{module + "test/run": 1500 * time.Millisecond})
	r.printSummary(0)
	if !strings.Contains(out.String(), "0.0       1.5\n") {
		t.Errorf("the output lacks the CPU time:\n%s", out.String())
	}
}
