package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/soak"
)

// stageTime is how long a stage took, and the CPU time of all its processes.
type stageTime struct {
	name      string
	took, cpu time.Duration
	failed    bool
}

// runner runs the stages of a plan.
type runner struct {
	opts    options
	results *results
	start   time.Time
	cpuDir  string // for a file with CPU times for each stage

	mu      sync.Mutex
	running map[string]stage
	counted map[string]bool // stages whose number of tests is known
	times   []stageTime
}

// run runs all stages and prints the summary to out. It returns errFailed if a test failed,
// and other errors if the run itself did.
func run(ctx context.Context, out io.Writer, o options) error {
	if o.events != "" {
		if err := os.MkdirAll(o.events, 0o755); err != nil {
			return err
		}
	}
	cpuDir, err := os.MkdirTemp("", "nodens-run-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(cpuDir) }()
	r := &runner{
		opts: o, results: newResults(out), start: time.Now(), cpuDir: cpuDir,
		running: make(map[string]stage), counted: make(map[string]bool),
	}
	binaries, release, err := openBinaries()
	if err != nil {
		return err
	}
	defer release()
	lists, err := plan(ctx, o, binaries)
	if err != nil {
		return err
	}
	total := 0
	for _, list := range lists {
		for _, s := range list {
			total += s.tests
			r.counted[s.name] = s.tests > 0
		}
	}
	done := make(chan struct{})
	var background, lanes sync.WaitGroup
	background.Go(func() { r.showProgress(done, total) })
	for _, list := range lists {
		lanes.Go(func() {
			for _, s := range list {
				r.runStage(ctx, s)
			}
		})
	}
	lanes.Wait()
	close(done)
	background.Wait()
	return r.finish(ctx)
}

// finish prints the summary and the stages' times.
func (r *runner) finish(ctx context.Context) error {
	passed := r.results.printSummary(r.opts.slowest)
	r.results.printf("\n%8s %8s        stage\n", "time", "CPU time")
	var cpu time.Duration
	for _, t := range r.times {
		verdict := "ok"
		if t.failed {
			verdict, passed = "FAIL", false
		}
		cpu += t.cpu
		r.results.printf("%6.0f s %6.0f s  %-4s  %s\n", t.took.Seconds(), t.cpu.Seconds(), verdict, t.name)
	}
	r.results.printf("%6.0f s %6.0f s        in all\n", time.Since(r.start).Seconds(), cpu.Seconds())
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !passed {
		return errFailed
	}
	return nil
}

// showProgress prints a line every ten seconds until done is closed.
func (r *runner) showProgress(done <-chan struct{}, total int) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			r.results.printf("%s\n", r.progress(total))
		}
	}
}

// progress describes the state of the run in one line.
func (r *runner) progress(total int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	done, failures := r.results.progress()
	ended := 0
	for name, n := range done {
		if r.counted[name] {
			ended += n
		}
	}
	var parts []string
	for name, s := range r.running {
		part := name
		if s.tests > 0 {
			part = fmt.Sprintf("%s %d/%d", name, done[name], s.tests)
		}
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return fmt.Sprintf("%5.0f s  %d of %d tests, %d failed; %s", time.Since(r.start).Seconds(), ended, total, failures, strings.Join(parts, ", "))
}

// runStage runs one stage to its end and records its results and its time.
func (r *runner) runStage(ctx context.Context, s stage) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	r.running[s.name] = s
	r.mu.Unlock()
	began := time.Now()
	cmd := r.command(ctx, s)
	err := errors.Join(r.execute(cmd, s), r.addCPUTimes(s))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, s.name)
	t := stageTime{name: s.name, took: time.Since(began), failed: err != nil}
	if p := cmd.ProcessState; p != nil {
		t.cpu = p.UserTime() + p.SystemTime() // with those of its children that it has waited for
	}
	r.times = append(r.times, t)
}

// cpuFile returns the name of the file with the CPU times of the stage's packages.
func (r *runner) cpuFile(s stage) string { return filepath.Join(r.cpuDir, s.fileName()) }

// addCPUTimes adds the CPU times of the stage's packages to the results.
func (r *runner) addCPUTimes(s stage) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	times, err := readCPUTimes(r.cpuFile(s), root)
	if err != nil {
		return err
	}
	r.results.addCPUTimes(s.name, times)
	return nil
}

// command returns the command of a stage.
func (r *runner) command(ctx context.Context, s stage) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(os.Environ(), s.env, []string{cpuVariable + "=" + r.cpuFile(s)})
	if r.opts.soak {
		cmd.Env = append(cmd.Env, soak.Variable+"=1")
	}
	// An interrupt has to reach the tests, too: the go command does not pass it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

// execute runs the command of a stage and records its results.
func (r *runner) execute(cmd *exec.Cmd, s stage) error {
	if !s.events {
		began := time.Now()
		output, err := cmd.CombinedOutput()
		r.results.check(s.name, time.Since(began), err, string(output))
		return err
	}
	return r.executeTests(cmd, s)
}

// executeTests runs a command that prints events. Its standard error has messages of the go
// command, which are printed if it fails.
func (r *runner) executeTests(cmd *exec.Cmd, s stage) error {
	var messages bytes.Buffer
	cmd.Stderr = &messages
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	kept, err := r.createEvents(s)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, kept.Close())
	}
	// All of the output must be read before Wait closes the pipe.
	err = errors.Join(r.results.read(s.name, io.TeeReader(pipe, kept)), cmd.Wait(), kept.Close())
	if err != nil {
		r.results.printf("%s: %v\n%s", s.name, err, messages.String())
	}
	return err
}

// createEvents creates the file that keeps the events of a stage. Without the flag -events it
// is the null device.
func (r *runner) createEvents(s stage) (*os.File, error) {
	if r.opts.events == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return os.Create(filepath.Join(r.opts.events, s.fileName()+".json"))
}
