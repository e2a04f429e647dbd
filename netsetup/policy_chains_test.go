package netsetup

// Inside the package: the backends are not exported.

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

func TestFindPlace(t *testing.T) {
	const (
		policies = `-A INPUT -m comment --comment "kube-router netpol - X" -j KUBE-ROUTER-INPUT`
		firewall = "-A INPUT -m conntrack --ctstate INVALID -j DROP"
		calico   = `-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT`
		jump     = `-A INPUT -m comment --comment "nodens: DNS of this node" -j NODENS-INPUT`
		agents   = `-A INPUT -m comment --comment "nodens: DNS 1234" -j ACCEPT`
		cache    = `-A INPUT -m comment --comment "NodeLocal DNS Cache: allow DNS traffic" -j ACCEPT`
	)
	for _, tt := range []struct {
		name  string
		lines []string
		want  placement
	}{
		{"none", nil, placement{}},
		{"no policies", []string{jump, firewall}, placement{}},
		{"policies only", []string{policies}, placement{1, 1, false}},
		{"behind", []string{firewall, policies, jump, firewall}, placement{2, 2, false}},
		{"before", []string{jump, firewall, policies}, placement{3, 2, true}},
		{"between two", []string{policies, jump, policies}, placement{3, 2, true}},
		{"behind a verdict", []string{firewall, "-A INPUT -i vpod1 -p udp -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable", jump}, placement{}},
		{"behind a program's jump", []string{calico, jump}, placement{0, 0, true}},
		{"behind a rule that accepts", []string{"-A INPUT -i lo -j ACCEPT", jump}, placement{}},
		{"behind policies and a program's jump", []string{policies, "-A INPUT -g ufw-before-input", jump}, placement{1, 1, true}},
		{"behind other agents' rules", []string{agents, cache, jump, firewall}, placement{}},
		{"a chain of another name", []string{jump, "-A INPUT -j KUBE-ROUTER-INPUT-2", "-A INPUT -j cali-INPUT"}, placement{}},
		{"a name in a comment", []string{jump, `-A INPUT -m comment --comment "not -j KUBE-ROUTER-INPUT" -j DROP`}, placement{}},
	} {
		if got := findPlace(tt.lines, func(line string) bool { return line == jump }); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestContest: the agent yields to a program that puts its rules before the agent's again and again, says so,
// and stops saying so when its own rules come first.
func TestContest(t *testing.T) {
	var c contests
	for i := range maxOvertaken {
		if !c.overtakes("INPUT", true) {
			t.Fatalf("yields after %d times", i)
		}
	}
	if c.overtakes("INPUT", true) || !c.overtakes("OUTPUT", true) || !slices.Equal(c.blocked(), []string{"INPUT"}) {
		t.Errorf("blocked: %v, want INPUT", c.blocked())
	}
	if c.overtakes("INPUT", false) || len(c.blocked()) > 0 {
		t.Errorf("blocked: %v, want none", c.blocked())
	}
	c.overtaken["INPUT"][0] = time.Now().Add(-2 * overtakenTime)
	if !c.overtakes("INPUT", true) {
		t.Error("yields although the first time is long ago")
	}
}

// policyEngine makes the rules of a network policy engine that are there before the agent: a chain
// for policies, first in INPUT and OUTPUT, and a firewall that drops the rest.
const policyEngine = `
sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 # each refusal has to arrive
for t in iptables ip6tables; do
	for hook in INPUT OUTPUT; do
		$t -w -N KUBE-ROUTER-$hook
		$t -w -A $hook -m comment --comment "policies of pods" -j KUBE-ROUTER-$hook
	done
	$t -w -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
	$t -w -A INPUT -i lo -j ACCEPT
	$t -w -A INPUT -p icmpv6 -j ACCEPT
	$t -w -P INPUT DROP
done`

// denyDNS adds (-A) or deletes (-D) a policy that denies pods DNS.
const denyDNS = `
for proto in udp tcp; do
	iptables -w VERB KUBE-ROUTER-INPUT -s 10.9.1.0/24 -p $proto -j REJECT
	ip6tables -w VERB KUBE-ROUTER-INPUT -s fd09:1::/64 -p $proto -j REJECT
done`

// moveJumps moves the engine's jumps to the first place (-I) or the last one (-A).
const moveJumps = `
for t in iptables ip6tables; do
	for hook in INPUT OUTPUT; do
		$t -w -D $hook -m comment --comment "policies of pods" -j KUBE-ROUTER-$hook
		$t -w VERB $hook -m comment --comment "policies of pods" -j KUBE-ROUTER-$hook
	done
done`

// TestPolicyChains: rules of kube-router's that deny a pod DNS hold, whatever comes first, the agent
// or kube-router, and whatever is repaired. A firewall behind them still lets DNS through.
func TestPolicyChains(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newNftTestbed(t)
		stop := l.listen(t)
		defer stop()
		sh(t, policyEngine)
		newBackends := map[string]func() ruleBackend{
			"nftables": func() ruleBackend { return newNftBackend(make(programSet)) },
			"iptables": func() ruleBackend {
				installed, err := installedModes(t.Context(), make(programSet), labLocals)
				check.NoError(t, err)
				return installed[0]
			},
		}
		for name, newBackend := range newBackends {
			before := sh(t, "iptables -S; ip6tables -S")
			l.wantPoliciesHold(t, newBackend)
			if _, err := newBackend().remove(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			check.Equal(t, before, sh(t, "iptables -S; ip6tables -S"), "%s", name)
		}
	})
}

// wantPoliciesHold starts several agents in a row beside policies that change.
func (l *nftTestbed) wantPoliciesHold(t *testing.T, newBackend func() ruleBackend) {
	t.Helper()
	ensure := func(b ruleBackend, changes bool) {
		t.Helper()
		if n, err := b.ensure(t.Context(), testRules()); err != nil || n > 0 != changes {
			t.Errorf("ensure = %d, %v; want changes: %v", n, err, changes)
		}
	}
	b := newBackend()
	ensure(b, true)
	l.wantAnswers(t, l.pod, "local")
	ensure(b, false)
	sh(t, strings.ReplaceAll(denyDNS, "VERB", "-A"))
	l.wantDenied(t)
	b = newBackend() // the next agent on the node
	if _, err := b.ensure(t.Context(), testRules()); err != nil {
		t.Fatal(err)
	}
	l.wantDenied(t)
	sh(t, strings.ReplaceAll(moveJumps, "VERB", "-A"))
	ensure(b, true)
	l.wantDenied(t)
	sh(t, strings.ReplaceAll(moveJumps, "VERB", "-I"))
	ensure(b, false)
	sh(t, strings.ReplaceAll(denyDNS, "VERB", "-D"))
	l.wantAnswers(t, l.pod, "local")
}

// wantDenied asks from the pod at every local address, and wants no answer; and no rule of ours before
// the jumps to policies.
func (l *nftTestbed) wantDenied(t *testing.T) {
	t.Helper()
	for _, local := range labLocals {
		for _, network := range []string{"udp", "tcp"} {
			if got := askFrom(l.pod, network, netip.AddrPortFrom(local, 53)); !strings.Contains(got, "refused") {
				t.Errorf("%s to %v: %q, want a refusal", network, local, got)
			}
		}
	}
	for _, hook := range []string{"INPUT", "OUTPUT"} {
		for _, program := range []string{"iptables", "ip6tables"} {
			rules, policies := sh(t, program+" -S "+hook), "KUBE-ROUTER-"+hook
			before, _, found := strings.Cut(rules, policies)
			if !found || strings.Contains(strings.ToLower(before), "nodens") {
				t.Errorf("%s: a rule of ours before the policies:\n%s", program, rules)
			}
		}
	}
}
