package netsetup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// socketMatch matches a packet for which a socket of this node listens, at its address or at all.
const socketMatch = "-m socket --nowildcard "

// restoreScript returns the input of a family's iptables-restore that turns the current state into the
// desired rules. before is the current state; nil: no rules of ours. Only the tables in the set are
// written; nil: all. "" if there is nothing to do.
//
// Each table is one transaction. It empties and fills our chains, and deletes every jump to them before
// it adds the one at the right place.
func restoreScript(desired desiredRules, f Family, before map[chain]chainState, tables map[string]bool) string {
	names := []string{"filter", "nat", "raw"}
	if len(desired.addrs) == 0 {
		slices.Reverse(names) // untracked packets need their ACCEPT rules to the last
	}
	var text strings.Builder
	for _, name := range names {
		if tables != nil && !tables[name] {
			continue
		}
		if t := tableScript(desired, f, name, before); t != "" {
			text.WriteString("*" + name + "\n" + t + "COMMIT\n")
		}
	}
	return text.String()
}

// tableScript returns the commands of restoreScript for one table.
func tableScript(desired desiredRules, f Family, name string, before map[chain]chainState) string {
	var declarations, rules, jumps, deletions strings.Builder
	for _, c := range chains() {
		if c.table != name {
			continue
		}
		want, state := chainRules(desired, f, c), before[c]
		for _, line := range state.jumps {
			fmt.Fprintf(&jumps, "-D %s\n", strings.TrimPrefix(line, "-A "))
		}
		if len(want) == 0 && !state.exists {
			continue
		}
		fmt.Fprintf(&declarations, ":%s - [0:0]\n", c.name) // creates or empties it
		if len(want) == 0 {
			fmt.Fprintf(&deletions, "-X %s\n", c.name)
			continue
		}
		for _, r := range want {
			fmt.Fprintf(&rules, "-A %s %s\n", c.name, r)
		}
		switch {
		case c.jumpLast:
			fmt.Fprintf(&jumps, "-A %s %s-j %s\n", c.hook, jumpComment, c.name)
		case c.hook != "":
			fmt.Fprintf(&jumps, "-I %s %d %s-j %s\n", c.hook, state.policyRules+1, jumpComment, c.name)
		}
	}
	return declarations.String() + rules.String() + jumps.String() + deletions.String()
}

// chainRules returns the rules of a chain, without its name; nil if it needs none.
func chainRules(desired desiredRules, f Family, c chain) (rules []string) {
	var servers []netip.AddrPort
	for _, to := range desired.diversion {
		if familyOf(to.Addr()) == f {
			servers = append(servers, to)
		}
	}
	if c.table == "nat" && len(servers) == 0 {
		return nil
	}
	if c.hook == "" {
		if !f.has(desired.addrs) {
			return nil
		}
		return dnatRules(servers)
	}
	for _, l := range desired.addrs {
		if familyOf(l) == f {
			rules = append(rules, desired.addrRules(l, c)...)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	return slices.Concat(desired.externalRules(f, c), rules)
}

// externalRules returns the rules at the head of a chain that drop or return packets from external
// interfaces.
func (desired desiredRules) externalRules(f Family, c chain) (rules []string) {
	switch c.table + " " + c.hook {
	case "raw PREROUTING":
		for _, l := range linkLocalAddrs(desired.addrs) {
			for _, name := range desired.external {
				if familyOf(l) == f {
					rules = append(rules, fmt.Sprintf("-d %s -i %s -j DROP", hostPrefix(l), name))
				}
			}
		}
	case "filter INPUT", "nat PREROUTING":
	default:
		return nil // no packet has an input interface there
	}
	for _, name := range desired.external {
		rules = append(rules, "-i "+name+" -j RETURN")
	}
	return rules
}

// addrRules returns the rules of one address in one chain.
func (desired desiredRules) addrRules(local netip.Addr, c chain) (rules []string) {
	to := func(proto string, port uint16) string {
		return fmt.Sprintf("-d %s -p %s -m %s --dport %d ", hostPrefix(local), proto, proto, port)
	}
	from := func(proto string, port uint16) string {
		return fmt.Sprintf("-s %s -p %s -m %s --sport %d ", hostPrefix(local), proto, proto, port)
	}
	both := func(match func(string, uint16) string, then string) {
		rules = append(rules, match("udp", desired.dnsPort)+then, match("tcp", desired.dnsPort)+then)
	}
	switch c.table + " " + c.hook {
	case "filter INPUT": // accept untracked queries
		both(to, "-j ACCEPT")
	case "filter OUTPUT": // and replies
		both(from, "-j ACCEPT")
	case "nat PREROUTING", "nat OUTPUT": // a tracked query: nothing listens
		both(to, "-j NODENS-DIVERT")
	case "nat POSTROUTING":
		// A process of this node sends from the local address, to which another host
		// cannot reply.
		rules = append(rules, fmt.Sprintf("-s %s ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE", hostPrefix(local)))
	case "raw PREROUTING": // queries from pods
		if desired.matchSocket {
			both(to, socketMatch+"-j NOTRACK")
		} else {
			both(to, "-j NOTRACK")
		}
	case "raw OUTPUT":
		both(from, "-j NOTRACK") // replies
		if desired.untrackHost {
			both(to, "-j NOTRACK") // queries from the node and host-network pods
		}
		if desired.healthPort != 0 { // the kubelet's liveness probe, in both directions
			rules = append(rules, to("tcp", desired.healthPort)+"-j NOTRACK", from("tcp", desired.healthPort)+"-j NOTRACK")
		}
	}
	return rules
}

// dnatRules returns rules that send each connection to one of the servers with equal probability: the
// first of n matches one in n, the next one in n-1 of the rest, the last all.
func dnatRules(servers []netip.AddrPort) (rules []string) {
	for _, proto := range []string{"udp", "tcp"} {
		for i, to := range servers {
			match := fmt.Sprintf("-p %s -m %s ", proto, proto)
			if left := len(servers) - i; left > 1 {
				match += fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
			}
			rules = append(rules, match+"-j DNAT --to-destination "+to.String())
		}
	}
	return rules
}

// hostPrefix returns an address as iptables prints it, such as 192.0.2.1/32.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
