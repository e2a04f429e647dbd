package resolver_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
)

// rulesFile writes a response policy zone with these rules, and returns its path.
func rulesFile(t testing.TB, rules ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db.rpz")
	text := "$TTL 60\n@ SOA ns host 1 3600 600 86400 30\n@ NS localhost.\n" + strings.Join(rules, "\n") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// rpz is a directive with these options.
func rpz(zone string, options ...string) string {
	return "rpz " + zone + " {\n" + strings.Join(options, "\n") + "\n}\n"
}

// unwanted are the rules of most tests: one for each action, and for names around them.
var unwanted = []string{
	"evil.test CNAME .", "*.evil.test CNAME .", "good.evil.test CNAME rpz-passthru.", "old.evil.test CNAME old.evil.test.",
	"empty.test CNAME *.", "silent.test CNAME rpz-drop.", "tcp.test CNAME rpz-tcp-only.",
	"walled.test A 192.0.2.99", "walled.test TXT \"see the policy\"", "*.walled.test CNAME garden.example.",
	"expand.test CNAME *.garden.example.", "*.garden.example CNAME .", "unknown.test CNAME rpz-later.",
	"deep.a.b.test CNAME .", "*.b.test CNAME *.", "db.b.svc.cluster.local CNAME .",
	"32.66.2.0.192.rpz-ip CNAME .", "24.0.100.51.198.rpz-ip CNAME *.", "32.7.100.51.198.rpz-ip CNAME rpz-passthru.", "48.zz.bad.db8.2001.rpz-ip A 192.0.2.98",
	"24.0.0.51.198.rpz-client-ip CNAME .", "ns.evil.test.rpz-nsdname CNAME .", "32.1.2.0.192.rpz-nsip CNAME .",
	"long" + strings.Repeat("g", 59) + ".test CNAME .",
}

const (
	byNXDomain = "NXDOMAIN +15:15 (Blocked): ()"
	byNoData   = "NOERROR +15:15 (Blocked): ()"
	forged     = " +15:4 (Forged Answer): ()"
)

// unwantedScript is what the upstream has.
var unwantedScript = map[string][]string{
	"evil.test.": {"evil.test. 60 A 192.0.2.1"}, "x.evil.test.": {"x.evil.test. 60 A 192.0.2.1"}, "good.evil.test.": {"good.evil.test. 60 CNAME evil.test.", "evil.test. 60 A 192.0.2.1"},
	"old.evil.test.": {"old.evil.test. 60 A 192.0.2.1"}, "xevil.test.": {"xevil.test. 60 A 192.0.2.1"}, "evil.test.example.": {"evil.test.example. 60 A 192.0.2.1"},
	"test.": {"test. 60 A 192.0.2.1"}, "empty.test.": {"empty.test. 60 A 192.0.2.1"}, "x.empty.test.": {"x.empty.test. 60 A 192.0.2.1"}, "tcp.test.": {"tcp.test. 60 A 192.0.2.1"},
	"garden.example.": {"garden.example. 60 A 192.0.2.80"}, "expand.test.garden.example.": {"expand.test.garden.example. 60 A 192.0.2.81"},
	"unknown.test.": {"unknown.test. 60 A 192.0.2.1"}, "a.b.test.": {"a.b.test. 60 A 192.0.2.1"}, "b.test.": {"b.test. 60 A 192.0.2.1"},
	"mid.test.": {"mid.test. 60 CNAME x.evil.test.", "x.evil.test. 60 A 192.0.2.1"}, "out.test.": {"out.test. 60 CNAME mid.test.", "mid.test. 60 CNAME x.evil.test.", "x.evil.test. 60 A 192.0.2.1"}, "via.test.": {"via.test. 60 CNAME walled.test.", "walled.test. 60 A 192.0.2.1"},
	"redirected.test.": {"redirected.test. 60 CNAME x.walled.test.", "x.walled.test. 60 A 192.0.2.1"}, "quiet.test.": {"quiet.test. 60 CNAME silent.test.", "silent.test. 60 A 192.0.2.1"},
	"at.test.": {"at.test. 60 A 192.0.2.66"}, "in.test.": {"in.test. 60 A 198.51.100.8"}, "beside.test.": {"beside.test. 60 A 198.51.101.8"}, "but.test.": {"but.test. 60 A 198.51.100.7"},
	"six.test.": {"six.test. 60 AAAA 2001:db8:bad::1"}, "hint.test.": {"hint.test. 60 HTTPS 1 . ipv4hint=192.0.2.66"}, "mx.test.": {"mx.test. 60 MX 10 x.evil.test.", "mx.test. 60 MX 20 fine.test."},
	"5.0.0.2.ip6.arpa.": {"5.0.0.2.ip6.arpa. 60 PTR x.evil.test."},
}

// TestRPZReplies: what each rule makes of a reply, by every transport, the first time and from the cache.
func TestRPZReplies(t *testing.T) {
	d := policyDesk(t, rpz("rpz.example", "file "+rulesFile(t, unwanted...)), unwantedScript)
	free := policyDesk(t, "", unwantedScript)
	long := strings.Repeat("l.", 100) + "evil.test."
	for query, want := range map[string]string{ // "": as without rules
		"evil.test. A edns": byNXDomain, "EVIL.Test. AAAA edns": byNXDomain, "evil.test. DS edns": byNXDomain, "x.evil.test. A edns": byNXDomain,
		"a.b.c.evil.test. TXT edns": byNXDomain, long + " A edns": byNXDomain, "evil.test. ANY edns": byNXDomain,
		"good.evil.test. A edns": "", "x.good.evil.test. A edns": byNXDomain, "old.evil.test. A edns": "",
		"xevil.test. A edns": "", "evil.test.example. A edns": "", "test. A edns": "", ". NS edns": "",
		"empty.test. A edns": byNoData, "x.empty.test. A edns": "",
		"walled.test. A edns": "NOERROR | walled.test. 60 A 192.0.2.99" + forged, "WALLED.test. TXT edns": `NOERROR | WALLED.test. 60 TXT "see the policy"` + forged, "walled.test. AAAA edns": "NOERROR" + forged,
		"x.walled.test. A edns": "NOERROR | x.walled.test. 60 CNAME garden.example., garden.example. 60 A 192.0.2.80" + forged,
		"expand.test. A edns":   "NOERROR | expand.test. 60 CNAME expand.test.garden.example., expand.test.garden.example. 60 A 192.0.2.81" + forged,
		"unknown.test. A edns":  "",
		// A wildcard is also for names around other rules.
		"deep.a.b.test. A edns": byNXDomain, "a.b.test. A edns": byNoData, "x.a.b.test. A edns": byNoData, "b.test. A edns": "",
		// Names that an upstream's reply leads to.
		"out.test. A edns": byNXDomain, "via.test. A edns": "NOERROR | via.test. 60 A 192.0.2.99" + forged, "redirected.test. A edns": "NOERROR | redirected.test. 60 CNAME garden.example." + forged,
		"mx.test. MX edns": "NOERROR | mx.test. 60 MX 20 fine.test.", "5.0.0.2.ip6.arpa. PTR edns": byNXDomain,
		// Names of the cluster, and aliases to them.
		"db.b.svc.cluster.local. A edns": byNXDomain, "alias.a.svc.cluster.local. A edns": byNXDomain, "web.a.svc.cluster.local. A edns": "", "1.2.96.10.in-addr.arpa. PTR edns": byNXDomain,
		// Addresses.
		"at.test. A edns": byNXDomain, "in.test. A edns": byNoData, "beside.test. A edns": "", "but.test. A edns": "", "six.test. AAAA edns": "NOERROR" + forged, "hint.test. HTTPS edns": byNXDomain,
		"long" + strings.Repeat("g", 59) + ".test. A edns": byNXDomain,
	} {
		for _, via := range []resolver.Proto{resolver.UDP, resolver.TCP, resolver.QUIC} {
			for range 2 {
				got, want := told(d.from(freePod+":53", via).ask(asked(query))), want
				if want == "" {
					want = told(free.from(freePod+":53", via).ask(asked(query)))
				}
				if got != want {
					t.Errorf("%s over %v: %s, want %s", query, via, got, want)
				}
			}
		}
	}
	for _, name := range []string{"silent.test.", "quiet.test."} {
		for _, via := range []resolver.Proto{resolver.UDP, resolver.TCP} {
			if m := d.from(freePod+":53", via).ask(question(name, dns.TypeA)); m != nil {
				t.Errorf("%s over %v gets %v", name, via, m)
			}
		}
	}
	if m := d.from(freePod+":53", resolver.UDP).ask(asked("tcp.test. A edns")); !m.Truncated || len(m.Answer) > 0 {
		t.Errorf("over UDP: %v", m)
	}
	if got, want := told(d.from(freePod+":53", resolver.TCP).ask(asked("tcp.test. A edns"))), "NOERROR | tcp.test. 60 A 192.0.2.1"; got != want {
		t.Errorf("over TCP: %s, want %s", got, want)
	}
	d.policies.Each(func(_ wire.Name, st zonefile.PolicyStats, _ func(func(string, string, uint64))) {
		if st.Names != 15 || st.Addrs != 4 || st.Ignored != 4 || !st.Loaded {
			t.Errorf("%+v", st)
		}
	})
}

// TestRPZOrder: the first zone that has a rule for the client decides; one in audit mode decides nothing.
func TestRPZOrder(t *testing.T) {
	d := policyDesk(t, rpz("one.rpz", "file "+rulesFile(t, "a.test CNAME rpz-passthru.", "b.test CNAME .", "c.test CNAME .", "*.d.test CNAME ."), "namespaces a")+
		rpz("two.rpz", "audit", "file "+rulesFile(t, "b.test CNAME *.", "c.test CNAME *.", "e.test CNAME ."))+
		rpz("three.rpz", "file "+rulesFile(t, "a.test CNAME *.", "b.test CNAME *.", "x.d.test CNAME rpz-passthru.")), map[string][]string{
		"a.test.": {"a.test. 60 A 192.0.2.1"}, "b.test.": {"b.test. 60 A 192.0.2.1"}, "c.test.": {"c.test. 60 A 192.0.2.1"}, "x.d.test.": {"x.d.test. 60 A 192.0.2.1"}, "e.test.": {"e.test. 60 A 192.0.2.1"},
	})
	const stranger = "192.0.2.7" // an address of no known pod gets the rules of all namespaces
	for _, c := range []struct{ client, name, want string }{
		{boundPod, "a.test.", "NOERROR | a.test. 60 A 192.0.2.1"}, {freePod, "a.test.", byNoData}, {stranger, "a.test.", "NOERROR | a.test. 60 A 192.0.2.1"},
		{boundPod, "b.test.", byNXDomain}, {freePod, "b.test.", byNoData}, {stranger, "b.test.", byNXDomain},
		{boundPod, "c.test.", byNXDomain}, {freePod, "c.test.", "NOERROR | c.test. 60 A 192.0.2.1"},
		{boundPod, "x.d.test.", byNXDomain}, {freePod, "x.d.test.", "NOERROR | x.d.test. 60 A 192.0.2.1"},
		{boundPod, "e.test.", "NOERROR | e.test. 60 A 192.0.2.1"},
	} {
		for range 2 {
			if got := told(d.from(c.client+":53", resolver.UDP).ask(asked(c.name + " A edns"))); got != c.want {
				t.Errorf("%s from %s: %s, want %s", c.name, c.client, got, c.want)
			}
			if _, ok := d.x.Reusable(); ok {
				t.Errorf("the reply about %s to %s is copied", c.name, c.client)
			}
		}
	}
	var counts []string
	d.policies.Each(func(zone wire.Name, _ zonefile.PolicyStats, each func(func(string, string, uint64))) {
		each(func(action, mode string, n uint64) {
			counts = append(counts, fmt.Sprint(zone, " ", action, " ", mode, " ", n))
		})
	})
	if want := []string{"one.rpz. nxdomain enforce 8", "two.rpz. nxdomain audit 2", "two.rpz. nodata audit 2", "three.rpz. nodata enforce 4"}; !slices.Equal(counts, want) {
		t.Errorf("counted %q, want %q", counts, want)
	}
}

// TestRPZCopies: replies about names without a rule are copied, also while there are rules for some namespaces. A change of the rules ends
// the copies: see test/scenario/testdata/rpz.txt.
func TestRPZCopies(t *testing.T) {
	d := policyDesk(t, rpz("rpz.example", "file "+rulesFile(t, "evil.test CNAME ."), "namespaces b"), map[string][]string{"fine.test.": {"fine.test. 60 A 192.0.2.1"}, "evil.test.": {"evil.test. 60 A 192.0.2.1"}})
	d.from(boundPod+":53", resolver.UDP)
	for name, want := range map[string]bool{"fine.test.": true, "evil.test.": false, "web.a.svc.cluster.local.": true} {
		d.ask(question(name, dns.TypeA))
		if _, ok := d.copied(question(name, dns.TypeA)); ok != want {
			t.Errorf("%s is copied: %t, want %t", name, ok, want)
		}
	}
}

// TestRPZRewrite: the name that the client asks for is judged, and the one that a rule of `rewrite` makes of it.
func TestRPZRewrite(t *testing.T) {
	d := policyDesk(t, rpz("rpz.example", "file "+rulesFile(t, "asked.test CNAME .", "made.test CNAME *.", "walled.test A 192.0.2.99", "exempt.test CNAME rpz-passthru."))+
		"rewrite stop name exact asked.test fine.test answer auto\nrewrite stop name exact from.test made.test answer auto\nrewrite stop name exact to.test walled.test answer auto\nrewrite stop name exact exempt.test made.test answer auto\n",
		map[string][]string{"fine.test.": {"fine.test. 60 A 192.0.2.1"}, "made.test.": {"made.test. 60 A 192.0.2.2"}})
	d.from(freePod+":53", resolver.TCP)
	for query, want := range map[string]string{
		"asked.test. A edns": byNXDomain, "from.test. A edns": byNoData, "fine.test. A edns": "NOERROR | fine.test. 60 A 192.0.2.1",
		"to.test. A edns": "NOERROR | to.test. 60 A 192.0.2.99" + forged, "exempt.test. A edns": "NOERROR | exempt.test. 60 A 192.0.2.2",
	} {
		if got := told(d.ask(asked(query))); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestRPZTold: denied names are counted by name and client, and an explanation names the rule.
func TestRPZTold(t *testing.T) {
	d := policyDesk(t, rpz("rpz.example", "file "+rulesFile(t, unwanted...)), unwantedScript)
	d.rt.Clients = clients.New(clients.Options{})
	d.from(boundPod+":53", resolver.UDP)
	for _, query := range []string{"x.evil.test. A", "walled.test. A", "out.test. A", "good.evil.test. A"} {
		d.ask(asked(query))
	}
	if r := d.rt.Clients.Names(clients.TopDenied, clients.Minute, 9); len(r.Names) != 3 || r.Names[0].Addr.String() != boundPod {
		t.Errorf("the denied names are %+v", r.Names)
	}
	for query, want := range map[string]string{
		"x.evil.test. A": "the rule *.evil.test.rpz.example. says nxdomain", "good.evil.test. A": "the rule good.evil.test.rpz.example. says passthru",
		"x.walled.test. A": "the rule *.walled.test.rpz.example. says redirect",
	} {
		packet, err := asked(query).Pack()
		if err != nil {
			t.Fatal(err)
		}
		e, _ := d.rt.Explain(packet, netip.MustParseAddrPort(boundPod+":53"), resolver.UDP)
		if !slices.ContainsFunc(e.Steps, func(s resolver.ExplainedStep) bool { return s.Step == "rpz" && s.Reason == want }) {
			t.Errorf("%s: %v", query, e.Steps)
		}
	}
}

// list is a random response policy zone, in short: the names that it denies to the pods of some namespaces, nil for all clients.
type list struct {
	names      []string
	namespaces []string
}

// directive returns the directive for l.
func (l list) directive(t testing.TB, zone string) string {
	var rules []string
	for i, name := range l.names {
		rules = append(rules, name+" CNAME "+[]string{".", "rpz-drop."}[i%2])
	}
	options := []string{"file " + rulesFile(t, rules...)}
	if l.namespaces != nil {
		options = append(options, "namespaces "+strings.Join(l.namespaces, " "))
	}
	return rpz(zone, options...)
}

// denies says by the text of the list whether it denies a name to a client.
func (l list) denies(client, name string) bool {
	if ns := tenants[client]; l.namespaces != nil && ns != "" && !slices.Contains(l.namespaces, ns) {
		return false
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return slices.ContainsFunc(l.names, func(rule string) bool {
		base, below := strings.CutPrefix(rule, "*")
		return rule == name || below && strings.HasSuffix(name, base)
	})
}

// TestRPZIsolation: whatever the rules are, a client gets no answer to a question that they deny, no answer tells another name that
// they deny, and what they do not deny it gets as without them; also from replies that are kept for other clients.
func TestRPZIsolation(t *testing.T) {
	race.SkipSequential(t)
	r := rand.New(rand.NewPCG(50, 4))
	sum := isolation{withheld: make(map[string]int)}
	for range soak.Choose(3, 20) {
		c := newRandomCluster(r)
		for range soak.Choose(4, 30) {
			var lists []list
			directives := ""
			for i := range 1 + r.IntN(3) {
				l := list{namespaces: [][]string{nil, {"a"}, {"b", "c"}}[r.IntN(3)]}
				for range 1 + r.IntN(5) {
					name := strings.TrimSuffix(c.names[r.IntN(len(c.names))], ".")
					if r.IntN(3) == 0 {
						name = "*." + name
					}
					if !slices.Contains(l.names, name) {
						l.names = append(l.names, name)
					}
				}
				lists, directives = append(lists, l), directives+l.directive(t, fmt.Sprint("rpz", i))
			}
			whole := strings.Replace(wholeCluster+[]string{"", externalAndTransfer}[r.IntN(2)], "OPTIONS", "", 1)
			w := isolation{t: t, c: c, text: fmt.Sprintf("%+v", lists), verdict: make(map[tenantQuestion]bool), withheld: sum.withheld,
				d: newTenantDesk(t, ". {\n"+whole+directives+"}\n", c.text.String()), open: newTenantDesk(t, ". {\n"+whole+"}\n", c.text.String()),
				mayAsk: func(client, name string) bool {
					return !slices.ContainsFunc(lists, func(l list) bool { return l.denies(client, name) })
				}}
			for client := range tenants {
				for _, q := range w.questions(client) {
					w.check(q)
					if m := w.d.answer(client, q.name, q.qtype); !w.mayAsk(client, q.name) && m != nil && len(m.Answer) > 0 {
						if first, ok := m.Answer[0].(*dns.CNAME); !ok || !strings.EqualFold(first.Hdr.Name, q.name) || !w.mayAsk(client, first.Target) {
							t.Errorf("%s: %s %s is answered\n%s\n%s", client, q.name, dns.TypeToString[q.qtype], m, w.text)
						}
					}
				}
			}
			sum.triples, sum.denials, sum.told, sum.kept = sum.triples+w.triples, sum.denials+w.denials, sum.told+w.told, sum.kept+w.kept
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("%d questions of a client, of which %d were refused; answers told %d names, and %d were replies for others, too; withheld: %v", sum.triples, sum.denials, sum.told, sum.kept, sum.withheld)
	if sum.kept == 0 || sum.denials == 0 || sum.withheld["PTR"] == 0 || sum.withheld["alias"] == 0 {
		t.Error("there were no denials, no replies for several clients, or nothing to withhold")
	}
}

// TestRPZAllocs: a name without a rule costs no allocation.
func TestRPZAllocs(t *testing.T) {
	if race.Enabled() {
		t.Skip("the race detector allocates")
	}
	d := policyDesk(t, rpz("rpz.example", "file "+rulesFile(t, unwanted...)), map[string][]string{"fine.test.": {"fine.test. 60 A 192.0.2.1"}})
	d.from(boundPod+":53", resolver.UDP)
	d.ask(question("fine.test.", dns.TypeA))
	packet, err := question("fine.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { d.serve(packet) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRPZ measures a hit of the cache by the number of rules, none of which is about the name.
func BenchmarkRPZ(b *testing.B) {
	for name, rules := range map[string]string{"none": "", "100,000 rules": "$GENERATE 1-50000 ad${0,6}.tracking${0,6}.example CNAME .\n$GENERATE 1-50000 *.ad${0,6}.tracking${0,6}.example CNAME ."} {
		b.Run(name, func(b *testing.B) {
			up := scripted(b, map[string][]string{"www.fine.example.": {"www.fine.example. 60 A 192.0.2.1"}})
			z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(b, up.Addr()), Cache: epochCache()}
			if rules != "" {
				c, err := config.Parse(config.Source{Text: []byte(". {\n" + rpz("rpz.example", "file "+rulesFile(b, rules)) + "}\n")})
				if err != nil {
					b.Fatal(err)
				}
				if z.RPZ, err = zonefile.NewPolicies(c.Blocks[0].RPZ, nil, zonefile.Options{}, func() {}); err != nil {
					b.Fatal(err)
				}
			}
			d := newDesk(b, z).from(boundPod+":53", resolver.UDP)
			d.ask(question("www.fine.example.", dns.TypeA))
			packet, err := question("www.fine.example.", dns.TypeA).Pack()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				d.serve(packet)
			}
		})
	}
}
