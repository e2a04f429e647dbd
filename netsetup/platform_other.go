//go:build !linux

package netsetup

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
)

// thisNode returns ErrNotLinux.
func thisNode() (Node, error) { return nil, ErrNotLinux }

// The rest is never called: [thisNode] fails before.

func openIptables(Family, string) (chainLister, error)    { return nil, ErrNotLinux }
func listTables() (map[string]uint32, error)              { return nil, ErrNotLinux }
func listChains() ([]nftChain, error)                     { return nil, ErrNotLinux }
func listRules(string, string, string) ([]nftRule, error) { return nil, ErrNotLinux }
func commit([]nftChange) error                            { return ErrNotLinux }
func probeSocketMatch() probeResult                       { return unknown }

// EgressSets are for Linux only.
type EgressSets struct{}

// Sync returns ErrNotLinux.
func (*EgressSets) Sync(map[string][]netip.Addr, bool) ([]string, error) { return nil, ErrNotLinux }

// Add returns ErrNotLinux.
func (*EgressSets) Add([]dnspolicy.Element) error { return ErrNotLinux }
