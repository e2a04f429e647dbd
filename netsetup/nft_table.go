package netsetup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// nftOwn is the agent's table, for both families.
	nftOwn = "inet nodens"

	// nftComment marks the agent's rules in foreign chains.
	nftComment = "nodens: DNS"

	// nftRaw is a priority before connection tracking (-200), as notrack requires, and after
	// defragmentation (-400).
	nftRaw = -300

	// nftDNAT is the priority of the diversion, after the usual one of destination NAT (-100).
	// The first translation of a connection counts: kube-proxy translates a ClusterIP, because
	// it knows the current endpoints, and our chain everything else.
	nftDNAT = -95

	// nftSNAT is the priority of source NAT.
	nftSNAT = 100
)

// nftTable returns the script that replaces the agent's table, if there is one. It is a pure function,
// and independent of the order of addresses.
//
// The rules for incoming queries match by socket: `socket transparent 0` is true if a socket that is
// not transparent listens at the packet's destination. `socket wildcard` does not work: it never
// matches the half-open socket of a TCP handshake, whose last packet would be tracked, found invalid,
// and translated.
func nftTable(desired desiredRules) string {
	var b strings.Builder
	b.WriteString("add table " + nftOwn + "\ndelete table " + nftOwn + "\ntable " + nftOwn + " {\n")
	families := nftFamilies(desired)
	for _, f := range families {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\telements = { %s }\n\t}\n", f.set, f.setType, nftList(f.addrs))
	}
	pass := nftReturnExternal(desired)
	if pass != nil {
		fmt.Fprintf(&b, "\tset external {\n\t\ttype ifname\n\t\telements = { \"%s\" }\n\t}\n", strings.Join(desired.external, `", "`))
	}
	for _, c := range []nftBaseChain{
		{"raw-prerouting", "filter", "prerouting", nftRaw, slices.Concat(nftDropExternal(desired), pass), nftPrerouting(desired)},
		{"raw-output", "filter", "output", nftRaw, nil, nftOutput(desired)},
		{"nat-prerouting", "nat", "prerouting", nftDNAT, pass, nftDivert(desired)},
		{"nat-output", "nat", "output", nftDNAT, nil, nftDivert(desired)},
		{"nat-postrouting", "nat", "postrouting", nftSNAT, nil, nftMasquerade},
	} {
		b.WriteString(c.text(families))
	}
	b.WriteString("}\n")
	return b.String()
}

// nftFamily has what differs between the rules of the two families.
type nftFamily struct {
	keyword      string // "ip", "ip6"
	set, setType string
	addrs        []netip.Addr
	diversion    []netip.AddrPort
}

// nftFamilies returns the families that have local addresses, with sorted addresses and servers.
func nftFamilies(desired desiredRules) []nftFamily {
	all := []nftFamily{
		{keyword: "ip", set: "local4", setType: "ipv4_addr"},
		{keyword: "ip6", set: "local6", setType: "ipv6_addr"},
	}
	for _, a := range desired.addrs {
		f := &all[familyOf(a)]
		f.addrs = append(f.addrs, a)
	}
	for _, a := range desired.diversion {
		f := &all[familyOf(a.Addr())]
		f.diversion = append(f.diversion, a)
	}
	for i := range all {
		slices.SortFunc(all[i].addrs, netip.Addr.Compare)
		all[i].addrs = slices.Compact(all[i].addrs)
		slices.SortFunc(all[i].diversion, netip.AddrPort.Compare)
		all[i].diversion = slices.Compact(all[i].diversion)
	}
	return slices.DeleteFunc(all, func(f nftFamily) bool { return len(f.addrs) == 0 })
}

// nftBaseChain is a base chain in the agent's table.
type nftBaseChain struct {
	name, kind, hook string
	priority         int
	// preamble has the rules before those for each family.
	preamble []string
	rules    func(nftFamily) []string
}

// text returns the chain with its rules; "" if rules returns none, because even an empty chain of type
// nat turns connection tracking on.
func (c nftBaseChain) text(families []nftFamily) string {
	var b strings.Builder
	for _, f := range families {
		for _, rule := range c.rules(f) {
			b.WriteString("\t\t" + rule + "\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	first := ""
	for _, rule := range c.preamble {
		first += "\t\t" + rule + "\n"
	}
	return fmt.Sprintf("\tchain %s {\n\t\ttype %s hook %s priority %d; policy accept;\n%s\t}\n",
		c.name, c.kind, c.hook, c.priority, first+b.String())
}

// nftDropExternal returns rules that count and drop packets from external interfaces to link-local
// addresses.
func nftDropExternal(desired desiredRules) (rules []string) {
	if len(desired.external) == 0 {
		return nil
	}
	for _, f := range nftFamilies(desired) {
		if refused := linkLocalAddrs(f.addrs); len(refused) > 0 {
			rules = append(rules, fmt.Sprintf("iifname @external %s daddr { %s } counter drop", f.keyword, nftList(refused)))
		}
	}
	return rules
}

// nftReturnExternal returns the rule that exempts packets from external interfaces.
func nftReturnExternal(desired desiredRules) []string {
	if len(desired.external) == 0 {
		return nil
	}
	return []string{"iifname @external return"}
}

// nftToAddrs matches DNS packets to the local addresses, nftFromAddrs those from them.
func nftToAddrs(f nftFamily, port uint16) string {
	return fmt.Sprintf("%s daddr @%s meta l4proto { tcp, udp } th dport %d", f.keyword, f.set, port)
}

func nftFromAddrs(f nftFamily, port uint16) string {
	return fmt.Sprintf("%s saddr @%s meta l4proto { tcp, udp } th sport %d", f.keyword, f.set, port)
}

// nftPrerouting returns the rules that leave queries from pods untracked.
func nftPrerouting(desired desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		rule := nftToAddrs(f, desired.dnsPort)
		if desired.matchSocket {
			rule += " socket transparent 0"
		}
		return []string{rule + " notrack"}
	}
}

// nftOutput returns the rules that leave replies untracked, the liveness probe in both directions,
// and, without an owner table, queries from the node's own processes.
func nftOutput(desired desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		rules := []string{nftFromAddrs(f, desired.dnsPort) + " notrack"}
		if desired.untrackHost {
			rules = append(rules, nftToAddrs(f, desired.dnsPort)+" notrack")
		}
		if desired.healthPort != 0 {
			rules = append(rules,
				fmt.Sprintf("%s saddr @%s tcp sport %d notrack", f.keyword, f.set, desired.healthPort),
				fmt.Sprintf("%s daddr @%s tcp dport %d notrack", f.keyword, f.set, desired.healthPort))
		}
		return rules
	}
}

// nftDivert returns the rules that send queries to a random server of the diversion. Untracked packets
// never reach them, so they apply while no socket listens.
func nftDivert(desired desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		if len(f.diversion) == 0 {
			return nil
		}
		to := make([]string, len(f.diversion))
		for i, d := range f.diversion {
			to[i] = fmt.Sprintf("%d : %v . %d", i, d.Addr(), d.Port())
		}
		return []string{fmt.Sprintf("%s dnat %s to numgen random mod %d map { %s }",
			nftToAddrs(f, desired.dnsPort), f.keyword, len(to), strings.Join(to, ", "))}
	}
}

// nftMasquerade returns the rules that replace the source of a diverted query from the node's own
// processes: it is the local address, to which the server cannot reply. The agent's replies are
// untracked and never reach them.
func nftMasquerade(f nftFamily) []string {
	if len(f.diversion) == 0 {
		return nil
	}
	return []string{fmt.Sprintf(`%s saddr @%s oifname != "lo" ct status dnat masquerade`, f.keyword, f.set)}
}

// nftAccepts returns the rules, without the chain, that accept DNS in a foreign chain at a hook (input
// or output) in a table of a family. In tables of family ip and ip6 they use only what iptables-nft can
// read, because a CNI plugin with an iptables of its own may list the table.
func nftAccepts(family, hook string, desired desiredRules) []string {
	addr, port, from := "daddr", "dport", nftNotExternal(desired)
	if hook == "output" {
		addr, port, from = "saddr", "sport", ""
	}
	var rules []string
	for _, f := range nftFamilies(desired) {
		switch family {
		case "inet":
			rules = append(rules, fmt.Sprintf(`%s%s %s { %s } meta l4proto { tcp, udp } th %s %d accept comment %q`,
				from, f.keyword, addr, nftList(f.addrs), port, desired.dnsPort, nftComment))
		case f.keyword:
			for _, local := range f.addrs {
				for _, proto := range []string{"tcp", "udp"} {
					rules = append(rules, fmt.Sprintf(`%s%s %s %v %s %s %d accept comment %q`,
						from, f.keyword, addr, local, proto, port, desired.dnsPort, nftComment))
				}
			}
		}
	}
	return rules
}

// nftNotExternal matches packets from other than the external interfaces. It uses no set, because
// iptables-nft may list the rule; that prints the last name only.
func nftNotExternal(desired desiredRules) string {
	match := ""
	for _, name := range desired.external {
		match += fmt.Sprintf("iifname != %q ", name)
	}
	return match
}

func nftList(addrs []netip.Addr) string {
	words := make([]string, len(addrs))
	for i, a := range addrs {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}
