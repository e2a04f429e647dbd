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

// Family tells iptables from ip6tables.
type Family uint8

// The two families. There is no unknown one: a Family comes from an address.
const (
	IPv4 Family = iota
	IPv6
)

// String returns the name of the family's tool.
func (f Family) String() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

func familyOf(a netip.Addr) Family {
	if a.Is6() {
		return IPv6
	}
	return IPv4
}

// has reports whether an address of the family is among addrs.
func (f Family) has(addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return familyOf(a) == f })
}

// families are both, in the order in which they are gone through.
func families() []Family { return []Family{IPv4, IPv6} }

// iptablesBackend is the filter that speaks through the programs of iptables, of one flavour.
//
// All rules are in chains of its own, one for each hook, which a jump in the kernel's
// chain leads to. A look lists these chains and the jumps, a write is one
// iptables-restore for each family, and replaces a whole table's part in one step. No
// rule is ever parsed: how the programs print a rule differs from how it was given, and
// from version to version, so what stands is compared with what stood right after the
// last write.
//
// Rules of NodeLocal DNSCache for the same addresses, which agents up to 0.1 made too,
// hold whether anybody listens or not; a write takes them away, after its own stand.
type iptablesBackend struct {
	// mode is "nft" or "legacy".
	mode string
	// programs are by Family; nil: not installed.
	programs [2]ruleProgram
	// locals are the addresses whose rules of NodeLocal DNSCache go. Nil: all go.
	locals []netip.Addr
	// tableLoaded reports whether the kernel has a table. Listing one that it does not have
	// would load it, and tables of nat turn connection tracking on.
	tableLoaded func(f Family, table string) bool

	// lastWrite is what stood after the last write, by Family.
	lastWrite [2]writtenState
}

// writtenState is what a filter remembers of its last write.
type writtenState struct {
	script string // what was asked for; "": there was no write
	chains map[chain]chainState
	// cleared: w has nothing for the family, and nothing of ours stands.
	cleared bool
}

// chain is one of ours.
type chain struct {
	table, name string
	// hook is the kernel's chain that jumps to it; "": another of ours does.
	hook string
	// jumpLast: the jump is behind all other rules, else before them.
	jumpLast bool
}

// chainState is what the kernel has of a chain, lines as `iptables -S` prints them.
type chainState struct {
	exists bool
	rules  []string
	// jumps are the rules of the hook that lead to it, old those of NodeLocal DNSCache.
	jumps, nodeLocal []string
}

func (s chainState) equal(o chainState) bool {
	return s.exists == o.exists && slices.Equal(s.rules, o.rules) &&
		slices.Equal(s.jumps, o.jumps) && slices.Equal(s.nodeLocal, o.nodeLocal)
}

// chains are all, in the order of writing: what lets untracked packets pass before
// what makes them untracked, and what translates the others in between. Translation of
// kube-proxy's comes before ours: it knows the endpoints of a Service at this moment,
// and ours those of the agent's last one.
func chains() []chain {
	return []chain{
		{table: "filter", name: "NODENS-INPUT", hook: "INPUT"},
		{table: "filter", name: "NODENS-OUTPUT", hook: "OUTPUT"},
		{table: "nat", name: "NODENS-PREROUTING", hook: "PREROUTING", jumpLast: true},
		{table: "nat", name: "NODENS-OUTPUT", hook: "OUTPUT", jumpLast: true},
		{table: "nat", name: "NODENS-POSTROUTING", hook: "POSTROUTING"},
		{table: "nat", name: "NODENS-DIVERT"},
		{table: "raw", name: "NODENS-PREROUTING", hook: "PREROUTING"},
		{table: "raw", name: "NODENS-OUTPUT", hook: "OUTPUT"},
	}
}

const (
	// jumpComment is on every jump, for people who find it.
	jumpComment = `-m comment --comment "nodens: DNS of this node" `
	// nodeLocalComment is how the comments of NodeLocal DNSCache's rules begin.
	nodeLocalComment = `--comment "NodeLocal DNS Cache: `
)

// name implements filter.
func (t *iptablesBackend) name() string {
	if t.mode == "" {
		return "iptables" // of a Plan, which does not know the node
	}
	return "iptables (" + t.mode + ")"
}

// describe implements filter: the input of iptables-restore.
func (t *iptablesBackend) describe(w desiredRules) string {
	var parts []string
	for _, f := range families() {
		if f.has(w.addrs) {
			parts = append(parts, "# "+f.String()+"-restore --noflush\n"+restoreScript(w, f, nil, nil))
		}
	}
	return strings.TrimSuffix(strings.Join(parts, ""), "\n")
}

// ensure implements filter. The families don't wait for each other: what fails in one
// is in the error, and the other's rules stand.
func (t *iptablesBackend) ensure(ctx context.Context, w desiredRules) (changed int, err error) {
	var problems []error
	for _, f := range families() {
		n, err := t.ensureFamily(ctx, w, f)
		changed += n
		if err != nil {
			problems = append(problems, fmt.Errorf("%s rules: %w", f, err))
		}
	}
	return changed, joinErrors(problems)
}

// writeTries is how often a family is written until all of it stands. A second time is
// for somebody who changes rules between a look and a write, or a write and the look
// behind it; a third time would be for somebody who goes on doing so, which is an error.
const writeTries = 2

func (t *iptablesBackend) ensureFamily(ctx context.Context, w desiredRules, f Family) (changed int, err error) {
	if !f.has(w.addrs) {
		return t.removeOnce(ctx, f)
	}
	before, err := t.readState(ctx, w, f)
	if err != nil {
		return 0, err
	}
	tables := t.changedTables(w, f, before)
	if len(tables) == 0 {
		return 0, nil
	}
	after := before
	for range writeTries {
		t.lastWrite[f] = writtenState{}
		failed := t.restore(ctx, f, restoreScript(w, f, after, tables))
		if failed == nil {
			failed = t.deleteNodeLocal(ctx, f, after)
		}
		if after, err = t.readState(ctx, w, f); err != nil {
			return 0, err
		}
		if failed == nil && isComplete(w, f, after) {
			t.lastWrite[f] = writtenState{script: restoreScript(w, f, nil, nil), chains: after}
			return countChanges(before, after), nil
		}
		err, tables = failed, nil
	}
	if err == nil {
		err = errors.New("what was written is not what stands; somebody else changes it at the same time")
	}
	return 0, t.diagnose(ctx, w, f, err)
}

// removeOnce removes what stands of a family that w has nothing for, once.
func (t *iptablesBackend) removeOnce(ctx context.Context, f Family) (removed int, err error) {
	if t.lastWrite[f].cleared {
		return 0, nil
	}
	removed, err = t.removeFamily(ctx, f)
	t.lastWrite[f].cleared = err == nil
	return removed, err
}

// changedTables is the tables of which something is other than it was after the last write; all, if
// that was for something else. Empty: there are none.
func (t *iptablesBackend) changedTables(w desiredRules, f Family, stands map[chain]chainState) map[string]bool {
	tables := make(map[string]bool)
	same := t.lastWrite[f].script == restoreScript(w, f, nil, nil)
	for _, c := range chains() {
		if !same || !stands[c].equal(t.lastWrite[f].chains[c]) {
			tables[c.table] = true
		}
	}
	return tables
}

// isComplete reports whether all chains have as many rules as they should, and each one
// jump. That the rules are the right ones is for the transaction to see to.
func isComplete(w desiredRules, f Family, stands map[chain]chainState) bool {
	for _, c := range chains() {
		s, n, jumps := stands[c], len(chainRules(w, f, c)), 0
		if n > 0 && c.hook != "" {
			jumps = 1
		}
		if len(s.rules) != n || len(s.jumps) != jumps || len(s.nodeLocal) > 0 {
			return false
		}
	}
	return true
}

// diagnose tells the lack of the match by socket from other failures to write: it tries
// a chain with one rule that needs it, and the same without.
func (t *iptablesBackend) diagnose(ctx context.Context, w desiredRules, f Family, err error) error {
	if !w.matchSocket || errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrLocked) || errors.Is(err, ErrNoTool) {
		return err
	}
	const head, tail = "*raw\n:NODENS-PROBE - [0:0]\n", "COMMIT\n"
	with := t.restore(ctx, f, head+"-A NODENS-PROBE -p udp "+socketMatch+"-j ACCEPT\n"+tail)
	without := t.restore(ctx, f, head+"-A NODENS-PROBE -p udp -j ACCEPT\n"+tail)
	if with == nil || without == nil {
		err = errors.Join(err, t.restore(ctx, f, head+"-X NODENS-PROBE\n"+tail))
	}
	if with != nil && without == nil {
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return err
}

// remove implements filter.
func (t *iptablesBackend) remove(ctx context.Context) (removed int, err error) {
	var problems []error
	for _, f := range families() {
		n, err := t.removeFamily(ctx, f)
		removed += n
		if err != nil {
			problems = append(problems, fmt.Errorf("%s rules: %w", f, err))
		}
	}
	return removed, joinErrors(problems)
}

func (t *iptablesBackend) removeFamily(ctx context.Context, f Family) (removed int, err error) {
	if t.programs[f] == nil && !f.has(t.locals) {
		return 0, nil // nobody can have made a rule of that family with it
	}
	// What stood after the last write most likely stands, and then one program does what
	// takes fifteen to look at: a node that is so busy that agents die is when it counts.
	stood := t.lastWrite[f].chains
	t.lastWrite[f] = writtenState{}
	if stood != nil {
		if err := t.restore(ctx, f, restoreScript(desiredRules{}, f, stood, nil)); err == nil {
			return countChanges(stood, nil), nil
		} else if errors.Is(err, ErrLocked) {
			return 0, err
		}
	}
	state, err := t.readState(ctx, desiredRules{}, f)
	if err != nil {
		return 0, err
	}
	if err := t.deleteState(ctx, f, state); err != nil {
		return 0, err
	}
	return countChanges(state, nil), nil
}

// deleteState deletes what readState has found, one rule or chain at a time. The chains that
// let untracked packets pass go last.
func (t *iptablesBackend) deleteState(ctx context.Context, f Family, state map[chain]chainState) error {
	for _, table := range []string{"raw", "nat", "filter"} {
		for _, c := range chains() {
			if c.table != table {
				continue
			}
			for _, line := range slices.Concat(state[c].jumps, state[c].nodeLocal) {
				if err := t.programs[f].deleteRule(ctx, table, line); err != nil {
					return err
				}
			}
		}
		for _, c := range chains() {
			if c.table != table || !state[c].exists {
				continue
			}
			if err := t.programs[f].deleteChain(ctx, table, c.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteNodeLocal deletes the rules of NodeLocal DNSCache in state.
func (t *iptablesBackend) deleteNodeLocal(ctx context.Context, f Family, state map[chain]chainState) error {
	for _, c := range slices.Backward(chains()) { // raw first, filter last
		for _, line := range state[c].nodeLocal {
			if err := t.programs[f].deleteRule(ctx, c.table, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// readState lists what stands. Tables that the kernel does not have, and w needs nothing of,
// are not touched.
func (t *iptablesBackend) readState(ctx context.Context, w desiredRules, f Family) (map[chain]chainState, error) {
	found := make(map[chain]chainState)
	for _, c := range chains() {
		needed := len(chainRules(w, f, c)) > 0
		if !needed && !t.tableLoaded(f, c.table) {
			continue
		}
		var s chainState
		var err error
		if s.rules, s.exists, err = t.list(ctx, f, c.table, c.name); err != nil {
			return nil, err
		}
		// Rules of NodeLocal DNSCache are not in nat, and jumps need what they lead to.
		if c.hook != "" && (needed || s.exists || c.table != "nat") {
			lines, _, err := t.list(ctx, f, c.table, c.hook)
			if err != nil {
				return nil, err
			}
			s.jumps, s.nodeLocal = t.pickRules(lines, c)
		}
		found[c] = s
	}
	return found, nil
}

// pickRules picks from the rules of c's hook those that lead to c, and NodeLocal DNSCache's
// that must go.
func (t *iptablesBackend) pickRules(lines []string, c chain) (jumps, old []string) {
	for _, l := range lines {
		switch {
		case strings.HasSuffix(l, " -j "+c.name):
			jumps = append(jumps, l)
		case t.isNodeLocalRule(l):
			old = append(old, l)
		}
	}
	return jumps, old
}

// isNodeLocalRule reports whether a line is a rule of NodeLocal DNSCache that must go.
func (t *iptablesBackend) isNodeLocalRule(line string) bool {
	if !strings.Contains(line, nodeLocalComment) {
		return false
	}
	return t.locals == nil || slices.ContainsFunc(t.locals, func(a netip.Addr) bool {
		return strings.Contains(line, "-d "+hostPrefix(a)+" ") || strings.Contains(line, "-s "+hostPrefix(a)+" ")
	})
}

// list returns the rules of a chain, without its policy, and whether the chain exists.
func (t *iptablesBackend) list(ctx context.Context, f Family, table, chain string) (rules []string, exists bool, err error) {
	p, err := t.program(f)
	if err != nil {
		return nil, false, err
	}
	lines, err := p.list(ctx, table, chain)
	if errors.Is(err, errNoChain) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	return rules, true, nil
}

func (t *iptablesBackend) restore(ctx context.Context, f Family, script string) error {
	p, err := t.program(f)
	if err != nil {
		return err
	}
	return p.restore(ctx, script)
}

// program returns the family's program. ErrNoTool if it is not installed.
func (t *iptablesBackend) program(f Family) (ruleProgram, error) {
	if t.programs[f] == nil {
		return nil, fmt.Errorf("%s-%s: %w", f, t.mode, ErrNoTool)
	}
	return t.programs[f], nil
}

// countChanges counts the rules in which two looks differ; one that is other than before
// counts once, and so do those of a chain in another order.
func countChanges(before, after map[chain]chainState) (n int) {
	for _, c := range chains() {
		b, a := before[c], after[c]
		for _, lines := range [][2][]string{{b.rules, a.rules}, {b.jumps, a.jumps}, {b.nodeLocal, a.nodeLocal}} {
			gone, come := countMissing(lines[0], lines[1]), countMissing(lines[1], lines[0])
			if n += max(gone, come); gone+come == 0 && !slices.Equal(lines[0], lines[1]) {
				n++
			}
		}
	}
	return n
}

// countMissing counts the lines of a that b does not have, or not as often.
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
