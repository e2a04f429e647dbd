// These tests use newNftBackend, programSet and ensure, which are not exported.

package netsetup

// Inside the package: the backend is not exported.

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// nftFirewalls are rule sets of others, of which some drop what comes to the node.
var nftFirewalls = []struct {
	name, script string
	accepts      int // how many rules of ours their chains get
}{
	{"policy drop in inet", `nft '
table inet filter {
	chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; }
}'`, 6},
	{"reject at the end", `nft '
table inet firewalld {
	chain filter_INPUT { type filter hook input priority 10; policy accept; ct state { established, related } accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; counter log prefix "x " reject with icmpx admin-prohibited; }
}'`, 6},
	{"one table for each family", `nft '
table ip fw { chain in { type filter hook input priority -5; policy drop; ct state established accept; iifname "lo" accept; }; }
table ip6 fw { chain in { type filter hook input priority -5; policy accept; ct state established accept; meta l4proto ipv6-icmp accept; iifname "lo" accept; drop; }; }'`, 6},
	{"output drops, too", `nft '
table inet fw {
	chain in { type filter hook input priority 0; policy drop; ct state established accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; }
	chain out { type filter hook output priority 0; policy drop; ct state established,new accept; meta l4proto ipv6-icmp accept; }
}'`, 12},
	{"iptables", `
for t in iptables-nft ip6tables-nft; do
	$t -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; $t -A INPUT -i lo -j ACCEPT; $t -P INPUT DROP
	$t -A FORWARD -m conntrack --ctstate INVALID -j DROP
done
ip6tables-nft -A INPUT -p ipv6-icmp -j ACCEPT`, 6},
	{"iptables with chains of a CNI", `
for t in iptables-nft ip6tables-nft; do
	$t -N cali-INPUT; $t -A INPUT -j cali-INPUT
	$t -A OUTPUT -p tcp --dport 25 -j REJECT
done
iptables-nft -A cali-INPUT -i veth1 -j DROP
ip6tables-nft -A cali-INPUT -i veth1 ! -p ipv6-icmp -j DROP`, 12},
	{"pods may not reach the host", `nft '
table inet host {
	chain in { type filter hook input priority 0; policy accept; iifname "veth1" meta nfproto ipv4 drop; ip6 saddr fd09:1::/64 counter drop; tcp dport 25 accept; }
}'`, 6},
	{"only some interfaces may", `nft '
table inet host { chain in { type filter hook input priority 0; policy accept; meta l4proto ipv6-icmp accept; iifname != { "lo", "veth2" } drop; }; }'`, 6},
	{"a chain that drops", `nft '
table inet host {
	chain rest { ct state established accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; drop; }
	chain in { type filter hook input priority 10; policy accept; iifname "eth9" accept; goto rest; }
	chain pods { meta l4proto ipv6-icmp accept; drop; }
	chain by_name { type filter hook input priority 20; policy accept; iifname vmap { "veth1" : jump pods }; }
}'`, 12},
	{"other hooks", `nft '
table inet host {
	chain first { type filter hook ingress device veth1 priority 0; policy drop; ether type arp accept; meta l4proto ipv6-icmp accept; }
	chain last { type route hook output priority -150; policy drop; meta l4proto ipv6-icmp accept; }
}'`, 12},
	{"a limit", `nft '
table inet host {
	quota q { over 10 bytes }
	chain in { type filter hook input priority 0; policy accept; meta l4proto ipv6-icmp accept; limit rate over 1/minute burst 1 packets drop; }
	chain out { type filter hook output priority 0; policy accept; meta l4proto ipv6-icmp accept; quota name "q" drop; }
}'`, 12},
	{"conditions that are not about DNS", `nft '
table inet fw {
	set banned { type ipv4_addr; flags dynamic,timeout; timeout 1m; elements = { 192.0.2.66 }; }
	chain in { type filter hook input priority -1; policy accept; ip saddr @banned drop; iifname "veth1" tcp dport 22 reject; udp dport 5353 jump count; ct state new ip protocol icmp drop; fib saddr . iif oif missing drop; ip daddr 169.254.169.254 drop; }
	chain spoofed { type filter hook prerouting priority -310; policy accept; iifname "veth1" ip saddr != 10.9.1.0/24 drop; iifname "veth1" ip6 saddr != fd09:1::2-fd09:1::3 drop; }
	chain pairs { type filter hook prerouting priority -310; policy accept; ip saddr . iifname != { 10.9.1.2 . "veth1", 10.9.2.2 . "veth2", 10.9.2.3 . "veth2" } udp dport 53 drop; ip saddr . iifname { 192.0.2.66 . "veth1" } drop; }
	counter c { }
	quota q { over 10 mbytes }
	chain count { counter name "c"; quota name "q" drop; }
}'`, 0},
	{"nothing that drops", `nft '
table inet fw {
	chain in { type filter hook input priority 0; policy accept; ct state invalid drop; tcp dport 25 reject; }
	chain loop { type filter hook forward priority 0; policy accept; }
	chain raw { type filter hook prerouting priority -310; policy accept; }
	chain other { ct state established accept; drop; }
}
table bridge fw { chain in { type filter hook input priority 0; policy drop; }; }
table ip kube-proxy { chain in { type filter hook input priority 0; policy accept; ct state new tcp dport 30000 drop; }; }'`, 0},
	{"named with a word of nft's", `echo '{"nftables": [
	{"add": {"table": {"family": "inet", "name": "drop"}}},
	{"add": {"chain": {"family": "inet", "table": "drop", "name": "in",
		"type": "filter", "hook": "input", "prio": 0, "policy": "accept"}}}]}' | nft -j -f -`, 0},
	{"named like iptables", `nft '
table ip filter {
	set allowed { type ipv4_addr; }
	chain INPUT { type filter hook input priority filter; policy drop; ip saddr @allowed accept; ct state established accept; iifname "lo" accept; }
}'`, 4},
	{"legacy iptables", `
for t in iptables-legacy ip6tables-legacy; do
	$t -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; $t -A INPUT -i lo -j ACCEPT
	test $t = iptables-legacy || $t -A INPUT -p ipv6-icmp -j ACCEPT
	$t -A INPUT -j REJECT
done`, 6},
}

// TestNftForeignChainsThatDrop has DNS go through firewalls, and all of ours out of them again.
func TestNftForeignChainsThatDrop(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		stop := l.listen(t)
		defer stop()
		for _, f := range nftFirewalls {
			t.Run(f.name, func(t *testing.T) {
				sh(t, "nft flush ruleset")
				sh(t, f.script)
				all := "nft -s list ruleset; iptables-nft -S || true; ip6tables-nft -S"
				if strings.Contains(f.script, "legacy") { // asking makes tables
					all += "; iptables-legacy -S; ip6tables-legacy -S"
				}
				before := sh(t, all)
				n := newNftBackend(make(programSet))
				wantChanged(t, n, testRules(), 1+f.accepts)
				rules := sh(t, all)
				if strings.Contains(f.script, "iptables") { // both list those of iptables
					_, rules, _ = strings.Cut(rules, "-P ")
				}
				if got := strings.Count(rules, nftComment); got != f.accepts {
					t.Errorf("%d accept rules, want %d:\n%s", got, f.accepts, rules)
				}
				l.wantAnswers(t, l.pod, "local")
				wantChanged(t, n, testRules(), 0)
				wantChanged(t, newNftBackend(make(programSet)), testRules(), 0) // another process
				if got, err := newNftBackend(make(programSet)).remove(t.Context(), true); err != nil || got != 1+f.accepts {
					t.Errorf("remove = %d, %v; want %d", got, err, 1+f.accepts)
				}
				check.Equal(t, before, sh(t, all), "what remove leaves")
			})
		}
	})
}

// TestNftReadableByIptables has no iptables of its own, but others on the node have one,
// which has to read its table afterwards.
func TestNftReadableByIptables(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		sh(t, "iptables-nft -P INPUT DROP; iptables-nft -A OUTPUT -j REJECT; ip6tables-nft -P INPUT DROP")
		before := sh(t, "iptables-nft -S; ip6tables-nft -S")
		path, nft := os.Getenv("PATH"), strings.TrimSpace(sh(t, "command -v nft"))
		only := t.TempDir()
		check.NoError(t, os.Symlink(nft, filepath.Join(only, "nft")))
		t.Setenv("PATH", only)
		n := newNftBackend(make(programSet))
		wantChanged(t, n, testRules(), 11)
		wantChanged(t, n, testRules(), 0)
		t.Setenv("PATH", path)
		after := sh(t, "iptables-nft -S; ip6tables-nft -S")
		for _, rule := range []string{
			"-A INPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53",
			"-A INPUT -d 10.96.0.10/32 -p udp -m udp --dport 53",
			"-A OUTPUT -s 10.96.0.10/32 -p udp -m udp --sport 53",
			"-A INPUT -d fd00:96::10/128 -p tcp -m tcp --dport 53",
		} {
			if !strings.Contains(after, rule) {
				t.Errorf("iptables does not see %s:\n%s", rule, after)
			}
		}
		// With iptables at hand the rules are found, too.
		if _, err := newNftBackend(make(programSet)).remove(t.Context(), true); err != nil {
			t.Error(err)
		}
		check.Equal(t, before, sh(t, "iptables-nft -S; ip6tables-nft -S"), "before and after")
	})
}

// TestNftLeavesServicesToKubeProxy has kube-proxy know another server than the diversion:
// it is asked for what is a Service, also by the node's own processes.
func TestNftLeavesServicesToKubeProxy(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		sh(t, `nft '
table ip kube-proxy {
	chain services { ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 53 dnat to 10.9.2.3:5353; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
}'`)
		w := testRules()
		w.diversion = []netip.AddrPort{netip.MustParseAddrPort("10.9.2.2:53")}
		wantChanged(t, newNftBackend(make(programSet)), w, 1)
		for _, from := range []netns{l.pod, {}} {
			for to, want := range map[string]string{
				"10.96.0.10:53":    "cluster 10.9.2.3:5353",
				"169.254.20.10:53": "cluster 10.9.2.2:53",
			} {
				for _, network := range []string{"udp", "tcp"} {
					if got := askFrom(from, network, netip.MustParseAddrPort(to)); got != want {
						t.Errorf("%s to %s: %q, want %q", network, to, got, want)
					}
				}
			}
		}
		defer l.listen(t)()
		l.wantAnswers(t, l.pod, "local")
	})
}

// TestNftDuringFirewallReload has a firewall made anew all the time. A change that is lost to it
// is no sign of a kernel that lacks something, and all is well in the end.
func TestNftDuringFirewallReload(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		const reload = `nft '
table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept; }; }
delete table inet fw
table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept; }; }'`
		sh(t, reload)
		over := make(chan struct{})
		go func() {
			defer close(over)
			for range soak.Choose(30, 100) {
				if out, err := exec.Command("sh", "-c", reload).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			}
		}()
		n := newNftBackend(make(programSet))
		for busy := true; busy; {
			select {
			case <-over:
				busy = false
			default:
			}
			if _, err := n.ensure(t.Context(), testRules()); errors.Is(err, ErrNoSocket) || errors.Is(err, fs.ErrPermission) {
				t.Error(err)
			}
		}
		if _, err := n.ensure(t.Context(), testRules()); err != nil {
			t.Error(err)
		}
		if got := strings.Count(sh(t, "nft list table inet fw"), nftComment); got != 6 {
			t.Errorf("%d accept rules, want 6", got)
		}
		wantChanged(t, n, testRules(), 0)
	})
}

// TestIptablesBesideOthers: the iptables backend admits DNS in the chains of the other mode of iptables, which
// only that shows, and puts its jump before a rule that another program inserts, as Calico does. If that
// goes on, the agent yields and names the chain.
func TestIptablesBesideOthers(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		defer l.listen(t)()
		sh(t, nftFirewalls[len(nftFirewalls)-1].script) // legacy
		c, err := chooseBackend(t.Context(), NetfilterIptables, labLocals)
		if err != nil || c.backend.name() != "iptables (nft)" {
			t.Fatalf("%v, %v", c, err)
		}
		ensure := func(changes bool) {
			t.Helper()
			if n, err := c.backend.ensure(t.Context(), testRules()); err != nil || n > 0 != changes {
				t.Errorf("ensure = %d, %v; want changes: %v", n, err, changes)
			}
		}
		ensure(true)
		l.wantAnswers(t, l.pod, "local")
		sh(t, "iptables-nft -N fw-in; iptables-nft -A fw-in -i veth1 -p udp -j DROP")
		for range maxOvertaken {
			sh(t, "iptables-nft -I INPUT -j fw-in")
			ensure(true)
			l.wantAnswers(t, l.pod, "local")
		}
		sh(t, "iptables-nft -I INPUT -j fw-in")
		ensure(false)
		if got := c.backend.blocked(); len(got) != 1 || got[0] != "iptables-nft filter INPUT" {
			t.Errorf("blocked: %q, want INPUT", got)
		}
		sh(t, "iptables-nft -D INPUT -j fw-in") // the first one
		ensure(false)
		if got := c.backend.blocked(); len(got) != 0 {
			t.Errorf("blocked: %q, want none when our jump is first", got)
		}
		if _, err := c.backend.remove(t.Context(), true); err != nil {
			t.Error(err)
		}
		if left := sh(t, "iptables-legacy-save; ip6tables-legacy-save; nft list ruleset"); strings.Contains(strings.ToLower(left), "nodens") {
			t.Errorf("left: %s", left)
		}
	})
}
