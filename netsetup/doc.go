// Package netsetup gives a node the addresses and packet-filter rules that a
// node-local DNS agent needs, keeps them there, and takes them away again.
//
// It works in two halves. [NewPlan] is a pure function: flags in, out comes a
// [Plan] of one link, host addresses and what rules are to do, printable and
// comparable. [Setup] makes the machine match that plan: look, add what is missing,
// never touch what is not ours. As every step looks first, applying twice changes
// nothing, and the same pass serves as the start, as the periodic repair, and after a
// crash: nothing is remembered on disk. Links and addresses go through the [Node]
// interface, rules through a filter: iptables of either flavour, or nftables.
//
// The order of steps is what keeps a node's DNS alive:
//
//  1. [Setup.EnsureInterface], before the sockets: an address must exist to be bound.
//  2. [Setup.EnsureRules], after the sockets listen: before that nothing would be local.
//  3. [Setup.Run], until shutdown: repairs every interval, and when the kernel tells of
//     a loss, what has gone missing.
//  4. [Setup.Teardown], rules first, then addresses: while the address stays, packets
//     on their way are not lost.
//
// # Fail open
//
// Packets for a local address stay away from connection tracking, and so from whatever
// would send them elsewhere, only while a socket waits for them: the rule in raw
// PREROUTING matches by socket. When the agent is gone, in whatever way, the sockets
// are gone with it, and the very next packet is an ordinary one, which a nat rule sends
// on to one of the cluster DNS's servers ([Setup.Divert]). No program has to notice
// anything. When the agent is back, the next packet is local again.
//
// A query of the node's own processes does not come in from outside and can't be
// matched by socket. It stays untracked by a table of nf_tables that belongs to this
// process, and that the kernel removes with it (Linux 5.12). Its source is the local
// address itself, so that rules masquerade it where it leaves the node. Where the kernel
// has no such tables, a plain rule takes the place: the node's own processes have no DNS
// at the local address until the agent is back.
//
// A kernel without the match by socket gets plain rules, and a warning: then a dead
// agent's packets are lost, as with NodeLocal DNSCache.
//
// A connection over TCP that was made to the cluster DNS while the agent was away is
// reset when it is back, as its next packet finds the agent's socket.
//
// # Which rules are ours
//
// With iptables: the chains whose names begin with NODENS-, and one jump to each in the
// kernel's chain, at the head, but behind all others where packets are translated: an
// address that is a Service's too is translated by kube-proxy, which knows the endpoints
// of this moment. They are filled anew in one transaction for each table when they are
// other than after the last write; the jump is then put where it belongs.
// ACCEPT rules of the filter table are written before those that make packets
// untracked, and go after them: a packet that is not tracked does not match a
// firewall's "established" rule and needs its own. With nftables: table inet nodens.
//
// NodeLocal DNSCache's rules for the same addresses, which agents up to 0.1 made too,
// hold whether anybody listens or not. They go as soon as ours stand. Should that
// program still run, it puts them back, and the next re-check takes them away.
//
// # Hosts outside the node
//
// Rules are for what pods and the node itself send. What comes in by an external interface
// (-external-interfaces, by default those that default routes lead over) is dropped in raw
// PREROUTING if it is for a link-local address, and else passes all chains of ours as if they
// were not there: it is neither accepted nor untracked nor diverted. An interface that pods
// may send by is not external by itself: the loss of a node's DNS is worse than a
// neighbour's query. The default routes of table main are listed before each re-check, and when the
// kernel says that one has come or gone.
//
// # Whose address is it
//
// The addresses live on a link of kind dummy. A link of that name which exists
// already is adopted if it is a dummy, and refused if it is anything else: it is
// deleted at teardown, which a real interface must not be. A kernel without the
// dummy driver gets the addresses on lo; that is logged as a warning.
//
// An address of the plan counts as ours on the dummy link and on lo, whoever put
// it there, as an earlier run that was killed looks the same as this one. It is
// removed from both at teardown, lo itself stays, and so does a dummy link that
// carries somebody else's address. On any other link the address is in use: that
// is an error, and it stays. In particular an address on kube-ipvs0 is served by
// kube-proxy in IPVS mode, before any rule of ours, even if we have it too.
//
// # What teardown leaves
//
// Nothing of the plan. iptables itself makes the base chains of a table when it
// is first used and never removes them; they are empty and stay. Teardown ends in
// under 3 seconds even if the xtables lock is held; what it could not remove is in
// its error and is adopted by the next start. [Clean] removes all that any agent may
// have left.
//
// # Who may import it
//
// Only cmd/nodens. This is the only package that knows netlink and packet filters; it
// exports counters as plain numbers ([Stats]) and knows no metrics library.
package netsetup
