//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// pipedAgent is an agent whose log goes into a small pipe.
type pipedAgent struct {
	cmd    *exec.Cmd
	log    *os.File // the end to read from
	exited chan error
}

// startPiped starts an agent on a Corefile and reads its log until it serves.
func startPiped(t *testing.T, corefile string, args ...string) *pipedAgent {
	t.Helper()
	r, w, err := os.Pipe()
	check.NoError(t, err)
	defer w.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		t.Fatal(err)
	}
	conf := agenttest.WriteCorefile(t, corefile)
	a := &pipedAgent{log: r, exited: make(chan error, 1)}
	a.cmd = exec.Command(os.Args[0], append([]string{"-conf", conf, "-metrics-listen-address="}, args...)...)
	a.cmd.Env = append(os.Environ(), asProcess+"=agent")
	a.cmd.Stderr = w
	check.NoError(t, a.cmd.Start())
	go func() { a.exited <- a.cmd.Wait() }()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		_ = r.Close()
	})
	var text bytes.Buffer
	for b := make([]byte, 4096); !strings.Contains(text.String(), "serving"); {
		n, err := r.Read(b)
		if text.Write(b[:n]); err != nil {
			t.Fatalf("%v; log:\n%s", err, text.String())
		}
	}
	return a
}

// stop ends a with SIGTERM.
func (a *pipedAgent) stop(t *testing.T) {
	t.Helper()
	check.NoError(t, a.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-a.exited:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(agenttest.Timeout):
		t.Fatal("the agent does not end")
	}
}

// TestLogIsNotRead: while nobody reads the log, or its reader has gone, every query is answered, status says so, and the
// agent ends when it is told to.
func TestLogIsNotRead(t *testing.T) {
	for _, format := range []string{"text", "json", "coredns"} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reader gone %v", format, gone), func(t *testing.T) {
				p := peer.Ports(t, 1)
				socket := filepath.Join(t.TempDir(), "s")
				a := startPiped(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n errors\n log\n hosts {\n 192.0.2.1 a.test\n }\n}\n", p[0]),
					"-log-format", format, "-admin-socket", socket)
				if gone {
					_ = a.log.Close()
				}
				for range 300 {
					agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
				}
				var s report.Status
				for start := time.Now(); !slices.ContainsFunc(s.Problems, func(p report.Problem) bool { return p.Code == "log-unread" }); {
					check.NoError(t, report.Ask(t.Context(), socket, "GET", "/status", nil, &s))
					if time.Since(start) > agenttest.Timeout {
						t.Fatalf("no problem: %v", s.Problems)
					}
				}
				a.stop(t)
			})
		}
	}
}

// TestHangup: SIGHUP reloads, as SIGUSR1 does.
func TestHangup(t *testing.T) {
	p := peer.Ports(t, 1)
	corefile := func(addr string) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n %s a.test\n }\n}\n", p[0], addr)
	}
	a := startAgentProcess(t, corefile("192.0.2.1"))
	agenttest.WriteFile(t, a.Conf, corefile("192.0.2.2"))
	a.signal(syscall.SIGHUP)
	a.AwaitLog("the new configuration is in force")
	agenttest.Expect(t, p[0], "a.test.", "192.0.2.2")
}
