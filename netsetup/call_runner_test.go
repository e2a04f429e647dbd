// These tests use boundedCall, maxCalls and calls, which are not exported.

package netsetup

// Inside the package: the runner is not exported.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

// fakeTool puts a program into a new folder at the head of PATH: `iptables` in the words of
// go-iptables, with its iptables-restore. It prints a version, else runs body. The folder is
// returned.
func fakeTool(t *testing.T, name, body string) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script(t, dir, name, `if [ "$1" = --version ]; then echo "iptables v1.8.9 (nf_tables)"; exit; fi
`+body)
	script(t, dir, name+"-restore", "exit 0")
	return dir
}

func openTool(t *testing.T, name string) *iptablesProgram {
	t.Helper()
	p, err := newProgramSet().open(t.Context(), IPv4, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// canKill skips a test where the kernel does not name the children of a thread.
func canKill(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())); err != nil {
		t.Skip(err)
	}
}

// isGone reports whether the process whose id a file contains has ended.
func isGone(t *testing.T, file string) bool {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat("/proc/" + strings.TrimSpace(string(pid)))
	return errors.Is(err, os.ErrNotExist)
}

// TestCallEndsWithItsContext: a program that would run forever is killed.
func TestCallEndsWithItsContext(t *testing.T) {
	canKill(t)
	dir := fakeTool(t, "tool", `echo $$ > "${0%/*}/starting"; mv "${0%/*}/starting" "${0%/*}/pid"; exec sleep 600`)
	p := openTool(t, "tool")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := p.list(ctx, "raw", "OUTPUT")
		done <- err
	}()
	pid := filepath.Join(dir, "pid")
	waitUntil(t, func() bool { _, err := os.Stat(pid); return err == nil })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "tool") {
		t.Errorf("it ended with %v", err)
	}
	waitUntil(t, func() bool { return isGone(t, pid) && len(p.calls.slots) == 0 })
}

// TestCallOutputIsBounded: a program that does not stop printing is killed, and leaves no child
// behind.
func TestCallOutputIsBounded(t *testing.T) {
	canKill(t)
	dir := fakeTool(t, "tool", `echo $$ > "${0%/*}/pid"; echo "-P OUTPUT ACCEPT"; while :; do echo "-A OUTPUT -j ACCEPT"; done`)
	p := openTool(t, "tool")
	p.calls.maxOutput = 1000
	_, err := p.list(t.Context(), "raw", "OUTPUT")
	if err == nil || !strings.Contains(err.Error(), "more than 1000 bytes") {
		t.Errorf("it ended with %v", err)
	}
	waitUntil(t, func() bool { return isGone(t, filepath.Join(dir, "pid")) && len(p.calls.slots) == 0 })
}

// TestCallsAreBounded: calls that never return hold a slot each, and when all are taken the next
// call is refused after execTimeout. When they return, calls are possible again.
func TestCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCallRunner()
		release := make(chan struct{})
		stuck := func() (int, error) { <-release; return 1, nil }
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, maxCalls)
		for range maxCalls {
			go func() {
				_, err := boundedCall(ctx, r, "tool", stuck)
				results <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range maxCalls {
			if err := <-results; !errors.Is(err, context.Canceled) {
				t.Errorf("an abandoned call returned %v", err)
			}
		}
		_, err := boundedCall(t.Context(), r, "tool", stuck)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "earlier calls") {
			t.Errorf("a call beside %d abandoned ones: %v", maxCalls, err)
		}
		close(release)
		if got, err := boundedCall(t.Context(), r, "tool", stuck); got != 1 || err != nil {
			t.Errorf("after they have returned: %v, %v", got, err)
		}
	})
}

// TestCallTakesTooLong: a call ends after execTimeout, also with a context that does not end.
func TestCallTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, err := boundedCall(context.Background(), newCallRunner(), "tool", func() (int, error) { <-release; return 0, nil })
		if err == nil || !strings.Contains(err.Error(), "tool is not done after 20s") {
			t.Errorf("it ended with %v", err)
		}
		close(release)
	})
}

// TestKillChildrenOfOthers: only children of the thread are killed.
func TestKillChildrenOfOthers(t *testing.T) {
	canKill(t)
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Process.Kill(); err != nil {
			t.Errorf("the other process has ended: %v", err)
		}
		_ = other.Wait()
	}()
	_, err := boundedCall(t.Context(), newCallRunner(), "sleep", func() (int, error) {
		on := newCallThread()
		mine := exec.Command("sleep", "600")
		if err := mine.Start(); err != nil {
			return 0, err
		}
		if got := on.children(); len(got) != 1 || got[0] != mine.Process.Pid {
			t.Errorf("children are %v, want %d", got, mine.Process.Pid)
		}
		on.killChildren()
		return 0, mine.Wait()
	})
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.String() != "signal: killed" {
		t.Errorf("the child ended with %v", err)
	}
}
