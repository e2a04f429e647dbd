package netsetup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// nftOwn is the agent's table. There is one for both families: a rule of a family
	// that the node does not have is never reached, and costs nothing.
	nftOwn = "inet nodens"

	// nftComment marks the agent's rules in chains of others.
	nftComment = "nodens: DNS"

	// nftRaw is the priority before connection tracking (-200), where notrack has to
	// stand. Fragments have been put together at -400.
	nftRaw = -300

	// nftDNAT is the priority of the diversion: five after the one of kube-proxy's (and
	// everybody's) destination NAT. Of all chains that translate a connection the first
	// one counts. A ClusterIP is translated by kube-proxy then, which knows the
	// endpoints of this moment, while those of an agent that has been dead for a day
	// are a day old; what kube-proxy has no Service for comes here.
	nftDNAT = -95

	// nftSNAT is the priority of source NAT.
	nftSNAT = 100
)

// nftTable is the script that replaces the agent's table by the one for w, whatever is
// there. It is a pure function; equal wants with addresses in another order give equal
// texts.
//
// The rules for queries that come in match by socket: `socket transparent 0` is true of
// every socket at the packet's destination that is not transparent, and false if there
// is none. `socket wildcard` is no way to say it: it is never true of the half-open
// socket of a TCP handshake, so that the handshake's last packet would be tracked, found
// invalid, and translated.
func nftTable(w desiredRules) string {
	var b strings.Builder
	b.WriteString("add table " + nftOwn + "\ndelete table " + nftOwn + "\ntable " + nftOwn + " {\n")
	families := nftFamilies(w)
	for _, f := range families {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\telements = { %s }\n\t}\n", f.set, f.kind, nftList(f.locals))
	}
	pass := nftReturnExternal(w)
	if pass != nil {
		fmt.Fprintf(&b, "\tset external {\n\t\ttype ifname\n\t\telements = { \"%s\" }\n\t}\n", strings.Join(w.external, `", "`))
	}
	for _, c := range []nftBaseChain{
		{"raw-prerouting", "filter", "prerouting", nftRaw, slices.Concat(nftDropExternal(w), pass), nftPrerouting(w)},
		{"raw-output", "filter", "output", nftRaw, nil, nftOutput(w)},
		{"nat-prerouting", "nat", "prerouting", nftDNAT, pass, nftDivert(w)},
		{"nat-output", "nat", "output", nftDNAT, nil, nftDivert(w)},
		{"nat-postrouting", "nat", "postrouting", nftSNAT, nil, nftMasquerade},
	} {
		b.WriteString(c.text(families))
	}
	b.WriteString("}\n")
	return b.String()
}

// nftFamily is what differs between the rules of two families.
type nftFamily struct {
	word      string // "ip", "ip6"
	set, kind string
	locals    []netip.Addr
	diversion []netip.AddrPort
}

// nftFamilies are the families that w has local addresses of, everything in order and
// once.
func nftFamilies(w desiredRules) []nftFamily {
	all := []nftFamily{
		{word: "ip", set: "local4", kind: "ipv4_addr"},
		{word: "ip6", set: "local6", kind: "ipv6_addr"},
	}
	for _, a := range w.addrs {
		f := &all[familyOf(a)]
		f.locals = append(f.locals, a)
	}
	for _, a := range w.diversion {
		f := &all[familyOf(a.Addr())]
		f.diversion = append(f.diversion, a)
	}
	for i := range all {
		slices.SortFunc(all[i].locals, netip.Addr.Compare)
		all[i].locals = slices.Compact(all[i].locals)
		slices.SortFunc(all[i].diversion, netip.AddrPort.Compare)
		all[i].diversion = slices.Compact(all[i].diversion)
	}
	return slices.DeleteFunc(all, func(f nftFamily) bool { return len(f.locals) == 0 })
}

// nftBaseChain is a base chain of the agent's table.
type nftBaseChain struct {
	name, kind, hook string
	priority         int
	// preamble are the rules before those for each family.
	preamble []string
	rules    func(nftFamily) []string
}

// text is the chain with its rules; "" if there are none for any family, as a chain of
// type nat turns connection tracking on for the node.
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

// nftDropExternal drops what hosts outside of the node send to its link-local addresses. It counts
// them, for people who look.
func nftDropExternal(w desiredRules) (rules []string) {
	if len(w.external) == 0 {
		return nil
	}
	for _, f := range nftFamilies(w) {
		if refused := linkLocalAddrs(f.locals); len(refused) > 0 {
			rules = append(rules, fmt.Sprintf("iifname @external %s daddr { %s } counter drop", f.word, nftList(refused)))
		}
	}
	return rules
}

// nftReturnExternal keeps the rules behind it from what comes in by an external interface.
func nftReturnExternal(w desiredRules) []string {
	if len(w.external) == 0 {
		return nil
	}
	return []string{"iifname @external return"}
}

// nftToAddrs matches DNS to the local addresses, nftFrom DNS from them.
func nftToAddrs(f nftFamily, port uint16) string {
	return fmt.Sprintf("%s daddr @%s meta l4proto { tcp, udp } th dport %d", f.word, f.set, port)
}

func nftFromAddrs(f nftFamily, port uint16) string {
	return fmt.Sprintf("%s saddr @%s meta l4proto { tcp, udp } th sport %d", f.word, f.set, port)
}

// nftPrerouting keeps queries from connection tracking: those of pods.
func nftPrerouting(w desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		rule := nftToAddrs(f, w.dnsPort)
		if w.matchSocket {
			rule += " socket transparent 0"
		}
		return []string{rule + " notrack"}
	}
}

// nftOutput does so with answers, the probe in both directions, and, where nobody else
// sees to that, queries of the node's own processes.
func nftOutput(w desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		rules := []string{nftFromAddrs(f, w.dnsPort) + " notrack"}
		if w.untrackHost {
			rules = append(rules, nftToAddrs(f, w.dnsPort)+" notrack")
		}
		if w.healthPort != 0 {
			rules = append(rules,
				fmt.Sprintf("%s saddr @%s tcp sport %d notrack", f.word, f.set, w.healthPort),
				fmt.Sprintf("%s daddr @%s tcp dport %d notrack", f.word, f.set, w.healthPort))
		}
		return rules
	}
}

// nftDivert sends queries to one of the diversion's servers, at random. An untracked
// packet never gets here, so this holds while nobody listens.
func nftDivert(w desiredRules) func(nftFamily) []string {
	return func(f nftFamily) []string {
		if len(f.diversion) == 0 {
			return nil
		}
		to := make([]string, len(f.diversion))
		for i, d := range f.diversion {
			to[i] = fmt.Sprintf("%d : %v . %d", i, d.Addr(), d.Port())
		}
		return []string{fmt.Sprintf("%s dnat %s to numgen random mod %d map { %s }",
			nftToAddrs(f, w.dnsPort), f.word, len(to), strings.Join(to, ", "))}
	}
}

// nftMasquerade gives a diverted query of the node's own processes, which has the local
// address as its source, one that the server can answer to; whoever diverted it. Answers
// of the agent are untracked and never get here.
func nftMasquerade(f nftFamily) []string {
	if len(f.diversion) == 0 {
		return nil
	}
	return []string{fmt.Sprintf(`%s saddr @%s oifname != "lo" ct status dnat masquerade`, f.word, f.set)}
}

// nftAccepts are the rules, without the place, that let DNS through a chain of somebody
// else's at a hook, input or output, in a table of a family. In tables of one family they
// are of the few forms that the nft build of iptables can read, whose table it may be: a
// program with an iptables of its own, such as a CNI, would stumble over a set.
func nftAccepts(family, hook string, w desiredRules) []string {
	addr, port, from := "daddr", "dport", nftNotExternal(w)
	if hook == "output" {
		addr, port, from = "saddr", "sport", ""
	}
	var rules []string
	for _, f := range nftFamilies(w) {
		switch family {
		case "inet":
			rules = append(rules, fmt.Sprintf(`%s%s %s { %s } meta l4proto { tcp, udp } th %s %d accept comment %q`,
				from, f.word, addr, nftList(f.locals), port, w.dnsPort, nftComment))
		case f.word:
			for _, local := range f.locals {
				for _, proto := range []string{"tcp", "udp"} {
					rules = append(rules, fmt.Sprintf(`%s%s %s %v %s %s %d accept comment %q`,
						from, f.word, addr, local, proto, port, w.dnsPort, nftComment))
				}
			}
		}
	}
	return rules
}

// nftNotExternal matches what comes in by no external interface. It is no set, for those who read
// the rule by iptables; they see the last name only.
func nftNotExternal(w desiredRules) string {
	match := ""
	for _, name := range w.external {
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
