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

func (n *nftBackend) name() string { return "nftables" }

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
	desired.hostDiversion = slices.SortedFunc(slices.Values(desired.hostDiversion), netip.AddrPort.Compare)
	return desired
}

func (n *nftBackend) ensure(ctx context.Context, desired desiredRules) (changed int, err error) {
	desired = sorted(desired)
	for range maxNftTries {
		changed, err = n.ensureOnce(ctx, desired)
		if err == nil || ctx.Err() != nil || isAny(err, ErrNoTool, fs.ErrPermission) {
			return changed, err
		}
	}
	if desired.matchSocket {
		err = explainSocketMatch(probeSocketMatch(), err)
	}
	return 0, err
}

// explainSocketMatch returns ErrNoSocket instead of err if the kernel lacks the match. err is ENOENT then, with the
// words for an object that another program has deleted.
func explainSocketMatch(match probeResult, err error) error {
	if match == unsupported {
		return fmt.Errorf("%w: nf_tables has no socket expression", ErrNoSocket)
	}
	return err
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

const (
	// ownTable is the name of the agent's table, in family inet. Everything in it is ours.
	ownTable = "nodens"

	// ownComment begins the comment of every rule in the agent's table, and nftComment that of its
	// rules elsewhere. A mark follows; see [desiredRules.mark].
	ownComment = "nodens "
	nftComment = "nodens: DNS"

	// jumpText begins the comment of every jump to a chain of ours.
	jumpText = nftComment + " of this node"

	// nftRaw is a priority before connection tracking (-200), as notrack requires, and after
	// defragmentation (-400). Chains of equal priority run the newest first, so ours runs before
	// an older chain of a firewall and after a newer one.
	nftRaw = -300

	// nftDNAT is the priority of the diversion, after the usual one of destination NAT (-100). It
	// decides only which chain of type nat is asked first: all of them run when the kernel
	// translates, at -100, whatever their priority. The first translation of a connection counts:
	// kube-proxy translates a ClusterIP, because it knows the current endpoints, and our chain
	// everything else.
	nftDNAT = -95

	// nftSNAT is the priority of source NAT.
	nftSNAT = 100
)

// ownChain is a chain in the agent's table; a base chain if it has a hook. family is that of the table.
type ownChain struct {
	nftChain
	rules []packetRule
}

// nftChainName returns the name in the agent's table of one of our chains of iptables.
func nftChainName(table, name string) string {
	return strings.ToLower(table + "-" + strings.TrimPrefix(name, "NODENS-"))
}

// ownChains returns the chains of the agent's table, without those that have no rules: even an empty
// chain of type nat turns connection tracking on. It is a pure function.
func ownChains(desired desiredRules) (list []ownChain) {
	for _, c := range chains() {
		if c.table == "filter" {
			continue // an accept in one table does not override a drop in another
		}
		own := ownChain{nftChain: nftChain{family: "inet", table: ownTable, name: nftChainName(c.table, c.name)}}
		if c.hook != "" {
			own.hook, own.kind, own.priority = strings.ToLower(c.hook), "filter", nftRaw
			if c.table == "nat" {
				own.kind, own.priority = "nat", nftDNAT
			}
			if own.hook == "postrouting" {
				own.priority = nftSNAT
			}
		}
		for _, f := range families() {
			for _, r := range desired.rules(f, c) {
				r.comment = ownComment + desired.mark()
				// A rule about an interface alone is the same in both families.
				if !slices.ContainsFunc(own.rules, func(o packetRule) bool { return o.nft() == r.nft() }) {
					own.rules = append(own.rules, r)
				}
			}
		}
		if len(own.rules) > 0 {
			list = append(list, own)
		}
	}
	return list
}

// text returns the chain in the syntax of nft.
func (c ownChain) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.name)
	if c.hook != "" {
		fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.kind, c.hook, c.priority)
	}
	for _, r := range c.rules {
		b.WriteString("\t\t" + r.nft() + "\n")
	}
	return b.String() + "\t}\n"
}

// acceptRules returns the rules that accept DNS in a foreign chain at a hook (ingress, prerouting, input
// or output) in a table of a family. iptables-nft can read them in tables of family ip and ip6, where it
// may have to; old versions print them without the ports, and end with status 0.
func acceptRules(family, hook string, desired desiredRules) (rules []packetRule) {
	c := chain{table: "filter", hook: "INPUT"}
	if hook == "output" {
		c.hook = "OUTPUT"
	}
	inside := desired
	inside.external = nil
	for _, f := range families() {
		if family != "inet" && family != f.keyword() {
			continue
		}
		for _, r := range inside.rules(f, c) {
			if c.hook == "INPUT" {
				r.notIn = desired.external
			}
			r.comment = nftComment + " " + desired.mark()
			rules = append(rules, r)
		}
	}
	return rules
}

// keyword returns the name of the family in nft.
func (f Family) keyword() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

// errNoNftables: the kernel has no nf_tables.
var errNoNftables = errors.New("the kernel has no nf_tables")

// nftChain is a chain of nf_tables.
type nftChain struct {
	family      string // "inet", "ip", "ip6"; other families have other texts
	table, name string
	// kind, hook and priority are those of a base chain: "filter", "input". policyDrop: packets
	// that reach its end are dropped.
	kind, hook string
	priority   int
	policyDrop bool
	// owned: another process owns the table, and no other can change it.
	owned bool
	// dormant: the table has no effect.
	dormant bool
}

// String returns the chain in nft's syntax.
func (c nftChain) String() string { return c.family + " " + c.table + " " + c.name }

// nftRule is a rule of nf_tables as the kernel holds it.
type nftRule struct {
	handle uint64
	// line is the rule in the syntax of iptables, as far as that can express it: addresses,
	// comment and target. The rest is a word after opaqueMatch, which is equal for equal
	// expressions; counters don't count.
	line    string
	comment string
	// drops: it drops or rejects packets, and no condition other than interfaces and sources excludes DNS.
	// leads: such a rule jumps or goes to a chain instead.
	drops, leads bool
}

// opaqueMatch stands in the line of an [nftRule] for expressions that the line does not tell.
const opaqueMatch = " -m opaque "

// nftChange is one step of a transaction: the first field that is set says which.
type nftChange struct {
	addTable, deleteTable string   // in family inet
	addChain              nftChain // no error if it exists
	deleteChain           nftChain // with its rules
	deleteRule            uint64   // the handle, in chain in
	addRule               *packetRule
	// in is the chain of a rule. A new one is added behind the rule with the handle behind; at
	// the head if that is 0, and at the end if last is set.
	in     nftChain
	behind uint64
	last   bool
}

// foreign reports whether the chain is another program's. Those of kube-proxy are not: they drop no DNS
// packets for a local address.
func (c nftChain) foreign() bool {
	return c.table != ownTable && !strings.HasPrefix(c.table, ownerTablePrefix) && c.table != kubeProxyTable
}

// kubeProxyTable is the name of kube-proxy's tables in nftables mode, one in each family.
const kubeProxyTable = "kube-proxy"

// ownerTablePrefix is the prefix of an owner table's name. A random suffix follows, because two
// agents exist during a handover, and both may be process 1 of their pods.
const ownerTablePrefix = "nodens-host-"

// probeResult is what a probe for a feature of the kernel has found.
type probeResult uint8

// The results of a probe.
const (
	unknown probeResult = iota // another error hides it
	supported
	unsupported
)
