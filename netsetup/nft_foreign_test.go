package netsetup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nftFirewalls are rule sets of others, of which some drop what comes to the node.
var nftFirewalls = []struct {
	name, script string
	accepts      int // how many rules of ours they get
}{
	{"policy drop in inet", `nft '
table inet filter {
	chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; }
}'`, 2},
	{"reject at the end", `nft '
table inet firewalld {
	chain filter_INPUT { type filter hook input priority 10; policy accept; ct state { established, related } accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; counter log prefix "x " reject with icmpx admin-prohibited; }
}'`, 2},
	{"one table for each family", `nft '
table ip fw { chain in { type filter hook input priority -5; policy drop; ct state established accept; iifname "lo" accept; }; }
table ip6 fw { chain in { type filter hook input priority -5; policy accept; ct state established accept; meta l4proto ipv6-icmp accept; iifname "lo" accept; drop; }; }'`, 2},
	{"output drops, too", `nft '
table inet fw {
	chain in { type filter hook input priority 0; policy drop; ct state established accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; }
	chain out { type filter hook output priority 0; policy drop; ct state established,new accept; meta l4proto ipv6-icmp accept; }
}'`, 4},
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
	{"nothing that drops", `nft '
table inet fw {
	chain in { type filter hook input priority 0; policy accept; ct state invalid drop; tcp dport 25 reject; }
	chain loop { type filter hook forward priority 0; policy accept; }
	chain raw { type filter hook prerouting priority -310; policy accept; }
	chain other { ct state established accept; drop; }
}
table bridge fw { chain in { type filter hook input priority 0; policy drop; }; }
table ip kube-proxy { chain in { type filter hook input priority 0; policy accept; ct state new tcp dport 30000 drop; }; }'`, 0},
}

// TestNftOthersThatDrop has DNS go through firewalls, and all of ours out of them again.
func TestNftOthersThatDrop(t *testing.T) {
	inNftLab(t, func(t *testing.T) {
		l := newNftLab(t)
		stop := l.listen(t)
		defer stop()
		for _, f := range nftFirewalls {
			t.Run(f.name, func(t *testing.T) {
				sh(t, "nft flush ruleset")
				sh(t, f.script)
				before := sh(t, "nft -s list ruleset; iptables-nft -S; ip6tables-nft -S")
				n := newNftables()
				wantChanged(t, n, labWant(), 1+nftChains(t, f.accepts))
				rules := sh(t, "nft list ruleset")
				if strings.Contains(f.script, "iptables") {
					rules = sh(t, "iptables-nft -S; ip6tables-nft -S")
				}
				if got := strings.Count(rules, nftComment); got != f.accepts {
					t.Errorf("%d accept rules, want %d:\n%s", got, f.accepts, rules)
				}
				l.wantAnswers(t, l.pod, "local")
				wantChanged(t, n, labWant(), 0)
				wantChanged(t, newNftables(), labWant(), 0) // another process
				if got, err := newNftables().remove(t.Context()); err != nil || got != 1+f.accepts {
					t.Errorf("remove = %d, %v; want %d", got, err, 1+f.accepts)
				}
				if diff := cmp.Diff(before, sh(t, "nft -s list ruleset; iptables-nft -S; ip6tables-nft -S")); diff != "" {
					t.Errorf("what remove leaves (-before +after):\n%s", diff)
				}
			})
		}
	})
}

// nftChains is how many chains so many accept rules are in, where others drop.
func nftChains(t *testing.T, accepts int) int {
	t.Helper()
	out := sh(t, "nft -j list chains")
	n := 0
	for _, hook := range []string{"input", "output"} {
		n += strings.Count(out, fmt.Sprintf(`"hook": %q`, hook))
	}
	if accepts == 0 {
		return 0
	}
	return n
}
