package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
)

// maxNftTries is how often a change is tried, because another program, such as a firewall that reloads,
// may change the chains between listing and writing.
const maxNftTries = 3

// nftBackend is the rule backend that changes nf_tables by netlink. It replaces its own table in one
// transaction, so that no packet finds half of it, after it has admitted DNS in the chains of other
// programs. It needs a program only for chains of iptables' legacy mode.
//
// To check the rules it compares what the kernel holds with what it held right after the last write,
// because kernels add to expressions what was not written. A new process therefore writes once, even
// if everything is in place. A write counts if its mark is in every rule that is read back.
type nftBackend struct {
	admission
	// written is the mark of the last write, and lastTable what the kernel held then.
	written   string
	lastTable ownTableState
}

// newNftBackend returns a backend that reads and changes legacy chains through programs. It touches
// nothing.
func newNftBackend(programs programSet) *nftBackend {
	return &nftBackend{admission: admission{programs: programs}}
}

// name implements ruleBackend.
func (n *nftBackend) name() string { return "nftables" }

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

// ensureOnce reads the rules, changes them if necessary, and reads them again. Accept rules come first: an
// untracked packet does not match a firewall's rules for established connections.
func (n *nftBackend) ensureOnce(ctx context.Context, desired desiredRules) (changed int, err error) {
	if changed, err = n.admission.ensureOnce(ctx, desired); err != nil {
		return 0, err
	}
	before, err := readOwnTable()
	if err != nil {
		return 0, err
	}
	if n.written == desired.mark() && before.text == n.lastTable.text {
		return changed, nil
	}
	n.written = "" // write again if this fails halfway
	if err := commit(ownTableChanges(desired)); err != nil {
		return 0, err
	}
	after, err := readOwnTable()
	if err != nil {
		return 0, err
	}
	if !after.isComplete(desired) {
		return 0, fmt.Errorf("table inet %s: %w", ownTable, ErrConflict)
	}
	if n.written, n.lastTable = desired.mark(), after; after.text != before.text {
		changed++
	}
	return changed, nil
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
	n.written = ""
	tables, err := listTables()
	if err != nil {
		return 0, err
	}
	if _, exists := tables["inet "+ownTable]; exists {
		for range maxNftTries {
			if err = commit([]nftChange{{deleteTable: ownTable}}); err == nil || ctx.Err() != nil {
				break
			}
		}
		if err != nil {
			return 0, err
		}
		removed++
	}
	if accepts {
		n, err := n.admission.ensure(ctx, desiredRules{})
		return removed + n, err
	}
	return removed, nil
}

// localAddrs implements ruleBackend.
func (n *nftBackend) localAddrs(context.Context) (addrs []netip.Addr, err error) {
	s, err := readOwnTable()
	for line := range strings.Lines(s.text) {
		addrs = append(addrs, ruleAddrs(line)...)
	}
	return addrs, err
}

// ownTableState is the agent's table: text has a line for each of its chains and rules, and marks counts the
// rules by their comment.
type ownTableState struct {
	text  string
	marks map[string]int
}

// readOwnTable reads the state. Its cost grows with the number of chains, not of rules.
func readOwnTable() (s ownTableState, err error) {
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
		s.text += fmt.Sprintf("%+v\n", fields(c))
		for _, r := range rules {
			s.text += r.line + "\n"
			s.marks[r.comment]++
		}
	}
	return s, nil
}

// isComplete reports whether the table has the desired rules and no others.
func (s ownTableState) isComplete(desired desiredRules) bool {
	n := 0
	for _, c := range ownChains(desired) {
		n += len(c.rules)
	}
	return len(s.marks) == 1 && s.marks[ownComment+desired.mark()] == n
}
