package differential

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// unknownClientAddr is an address that no pod has.
const unknownClientAddr = "127.0.1.99"

// knownSearches are about clients' search paths.
func knownSearches() []*knownDifference {
	return []*knownDifference{
		{
			reason: "a pod that has been asked to go is not taken for the client: its address may be another's by now",
			expect: func(c comparison) (view, bool) {
				if !c.terminatingAddrs[c.from] {
					return view{}, false
				}
				return c.unknownClient(), true
			},
		},
		{
			reason: "the first domain of a path is no name on the path; CoreDNS fails",
			expect: func(c comparison) (view, bool) {
				ns := c.clientNamespaces[c.from]
				if ns == "" || !strings.EqualFold(c.name, ns+".svc."+zone) {
					return view{}, false
				}
				return c.unknownClient(), true
			},
		},
		{
			reason: "the names on a path have the answers that they have when they are asked for alone; the error that ends it is the agent's own; what is of a type whose data can't be moved behind an alias is left to the client",
			rare:   true,
			expect: func(c comparison) (view, bool) {
				base, path := c.searchPath()
				if base == "" {
					return view{}, false
				}
				return c.walkSearchPath(base, path), true
			},
		},
	}
}

// unknownClient is what the agent must answer if nobody knows who asks.
func (c comparison) unknownClient() view {
	q := c.query
	q.from = unknownClientAddr
	return c.agentAnswer(q)
}

// searchPath is the search path of the client's pod, if the name is on it, and the
// name without the first domain.
func (c comparison) searchPath() (base string, path []string) {
	ns := c.clientNamespaces[c.from]
	first := ns + ".svc." + zone
	if ns == "" || !dns.IsSubDomain(first, c.name) || len(c.name) == len(first) {
		return "", nil
	}
	path = []string{first, "svc." + zone, zone}
	// What stands there stands in the agent's search path and in CoreDNS's.
	if machine, err := dns.ClientConfigFromFile("/etc/resolv.conf"); err == nil {
		for _, domain := range machine.Search {
			path = append(path, dns.Fqdn(domain))
		}
	}
	return c.name[:len(c.name)-len(first)], append(path, "")
}

// walkSearchPath is the answer of the first name on the path that has one.
func (c comparison) walkSearchPath(base string, path []string) view {
	q := c.query
	q.from = unknownClientAddr
	var first view
	for i, domain := range path {
		q.name = base + domain
		if i == 0 {
			q.name = c.name
		}
		v := c.agentAnswer(q)
		switch {
		case i == 0 && v.Rcode != "NXDOMAIN":
			return v
		case i == 0:
			first = v
		case v.Rcode == "NOERROR":
			return c.followedCNAME(q.name, v)
		case v.Rcode != "NXDOMAIN":
			return c.bareReply(v.Rcode)
		}
	}
	return first
}

// followedCNAME is the view of the name as one of the client's name, which becomes its
// alias.
func (c comparison) followedCNAME(name string, v view) view {
	v = v.clone()
	v.Question = c.Question
	v.Flags = withoutFlags(v.Flags, "ad")
	for _, r := range slices.Concat(v.Answer, v.Authority) {
		if r.Type == "CAA" {
			return c.bareReply("NXDOMAIN")
		}
	}
	for _, r := range v.Answer {
		if r.Owner == name {
			v.Answer = append(v.Answer, record{Owner: c.name, Class: "IN", Type: "CNAME", Data: name, TTL: r.TTL})
			slices.SortFunc(v.Answer, compareRecords)
			break
		}
	}
	return v
}
