package netsetup

import (
	"errors"
	"strings"
)

// errNoNftables: the kernel has no nf_tables.
var errNoNftables = errors.New("the kernel has no nf_tables")

// nftChain is a chain of nf_tables.
type nftChain struct {
	family      string // "inet", "ip", "ip6"; other families have other texts
	table, name string
	// kind, hook and priority are those of a base chain: "filter", "input". policyDrop: packets
	// that reach its end are dropped.
	kind, hook string
	priority   int
	policyDrop bool
	// owned: another process owns the table, and no other can change it.
	owned bool
	// dormant: the table has no effect.
	dormant bool
}

// String returns the chain in nft's syntax.
func (c nftChain) String() string { return c.family + " " + c.table + " " + c.name }

// nftRule is a rule of nf_tables as the kernel holds it.
type nftRule struct {
	handle uint64
	// line is the rule in the syntax of iptables, as far as that can express it: addresses,
	// comment and target. The rest is a word after opaqueMatch, which is equal for equal
	// expressions; counters don't count.
	line    string
	comment string
	// drops: it drops or rejects packets, and no condition other than interfaces and sources excludes DNS.
	// leads: such a rule jumps or goes to a chain instead.
	drops, leads bool
}

// opaqueMatch stands in the line of an [nftRule] for expressions that the line does not tell.
const opaqueMatch = " -m opaque "

// nftChange is one step of a transaction: the first field that is set says which.
type nftChange struct {
	addTable, deleteTable string   // in family inet
	addChain              nftChain // no error if it exists
	deleteChain           nftChain // with its rules
	deleteRule            uint64   // the handle, in chain in
	addRule               *packetRule
	// in is the chain of a rule. A new one is added behind the rule with the handle behind; at
	// the head if that is 0, and at the end if last is set.
	in     nftChain
	behind uint64
	last   bool
}

// foreign reports whether the chain is another program's. Those of kube-proxy are not: they drop no DNS
// packets for a local address.
func (c nftChain) foreign() bool {
	return c.table != ownTable && !strings.HasPrefix(c.table, ownerTablePrefix) && c.table != kubeProxyTable
}

// kubeProxyTable is the name of kube-proxy's tables in nftables mode, one in each family.
const kubeProxyTable = "kube-proxy"

// ownerTablePrefix is the prefix of an owner table's name. A random suffix follows, because two
// agents exist during a handover, and both may be process 1 of their pods.
const ownerTablePrefix = "nodens-host-"

// probeResult is what a probe for a feature of the kernel has found.
type probeResult uint8

// The results of a probe.
const (
	unknown probeResult = iota // another error hides it
	supported
	unsupported
)
