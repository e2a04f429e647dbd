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

// choice is the filter to use on a node, and the others that may have left something.
type choice struct {
	filter filter
	others []filter
}

// choose implements Node. It looks, and changes nothing.
func (k *kernel) choose(ctx context.Context, how Netfilter, locals []netip.Addr) (choice, error) {
	installed := flavours(ctx, locals)
	nft := newNftables()
	_, err := exec.LookPath("nft")
	haveNft := err == nil

	var c choice
	switch {
	case how == NetfilterNftables, how != NetfilterIptables && haveNft && nft.found():
		c.filter = nft
	case len(installed) > 0:
		c.filter = spoken(ctx, installed)
	case how != NetfilterIptables && haveNft:
		c.filter = nft
	case how == NetfilterIptables:
		return choice{}, fmt.Errorf("iptables: %w", ErrNoTool)
	default:
		return choice{}, fmt.Errorf("neither iptables nor nft: %w", ErrNoTool)
	}
	for _, t := range installed {
		if filter(t) != c.filter {
			c.others = append(c.others, t)
		}
	}
	if haveNft && c.filter != filter(nft) {
		c.others = append(c.others, nft)
	}
	return c, nil
}

// flavours are the filters of iptables that are installed, first the one that goes by
// the plain name.
func flavours(ctx context.Context, locals []netip.Addr) []*iptables {
	names := []string{"nft", "legacy"}
	plain := ""
	if out, err := execute(ctx, "", "iptables", "--version"); err == nil {
		plain = "legacy" // as are those whose version does not say
		if strings.Contains(out, "nf_tables") {
			plain = "nft"
		}
	}
	if plain == "legacy" {
		slices.Reverse(names)
	}
	var found []*iptables
	for _, name := range names {
		t := &iptables{flavour: name, locals: locals, run: execute, loaded: loaded}
		if name == "nft" {
			t.loaded = func(Family, string) bool { return true } // a look loads nothing
		}
		for _, f := range families() {
			for _, program := range []string{f.String() + "-" + name, f.String()} {
				_, err := exec.LookPath(program + "-restore")
				if err == nil && t.programs[f] == "" && (program != f.String() || name == plain) {
					t.programs[f] = program
				}
			}
		}
		if t.programs != [2]string{} {
			found = append(found, t)
		}
	}
	return found
}

// spoken is the flavour that the node's kubelet or kube-proxy uses, or else the first.
func spoken(ctx context.Context, installed []*iptables) *iptables {
	// kubelet and kube-proxy leave the first three for others to see which flavour they
	// use; old ones leave the last one only.
	for _, mark := range []struct{ table, chain string }{
		{"mangle", "KUBE-IPTABLES-HINT"},
		{"mangle", "KUBE-KUBELET-CANARY"},
		{"mangle", "KUBE-PROXY-CANARY"},
		{"nat", "KUBE-SERVICES"},
	} {
		for _, t := range installed {
			for _, f := range families() {
				if t.programs[f] == "" || !t.loaded(f, mark.table) {
					continue
				}
				if _, err := t.list(ctx, f, mark.table, mark.chain); err == nil {
					return t
				}
			}
		}
	}
	return installed[0]
}

// loaded reports whether the kernel has one of the tables of iptables' legacy flavour.
// If the kernel does not say, it has none.
func loaded(f Family, table string) bool {
	path := "/proc/net/ip_tables_names"
	if f == IPv6 {
		path = "/proc/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	return err == nil && slices.Contains(strings.Fields(string(names)), table)
}

// Preview says in words what New and its Setup would do on this node: link, addresses,
// and the rules in the form of the filter that they would use. It looks at the node to
// know which that is, and changes nothing. The error is NewPlan's, or says that there is
// no filter.
func Preview(ctx context.Context, c Config) (string, error) {
	p, err := NewPlan(c)
	if err != nil {
		return "", err
	}
	if len(p.want.locals) == 0 {
		return p.String(), nil
	}
	chosen, err := (&kernel{}).choose(ctx, c.Netfilter, c.Addresses)
	if err != nil {
		return "", errors.Join(&Error{Type: Iptables, Op: "looking for a way to make rules", Hint: toolHint, Err: err})
	}
	return p.text(chosen.filter), nil
}
