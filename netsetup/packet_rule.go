package netsetup

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// packetRule is one rule, independent of the backend. A zero field matches every packet.
type packetRule struct {
	family Family
	in     string   // the interface on which a packet enters
	notIn  []string // or none of these
	notOut string   // and does not leave by this one
	src    netip.Addr
	dst    netip.Addr
	// proto is "udp" or "tcp"; sport and dport need it.
	proto        string
	sport, dport uint16
	socket       bool // a socket of this node listens at the destination
	translated   bool // the connection's destination was translated
	oneIn        int  // one packet in so many, at random
	counter      bool // count the packets; iptables always does
	comment      string
	// target is ACCEPT, DROP, RETURN, NOTRACK, MASQUERADE, DNAT (to to), or a chain to jump to.
	target string
	to     netip.AddrPort
}

// chain is one of our chains.
type chain struct {
	table, name string
	// hook is the built-in chain that jumps to it; "": another chain of ours does.
	hook string
	// jumpLast: the jump is the last rule of the built-in chain; otherwise the first, or the
	// first behind the jumps to policyChains.
	jumpLast bool
}

// The chains that translate queries while nothing listens: divertChain those to the addresses for pods, and
// hostDivertChain those to the addresses for the node's own look-ups.
const (
	divertChain     = "NODENS-DIVERT"
	hostDivertChain = "NODENS-HOST-DIVERT"
)

// chains returns all our chains in the order of writing: ACCEPT for untracked packets first, then
// NOTRACK: a table that can't be written ends the transaction of a family, and translation without
// NOTRACK would send every query to the cluster DNS. Its rules come after kube-proxy's, which knows
// the current endpoints of a Service; ours knows those that the agent saw last.
func chains() []chain {
	return []chain{
		{table: "filter", name: "NODENS-INPUT", hook: "INPUT"},
		{table: "filter", name: "NODENS-OUTPUT", hook: "OUTPUT"},
		{table: "raw", name: "NODENS-PREROUTING", hook: "PREROUTING"},
		{table: "raw", name: "NODENS-OUTPUT", hook: "OUTPUT"},
		{table: "nat", name: "NODENS-PREROUTING", hook: "PREROUTING", jumpLast: true},
		{table: "nat", name: "NODENS-OUTPUT", hook: "OUTPUT", jumpLast: true},
		{table: "nat", name: "NODENS-POSTROUTING", hook: "POSTROUTING"},
		{table: "nat", name: divertChain}, // after those that jump to it, as for deleting
		{table: "nat", name: hostDivertChain},
	}
}

// rules returns the rules of a chain for a family; nil if it needs none.
func (desired desiredRules) rules(f Family, c chain) (rules []packetRule) {
	if !f.has(desired.addrs) {
		return nil
	}
	cluster, host := desired.servers(f, divertChain), desired.servers(f, hostDivertChain)
	switch {
	case c.name == divertChain:
		return dnatRules(cluster)
	case c.name == hostDivertChain:
		return dnatRules(host)
	case c.table == "nat" && len(cluster)+len(host) == 0:
		return nil
	}
	rules = desired.externalRules(f, c)
	for _, a := range desired.addrs {
		if familyOf(a) == f && desired.needsRules(a, c) {
			rules = append(rules, desired.addrRules(a, c)...)
		}
	}
	for i := range rules {
		rules[i].family = f
	}
	return rules
}

// servers returns the servers of a family that one of the two chains for diversion leads to; nil if there are
// none, or if no address leads to the chain.
func (desired desiredRules) servers(f Family, name string) (list []netip.AddrPort) {
	leads := func(a netip.Addr) bool { return familyOf(a) == f && desired.diverter(a) == name }
	if !slices.ContainsFunc(desired.addrs, leads) {
		return nil
	}
	all := desired.diversion
	if name == hostDivertChain {
		all = desired.hostDiversion
	}
	for _, to := range all {
		if familyOf(to.Addr()) == f {
			list = append(list, to)
		}
	}
	return list
}

// needsRules reports whether a chain needs rules for a local address: one of table nat does if queries to it are diverted.
func (desired desiredRules) needsRules(local netip.Addr, c chain) bool {
	return c.table != "nat" || len(desired.servers(familyOf(local), desired.diverter(local))) > 0
}

// diverter returns the chain for queries to a local address.
func (desired desiredRules) diverter(local netip.Addr) string {
	if slices.Contains(desired.hosts, local) {
		return hostDivertChain
	}
	return divertChain
}

// externalRules returns the rules at the head of a chain that drop or return packets from external
// interfaces.
func (desired desiredRules) externalRules(f Family, c chain) (rules []packetRule) {
	switch c.table + " " + c.hook {
	case "raw PREROUTING":
		// No router forwards packets to link-local addresses (RFC 3927, RFC 4291). Any other address may
		// be a Service's, to which hosts outside the cluster may have a route by way of this node.
		for _, a := range desired.addrs {
			for _, name := range desired.external {
				if familyOf(a) == f && a.IsLinkLocalUnicast() {
					rules = append(rules, packetRule{dst: a, in: name, counter: true, target: "DROP"})
				}
			}
		}
	case "filter INPUT", "nat PREROUTING":
	default:
		return nil // no packet has an input interface there
	}
	for _, name := range desired.external {
		rules = append(rules, packetRule{in: name, target: "RETURN"})
	}
	return rules
}

// addrRules returns the rules of one address in one chain.
func (desired desiredRules) addrRules(local netip.Addr, c chain) (rules []packetRule) {
	add := func(rule packetRule) {
		for _, rule.proto = range []string{"udp", "tcp"} {
			rules = append(rules, rule)
		}
	}
	to, from := packetRule{dst: local, dport: desired.dnsPort}, packetRule{src: local, sport: desired.dnsPort}
	switch c.table + " " + c.hook {
	case "filter INPUT": // accept untracked queries
		to.target = "ACCEPT"
		add(to)
	case "filter OUTPUT": // and replies
		from.target = "ACCEPT"
		add(from)
	case "nat PREROUTING", "nat OUTPUT": // a tracked query: nothing listens
		to.target = desired.diverter(local)
		add(to)
	case "nat POSTROUTING":
		// A process of this node sends from the local address, to which another host
		// cannot reply.
		rules = []packetRule{{src: local, notOut: loopback, translated: true, target: "MASQUERADE"}}
	case "raw PREROUTING": // queries from pods
		to.socket, to.target = desired.matchSocket, "NOTRACK"
		add(to)
	case "raw OUTPUT":
		from.target, to.target = "NOTRACK", "NOTRACK"
		add(from) // replies
		if desired.untrackHost {
			add(to) // queries from the node and host-network pods
		}
		if p := desired.healthPort; p != 0 { // the kubelet's liveness probe, in both directions
			rules = append(rules, packetRule{dst: local, proto: "tcp", dport: p, target: "NOTRACK"},
				packetRule{src: local, proto: "tcp", sport: p, target: "NOTRACK"})
		}
	}
	return rules
}

// dnatRules returns rules that send each connection to one of the servers with equal probability: the
// first of n matches one in n, the next one in n-1 of the rest, the last all.
func dnatRules(servers []netip.AddrPort) (rules []packetRule) {
	for _, proto := range []string{"udp", "tcp"} {
		for i, to := range servers {
			rules = append(rules, packetRule{family: familyOf(to.Addr()), proto: proto, oneIn: len(servers) - i, target: "DNAT", to: to})
		}
	}
	return rules
}

// mark returns a word that says which rules are desired. A backend puts it into comments, and reads it
// back after a write: rules of another agent have another mark.
func (desired desiredRules) mark() string {
	sum := sha256.New()
	for _, f := range families() {
		for _, c := range chains() {
			fmt.Fprintln(sum, c, chainRules(desired, f, c))
		}
	}
	return fmt.Sprintf("%.4x", sum.Sum(nil))
}

// ruleWords collects the words of a rule.
type ruleWords []string

// add adds words, with values, if the condition holds.
func (w *ruleWords) add(condition bool, format string, values ...any) {
	if condition {
		*w = append(*w, fmt.Sprintf(format, values...))
	}
}

// iptables returns the rule in the syntax of iptables, without the chain.
func (r packetRule) iptables() string {
	var w ruleWords
	w.add(r.dst.IsValid(), "-d %s", hostPrefix(r.dst))
	w.add(r.src.IsValid(), "-s %s", hostPrefix(r.src))
	w.add(r.in != "", "-i %s", r.in)
	// A rule can name one interface only. Untracked packets to a local address never come from
	// an external one.
	w.add(len(r.notIn) == 1, "! -i %s", strings.Join(r.notIn, ""))
	w.add(len(r.notIn) > 1, "-m conntrack --ctstate UNTRACKED")
	w.add(r.notOut != "", "! -o %s", r.notOut)
	w.add(r.proto != "", "-p %s -m %s", r.proto, r.proto)
	w.add(r.dport != 0, "--dport %d", r.dport)
	w.add(r.sport != 0, "--sport %d", r.sport)
	w.add(r.socket, "%s", socketMatch)
	w.add(r.translated, "-m conntrack --ctstate DNAT")
	w.add(r.oneIn > 1, "-m statistic --mode random --probability %.10f", 1/float64(r.oneIn))
	w.add(r.comment != "", "-m comment --comment %q", r.comment)
	w.add(true, "-j %s", r.target)
	w.add(r.to.IsValid(), "--to-destination %v", r.to)
	return strings.Join(w, " ")
}

// nft returns the rule in the syntax of nft.
//
// `socket transparent 0` is true if a socket that is not transparent listens at the packet's
// destination. `socket wildcard` does not work: it never matches the half-open socket of a TCP
// handshake, whose last packet would be tracked, found invalid, and translated.
func (r packetRule) nft() string {
	ip, nfproto := "ip", "ipv4"
	if r.family == IPv6 {
		ip, nfproto = "ip6", "ipv6"
	}
	var w ruleWords
	w.add(r.in != "", "iifname %q", r.in)
	for _, name := range r.notIn {
		w.add(true, "iifname != %q", name)
	}
	w.add(r.dst.IsValid(), "%s daddr %v", ip, r.dst)
	w.add(r.src.IsValid(), "%s saddr %v", ip, r.src)
	w.add(r.target == "DNAT", "meta nfproto %s", nfproto)
	w.add(r.notOut != "", "oifname != %q", r.notOut)
	w.add(r.dport != 0, "%s dport %d", r.proto, r.dport)
	w.add(r.sport != 0, "%s sport %d", r.proto, r.sport)
	w.add(r.proto != "" && r.dport == 0 && r.sport == 0, "meta l4proto %s", r.proto)
	w.add(r.socket, "socket transparent 0")
	w.add(r.translated, "ct status dnat")
	w.add(r.oneIn > 1, "numgen random mod %d 0", r.oneIn)
	w.add(r.counter, "counter")
	switch r.target {
	case "DNAT":
		w.add(true, "dnat %s to %v", ip, r.to)
	case divertChain, hostDivertChain:
		w.add(true, "jump %s", nftChainName("nat", r.target))
	default:
		w.add(true, "%s", strings.ToLower(r.target))
	}
	w.add(r.comment != "", "comment %q", r.comment)
	return strings.Join(w, " ")
}

// hostPrefix returns an address as iptables prints it, such as 192.0.2.1/32.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
