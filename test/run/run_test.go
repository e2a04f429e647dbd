package main // the program has no API

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/gotest"
	"github.com/nodens-dns/nodens/test/peer"
)

// TestRunStage runs stages of both kinds. What they print is the events of all, with the names of packages that
// several stages have told apart, and the times.
func TestRunStage(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	const event = `{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":1.5}`
	r := &runner{opts: options{soak: true}, start: time.Now(), out: &out, packages: make(map[string]*usage)}
	for _, s := range []stage{
		{name: "unit tests", args: []string{"echo", event}, events: true},
		{name: "pins", args: []string{"echo", event}, events: true, repeats: true},
		{name: "setting", args: []string{"sh", "-c", `test "$NODENS_SOAK" = 1 && test "$A" = b`}, env: []string{"A=b"}},
		{name: "broken", args: []string{"sh", "-c", "echo why >&2; exit 3"}},
		{name: "broken tests", args: []string{"sh", "-c", "echo who >&2; exit 4"}, events: true},
		{name: "no such program", args: []string{filepath.Join(dir, "none")}, events: true},
	} {
		r.runStage(t.Context(), s)
	}
	var failed []string
	for _, s := range r.stages {
		if s.failed {
			failed = append(failed, s.name)
		}
	}
	if diff := cmp.Diff([]string{"broken", "broken tests", "no such program"}, failed); diff != "" {
		t.Errorf("stages that failed (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		event + "\n", `"Package":"m/a (pins)","Test":"TestOne"`,
		`"Action":"run","Package":"setting","Test":"setting"`, `"Action":"pass","Package":"setting","Test":"setting"`,
		`"Output":"why\nexit status 3\n"`, `"Action":"fail","Package":"broken","Test":"broken"`, "broken tests: exit status 4\nwho\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

// TestVerdict: gotestsum runs tests again that failed, unless something failed outside of tests.
func TestVerdict(t *testing.T) {
	const failure, broken = `{"Action":"fail","Package":"m/a","Test":"TestOne"}`, `{"Action":"fail","Package":"m/a","Elapsed":1}`
	for _, test := range []struct {
		name   string
		events []string
		code   int
		want   error
	}{
		{"passed", []string{`{"Action":"pass","Package":"m/a","Elapsed":1}`}, 0, nil},
		{"a test failed", []string{failure, broken}, 1, errFailed},
		{"the package failed", []string{broken}, 1, errBroken},
		{"nothing ran", nil, 1, errBroken},
		{"a test failed, and a package", []string{failure, broken, strings.ReplaceAll(broken, "m/a", "m/b")}, 1, errBroken},
	} {
		r := &runner{start: time.Now(), out: io.Discard, packages: make(map[string]*usage)}
		script := fmt.Sprintf("cat; exit %d", test.code)
		s := stage{name: "unit tests", args: []string{"sh", "-c", "echo '" + strings.Join(test.events, "\n") + "' | (" + script + ")"}, events: true}
		r.runStage(t.Context(), s)
		if got := r.verdict(); !errors.Is(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestRerunStage: a test runs again with the flags of its stage, and alone.
func TestRerunStage(t *testing.T) {
	cache, upstream := module+"cache", module+"upstream"
	stages := []stage{
		{name: "unit tests", args: []string{"go", "test", "-json", "-race", cache, upstream}, events: true},
		{name: "pins", args: []string{"go", "test", "-json", "-run", withoutRace, cache, upstream}, events: true, repeats: true},
		{name: "fuzzers", args: []string{"go", "run", "./test/fuzz", "-all"}, events: true},
	}
	for pkg, want := range map[string]string{
		cache:                        "go test -json -race -run ^TestA$/^b$ " + cache,
		upstream + " (pins)":         "go test -json -run " + withoutRace + " -run ^TestA$/^b$ " + upstream,
		module + "server":            "",
		module + "cache FuzzHistory": "",
		"fuzzers":                    "",
	} {
		s, err := rerunStage(stages, pkg, "^TestA$/^b$")
		if got := strings.Join(s.args, " "); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q and the error %v, want %q", pkg, got, err, want)
		}
	}
}

// TestBenchmarks: of benchmarks only those that fail have events, as those that pass never end.
func TestBenchmarks(t *testing.T) {
	var out strings.Builder
	r := &runner{out: &out, packages: make(map[string]*usage), benchmarks: make(map[string][][]byte)}
	for _, e := range []gotest.Event{
		{Action: "run", Test: "BenchmarkGood"}, {Action: "run", Test: "BenchmarkGood/one"}, {Action: "output", Test: "BenchmarkGood/one", Output: "1 ns"},
		{Action: "run", Test: "BenchmarkBad"}, {Action: "run", Test: "BenchmarkBad/one"}, {Action: "output", Test: "BenchmarkBad/one", Output: "wrong"},
		{Action: "fail", Test: "BenchmarkBad/one"}, {Action: "fail", Test: "BenchmarkBad"},
		{Action: "run", Test: "BenchmarkLast"}, {Action: "fail"},
	} {
		r.event(stage{name: "m/a"}, e)
	}
	var got []string
	if err := gotest.EachLine(strings.NewReader(out.String()), func(line []byte) {
		var e gotest.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Action+" "+e.Test)
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"run BenchmarkBad", "run BenchmarkBad/one", "output BenchmarkBad/one", "fail BenchmarkBad/one", "fail BenchmarkBad", "run BenchmarkLast", "fail "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestPlan: every package with tests is in exactly one of the stages that run all of them, and
// no two packages of a stage have a test binary of the same name. Stages with tests run no benchmarks.
func TestPlan(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	lists, last, err := plan(t.Context(), options{}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stages := make(map[string][]string) // names, by package
	for _, list := range append(lists, last) {
		for _, s := range list {
			if s.repeats {
				continue
			}
			if s.dir == "" && slices.Contains(s.args, "-bench") {
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
		"test/node": "suites", "test/prometheus": "suites", "test/run": "suites", "test/upstreams": "upstreams", "daemonset/release": "release", "test/dnstap": "dnstap",
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

// TestCPUTime: a test binary's exit code is that of the shell which measures it, and a package's time has the CPU
// time of its test binary.
func TestCPUTime(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for code, script := range []string{"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done", "exit 1", "exit 2"} {
		cmd := exec.Command("bash", filepath.Join(root, "test/cpu.sh"), "sh", "-c", script)
		if text, _ = cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != code {
			t.Errorf("%q: exit code %d, want %d: %s", script, cmd.ProcessState.ExitCode(), code, text)
		}
	}
	r := &runner{out: io.Discard, packages: make(map[string]*usage)}
	for _, e := range []gotest.Event{{Action: "output", Output: string(text)}, {Action: "output", Output: "CPU time: 1.250 0.250\n"}, {Action: "fail", Elapsed: 2}} {
		r.event(stage{name: "m/a"}, e)
	}
	if diff := cmp.Diff(usage{name: "m/a", took: 2 * time.Second, cpu: 1500 * time.Millisecond, failed: true}, *r.packages["m/a"], cmp.AllowUnexported(usage{})); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	var user, system float64
	if n, _ := fmt.Sscanf(string(text), cpuLine, &user, &system); n != 2 {
		t.Errorf("test/cpu.sh prints %q", text)
	}
}
