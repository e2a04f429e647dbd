// These tests use calls, errNoChain, list and open, which are not exported.

package netsetup

// Inside the package: the programs are not exported.

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coreos/go-iptables/iptables"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// fakeTool puts `iptables` with its iptables-restore into a new folder at the head of PATH, which it
// returns. The program prints a version, else runs body.
func fakeTool(t *testing.T, name, body string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script(t, dir, name, `if [ "$1" = --version ]; then echo "iptables v1.8.9 (nf_tables)"; exit; fi
`+body)
	script(t, dir, name+"-restore", "exit 0")
	return dir
}

func openTool(t *testing.T, name string) *iptablesProgram {
	t.Helper()
	p, err := make(programSet).open(t.Context(), IPv4, name)
	check.NoError(t, err)
	return p
}

// TestProgramErrors: what the programs print and their exit status say what is wrong. The type of the library
// stays in the chain.
func TestProgramErrors(t *testing.T) {
	sentinels := []error{fs.ErrPermission, ErrLocked, ErrNoTool, errNoChain, errNotXtables, errLockFile}
	for _, tt := range []struct {
		name, says string
		status     string
		want       []error
	}{
		{"legacy, no permission", "Fatal: can't open lock file /run/xtables.lock: Permission denied", "4", []error{fs.ErrPermission, errLockFile}},
		{"nft, no permission", "iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)", "4", []error{fs.ErrPermission}},
		{"no folder for the lock", "Fatal: can't open lock file /run/xtables.lock: No such file or directory", "4", []error{errLockFile}},
		{"read-only folder for the lock", "Fatal: can't open lock file /run/xtables.lock: Read-only file system", "4", []error{errLockFile}},
		{"locked", "Another app is currently holding the xtables lock. Stopped waiting after 1s.", "4", []error{ErrLocked}},
		{"no chain", "iptables: No chain/target/match by that name.", "1", []error{errNoChain}},
		{"no table", "iptables v1.8.9 (legacy): can't initialize iptables table `raw': Table does not exist (do you need to insmod?)", "3", []error{errNoChain}},
		{"native table", "iptables v1.8.9 (nf_tables): chain `X' in table `raw' is incompatible, use 'nft' tool.", "1", []error{errNotXtables}},
		{"anything else", "iptables v1.8.9 (nf_tables): line 3 failed", "2", nil},
	} {
		fakeTool(t, "tool", "echo \""+strings.ReplaceAll(tt.says, "`", "\\`")+"\" >&2; exit "+tt.status)
		_, err := openTool(t, "tool").list(t.Context(), "raw", "X")
		var typed *iptables.Error
		if !errors.As(err, &typed) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v is no *iptables.Error on one line with %q", tt.name, err, tt.says)
		}
		for _, s := range sentinels {
			if got := errors.Is(err, s); got != slices.Contains(tt.want, s) {
				t.Errorf("%s: is %q: %v", tt.name, s, got)
			}
		}
	}
}

// TestProgramNotInstalled: both programs of a pair are needed.
func TestProgramNotInstalled(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, name := range []string{"nothing", "tool-restore", "tool"} {
		if _, err := make(programSet).open(t.Context(), IPv4, "tool"); !errors.Is(err, ErrNoTool) {
			t.Errorf("before %s is there: %v", name, err)
		}
		script(t, dir, name, `echo "iptables v1.8.9 (nf_tables)"`)
	}
	p := openTool(t, "tool")
	check.NoError(t, os.Remove(filepath.Join(dir, "tool")))
	if _, err := p.list(t.Context(), "raw", "OUTPUT"); !errors.Is(err, ErrNoTool) {
		t.Errorf("after it was removed: %v", err)
	}
}

// TestProgramIsAskedOnce: the version is read when the program is opened first.
func TestProgramIsAskedOnce(t *testing.T) {
	fakeTool(t, "tool", "exit 1")
	set := make(programSet)
	first, err := set.open(t.Context(), IPv4, "tool")
	check.NoError(t, err)
	t.Setenv("PATH", t.TempDir())
	if second, err := set.open(t.Context(), IPv4, "tool"); second != first || err != nil {
		t.Errorf("opened again: %v, %v", second, err)
	}
}

// TestProgramRetriesLockedTable: a list waits for another program's lock.
func TestProgramRetriesLockedTable(t *testing.T) {
	fakeTool(t, "tool", `[ "$*" = "-t raw -S OUTPUT --wait 1" ] || exit 2
[ -e "$0.tried" ] && { echo "-P OUTPUT ACCEPT"; exit; }
echo > "$0.tried"; echo "Another app is currently holding the xtables lock. Stopped waiting after 1s." >&2; exit 4`)
	lines, err := openTool(t, "tool").list(t.Context(), "raw", "OUTPUT")
	if !slices.Equal(lines, []string{"-P OUTPUT ACCEPT"}) || err != nil {
		t.Errorf("%q, %v", lines, err)
	}
}

// TestCallIsAbandoned: a call returns while its program hangs, and counts until that ends.
func TestCallIsAbandoned(t *testing.T) {
	dir := fakeTool(t, "tool", `echo > "$0.runs"; until [ -e "$0.ends" ]; do sleep 0.01; done`)
	p := openTool(t, "tool")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := p.list(ctx, "raw", "OUTPUT")
		done <- err
	}()
	waitUntil(t, func() bool { _, err := os.Stat(filepath.Join(dir, "tool.runs")); return err == nil })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "tool") || len(calls) != 1 {
		t.Errorf("it ended with %v, with %d calls under way", err, len(calls))
	}
	script(t, dir, "tool.ends", "")
	waitUntil(t, func() bool { return len(calls) == 0 })
}

// TestCallsAreBounded: beside maxCalls abandoned calls there is no other.
func TestCallsAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	for len(calls) < maxCalls {
		_, _ = call(ctx, "tool", func() (int, error) { <-release; return 0, nil })
	}
	_, err := call(ctx, "tool", func() (int, error) { t.Error("one too many"); return 0, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	close(release)
	if got, err := call(t.Context(), "tool", func() (int, error) { return 1, nil }); got != 1 || err != nil {
		t.Errorf("after they have returned: %v, %v", got, err)
	}
	waitUntil(t, func() bool { return len(calls) == 0 })
}

// TestCallTakesTooLong: a call ends after execTimeout, also with a context that does not end.
func TestCallTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, err := call(context.Background(), "tool", func() (int, error) { <-release; return 0, nil })
		if !errors.Is(err, errTimeout) || !strings.Contains(err.Error(), "tool: not done after 20s") {
			t.Errorf("it ended with %v", err)
		}
		close(release)
	})
}

// TestProgramDeletesOnRealRules: rules and chains go, whatever their comments.
func TestProgramDeletesOnRealRules(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		before := dumpNode(t)
		var p ruleProgram = openTool(t, "iptables")
		if strings.Contains(run(t, "iptables", "--version"), "nf_tables") {
			p = nftProgram{openTool(t, "iptables")}
		}
		for _, comment := range []string{"plain", "NodeLocal DNS Cache: skip conntrack", `quotes " and \ it's`} {
			run(t, "iptables", "-w", "-t", "raw", "-A", "OUTPUT", "-d", "192.0.2.1", "-m", "comment", "--comment", comment, "-j", "NOTRACK")
		}
		run(t, "iptables", "-w", "-t", "raw", "-N", "NODENS-OUTPUT")
		run(t, "iptables", "-w", "-t", "raw", "-A", "NODENS-OUTPUT", "-j", "ACCEPT")
		lines, err := p.list(t.Context(), "raw", "OUTPUT")
		if err != nil || len(lines) != 4 {
			t.Fatalf("%q, %v", lines, err)
		}
		if lines, err := p.list(t.Context(), "raw", "NODENS-OUTPUT"); len(lines) != 2 || err != nil {
			t.Errorf("the chain is there: %q, %v", lines, err)
		}
		if err := p.remove(t.Context(), "raw", lines[1:], []string{"NODENS-OUTPUT"}); err != nil {
			t.Error(err)
		}
		if _, err := p.list(t.Context(), "raw", "NODENS-OUTPUT"); !errors.Is(err, errNoChain) {
			t.Errorf("listing it: %v", err)
		}
		run(t, "iptables", "-w", "-t", "raw", "-F")
		if after := strings.ReplaceAll(dumpNode(t), "# ", "# "); countRules(after) != countRules(before) {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

func countRules(dump string) int { return strings.Count(dump, "\n-A ") }
