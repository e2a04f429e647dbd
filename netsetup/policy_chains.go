package netsetup

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// policyChains are the chains in which kube-router enforces network policies for packets between
// pods and the node. INPUT and OUTPUT jump to them. An accept rule before such a jump would bypass
// the policies.
//
// Calico's chains are not among them: by default they drop all packets from pods to the node,
// unless a rule before them accepts the packets.
func policyChains() []string { return []string{"KUBE-ROUTER-INPUT", "KUBE-ROUTER-OUTPUT"} }

// placement says where our rules belong in a chain of other programs: at its head, or behind the last
// jump to policyChains.
type placement struct {
	// behind is the number of rules up to that jump, and others is behind without our own.
	behind, others int
	// wrong: a rule of ours comes before that jump, or another program's jump between it and ours.
	wrong bool
}

// findPlace returns the place of the rules for which own returns true. lines are rules in the syntax of
// `iptables -S`. A program puts a jump to its chain first, as Calico does. A rule with a verdict is a decision
// about the node: if it drops DNS, that is meant, and it stays before ours.
func findPlace(lines []string, own func(line string) bool) (p placement) {
	mine, others := 0, false
	for i, line := range lines {
		switch {
		case own(line):
			mine++
			p.wrong = p.wrong || others
		case jumpsToPolicies(line):
			p, others = placement{i + 1, i + 1 - mine, mine > 0}, false
		case !strings.Contains(line, `"`+nftComment): // or else it is another agent's
			others = others || jumpsToChain(line)
		}
	}
	return p
}

// jumpsToChain reports whether a line of `iptables -S` leads to a chain that is not built in.
func jumpsToChain(line string) bool {
	words := strings.Fields(line)
	at := slices.IndexFunc(words, func(w string) bool { return w == "-j" || w == "-g" })
	targets := []string{"ACCEPT", "DROP", "REJECT", "RETURN", "LOG", "NFLOG", "MARK", "CONNMARK"}
	return at >= 0 && at+1 < len(words) && !slices.Contains(targets, words[at+1])
}

// jumpsToPolicies reports whether a line of `iptables -S` jumps to one of policyChains.
func jumpsToPolicies(line string) bool {
	_, target, found := strings.Cut(line, " -j ")
	return found && slices.Contains(policyChains(), strings.TrimSpace(target))
}

const (
	// maxOvertaken is how often within overtakenTime the agent puts its rules back before another
	// program's. Calico's felix puts its own first as well, and looks a second after each write
	// (chainInsertMode Insert): without a bound the two would never end.
	maxOvertaken  = 3
	overtakenTime = 10 * time.Minute
)

// contests remembers in which chains other programs put their rules before ours.
type contests struct {
	overtaken map[string][]time.Time // by chain
	lost      map[string]bool
}

// overtakes reports whether the agent puts its rules in a chain first again. wrong says that they are not. It is to be asked at each
// check, so that a chain that is right again is no longer named.
func (c *contests) overtakes(chain string, wrong bool) bool {
	if c.overtaken == nil {
		c.overtaken, c.lost = make(map[string][]time.Time), make(map[string]bool)
	}
	delete(c.lost, chain)
	if !wrong {
		return false
	}
	recent := slices.DeleteFunc(c.overtaken[chain], func(t time.Time) bool { return time.Since(t) > overtakenTime })
	if len(recent) < maxOvertaken {
		c.overtaken[chain] = append(recent, time.Now())
		return true
	}
	c.overtaken[chain], c.lost[chain] = recent, true
	return false
}

// blocked returns the chains in which the last check has yielded.
func (c *contests) blocked() []string { return slices.Sorted(maps.Keys(c.lost)) }
