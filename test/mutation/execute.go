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
	"sync"
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

// limits of one run of a package's tests. The factor leaves room for a busy machine.
const (
	limitFactor = 5
	// memoryLimit bounds the address space of a test binary, in KiB: some mutants
	// allocate without end.
	memoryLimit = 8 << 20
)

// tester runs the tests of one package.
type tester struct {
	*run
	pkg     string
	dir     string         // has the binary
	mutants map[int]mutant // by number

	mu    sync.Mutex
	limit time.Duration
}

// newTester builds the tests of a package with the first count mutants of list that compile, and
// runs them without any.
func (r *run) newTester(pkg string, list []mutant, count int) (*tester, error) {
	t := &tester{run: r, pkg: pkg, limit: 10 * time.Minute}
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

// measure runs the tests without a mutant and sets the time limit.
func (t *tester) measure() error {
	began := time.Now()
	if result, detail := t.test(0, 10*time.Minute); result != survived {
		return fmt.Errorf("the tests of %s without a mutant: %s, %s", t.pkg, result, detail)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = max(t.floor, limitFactor*time.Since(began))
	return nil
}

func (t *tester) timeLimit() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limit
}

// try runs the tests with a mutant. detail names the first test that failed. A mutant that
// exceeds the time limit gets another chance if the machine has become slower since.
func (t *tester) try(id int) (result outcome, detail string, err error) {
	m := t.mutants[id]
	text, err := os.ReadFile(filepath.Join(t.root, m.file))
	if err != nil {
		return "", "", err
	}
	if t.known[m.file+"\x00"+m.marked(text)] {
		return equivalent, "", nil
	}
	limit := t.timeLimit()
	if result, detail = t.test(id, limit); result != timedOut {
		return result, detail, nil
	}
	if t.measure() == nil { // a test that fails now and then changes no limit
		if now := t.timeLimit(); now > limit {
			result, detail = t.test(id, now)
		}
	}
	return result, detail, nil
}

// firstFailure finds the first test or panic in the output of a failed test binary.
var firstFailure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*)|^(fatal error: .*)`)

// test runs the tests with the mutant of a number. Whatever they start ends with them.
func (t *tester) test(id int, limit time.Duration) (result outcome, detail string) {
	tmp, err := os.MkdirTemp(t.dir, "tmp-")
	if err != nil {
		return "", err.Error()
	}
	defer os.RemoveAll(tmp)
	// Allocation pins are left out: functions with mutants are not inlined.
	cmd := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -v %d && exec "$@"`, memoryLimit), "sh",
		filepath.Join(t.dir, "test"), "-test.short", "-test.failfast", "-test.skip=Alloc", "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join(t.root, t.pkg)
	cmd.Env = append(slices.Clone(t.env), "TMPDIR="+tmp, "NODENS_MUTANT="+strconv.Itoa(id))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err.Error()
	}
	// A test binary that does not end by itself after its time limit.
	end := time.AfterFunc(limit+time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	hung := !end.Stop()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	switch text := out.String(); {
	case err == nil:
		return survived, ""
	case hung || strings.Contains(text, "panic: test timed out after"):
		return timedOut, ""
	default:
		return killed, failure(text)
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
