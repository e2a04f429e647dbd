package netsetup

import (
	"slices"
	"strings"
)

// policyChains are the chains in which kube-router enforces network policies for packets between
// pods and the node. INPUT and OUTPUT jump to them. An accept rule before such a jump would bypass
// the policies.
//
// Calico's chains are not among them: by default they drop all packets from pods to the node,
// unless a rule before them accepts the packets.
func policyChains() []string { return []string{"KUBE-ROUTER-INPUT", "KUBE-ROUTER-OUTPUT"} }

// countPolicyRules counts the rules of INPUT or OUTPUT up to the last jump to one of policyChains,
// without our own rules, which belong behind them. bypass reports whether one of ours comes before
// such a jump. lines are the output of `iptables -S`.
func countPolicyRules(lines []string, ours func(line string) bool) (n int, bypass bool) {
	rules, oursBefore := 0, false
	for _, line := range lines {
		switch {
		case !strings.HasPrefix(line, "-A "):
		case ours(line):
			oursBefore = true
		default:
			rules++
			if jumpsToPolicies(line) {
				n, bypass = rules, oursBefore
			}
		}
	}
	return n, bypass
}

// jumpsToPolicies reports whether a line of `iptables -S` jumps to one of policyChains.
func jumpsToPolicies(line string) bool {
	_, target, found := strings.Cut(line, " -j ")
	return found && slices.Contains(policyChains(), strings.TrimSpace(target))
}
