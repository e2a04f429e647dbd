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

// backendChoice is the backend to use on a node, and the other installed ones, whose rules of an
// earlier agent may still be there.
type backendChoice struct {
	backend ruleBackend
	others  []ruleBackend
}

// chooseBackend implements Node's method. It changes nothing on the node.
func chooseBackend(ctx context.Context, setting Netfilter, addrs []netip.Addr) (backendChoice, error) {
	var c backendChoice
	programs := newProgramSet()
	installed, unusable := installedModes(ctx, programs, addrs)
	for _, t := range installed {
		c.others = append(c.others, t)
	}
	if t := preferredMode(ctx, installed); t != nil && setting != NetfilterNftables {
		c.backend = t
	}
	if _, err := exec.LookPath("nft"); err == nil {
		nft := newNftBackend(programs)
		c.others = append(c.others, nft)
		if setting != NetfilterIptables && (c.backend == nil || nft.hasKubeProxy()) {
			c.backend = nft
		}
	}
	if c.backend == nil {
		return backendChoice{}, errors.Join(setting.missingTool(), unusable)
	}
	c.others = slices.DeleteFunc(c.others, func(f ruleBackend) bool { return f == c.backend })
	return c, nil
}

// missingTool returns an ErrNoTool that names the program that is missing.
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

// preferredMode returns the mode that the node's kubelet or kube-proxy uses, or else the first
// installed one; nil if none is installed.
func preferredMode(ctx context.Context, installed []*iptablesBackend) *iptablesBackend {
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
