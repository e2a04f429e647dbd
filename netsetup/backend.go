package netsetup

import (
	"context"
	"net/netip"
)

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
	// external are the interfaces to hosts outside the node, sorted. Packets that enter
	// there are dropped if they are for a link-local address, and otherwise left alone.
	external []string
}
