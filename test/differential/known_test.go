package differential

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// knownDifference is a difference that is meant.
type knownDifference struct {
	reason string
	// expect returns the view that the agent must give in this case, made
	// from CoreDNS's, which it leaves as it is. It returns false for a query
	// that the entry is not about.
	expect func(c comparison) (view, bool)
	// query, in place of expect, returns the query that CoreDNS is to be asked instead.
	query func(c comparison) (query, bool)
	// rare says that the default seed has no such query, but others have (7 is one).
	rare bool
	// uses counts the differences that needed the entry.
	uses atomic.Int64
}

// comparison is a query, CoreDNS's answer to it, and the means to find out
// more.
type comparison struct {
	query
	view
	// caches says that answers are held.
	caches bool
	// ask asks CoreDNS another query. settle gives what the agent must answer
	// to one, whoever asks.
	ask, agentAnswer func(query) view
	// got is what the agent has answered.
	got view
	// facts are what there is.
	objectFacts
	// zones are those that the cluster's answers come from.
	zones []string
	// podsVerified says that only pods that are there have names, podNames that
	// endpoints may go by those of their pods.
	podsVerified, endpointPodNames bool
}

// answerForType is CoreDNS's answer to the same query for another type.
func (c comparison) answerForType(kind uint16) view {
	q := c.query
	q.qtype = kind
	v := c.ask(q)
	v.Question = c.Question
	return v
}

// bareReply is a reply without records, as a server gives that doesn't look for
// any.
func (c comparison) bareReply(rcode string) view {
	v := c.view
	v.Rcode = rcode
	v.Flags = withoutFlags(v.Flags, "aa", "ra", "ad", "tc")
	v.Answer, v.Authority, v.Additional = nil, nil, nil
	return v
}

// negativeReply is the cluster zone's answer that there is no such name or no such
// record.
func (c comparison) negativeReply(rcode string) view {
	if rcode == "NXDOMAIN" {
		return c.absentReply()
	}
	v := c.view
	v.Rcode = rcode
	if strings.Contains(v.Flags, "aa") && len(v.Answer) == 0 && len(v.Authority) == 1 {
		return v // CoreDNS's own denial already, of another kind
	}
	v.Flags = withoutFlags(v.Flags, "ra", "ad", "tc")
	if !strings.Contains(v.Flags, "aa") {
		v.Flags = strings.Replace(v.Flags, "qr", "qr aa", 1)
	}
	v.Answer, v.Additional = nil, nil
	v.Authority = c.ask(query{name: c.origin(), qtype: dns.TypeSOA}).Answer
	if c.caches {
		return v.lowerCase(c.name, true)
	}
	return v
}

// absentReply is the answer to the same question about a name that is not there,
// which may be somebody else's where name errors fall through.
func (c comparison) absentReply() view {
	q := c.query
	q.name, q.qtype = "no-such-name."+c.origin(), dns.TypeDS
	v := c.ask(q)
	v.Question = c.Question
	return v
}

// origin is the cluster's zone that the name is in, written as in the query,
// or empty.
func (c comparison) origin() string {
	for _, z := range c.zones {
		if dns.IsSubDomain(z, c.name) {
			return c.name[len(c.name)-len(z):]
		}
	}
	return ""
}

// inCluster says that the name is in the cluster's domain, or in that of
// services of other clusters.
func (c comparison) inCluster() bool {
	return strings.EqualFold(c.origin(), zone) || strings.EqualFold(c.origin(), importZone)
}

// outside says that the name is one of those outside of the cluster.
func (c comparison) outside() bool { return strings.EqualFold(c.origin(), externalZone) }

// reversed says that the name is a reverse name that the cluster has.
func (c comparison) reversed() bool {
	if c.origin() == "" || c.inCluster() || c.outside() || c.belowIPv6Reverse() || importPool.has(c.name) {
		return false
	}
	v := c.answerForType(dns.TypePTR)
	if !strings.Contains(v.Flags, "aa") || v.Rcode != "NOERROR" {
		return false
	}
	return len(v.Answer) == 0 || slices.ContainsFunc(v.Answer, func(r record) bool { return !c.danglingPTR(r) })
}

// belowIPv6Reverse says that the name is below an IPv6 address's.
func (c comparison) belowIPv6Reverse() bool {
	const nibbles = 32
	return dns.IsSubDomain("ip6.arpa.", c.name) && dns.CountLabel(c.name) > nibbles+2
}

// danglingPTR says that a PTR record points at an endpoint's name that is not
// there, or into a namespace that has no names.
func (c comparison) danglingPTR(r record) bool {
	const depth = 6 // endpoint, service, namespace, svc, and the zone's two
	n := dns.CountLabel(r.Data)
	if r.Type != "PTR" || n < depth-1 || strings.HasPrefix(r.Data, dotted) || c.endpointPodNames && strings.HasPrefix(r.Data, undotted) {
		return false
	}
	name := r.Data
	if n < depth {
		name = parent(name)
	}
	return c.ask(query{name: name, qtype: dns.TypeA}).Rcode == "NXDOMAIN"
}

// labels are the labels left of the zone, in lower case.
func (c comparison) labels() []string {
	return dns.SplitDomainName(strings.ToLower(strings.TrimSuffix(c.name, c.origin())))
}

// underPod says that the name is a pod's, or below one.
func (c comparison) underPod(depth int) bool {
	l := c.labels()
	return c.inCluster() && len(l) >= depth && l[len(l)-1] == "pod"
}

func withoutFlags(flags string, names ...string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(flags), func(f string) bool { return slices.Contains(names, f) }), " ")
}

// knownDifferences are the differences that are meant. The table is used by one test
// at a time.
func knownDifferences() []*knownDifference {
	return slices.Concat([]*knownDifference{knownSizes()}, clientIndependentDifferences(), knownSearches(), []*knownDifference{knownAliases(), knownServedZones()})
}

// clientIndependentDifferences are those that have nothing to do with who asks, nor with what else the agent answers.
func clientIndependentDifferences() []*knownDifference {
	return slices.Concat(knownNameDifferences(), knownSpellings(), knownImports(), knownExternal(), []*knownDifference{knownANY()}, knownMessages(), knownMalformed(), knownTTLs())
}

// The endpoint whose pod has a name with a dot, as CoreDNS calls it and by its
// address.
const (
	dotted   = "p.q.dotted.odd.svc."
	undotted = "10-244-21-1.dotted.odd.svc."
)

// knownNameDifferences are about what names there are.
func knownNameDifferences() []*knownDifference {
	return []*knownDifference{
		{
			reason: "a pod's name that has dots is no label, so its endpoint goes by its address; CoreDNS makes labels of it that it has no answer for",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				endpoint := c.Rcode == "NXDOMAIN" && strings.HasPrefix(c.name, undotted) && c.endpointPodNames
				if endpoint {
					q := c.query
					q.name = parent(c.name)
					v = c.ask(q)
					v.Question = c.Question
				}
				for _, section := range [][]record{v.Answer, v.Additional} {
					for i, r := range section {
						section[i].Data = strings.Replace(r.Data, dotted, undotted, 1)
						section[i].Owner = strings.Replace(r.Owner, dotted, undotted, 1)
						if endpoint && r.Owner == parent(c.name) {
							section[i].Owner = c.name
						}
					}
					slices.SortFunc(section, compareRecords)
				}
				return v, true
			},
		},
		{
			reason: "a reverse name that has a PTR record exists for the other types too; CoreDNS denies them, or falls through to the upstream",
			expect: func(c comparison) (view, bool) {
				known := c.qtype == dns.TypePTR || c.qtype == dns.TypeSOA && c.Rcode == "NOERROR"
				if known || c.inCluster() || !c.reversed() {
					return view{}, false
				}
				return c.negativeReply("NOERROR"), true
			},
		},
		{
			reason: "whether a name exists does not depend on the type: CoreDNS answers NODATA for SOA at any name",
			expect: func(c comparison) (view, bool) {
				if c.qtype != dns.TypeSOA || len(c.Answer) > 0 || c.origin() == "" || c.reversed() {
					return view{}, false
				}
				return c.answerForType(dns.TypeDS), true
			},
		},
		{
			reason: "whether a name exists does not depend on the type: CoreDNS denies TXT at names that have nothing but names below them",
			expect: func(c comparison) (view, bool) {
				if !(c.qtype == dns.TypeTXT && c.origin() != "" && c.Rcode == "NXDOMAIN") {
					return view{}, false
				}
				return c.answerForType(dns.TypeDS), true
			},
		},
		{
			reason: "svc and pod are names of the cluster's zone; CoreDNS has them in the reverse zones too",
			expect: func(c comparison) (view, bool) {
				l := c.labels()
				if c.inCluster() || c.outside() || len(l) != 1 || l[0] != "svc" && l[0] != "pod" {
					return view{}, false
				}
				return c.negativeReply("NXDOMAIN"), true
			},
		},
		{
			reason: "dns-version and ns.dns exist for each type, and so do the names above ns.dns, above a service's port, above zonal names and above the endpoints of another cluster (RFC 8020); CoreDNS denies them",
			expect: func(c comparison) (view, bool) {
				if !(c.Rcode == "NXDOMAIN" && (c.inCluster() || c.outside()) && c.emptyNonTerminal()) {
					return view{}, false
				}
				return c.negativeReply("NOERROR"), true
			},
		},
	}
}

// knownSpellings are about names that look like others.
func knownSpellings() []*knownDifference {
	return []*knownDifference{
		{
			reason: "an address has many spellings, and a verified pod's name may be any of them; CoreDNS knows the shortest",
			expect: func(c comparison) (view, bool) {
				name, ok := c.shortIPv6PodName()
				if !ok || !c.podsVerified {
					return view{}, false
				}
				q := c.query
				q.name = name
				if q.qtype == dns.TypeSOA {
					q.qtype = dns.TypeDS
				}
				v := c.ask(q)
				v.Question = c.Question
				for i := range v.Answer {
					v.Answer[i].Owner = c.name
				}
				return v, true
			},
		},
		{
			reason: "a pod has addresses only: CoreDNS makes up an SRV record with port 0",
			expect: func(c comparison) (view, bool) {
				if !(c.qtype == dns.TypeSRV && c.underPod(3) && len(c.labels()) == 3 && len(c.Answer) > 0) {
					return view{}, false
				}
				return c.negativeReply("NOERROR"), true
			},
		},
		{
			reason: "there is no name below a pod's: CoreDNS doesn't look at the labels",
			expect: func(c comparison) (view, bool) {
				if !(c.underPod(4) && c.Rcode == "NOERROR") {
					return view{}, false
				}
				return c.negativeReply("NXDOMAIN"), true
			},
		},
		{
			reason: "a port without a name has no SRV name: CoreDNS takes the label _ for any port",
			expect: func(c comparison) (view, bool) {
				l := c.labels()
				depth := 5
				if c.outside() {
					depth = 4
				}
				if !((c.inCluster() || c.outside()) && c.Rcode == "NOERROR" && len(l) == depth && (l[0] == "_" || l[1] == "_")) {
					return view{}, false
				}
				return c.negativeReply("NXDOMAIN"), true
			},
		},
		{
			reason: "there is no name below an IPv6 address's: CoreDNS doesn't look at the labels there",
			expect: func(c comparison) (view, bool) {
				if c.qtype != dns.TypePTR || !c.belowIPv6Reverse() {
					return view{}, false
				}
				return c.answerForType(dns.TypeDS), true
			},
		},
		{
			reason: "a slice that names no service gives its addresses no names; CoreDNS makes a name with an empty label and sends nothing",
			expect: func(c comparison) (view, bool) {
				if c.qtype != dns.TypePTR || c.Outcome != "silence" || !importPool.has(c.name) {
					return view{}, false
				}
				v := c.answerForType(dns.TypeDS)
				v.Question = []string{c.name + " IN PTR"}
				return v, true
			},
		},
		{
			reason: "there is nothing to point at in a service that is not there or in a namespace that has no names",
			expect: func(c comparison) (view, bool) {
				if strings.Contains(c.Flags, "tc") {
					// Without what doesn't count it may fit.
					c.tcp = true
					c.view = c.ask(c.query)
					if !slices.ContainsFunc(c.Answer, c.danglingPTR) {
						return view{}, false
					}
				}
				if c.qtype != dns.TypePTR || !strings.Contains(c.Flags, "aa") || len(c.Answer) == 0 {
					return view{}, false
				}
				v := c.view.clone()
				v.Answer = filterRecords(v.Answer, func(r record) bool { return !c.danglingPTR(r) })
				if len(v.Answer) == 0 {
					return c.answerForType(dns.TypeDS), true
				}
				return v, true
			},
		},
	}
}

// shortIPv6PodName is the pod's name with its IPv6 address written the short way. It
// returns false for other names and for those that are short already.
func (c comparison) shortIPv6PodName() (string, bool) {
	if !c.underPod(3) || len(c.labels()) != 3 {
		return "", false
	}
	label, rest, _ := strings.Cut(c.name, ".")
	addr, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ":"))
	if err != nil {
		return "", false
	}
	short := strings.ReplaceAll(addr.String(), ":", "-")
	return short + "." + rest, short != strings.ToLower(label)
}

// emptyNonTerminal says that names below this one have records, or that it
// is the one that has a TXT record.
func (c comparison) emptyNonTerminal() bool {
	l := c.labels()
	if len(l) == 0 {
		return false
	}
	switch {
	case len(l) == 1 && (l[0] == "dns-version" || l[0] == "dns"), len(l) == 2 && l[0] == "ns" && l[1] == "dns":
		return true
	case l[0] == "_zone" && len(l) == 4, len(l) == 5 && (l[0] == "pin" || l[0] == "prefer") && l[1] == "_zone":
		// A service of which there are zonal names has those of any zone.
		service := strings.Join(l[len(l)-3:], ".") + "." + zone
		return c.ask(query{name: "x.pin._zone." + service, qtype: dns.TypeA}).Rcode == "NOERROR"
	}
	// Both servers take ports and protocols without underscores too.
	lower := strings.ToLower(c.name)
	for _, name := range slices.Concat(c.below[lower], c.below["_"+strings.TrimPrefix(lower, "_")]) {
		if c.ask(query{name: name, qtype: dns.TypeA}).Rcode == "NOERROR" {
			return true
		}
	}
	return false
}
