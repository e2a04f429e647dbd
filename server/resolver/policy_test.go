package resolver_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
)

// testPolicy is a policy in short.
type testPolicy struct {
	name                    string
	audit, others, nxdomain bool
	allow, deny, services   []string // services as NAMESPACE or NAME.NAMESPACE
}

func (p testPolicy) compile(t testing.TB) *dnspolicy.Policy {
	t.Helper()
	out := &dnspolicy.Policy{Namespace: "ns", Name: p.name, Audit: p.audit, AllowOthers: p.others, NXDomain: p.nxdomain, Counts: new(dnspolicy.Counts)}
	for i, list := range [][]string{p.allow, p.deny} {
		for _, text := range list {
			base, below := strings.CutPrefix(text, "*.")
			out.Add(resolvertest.ZoneName(t, base), below, i == 1)
		}
	}
	for _, text := range p.services {
		name := string(resolvertest.ZoneName(t, text))
		out.AddService(name[:len(name)-1])
	}
	return out
}

// bind makes policies bind clients of d. It returns the table.
func (d *tenantDesk) bind(policies map[string][]testPolicy) *dnspolicy.Table {
	d.t.Helper()
	table := dnspolicy.NewTable()
	for z := range d.rt.Zones() {
		if z.Cluster != nil {
			table.Mark = z.Cluster.ClientMark
		}
	}
	classes, id := make(map[netip.Addr]*dnspolicy.Class), uint32(dnspolicy.FirstID)
	for client := range tenants {
		classes[netip.MustParseAddr(client)] = nil
		var list []*dnspolicy.Policy
		for _, p := range policies[client] {
			list = append(list, p.compile(d.t))
		}
		if list != nil {
			classes[netip.MustParseAddr(client)] = dnspolicy.NewClass(id, list)
			id++
		}
	}
	table.Set(classes, true, func() {})
	d.rt.BindPolicies(table)
	return table
}

// The replies of policies.
const (
	notListed = "REFUSED +15:18 (Prohibited): ()"
	inDeny    = "REFUSED +15:15 (Blocked): ()"
	noSuch    = "NXDOMAIN +15:18 (Prohibited): ()"
	noSuchToo = "NXDOMAIN +15:15 (Blocked): ()"
)

const (
	boundPod, freePod = "10.244.0.1", "10.244.0.2"
)

// policyDesk answers the pods of tenants from detourObjects and from an upstream.
func policyDesk(t *testing.T, directives string, script map[string][]string) *tenantDesk {
	d := newTenantDesk(t, ". {\nkubernetes cluster.local in-addr.arpa {\nmanifests OBJECTS\n}\n"+directives+"}\n", detourObjects)
	b := scripted(t, script)
	for z := range d.rt.Zones() {
		z.Forward, z.Cache = resolvertest.Pool(t, b.Addr()), epochCache()
		if strings.Contains(directives, "rewrite") {
			z.Rewrite = rulesOf(t, directives)
		}
	}
	d.rt.Search = []wire.Name{resolvertest.ZoneName(t, "corp.example.")}
	return d
}

// TestPolicyReplies: what bound clients get, the first time and from the cache, and that others get the same as without policies.
func TestPolicyReplies(t *testing.T) {
	script := map[string][]string{
		"api.example.com.":           {"api.example.com. 60 A 192.0.2.1"},
		"a.b.cdn.example.com.":       {"a.b.cdn.example.com. 60 A 192.0.2.2"},
		"cdn.example.com.":           {"cdn.example.com. 60 A 192.0.2.3"},
		"xapi.example.com.":          {"xapi.example.com. 60 A 192.0.2.66"},
		"out.example.com.":           {"out.example.com. 60 CNAME edge.cdn.test.", "edge.cdn.test. 60 A 192.0.2.4"},
		"bad.example.com.":           {"bad.example.com. 60 CNAME x.evil.test.", "x.evil.test. 60 A 192.0.2.66"},
		"in.example.com.":            {"in.example.com. 60 CNAME db.b.svc.cluster.local.", "db.b.svc.cluster.local. 60 A 10.96.2.1"},
		"mail.example.com.":          {"mail.example.com. 60 MX 10 mx.other.test."},
		"evil.test.":                 {"evil.test. 60 A 192.0.2.66"},
		"api.example.com.evil.test.": {"api.example.com.evil.test. 60 A 192.0.2.66"},
		"5.2.0.192.in-addr.arpa.":    {"5.2.0.192.in-addr.arpa. 60 PTR x.evil.test.", "5.2.0.192.in-addr.arpa. 60 PTR fine.test."},
	}
	d := policyDesk(t, "", script)
	d.bind(map[string][]testPolicy{boundPod: {{
		name: "p", allow: []string{"api.example.com", "*.cdn.example.com", "out.example.com", "bad.example.com", "in.example.com", "mail.example.com", "*.in-addr.arpa"},
		deny: []string{"*.evil.test", "evil.test", "secret.cdn.example.com", "alias.a.svc.cluster.local"}, services: []string{"web.a", "dns.b"},
	}}})
	for _, c := range []struct{ query, want string }{ // "": as for the other client
		{"api.example.com. A edns", ""},
		{"API.Example.COM. A edns", ""},
		{"api.example.com. TXT edns", ""},
		{"a.b.cdn.example.com. A edns", ""},
		{"cdn.example.com. A edns", notListed},
		{"xapi.example.com. A edns", notListed},
		{"x.api.example.com. A edns", notListed},
		{"example.com. A edns", notListed},
		{"example.com. DS edns", notListed},
		{"api.example.com.evil.test. A edns", inDeny},
		{"evil.test. A edns", inDeny},
		{"EVIL.test. ANY edns", inDeny},
		{"secret.cdn.example.com. A edns", inDeny},
		{"out.example.com. A edns", ""},       // an alias out
		{"bad.example.com. A edns", inDeny},   // an alias to a name in the deny list
		{"in.example.com. A edns", notListed}, // an alias into the cluster
		{"mail.example.com. MX edns", ""},     // an upstream's names are as good as the question
		{". NS edns", notListed},
		// Services: what is not allowed does not exist, whether it does or not.
		{"web.a.svc.cluster.local. A edns", ""},
		{"db.b.svc.cluster.local. A edns", noSuch},
		{"no.such.svc.cluster.local. A edns", noSuch},
		{"a.svc.cluster.local. A edns", noSuch},
		{"cluster.local. SOA edns", noSuch},
		{"alias.a.svc.cluster.local. A edns", noSuchToo},
		{"dns.b.svc.cluster.local. A edns", ""},
		{"_dns._udp.dns.b.svc.cluster.local. SRV edns", ""},
		// A search path.
		{"api.example.com.a.svc.cluster.local. A edns", noSuch},
		{"api.example.com.svc.cluster.local. A edns", noSuch},
		{"api.example.com.cluster.local. A edns", noSuch},
		{"api.example.com.corp.example. A edns", noSuch},
		// What may not be asked forward is not told backward.
		{"1.1.96.10.in-addr.arpa. PTR edns", ""},
		{"1.2.96.10.in-addr.arpa. PTR edns", noSuch},
		{"5.2.0.192.in-addr.arpa. PTR edns", ""},
	} {
		for _, via := range []resolver.Proto{resolver.UDP, resolver.TCP, resolver.QUIC} {
			for range 2 {
				got := told(d.from(boundPod+":53", via).ask(asked(c.query)))
				want := c.want
				if want == "" {
					if want = told(d.from(freePod+":53", via).ask(asked(c.query))); strings.HasPrefix(want, "REFUSED") || strings.HasPrefix(want, "SERVFAIL") {
						t.Fatalf("%s: a free client gets %s", c.query, want)
					}
				}
				if got != want && !(c.query == "5.2.0.192.in-addr.arpa. PTR edns" && strings.Contains(got, "fine.test.") && !strings.Contains(got, "evil")) {
					t.Errorf("%s over %v: %s, want %s", c.query, via, got, want)
				}
			}
		}
	}
}

// TestPolicyRewrite: the name that the client asks for is judged, whatever a rule makes of it.
func TestPolicyRewrite(t *testing.T) {
	d := policyDesk(t, "rewrite stop name exact api.example.com web.a.svc.cluster.local answer auto\nrewrite stop name exact other.example.com api.example.com answer auto\n", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}})
	d.bind(map[string][]testPolicy{boundPod: {{name: "p", allow: []string{"api.example.com"}}}})
	d.from(boundPod+":53", resolver.TCP)
	for query, want := range map[string]string{
		"api.example.com. A edns":         "NOERROR aa | api.example.com. 5 A 10.96.1.1",
		"other.example.com. A edns":       notListed,
		"web.a.svc.cluster.local. A edns": noSuch,
	} {
		if got := told(d.ask(asked(query))); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestPolicyAutopath: a denied name on the search path does not exist, and the path is followed behind it as without policies.
func TestPolicyAutopath(t *testing.T) {
	d := policyDesk(t, "autopath @kubernetes\n", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}, "no.example.com.": {"no.example.com. 60 A 192.0.2.66"}})
	d.bind(map[string][]testPolicy{boundPod: {{name: "p", allow: []string{"api.example.com"}, services: []string{"a"}}}})
	d.from(boundPod+":53", resolver.TCP)
	for query, want := range map[string]string{
		"api.example.com.a.svc.cluster.local. A edns": "NOERROR | api.example.com.a.svc.cluster.local. 60 CNAME api.example.com., api.example.com. 60 A 192.0.2.1",
		"no.example.com.a.svc.cluster.local. A edns":  noSuch,
		"web.a.svc.cluster.local. A edns":             "NOERROR aa | web.a.svc.cluster.local. 5 A 10.96.1.1",
		"db.b.a.svc.cluster.local. A edns":            noSuch,
	} {
		if got := told(d.ask(asked(query))); got != want && !(strings.HasPrefix(query, "db.b.a") || strings.HasPrefix(query, "no.example") && strings.HasPrefix(got, "NXDOMAIN")) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	if got := d.ask(asked("db.b.a.svc.cluster.local. A edns")); got.Rcode != dns.RcodeNameError || len(got.Answer) > 0 {
		t.Errorf("a Service of another namespace is found on the search path: %s", told(got))
	}
}

// TestPolicyAudit: audit mode denies nothing, and counts each query.
func TestPolicyAudit(t *testing.T) {
	d := policyDesk(t, "", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}})
	table := d.bind(map[string][]testPolicy{boundPod: {{name: "p", audit: true, deny: []string{"*.example.com"}}}})
	for range 3 {
		d.from(boundPod+":53", resolver.TCP)
		if got, want := told(d.ask(asked("api.example.com. A"))), "NOERROR | api.example.com. 60 A 192.0.2.1"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		if _, ok := d.x.Reusable(); ok {
			t.Error("the reply is copied, and its copies are not counted")
		}
	}
	p := table.ClassOf(netip.MustParseAddr(boundPod)).Policies()[0]
	if enforced, audited := p.Counts.Load(); enforced != 0 || audited != 3 {
		t.Errorf("%d and %d queries are counted, want 0 and 3", enforced, audited)
	}
}

// TestPolicyCounts: denied queries are counted, also by name and client, but not those that only a search path makes.
func TestPolicyCounts(t *testing.T) {
	d := policyDesk(t, "", nil)
	table := d.bind(map[string][]testPolicy{boundPod: {{name: "p", nxdomain: true}}})
	d.rt.Clients = clients.New(clients.Options{})
	d.from(boundPod+":53", resolver.UDP)
	for _, query := range []string{"a.test. A edns", "db.b.svc.cluster.local. A edns", "a.test.a.svc.cluster.local. A edns", "a.test.corp.example. A edns"} {
		if got := told(d.ask(asked(query))); got != noSuch {
			t.Errorf("%s: %s, want %s", query, got, noSuch)
		}
	}
	if enforced, _ := table.ClassOf(netip.MustParseAddr(boundPod)).Policies()[0].Counts.Load(); enforced != 2 {
		t.Errorf("%d queries are counted, want 2", enforced)
	}
	r := d.rt.Clients.Names(clients.TopDenied, clients.Minute, 9)
	if len(r.Names) != 2 || r.Total != 2 || r.Names[0].Addr.String() != boundPod || r.Names[1].Addr.String() != boundPod {
		t.Errorf("the denied names are %+v", r.Names)
	}
}

// TestPolicyUnknown: clients whose policies are not known yet get no answers if the table is closed, and then as soon as they are.
func TestPolicyUnknown(t *testing.T) {
	d := newTenantDesk(t, ". {\nkubernetes cluster.local {\nmanifests OBJECTS\n}\n}\n", detourObjects)
	table := dnspolicy.NewTable()
	d.rt.BindPolicies(table)
	const query, found = "web.a.svc.cluster.local. A edns", "NOERROR aa | web.a.svc.cluster.local. 5 A 10.96.1.1"
	if got := told(d.from(boundPod+":53", resolver.TCP).ask(asked(query))); got != found {
		t.Errorf("open: %s", got)
	}
	synctest.Test(t, func(t *testing.T) {
		table := dnspolicy.NewTable()
		table.Closed, table.Host = true, func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.7") }
		d.rt.BindPolicies(table)
		if got := told(d.from("192.0.2.7:53", resolver.TCP).ask(asked(query))); got != found {
			t.Errorf("the node itself: %s", got)
		}
		if got, want := told(d.from(boundPod+":53", resolver.TCP).ask(asked(query))), "SERVFAIL +15:14 (Not Ready): ()"; got != want {
			t.Errorf("closed: %s, want %s", got, want)
		}
		done := make(chan string)
		go func() { done <- told(d.from(boundPod+":53", resolver.TCP).ask(asked(query))) }()
		synctest.Wait()
		table.Set(map[netip.Addr]*dnspolicy.Class{netip.MustParseAddr(boundPod): nil}, true, func() {})
		if got := <-done; got != found {
			t.Errorf("it has become known: %s", got)
		}
	})
}

// TestPolicyExplain: the explanation names the policy and the entry, and agrees with what happens.
func TestPolicyExplain(t *testing.T) {
	d := policyDesk(t, "", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}})
	d.bind(map[string][]testPolicy{boundPod: {{name: "p", allow: []string{"api.example.com"}, deny: []string{"*.evil.test"}}, {name: "q", audit: true, deny: []string{"api.example.com"}}}})
	for query, want := range map[string]string{
		"api.example.com. A": "DNSPolicy ns/q denies api.example.com., in audit mode",
		"x.evil.test. A":     "DNSPolicy ns/p denies *.evil.test.",
		"other.test. A":      "DNSPolicy ns/p denies the name: no policy allows it",
	} {
		packet, err := asked(query).Pack()
		if err != nil {
			t.Fatal(err)
		}
		e, _ := d.rt.Explain(packet, netip.MustParseAddrPort(boundPod+":53"), resolver.UDP)
		if !slices.ContainsFunc(e.Steps, func(s resolver.ExplainedStep) bool { return s.Step == "dns_policy" && s.Reason == want }) {
			t.Errorf("%s: %v", query, e.Steps)
		}
	}
}

// policies returns random policies of the tenants, for the names of c.
func (c *randomCluster) policies() map[string][]testPolicy {
	all := make(map[string][]testPolicy)
	entry := func() string {
		name := strings.TrimSuffix(c.names[c.IntN(len(c.names))], ".")
		switch c.IntN(4) {
		case 0:
			return "*." + name
		case 1:
			return "*." + name[strings.Index(name, ".")+1:]
		}
		return name
	}
	for _, client := range slices.Sorted(maps.Keys(tenants)) {
		ns := tenants[client]
		if ns == "" && c.IntN(2) == 0 {
			continue
		}
		for i := range c.IntN(3) {
			p := testPolicy{name: fmt.Sprint(ns, i), audit: c.IntN(5) == 0, others: c.IntN(3) == 0, nxdomain: c.IntN(2) == 0, allow: []string{"*.arpa"}[c.IntN(2):]}
			for range c.IntN(6) {
				p.allow = append(p.allow, entry())
			}
			for range c.IntN(3) {
				p.deny = append(p.deny, entry())
			}
			for range c.IntN(3) {
				p.services = append(p.services, []string{c.ns(), fmt.Sprintf("s%d.%s", c.IntN(6), c.ns())}[c.IntN(2)])
			}
			all[client] = append(all[client], p)
		}
	}
	return all
}

// mayAsk says by the text of the policies whether a client may ask for a name.
func mayAsk(list []testPolicy, name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	has := func(entries []string) bool {
		return slices.ContainsFunc(entries, func(e string) bool {
			if base, below := strings.CutPrefix(e, "*"); below {
				return strings.HasSuffix(name, base)
			}
			return e == name
		})
	}
	bound, allowed := false, false
	for _, p := range list {
		if p.audit {
			continue
		}
		if has(p.deny) {
			return false
		}
		bound = true
		allowed = allowed || p.others || has(p.allow) || slices.ContainsFunc(p.services, func(s string) bool {
			own := s + ".svc.cluster.local"
			return name == own || strings.HasSuffix(name, "."+own)
		})
	}
	return !bound || allowed
}

// TestPolicyIsolation: whatever the policies are, a client gets no answer to a question that they deny, no answer tells another name
// that it may not ask for, and what it may ask for it gets as without policies; also from replies that are kept for its class.
func TestPolicyIsolation(t *testing.T) {
	race.SkipSequential(t)
	r := rand.New(rand.NewPCG(50, 2))
	sum := isolation{withheld: make(map[string]int)}
	asked := 0
	for range soak.Choose(3, 40) {
		c := newRandomCluster(r)
		for range soak.Choose(6, 40) {
			whole := strings.Replace(wholeCluster+[]string{"", externalAndTransfer}[r.IntN(2)], "OPTIONS", "", 1)
			text := ". {\n" + whole + "}\n"
			open, d, policies := newTenantDesk(t, text, c.text.String()), newTenantDesk(t, text, c.text.String()), c.policies()
			table := d.bind(policies)
			w := isolation{t: t, c: c, d: d, open: open, text: fmt.Sprintf("%+v", policies), verdict: make(map[tenantQuestion]bool), withheld: sum.withheld,
				mayAsk: func(client, name string) bool { return mayAsk(policies[client], name) },
				sameGroup: func(other netip.Addr, g *resolver.ClientGroup) bool {
					return g.Policies == nil || table.ClassOf(other) == g.Policy
				}}
			for client := range tenants {
				for _, q := range w.questions(client) {
					w.check(q)
					if m := d.answer(client, q.name, q.qtype); !mayAsk(policies[client], q.name) && m != nil && len(m.Answer) > 0 {
						asked++
						if first, ok := m.Answer[0].(*dns.CNAME); !ok || !strings.EqualFold(first.Hdr.Name, q.name) || !mayAsk(policies[client], first.Target) {
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
	t.Logf("%d questions of a client, of which %d were refused and %d found on a search path; answers told %d names, and %d were replies for others, too; withheld: %v", sum.triples, sum.denials, asked, sum.told, sum.kept, sum.withheld)
	if sum.kept == 0 || sum.denials == 0 || sum.withheld["PTR"] == 0 || sum.withheld["SRV"] == 0 || sum.withheld["alias"] == 0 {
		t.Error("there were no denials, no replies for several clients, or nothing to withhold")
	}
}

// TestPolicyCopies: a copy of a reply is for the clients of one class, until these may change.
func TestPolicyCopies(t *testing.T) {
	d := policyDesk(t, "", map[string][]string{"api.example.com.": {"api.example.com. 60 A 192.0.2.1"}})
	table := d.bind(map[string][]testPolicy{boundPod: {{name: "p", allow: []string{"api.example.com"}, services: []string{"a"}}}})
	for client, class := range map[string]*dnspolicy.Class{boundPod: table.ClassOf(netip.MustParseAddr(boundPod)), freePod: nil} {
		for _, name := range []string{"api.example.com.", "web.a.svc.cluster.local."} {
			d.from(client+":53", resolver.UDP)
			d.ask(question(name, dns.TypeA))
			d.ask(question(name, dns.TypeA))
			terms, ok := d.x.Reusable()
			if !ok || terms.Clients.IsAll() || !terms.ByPolicy || terms.Clients.Policy != class || terms.Clients.Mark != table.Mark() {
				t.Errorf("%s for %s: %t, %+v", name, client, ok, terms.Clients)
			}
		}
	}
}

// TestPolicyTail: watchers and logs see which policy denies a query, or would.
func TestPolicyTail(t *testing.T) {
	d := policyDesk(t, "", nil)
	d.bind(map[string][]testPolicy{boundPod: {{name: "p", deny: []string{"a.test"}, others: true}, {name: "q", audit: true, deny: []string{"web.a.svc.cluster.local"}}}})
	d.rt.Tail = new(tail.Feed)
	watcher, err := d.rt.Tail.Subscribe(tail.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	d.from(boundPod+":53", resolver.TCP)
	for query, want := range map[string]string{"a.test. A": "ns/p", "web.a.svc.cluster.local. A": "ns/q", "db.b.svc.cluster.local. A": ""} {
		d.ask(asked(query))
		if q := <-watcher.Queries(); q.Policy != want {
			t.Errorf("%s: %q, want %q", query, q.Policy, want)
		}
	}
}
