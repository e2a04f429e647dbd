package differential

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// oddReply is a reply that no upstream should give, to a question for A.
type oddReply struct {
	name string // the first label of the name that is asked for
	// rcode, answer and authority are the reply; OWNER is the name asked for. Without a
	// question it is a header alone.
	rcode             int
	answer, authority []string
	bare              bool
	// kept says that CoreDNS answers the second query without the upstream.
	kept bool
	// reason is why the agent does not do the same; empty where it does.
	reason string
}

// contradictsReason is why the agent keeps nothing that contradicts itself.
const contradictsReason = "a reply that contradicts itself is not kept, even with an SOA, with which CoreDNS keeps it as a denial"

// oddReplies are those that are compared.
var oddReplies = []oddReply{
	{name: "plain", answer: []string{"OWNER 300 IN A 192.0.2.1"}, kept: true},
	{name: "alias", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "a.odd.test. 300 IN A 192.0.2.1"}, kept: true},
	{name: "same-alias-twice", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "OWNER 300 IN CNAME A.odd.test.", "a.odd.test. 300 IN A 192.0.2.1"}, kept: true},
	{name: "two-aliases", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "OWNER 300 IN CNAME b.odd.test.", "a.odd.test. 300 IN A 192.0.2.1"}},
	{name: "two-aliases-further-on", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "a.odd.test. 300 IN CNAME b.odd.test.", "a.odd.test. 300 IN CNAME c.odd.test.", "b.odd.test. 300 IN A 192.0.2.1"}},
	{name: "two-aliases-soa", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "OWNER 300 IN CNAME b.odd.test."}, authority: soaOfOdd, kept: true, reason: contradictsReason},
	{name: "circle", answer: []string{"OWNER 300 IN CNAME a.odd.test.", "a.odd.test. 300 IN CNAME OWNER"}},
	{name: "circle-soa", answer: []string{"OWNER 300 IN CNAME OWNER"}, authority: soaOfOdd, kept: true, reason: contradictsReason},
	{name: "circle-beside-address", answer: []string{"OWNER 300 IN CNAME OWNER", "OWNER 300 IN A 192.0.2.1"}},
	{name: "alias-beside-address", answer: []string{"OWNER 300 IN A 192.0.2.1", "OWNER 300 IN CNAME a.odd.test."}},
	{name: "alias-beside-address-soa", answer: []string{"OWNER 300 IN A 192.0.2.1", "OWNER 300 IN CNAME a.odd.test."}, authority: soaOfOdd, kept: true, reason: contradictsReason},
	{name: "alias-beside-address-to-address", answer: []string{"OWNER 300 IN A 192.0.2.1", "OWNER 300 IN CNAME a.odd.test.", "a.odd.test. 300 IN A 192.0.2.1"}, kept: true},
	{name: "alias-alone", answer: []string{"OWNER 300 IN CNAME a.odd.test."}},
	{name: "another-name", answer: []string{"a.odd.test. 300 IN A 192.0.2.1"}},
	{name: "nothing", kept: true},
	{name: "nxdomain", rcode: dns.RcodeNameError, authority: soaOfOdd, kept: true},
	{name: "nxdomain-without-soa", rcode: dns.RcodeNameError},
	{name: "nxdomain-with-answer", rcode: dns.RcodeNameError, answer: []string{"OWNER 300 IN A 192.0.2.1"}, authority: soaOfOdd},
	{name: "servfail", rcode: dns.RcodeServerFailure, kept: true},
	{name: "refused", rcode: dns.RcodeRefused},
	{name: "formerr", rcode: dns.RcodeFormatError},
	{
		name: "notimp", rcode: dns.RcodeNotImplemented, kept: true,
		reason: "NOTIMP says something of the query, not of the name, and is no failure of resolution (RFC 9520, 2): the agent keeps it no more than REFUSED",
	},

	{name: "bare-formerr", bare: true, rcode: dns.RcodeFormatError},
	{name: "bare-servfail", bare: true, rcode: dns.RcodeServerFailure, reason: bareErrorsReason},
	{name: "bare-refused", bare: true, rcode: dns.RcodeRefused, reason: bareErrorsReason},
	{name: "bare-nxdomain", bare: true, rcode: dns.RcodeNameError, reason: bareErrorsReason},
}

// bareErrorsReason is why the agent answers as it does what has no question.
const bareErrorsReason = "a reply without a question is an error of the server's if it says so, which the client gets; any other is dropped as one to another question is, and the query is SERVFAIL in the end; CoreDNS makes FORMERR of both"

// oddZone is the end of the names with odd replies.
const oddZone = ".odd.test."

var soaOfOdd = []string{"odd.test. 300 IN SOA ns.odd.test. host.odd.test. 1 1800 900 604800 60"}

// startOddUpstream starts an upstream with odd replies that closes when the test ends.
func startOddUpstream(t *testing.T) *fakedns.Server {
	t.Helper()
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		label, _, _ := strings.Cut(q.Question[0].Name, ".")
		m := new(dns.Msg).SetReply(q)
		m.RecursionAvailable = true
		for _, o := range oddReplies {
			if o.name == label {
				o.fill(m)
			}
		}
		if opt := q.IsEdns0(); opt != nil && len(m.Question) > 0 {
			m.SetEdns0(4096, opt.Do())
		}
		return m
	}))
}

// fill makes m the reply.
func (o oddReply) fill(m *dns.Msg) {
	m.Rcode = o.rcode
	name := m.Question[0].Name
	if o.bare {
		m.Question = nil
		return
	}
	for _, s := range []struct {
		to    *[]dns.RR
		lines []string
	}{{&m.Answer, o.answer}, {&m.Ns, o.authority}} {
		for _, line := range s.lines {
			rr, err := dns.NewRR(strings.ReplaceAll(line, "OWNER", name))
			if err != nil {
				panic(fmt.Sprintf("%s: %v", line, err))
			}
			*s.to = append(*s.to, rr)
		}
	}
}

// TestReplies compares what becomes of replies that no upstream should give: what the
// client gets, twice, and whether the second time comes from the cache.
func TestReplies(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	const text = ".:PORT {\nbind 127.0.0.1\nerrors\nready 127.0.0.1:READY\ncache 30\nforward . UPSTREAM {\nmax_fails 0\n}\n}\n"
	s := newPlainSite(t)
	s.table = knownReplies()
	r := s.run(t, true)
	theirs := startOddUpstream(t)
	s.upstream = theirs.Addr()
	r.coredns = s.serve(t, "coredns", text, apiserver.Admin)
	ours := startOddUpstream(t)
	s.upstream = ours.Addr()
	r.agents = []agent{s.serveAgent(t, agent{name: agentProgram()}, text, apiserver.Admin)}
	r.startExplaining(nil)
	for _, o := range oddReplies {
		check.NoError(t, r.compareQuery(query{name: o.name + oddZone, qtype: dns.TypeA}))
		if kept := theirs.CountName(o.name+oddZone) == 1; kept != o.kept {
			t.Errorf("%s: CoreDNS keeps it: %v, want %v", o.name, kept, o.kept)
		}
		if o.bare {
			continue // a SERVFAIL of the agent's own is kept
		}
		if kept := ours.CountName(o.name+oddZone) == 1; kept != (o.kept && o.reason == "") {
			t.Errorf("%s: the agent keeps it: %v, and CoreDNS: %v; the reason: %q", o.name, kept, o.kept, o.reason)
		}
	}
	r.checkExplained()
	r.report()
	reportUnused(t, s.table)
}

// knownReplies are about what clients get of odd replies.
func knownReplies() []*knownDifference {
	return []*knownDifference{
		{
			reason: bareErrorsReason,
			expect: func(c comparison) (view, bool) {
				v := c.view
				switch {
				case strings.HasPrefix(c.name, "bare-refused."):
					v.Rcode = "REFUSED"
				case strings.HasPrefix(c.name, "bare-servfail."), strings.HasPrefix(c.name, "bare-nxdomain."):
					v.Rcode = "SERVFAIL"
				default:
					return view{}, false
				}
				return v, true
			},
		},
		{
			reason: "the TTLs of NXDOMAIN are those of a denial, whatever it comes with; CoreDNS gives 5 s to one with answers",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for _, section := range [][]record{v.Answer, v.Authority} {
					for i := range section {
						section[i].TTL = 30
					}
				}
				return v, strings.HasPrefix(c.name, "nxdomain-with-answer.")
			},
		},
	}
}
