package netsetup

// Inside the package: the backends are not exported.

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// chosenNode is this machine with a backend that the test has chosen.
type chosenNode struct {
	*kernelNode
	name string
}

// chooseBackend implements Node.
func (n chosenNode) chooseBackend(ctx context.Context, _ Netfilter, addrs []netip.Addr) (backendChoice, error) {
	c, err := chooseBackend(ctx, NetfilterNftables, addrs)
	all := append([]ruleBackend{c.backend}, c.others...)
	i := slices.IndexFunc(all, func(b ruleBackend) bool { return b.name() == n.name })
	if err != nil || i < 0 {
		return c, errors.Join(err, ErrNoTool)
	}
	return backendChoice{backend: all[i], others: slices.Delete(slices.Clone(all), i, i+1)}, nil
}

// TestBackendChange: an agent takes over with another backend, in every direction. The predecessor restores its
// rules until it has handed over; after that, one backend has rules.
func TestBackendChange(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		names := []string{"iptables (nft)", "iptables (legacy)", "nftables"}
		backends := func() []string {
			t.Helper()
			var with []string
			for _, name := range names {
				c, err := chosenNode{name: name}.chooseBackend(t.Context(), "", labLocals)
				check.NoError(t, err)
				addrs, err := c.backend.localAddrs(t.Context())
				if err != nil {
					t.Error(err)
				}
				if len(addrs) > 0 {
					with = append(with, name)
				}
			}
			return with
		}
		config := Config{Addresses: labLocals, DNSPort: 53, SetupIptables: true}
		for _, from := range names {
			for _, to := range names {
				if from == to {
					continue
				}
				t.Run(from+" to "+to, func(t *testing.T) {
					old, next := newSetup(t, config, chosenNode{name: from}), newSetup(t, config, chosenNode{name: to})
					for _, s := range []*Setup{old, next} {
						check.NoError(t, s.EnsureRules(t.Context()))
					}
					old.recheck(t.Context()) // the last one before it has handed over
					next.recheck(t.Context())
					old.Yield(t.Context())
					if got := backends(); !slices.Equal(got, []string{to}) {
						t.Errorf("rules of %q, want those of %q", got, to)
					}
					tearDown(t, next)
					if got := backends(); got != nil {
						t.Errorf("after the teardown rules of %q", got)
					}
				})
			}
		}
	})
}
