package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// foreignChain is a base chain of another program that DNS packets of this node pass, and that drops
// packets or has accept rules of ours: one of nf_tables, or INPUT or OUTPUT of table filter in iptables'
// mode legacy, which only iptables can see.
type foreignChain struct {
	nftChain
	// legacy manages the chain in mode legacy; nil: nf_tables has it.
	legacy *iptablesProgram
	drops  bool
	ours   []nftRule
	place  placement
	// behind is the handle of the rule at place; 0: none, or mode legacy.
	behind uint64
}

// String returns the chain in nft's syntax, or the program with the chain.
func (c foreignChain) String() string {
	if c.legacy != nil {
		return c.legacy.name + " " + c.table + " " + c.name
	}
	return c.nftChain.String()
}

// filtersDNS reports whether the chain filters DNS packets of this node.
func (c nftChain) filtersDNS() bool {
	return c.kind != "nat" && !c.dormant && slices.Contains([]string{"ingress", "prerouting", "input", "output"}, c.hook)
}

// ofIptables reports whether the chain is of a form that iptables makes: most rules of such a chain
// lead to others, in which packets may be dropped.
func (c nftChain) ofIptables() bool {
	return c.family != "inet" && c.table == "filter" && c.name == strings.ToUpper(c.hook)
}

// ours reports whether the line of a rule is an accept rule of an agent. A jump to a chain of an agent
// with another backend is not.
func ours(line string) bool {
	return strings.Contains(line, `"`+nftComment) && !strings.Contains(line, `"`+jumpText)
}

// read reads the chain's rules. A chain drops packets by its policy or by a rule, or leads to a chain that may do
// so by its last rule; of a chain of iptables it is taken for granted, if there are rules.
func (c *foreignChain) read(ctx context.Context) error {
	rules, err := c.list(ctx)
	if err != nil {
		return err
	}
	c.drops = c.policyDrop
	leads := false
	var lines []string
	for _, r := range rules {
		lines = append(lines, r.line)
		if ours(r.line) {
			c.ours = append(c.ours, r)
		} else if !strings.Contains(r.line, `"`+jumpText) {
			c.drops, leads = c.drops || r.drops || c.ofIptables(), r.leads
		}
	}
	c.drops = c.drops || leads && c.name != strings.ToUpper(c.hook)
	if c.place = findPlace(lines, ours); c.place.behind > 0 {
		c.behind = rules[c.place.behind-1].handle
	}
	return nil
}

// list returns the rules of the chain. In mode legacy they have no handles, and it reads the policy, too. Without the capability NET_RAW,
// which mode legacy needs, it returns errNoChain, and what the chain drops stays dropped: [Setup.removeOthers] logs that.
func (c *foreignChain) list(ctx context.Context) (rules []nftRule, err error) {
	if c.legacy == nil {
		return listRules(c.family, c.table, c.name)
	}
	lines, err := c.legacy.list(ctx, c.table, c.name)
	if errors.Is(err, fs.ErrPermission) {
		return nil, errNoChain
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, nftRule{line: line})
		} else if strings.HasPrefix(line, "-P ") {
			c.policyDrop = !strings.HasSuffix(line, " ACCEPT")
		}
	}
	return rules, err
}

// wants returns the rules that the chain needs.
func (c foreignChain) wants(desired desiredRules) []packetRule {
	if !c.drops {
		return nil
	}
	return acceptRules(c.family, c.hook, desired)
}

// complete reports whether the chain has the desired rules at the right place, or can't be changed.
func (c foreignChain) complete(desired desiredRules) bool {
	comment := fmt.Sprintf("%q", nftComment+" "+desired.mark())
	return c.owned || !c.place.wrong && len(c.ours) == len(c.wants(desired)) &&
		!slices.ContainsFunc(c.ours, func(r nftRule) bool { return !strings.Contains(r.line, comment) })
}

// changes returns the changes that replace our rules in a chain of nf_tables.
func (c foreignChain) changes(desired desiredRules) (changes []nftChange) {
	for _, r := range c.ours {
		changes = append(changes, nftChange{deleteRule: r.handle, in: c.nftChain})
	}
	for _, r := range c.wants(desired) {
		changes = append(changes, nftChange{addRule: &r, in: c.nftChain, behind: c.behind})
	}
	return changes
}

// script returns the commands that replace our rules in a chain of mode legacy.
func (c foreignChain) script(desired desiredRules) (script string) {
	for _, r := range c.ours {
		script += "-D" + strings.TrimPrefix(r.line, "-A") + "\n"
	}
	for _, r := range c.wants(desired) {
		script += fmt.Sprintf("-I %s %d %s\n", c.name, c.place.others+1, r.iptables())
	}
	return script
}

// admission keeps accept rules in the chains of other programs, because an accept in one table does not
// override a drop in another.
type admission struct {
	// programs are those of iptables' mode legacy.
	programs programSet
	// exempt reports whether the backend has rules of another kind in a chain. Nil: in none.
	exempt func(foreignChain) bool
	// chains are what the last check has found.
	chains   []foreignChain
	contests contests
}

// ensure adds and removes accept rules. changed is the number of rules in chains that had other ones.
func (a *admission) ensure(ctx context.Context, desired desiredRules) (changed int, err error) {
	for range maxNftTries {
		if changed, err = a.ensureOnce(ctx, desired); err == nil || ctx.Err() != nil {
			break
		}
	}
	return changed, err
}

func (a *admission) ensureOnce(ctx context.Context, desired desiredRules) (changed int, err error) {
	if err := a.read(ctx); err != nil {
		return 0, err
	}
	incomplete := slices.DeleteFunc(slices.Clone(a.chains), func(c foreignChain) bool { return c.complete(desired) })
	if len(incomplete) == 0 {
		return 0, nil
	}
	if err := write(ctx, incomplete, desired); err != nil {
		return 0, err
	}
	if err := a.read(ctx); err != nil {
		return 0, err
	}
	if slices.ContainsFunc(a.chains, func(c foreignChain) bool { return !c.complete(desired) }) {
		return 0, fmt.Errorf("chains of other programs: %w", ErrConflict)
	}
	for _, c := range incomplete {
		changed += max(len(c.ours), len(c.wants(desired)))
	}
	return changed, nil
}

// write replaces our rules in the chains: in one transaction in nf_tables, and in one for each program.
func write(ctx context.Context, list []foreignChain, desired desiredRules) error {
	var changes []nftChange
	scripts := make(map[*iptablesProgram]string)
	for _, c := range list {
		if c.legacy != nil {
			scripts[c.legacy] += c.script(desired)
		} else {
			changes = append(changes, c.changes(desired)...)
		}
	}
	for program, script := range scripts {
		if err := program.restore(ctx, "*filter\n"+script+"COMMIT\n"); err != nil {
			return err
		}
	}
	return commit(changes)
}

// read reads the chains that drop packets or have rules of ours.
func (a *admission) read(ctx context.Context) error {
	list, err := a.candidates(ctx)
	if err != nil {
		return err
	}
	a.chains = nil
	for _, c := range list {
		if err := c.read(ctx); err != nil && !errors.Is(err, errNoChain) { // deleted since it was listed
			return err
		}
		c.drops = c.drops && (a.exempt == nil || !a.exempt(c))
		c.place.wrong = a.contests.overtakes(c.String(), c.place.wrong)
		if c.drops || len(c.ours) > 0 {
			a.chains = append(a.chains, c)
		}
	}
	return nil
}

// candidates returns the foreign chains that DNS packets pass.
func (a *admission) candidates(ctx context.Context) ([]foreignChain, error) {
	all, err := listChains()
	if err != nil {
		return nil, err
	}
	list, err := a.legacyChains(ctx)
	for _, c := range all {
		if c.foreign() && c.filtersDNS() {
			list = append(list, foreignChain{nftChain: c})
		}
	}
	return list, err
}

// legacyChains returns the chains of mode legacy: none where table filter has never been used, as listing
// the table would create it, and none without the program.
func (a *admission) legacyChains(ctx context.Context) (list []foreignChain, err error) {
	for _, f := range families() {
		if !legacyTableLoaded(f, "filter") {
			continue
		}
		program, err := a.programs.open(ctx, f, f.String()+"-legacy")
		if errors.Is(err, ErrNoTool) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, hook := range []string{"input", "output"} {
			c := nftChain{family: f.keyword(), table: "filter", name: strings.ToUpper(hook), hook: hook}
			list = append(list, foreignChain{nftChain: c, legacy: program})
		}
	}
	return list, nil
}

func (a *admission) blocked() (names []string) {
	for _, c := range a.chains {
		if c.owned && c.drops {
			names = append(names, c.String())
		}
	}
	return append(names, a.contests.blocked()...)
}

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
	builtIn := []string{"", "ACCEPT", "DROP", "REJECT", "RETURN", "LOG", "NFLOG", "MARK", "CONNMARK"}
	mine, others := 0, false
	for i, line := range lines {
		switch {
		case own(line):
			mine++
			p.wrong = p.wrong || others
		case slices.Contains(policyChains(), jumpTarget(line)):
			p, others = placement{i + 1, i + 1 - mine, mine > 0}, false
		case !strings.Contains(line, `"`+nftComment): // or else it is another agent's
			others = others || !slices.Contains(builtIn, jumpTarget(line))
		}
	}
	return p
}

// jumpTarget returns where a line of `iptables -S` leads; "" if it has no target.
func jumpTarget(line string) string {
	words := strings.Fields(line)
	at := slices.IndexFunc(words, func(w string) bool { return w == "-j" || w == "-g" })
	if at < 0 || at+1 == len(words) {
		return ""
	}
	return words[at+1]
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
