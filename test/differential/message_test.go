package differential

import (
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// knownSizes is about the size of replies.
func knownSizes() *knownDifference {
	return &knownDifference{
		reason: "additional records without room are left out by whole RRsets, and TC says that a part of the answer is missing (RFC 2181, 9); CoreDNS sets it for them, too",
		expect: func(c comparison) (view, bool) {
			if !strings.Contains(c.Flags, "tc") || c.transport != "" { // which is a stream
				return view{}, false
			}
			agent, q := c.got, c.query
			q.tcp = true
			v := c.ask(q)
			left := slices.ContainsFunc(agent.Additional, func(r record) bool { return !slices.Contains(v.Additional, r) })
			v.EDNS, v.Additional = c.EDNS, agent.Additional
			return v, !strings.Contains(agent.Flags, "tc") && !left
		},
	}
}

// knownANY is about the type ANY.
func knownANY() *knownDifference {
	return &knownDifference{
		reason: "ANY is answered with one RRset of the name (RFC 8482, 4.1); CoreDNS says that names of its own have no records",
		expect: func(c comparison) (view, bool) {
			if c.qtype != dns.TypeANY || len(c.Answer) > 0 || !strings.Contains(c.Flags, "aa") {
				return view{}, false
			}
			q := c.query
			for _, q.qtype = range []uint16{dns.TypeCNAME, dns.TypeA, dns.TypeAAAA, dns.TypePTR, dns.TypeTXT, dns.TypeSOA, dns.TypeSRV} {
				if v := c.agentAnswer(q); (len(v.Answer) > 0 || strings.Contains(v.Flags, "tc")) && strings.Contains(v.Flags, "aa") {
					v.Question = c.Question
					return v, true
				}
			}
			return view{}, false
		},
	}
}

// knownAliases is about aliases that lead out of the cluster to nothing.
func knownAliases() *knownDifference {
	return &knownDifference{
		reason: "an alias whose target cannot be resolved is kept for 5 seconds at most, and an OPT record says why (RFC 8914)",
		expect: func(c comparison) (view, bool) {
			v := c.view.clone()
			last := len(v.Answer) - 1
			if last < 0 || v.Rcode != "NOERROR" || slices.ContainsFunc(v.Answer, func(r record) bool { return r.Type != "CNAME" }) {
				return v, false
			}
			forwards := strings.Contains(c.got.Flags, " ra")
			failing := slices.ContainsFunc(v.Answer, func(r record) bool {
				return strings.HasPrefix(r.Data, "servfail.") || strings.HasPrefix(r.Data, "refused.")
			})
			for i := range v.Answer {
				v.Answer[i].TTL = min(v.Answer[i].TTL, 5)
			}
			if _, why, ok := strings.Cut(c.got.EDNS, ", option 15 2"); ok && v.EDNS != "" {
				v.EDNS += ", option 15 2" + why
			}
			followed := c.qtype != dns.TypeCNAME && c.qtype != dns.TypeANY
			return v, c.inCluster() && followed && (failing || !forwards)
		},
	}
}

// servedEmpty is a reply from a zone that is served without records, with the letters of its name in owner.
func (c comparison) servedEmpty(rcode, owner, zone string) view {
	v := c.view
	v.Rcode, v.Flags = rcode, strings.Replace(withoutFlags(v.Flags, "aa", "ra", "ad"), "qr", "qr aa", 1)
	v.Answer, v.Additional = nil, nil
	v.Authority = []record{{Owner: owner, Class: "IN", Type: "SOA", TTL: 10800, Data: zone + " nobody.invalid. 0 3600 1200 604800 10800"}}
	return v
}

// knownServedZones is about reverse names of loopback addresses, which clients of the tests have.
func knownServedZones() *knownDifference {
	const served = "127.in-addr.arpa."
	return &knownDifference{
		reason: "a name that upstreams would know nothing useful about is not forwarded with others (RFC 6303); CoreDNS forwards it",
		expect: func(c comparison) (view, bool) {
			v := c.servedEmpty("NXDOMAIN", c.name[max(0, len(c.name)-len(served)):], served)
			return v, dns.IsSubDomain(served, c.name) && slices.ContainsFunc(c.got.Authority, func(r record) bool { return strings.EqualFold(r.Owner, served) })
		},
	}
}

// knownMessages are about how answers are written.
func knownMessages() []*knownDifference {
	return []*knownDifference{
		{
			reason: "only the classes IN and ANY are served; CoreDNS answers in any class with records of class IN",
			expect: func(c comparison) (view, bool) {
				return c.bareReply("REFUSED"), c.qclass != 0 && c.qclass != dns.ClassANY
			},
		},
		{
			reason: "the OPT of BADVERS carries the server's size like any other (RFC 6891, 6.1.3)",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.EDNS = strings.Replace(v.EDNS, "size 0", "size 1232", 1)
				return v, v.Rcode == "BADVERS"
			},
		},
		{
			reason: "the target of an SRV record is the service's own name, in lower case; CoreDNS takes the zone's letters from the query",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					v.Answer[i].Data = strings.ToLower(r.Data)
				}
				for i, r := range v.Additional {
					v.Additional[i].Owner = strings.ToLower(r.Owner)
				}
				return v, c.qtype == dns.TypeSRV && c.inCluster()
			},
		},
		{
			reason: "AD is for clients that ask for it with AD or DO (RFC 6840, 5.7)",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.Flags = withoutFlags(v.Flags, "ad")
				return v, !c.query.ad && !c.query.do
			},
		},
		{
			reason: "options go from hop to hop (RFC 6891, 6.1.1): of the upstream's, only the code of an extended error is passed on, also from the cache",
			expect: func(c comparison) (view, bool) {
				v := c.view
				if head, _, _ := strings.Cut(v.EDNS, ", option"); v.EDNS != "" {
					v.EDNS = head + ", option 15 3 (Stale Answer): ()"
				}
				return v, strings.EqualFold(c.name, "ede.ext.test.")
			},
		},
	}
}

// knownMalformed are about queries that are given as bytes.
func knownMalformed() []*knownDifference {
	// noted is for the queries with the note.
	noted := func(note string, expect func(c comparison) view) func(comparison) (view, bool) {
		return func(c comparison) (view, bool) {
			if c.note != note {
				return view{}, false
			}
			return expect(c), true
		}
	}
	formerr := func(c comparison) view {
		v := c.bareReply("FORMERR")
		v.Question, v.EDNS = nil, ""
		return v
	}
	return []*knownDifference{
		{
			reason: "NOTIFY is for name servers with zones of their own; CoreDNS answers it like a query",
			expect: noted("opcode notify", func(c comparison) view {
				v := c.bareReply("NOTIMP")
				v.Flags, v.Question = "qr rd", nil
				return v
			}),
		},
		{
			reason: "two OPT records are a format error (RFC 6891, 6.1.1)",
			expect: noted("two OPT", formerr),
		},
		{
			reason: "the reply to a malformed query is a header alone; CoreDNS copies the question if only a record behind it is malformed",
			expect: noted("option without its end", formerr),
		},
		{
			reason: "a question without its class is a format error; CoreDNS takes it for class 0 and answers",
			expect: noted("cut off after the type", formerr),
		},
		{
			reason: "a header that promises a question and brings none is a format error, not a failure of the server",
			expect: noted("header alone", formerr),
		},
	}
}

// knownTTLs are about how long an answer holds.
func knownTTLs() []*knownDifference {
	return []*knownDifference{
		{
			reason: "an answer that is not held has the TTLs of one that is; CoreDNS gives it the floor of its cache, five seconds",
			expect: func(c comparison) (view, bool) {
				if !c.caches || !c.uncached() {
					return view{}, false
				}
				v := c.view.clone()
				for _, section := range [][]record{v.Answer, v.Authority} {
					for i := range section {
						if section[i].TTL != 5 {
							return view{}, false
						}
						section[i].TTL = 30
					}
				}
				return v, true
			},
		},
		{
			reason: "the cluster's own records don't come from the cache, so its cap doesn't lower their TTLs",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					switch {
					case dns.IsSubDomain("dns-version."+zone, r.Owner):
						v.Answer[i].TTL = 28800
					case dns.IsSubDomain(zone, r.Owner):
						v.Answer[i].TTL = 30
					}
				}
				return v, c.caches && c.inCluster()
			},
		},
		{
			reason: "a negative answer holds for the least of its SOA's TTL and MINIMUM (RFC 2308, 5)",
			expect: func(c comparison) (view, bool) {
				if !c.caches || len(c.Answer) > 0 || len(c.Authority) != 1 || c.Authority[0].Type != "SOA" {
					return view{}, false
				}
				v := c.view.clone()
				f := strings.Fields(v.Authority[0].Data)
				minimum, err := strconv.ParseUint(f[len(f)-1], 10, 32)
				if err == nil {
					v.Authority[0].TTL = min(v.Authority[0].TTL, uint32(minimum))
				}
				return v, err == nil
			},
		},
	}
}

// uncached says that it is an answer that CoreDNS's cache doesn't take: a zone
// transfer's, or a CNAME whose target is not there.
func (c comparison) uncached() bool {
	if c.qtype == dns.TypeAXFR || c.qtype == dns.TypeIXFR {
		return true
	}
	dangling := c.Rcode == "NXDOMAIN" || c.inCluster()
	return dangling && len(c.Answer) > 0 && !slices.ContainsFunc(c.Answer, func(r record) bool { return r.Type != "CNAME" })
}
