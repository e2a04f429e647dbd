package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/testlog"
)

// makeRun is a running `make run`.
type makeRun struct {
	cmd *exec.Cmd
	// log is its standard error, with the agent's log.
	log *testlog.Buffer
	// commands are the commands to try, in order. It is closed after the empty line that
	// follows them, or at the end of the output.
	commands chan string
	read     sync.WaitGroup // the reader of standard output
	ended    chan struct{}
}

// startMake starts `make run` in dir. When ctx ends, all its processes are killed.
func startMake(ctx context.Context, dir string, env []string) (*makeRun, error) {
	m := &makeRun{cmd: exec.CommandContext(ctx, "make", "run"), log: new(testlog.Buffer), commands: make(chan string), ended: make(chan struct{})}
	m.cmd.Dir, m.cmd.Env, m.cmd.Stderr = dir, env, m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.cmd.Cancel = func() error { return syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) }
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("make run: %w", err)
	}
	m.read.Go(func() { m.readOutput(ctx, stdout) })
	return m, nil
}

// readOutput sends the commands to try, and reads on until the end.
func (m *makeRun) readOutput(ctx context.Context, stdout io.Reader) {
	defer func() { _, _ = io.Copy(m.log, stdout) }()
	defer close(m.commands)
	found := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		text := strings.TrimSpace(lines.Text())
		if !strings.HasPrefix(text, "dig ") {
			if found && text == "" {
				return
			}
			fmt.Fprintln(m.log, text)
			continue
		}
		found = true
		select {
		case m.commands <- text:
		case <-ctx.Done():
			return
		}
	}
}

// wait waits for the end of `make run`, and returns why it ended.
func (m *makeRun) wait() error {
	defer close(m.ended)
	m.read.Wait()
	if err := m.cmd.Wait(); err != nil {
		return fmt.Errorf("make run: %w", err)
	}
	return nil
}

// cpu returns the time on CPUs of all processes. Call it after stop.
func (m *makeRun) cpu() time.Duration {
	if m.cmd.ProcessState == nil {
		return 0
	}
	return m.cmd.ProcessState.UserTime() + m.cmd.ProcessState.SystemTime()
}

// stop does what Ctrl-C does, and waits for the end.
func (m *makeRun) stop() {
	select {
	case <-m.ended:
		return // its process group may be another's now
	default:
	}
	_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGINT)
	<-m.ended
}
