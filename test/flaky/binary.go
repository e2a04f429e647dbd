package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// build compiles the package's test binary. It leaves out debugging information, which
// stacks do not need.
func (p *testPackage) build(ctx context.Context, file string, race bool) error {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", file}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir, cmd.Env = p.Dir, environment(race)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", p.name(), err, out)
	}
	p.binary = file
	return nil
}

// environment is that of `make test`. It shares the go command's cache.
func environment(race bool) []string {
	cgo := "CGO_ENABLED=0"
	if race {
		cgo = "CGO_ENABLED=1"
	}
	return append(os.Environ(), cgo, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"),
		"GORACE=atexit_sleep_ms=20 "+os.Getenv("GORACE"))
}

// ioGrace is how long output is read after the test binary has ended. Only a process that
// a test has left behind keeps it open.
const ioGrace = 30 * time.Second

// command returns a command that runs the binary. When ctx ends, the binary is killed with
// the processes that it has started in its process group.
func (p *testPackage) command(ctx context.Context, race bool, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.binary, args...)
	cmd.Dir, cmd.Env = p.Dir, append(environment(race), "PWD="+p.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = ioGrace
	return cmd
}

// start runs the job and blocks until the binary ends. It returns the process's error;
// a failed test is one.
func (p *testPackage) start(ctx context.Context, j job, race bool) (*outcome, error) {
	names := make([]string, len(j.tests))
	for i, t := range j.tests {
		names[i] = t.name
	}
	test := p.command(ctx, race, "-test.v=test2json", "-test.run", "^("+strings.Join(names, "|")+")$",
		"-test.count", strconv.Itoa(j.count), "-test.timeout", j.timeout().String())
	r, w := io.Pipe()
	test.Stdout, test.Stderr = w, w
	convert := exec.Command("go", "tool", "test2json", "-t") // without -t events have no times
	convert.Dir, convert.Stdin = filepath.Dir(p.binary), r
	events, err := convert.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := convert.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := test.Run()
		w.Close()
		ended <- err
	}()
	o := new(outcome)
	for d := json.NewDecoder(events); ; {
		var e event
		if d.Decode(&e) != nil {
			break
		}
		o.add(e)
	}
	r.Close()
	_ = convert.Wait()
	return o, <-ended
}
