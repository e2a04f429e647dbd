package differential

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/miekg/dns"
)

// knownImports are about names of services of other clusters.
func knownImports() []*knownDifference {
	return []*knownDifference{
		{
			reason: "an import has its addresses whether or not it has ports; CoreDNS looks for them port by port",
			expect: func(c comparison) (view, bool) {
				l := c.labels()
				if !strings.EqualFold(c.origin(), importZone) || len(l) != 3 || l[2] != "svc" || c.Rcode != "NXDOMAIN" {
					return view{}, false
				}
				o := c.imports[l[0]+"."+l[1]+"."]
				if o == nil || o.Spec.Type == "Headless" || len(o.Spec.Ports) > 0 {
					return view{}, false
				}
				return c.addressed(o.Spec.IPs), true
			},
		},
	}
}

// addressed is the answer of a name that has the addresses.
func (c comparison) addressed(ips []string) view {
	v := c.negativeReply("NOERROR")
	soa := v.Authority
	for _, ip := range ips {
		r := record{Owner: c.name, Class: "IN", Type: "A", Data: netip.MustParseAddr(ip).String(), TTL: soa[0].TTL}
		if ipFamily(ip) == corev1.IPv6Protocol {
			r.Type = "AAAA"
		}
		if r.Type == dns.Type(c.qtype).String() {
			v.Answer, v.Authority = append(v.Answer, r), nil
		}
	}
	slices.SortFunc(v.Answer, compareRecords)
	return v
}

// service is the service that a name outside of the cluster belongs to, and
// how many labels are in front of it; nil if there is none.
func (c comparison) service() (s *corev1.Service, front int) {
	l := c.labels()
	if !c.outside() || len(l) < 2 {
		return nil, 0
	}
	front = len(l) - 2
	return c.services[l[front]+"."+l[front+1]+"."], front
}

// knownExternal are about names outside of the cluster.
func knownExternal() []*knownDifference {
	return slices.Concat(knownLoadBalancers(), []*knownDifference{
		{
			reason: "the endpoints of an ExternalName service have no names",
			expect: func(c comparison) (view, bool) {
				s, _ := c.service()
				if s == nil || s.Spec.Type != corev1.ServiceTypeExternalName || c.Rcode != "NOERROR" {
					return view{}, false
				}
				return c.negativeReply("NXDOMAIN"), true
			},
		},
		{
			reason: "an endpoint has one name, and none with an underscore in front of it",
			expect: func(c comparison) (view, bool) {
				s, front := c.service()
				if s == nil || front != 1 || c.name[0] != '_' || externallyReachable(s) || c.Rcode != "NOERROR" || c.emptyNonTerminal() {
					return view{}, false
				}
				return c.negativeReply("NXDOMAIN"), true
			},
		},
		{
			reason: "the TTL of the directive k8s_external is that of all its records; CoreDNS gives SRV and CNAME that of kubernetes",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					if (r.Type == "SRV" || r.Type == "CNAME") && r.Owner == c.name {
						v.Answer[i].TTL = externalTTL
					}
				}
				return v, c.outside()
			},
		},
		{
			reason: "zones outside of the cluster have the letters of the query, as the cluster's has",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				lower := strings.ToLower(c.origin())
				for _, section := range [][]record{v.Answer, v.Authority} {
					for i, r := range section {
						if (r.Type == "SOA" || r.Type == "NS") && strings.HasPrefix(r.Data, "ns1.dns.") {
							section[i].Owner = strings.ReplaceAll(r.Owner, lower, c.origin())
							section[i].Data = strings.ReplaceAll(r.Data, lower, c.origin())
						}
					}
				}
				return v, c.origin() != ""
			},
		},
	})
}

// filterRecords gives the records that are to stay, nil if there are none.
func filterRecords(records []record, stays func(record) bool) []record {
	var left []record
	for _, r := range records {
		if stays(r) {
			left = append(left, r)
		}
	}
	return left
}

// externallyReachable says that the service is reached from outside.
func externallyReachable(s *corev1.Service) bool {
	return len(s.Spec.ExternalIPs)+len(s.Status.LoadBalancer.Ingress) > 0
}

// knownLoadBalancers are about services that are reached from outside.
func knownLoadBalancers() []*knownDifference {
	// balancer says that the service has a load balancer with a name.
	balancer := func(s *corev1.Service) bool {
		return s != nil && slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return in.Hostname != "" })
	}
	return []*knownDifference{
		{
			reason: "a name that has addresses is no alias too (RFC 2181, 10.1)",
			expect: func(c comparison) (view, bool) {
				s, _ := c.service()
				if !balancer(s) || len(s.Spec.ExternalIPs) == 0 || len(c.Answer) == 0 {
					return view{}, false
				}
				v := c.view.clone()
				v.Answer = filterRecords(v.Answer, func(r record) bool { return r.Owner == c.name && r.Type != "CNAME" })
				if len(v.Answer) == 0 {
					return c.negativeReply("NOERROR"), true
				}
				return v, true
			},
		},
		{
			reason: "the alias that a load balancer's name makes is there for CNAME queries too",
			expect: func(c comparison) (view, bool) {
				s, _ := c.service()
				if c.qtype != dns.TypeCNAME || c.Rcode != "NOERROR" || !balancer(s) || len(s.Spec.ExternalIPs) > 0 {
					return view{}, false
				}
				v := c.answerForType(dns.TypeA)
				v.Answer = filterRecords(v.Answer, func(r record) bool { return r.Owner == c.name && r.Type == "CNAME" })
				return v, len(v.Answer) > 0
			},
		},
		{
			reason: "the addresses of a load balancer's name are its own servers' to give",
			expect: func(c comparison) (view, bool) {
				s, _ := c.service()
				if c.qtype != dns.TypeSRV || !balancer(s) {
					return view{}, false
				}
				v := c.view.clone()
				v.Additional = filterRecords(v.Additional, func(r record) bool { return dns.IsSubDomain(externalZone, r.Owner) })
				return v, true
			},
		},
		{
			reason: "an address counts once in the weights of SRV records, however often the service names it",
			expect: func(c comparison) (view, bool) {
				s, _ := c.service()
				if c.qtype != dns.TypeSRV || s == nil || !externallyReachable(s) {
					return view{}, false
				}
				return c.withSRVWeights(), true
			},
		},
	}
}

// withSRVWeights is the view with SRV weights by what is there: CoreDNS has each of
// the addresses in the additional section, once, and the host names of load balancers.
func (c comparison) withSRVWeights() view {
	v := c.view.clone()
	outside := len(filterRecords(v.Answer, func(r record) bool { return !strings.HasSuffix(strings.ToLower(r.Data), "."+externalZone) }))
	n := (len(v.Answer)-outside)*len(v.Additional) + outside
	for i, r := range v.Answer {
		f := strings.Fields(r.Data)
		if r.Type == "SRV" && len(f) == 4 {
			f[1] = srvWeight(n)
			v.Answer[i].Data = strings.Join(f, " ")
		}
	}
	slices.SortFunc(v.Answer, compareRecords)
	return v
}

// srvWeight is that of each of n SRV records.
func srvWeight(n int) string { return strconv.Itoa(max(1, 100/n)) }
