package netsetup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// socketMatch holds for a packet that a socket of this node waits for, be it bound to
// one address or to all.
const socketMatch = "-m socket --nowildcard "

// restoreScript is the input of a family's iptables-restore that turns what stands into w:
// before, nil for nothing, is what stands. Only tables that are in the set are written;
// nil is all. "" if there is nothing to do.
//
// Each table is one transaction. Ours is filled anew whatever it held, and its jump is
// taken away wherever it stands, as often as it does, and put where it belongs.
func restoreScript(w desiredRules, f Family, before map[chain]chainState, tables map[string]bool) string {
	names := []string{"filter", "nat", "raw"}
	if len(w.addrs) == 0 {
		slices.Reverse(names) // untracked packets need what lets them pass to the last
	}
	var text strings.Builder
	for _, name := range names {
		if tables != nil && !tables[name] {
			continue
		}
		if t := tableScript(w, f, name, before); t != "" {
			text.WriteString("*" + name + "\n" + t + "COMMIT\n")
		}
	}
	return text.String()
}

// tableScript is the part of restore for one table, without its frame.
func tableScript(w desiredRules, f Family, name string, before map[chain]chainState) string {
	var declare, fill, hook, drop strings.Builder
	for _, c := range chains() {
		if c.table != name {
			continue
		}
		rules, stands := chainRules(w, f, c), before[c]
		for _, line := range stands.jumps {
			fmt.Fprintf(&hook, "-D %s\n", strings.TrimPrefix(line, "-A "))
		}
		if len(rules) == 0 && !stands.exists {
			continue
		}
		fmt.Fprintf(&declare, ":%s - [0:0]\n", c.name) // made, or emptied
		if len(rules) == 0 {
			fmt.Fprintf(&drop, "-X %s\n", c.name)
			continue
		}
		for _, r := range rules {
			fmt.Fprintf(&fill, "-A %s %s\n", c.name, r)
		}
		switch {
		case c.jumpLast:
			fmt.Fprintf(&hook, "-A %s %s-j %s\n", c.hook, jumpComment, c.name)
		case c.hook != "":
			fmt.Fprintf(&hook, "-I %s 1 %s-j %s\n", c.hook, jumpComment, c.name)
		}
	}
	return declare.String() + fill.String() + hook.String() + drop.String()
}

// chainRules is the rules of a chain, without its name. None: w needs no such chain.
func chainRules(w desiredRules, f Family, c chain) (rules []string) {
	var servers []netip.AddrPort
	for _, to := range w.diversion {
		if familyOf(to.Addr()) == f {
			servers = append(servers, to)
		}
	}
	if c.table == "nat" && len(servers) == 0 {
		return nil
	}
	if c.hook == "" {
		if !f.has(w.addrs) {
			return nil
		}
		return dnatRules(servers)
	}
	for _, l := range w.addrs {
		if familyOf(l) == f {
			rules = append(rules, w.addrRules(l, c)...)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	return slices.Concat(w.externalRules(f, c), rules)
}

// externalRules stand before the others of a chain, and keep those from what comes in by an
// external interface.
func (w desiredRules) externalRules(f Family, c chain) (rules []string) {
	switch c.table + " " + c.hook {
	case "raw PREROUTING":
		for _, l := range linkLocalAddrs(w.addrs) {
			for _, name := range w.external {
				if familyOf(l) == f {
					rules = append(rules, fmt.Sprintf("-d %s -i %s -j DROP", hostPrefix(l), name))
				}
			}
		}
	case "filter INPUT", "nat PREROUTING":
	default:
		return nil // nothing comes in there
	}
	for _, name := range w.external {
		rules = append(rules, "-i "+name+" -j RETURN")
	}
	return rules
}

// addrRules are the rules of one address in one chain.
func (w desiredRules) addrRules(local netip.Addr, c chain) (rules []string) {
	to := func(proto string, port uint16) string {
		return fmt.Sprintf("-d %s -p %s -m %s --dport %d ", hostPrefix(local), proto, proto, port)
	}
	from := func(proto string, port uint16) string {
		return fmt.Sprintf("-s %s -p %s -m %s --sport %d ", hostPrefix(local), proto, proto, port)
	}
	both := func(match func(string, uint16) string, then string) {
		rules = append(rules, match("udp", w.dnsPort)+then, match("tcp", w.dnsPort)+then)
	}
	switch c.table + " " + c.hook {
	case "filter INPUT": // queries come in though the firewall sees no connection
		both(to, "-j ACCEPT")
	case "filter OUTPUT": // and so do the answers go out
		both(from, "-j ACCEPT")
	case "nat PREROUTING", "nat OUTPUT": // what is tracked: nobody listens
		both(to, "-j NODENS-DIVERT")
	case "nat POSTROUTING":
		// A process of this node asks from the local address itself, which is
		// nobody's to answer to.
		rules = append(rules, fmt.Sprintf("-s %s ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE", hostPrefix(local)))
	case "raw PREROUTING": // queries of pods
		if w.matchSocket {
			both(to, socketMatch+"-j NOTRACK")
		} else {
			both(to, "-j NOTRACK")
		}
	case "raw OUTPUT":
		both(from, "-j NOTRACK") // answers
		if w.untrackHost {
			both(to, "-j NOTRACK") // queries of the node itself and of host-network pods
		}
		if w.healthPort != 0 { // the kubelet's liveness probe, both ways
			rules = append(rules, to("tcp", w.healthPort)+"-j NOTRACK", from("tcp", w.healthPort)+"-j NOTRACK")
		}
	}
	return rules
}

// dnatRules sends what comes to one of the servers, each as often as the others: the
// first of n takes one in n, the next one in n-1 of the rest, the last all.
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

// hostPrefix is an address as iptables prints one.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
