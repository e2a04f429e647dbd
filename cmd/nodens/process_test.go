//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/handover"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// asProcess is the variable that makes the test's binary be something else: "agent", or
// the step at which a predecessor dies.
const asProcess = "NODENS_TEST_PROCESS"

func TestMain(m *testing.M) {
	switch as := os.Getenv(asProcess); as {
	case "":
		playInParallel()
		os.Exit(m.Run())
	case "agent":
		main()
	default:
		perish(as, os.Args[1])
	}
}

// mortal is the estate of a predecessor that dies at a step.
type mortal struct{ step string }

func (m mortal) die(at string) {
	if m.step == at {
		os.Exit(3)
	}
}

func (m mortal) Save() { m.die("save") }

func (m mortal) Sockets() ([]handover.Socket, error) {
	m.die("sockets")
	return nil, nil
}

func (m mortal) WriteCache(_ context.Context, w io.Writer) error {
	_, _ = io.WriteString(w, "no more than a beginning")
	m.die("cache")
	return errors.New("nothing to write")
}

func (m mortal) Suspend(context.Context, func(handover.Conn) error) error {
	m.die("yield")
	return nil
}

func (m mortal) Resume() {}

func (m mortal) Statistics() []byte { return nil }

func (m mortal) ReadCache(context.Context, io.Reader) error { return nil }

func (m mortal) ResumeReading() {}

func (m mortal) Adopt(handover.Conn) {}

func (m mortal) Release() {}

// startAgent runs the agent in this process on a Corefile until the test ends, and waits
// until it serves.
func startAgent(t *testing.T, corefile string, args ...string) *agenttest.Agent {
	t.Helper()
	return agenttest.Start(t, corefile, func(ctx context.Context, conf string, log io.Writer) error {
		args := append([]string{"-conf", conf, "-metrics-listen-address="}, args...)
		if code := run(ctx, args, io.Discard, log); code != exitOK {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
}

// perish is a predecessor in dir that dies at a step.
func perish(step, dir string) {
	host, err := handover.Listen(dir, mortal{step}, handover.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "msg=serving")
	host.Serve(context.Background())
}

// process is a program that runs until the test ends.
type process struct {
	*agenttest.Agent // without Stop and Reload
	cmd              *exec.Cmd
	exited           chan struct{} // closed then
	code             int           // after exited
}

// startProcess runs the test's binary as something else, without waiting for it.
func startProcess(t *testing.T, as string, env []string, args ...string) *process {
	t.Helper()
	p := &process{
		Agent:  &agenttest.Agent{T: t, Log: new(testlog.Buffer)},
		cmd:    exec.Command(os.Args[0], args...),
		exited: make(chan struct{}),
	}
	p.cmd.Env = append(append(os.Environ(), asProcess+"="+as), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.Log, p.Log
	check.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("log of process %d, %s:\n%s", p.cmd.Process.Pid, as, p.Log)
		}
	})
	return p
}

// startAgentProcess runs an agent in a process of its own, and waits until it serves.
func startAgentProcess(t *testing.T, corefile string, args ...string) *process {
	t.Helper()
	p := newAgentProcess(t, corefile, nil, args...)
	p.AwaitLog("msg=serving")
	return p
}

// newAgentProcess is startAgentProcess without the wait, and with more environment. It does not
// compare itself with its predecessor, unless args say so.
func newAgentProcess(t *testing.T, corefile string, env []string, args ...string) *process {
	t.Helper()
	return newProcessOn(t, agenttest.WriteCorefile(t, corefile), env, args...)
}

// newProcessOn is newAgentProcess on an existing Corefile.
func newProcessOn(t *testing.T, conf string, env []string, args ...string) *process {
	t.Helper()
	p := startProcess(t, "agent", env, append([]string{"-conf", conf, "-metrics-listen-address=", "-handover-compare=0"}, args...)...)
	p.Conf = conf
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.T.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.T.Fatal(err)
	}
}

// awaitExit waits for the end, which has to have that code.
func (p *process) awaitExit(code int) {
	p.T.Helper()
	select {
	case <-p.exited:
	case <-time.After(agenttest.Timeout):
		p.T.Fatalf("the process does not end; log:\n%s", p.Log)
	}
	if p.code != code {
		p.T.Fatalf("the process ended with code %d, want %d; log:\n%s", p.code, code, p.Log)
	}
}

// end ends the process in order.
func (p *process) end() {
	p.T.Helper()
	p.signal(syscall.SIGTERM)
	p.awaitExit(0)
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}
