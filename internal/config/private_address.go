package config

import (
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// PrivateAddress is `private_address [ACTION] { range RANGE…; except ZONES… }`: what happens to a reply of an upstream that
// leads clients to addresses which it has no reason to know. A block without the directive counts them.
type PrivateAddress struct {
	// Action is [PrivateCount] by default.
	Action PrivateAction
	// Ranges are the addresses; by default those of link_local and loopback.
	Ranges []netip.Prefix
	// ClusterIPs adds the cluster IPs of the Services that the agent knows; they are part of the default.
	ClusterIPs bool
	// Except are the zones whose names may have such addresses.
	Except []wire.Name
}

// PrivateAction is what happens to a reply with an address of the ranges.
type PrivateAction uint8

const (
	// PrivateCount passes the reply on.
	PrivateCount PrivateAction = iota
	// PrivateNoData answers that the name has no records of the type.
	PrivateNoData
	// PrivateRefuse answers REFUSED.
	PrivateRefuse
	// PrivateOff does not look at replies.
	PrivateOff
)

// clusterIPRange is the range of the cluster IPs of Services.
const clusterIPRange = "cluster_ip"

const privateUsage = "private_address [count|nodata|refuse|off] { range RANGE…; except ZONES… }"

// privateActions are the actions by name.
var privateActions = map[string]PrivateAction{"count": PrivateCount, "nodata": PrivateNoData, "refuse": PrivateRefuse, "off": PrivateOff}

// privateRanges are the ranges with a name. The metadata services of clouds are link-local; AWS has one more
// address for IPv6, and Alibaba Cloud's is 100.100.100.200.
var privateRanges = map[string][]netip.Prefix{
	"link_local": prefixes("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32"),
	"loopback":   prefixes("127.0.0.0/8", "::1/128"),
	"private":    prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
	"any":        prefixes("0.0.0.0/8", "::/128"),
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// DefaultPrivateAddress is what a block without the directive has.
func DefaultPrivateAddress() *PrivateAddress {
	return &PrivateAddress{Ranges: slices.Concat(privateRanges["link_local"], privateRanges["loopback"]), ClusterIPs: true}
}

func (a *PrivateAddress) parse(p *parser, s statement) {
	if !p.count(s, privateUsage) {
		return
	}
	for _, w := range s.args() {
		a.Action, _ = choice(p, w, "action", privateActions)
	}
	p.body(s, opt("range RANGE…", func(args []token) { a.addRanges(p, args) }), opt("except ZONES…", p.toZones(&a.Except)))
	if len(a.Ranges) == 0 && !a.ClusterIPs {
		def := DefaultPrivateAddress()
		a.Ranges, a.ClusterIPs = def.Ranges, def.ClusterIPs
	}
}

// addRanges adds ranges: names, addresses and prefixes.
func (a *PrivateAddress) addRanges(p *parser, args []token) {
	for _, w := range args {
		if w.text == clusterIPRange {
			a.ClusterIPs = true
			continue
		}
		if named, ok := privateRanges[w.text]; ok {
			a.Ranges = append(a.Ranges, named...)
			continue
		}
		prefix, err := netip.ParsePrefix(w.text)
		if addr, e := netip.ParseAddr(w.text); e == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			p.errorf(w, "%q is no range; write link_local, loopback, cluster_ip, private, any, an address, or a prefix such as the cluster's service range 10.96.0.0/12", w.text)
			continue
		}
		if prefix.Addr().Is4In6() {
			p.errorf(w, "%q is an IPv4 address in IPv6; write the IPv4 address, which covers both", w.text)
			continue
		}
		a.Ranges = append(a.Ranges, prefix.Masked())
	}
}
