// These tests use backend, desiredRules and diagnose, which are not exported.

package netsetup

// Inside the package: the backend is not exported.

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// refuseRestore puts programs before those on the PATH that end with an error where the input
// of iptables-restore has a certain text, as a kernel would that lacks something.
func refuseRestore(t *testing.T, text, says string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		for _, name := range []string{name, strings.Replace(name, "-", "-nft-", 1), strings.Replace(name, "-", "-legacy-", 1)} {
			if real, err := exec.LookPath(name); err == nil {
				script(t, dir, name, `in=$(cat; echo .); in=${in%.}
case "$in" in *"`+text+`"*) echo "`+says+`" >&2; exit 2;; esac
printf %s "$in" | exec `+real+` "$@"`)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestKernelCannotMatchBySocket: plain rules then, a warning, once, and no more trying.
func TestKernelCannotMatchBySocket(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		before := dumpNode(t)
		refuseRestore(t, "-m socket", "Extension socket revision 0 not supported, missing kernel module?")
		var log strings.Builder
		c := dualStack()
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s := newSetup(t, c, nil)
		apply(t, s)
		applied := dumpNode(t)
		for _, want := range []string{
			"-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NOTRACK",
			"-A NODENS-PREROUTING -d fd00::a/128 -p tcp -m tcp --dport 53 -j NOTRACK",
		} {
			if !strings.Contains(applied, want) {
				t.Errorf("lacks %q:\n%s", want, applied)
			}
		}
		if strings.Contains(applied, "PROBE") {
			t.Errorf("the probe is left:\n%s", applied)
		}
		if got := s.Stats(); got.FailOpen || totalErrors(s) != 0 {
			t.Errorf("%+v", got)
		}
		run(t, "iptables", "-w", "-t", "raw", "-F", "NODENS-PREROUTING")
		s.recheck(t.Context())
		check.Equal(t, applied, dumpNode(t), "re-check")
		if n := strings.Count(log.String(), "level=WARN msg=\"rules do not fail open"); n != 1 {
			t.Errorf("%d warnings, want 1:\n%s", n, log.String())
		}
		check.NoError(t, s.Teardown(0, nil))
		check.Equal(t, before, dumpNode(t), "before and after")
	})
}

// TestKernelRefusesSomethingElse: what is not the match by socket is an error, and no
// reason to do without it.
func TestKernelRefusesSomethingElse(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		run(t, "ip", "link", "set", "lo", "up")
		refuseRestore(t, "-j DNAT", "unable to initialize table 'nat'")
		s := newSetup(t, dualStack(), nil)
		check.NoError(t, s.Divert(t.Context(), servers))
		err := s.EnsureRules(t.Context())
		wantError(t, err, Iptables, "unable to initialize", "-setupiptables=false")
		if errors.Is(err, ErrNoSocket) {
			t.Errorf("%v counts as ErrNoSocket", err)
		}
		if got := s.Stats(); got.FailOpen || !s.rules.matchSocket || got.Errors[Iptables] != 2 {
			t.Errorf("%+v", got)
		}
	})
}

// TestDiagnoseNoSocket: only a kernel that takes rules without the match, and none with it, lacks
// the match.
func TestDiagnoseNoSocket(t *testing.T) {
	broken := errors.New("line 3 failed")
	for _, tt := range []struct {
		name string
		err  error
		fail string // what input of a probe fails
		want bool
	}{
		{"no match", broken, "-m socket", true},
		{"nothing goes", broken, "*raw", false},
		{"all goes", broken, "-m nothing", false},
		{"permission", fmt.Errorf("%w: -m socket", fs.ErrPermission), "-m socket", false},
		{"lock", ErrLocked, "-m socket", false},
		{"no program", ErrNoTool, "-m socket", false},
	} {
		f := newFakeNode()
		before := f.dump()
		c, err := f.chooseBackend(t.Context(), "", nil)
		check.NoError(t, err)
		f.fail = func(call string) error {
			if strings.Contains(call, tt.fail) {
				return broken
			}
			return nil
		}
		got := c.backend.(*iptablesBackend).diagnose(t.Context(), desiredRules{matchSocket: true}, IPv4, tt.err)
		if errors.Is(got, ErrNoSocket) != tt.want || !errors.Is(got, tt.err) {
			t.Errorf("%s: %v", tt.name, got)
		}
		if diff := cmp.Diff(before, f.dump()); diff != "" {
			t.Errorf("%s: left behind:\n%s", tt.name, diff)
		}
		without := c.backend.(*iptablesBackend).diagnose(t.Context(), desiredRules{}, IPv4, tt.err)
		if errors.Is(without, ErrNoSocket) {
			t.Errorf("%s: rules without the match fail for the lack of it", tt.name)
		}
	}
}

// TestConcurrentWriter: rules that are gone as soon as they are written are
// not taken for what should stand.
func TestConcurrentWriter(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	undo := 0
	var wrote bool
	f.fail = func(call string) error {
		switch {
		case strings.HasPrefix(call, "iptables-restore"):
			wrote = true
		case wrote && strings.HasPrefix(call, "iptables ") && undo > 0:
			wrote = false
			undo--
			return f.runIptables("iptables -t raw -F NODENS-PREROUTING")
		}
		return nil
	}
	undo = 1
	apply(t, s)
	wantComplete(t, f, s, "undone once")
	check.NoError(t, f.runIptables("iptables -t raw -F NODENS-OUTPUT"))
	undo = 9
	err := s.EnsureRules(t.Context())
	if wantError(t, err, Iptables, "another program changes the rules"); !errors.Is(err, ErrConflict) {
		t.Errorf("%v is no ErrConflict", err)
	}
	if s.Stats().FailOpen {
		t.Error("rules that do not stand count as failing open")
	}
	undo = 0
	s.recheck(t.Context())
	wantComplete(t, f, s, "left alone")
}

// TestWriteRefusedByConflict: a write that fails because another program has changed the rules since they
// were listed is a conflict; one that fails without such a change is not.
func TestWriteRefusedByConflict(t *testing.T) {
	for name, tt := range map[string]struct {
		refused           error
		changes, conflict bool
	}{
		"rules changed":               {errors.New("line 3 failed"), true, true},
		"a rule was gone and is back": {errRuleGone, false, true},
		"nothing changed":             {errors.New("line 3 failed"), false, false},
	} {
		f := newFakeNode()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		check.NoError(t, f.runIptables("iptables -t raw -F NODENS-PREROUTING"))
		chains := []string{"NODENS-OUTPUT", "NODENS-INPUT"}
		f.fail = func(call string) error {
			if !strings.HasPrefix(call, "iptables-restore") {
				return nil
			}
			if tt.changes && len(chains) > 0 {
				table := map[string]string{"NODENS-OUTPUT": "raw", "NODENS-INPUT": "filter"}[chains[0]]
				if err := f.runIptables("iptables -t " + table + " -F " + chains[0]); err != nil {
					t.Error(err)
				}
				chains = chains[1:]
			}
			return tt.refused
		}
		err := s.EnsureRules(t.Context())
		if !errors.Is(err, tt.refused) || errors.Is(err, ErrConflict) != tt.conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDNATRules: each of n servers gets one in n.
func TestDNATRules(t *testing.T) {
	var lines []string
	for _, r := range dnatRules(servers) {
		lines = append(lines, r.iptables())
	}
	got := strings.Join(lines, "\n")
	const want = `-p udp -m udp -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.1.1.1:53
-p udp -m udp -m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.1.1.2:5353
-p udp -m udp -j DNAT --to-destination [fd00:1::1]:53
-p tcp -m tcp -m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.1.1.1:53
-p tcp -m tcp -m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.1.1.2:5353
-p tcp -m tcp -j DNAT --to-destination [fd00:1::1]:53`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDiversionTargets: packets are not sent where they can't arrive, nor back.
func TestDiversionTargets(t *testing.T) {
	locals := dualStack().Addresses
	to := ports("10.1.1.2:53", "10.1.1.1:53", "[::ffff:10.1.1.1]:53", "127.0.0.1:53", "[::1]:53", "0.0.0.0:53",
		"10.1.1.3:0", "169.254.20.10:53", "[fd00::a]:53", "[fe80::1%eth0]:53", "224.0.0.1:53", "[fd00:1::1]:53")
	if diff := cmp.Diff(ports("10.1.1.1:53", "10.1.1.2:53", "[fd00:1::1]:53"), diversionTargets(to, locals), comparePorts); diff != "" {
		t.Error(diff)
	}
	for i := range 50 {
		to = append(to, ports(fmt.Sprintf("10.2.0.%d:53", i))...)
	}
	if n := len(diversionTargets(to, locals)); n > maxDiversion {
		t.Errorf("%d servers", n)
	}
}

// TestIptablesFailsOpen holds the way of queries against who listens.
func TestIptablesFailsOpen(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, program := range []string{"sysctl", "conntrack"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skip(err)
			}
		}
		l := newNftTestbed(t)
		// Where conntrack finds a packet invalid it is dropped, as kube-proxy does; and
		// what comes in needs a rule that lets it.
		for _, tool := range []string{"iptables", "ip6tables"} {
			run(t, tool, "-w", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
			run(t, tool, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
			run(t, tool, "-w", "-A", "INPUT", "-p", "icmpv6", "-j", "ACCEPT")
			run(t, tool, "-w", "-P", "INPUT", "DROP")
		}
		// kube-proxy has a server of its own for the ClusterIP, and says so first.
		run(t, "iptables", "-w", "-t", "nat", "-N", "KUBE-SERVICES")
		run(t, "iptables", "-w", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "10.96.0.10", "-p", "udp", "-j", "DNAT", "--to", labDiversion[1].String())
		for _, hook := range []string{"PREROUTING", "OUTPUT"} {
			run(t, "iptables", "-w", "-t", "nat", "-I", hook, "1", "-j", "KUBE-SERVICES")
		}
		installed, err := installedModes(t.Context(), make(programSet), labLocals)
		check.NoError(t, err)
		f := installed[0]
		if _, err := f.ensure(t.Context(), testRules()); err != nil {
			t.Fatal(err)
		}
		l.wantAnswers(t, l.pod, "cluster")
		l.wantAnswers(t, netns{}, "cluster")
		for range 8 { // each other one would be wrong
			var got string
			l.pod.do(func() { got = ask("udp", netip.AddrPortFrom(labLocals[1], 53)) })
			if want := "cluster " + labDiversion[1].String(); got != want {
				t.Errorf("kube-proxy's translation gives way to ours: %q, want %q", got, want)
			}
		}
		l.wantFailOpen(t)
		if n, err := f.ensure(t.Context(), testRules()); n != 0 || err != nil {
			t.Errorf("the rules have changed meanwhile: %d, %v", n, err)
		}
	})
}
