package netsetup

import (
	"fmt"
	"slices"
	"strings"
)

// socketMatch matches a packet for which a socket of this node listens, at its address or at all.
const socketMatch = "-m socket --nowildcard"

// restoreScript returns the input of a family's iptables-restore that turns the current state into the
// desired rules. before is the current state; nil: no rules of ours. Only the tables in the set are
// written; nil: all. "" if there is nothing to do.
//
// Each table is one transaction. It empties and fills our chains, and deletes every jump to them before
// it adds the one at the right place.
func restoreScript(desired desiredRules, f Family, before map[chain]chainState, tables map[string]bool) string {
	var text strings.Builder
	for _, name := range []string{"filter", "raw", "nat"} { // nat last: if that fails, the agent still gets its queries
		if tables != nil && !tables[name] {
			continue
		}
		if t := tableScript(desired, f, name, before); t != "" {
			text.WriteString("*" + name + "\n" + t + "COMMIT\n")
		}
	}
	return text.String()
}

// tableScript returns the commands of restoreScript for one table.
func tableScript(desired desiredRules, f Family, name string, before map[chain]chainState) string {
	var declarations, rules, jumps, deletions strings.Builder
	for _, c := range chains() {
		if c.table != name {
			continue
		}
		want, state := chainRules(desired, f, c), before[c]
		jumps.WriteString(jumpScript(desired, c, state, len(want) > 0))
		if len(want) == 0 && !state.exists {
			continue
		}
		fmt.Fprintf(&declarations, ":%s - [0:0]\n", c.name) // creates or empties it
		if len(want) == 0 {
			fmt.Fprintf(&deletions, "-X %s\n", c.name)
		}
		for _, r := range want {
			fmt.Fprintf(&rules, "-A %s %s\n", c.name, r)
		}
	}
	return declarations.String() + rules.String() + jumps.String() + deletions.String()
}

// jumpScript returns the commands that delete the jumps to a chain and, if it is wanted, add the one that
// its hook needs.
func jumpScript(desired desiredRules, c chain, state chainState, wanted bool) string {
	var jumps strings.Builder
	for _, line := range state.jumps {
		if !strings.Contains(line, opaqueMatch) { // else deleteRule does it
			fmt.Fprintf(&jumps, "-D %s\n", strings.TrimPrefix(line, "-A "))
		}
	}
	switch {
	case !wanted:
	case c.jumpLast:
		fmt.Fprintf(&jumps, "-A %s %s -j %s\n", c.hook, jumpComment(desired), c.name)
	case c.hook != "":
		fmt.Fprintf(&jumps, "-I %s %d %s -j %s\n", c.hook, state.place.others+1, jumpComment(desired), c.name)
	}
	return jumps.String()
}

// jumpComment says on every jump who made it, and for which rules.
func jumpComment(desired desiredRules) string {
	return fmt.Sprintf(`-m comment --comment "%s (%s)"`, jumpText, desired.mark())
}

// chainRules returns the rules of a chain in the syntax of iptables, without its name; nil if it needs
// none.
func chainRules(desired desiredRules, f Family, c chain) (lines []string) {
	for _, r := range desired.rules(f, c) {
		lines = append(lines, r.iptables())
	}
	return lines
}

// countChanges counts the rules that differ between two states. A modified rule counts once, and so
// do a chain whose rules are in another order, and a jump at the wrong place.
func countChanges(before, after map[chain]chainState) (n int) {
	for _, c := range chains() {
		b, a := before[c], after[c]
		if b.place.wrong != a.place.wrong {
			n++
		}
		for _, lines := range [][2][]string{{b.rules, a.rules}, {b.jumps, a.jumps}, {b.nodeLocal, a.nodeLocal}} {
			gone, come := countMissing(lines[0], lines[1]), countMissing(lines[1], lines[0])
			if n += max(gone, come); gone+come == 0 && !slices.Equal(lines[0], lines[1]) {
				n++
			}
		}
	}
	return n
}

// countMissing counts the lines of a that b does not have, or has less often.
func countMissing(a, b []string) (n int) {
	rest := slices.Clone(b)
	for _, l := range a {
		if i := slices.Index(rest, l); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		} else {
			n++
		}
	}
	return n
}
