package differential

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// The rules part needs no cluster: it compares what rewrite makes of
// queries, under random rules of each form and questions that they take. A server has
// all Corefiles of a run as blocks with a port each.
const (
	ruleBlocks    = 60
	ruleQuestions = 25
)

// TestRules compares random rules.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	random := rand.New(rand.NewPCG(seed(t), 7))
	upstream := startUpstream(t)
	ports := peer.Ports(t, 2*ruleBlocks)
	var texts [2]strings.Builder
	var rules []string
	for i := range ruleBlocks {
		g := ruleGenerator{random}
		rules = append(rules, g.rules())
		for side := range texts {
			fmt.Fprintf(&texts[side], ruleBlock, ports[2*i+side], rules[i], upstream)
		}
	}
	for side, name := range []string{"coredns", "nodens"} {
		serveRules(t, name, texts[side].String(), netip.AddrPortFrom(loopback, ports[side]))
	}
	for i, text := range rules {
		g := ruleGenerator{random}
		for range ruleQuestions {
			q := g.query()
			if q.qclass != 0 && !strings.Contains(text, "class CH IN") {
				continue // which CoreDNS forwards and the agent refuses
			}
			got := askRules(t, netip.AddrPortFrom(loopback, ports[2*i+1]), q)
			q.dropped = got.Rcode == "SERVFAIL"
			want := normalizeRules(askRules(t, netip.AddrPortFrom(loopback, ports[2*i]), q), q)
			if diff := gocmp.Diff(want.adoptServer(got), got); diff != "" {
				t.Errorf("under\n%s%s\ncoredns:\n%snodens:\n%s", text, q, want, got)
			}
		}
	}
}

// ruleBlock is a server block: its port, its rules, and the upstream.
const ruleBlock = `.:%d {
    bind 127.0.0.1
    errors
    bufsize 4096
%s    hosts {
        192.0.2.77 local.ext.test
        2001:db8::77 local.ext.test
        192.0.2.78 a.b.ext.test
        fallthrough
    }
    forward . %s
}
`

// askRules is what the server at addr answers, letters but for the query's own aside.
func askRules(t *testing.T, addr netip.AddrPort, q query) view {
	t.Helper()
	v, _, err := ask(addr, q, dns.Id())
	check.NoError(t, err)
	// Nobody has validated names that rules have made, which CoreDNS's flag says.
	v.Flags = withoutFlags(v.Flags, "ad")
	return v.lowerCase(q.name, true)
}

// normalizeRules is CoreDNS's view with the differences that are meant.
func normalizeRules(v view, q query) view {
	class := cmp.Or(q.qclass, dns.ClassINET)
	if v.Outcome == "silence" { // it can't write a name that its rules have made
		v = view{Outcome: "answer", Opcode: "QUERY", Rcode: "SERVFAIL", Flags: "qr rd"}
		if q.ednsSize != 0 {
			v.EDNS = fmt.Sprintf("version 0, size %d", q.ednsSize)
			if q.do {
				v.EDNS += ", do"
			}
		}
	}
	// The question is always the client's; CoreDNS forgets that where no rule that it has
	// gone past changes the reply.
	v.Question = []string{fmt.Sprintf("%s %s %s", q.name, dns.Class(class), dns.Type(q.qtype))}
	return v
}

// knownRules are about rewrite and template.
func knownRules() []*knownDifference {
	return []*knownDifference{
		{
			reason: "the question of a reply is the client's; CoreDNS forgets that where no rule that it has gone past changes the reply",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.Question = []string{fmt.Sprintf("%s IN %s", c.name, dns.Type(c.qtype))}
				return v, c.Outcome == "answer" && c.qclass == 0
			},
		},
		{
			reason: "a record about the name that was asked for has its letters, as of any other source",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					if strings.EqualFold(r.Owner, c.name) {
						v.Answer[i].Owner = c.name
					}
				}
				return v, true
			},
		},
		{
			reason: "addresses made for dns64 have the name that was asked for; CoreDNS gives them the one that rules have made of it",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					if r.Type == "AAAA" && strings.HasSuffix(c.name, ".a.test.") && r.Owner == strings.Replace(c.name, ".a.", ".ext.", 1) {
						v.Answer[i].Owner = c.name
					}
				}
				return v, !strings.Contains(c.Flags, " ra")
			},
		},
		{
			reason: "what a template makes does not come from the cache, so its cap doesn't lower the TTLs",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					if c.caches && r.TTL <= 30 && strings.HasSuffix(r.Owner, ".t.test.") {
						v.Answer[i].TTL = 60
					}
				}
				return v, true
			},
		},
	}
}

// serveRules starts a program with a Corefile and waits until the server at addr answers.
func serveRules(t *testing.T, program, text string, addr netip.AddrPort) {
	t.Helper()
	p := peer.StartServer(t, text, peer.Command{Name: program, Env: []string{rareGC}})
	p.Must(t, program+" to answer", peer.Answers(addr))
}

// ruleGenerator makes rules and questions.
type ruleGenerator struct{ *rand.Rand }

func (g ruleGenerator) one(list ...string) string { return list[g.IntN(len(list))] }

// rules are the lines of a block.
func (g ruleGenerator) rules() string {
	var b strings.Builder
	if g.IntN(6) == 0 {
		b.WriteString("    rewrite continue class CH IN\n")
	}
	for range 1 + g.IntN(4) {
		b.WriteString("    rewrite " + g.one("", "continue ", "stop ") + g.rule() + "\n")
	}
	return b.String()
}

// knownNames are names that there is something about.
var knownNames = []string{
	"host.ext.test", "four.ext.test", "six.ext.test", "alias.ext.test", "alias2.ext.test", "dangling.ext.test", "ext.test",
	"_dns._udp.ext.test", "missing.ext.test", "servfail.ext.test", "local.ext.test", "a.b.ext.test", "x.any.test", "mail.ext.test", "neg.test",
	"refused.ext.test", "toservfail.ext.test", "ad.ext.test", "zero.ext.test", "mixed.ext.test",
}

// unknownNames are names that there is nothing about, and that rules are made for.
var unknownNames = []string{
	"www.shop.test", "host.shop.test", "four.shop.test", "local-x.test", "alias.other.test", "host-ext.test", "shop.test", "mail.shop.test", "a.b.shop.test",
}

func (g ruleGenerator) name() string {
	if g.IntN(2) == 0 {
		return g.one(knownNames...)
	}
	return g.one(unknownNames...)
}

func (g ruleGenerator) dot(s string) string { return s + g.one("", ".") }

func (g ruleGenerator) rule() string {
	switch g.IntN(9) {
	case 0:
		return "type " + g.one("A AAAA", "AAAA A", "ANY A", "TXT MX", "MX TXT", "a CNAME", "CNAME A")
	case 1:
		return "ttl " + g.match() + " " + g.one("7", "30-60", "-20", "500-", "0")
	case 2:
		return "rcode " + g.match() + " " + g.one("SERVFAIL NOERROR", "NXDOMAIN NOERROR", "NOERROR NXDOMAIN", "2 3", "REFUSED servfail", "NOERROR REFUSED")
	case 3:
		return "cname " + g.one(
			"host.ext.test four.ext.test", "exact host.ext.test. alias.ext.test", "suffix t.ext.test. x.any.test.", "prefix host. four.",
			"regex (hos.*)\\.ext\\.test\\. {1}.any.test.", "substring st.ext. st.any.", "missing.ext.test local.ext.test", "regex host(.*) alias{1}",
		)
	default:
		return "name " + g.names()
	}
}

// match is a kind of match and what is looked for.
func (g ruleGenerator) match() string {
	return g.one(
		"exact "+g.dot(g.name()), g.dot(g.name()), "suffix "+g.dot("ext.test"), "suffix .shop.test", "prefix host", "substring b",
		"regex (.*)\\.test", "regex ^.*\\.ext\\.test\\.$", "regex .*", "suffix test.",
	)
}

// names are the kinds of name rules, with what may stand behind them.
func (g ruleGenerator) names() string {
	rule := g.one(
		g.dot(g.one(unknownNames...))+" "+g.dot(g.one(knownNames...)),
		"exact "+g.dot(g.one(unknownNames...))+" "+g.dot(g.one(knownNames...)),
		"exact "+g.dot(g.one(unknownNames...))+" "+g.dot(g.one(knownNames...)),
		"suffix .shop.test .ext.test", "suffix .shop.test. .ext.test.", "suffix shop.test ext.test.", "suffix .other.test .ext.test",
		"prefix www host", "prefix local-x. local.ext.", "prefix mail. host.", "prefix a.b. four.",
		"substring shop ext", "substring shop. ext.", "substring .b. .", "substring t. u.",
		"regex (.*)\\.shop\\.test\\. {1}.ext.test.", "regex ^(.*)-(.*)\\.test\\.$ {1}.{2}.test", "regex (.*)\\.(.*)\\.test\\.? {1}.ext.test",
		"regex ^([a-z]+)\\. {1}.ext.test", "regex (shop) ext.test", "regex (.*) {1}x.any.test", "regex ^(.)(.*)$ {2}",
		"regex (.+)\\.any\\.test\\. {1}.alias.ext.test.", "regex ^a ..bad", "regex ^$ x.test",
	)
	if strings.Count(rule, " ") < 2 {
		return rule
	}
	for i := range g.IntN(3) {
		word := "answer "
		if i > 0 && g.IntN(2) == 0 {
			word = ""
		}
		option := g.one(
			"auto", "auto", "name (.*)\\.ext\\.test\\. {1}.shop.test.", "name (.*)ext(.*)\\.$ {1}shop{2}", "value (.*)\\.ext\\.test\\. {1}.shop.test",
			"value ^(.*)$ v.{1}test.", "name ^h(.*)\\.$ g{1}",
		)
		if strings.Contains(rule, "answer auto") && strings.HasPrefix(option, "name") || strings.Contains(rule, "name ") && option == "auto" {
			continue // may not stand together
		}
		if i > 0 && !strings.Contains(rule, "answer") {
			word = "answer "
		}
		rule += " " + word + option
	}
	return rule
}

// query asks for something that a rule may take.
func (g ruleGenerator) query() query {
	name := g.one(append(slices.Clone(unknownNames), knownNames...)...)
	if g.IntN(5) == 0 {
		name = strings.ToUpper(name[:1]) + name[1:]
	}
	q := query{name: name + ".", qtype: dns.TypeA}
	if g.IntN(2) == 0 {
		kinds := []uint16{dns.TypeAAAA, dns.TypeCNAME, dns.TypeMX, dns.TypeTXT, dns.TypeSRV, dns.TypeSOA, dns.TypeNS, dns.TypeA, dns.TypePTR, dns.TypeCAA, dns.TypeHTTPS}
		q.qtype = kinds[g.IntN(len(kinds))]
	}
	if g.IntN(2) == 0 {
		q.ednsSize, q.do = 4096, g.IntN(3) == 0
	}
	if g.IntN(12) == 0 {
		q.qclass = dns.ClassCHAOS
	}
	q.tcp = g.IntN(8) == 0
	return q
}
