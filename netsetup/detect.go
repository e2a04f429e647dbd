package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// backendChoice is the backend to use on a node, and the other usable ones, whose rules of an
// earlier agent may still be there.
type backendChoice struct {
	backend ruleBackend
	others  []ruleBackend
	// reason says why, for the log.
	reason string
	// again chooses again among the same backends, by what is on the node now. An error: could
	// not tell. Nil: the choice does not change.
	again func(ctx context.Context) (ruleBackend, string, error)
}

// backendSet has the backends that a node can use.
type backendSet struct {
	setting Netfilter
	modes   []*iptablesBackend // the first is the default
	nft     *nftBackend        // nil: the kernel has no nf_tables
}

// chooseBackend implements Node's method. It changes nothing on the node.
func chooseBackend(ctx context.Context, setting Netfilter, addrs []netip.Addr) (backendChoice, error) {
	programs := make(programSet)
	set := backendSet{setting: setting}
	var unusable error
	set.modes, unusable = installedModes(ctx, programs, addrs)
	if _, err := listTables(); !errors.Is(err, errNoNftables) {
		set.nft = newNftBackend(programs)
		for _, t := range set.modes {
			t.admission = &admission{programs: programs, exempt: t.exempts}
		}
	}
	backend, reason, err := set.choose(ctx)
	if backend == nil {
		return backendChoice{}, errors.Join(err, unusable)
	}
	c := backendChoice{backend: backend, reason: reason}
	if unusable != nil {
		c.reason += "; " + oneLine(unusable.Error())
	}
	if err != nil {
		c.reason += fmt.Sprintf("; could not tell whether kube-proxy uses nftables: %v", err)
	}
	if setting == NetfilterAuto || setting == "" {
		c.again = set.choose
	}
	for _, t := range set.modes {
		c.others = append(c.others, t)
	}
	if set.nft != nil {
		c.others = append(c.others, set.nft)
	}
	c.others = slices.DeleteFunc(c.others, func(f ruleBackend) bool { return f == c.backend })
	return c, nil
}

// exempts reports whether a chain needs no accept rules beside those of the backend. In table raw an accept
// would precede our NOTRACK.
func (t *iptablesBackend) exempts(c foreignChain) bool {
	ours := c.ofIptables() || c.table == "raw" && c.family != "inet"
	return ours && (c.legacy != nil) == (t.mode == "legacy")
}

// choose returns the backend for what is on the node now, and the reason. With an error that is a
// guess; nil if there is none.
func (s backendSet) choose(ctx context.Context) (ruleBackend, string, error) {
	switch {
	case s.setting == NetfilterNftables && s.nft == nil:
		return nil, "", errNoNftables
	case s.setting == NetfilterNftables:
		return s.nft, "--netfilter nftables", nil
	case s.setting == NetfilterIptables:
		if mode, reason := preferredMode(ctx, s.modes); mode != nil {
			return mode, reason, nil
		}
		return nil, "", fmt.Errorf("iptables: %w", ErrNoTool)
	}
	return s.detect(ctx)
}

// detect is choose for NetfilterAuto.
func (s backendSet) detect(ctx context.Context) (ruleBackend, string, error) {
	var err error
	if s.nft != nil {
		var tables map[string]uint32
		tables, err = listTables()
		for name := range tables {
			if name == "ip "+kubeProxyTable || name == "ip6 "+kubeProxyTable {
				return s.nft, "kube-proxy has table " + kubeProxyTable, nil
			}
		}
	}
	mode, reason := preferredMode(ctx, s.modes)
	switch {
	case mode == nil && s.nft == nil:
		return nil, "", fmt.Errorf("iptables: %w, and %w", ErrNoTool, errNoNftables)
	case mode == nil:
		return s.nft, "iptables is not installed", err
	case mode.refused != "" && s.nft != nil:
		return s.nft, mode.name() + " refuses to write: " + mode.refused, err
	}
	return mode, reason, err
}

// installedModes returns a backend for each mode of iptables that is installed, first the mode
// of the program without a mode in its name. unusable has the programs that are installed and
// fail when they are asked for their version.
func installedModes(ctx context.Context, programs programSet, addrs []netip.Addr) (installed []*iptablesBackend, unusable error) {
	modes := []string{"nft", "legacy"}
	plain := ""
	if out, err := execute(ctx, "", "iptables", "--version"); err == nil {
		plain = "legacy" // old versions do not print their mode
		if strings.Contains(out, "nf_tables") {
			plain = "nft"
		}
	}
	if plain == "legacy" {
		slices.Reverse(modes)
	}
	for _, mode := range modes {
		t := &iptablesBackend{mode: mode, addrs: addrs, tableLoaded: legacyTableLoaded}
		if mode == "nft" {
			t.tableLoaded = func(Family, string) bool { return true } // listing loads nothing
		}
		for _, f := range families() {
			names := []string{f.String() + "-" + mode}
			if mode == plain {
				names = append(names, f.String())
			}
			unusable = errors.Join(unusable, t.openProgram(ctx, programs, f, names))
		}
		if t.programs != [2]ruleProgram{} {
			installed = append(installed, t)
		}
	}
	return installed, unusable
}

// openProgram sets the family's program to the first of names that is installed.
func (t *iptablesBackend) openProgram(ctx context.Context, programs programSet, f Family, names []string) error {
	for _, name := range names {
		p, err := programs.open(ctx, f, name)
		if errors.Is(err, ErrNoTool) {
			continue
		}
		if err == nil {
			t.programs[f] = p
			if t.mode == "nft" {
				t.programs[f] = nftProgram{p}
			}
		}
		return err
	}
	return nil
}

// preferredMode returns the mode that the node's kubelet or kube-proxy uses, or else the first
// installed one, and why; nil if none is installed.
func preferredMode(ctx context.Context, installed []*iptablesBackend) (mode *iptablesBackend, reason string) {
	// kubelet and kube-proxy create the first three chains to show which mode they use; old
	// versions create only the last one.
	for _, hint := range []struct{ table, chain string }{
		{"mangle", "KUBE-IPTABLES-HINT"},
		{"mangle", "KUBE-KUBELET-CANARY"},
		{"mangle", "KUBE-PROXY-CANARY"},
		{"nat", "KUBE-SERVICES"},
	} {
		for _, t := range installed {
			if t.hasChain(ctx, hint.table, hint.chain) {
				return t, fmt.Sprintf("chain %s is in table %s", hint.chain, hint.table)
			}
		}
	}
	if len(installed) == 0 {
		return nil, ""
	}
	return installed[0], "kube-proxy has no rules here, and this is the mode of the program iptables"
}

// hasChain reports whether a chain exists, in one family or the other.
func (t *iptablesBackend) hasChain(ctx context.Context, table, chain string) bool {
	return slices.ContainsFunc(families(), func(f Family) bool {
		if t.programs[f] == nil || !t.tableLoaded(f, table) {
			return false
		}
		_, exists, err := t.list(ctx, f, table, chain)
		return err == nil && exists
	})
}

// legacyTableLoaded reports whether the kernel has a table of iptables' legacy mode; false if it
// does not tell.
func legacyTableLoaded(f Family, table string) bool {
	path := "/proc/net/ip_tables_names"
	if f == IPv6 {
		path = "/proc/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	return err == nil && slices.Contains(strings.Fields(string(names)), table)
}

// ruleBackend is one way to have rules in the kernel. A Setup uses one and calls one method
// at a time. Every method may block for some seconds, but returns soon after ctx is done.
// Errors wrap a sentinel of this package or fs.ErrPermission where that is the cause.
type ruleBackend interface {
	// name returns the --netfilter value with the mode of iptables: "iptables (nft)",
	// "iptables (legacy)" or "nftables".
	name() string
	// describe returns the desired rules in the syntax of the backend's own tools, without
	// a newline at the end. It runs no program.
	describe(desired desiredRules) string
	// ensure makes the kernel hold the desired rules and nothing else of ours, in as few
	// transactions as the backend allows. At no moment does a packet find neither the old
	// rules nor the new ones. changed is the number of missing or modified objects that it
	// restored: 0 if everything was in place. ErrNoSocket, and no change: the kernel lacks
	// the socket match that desired asks for.
	ensure(ctx context.Context, desired desiredRules) (changed int, err error)
	// remove deletes everything that ensure may have made, in any version or process, and
	// returns the number of deleted objects; 0 and no error if there was nothing. It leaves the
	// accept rules in foreign chains unless accepts is set: every backend needs them.
	remove(ctx context.Context, accepts bool) (removed int, err error)
	// localAddrs returns the local addresses in the rules that remove would delete, with
	// duplicates and in no order; nil if there are none. It changes nothing.
	localAddrs(ctx context.Context) ([]netip.Addr, error)
	// blocked names the chains that may drop DNS because ensure can't add accept rules at their
	// head: another process owns the table, or puts its own rules first again and again. Nil if
	// there are none.
	blocked() []string
}

// desiredRules says what the rules do, independent of the backend. Without addrs there are
// no rules.
type desiredRules struct {
	// addrs are the local addresses at which the agent answers, of both families.
	addrs []netip.Addr
	// dnsPort is for UDP and TCP. healthPort is the TCP port of the liveness probe; 0: none.
	dnsPort, healthPort uint16
	// matchSocket: packets for a local address are untracked only while a socket listens
	// there. Otherwise they always are.
	matchSocket bool
	// untrackHost: queries from the node's own processes are always untracked. Not set while
	// an owner table does it.
	untrackHost bool
	// diversion are the DNS servers that queries go to while nothing listens at the local
	// addresses, of both families and in any order. Empty: no such rule.
	diversion []netip.AddrPort
	// hosts are those of addrs that serve the node's own look-ups, and hostDiversion are the
	// servers that their queries go to instead of diversion.
	hosts         []netip.Addr
	hostDiversion []netip.AddrPort
	// external are the interfaces to hosts outside the node, sorted. Packets that enter
	// there are dropped if they are for a link-local address, and otherwise left alone.
	external []string
}
