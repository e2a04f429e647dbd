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

// Family is an address family, which has an iptables program of its own.
type Family uint8

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// String returns the name of the family's program.
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

// families returns both, in the order in which they are processed.
func families() []Family { return []Family{IPv4, IPv6} }

// iptablesBackend is the rule backend for one mode of iptables.
//
// All rules are in chains of its own, one for each built-in chain, which jumps to it. A check lists
// these chains and the jumps; in mode nft by netlink (nftProgram), which can read every rule. A write
// is one iptables-restore for each family, which replaces our part of a table in one transaction. The
// backend does not parse rules, because the programs print them differently from how they were given,
// and each version differently: it compares the listed rules with those listed right after the last
// write. That counts if its mark is in the jumps that are read back.
type iptablesBackend struct {
	// mode is "nft" or "legacy".
	mode string
	// programs are indexed by Family; nil: not installed.
	programs [2]ruleProgram
	// addrs are the addresses whose NodeLocal DNSCache rules are deleted. Nil: all are.
	addrs []netip.Addr
	// tableLoaded reports whether the kernel has a table. Listing another one would load it,
	// and table nat turns connection tracking on.
	tableLoaded func(f Family, table string) bool

	// refused is why iptables-restore refused a table because of another program's rules; "": it
	// did not.
	refused string
	// admission is for firewalls that are not of this mode. Nil: there are none.
	admission *admission
	contests  contests

	// lastWrite is indexed by Family.
	lastWrite [2]writtenState
}

// writtenState describes the last write of a family.
type writtenState struct {
	// mark has, by table, the mark of the last write; a table that another program has changed since has none.
	mark map[string]string
	// chains were listed after the write.
	chains map[chain]chainState
	// cleared: no rules are desired for the family, and there are none of ours.
	cleared bool
}

// chainState is what the kernel holds of a chain. Rules are lines of `iptables -S`.
type chainState struct {
	exists bool
	rules  []string
	// jumps are the rules of the built-in chain that jump to it. nodeLocal are rules of
	// NodeLocal DNSCache in the built-in chain, to be deleted.
	jumps, nodeLocal []string
	// place says where the jumps belong in the built-in chain. In tables other than filter it is never wrong.
	place placement
}

// equal reports whether nothing of ours has changed.
func (s chainState) equal(o chainState) bool {
	return s.exists == o.exists && s.place.wrong == o.place.wrong && slices.Equal(s.rules, o.rules) &&
		slices.Equal(s.jumps, o.jumps) && slices.Equal(s.nodeLocal, o.nodeLocal)
}

const (
	// nodeLocalComment is in the rules of NodeLocal DNSCache.
	nodeLocalComment = `--comment "NodeLocal DNS Cache: `

	// probeChain is a chain of table raw that diagnose adds for a moment.
	probeChain = "NODENS-PROBE"
)

func (t *iptablesBackend) name() string {
	if t.mode == "" {
		return "iptables" // in a Plan, which is independent of the node
	}
	return "iptables (" + t.mode + ")"
}

// describe implements ruleBackend. It returns input of iptables-restore.
func (t *iptablesBackend) describe(desired desiredRules) string {
	var parts []string
	for _, f := range families() {
		if f.has(desired.addrs) {
			parts = append(parts, "# "+f.String()+"-restore --noflush\n"+restoreScript(desired, f, nil, nil))
		}
	}
	return strings.TrimSuffix(strings.Join(parts, ""), "\n")
}

func (t *iptablesBackend) blocked() []string {
	if t.admission == nil {
		return t.contests.blocked()
	}
	return append(t.admission.blocked(), t.contests.blocked()...)
}

// ensure implements ruleBackend. A failure in one family does not affect the other.
func (t *iptablesBackend) ensure(ctx context.Context, desired desiredRules) (changed int, err error) {
	var problems []error
	var notAdmitted error
	if t.admission != nil {
		changed, notAdmitted = t.admission.ensure(ctx, desired)
	}
	for _, f := range families() {
		n, err := t.ensureFamily(ctx, desired, f)
		changed += n
		if err != nil {
			problems = append(problems, fmt.Errorf("%s rules: %w", f, err))
		}
	}
	if len(problems) == 0 || !errors.Is(notAdmitted, fs.ErrPermission) { // else the families say so
		problems = append(problems, notAdmitted)
	}
	return changed, joinErrors(problems)
}

// writeTries is how often a family is written if another program changes the rules between listing
// and writing.
const writeTries = 2

func (t *iptablesBackend) ensureFamily(ctx context.Context, desired desiredRules, f Family) (changed int, err error) {
	if !f.has(desired.addrs) {
		return t.removeOnce(ctx, f)
	}
	before, err := t.readState(ctx, desired, f)
	if err != nil {
		return 0, err
	}
	tables := t.changedTables(desired, f, before)
	if len(tables) == 0 {
		return 0, nil
	}
	t.lastWrite[f].cleared = false
	after := before
	for range writeTries {
		failed := t.programs[f].restore(ctx, restoreScript(desired, f, after, tables))
		if failed == nil {
			failed = t.deleteOld(ctx, f, after)
		}
		read := after
		if after, err = t.readState(ctx, desired, f); err != nil {
			return 0, err
		}
		if errors.Is(failed, errNotXtables) {
			t.refused = failed.Error()
		}
		if tables = t.record(desired, f, after); failed == nil && len(tables) == 0 {
			return countChanges(before, after), nil
		}
		err = conflict(failed, read, after)
	}
	return 0, t.diagnose(ctx, desired, f, err)
}

// record notes the tables that are complete, which a failure with another one does not change, and
// returns the others.
func (t *iptablesBackend) record(desired desiredRules, f Family, state map[chain]chainState) (incomplete map[string]bool) {
	w, incomplete := writtenState{mark: make(map[string]string), chains: state}, make(map[string]bool)
	for _, c := range chains() {
		if !isComplete(desired, f, c, state[c]) {
			incomplete[c.table] = true
		}
		w.mark[c.table] = desired.mark()
	}
	for table := range incomplete {
		delete(w.mark, table)
	}
	t.lastWrite[f] = w
	return incomplete
}

// conflict returns ErrConflict if another program has changed the chains between two readings, of
// which the second one came after a write: the write succeeded and its rules are incomplete, or it
// failed, which changes nothing, and yet the chains differ, or a rule to delete was gone and has been
// added again. Otherwise it returns failed, the error of the write.
func conflict(failed error, before, after map[chain]chainState) error {
	switch {
	case failed == nil:
		return ErrConflict
	case !maps.EqualFunc(before, after, chainState.equal), errors.Is(failed, errRuleGone):
		return fmt.Errorf("%w: %w", ErrConflict, failed)
	default:
		return failed
	}
}

// removeOnce removes our rules of a family that has no desired rules, once.
func (t *iptablesBackend) removeOnce(ctx context.Context, f Family) (removed int, err error) {
	if t.lastWrite[f].cleared {
		return 0, nil
	}
	removed, err = t.removeFamily(ctx, f)
	t.lastWrite[f].cleared = err == nil
	return removed, err
}

// changedTables returns the tables whose state differs from that after the last write, or for which that
// wrote other rules. The map is empty if nothing differs.
func (t *iptablesBackend) changedTables(desired desiredRules, f Family, state map[chain]chainState) map[string]bool {
	tables, mark := make(map[string]bool), desired.mark()
	for _, c := range chains() {
		if t.lastWrite[f].mark[c.table] != mark || !state[c].equal(t.lastWrite[f].chains[c]) {
			tables[c.table] = true
		}
	}
	return tables
}

// isComplete reports whether a chain has the right number of rules, and one jump with the mark of
// the transaction that wrote them.
func isComplete(desired desiredRules, f Family, c chain, s chainState) bool {
	n, jumps := len(chainRules(desired, f, c)), 0
	if n > 0 && c.hook != "" {
		jumps = 1
	}
	return len(s.rules) == n && len(s.jumps) == jumps && len(s.nodeLocal) == 0 && !s.place.wrong &&
		(jumps == 0 || strings.Contains(s.jumps[0], jumpComment(desired)))
}

// diagnose adds ErrNoSocket to err if the kernel lacks the socket match: it writes a chain with one
// rule that needs the match, and the same without.
func (t *iptablesBackend) diagnose(ctx context.Context, desired desiredRules, f Family, err error) error {
	if !desired.matchSocket || isAny(err, fs.ErrPermission, ErrLocked, ErrNoTool, ErrConflict, errNotXtables) {
		return err
	}
	const head, tail = "*raw\n:" + probeChain + " - [0:0]\n", "COMMIT\n"
	probe := func(rule string) error { return t.programs[f].restore(ctx, head+rule+tail) }
	with := probe("-A " + probeChain + " -p udp " + socketMatch + " -j ACCEPT\n")
	without := probe("-A " + probeChain + " -p udp -j ACCEPT\n")
	if with == nil || without == nil {
		err = errors.Join(err, probe("-X "+probeChain+"\n"))
	}
	if with != nil && without == nil {
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return err // supported, or could not tell
}

func (t *iptablesBackend) remove(ctx context.Context, accepts bool) (removed int, err error) {
	var problems []error
	if t.admission != nil && accepts {
		removed, err = t.admission.ensure(ctx, desiredRules{})
		problems = append(problems, err)
	}
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
	if t.programs[f] == nil && !f.has(t.addrs) {
		return 0, nil // without the program there can be no rules
	}
	// Most likely nothing has changed since the last write, and then there is no need to run some
	// twenty programs that list the rules: see Teardown's time limit.
	state := t.lastWrite[f].chains
	t.lastWrite[f] = writtenState{}
	for range writeTries {
		if state == nil {
			if state, err = t.readState(ctx, desiredRules{}, f); err != nil {
				return 0, err
			}
		}
		if err = t.deleteState(ctx, f, state); err == nil {
			return countChanges(state, nil), nil
		}
		if errors.Is(err, ErrLocked) {
			break
		}
		state = nil
	}
	return 0, err
}

// deleteState deletes what readState has found. The chains with ACCEPT rules for untracked packets go last.
func (t *iptablesBackend) deleteState(ctx context.Context, f Family, state map[chain]chainState) error {
	for _, table := range []string{"raw", "nat", "filter"} {
		var rules, names []string
		for _, c := range chains() {
			if c.table != table {
				continue
			}
			rules = slices.Concat(rules, state[c].jumps, state[c].nodeLocal)
			if state[c].exists {
				names = append(names, c.name)
			}
		}
		if len(rules)+len(names) == 0 {
			continue
		}
		if err := t.programs[f].remove(ctx, table, rules, names); err != nil {
			return err
		}
	}
	return nil
}

// deleteOld deletes the NodeLocal DNSCache rules in state, and the jumps that a script can't delete.
func (t *iptablesBackend) deleteOld(ctx context.Context, f Family, state map[chain]chainState) error {
	old := make(map[chain]chainState)
	for c, s := range state {
		inScript := func(line string) bool { return !strings.Contains(line, opaqueMatch) }
		old[c] = chainState{nodeLocal: s.nodeLocal, jumps: slices.DeleteFunc(slices.Clone(s.jumps), inScript)}
	}
	return t.deleteState(ctx, f, old)
}

// readState lists our chains and the built-in chains that jump to them. It does not touch tables that
// the kernel does not have and the desired rules do not need.
func (t *iptablesBackend) readState(ctx context.Context, desired desiredRules, f Family) (map[chain]chainState, error) {
	found := make(map[chain]chainState)
	for _, c := range chains() {
		needed := len(chainRules(desired, f, c)) > 0
		if !needed && t.isAbsent(f, c) {
			found[c] = chainState{}
			continue
		}
		var s chainState
		var err error
		if s.rules, s.exists, err = t.list(ctx, f, c.table, c.name); err != nil {
			return nil, err
		}
		// NodeLocal DNSCache has no rules in nat, and a jump needs its target.
		if c.hook != "" && (needed || s.exists || c.table != "nat") {
			if err := t.readHook(ctx, f, c, &s); err != nil {
				return nil, err
			}
		}
		found[c] = s
	}
	return found, nil
}

// isAbsent reports whether a chain that is not needed need not be listed: the kernel does not have the table, or the last
// write has seen to it that there is no chain for the node's own look-ups, which most agents never have.
func (t *iptablesBackend) isAbsent(f Family, c chain) bool {
	known := t.lastWrite[f].chains
	return !t.tableLoaded(f, c.table) || c.name == hostDivertChain && known != nil && !known[c].exists
}

// readHook adds to s what is in c's built-in chain.
func (t *iptablesBackend) readHook(ctx context.Context, f Family, c chain, s *chainState) error {
	lines, exists, err := t.list(ctx, f, c.table, c.hook)
	if err != nil {
		return err
	}
	// A built-in chain is never missing, except in nf_tables before the first write to its table.
	// iptables prints the same about a match or a target that the kernel does not have.
	if !exists && t.mode == "legacy" {
		return fmt.Errorf("built-in chain %s of table %s can't be read", c.hook, c.table)
	}
	for _, l := range lines {
		switch {
		case strings.HasSuffix(l, " -j "+c.name):
			s.jumps = append(s.jumps, l)
		case t.isNodeLocalRule(l):
			s.nodeLocal = append(s.nodeLocal, l)
		}
	}
	s.place = findPlace(lines, func(line string) bool { return slices.Contains(s.jumps, line) })
	s.place.wrong = c.table == "filter" && t.contests.overtakes(f.String()+"-"+t.mode+" "+c.table+" "+c.hook, s.place.wrong)
	return nil
}

func (t *iptablesBackend) localAddrs(ctx context.Context) (addrs []netip.Addr, err error) {
	var problems []error
	for _, f := range families() {
		if t.programs[f] == nil {
			continue
		}
		state, err := t.readState(ctx, desiredRules{}, f)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s rules: %w", f, err))
		}
		for _, s := range state {
			for _, line := range slices.Concat(s.rules, s.nodeLocal) {
				addrs = append(addrs, ruleAddrs(line)...)
			}
		}
	}
	return addrs, joinErrors(problems)
}

// isNodeLocalRule reports whether a line is a NodeLocal DNSCache rule to be deleted.
func (t *iptablesBackend) isNodeLocalRule(line string) bool {
	if !strings.Contains(line, nodeLocalComment) {
		return false
	}
	return t.addrs == nil || slices.ContainsFunc(t.addrs, func(a netip.Addr) bool {
		return strings.Contains(line, "-d "+hostPrefix(a)+" ") || strings.Contains(line, "-s "+hostPrefix(a)+" ")
	})
}

// list returns the rules of a chain, without its policy, and whether the chain exists.
func (t *iptablesBackend) list(ctx context.Context, f Family, table, chain string) (rules []string, exists bool, err error) {
	if t.programs[f] == nil {
		return nil, false, fmt.Errorf("%s-%s: %w", f, t.mode, ErrNoTool)
	}
	lines, err := t.programs[f].list(ctx, table, chain)
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
