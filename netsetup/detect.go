package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// backendChoice is the filter to use on a node, and the others that may have left something.
type backendChoice struct {
	backend ruleBackend
	others  []ruleBackend
}

// chooseBackend implements Node. It changes nothing on the node.
func (k *kernelNode) chooseBackend(ctx context.Context, how Netfilter, locals []netip.Addr) (backendChoice, error) {
	var c backendChoice
	programs := newProgramSet()
	installed, unusable := installedModes(ctx, programs, locals)
	for _, t := range installed {
		c.others = append(c.others, t)
	}
	if t := preferredMode(ctx, installed); t != nil && how != NetfilterNftables {
		c.backend = t
	}
	if _, err := exec.LookPath("nft"); err == nil {
		nft := newNftBackend(programs)
		c.others = append(c.others, nft)
		if how != NetfilterIptables && (c.backend == nil || nft.hasKubeProxy()) {
			c.backend = nft
		}
	}
	if c.backend == nil {
		return backendChoice{}, errors.Join(how.missingTool(), unusable)
	}
	c.others = slices.DeleteFunc(c.others, func(f ruleBackend) bool { return f == c.backend })
	return c, nil
}

// missingTool says which program would be needed.
func (n Netfilter) missingTool() error {
	switch n {
	case NetfilterIptables:
		return fmt.Errorf("iptables: %w", ErrNoTool)
	case NetfilterNftables:
		return fmt.Errorf("nft: %w", ErrNoTool)
	}
	return fmt.Errorf("neither iptables nor nft: %w", ErrNoTool)
}

// installedModes returns a backend for each mode of iptables that is installed, first the mode
// of the program without a mode in its name. unusable has the programs that are installed and
// fail when they are asked for their version.
func installedModes(ctx context.Context, programs *programSet, addrs []netip.Addr) (installed []*iptablesBackend, unusable error) {
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
		t := &iptablesBackend{mode: mode, locals: addrs, tableLoaded: legacyTableLoaded}
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
func (t *iptablesBackend) openProgram(ctx context.Context, programs *programSet, f Family, names []string) error {
	for _, name := range names {
		p, err := programs.open(ctx, f, name)
		if err == nil {
			t.programs[f] = p
			return nil
		}
		if !errors.Is(err, ErrNoTool) {
			return err
		}
	}
	return nil
}

// preferredMode is the flavour that the node's kubelet or kube-proxy uses, or else the first;
// nil of none.
func preferredMode(ctx context.Context, installed []*iptablesBackend) *iptablesBackend {
	// kubelet and kube-proxy leave the first three for others to see which flavour they
	// use; old ones leave the last one only.
	for _, mark := range []struct{ table, chain string }{
		{"mangle", "KUBE-IPTABLES-HINT"},
		{"mangle", "KUBE-KUBELET-CANARY"},
		{"mangle", "KUBE-PROXY-CANARY"},
		{"nat", "KUBE-SERVICES"},
	} {
		for _, t := range installed {
			if t.hasChain(ctx, mark.table, mark.chain) {
				return t
			}
		}
	}
	if len(installed) == 0 {
		return nil
	}
	return installed[0]
}

// hasChain reports whether a chain exists, in one family or the other.
func (t *iptablesBackend) hasChain(ctx context.Context, table, chain string) bool {
	return slices.ContainsFunc(families(), func(f Family) bool {
		if t.programs[f] == nil || !t.tableLoaded(f, table) {
			return false
		}
		exists, err := t.programs[f].hasChain(ctx, table, chain)
		return err == nil && exists
	})
}

// legacyTableLoaded reports whether the kernel has one of the tables of iptables' legacy flavour.
// If the kernel does not say, it has none.
func legacyTableLoaded(f Family, table string) bool {
	path := "/proc/net/ip_tables_names"
	if f == IPv6 {
		path = "/proc/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	return err == nil && slices.Contains(strings.Fields(string(names)), table)
}

// Preview says in words what New and its Setup would do on this node: link, addresses,
// external interfaces, and the rules in the form of the filter that they would use. It looks at
// the node to know which these are, and changes nothing. The error is NewPlan's, or says that there is
// no filter.
func Preview(ctx context.Context, c Config) (string, error) {
	p, err := NewPlan(c)
	if err != nil {
		return "", err
	}
	if len(p.rules.addrs) == 0 {
		return p.String(), nil
	}
	chosen, err := (&kernelNode{}).chooseBackend(ctx, c.Netfilter, c.Addresses)
	if err != nil {
		return "", errors.Join(&Error{Type: Iptables, Op: "looking for a way to make rules", Hint: toolHint, Err: err})
	}
	if p.followsRoutes {
		found, err := (&kernelNode{}).defaultInterfaces()
		if err != nil {
			return "", &Error{Type: InterfaceCheck, Op: "listing default routes", Hint: externalHint, Err: err}
		}
		p.rules.external, p.notExternal = splitExternal(found)
		p.followsRoutes = false
	}
	return p.text(chosen.backend), nil
}
