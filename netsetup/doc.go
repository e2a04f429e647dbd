// Package netsetup gives a node the addresses and packet-filter rules that a
// node-local DNS agent needs, keeps them in place, and removes them.
//
// It has two halves. [NewPlan] is a pure function from flags to a [Plan]: one
// interface, host addresses, and what the rules do. A Plan can be printed and
// compared. [Setup] makes the node match the Plan: it reads the current state, adds
// what is missing, and leaves foreign objects alone. Because every step reads first,
// applying a Plan twice changes nothing, and the same pass serves as start, periodic
// repair and recovery after a crash. Nothing is stored on disk. Interfaces and
// addresses go through [Node]; rules go through a rule backend: iptables in either
// mode, or nftables.
//
// The order of steps keeps a node's DNS alive:
//
//  1. [Setup.EnsureInterface], before the sockets: an address must exist to be bound.
//  2. [Setup.EnsureRules], once the sockets listen.
//  3. [Setup.Run], until shutdown: restores missing or modified objects at every
//     interval, and when the kernel reports a removal.
//  4. [Setup.Teardown]: the rules first, then the addresses, so that replies in flight
//     can still leave from them.
//
// # Fail open
//
// The rule in raw PREROUTING matches by socket: it exempts packets for a local address
// from connection tracking, and so from address translation, only while a socket
// listens there. When the agent dies, in whatever way, its sockets are closed, and the
// next packet is tracked and translated: a nat rule sends it to an endpoint of the
// cluster DNS ([Setup.Divert]). No program has to notice the death. When the agent is
// back, the next packet is delivered locally again.
//
// Queries to an address for the node's own look-ups (Config.HostAddresses) go to the servers that the node used before
// ([Setup.DivertHost]), by a chain of their own: those servers know no names of the cluster, and the cluster DNS
// may not be running yet.
//
// Queries from the node's own processes do not pass PREROUTING and can't be matched by
// socket. A table of nf_tables that this process owns exempts them, and the kernel
// deletes it with the process (Linux 5.12). Their source is the local address itself,
// so diverted queries are masqueraded where they leave the node. On an older kernel a
// plain rule replaces the table: the node's own processes then have no DNS at the local
// address while the agent is down.
//
// A kernel without the socket match gets plain rules, and the agent logs a warning:
// while the agent is down, queries are lost, as with NodeLocal DNSCache.
//
// A TCP connection that was diverted while the agent was down is reset when the agent is
// back, because its next packet reaches the agent's socket.
//
// # Which rules are ours
//
// With iptables: the chains whose names begin with NODENS-, and one jump to each of them
// from a built-in chain. The jump is the first rule, except in nat PREROUTING and OUTPUT,
// where it is the last: kube-proxy translates an address that is a Service's too, because
// it knows the current endpoints. A table that differs from what this process wrote last
// is written again in one transaction. The ACCEPT rules of table filter are added before
// the NOTRACK rules and removed after them: an untracked packet does not match a firewall's
// rule for established connections and needs a rule of its own. With nftables: table inet
// nodens. With both: accept rules in foreign chains of nf_tables that would drop DNS. Every jump, and every
// rule of nf_tables, has a comment with a mark of the desired rules. A write counts if its mark is read back.
//
// nf_tables is read and changed by netlink, which also reads and deletes the rules of iptables' mode nft:
// iptables refuses a table with a rule that it can't express, and prints others without what it does not
// know. In mode legacy go-iptables lists rules. iptables-restore makes every change, each table in one transaction.
//
// NodeLocal DNSCache's rules for the same addresses, which agents up to 0.1 wrote too, apply
// whether a socket listens or not. They are deleted once ours are in place. If that program
// still runs, it adds them again and the next re-check deletes them.
//
// # Hosts outside the node
//
// The rules are for packets from pods and from the node itself. A packet that enters by an
// external interface (--external-interfaces; by default those of the default routes) is
// dropped in raw PREROUTING if it is for a link-local address. Otherwise all our chains
// return it unchanged. An interface that pods may use is never external by default, because
// a node without DNS is worse than an answered query from a neighbouring host. The default
// routes of table main are read before each re-check, and when the kernel reports a
// change.
//
// # Who owns an address
//
// The addresses are on an interface of kind dummy. An existing interface of that name is
// adopted if it is a dummy and refused otherwise, because teardown deletes it. On a kernel
// without the dummy driver the addresses go on lo, and the agent logs a warning.
//
// An address of the Plan on the dummy interface or on lo counts as ours, whoever added it: an
// earlier agent that was killed leaves the same state. Teardown removes it from both. lo stays,
// and so does a dummy interface with foreign addresses. An address of the Plan on any other
// interface is in use: that is an error, and the address stays. In particular, kube-proxy in
// IPVS mode serves the addresses on kube-ipvs0 before any rule of ours sees a packet.
//
// # What teardown leaves
//
// Nothing of the Plan. iptables creates the built-in chains of a table on first use and never
// deletes them; they stay, empty. Teardown returns within 3 to 5 seconds even if another program
// holds the xtables lock; its error lists what is left, which the next start adopts. [Clean]
// removes everything that any agent may have left.
//
// # Who may import it
//
// Only cmd/nodens. No other package uses netlink or packet filters, and this one knows no metrics library.
package netsetup
