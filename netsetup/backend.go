package netsetup

import (
	"context"
	"net/netip"
)

// ruleBackend is one way to have rules in the kernel. A Setup has one, and calls one method
// at a time. Every method may block for some seconds, but not after ctx is done; errors
// wrap one of this package's or fs.ErrPermission where that is the cause.
type ruleBackend interface {
	// name is the one of -netfilter, with the flavour: "iptables (nft)", "iptables
	// (legacy)", "nftables".
	name() string
	// describe is w as text, in the form that the filter's own tools read, and ends
	// without a newline. It touches nothing.
	describe(w desiredRules) string
	// ensure makes the kernel hold w and nothing else that is ours, in as few
	// transactions as the filter allows, never with a moment in between in which
	// packets find neither the old rules nor the new ones. changed is how many things
	// were missing or other than they should be: 0 if all was there. ErrNoSocket: the
	// kernel can't match by socket, and w asks for it; nothing has changed then.
	ensure(ctx context.Context, w desiredRules) (changed int, err error)
	// remove takes away all that ensure may have made, by whatever version or process,
	// and says how much that was.
	remove(ctx context.Context) (removed int, err error)
}

// linkLocalAddrs are the addresses among addrs that are for one link only (RFC 3927, RFC 4291): no
// router forwards a packet to them. What the others are is not known; one may be a Service's,
// to which hosts outside of the cluster may have a route by way of this node.
func linkLocalAddrs(addrs []netip.Addr) (found []netip.Addr) {
	for _, a := range addrs {
		if a.IsLinkLocalUnicast() {
			found = append(found, a)
		}
	}
	return found
}

// desiredRules is what rules are to do, in no filter's words.
type desiredRules struct {
	// addrs are the addresses that the agent answers at, of both families.
	addrs []netip.Addr
	// dnsPort is the port of DNS, over UDP and TCP, and health the TCP port of the probe, 0
	// for none.
	dnsPort, healthPort uint16
	// matchSocket: what comes for a local address stays untracked only while somebody
	// listens there. Else always.
	matchSocket bool
	// untrackHost: queries of the node's own processes stay untracked, always; not set where
	// the owned table sees to it while the agent lives.
	untrackHost bool
	// diversion are the servers that queries to link-local addresses go to, and those to
	// all others that nobody else translates, when nobody listens: of both families, in
	// any order. Empty: there is no such rule.
	diversion []netip.AddrPort
	// external are the interfaces by which hosts outside of the node send to it, in order.
	// What comes in there for a link-local address is dropped, and what comes for any other
	// local address is none of the rules': others decide on it.
	external []string
}
