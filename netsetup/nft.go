package netsetup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"time"
)

const (
	// maxNftTries is how often a change is tried, because another program, such as a firewall
	// that reloads, may change the chains between listing and writing.
	maxNftTries = 3

	// kubeProxyTimeout bounds hasKubeProxy. Listing the chains of a node with 25,000 Services
	// takes 0.15 s on an idle machine and up to 2 s on a busy one. A wrong result selects a
	// backend that conflicts with kube-proxy's.
	kubeProxyTimeout = 10 * time.Second
)

// nftBackend is the rule backend that uses the program nft. It replaces its own table in one
// transaction, so that no packet finds half of it. The same transaction adds accept rules to foreign
// chains that would drop DNS (nftChain), because an accept in one table does not override a drop in
// another. Chains managed by iptables are changed by iptables (nftXtables).
//
// To check the rules it compares the output of nft with the output right after the last change, as
// each version prints rules differently. A new process therefore writes once, even if everything is
// in place.
type nftBackend struct {
	// programs are the programs of iptables, for the chains that it manages.
	programs *programSet
	// lastScript is the table as last written, and lastState what the kernel held then.
	lastScript string
	lastState  nftState
}

// newNftBackend returns a backend that reads and changes chains managed by iptables through
// programs. It touches nothing.
func newNftBackend(programs *programSet) *nftBackend { return &nftBackend{programs: programs} }

// name implements ruleBackend.
func (n *nftBackend) name() string { return "nftables" }

// describe implements ruleBackend.
func (n *nftBackend) describe(desired desiredRules) string {
	const insert = "#   insert rule FAMILY TABLE CHAIN "
	return "# at the head of foreign chains that drop input, and likewise output:\n" +
		insert + strings.Join(nftAccepts("inet", "input", desired), "\n"+insert) +
		"\n" + strings.TrimSuffix(nftTable(desired), "\n")
}

// hasKubeProxy reports whether the node's kube-proxy uses nftables: whether its table exists. False if
// nft fails. It may block for kubeProxyTimeout.
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

// ensure implements ruleBackend.
func (n *nftBackend) ensure(ctx context.Context, desired desiredRules) (changed int, err error) {
	for range maxNftTries {
		changed, err = n.ensureOnce(ctx, desired)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNoTool) {
			return changed, err
		}
		if errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	return 0, n.diagnose(ctx, desired, err)
}

// ensureOnce lists the rules, changes them if necessary, and lists them again.
func (n *nftBackend) ensureOnce(ctx context.Context, desired desiredRules) (changed int, err error) {
	before, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	text := nftTable(desired)
	if text == n.lastScript && before.equal(n.lastState) {
		return 0, nil
	}
	n.lastScript = "" // write again if this fails halfway
	if err := nftWrite(ctx, before, desired); err != nil {
		return 0, err
	}
	after, err := readNftState(ctx, n.programs)
	if err != nil {
		return 0, err
	}
	if after.own == "" {
		return 0, errors.New("another program deletes table inet nodens as soon as it is added")
	}
	if after.isComplete(desired) { // else another program changes the chains: the next check writes again
		n.lastScript, n.lastState = text, after
	}
	return before.countChanges(after), nil
}

// nftWrite replaces our table and our rules in foreign chains. Accept rules come first: an untracked
// packet does not match a firewall's rules for established connections.
func nftWrite(ctx context.Context, before nftState, desired desiredRules) error {
	script := before.foreignScript(desired) + nftTable(desired)
	if len(before.xtables) > 0 {
		// iptables needs a transaction of its own: check the other one first.
		if err := nftCheck(ctx, script); err != nil {
			return err
		}
		if err := nftWriteXtables(ctx, before.xtables, desired); err != nil {
			return err
		}
	}
	_, err := execute(ctx, script, "nft", "-f", "-")
	return err
}

// diagnose finds the reason for a refused change by having nft check parts of it.
func (n *nftBackend) diagnose(ctx context.Context, desired desiredRules, err error) error {
	with := nftTable(desired)
	desired.matchSocket = false
	switch refused := nftCheck(ctx, with); {
	case refused == nil && errors.Is(err, fs.ErrPermission):
		// Not wrapped: this process does have the permission.
		return fmt.Errorf("another program owns a table that drops DNS; have that "+
			"firewall accept port %d itself, or use --netfilter none: %s", desired.dnsPort, err)
	case refused == nil, errors.Is(refused, fs.ErrPermission), errors.Is(refused, ErrLocked):
		return err
	case nftTable(desired) != with && nftCheck(ctx, nftTable(desired)) == nil && nftCheck(ctx, with) != nil:
		return fmt.Errorf("%w: %w", ErrNoSocket, err)
	}
	return err
}

// nftCheck has nft and the kernel check a script without applying it.
func nftCheck(ctx context.Context, script string) error {
	_, err := execute(ctx, script, "nft", "-c", "-f", "-")
	return err
}

// remove implements ruleBackend. It deletes the table first, which needs no listing: if time runs
// out, only accept rules are left, which have no effect alone.
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

// localAddrs implements ruleBackend: the addresses are in the sets of our table.
func (n *nftBackend) localAddrs(ctx context.Context) (addrs []netip.Addr, err error) {
	out, err := execute(ctx, "", "nft", "-j", "list", "table", "inet", "nodens")
	if errors.Is(err, errNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = nftEachObject(out, func(key string, val json.RawMessage) error {
		if key != "set" {
			return nil
		}
		var set struct{ Elem []any }
		if err := json.Unmarshal(val, &set); err != nil {
			return err
		}
		for _, e := range set.Elem {
			if a, err := netip.ParseAddr(fmt.Sprint(e)); err == nil { // else the name of an interface
				addrs = append(addrs, a)
			}
		}
		return nil
	})
	return addrs, err
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
