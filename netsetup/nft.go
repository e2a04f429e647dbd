package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

const (
	// maxNftTries is how often a change is tried: chains are looked at first and changed
	// then, and another program may change them in between. Once is not enough while a
	// firewall reloads; what fails three times fails for another reason.
	maxNftTries = 3

	// kubeProxyTimeout is how long found may take. Listing the chains of a node with 25,000
	// Services takes 0.15 s on an idle machine, and has taken 2 s on one with seven
	// times the work it can do; a wrong answer makes rules that kube-proxy's may not
	// agree with, so there is time to spare. Nodes start no faster with half of it.
	kubeProxyTimeout = 10 * time.Second
)

// nftBackend is the filter that speaks nf_tables by the program nft. It has a table of its
// own, which is replaced whole in one transaction: the kernel puts all of it in force at
// one moment, so that no packet finds half of it. The same transaction puts an accept
// rule into other tables' chains that would drop DNS (nftChain), as an accept of one
// table is no word against another one's drop. Tables that iptables keeps are changed by
// iptables (nftXtables).
//
// Whether all is as it should be is told by comparing what nft prints with what it
// printed right after the last change, so that no version's way of printing matters. A
// process that has changed nothing so far writes once, even if all is in place.
type nftBackend struct {
	// programs are those of iptables, for the chains that it manages.
	programs *programSet
	// lastScript is the table that was last written, and written what the kernel held then.
	lastScript string
	lastState  nftState
}

// newNftBackend returns a backend that reads and changes chains managed by iptables through
// programs. It touches nothing.
func newNftBackend(programs *programSet) *nftBackend { return &nftBackend{programs: programs} }

// name implements filter.
func (n *nftBackend) name() string { return "nftables" }

// describe implements filter.
func (n *nftBackend) describe(w desiredRules) string {
	const insert = "#   insert rule FAMILY TABLE CHAIN "
	return "# at the head of other tables' chains that drop input, and likewise output:\n" +
		insert + strings.Join(nftAccepts("inet", "input", w), "\n"+insert) +
		"\n" + strings.TrimSuffix(nftTable(w), "\n")
}

// hasKubeProxy reports whether the node's kube-proxy uses nftables: whether a table of its name
// is there. No nft, no right to ask: false. It may block for nftLook.
func (n *nftBackend) hasKubeProxy() bool {
	ctx, cancel := context.WithTimeout(context.Background(), kubeProxyTimeout)
	defer cancel()
	chains, err := nftListChains(ctx)
	if err != nil {
		return false
	}
	for _, c := range chains {
		if c.Table == nftKubeProxy && (c.Family == "ip" || c.Family == "ip6") {
			return true
		}
	}
	return false
}

// ensure implements filter.
func (n *nftBackend) ensure(ctx context.Context, w desiredRules) (changed int, err error) {
	for range maxNftTries {
		changed, err = n.ensureOnce(ctx, w)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNoTool) {
			return changed, err
		}
		if errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	return 0, n.diagnose(ctx, w, err)
}

// ensureOnce looks once and changes what is to be changed.
func (n *nftBackend) ensureOnce(ctx context.Context, w desiredRules) (changed int, err error) {
	before, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	text := nftTable(w)
	if text == n.lastScript && before.equal(n.lastState) {
		return 0, nil
	}
	n.lastScript = "" // until all is done: what fails halfway is written again
	if err := nftWrite(ctx, before, w); err != nil {
		return 0, err
	}
	after, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	if after.own == "" {
		return 0, errors.New("somebody removes table inet nodens as soon as it is made")
	}
	if after.isComplete(w) { // else others are at work: the next check writes again
		n.lastScript, n.lastState = text, after
	}
	return before.countChanges(after), nil
}

// nftWrite replaces all that is ours, in the table and in chains of others. Accept rules
// come first: an untracked packet matches none of a firewall's rules for established
// connections.
func nftWrite(ctx context.Context, before nftState, w desiredRules) error {
	script := before.foreignScript(w) + nftTable(w)
	if len(before.xtables) > 0 {
		// A transaction of its own; nothing is left behind if the other one is refused.
		if err := nftCheck(ctx, script); err != nil {
			return err
		}
		if err := nftWriteXtables(ctx, before.xtables, w); err != nil {
			return err
		}
	}
	_, err := execute(ctx, script, "nft", "-f", "-")
	return err
}

// diagnose finds out why nft has refused a change, by asking it to check parts of it.
func (n *nftBackend) diagnose(ctx context.Context, w desiredRules, err error) error {
	with := nftTable(w)
	w.matchSocket = false
	switch refused := nftCheck(ctx, with); {
	case refused == nil && errors.Is(err, fs.ErrPermission):
		// Not wrapped: this process has the right that the cause seems to ask for.
		return fmt.Errorf("another program keeps a table to itself that drops DNS; let that "+
			"firewall accept port %d by its own means, or give -netfilter none: %s", w.dnsPort, err)
	case refused == nil, errors.Is(refused, fs.ErrPermission), errors.Is(refused, ErrLocked):
		return err
	case nftTable(w) != with && nftCheck(ctx, nftTable(w)) == nil && nftCheck(ctx, with) != nil:
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return err
}

// nftCheck asks nft and the kernel whether they would take a script. Nothing changes.
func nftCheck(ctx context.Context, script string) error {
	_, err := execute(ctx, script, "nft", "-c", "-f", "-")
	return err
}

// remove implements filter. The table goes first, by itself, as it takes no look at the
// node: where time is short it is the accept rules that stay, which do nothing alone.
func (n *nftBackend) remove(ctx context.Context) (removed int, err error) {
	n.lastScript, n.lastState = "", nftState{}
	_, err = execute(ctx, "", "nft", "delete", "table", "inet", "nodens")
	switch {
	case err == nil:
		removed++
	case !errors.Is(err, errNotFound):
		return 0, err
	}
	for range maxNftTries {
		var accepts int
		accepts, err = n.removeAccepts(ctx)
		if err == nil || ctx.Err() != nil {
			return removed + accepts, err
		}
	}
	return removed, err
}

// removeAccepts deletes our rules from foreign chains.
func (n *nftBackend) removeAccepts(ctx context.Context) (removed int, err error) {
	var s nftState
	if err := s.readForeign(ctx, n.programs); err != nil {
		return 0, err
	}
	if script := s.foreignScript(desiredRules{}); script != "" {
		if _, err := execute(ctx, script, "nft", "-f", "-"); err != nil {
			return 0, err
		}
		removed = strings.Count(script, "\n")
	}
	for _, c := range s.xtables {
		removed += len(c.ours)
	}
	return removed, nftWriteXtables(ctx, s.xtables, desiredRules{})
}
