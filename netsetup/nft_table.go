package netsetup

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// ownTable is the name of the agent's table, in family inet. Everything in it is ours.
	ownTable = "nodens"

	// ownComment begins the comment of every rule in the agent's table, and nftComment that of its
	// rules elsewhere. A mark follows; see [desiredRules.mark].
	ownComment = "nodens "
	nftComment = "nodens: DNS"

	// jumpText begins the comment of every jump to a chain of ours.
	jumpText = nftComment + " of this node"

	// nftRaw is a priority before connection tracking (-200), as notrack requires, and after
	// defragmentation (-400). Chains of equal priority run the newest first, so ours runs before
	// an older chain of a firewall and after a newer one.
	nftRaw = -300

	// nftDNAT is the priority of the diversion, after the usual one of destination NAT (-100). It
	// decides only which chain of type nat is asked first: all of them run when the kernel
	// translates, at -100, whatever their priority. The first translation of a connection counts:
	// kube-proxy translates a ClusterIP, because it knows the current endpoints, and our chain
	// everything else.
	nftDNAT = -95

	// nftSNAT is the priority of source NAT.
	nftSNAT = 100
)

// ownChain is a chain in the agent's table; a base chain if it has a hook. family is that of the table.
type ownChain struct {
	nftChain
	rules []packetRule
}

// nftChainName returns the name in the agent's table of one of our chains of iptables.
func nftChainName(table, name string) string {
	return strings.ToLower(table + "-" + strings.TrimPrefix(name, "NODENS-"))
}

// ownChains returns the chains of the agent's table, without those that have no rules: even an empty
// chain of type nat turns connection tracking on. It is a pure function.
func ownChains(desired desiredRules) (list []ownChain) {
	for _, c := range chains() {
		if c.table == "filter" {
			continue // an accept in one table does not override a drop in another
		}
		own := ownChain{nftChain: nftChain{family: "inet", table: ownTable, name: nftChainName(c.table, c.name)}}
		if c.hook != "" {
			own.hook, own.kind, own.priority = strings.ToLower(c.hook), "filter", nftRaw
			if c.table == "nat" {
				own.kind, own.priority = "nat", nftDNAT
			}
			if own.hook == "postrouting" {
				own.priority = nftSNAT
			}
		}
		for _, f := range families() {
			for _, r := range desired.rules(f, c) {
				r.comment = ownComment + desired.mark()
				// A rule about an interface alone is the same in both families.
				if !slices.ContainsFunc(own.rules, func(o packetRule) bool { return o.nft() == r.nft() }) {
					own.rules = append(own.rules, r)
				}
			}
		}
		if len(own.rules) > 0 {
			list = append(list, own)
		}
	}
	return list
}

// text returns the chain in the syntax of nft.
func (c ownChain) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.name)
	if c.hook != "" {
		fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.kind, c.hook, c.priority)
	}
	for _, r := range c.rules {
		b.WriteString("\t\t" + r.nft() + "\n")
	}
	return b.String() + "\t}\n"
}

// acceptRules returns the rules that accept DNS in a foreign chain at a hook (ingress, prerouting, input
// or output) in a table of a family. iptables-nft can read them in tables of family ip and ip6, where it
// may have to; old versions print them without the ports, and end with status 0.
func acceptRules(family, hook string, desired desiredRules) (rules []packetRule) {
	c := chain{table: "filter", hook: "INPUT"}
	if hook == "output" {
		c.hook = "OUTPUT"
	}
	inside := desired
	inside.external = nil
	for _, f := range families() {
		if family != "inet" && family != f.keyword() {
			continue
		}
		for _, r := range inside.rules(f, c) {
			if c.hook == "INPUT" {
				r.notIn = desired.external
			}
			r.comment = nftComment + " " + desired.mark()
			rules = append(rules, r)
		}
	}
	return rules
}

// keyword returns the name of the family in nft.
func (f Family) keyword() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}
