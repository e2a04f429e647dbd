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

// stopTimeout is the time between SIGTERM and SIGKILL. The agent ends within five seconds
// unless the machine is busy.
const stopTimeout = 10 * time.Second

// tailSize is the size of the logged part of a process's output, in bytes: about a hundred
// log lines.
const tailSize = 16 << 10

// Command describes a process to start.
type Command struct {
	// Name is the name of the process in messages, and the start of its output file's name.
	Name string
	// Path is the program and Args are its arguments, without the program.
	Path string
	Args []string
	// Env is appended to the environment of the test.
	Env []string
	// Dir is the folder for the output file. If it is empty, Start uses a temporary folder of
	// the test, and Spawn the system's.
	Dir string
}

// Process is a process that [Start] or [Spawn] started. Its methods may be called from several
// goroutines.
type Process struct {
	name   string
	output string
	cmd    *exec.Cmd
	done   chan struct{}
	err    error // the result of cmd.Wait; to be read after done is closed
}

// Start starts a process and stops it when the test ends. If the test failed, it logs the end
// of the process's output.
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

// Spawn is [Start] for callers without a test. The caller must call Stop.
//
// The process runs in the network namespace of the test process, even if the calling thread
// is in another one. To start it elsewhere, run it through "ip netns exec", which executes the
// program in its own process.
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
		// The kernel sends Pdeathsig when the thread ends that started the process, so this
		// goroutine keeps the thread until the process has ended.
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

// PID returns the process's id. Another process may get the id after the process has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits until the process has ended. It returns nil for exit code 0, else an
// [*exec.ExitError].
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Signal sends a signal to the process. If the process has ended, it does nothing.
func (p *Process) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop sends SIGTERM, and SIGKILL after ten seconds, and waits until the process has ended. It
// may be called several times.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.Kill()
	}
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Tail returns the end of the process's output so far.
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
