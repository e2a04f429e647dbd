package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// limits of one run of a package's tests. The factor leaves room for a busy machine.
const (
	limitFactor = 5
	limitFloor  = 30 * time.Second
	// memoryLimit bounds the address space of a test binary, in KiB: some mutants
	// allocate without end.
	memoryLimit = 8 << 20
)

// tester runs the tests of one package.
type tester struct {
	*run
	pkg   string
	limit time.Duration
}

// newTester runs the unchanged package's tests, to measure them.
func (r *run) newTester(pkg string) (*tester, error) {
	t := &tester{run: r, pkg: pkg, limit: 10 * time.Minute}
	dir, err := os.MkdirTemp(r.dir, "base-")
	if err != nil {
		return nil, err
	}
	if out, err := t.build(dir, ""); err != nil {
		return nil, fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	began := time.Now()
	if result, detail := t.test(dir); result != survived {
		return nil, fmt.Errorf("the tests of unchanged %s: %s, %s", pkg, result, detail)
	}
	t.limit = max(limitFloor, limitFactor*time.Since(began))
	return t, nil
}

// try runs the tests against a mutant. detail names the first test that failed.
func (t *tester) try(m mutant) (result outcome, detail string, err error) {
	path := filepath.Join(t.root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	if t.known[m.file+"\x00"+m.marked(text)] {
		return equivalent, "", nil
	}
	dir, err := os.MkdirTemp(t.dir, "mutant-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, path, m.apply(text))
	if err != nil {
		return "", "", err
	}
	if _, err := t.build(dir, overlay); err != nil {
		return notViable, "", nil
	}
	result, detail = t.test(dir)
	return result, detail, nil
}

// writeOverlay writes files into dir that replace the contents of the file at path for the go
// command, and returns the argument for its flag -overlay.
func writeOverlay(dir, path string, text []byte) (overlay string, err error) {
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(changed, text, 0o600), os.WriteFile(overlay, list, 0o600))
}

// build compiles the package's tests into dir, with the files that overlay replaces.
func (t *tester) build(dir, overlay string) (out []byte, err error) {
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-overlay="+overlay, "-o", filepath.Join(dir, "test"), "./"+t.pkg)
	cmd.Dir, cmd.Env = t.root, t.env
	return cmd.CombinedOutput()
}

// firstFailure finds the first test or panic in the output of a failed test binary.
var firstFailure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*)|^(fatal error: .*)`)

// test runs the binary in dir. Whatever it starts ends with it.
func (t *tester) test(dir string) (result outcome, detail string) {
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return "", err.Error()
	}
	cmd := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -v %d && exec "$@"`, memoryLimit), "sh",
		filepath.Join(dir, "test"), "-test.short", "-test.failfast", "-test.timeout="+t.limit.String())
	cmd.Dir, cmd.Env = filepath.Join(t.root, t.pkg), append(t.env, "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err.Error()
	}
	// A test binary that does not end by itself after its time limit.
	end := time.AfterFunc(t.limit+time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := cmd.Wait()
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
