package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// outcome says what became of a mutant.
type outcome string

const (
	killed     outcome = "killed"     // a test failed
	timedOut   outcome = "timed out"  // counts as killed
	survived   outcome = "survived"   // all tests passed
	equivalent outcome = "equivalent" // listed as such; not run
	notViable  outcome = "not viable" // does not compile; not counted
)

// Limits of a run of tests. Both factors multiply what the tests took without a mutant, one after the
// other; r.floor is added. A test that needs CPU time on a busy machine only waits longer, so the limit
// of CPU time is the one that counts. The other one ends mutants that wait without end.
const (
	cpuFactor  = 5
	wallFactor = 10
	// memoryLimit bounds the address space of a test binary, in KiB: some mutants
	// allocate without end.
	memoryLimit = 8 << 20
)

// quick is how long a test may take to run before the others.
const quick = 200 * time.Millisecond

// tester runs the tests of one package.
type tester struct {
	*run
	pkg     string
	dir     string         // has the binary
	mutants map[int]mutant // by number
	tests   []measured
}

// newTester builds the tests of a package with the first count mutants of list that compile, and
// runs each of them without any.
func (r *run) newTester(pkg string, list []mutant, count int) (*tester, error) {
	t := &tester{run: r, pkg: pkg}
	var err error
	if t.dir, err = os.MkdirTemp(r.dir, "tests-"); err != nil {
		return nil, err
	}
	overlay, err := t.choose(list, count)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-overlay="+overlay, "-o", filepath.Join(t.dir, "test"), "./"+pkg)
	cmd.Dir, cmd.Env = r.root, r.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the tests of %s: %w\n%s", pkg, err, out)
	}
	return t, t.measure()
}

// choose sets t.mutants to the first count mutants of list that compile.
func (t *tester) choose(list []mutant, count int) (overlay string, err error) {
	tried := 0
	for chosen := make(map[int]mutant); ; {
		for need := count - len(chosen); need > 0 && tried < len(list); need-- {
			chosen[tried+1] = list[tried]
			tried++
		}
		before := len(chosen)
		if chosen, overlay, err = t.viable(t.dir, chosen); err != nil {
			return "", err
		}
		for range before - len(chosen) {
			t.tally.add(t.pkg, notViable)
		}
		if len(chosen) == min(count, before) || tried == len(list) {
			t.mutants = chosen
			return overlay, nil
		}
	}
}

// try runs the tests that reach the function with the mutant, quick ones first. detail names the
// first test that failed. Tests that wait for longer than the limit get a second chance.
func (t *tester) try(id int) (result outcome, detail string, err error) {
	m := t.mutants[id]
	text, err := os.ReadFile(filepath.Join(t.root, m.file))
	if err != nil {
		return "", "", err
	}
	if t.known[m.file+"\x00"+m.marked(text)] {
		return equivalent, "", nil
	}
	var last ended
	for _, tests := range t.reaching(id) {
		e := t.execution(id, tests)
		if last, err = t.execute(e); last.detail == waited {
			e.wall *= 2
			last, err = t.execute(e)
		}
		if err != nil || last.result != survived {
			break
		}
	}
	return last.result, last.detail, err
}

// firstFailure finds the first test or panic in the output of a failed test binary.
var firstFailure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*)|^(fatal error: .*)`)

// execution is one run of the test binary.
type execution struct {
	mutant    int    // or record, or 0
	tests     string // a regular expression
	reached   string // the file to record the mutants' functions in
	cpu, wall time.Duration
}

// execution returns the run of tests with a mutant.
func (t *tester) execution(mutant int, tests []measured) execution {
	e := execution{mutant: mutant}
	names := make([]string, len(tests))
	for i, test := range tests {
		names[i] = test.name
		e.cpu += cpuFactor * test.cpu
		e.wall += wallFactor * test.wall
	}
	e.tests = "^(" + strings.Join(names, "|") + ")$"
	e.cpu += t.floor
	e.wall += max(6*t.floor, e.cpu)
	return e
}

// ended is the end of an execution.
type ended struct {
	result outcome
	detail string // the first test that failed, or the limit that was exceeded
	cpu    time.Duration
}

// Limits that ended.detail names.
const (
	computed = "CPU time"
	waited   = "wall-clock time"
)

// execute runs tests. Whatever they start ends with them.
func (t *tester) execute(e execution) (ended, error) {
	tmp, err := os.MkdirTemp(t.dir, "tmp-")
	if err != nil {
		return ended{}, err
	}
	defer os.RemoveAll(tmp)
	seconds := int(e.cpu.Seconds()) + 1
	// Allocation pins are left out: functions with mutants are not inlined.
	cmd := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -v %d && ulimit -t %d && exec "$@"`, memoryLimit, seconds), "sh",
		filepath.Join(t.dir, "test"), "-test.short", "-test.failfast", "-test.skip=Alloc", "-test.run="+e.tests, "-test.timeout="+e.wall.String())
	cmd.Dir = filepath.Join(t.root, t.pkg)
	cmd.Env = append(slices.Clone(t.env), "TMPDIR="+tmp, "NODENS_MUTANT="+strconv.Itoa(e.mutant), "NODENS_REACHED="+e.reached)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return ended{}, err
	}
	// A test binary that does not end by itself after its time limit.
	end := time.AfterFunc(e.wall+time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	hung := !end.Stop()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch text := out.String(); {
	case err == nil:
		return ended{survived, "", cpu}, nil
	case status.Signaled() && status.Signal() == syscall.SIGKILL && !hung:
		return ended{timedOut, computed, cpu}, nil
	case hung || strings.Contains(text, "panic: test timed out after"):
		return ended{timedOut, waited, cpu}, nil
	default:
		return ended{killed, failure(text), cpu}, nil
	}
}

// failure names what failed in the output of a test binary.
func failure(output string) string {
	m := firstFailure.FindStringSubmatch(output)
	if m == nil {
		return "no test named"
	}
	return strings.Join(m[1:], "")
}
