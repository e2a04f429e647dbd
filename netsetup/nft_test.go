// These tests use desiredRules, newNftBackend and programSet, which are not exported.

package netsetup

// Inside the package: the backend is not exported.

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

var _ ruleBackend = (*nftBackend)(nil)

// testRules is what the lab's rules are to do.
func testRules() desiredRules {
	return desiredRules{addrs: labLocals, dnsPort: 53, healthPort: 8080, matchSocket: true, diversion: labDiversion}
}

// wantChanged ensures w and wants so many changes.
func wantChanged(t *testing.T, n *nftBackend, w desiredRules, changed int) {
	t.Helper()
	got, err := n.ensure(t.Context(), w)
	check.NoError(t, err)
	if got != changed {
		t.Errorf("ensure changed %d things, want %d", got, changed)
	}
}

// TestNftFailsOpen holds the way of queries against who listens.
func TestNftFailsOpen(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		// Where conntrack finds a packet invalid it is dropped, as kube-proxy does.
		sh(t, "nft 'table inet others { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }'")
		n := newNftBackend(make(programSet))
		wantChanged(t, n, testRules(), 1)
		l.wantAnswers(t, l.pod, "cluster")
		l.wantAnswers(t, netns{}, "cluster")
		l.wantFailOpen(t)
		wantChanged(t, n, testRules(), 0)
	})
}

// nftDamages are what others do to the agent's rules.
var nftDamages = []struct {
	name, script string
	changed      int
}{
	{"flush ruleset", "nft flush ruleset", 1},
	{"table deleted", "nft delete table inet nodens", 1},
	{"chain flushed", "nft flush chain inet nodens raw-prerouting", 1},
	{"chain deleted", "nft delete chain inet nodens nat-output", 1},
	{"rule deleted", "nft delete rule inet nodens raw-output handle $(nft -a list chain inet nodens raw-output | sed -n 's/.*# handle //p' | tail -1)", 1},
	{"rule replaced", "nft replace rule inet nodens raw-output handle $(nft -a list chain inet nodens raw-output | sed -n 's/.*# handle //p' | tail -1) notrack", 1},
	{"rule added", "nft insert rule inet nodens raw-prerouting return", 1},
	{"table asleep", "nft add table inet nodens { flags dormant \\; }", 1},
	{"chain of a stranger's there", "nft add chain inet nodens mine", 1},
	{"accept rules flushed", "nft flush chain inet fw in", 6},
	{"table of others made anew", `nft '
delete table inet fw
table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept; }; }'`, 6},
	{"new table that drops", `nft '
table inet fw2 { chain in { type filter hook input priority 0; policy drop; }; }'`, 6},
	{"a table drops no more", `nft '
table inet fw { chain in { type filter hook input priority 0; policy accept; }; }'`, 6},
	{"all at once", "nft delete table inet nodens; nft flush chain inet fw in", 7},
	{"a jump before ours", "nft add chain inet fw other; nft insert rule inet fw in jump other", 6},
	{"a verdict before ours", "nft insert rule inet fw in udp dport 53 drop", 0},
	{"nothing that matters", `nft '
insert rule inet fw in tcp dport 22 accept
table inet fw3 { chain in { type filter hook input priority 0; policy accept; tcp dport 25 drop; }; }'`, 0},
}

// TestNftRepairs has every damage put right, and counted.
func TestNftRepairs(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		for _, d := range nftDamages {
			t.Run(d.name, func(t *testing.T) {
				sh(t, "nft flush ruleset")
				sh(t, "nft 'table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept; }; }'")
				n := newNftBackend(make(programSet))
				wantChanged(t, n, testRules(), 7)
				own := sh(t, "nft list table inet nodens")
				sh(t, d.script)
				wantChanged(t, n, testRules(), d.changed)
				wantChanged(t, n, testRules(), 0)
				check.Equal(t, own, sh(t, "nft list table inet nodens"), "before and after")
				for table := range strings.SplitSeq(sh(t, "nft list ruleset"), "\ntable ") {
					drops := strings.Contains(table, "policy drop")
					if got := strings.Count(table, nftComment); (got == 6) != drops || !drops && got > 0 {
						t.Errorf("%d accept rules in table %s", got, table)
					}
				}
			})
		}
	})
}

// TestNftRemove leaves a rule set of others byte for byte as it was, what ever is there.
func TestNftRemove(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		sh(t, `nft '
table ip kube-proxy { chain services { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 tcp dport 443 dnat to 10.9.2.9:6443; }; }
table inet nodens-host-1 { chain output { type filter hook output priority raw; udp dport 53 notrack; }; }
table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept comment "nodens"; }; }'`)
		before := sh(t, "nft -s list ruleset")
		removed := func(want int) {
			t.Helper()
			if got, err := newNftBackend(make(programSet)).remove(t.Context(), true); err != nil || got != want {
				t.Errorf("remove = %d, %v; want %d", got, err, want)
			}
			check.Equal(t, before, sh(t, "nft -s list ruleset"), "before and after")
		}
		removed(0)
		n := newNftBackend(make(programSet))
		wantChanged(t, n, testRules(), 7)
		removed(7)
		wantChanged(t, n, testRules(), 7) // it does not trust its memory
		sh(t, "nft delete table inet nodens")
		removed(6)
		sh(t, "nft table inet nodens '{ chain other { tcp dport 1 drop; } ; }'") // another version's
		removed(1)
	})
}

// TestNftChanges goes from one want to another.
func TestNftChanges(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		n := newNftBackend(make(programSet))
		w := testRules()
		wantChanged(t, n, w, 1)
		shuffled := w
		shuffled.addrs, shuffled.diversion = slices.Clone(w.addrs), slices.Clone(w.diversion)
		slices.Reverse(shuffled.addrs)
		slices.Reverse(shuffled.diversion)
		wantChanged(t, n, shuffled, 0)
		for name, change := range map[string]func(w *desiredRules){
			"host":         func(w *desiredRules) { w.untrackHost = true },
			"no socket":    func(w *desiredRules) { w.matchSocket = false },
			"no health":    func(w *desiredRules) { w.healthPort = 0 },
			"port":         func(w *desiredRules) { w.dnsPort = 5353 },
			"no diversion": func(w *desiredRules) { w.diversion = nil },
			"one server":   func(w *desiredRules) { w.diversion = labDiversion[:1] },
			"IPv4":         func(w *desiredRules) { w.addrs = labLocals[:1] },
			"IPv6":         func(w *desiredRules) { w.addrs = labLocals[2:] },
			"both again":   func(w *desiredRules) { w.addrs = labLocals[1:] },
		} {
			w := testRules()
			change(&w)
			wantChanged(t, n, w, 1)
			wantChanged(t, n, w, 0)
			wantChanged(t, newNftBackend(make(programSet)), w, 0) // another process that wants the same
			wantChanged(t, n, testRules(), 1)
			// What describe prints is what the kernel holds.
			own := sh(t, "nft -s list table inet nodens")
			file := filepath.Join(t.TempDir(), name)
			check.NoError(t, os.WriteFile(file, []byte(n.describe(testRules())), 0o600))
			sh(t, "nft -f '"+file+"'")
			if diff := cmp.Diff(own, sh(t, "nft -s list table inet nodens")); diff != "" {
				t.Errorf("(-ensure +describe):\n%s", diff)
			}
		}
	})
}

// TestNftReplacesAtomically floods the agent while its rules are replaced all the time:
// no query may find a moment without them.
func TestNftReplacesAtomically(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		defer l.listen(t)()
		sh(t, "nft 'table inet fw { chain in { type filter hook input priority 0; policy drop; iifname lo accept; meta l4proto ipv6-icmp accept; }; }'")
		n := newNftBackend(make(programSet))
		wantChanged(t, n, testRules(), 7)
		l.wantAnswers(t, l.pod, "local")
		const least = 50 // queries of each client
		var over atomic.Bool
		var clients sync.WaitGroup
		for _, network := range []string{"udp", "tcp"} {
			for _, local := range labLocals {
				var asked int
				at := netip.AddrPortFrom(local, 53)
				clients.Go(func() {
					l.pod.do(func() {
						for ; asked < least || !over.Load(); asked++ {
							if got := askOnce(network, at); got != "local" {
								t.Errorf("%s to %v, query %d: %q", network, at, asked, got)
								return
							}
						}
					})
				})
			}
		}
		for i := range soak.Choose(16, 200) {
			w := testRules()
			w.diversion = labDiversion[:i%len(labDiversion)]
			var err error
			if i%8 == 0 { // looks take longer than changes
				_, err = n.ensure(t.Context(), w)
			} else {
				err = commit(ownTableChanges(w))
			}
			if err != nil {
				t.Error(err)
			}
		}
		over.Store(true)
		clients.Wait()
		if got := tracked(t); len(got) > 0 {
			t.Errorf("%d were tracked, such as %s", len(got), got[0])
		}
	})
}

// TestNftForeignOwner has a firewall that owns its table.
func TestNftForeignOwner(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		firewall := exec.Command("nft", "-i")
		script, err := firewall.StdinPipe()
		check.NoError(t, err)
		check.NoError(t, firewall.Start())
		_, _ = io.WriteString(script, "add table inet fw { flags owner ; }\n"+
			"add chain inet fw in { type filter hook input priority 0 ; policy drop ; }\n")
		waitUntil(t, func() bool { return strings.Contains(sh(t, "nft list chains"), "policy drop") })
		n := newNftBackend(make(programSet))
		wantChanged(t, n, testRules(), 1)
		if got := n.blocked(); !slices.Equal(got, []string{"inet fw in"}) {
			t.Errorf("blocked: %q", got)
		}
		script.Close()
		if err := firewall.Wait(); err != nil {
			t.Error(err)
		}
		waitUntil(t, func() bool { return !strings.Contains(sh(t, "nft list tables"), "fw") })
		wantChanged(t, n, testRules(), 0)
		if got := n.blocked(); got != nil {
			t.Errorf("blocked: %q", got)
		}
	})
}

// TestNftFindsKubeProxy looks for the tables of kube-proxy.
func TestNftFindsKubeProxy(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		for _, tt := range []struct {
			script string
			want   bool
		}{
			{"true", false},
			{"nft 'table inet kube-proxy { chain c { type filter hook input priority 0; }; }'", false},
			{"iptables-nft -t nat -N KUBE-SERVICES", false},
			{"nft 'table ip6 kube-proxy { chain c { type filter hook input priority 0; }; }'", true},
			{"nft 'table ip kube-proxy { chain c { type filter hook input priority 0; }; }'", true},
		} {
			sh(t, "nft flush ruleset")
			sh(t, tt.script)
			c, err := chooseBackend(t.Context(), NetfilterAuto, nil)
			check.NoError(t, err)
			if got := c.backend.name() == "nftables"; got != tt.want || got != strings.Contains(c.reason, "kube-proxy has table") {
				t.Errorf("%s: %s because %s", tt.script, c.backend.name(), c.reason)
			}
		}
	})
}

// TestExplainSocketMatch: a kernel without the match is told from one whose objects another program has deleted.
func TestExplainSocketMatch(t *testing.T) {
	gone := fmt.Errorf("changing nf_tables: %w", errRuleGone)
	for match, want := range map[probeResult]string{
		supported:   gone.Error(),
		unknown:     gone.Error(),
		unsupported: "the kernel cannot match packets by socket: nf_tables has no socket expression",
	} {
		err := explainSocketMatch(match, gone)
		if err.Error() != want || errors.Is(err, ErrNoSocket) != (match == unsupported) {
			t.Errorf("%d: %v, want %s", match, err, want)
		}
	}
}
