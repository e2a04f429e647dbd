package peer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// patience is how long a process may take to end after SIGTERM before it is
// killed. The agent promises five seconds; twice that means it broke its word
// and not that the machine was busy.
const patience = 10 * time.Second

// tailSize is how much of a process's output is shown: enough for the last
// hundred log lines, not enough to bury the test's own message.
const tailSize = 16 << 10

// Command describes a process to start.
type Command struct {
	// Name names the process in messages and its output file.
	Name string
	// Path is the program and Args are its arguments, without the program.
	Path string
	Args []string
	// Env is appended to the test's own environment.
	Env []string
	// Dir is the folder that receives the output file; Start fills in a
	// temporary one if it is empty.
	Dir string
}

// Process is a process that Start or Spawn started. Its methods may be called
// from several goroutines.
type Process struct {
	name   string
	output string
	cmd    *exec.Cmd
	done   chan struct{}
	err    error // what Wait said; read it after done is closed
}

// Start starts a process that is stopped when the test ends. If the test
// failed, the end of the process's output is logged.
func Start(tb testing.TB, c Command) *Process {
	tb.Helper()
	if c.Dir == "" {
		c.Dir = tb.TempDir()
	}
	p, err := Spawn(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.Stop()
		if tb.Failed() {
			tb.Logf("%s wrote:\n%s", c.Name, p.Tail())
		}
	})
	return p
}

// Spawn is Start for callers without a test; the caller calls Stop.
//
// The process runs in the network namespace of the test process, not in that
// of the calling thread: to start it in another one, run it through
// "ip netns exec", which becomes the program and keeps the pid.
func Spawn(c Command) (*Process, error) {
	out, err := os.CreateTemp(c.Dir, filepath.Base(c.Name)+"-*.log")
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{name: c.Name, output: out.Name(), cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread that forked
		// ends, so the thread is held until the process is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Name, err)
	}
	return p, nil
}

// PID returns the process's id. After the process ended the id may belong to
// another one.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the process's end and says how it ended: nil for exit code 0,
// else an *exec.ExitError.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Signal sends a signal to the process; one that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop ends the process with SIGTERM, or SIGKILL when that does not help
// within ten seconds, and returns when it is gone. Only the first call of
// several has something to do.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.Kill()
	}
}

// Kill ends the process at once and returns when it is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Tail returns the end of what the process has written so far.
func (p *Process) Tail() string {
	f, err := os.Open(p.output)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailSize {
		f.Seek(-tailSize, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
