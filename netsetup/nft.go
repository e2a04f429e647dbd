package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// maxNftTries is how often a change is tried, because another program, such as a firewall that reloads,
// may change the chains between listing and writing.
const maxNftTries = 3

// nftBackend is the rule backend that changes nf_tables by netlink. It replaces its own table in one
// transaction, so that no packet finds half of it. The same transaction adds accept rules to foreign
// chains that would drop DNS (foreignChain), because an accept in one table does not override a drop in
// another. It needs a program only for chains of iptables' legacy mode (legacyChain).
//
// To check the rules it compares what the kernel holds with what it held right after the last write,
// because kernels add to expressions what was not written. A new process therefore writes once, even
// if everything is in place. A write counts if its mark is in every rule that is read back.
type nftBackend struct {
	// programs are the programs of iptables' legacy mode.
	programs *programSet
	// written is the mark of the last write, and lastState what the kernel held then.
	written   string
	lastState nftState
}

// newNftBackend returns a backend that reads and changes legacy chains through programs. It touches
// nothing.
func newNftBackend(programs *programSet) *nftBackend { return &nftBackend{programs: programs} }

// name implements ruleBackend.
func (n *nftBackend) name() string { return "nftables" }

// blocked implements ruleBackend.
func (n *nftBackend) blocked() []string { return blockedChains(n.lastState.chains) }

// describe implements ruleBackend.
func (n *nftBackend) describe(desired desiredRules) string {
	desired = sorted(desired)
	var b strings.Builder
	b.WriteString("# at the head of foreign chains that drop input, and likewise output:\n")
	for _, r := range acceptRules("inet", "input", desired) {
		b.WriteString("#   insert rule FAMILY TABLE CHAIN " + r.nft() + "\n")
	}
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", ownTable)
	for _, c := range ownChains(desired) {
		b.WriteString(c.text())
	}
	return b.String() + "}"
}

// sorted returns the desired rules with sorted addresses, whose order does not matter.
func sorted(desired desiredRules) desiredRules {
	desired.addrs = slices.SortedFunc(slices.Values(desired.addrs), netip.Addr.Compare)
	desired.diversion = slices.SortedFunc(slices.Values(desired.diversion), netip.AddrPort.Compare)
	return desired
}

// ensure implements ruleBackend.
func (n *nftBackend) ensure(ctx context.Context, desired desiredRules) (changed int, err error) {
	desired = sorted(desired)
	for range maxNftTries {
		changed, err = n.ensureOnce(ctx, desired)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNoTool) {
			return changed, err
		}
		if errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	if desired.matchSocket && !errors.Is(err, fs.ErrPermission) && probeSocketMatch() == unsupported {
		return 0, fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return 0, err
}

// ensureOnce reads the rules, changes them if necessary, and reads them again.
func (n *nftBackend) ensureOnce(ctx context.Context, desired desiredRules) (changed int, err error) {
	before, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	if n.written == desired.mark() && before.equal(n.lastState) {
		return 0, nil
	}
	n.written = "" // write again if this fails halfway
	// Accept rules come first: an untracked packet does not match a firewall's rules for
	// established connections.
	if err := writeLegacy(ctx, before.legacy, desired); err != nil {
		return 0, err
	}
	if err := commit(append(foreignChanges(before.chains, desired), ownTableChanges(desired)...)); err != nil {
		return 0, err
	}
	after, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	if !after.isComplete(desired) {
		return 0, fmt.Errorf("table inet %s: %w", ownTable, ErrConflict)
	}
	n.written, n.lastState = desired.mark(), after
	return before.countChanges(after), nil
}

// ownTableChanges returns the changes that replace the agent's table, if there is one.
func ownTableChanges(desired desiredRules) []nftChange {
	changes := []nftChange{{addTable: ownTable}, {deleteTable: ownTable}, {addTable: ownTable}}
	own := ownChains(desired)
	for _, c := range own {
		changes = append(changes, nftChange{addChain: c.nftChain})
	}
	for _, c := range own {
		for _, r := range c.rules {
			changes = append(changes, nftChange{addRule: &r, in: c.nftChain, last: true})
		}
	}
	return changes
}

// remove implements ruleBackend.
func (n *nftBackend) remove(ctx context.Context, accepts bool) (removed int, err error) {
	n.written, n.lastState = "", nftState{}
	for range maxNftTries {
		if removed, err = n.removeOnce(ctx, accepts); err == nil || ctx.Err() != nil {
			break
		}
	}
	return removed, err
}

func (n *nftBackend) removeOnce(ctx context.Context, accepts bool) (removed int, err error) {
	s, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	if !accepts {
		s.chains, s.legacy = nil, nil
	}
	changes := foreignChanges(s.chains, desiredRules{})
	if s.exists {
		changes = append(changes, nftChange{deleteTable: ownTable})
	}
	if err := commit(changes); err != nil {
		return 0, err
	}
	removed = len(changes)
	for _, c := range s.legacy {
		removed += len(c.ours)
	}
	return removed, writeLegacy(ctx, s.legacy, desiredRules{})
}

// localAddrs implements ruleBackend.
func (n *nftBackend) localAddrs(ctx context.Context) (addrs []netip.Addr, err error) {
	s, err := readNftState(ctx, n.programs)
	for line := range strings.Lines(s.own) {
		addrs = append(addrs, ruleAddrs(line)...)
	}
	return addrs, err
}

// nftState is the agent's table, and the foreign chains that have, or need, rules of ours.
type nftState struct {
	// exists: the agent's table does. own has a line for each of its chains and rules, and marks
	// counts the rules by their comment.
	exists bool
	own    string
	marks  map[string]int
	chains []foreignChain
	legacy []legacyChain
}

// readNftState reads the state. Its cost grows with the number of chains, not of rules.
func readNftState(ctx context.Context, programs *programSet) (s nftState, err error) {
	tables, err := listTables()
	if err != nil {
		return s, err
	}
	_, s.exists = tables["inet "+ownTable]
	all, err := listChains()
	if err != nil {
		return s, err
	}
	s.marks = make(map[string]int)
	for _, c := range all {
		if c.family != "inet" || c.table != ownTable {
			continue
		}
		rules, err := listRules(c.family, c.table, c.name)
		if err != nil {
			return s, err
		}
		type fields nftChain // without String
		s.own += fmt.Sprintf("%+v\n", fields(c))
		for _, r := range rules {
			s.own += r.line + "\n"
			s.marks[r.comment]++
		}
	}
	if s.chains, err = readForeign(all, func(nftChain) bool { return false }); err != nil {
		return s, err
	}
	s.legacy, err = readLegacy(ctx, programs)
	return s, err
}

// isComplete reports whether the agent's table has the desired rules and no others, and every chain
// that drops packets has the desired number of our rules.
func (s nftState) isComplete(desired desiredRules) bool {
	n := 0
	for _, c := range ownChains(desired) {
		n += len(c.rules)
	}
	if len(s.marks) != 1 || s.marks[ownComment+desired.mark()] != n {
		return false
	}
	for _, c := range s.legacy {
		if c.bypass || c.drops && len(c.ours) != strings.Count(c.accepts(desired), "\n") {
			return false
		}
	}
	return foreignComplete(s.chains, desired)
}

// parts returns the state as text, by the name of the chain, without rule handles.
func (s nftState) parts() map[string]string {
	parts := map[string]string{"": s.own}
	for _, c := range s.chains {
		parts[c.String()] = c.text()
	}
	for _, c := range s.legacy {
		parts[c.program.name+" "+c.name] = fmt.Sprint("drops ", c.drops, " bypass ", c.bypass, "\n", strings.Join(c.ours, "\n"))
	}
	return parts
}

func (s nftState) equal(o nftState) bool { return maps.Equal(s.parts(), o.parts()) }

// countChanges returns the number of parts that differ.
func (s nftState) countChanges(o nftState) (n int) {
	a, b := s.parts(), o.parts()
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if a[name] != b[name] {
			n++
		}
	}
	return n
}
