//go:build !linux

package netsetup

// thisNode returns ErrNotLinux.
func thisNode() (Node, error) { return nil, ErrNotLinux }

// The rest is never called: [thisNode] fails before.

func openIptables(Family, string) (chainLister, error)    { return nil, ErrNotLinux }
func listTables() (map[string]uint32, error)              { return nil, ErrNotLinux }
func listChains() ([]nftChain, error)                     { return nil, ErrNotLinux }
func listRules(string, string, string) ([]nftRule, error) { return nil, ErrNotLinux }
func commit([]nftChange) error                            { return ErrNotLinux }
func probeSocketMatch() probeResult                       { return unknown }
