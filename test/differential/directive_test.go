package differential

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/soak"
)

// ruleSet is a server block's directives that need no cluster, in front of the
// upstream.
type ruleSet struct {
	name string
	// text is the directives; forward is added unless text has one.
	text string
	// names are asked for besides those of every rule set.
	names []string
	// server are names that are asked for in the class CH.
	server []string
	// caches says that answers are held.
	caches bool
}

// ruleSets are those that are compared.
var ruleSets = []ruleSet{
	{name: "rewrite exact", text: "rewrite name exact new.ext.test host.ext.test\nrewrite name old.ext.test. alias2.ext.test.", names: []string{"new.ext.test.", "NEW.ext.test.", "old.ext.test.", "x.new.ext.test."}},
	{name: "rewrite prefix", text: "rewrite name prefix my- mail", names: []string{"my-.ext.test.", "my-2.ext.test.", "MY-.ext.test."}},
	{name: "rewrite suffix", text: "rewrite name suffix .schmoogle.test. .ext.test.", names: []string{"host.schmoogle.test.", "alias.schmoogle.test.", "gone.schmoogle.test.", "Host.Schmoogle.Test.", "schmoogle.test."}},
	{name: "rewrite suffix, answers too", text: "rewrite name suffix .schmoogle.test. .ext.test. answer auto", names: []string{"host.schmoogle.test.", "alias.schmoogle.test.", "alias2.schmoogle.test.", "_dns._udp.schmoogle.test.", "gone.schmoogle.test."}},
	{name: "rewrite substring", text: "rewrite name substring oogle os", names: []string{"hoogle.ext.test.", "hoogleoogle.ext.test."}},
	{name: "rewrite regex", text: `rewrite name regex (.*)\.in-(.*)\.test {1}.{2}.test`, names: []string{"host.in-ext.test.", "alias2.in-ext.test.", "gone.in-ext.test.", "in-ext.test."}},
	{name: "rewrite regex, answers by name", text: "rewrite stop {\nname regex (.*)\\.pub\\.test {1}.ext.test\nanswer name (.*)\\.ext\\.test {1}.pub.test\n}", names: []string{"host.pub.test.", "alias.pub.test.", "alias2.pub.test.", "_dns._udp.pub.test.", "gone.pub.test."}},
	{name: "rewrite regex, answers by value", text: "rewrite stop {\nname regex (.*)\\.pub\\.test {1}.ext.test\nanswer name (.*)\\.ext\\.test {1}.pub.test\nanswer value (.*)\\.ext\\.test {1}.pub.test\n}", names: []string{"host.pub.test.", "alias.pub.test.", "alias2.pub.test.", "_dns._udp.pub.test.", "gone.pub.test."}},
	{name: "rewrite continue", text: "rewrite continue name suffix .a.test .b.test\nrewrite continue name suffix .b.test .ext.test\nrewrite stop name exact host.ext.test four.ext.test", names: []string{"host.a.test.", "host.b.test.", "six.a.test.", "gone.a.test."}},
	{name: "rewrite stop", text: "rewrite stop name suffix .a.test .b.test\nrewrite name suffix .b.test .ext.test", names: []string{"host.a.test.", "host.b.test."}},
	{name: "rewrite type", text: "rewrite type ANY HINFO\nrewrite type AAAA A"},
	{name: "rewrite ttl", text: "rewrite ttl exact host.ext.test. 7\nrewrite ttl suffix .any.test 100-200\nrewrite ttl regex long.* -60\nrewrite ttl prefix four 30-", names: []string{"x.any.test.", "long.ext.test.", "ad.ext.test."}},
	{name: "rewrite name and cache", text: "cache 30\nrewrite name suffix .schmoogle.test. .ext.test. answer auto", caches: true, names: []string{"host.schmoogle.test.", "alias.schmoogle.test.", "gone.schmoogle.test."}},

	{name: "template A", text: "template IN A t.test {\nmatch \"^ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)[.]t[.]test[.]$\"\nanswer \"{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}\"\nfallthrough\n}", names: []string{"ip-1-2.t.test.", "IP-1-2.t.test.", "ip-1.t.test.", "t.test.", "ip-999-1.t.test."}},
	{name: "template NXDOMAIN", text: "template ANY ANY gone.test {\nrcode NXDOMAIN\nauthority \"gone.test. 60 IN SOA ns.gone.test. host.gone.test. (1 60 60 60 60)\"\n}", names: []string{"gone.test.", "x.gone.test.", "X.Gone.Test."}},
	{name: "template several", text: "template IN A {\nmatch ^one[.]\nanswer \"{{ .Name }} 5 IN A 192.0.2.101\"\nfallthrough\n}\ntemplate IN A {\nmatch ^two[.]\nanswer \"{{ .Name }} 5 IN A 192.0.2.102\"\nadditional \"x.test. 5 IN A 192.0.2.9\"\nfallthrough\n}\ntemplate IN MX mx.test {\nanswer \"{{ .Zone }} 5 IN MX 10 mail.{{ .Zone }}\"\nanswer \"{{ .Name }} 5 IN MX 20 {{ .Type }}.{{ .Class }}.test.\"\n}", names: []string{"one.x.", "two.x.", "three.x.", "mx.test.", "a.mx.test."}},
	{name: "template CNAME", text: "template IN A c.test {\nmatch ^(?P<n>.*)[.]c[.]test[.]$\nanswer \"{{ .Name }} 60 IN CNAME {{ .Group.n }}.ext.test.\"\n}", names: []string{"host.c.test.", "gone.c.test.", "alias.c.test."}},
	{name: "template rcodes", text: "template IN A r.test {\nmatch ^refused\nrcode REFUSED\nfallthrough\n}\ntemplate IN A r.test {\nrcode NOERROR\n}", names: []string{"refused.r.test.", "other.r.test."}},
	{name: "template expressions", text: "template IN A t.test {\nmatch \"^ip-(?P<a>[0-9]*)[.]t[.]test[.]$\"\nvar n int(group('a'))\nvar next n + 1\nexpr n > 4\nexpr incidr(client_ip(), '127.0.0.0/24')\nanswer \"{{ .Name }} 60 IN A 10.0.0.{{ .Var.next }}\"\nfallthrough\n}", names: []string{"ip-7.t.test.", "IP-9.t.test.", "ip-1.t.test.", "ip-.t.test.", "t.test."}},
	{name: "template empty", text: "template IN AAAA ."},

	{name: "acl block", text: "acl {\nblock type A net 127.0.1.0/24\nblock type TXT\n}"},
	{name: "acl filter", text: "acl ext.test {\nallow type A net 127.0.1.1\nfilter type A AAAA net 127.0.1.0/24\nfilter type MX\n}", names: []string{"x.any.test."}},
	{name: "acl allow", text: "acl {\nallow net 127.0.1.1 127.0.1.2/31\nblock\n}"},
	{name: "acl chain", text: "acl host.ext.test {\nblock type A CNAME PTR\nfilter type AAAA\n}"},
	{name: "any", text: "any"},
	{name: "any and cache", text: "any\ncache 30", caches: true},
	{name: "local", text: "local", names: []string{"localhost.", "x.localhost.", "localhost.ext.test.", "127.in-addr.arpa.", "0.in-addr.arpa.", "255.in-addr.arpa.", "1.0.0.127.in-addr.arpa.", "2.0.0.127.in-addr.arpa.", "localhost.localdomain.", "LocalHost."}},
	{name: "minimal", text: "minimal"},
	{name: "minimal and cache", text: "minimal\ncache 30", caches: true},
	{name: "chaos", text: "chaos some-server-1 someone@ext.test", server: []string{"version.bind.", "VERSION.server.", "hostname.bind.", "Id.Server.", "authors.bind."}},
	{name: "header in replies", text: "header {\nresponse set aa ra\nresponse clear rd\n}\nlocal\nany\nhosts {\n192.0.2.200 in.hosts.test\nfallthrough\n}", names: []string{"in.hosts.test.", "localhost."}},
	{name: "header in queries", text: "header {\nquery clear rd\nquery set ra aa\nresponse clear ra\nresponse set aa\nresponse clear aa\n}"},
	{name: "no effect", text: "multisocket 2\ncancel 3s\nshed\nroot /tmp\nhttps {\nmax_connections 7\nmax_streams 7\n}"},
	{name: "nsid", text: "nsid some text"},

	{name: "dns64", text: "dns64"},
	{name: "dns64 prefix", text: "dns64 2001:db8:64::/96"},
	{name: "dns64 all", text: "dns64 {\nprefix 64:ff9b::/96\ntranslate_all\nallow_ipv4\n}"},
	{name: "dns64 v4", text: "dns64 {\nallow_ipv4\n}"},
	{name: "dns64 and cache", text: "cache 30\ndns64 {\nallow_ipv4\n}", caches: true},
	{name: "dns64 and rewrite", text: "rewrite name suffix .a.test .ext.test answer auto\ndns64 {\nallow_ipv4\n}", names: []string{"host.a.test.", "four.a.test.", "six.a.test."}},

	{name: "cache disabled", text: "cache 30 {\ndisable success\n}", caches: true},
	{name: "cache denial disabled", text: "cache 30 {\ndisable denial ext.test\n}", caches: true},
	{name: "cache keeps TTLs", text: "cache 30 {\nkeepttl\n}", caches: true},
	{name: "cache stale", text: "cache 30 {\nserve_stale 1h\nprefetch 2 1m 50%\nservfail 2s\n}", caches: true},

	{name: "designated resolvers", names: []string{"_dns.resolver.arpa.", "x.resolver.arpa.", "notresolver.arpa."}},
	{name: "designated resolvers and cache", text: "cache 30", caches: true, names: []string{"_dns.resolver.arpa.", "x.resolver.arpa.", "notresolver.arpa."}},

	{name: "forward next", text: "forward . UPSTREAM UPSTREAM2 {\npolicy sequential\nnext NXDOMAIN SERVFAIL\n}\nforward . UPSTREAM2", names: []string{"only.second.test.", "servfail.ext.test."}},
	{name: "hosts and rewrite", text: "hosts {\n192.0.2.200 in.hosts.test\n2001:db8::200 in.hosts.test\nfallthrough\n}\nrewrite name suffix .a.test .hosts.test answer auto", names: []string{"in.a.test.", "in.hosts.test.", "gone.a.test.", "gone.hosts.test."}},
	{name: "all together", text: "local\nany\nminimal\ncache 30\ndns64 {\nallow_ipv4\n}\nrewrite name suffix .a.test .ext.test answer auto\ntemplate IN A t.test {\nanswer \"{{ .Name }} 60 IN A 10.0.0.1\"\n}\nnsid here", caches: true, names: []string{"host.a.test.", "x.t.test.", "localhost."}},
}

// corefile is the whole Corefile of the rule set.
func (b ruleSet) corefile() string {
	text := b.text
	if !strings.Contains(text, "forward ") {
		text += "\nforward . UPSTREAM"
	}
	return ".:PORT {\nbind 127.0.0.1\nerrors\nready 127.0.0.1:READY\n" + strings.ReplaceAll(text, "UPSTREAM2", "UPSTREAM") + "\n}\n"
}

// allowed are the differences that are meant.
func (b ruleSet) allowed() []*knownDifference {
	list := slices.Concat([]*knownDifference{knownSizes()}, knownMessages(), knownTTLs())
	if strings.Contains(b.text, "acl") {
		list = append(list, knownAccessLists()...)
	}
	if strings.HasPrefix(b.name, "designated") {
		list = append(list, knownDesignated())
	}
	if strings.Contains(b.text, "rewrite") || strings.Contains(b.text, "template") {
		list = append(list, knownRules()...)
	}
	if strings.Contains(b.text, "dns64") {
		list = append(list, knownDNS64()...)
	}
	if strings.Contains(b.text, "nsid") {
		list = append(list, &knownDifference{
			reason: "the OPT record has the DO bit of the query's (RFC 3225, 3); CoreDNS sets it where nsid and cache meet",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.EDNS = strings.Replace(v.EDNS, ", do", "", 1)
				return v, !c.do && strings.Contains(c.EDNS, ", option 3 ")
			},
		})
	}
	return list
}

// knownAccessLists are about acl.
func knownAccessLists() []*knownDifference {
	return []*knownDifference{{
		reason: "no alias leads around acl, and no PTR record tells a name that the client may not ask for; CoreDNS looks at the question only",
		expect: func(c comparison) (view, bool) {
			told := slices.ContainsFunc(c.Answer, func(r record) bool { return strings.EqualFold(r.Data, "host.ext.test.") })
			q := c.query
			if q.name = "host.ext.test."; q.qtype == dns.TypeANY { // each record is judged by its own type
				q.qtype = dns.TypeCNAME
			}
			v := c.ask(q)
			v.Question = c.Question
			return v, told && !strings.Contains(v.Flags, "ra") // it is denied there
		},
	}, {
		reason: "an OPT record is for clients that sent one, with their DO bit (RFC 6891, 6.1.1; RFC 3225, 3); CoreDNS's acl gives every client one with DO",
		expect: func(c comparison) (view, bool) {
			v := c.view
			if c.ednsSize == 0 {
				v.EDNS = ""
			} else if !c.do {
				v.EDNS = strings.Replace(v.EDNS, ", do", "", 1)
			}
			return v, strings.Contains(c.EDNS, "(Blocked)") || strings.Contains(c.EDNS, "(Filtered)")
		},
	}}
}

// knownDesignated is about the names by which clients look for designated resolvers.
func knownDesignated() *knownDifference {
	return &knownDifference{
		reason: "names under resolver.arpa are served here, without records (RFC 9462, 6.4): an upstream's would lead clients past the agent; CoreDNS forwards them",
		expect: func(c comparison) (view, bool) {
			return c.servedEmpty("NOERROR", "resolver.arpa.", "resolver.arpa."), strings.HasSuffix(c.name, ".resolver.arpa.")
		},
	}
}

// knownDNS64 are about dns64.
func knownDNS64() []*knownDifference {
	return []*knownDifference{
		{
			reason: "an answer that was looked at for dns64 says that recursion is available, as all others of the same server do; CoreDNS's forgets it",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.Flags = strings.Replace(v.Flags, "qr rd", "qr rd ra", 1)
				local := strings.HasSuffix(strings.ToLower(c.name), "localhost.") // is answered before
				return v, c.qtype == dns.TypeAAAA && !strings.Contains(c.Flags, " ra") && c.Outcome == "answer" && !local
			},
		},
		{
			reason: "the owner of an address made of another is the query's name, in its letters, as of any other record; CoreDNS gives the letters of its own question for the other",
			expect: func(c comparison) (view, bool) {
				v := c.view.clone()
				for i, r := range v.Answer {
					if r.Type == "AAAA" && strings.EqualFold(r.Owner, c.name) {
						v.Answer[i].Owner = c.name
					}
				}
				return v, c.qtype == dns.TypeAAAA
			},
		},
	}
}

// commonNames are the names that every rule set is asked for.
var commonNames = []string{
	"host.ext.test.", "HOST.ext.test.", "four.ext.test.", "six.ext.test.", "alias.ext.test.", "alias2.ext.test.", "dangling.ext.test.", "mixed.ext.test.",
	"missing.ext.test.", "x.neg.test.", "_dns._udp.ext.test.", "servfail.ext.test.", "refused.ext.test.", "ext.test.", "1.2.0.192.in-addr.arpa.", ".",
}

// queries are the questions about the rule set, in an order of their own.
func (b ruleSet) queries() []query {
	var list []query
	for _, name := range slices.Concat(commonNames, b.names) {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeSVCB, dns.TypeANY, dns.TypeHINFO} {
			list = append(list, query{name: name, qtype: kind})
		}
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			list = append(list,
				query{name: name, qtype: kind, ednsSize: ednsSize},
				query{name: name, qtype: kind, ednsSize: ednsSize, do: true},
				query{name: name, qtype: kind, cd: true},
				query{name: name, qtype: kind, tcp: true},
				query{name: name, qtype: kind, ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}},
				query{name: name, qtype: kind, from: "127.0.1.1"},
				query{name: name, qtype: kind, from: "127.0.1.9", tcp: true})
		}
	}
	for _, name := range b.server {
		for _, tcp := range []bool{false, true} {
			list = append(list, query{name: name, qtype: dns.TypeTXT, qclass: dns.ClassCHAOS, tcp: tcp},
				query{name: name, qtype: dns.TypeTXT, qclass: dns.ClassCHAOS, tcp: tcp, ednsSize: ednsSize, do: true},
				query{name: name, qtype: dns.TypeTXT, tcp: tcp})
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// TestDirectives compares the directives that need no cluster. In the usual form each rule set gets half of
// its queries, which are in random order.
func TestDirectives(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	s := newPlainSite(t)
	for i, b := range ruleSets {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			r := s.run(t, b.caches)
			r.table = b.allowed()
			r.coredns = s.serve(t, "coredns", b.corefile(), apiserver.Admin)
			r.agents = []agent{s.serveAgent(t, agent{name: agentProgram()}, b.corefile(), apiserver.Admin)}
			share := soak.Choose(2, 1)
			r.compare(everyNth(b.queries(), i%share, share))
			r.report()
		})
	}
}
