// Package netsetup gives a node the addresses and packet-filter rules that a
// node-local DNS agent needs, keeps them there, and takes them away again.
//
// It works in two halves. [NewPlan] is a pure function: flags in, out comes a
// [Plan] of one link, host addresses and iptables rules, printable and
// comparable. [Setup] makes the machine match that plan through the [Node]
// interface: look, add what is missing, never touch what is not in the plan.
// As every step looks first, applying twice changes nothing, and the same pass
// serves as the start, as the periodic repair, and after a crash: nothing is
// remembered on disk, the plan alone says what is ours.
//
// The order of steps is what keeps a node's DNS alive:
//
//  1. [Setup.Links], before the sockets: an address must exist to be bound.
//  2. [Setup.Rules], after the sockets listen: a NOTRACK rule for an address
//     nobody answers on would cut off the Service that answered before.
//  3. [Setup.Run], until shutdown: repairs every interval what has gone missing.
//  4. [Setup.Teardown], rules first, then addresses: where the local address is
//     also the kube-dns ClusterIP, the packets go to kube-proxy again the
//     moment NOTRACK is gone, and while the address stays none is lost.
//
// Within one address the ACCEPT rules of the filter table come before the
// NOTRACK rules of the raw table, and go after them: a packet that is not
// tracked does not match a firewall's "established" rule and needs its own.
//
// The rules are those of NodeLocal DNSCache to the letter, comments included,
// and are inserted at the head of each chain in the same order. So whichever of
// the two programs starts on a node finds the other's rules already there, and
// there are no duplicates; exact duplicates that an earlier program or two
// agents at once have made are removed at the next pass.
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
// is an error, and it stays.
//
// # What teardown leaves
//
// Nothing of the plan. iptables itself makes the base chains of a table when it
// is first used and never removes them; they are empty and stay. Teardown ends in
// under 3 seconds even if the xtables lock is held; what it could not remove is in
// its error and is adopted by the next start.
//
// # Who may import it
//
// Only cmd/nodens. This is the only package that knows netlink and iptables; it
// exports counters as plain numbers ([Stats]) and knows no metrics library.
package netsetup
