package netsetup

import "context"

// nftables is a stub.
type nftables struct{}

func newNftables() *nftables { return &nftables{} }

func (n *nftables) found() bool            { return false }
func (n *nftables) name() string           { return "nftables" }
func (n *nftables) describe(w want) string { return "" }
func (n *nftables) ensure(ctx context.Context, w want) (int, error) {
	return 0, ErrNoTool
}
func (n *nftables) remove(ctx context.Context) (int, error) { return 0, nil }
