// These tests use execute, errNotXtables and retryLocked, which are not exported.

package netsetup

// Inside the package: running programs is not exported.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestExecute: what programs print says what is wrong.
func TestExecute(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for says, want := range map[string]error{
		"Fatal: can't open lock file /run/xtables.lock: Permission denied":                           fs.ErrPermission,
		"iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied":     fs.ErrPermission,
		"Another app is currently holding the xtables lock. Stopped waiting after 1s.":               ErrLocked,
		"Can't lock /run/xtables.lock: Resource temporarily unavailable":                             ErrLocked,
		"iptables v1.8.9 (nf_tables): chain `X' in table `raw' is incompatible, use 'nft' tool.":     errNotXtables,
		"iptables-restore: line 3 failed":                                                            nil,
		"Extension socket revision 0 not supported, missing kernel module?":                          nil,
		"iptables-nft-restore: line 2: RULE_APPEND failed (Invalid argument): rule in chain OUTPUT":  nil,
		"line 59: RULE_DELETE failed (No such file or directory): rule in chain PREROUTING":          errRuleGone,
		"iptables-nft-restore: line 8 failed: Bad rule (does a matching rule exist in that chain?).": errRuleGone,
	} {
		script(t, dir, "says", `echo "`+strings.ReplaceAll(says, "`", "\\`")+`" >&2; exit 4`)
		_, err := execute(t.Context(), "", "says")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is not in %v", says, err)
		}
		for _, sentinel := range []error{fs.ErrPermission, ErrLocked, errNoChain, errNotXtables, errRuleGone, ErrNoTool} {
			if errors.Is(err, sentinel) != (want != nil && errors.Is(sentinel, want)) {
				t.Errorf("%q: %v counts as %v: %v", says, err, sentinel, errors.Is(err, sentinel))
			}
		}
	}
	if _, err := execute(t.Context(), "", "no-such-program"); !errors.Is(err, ErrNoTool) {
		t.Errorf("a program that is not there: %v", err)
	}
	script(t, dir, "echoes", "cat; echo $1; echo noise >&2")
	if out, err := execute(t.Context(), "input\n", "echoes", "argument"); err != nil || out != "input\nargument\n" {
		t.Errorf("%q, %v", out, err)
	}
	script(t, dir, "babbles", fmt.Sprintf("head -c %d /dev/zero", maxOutput+1))
	if _, err := execute(t.Context(), "", "babbles"); err == nil {
		t.Error("more output than the limit is no error")
	}
}

// TestExecuteEndsWithItsContext: a program that would run for ever is killed, with what
// it has started in its pipes.
func TestExecuteEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script(t, dir, "hangs", "echo > "+dir+"/runs; exec sleep 600")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := execute(ctx, "", "hangs")
		done <- err
	}()
	waitUntil(t, func() bool { _, err := os.Stat(dir + "/runs"); return err == nil })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// TestRetryLocked: a held lock is waited for, and remains the cause if the time runs out.
func TestRetryLocked(t *testing.T) {
	other := errors.New("other")
	for _, tt := range []struct {
		name  string
		errs  []error // of the calls
		after int     // calls until the context is done; 0: never
		want  error
		calls int
	}{
		{"free", []error{nil}, 0, nil, 1},
		{"held for a while", []error{ErrLocked, ErrLocked, nil}, 0, nil, 3},
		{"held", []error{ErrLocked, ErrLocked, ErrLocked, ErrLocked, ErrLocked, nil}, 0, ErrLocked, lockTries},
		{"broken", []error{other, nil}, 0, other, 1},
		{"broken after a while", []error{ErrLocked, other}, 0, other, 2},
		{"out of time", []error{ErrLocked, context.Canceled}, 2, ErrLocked, 2},
		{"out of time at once", []error{context.Canceled}, 1, context.Canceled, 1},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := retryLocked(ctx, func() error {
			if calls++; calls == tt.after {
				cancel()
			}
			return tt.errs[calls-1]
		})
		cancel()
		if !errors.Is(err, tt.want) || calls != tt.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", tt.name, err, calls, tt.want, tt.calls)
		}
		if err := retryLocked(ctx, func() error { t.Error("called with a done context"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("a done context: %v", err)
		}
	}
}
