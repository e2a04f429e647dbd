package netsetup

import (
	"context"
	"net/netip"
)

// filter is one way to have rules in the kernel. A Setup has one, and calls one method
// at a time. Every method may block for some seconds, but not after ctx is done; errors
// wrap one of this package's or fs.ErrPermission where that is the cause.
type filter interface {
	// name is the one of -netfilter, with the flavour: "iptables (nft)", "iptables
	// (legacy)", "nftables".
	name() string
	// describe is w as text, in the form that the filter's own tools read, and ends
	// without a newline. It touches nothing.
	describe(w want) string
	// ensure makes the kernel hold w and nothing else that is ours, in as few
	// transactions as the filter allows, never with a moment in between in which
	// packets find neither the old rules nor the new ones. changed is how many things
	// were missing or other than they should be: 0 if all was there. ErrNoSocket: the
	// kernel can't match by socket, and w asks for it; nothing has changed then.
	ensure(ctx context.Context, w want) (changed int, err error)
	// remove takes away all that ensure may have made, by whatever version or process,
	// and says how much that was.
	remove(ctx context.Context) (removed int, err error)
}

// want is what rules are to do, in no filter's words.
type want struct {
	// locals are the addresses that the agent answers at, of both families.
	locals []netip.Addr
	// dns is the port of DNS, over UDP and TCP, and health the TCP port of the probe, 0
	// for none.
	dns, health uint16
	// socket: what comes for a local address stays untracked only while somebody
	// listens there. Else always.
	socket bool
	// host: queries of the node's own processes stay untracked, always; not set where
	// the owned table sees to it while the agent lives.
	host bool
	// diversion are the servers that queries to link-local addresses go to, and those to
	// all others that nobody else translates, when nobody listens: of both families, in
	// any order. Empty: there is no such rule.
	diversion []netip.AddrPort
}
