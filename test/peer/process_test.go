package peer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

func TestProcess(t *testing.T) {
	p := Start(t, Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", "echo $WORD; exec sleep 3600"}, Env: []string{"WORD=here"}})
	p.Must(t, "the word", func(context.Context) error {
		if p.Tail() != "here\n" {
			return fmt.Errorf("the output is %q", p.Tail())
		}
		return nil
	})
	p.Stop()
	var exit *exec.ExitError
	if !errors.As(p.Err(), &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("a stopped process ended with %v, want SIGTERM", p.Err())
	}
	p.Stop()
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Errorf("sending a signal to an ended process: %v", err)
	}
}

func TestSpawnFails(t *testing.T) {
	_, err := Spawn(Command{Name: "nothing", Path: "/nonexistent", Dir: t.TempDir()})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("starting a missing program: %v", err)
	}
}

// TestAwaitEnd: waiting ends when the process ends, with an error that contains the last
// error of the probe and the process's output.
func TestAwaitEnd(t *testing.T) {
	p := Start(t, Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", "echo no such zone; exit 3"}})
	missing := errors.New("no answer")
	err := p.Await(t.Context(), "an answer", func(context.Context) error { return missing })
	if !errors.Is(err, missing) {
		t.Errorf("the error lacks the probe's: %v", err)
	}
	for _, want := range []string{"an answer", "exit status 3", "no such zone"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// orphan is an environment variable. With it the test binary starts a process, prints the
// process's id, and waits.
const orphan = "NODENS_PEER_ORPHAN"

// TestOrphan: a process ends when the test process that started it is killed.
func TestOrphan(t *testing.T) {
	if dir := os.Getenv(orphan); dir != "" {
		p, err := Spawn(Command{Name: "child", Path: "/bin/sleep", Args: []string{"3600"}, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("child %d\n", p.PID())
		<-p.Done()
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := Start(t, Command{
		Name: "parent", Path: self, Args: []string{"-test.run=^TestOrphan$"},
		Env: []string{orphan + "=" + t.TempDir()},
	})
	var pid int
	parent.Must(t, "the child's pid", func(context.Context) error {
		_, err := fmt.Sscanf(parent.Tail(), "child %d\n", &pid)
		return err
	})
	parent.Kill()
	err = Await(t.Context(), "the child's end", func(context.Context) error {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(text), ") Z ") {
			return fmt.Errorf("process %d is running", pid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestGet(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer s.Close()
	if err := Get(nil, s.URL, http.StatusServiceUnavailable)(t.Context()); err != nil {
		t.Error(err)
	}
	if err := Get(nil, s.URL, http.StatusOK)(t.Context()); err == nil {
		t.Error("status 503 counts as 200")
	}
}

func TestAnswers(t *testing.T) {
	s := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeRefused) }))
	if err := Answers(s.Addr())(t.Context()); err != nil {
		t.Error(err)
	}
	s.Close()
	port := Ports(t, 1)[0]
	if err := Answers(netip.AddrPortFrom(s.Addr().Addr(), port))(t.Context()); err == nil {
		t.Error("a port without a server counts as a server")
	}
}
