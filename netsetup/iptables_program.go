package netsetup

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// ruleProgram is one family's pair of iptables programs in one mode: iptables, which lists, and
// iptables-restore, which writes. Every method blocks while the programs run, but not after ctx is
// done, and waits for the xtables lock (see [retryLocked]). Errors wrap ErrLocked, ErrNoTool,
// fs.ErrPermission, errNoChain, errNotXtables or errRuleGone where that is the cause.
type ruleProgram interface {
	// list returns the chain as `iptables -S` prints it: a line with its name and policy,
	// then a line that begins with "-A " for each rule. errNoChain if there is no such chain or table; never nil without an error.
	list(ctx context.Context, table, chain string) (lines []string, err error)
	// remove deletes rules, given as the lines that list returned, then chains to which no other
	// rule jumps, in one transaction. It fails if another program has deleted one of them.
	remove(ctx context.Context, table string, rules, chains []string) error
	// restore applies the input of iptables-restore --noflush, each table in one
	// transaction.
	restore(ctx context.Context, script string) error
}

// iptablesProgram implements ruleProgram by go-iptables, which lists chains, and by iptables-restore, which
// that library does not have. It is safe for concurrent use.
type iptablesProgram struct {
	name      string // such as ip6tables-nft
	family    Family
	listChain chainLister
}

// chainLister is go-iptables' List, with errors of this package.
type chainLister func(table, chain string) ([]string, error)

// programSet has the programs that were opened, by name. It belongs to one goroutine at a time.
type programSet map[string]*iptablesProgram

// open returns the program of a family by its name; the first time it asks the program for its
// version. ErrNoTool if it is not installed together with its iptables-restore.
func (s programSet) open(ctx context.Context, f Family, name string) (*iptablesProgram, error) {
	if p := s[name]; p != nil {
		return p, nil
	}
	if _, err := exec.LookPath(name + "-restore"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTool, err)
	}
	lister, err := call(ctx, name, func() (chainLister, error) { return openIptables(f, name) })
	if err != nil {
		return nil, err
	}
	s[name] = &iptablesProgram{name: name, family: f, listChain: lister}
	return s[name], nil
}

// maxCalls bounds the calls of go-iptables under way in the process, abandoned ones included. A Setup makes one
// at a time.
const maxCalls = 4

// calls has an element for each call under way.
var calls = make(chan struct{}, maxCalls)

// call bounds f, a call of go-iptables, by ctx and execTimeout. The library has no context, so a program that
// hangs is abandoned, not killed: f counts against maxCalls until it returns, and must not write to variables
// of the caller. Nothing bounds the output but the size of the chain in the kernel that the program lists.
func call[T any](ctx context.Context, program string, f func() (T, error)) (value T, err error) {
	type result struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, execTimeout, errTimeout)
	defer cancel()
	done := make(chan result, 1) // buffered: nobody reads an abandoned call's result
	select {
	case calls <- struct{}{}:
		go func() {
			value, err := f()
			<-calls
			done <- result{value, err}
		}()
	case <-ctx.Done():
	}
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		return value, fmt.Errorf("%s: %w", program, context.Cause(ctx))
	}
}

func (p *iptablesProgram) list(ctx context.Context, table, chain string) (lines []string, err error) {
	err = retryLocked(ctx, func() (err error) {
		lines, err = call(ctx, p.name, func() ([]string, error) { return p.listChain(table, chain) })
		return err
	})
	return lines, err
}

func (p *iptablesProgram) remove(ctx context.Context, table string, rules, chains []string) error {
	var script, deletions strings.Builder
	fmt.Fprintf(&script, "*%s\n", table)
	for _, line := range rules {
		fmt.Fprintf(&script, "-D %s\n", strings.TrimPrefix(line, "-A "))
	}
	for _, chain := range chains {
		fmt.Fprintf(&script, ":%s - [0:0]\n", chain) // empties it
		fmt.Fprintf(&deletions, "-X %s\n", chain)
	}
	return p.restore(ctx, script.String()+deletions.String()+"COMMIT\n")
}

func (p *iptablesProgram) restore(ctx context.Context, script string) error {
	return retryLocked(ctx, func() error {
		_, err := execute(ctx, script, p.name+"-restore", "-w", strconv.Itoa(int(lockWait.Seconds())), "--noflush")
		return err
	})
}

// ruleAddrs returns the single addresses that a line of `iptables -S` matches as source or
// destination.
func ruleAddrs(line string) (addrs []netip.Addr) {
	words := strings.Fields(line)
	for i, w := range words[:max(len(words)-1, 0)] {
		if w != "-s" && w != "-d" {
			continue
		}
		if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// nftProgram is a family's iptables in mode nft: iptables-restore writes, and netlink reads and deletes.
// A single rule of another program that iptables can't express, such as `nft add rule ip raw PREROUTING
// udp dport 4789 notrack`, makes iptables refuse the table ("incompatible"), or print rules without
// what it does not know and end with status 0. Its message about a missing chain is about many other
// things as well.
type nftProgram struct{ *iptablesProgram }

// list implements ruleProgram: a line is an [nftRule]'s.
func (p nftProgram) list(_ context.Context, table, chain string) (lines []string, err error) {
	rules, err := listRules(p.family.keyword(), table, chain)
	lines = []string{"-N " + chain}
	for _, r := range rules {
		lines = append(lines, r.line)
	}
	return lines, err
}

// remove implements ruleProgram. Of equal rules it deletes the last: a jump that was written again
// at the head of its chain comes before the old one.
func (p nftProgram) remove(_ context.Context, table string, lines, chains []string) error {
	var changes []nftChange
	taken := make(map[uint64]bool) // by handle
	for _, line := range lines {
		in := p.chain(table, strings.Fields(line)[1])
		rules, err := listRules(in.family, table, in.name)
		if err != nil {
			return err
		}
		for _, r := range slices.Backward(rules) {
			if r.line == line && !taken[r.handle] {
				changes = append(changes, nftChange{deleteRule: r.handle, in: in})
				taken[r.handle] = true
				break
			}
		}
	}
	for _, name := range chains {
		changes = append(changes, nftChange{deleteChain: p.chain(table, name)})
	}
	return commit(changes)
}

func (p nftProgram) chain(table, name string) nftChain {
	return nftChain{family: p.family.keyword(), table: table, name: name}
}

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
		b, a, counted := before[c], after[c], n
		for _, lines := range [][2][]string{{b.rules, a.rules}, {b.jumps, a.jumps}, {b.nodeLocal, a.nodeLocal}} {
			n += max(countMissing(lines[0], lines[1]), countMissing(lines[1], lines[0]))
		}
		if n == counted && !b.equal(a) && b.exists == a.exists {
			n++
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
