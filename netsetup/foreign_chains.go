package netsetup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// foreignChain is a base chain of another program that DNS packets of this node pass, and that drops
// packets or has accept rules of ours.
type foreignChain struct {
	nftChain
	drops bool
	ours  []nftRule
	// behind is the handle of the last jump to policyChains, behind which our rules belong; 0:
	// none. bypass: a rule of ours comes before it.
	behind uint64
	bypass bool
}

// readForeign reads the foreign chains among all. Those for which exempt returns true need no rules of
// ours.
func readForeign(all []nftChain, exempt func(nftChain) bool) (list []foreignChain, err error) {
	for _, c := range all {
		if !c.foreign() || !c.filtersDNS() {
			continue
		}
		f := foreignChain{nftChain: c}
		if err := f.read(); err != nil && !errors.Is(err, errNoChain) { // deleted since it was listed
			return nil, err
		}
		f.drops = f.drops && !exempt(c)
		if f.drops || len(f.ours) > 0 {
			list = append(list, f)
		}
	}
	return list, nil
}

// filtersDNS reports whether the chain filters DNS packets of this node.
func (c nftChain) filtersDNS() bool {
	return c.kind == "filter" && !c.dormant && slices.Contains([]string{"prerouting", "input", "output"}, c.hook)
}

// ofIptables reports whether the chain is of a form that iptables makes: most rules of such a chain
// lead to others, in which packets may be dropped.
func (c nftChain) ofIptables() bool {
	return c.family != "inet" && c.table == "filter" && c.name == strings.ToUpper(c.hook)
}

// read reads the chain's rules. A chain drops packets by its policy or by its last rule; of a chain of
// iptables it is taken for granted, if there are rules.
func (c *foreignChain) read() error {
	rules, err := listRules(c.family, c.table, c.name)
	if err != nil {
		return err
	}
	last := false
	for _, r := range rules {
		if strings.HasPrefix(r.comment, jumpText) {
			continue // to a chain of an agent with the other backend
		}
		if r.ours() {
			c.ours = append(c.ours, r)
			continue
		}
		last = r.drops || c.ofIptables()
		if jumpsToPolicies(r.line) {
			c.behind, c.bypass = r.handle, len(c.ours) > 0
		}
	}
	c.drops = c.policyDrop || last
	return nil
}

// text returns what a check compares.
func (c foreignChain) text() string {
	text := fmt.Sprintln("drops", c.drops, "bypass", c.bypass)
	for _, r := range c.ours {
		text += r.line + "\n"
	}
	return text
}

// foreignChanges returns the changes that replace our rules in foreign chains. It leaves out those that
// another process owns.
func foreignChanges(list []foreignChain, desired desiredRules) (changes []nftChange) {
	for _, c := range list {
		if c.owned {
			continue
		}
		for _, r := range c.ours {
			changes = append(changes, nftChange{deleteRule: r.handle, in: c.nftChain})
		}
		for _, r := range c.wants(desired) {
			changes = append(changes, nftChange{addRule: &r, in: c.nftChain, behind: c.behind})
		}
	}
	return changes
}

// wants returns the rules that the chain needs.
func (c foreignChain) wants(desired desiredRules) []packetRule {
	if !c.drops {
		return nil
	}
	return acceptRules(c.family, c.hook, desired)
}

// foreignComplete reports whether every chain that can be changed has the desired rules.
func foreignComplete(list []foreignChain, desired desiredRules) bool {
	return !slices.ContainsFunc(list, func(c foreignChain) bool {
		other := func(r nftRule) bool { return r.comment != nftComment+" "+desired.mark() }
		return !c.owned && (c.bypass || len(c.ours) != len(c.wants(desired)) || slices.ContainsFunc(c.ours, other))
	})
}

// blockedChains names the chains that drop packets and can't be changed.
func blockedChains(list []foreignChain) (names []string) {
	for _, c := range list {
		if c.owned && c.drops {
			names = append(names, c.String())
		}
	}
	return names
}

// admission keeps accept rules in foreign chains of nf_tables for a backend that has rules elsewhere.
type admission struct {
	// exempt reports whether a chain has rules of the backend itself.
	exempt func(nftChain) bool
	// chains are what the last check has found.
	chains []foreignChain
}

// ensure adds and removes accept rules. changed is the number of chains that had other ones.
func (a *admission) ensure(desired desiredRules) (changed int, err error) {
	for range maxNftTries {
		if changed, err = a.ensureOnce(desired); err == nil {
			break
		}
	}
	return changed, err
}

func (a *admission) ensureOnce(desired desiredRules) (changed int, err error) {
	if err := a.read(); err != nil || foreignComplete(a.chains, desired) {
		return 0, err
	}
	for _, c := range a.chains {
		if !foreignComplete([]foreignChain{c}, desired) {
			changed++
		}
	}
	if err := commit(foreignChanges(a.chains, desired)); err != nil {
		return 0, err
	}
	if err := a.read(); err != nil {
		return 0, err
	}
	if !foreignComplete(a.chains, desired) {
		return 0, fmt.Errorf("foreign chains: %w", ErrConflict)
	}
	return changed, nil
}

func (a *admission) read() error {
	all, err := listChains()
	if err == nil {
		a.chains, err = readForeign(all, a.exempt)
	}
	return err
}
