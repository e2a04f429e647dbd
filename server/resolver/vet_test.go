package resolver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// scripted answers each name with its lines, whatever their owners, as far as they are of the
// type asked for or aliases; those behind "+" are in the additional section.
func scripted(t testing.TB, script map[string][]string) *resolvertest.Backend {
	t.Helper()
	records := make(map[string][]dns.RR)
	extra := make(map[string][]dns.RR)
	for name, list := range script {
		for _, line := range list {
			text, more := strings.CutPrefix(line, "+")
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			if more {
				extra[name] = append(extra[name], rr)
			} else {
				records[name] = append(records[name], rr)
			}
		}
	}
	return resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Compress = true
		name := q.Question[0].Name
		for _, rr := range records[name] {
			switch rr.Header().Rrtype {
			case q.Question[0].Qtype, dns.TypeCNAME, dns.TypeDNAME:
				m.Answer = append(m.Answer, rr)
			}
		}
		m.Extra = extra[name]
		return m
	})
}

// rulesOf are the rewrite rules of text.
func rulesOf(t *testing.T, text string) *rewrite.Rules {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	return rewrite.New(c.Blocks[0].Rewrite)
}

const (
	isBlocked  = "REFUSED +15:15 (Blocked): ()"
	isFiltered = "NOERROR +15:17 (Filtered): ()"
)

// TestACLChains: no name that a reply tells something of is one that its client may not ask
// for, whichever step has found it, and whichever block it is under; the first time, when
// upstreams are waited for, and the second, when nothing is.
func TestACLChains(t *testing.T) {
	b := scripted(t, map[string][]string{
		"open.test.":              {"open.test. 60 A 192.0.2.1", "open.test. 60 TXT text"},
		"x.secret.test.":          {"x.secret.test. 60 A 192.0.2.66", "x.secret.test. 60 AAAA 2001:db8::66"},
		"direct.test.":            {"direct.test. 60 CNAME x.secret.test.", "x.secret.test. 60 A 192.0.2.66"},
		"upper.test.":             {"upper.test. 60 CNAME X.Secret.TEST.", "X.Secret.TEST. 60 A 192.0.2.66"},
		"middle.test.":            {"middle.test. 60 CNAME x.secret.test.", "x.secret.test. 60 CNAME open.test.", "open.test. 60 A 192.0.2.1"},
		"last.test.":              {"last.test. 60 CNAME open.test.", "open.test. 60 A 192.0.2.1", "y.secret.test. 60 A 192.0.2.66"},
		"nothing.test.":           {"nothing.test. 60 CNAME x.secret.test."},
		"www.dname.test.":         {"dname.test. 60 DNAME secret.test.", "www.dname.test. 60 CNAME www.secret.test.", "www.secret.test. 60 A 192.0.2.66"},
		"svc.test.":               {"svc.test. 60 HTTPS 1 x.secret.test. ipv4hint=192.0.2.66"},
		"own.test.":               {"own.test. 60 HTTPS 1 . ipv4hint=192.0.2.1"},
		"lb.test.":                {"lb.test. 60 CNAME x.secret.test.", "x.secret.test. 60 A 192.0.2.66"},
		"typed.test.":             {"typed.test. 60 CNAME x.typed.secret.test.", "x.typed.secret.test. 60 A 192.0.2.66", "x.typed.secret.test. 60 TXT text"},
		"1.2.0.192.in-addr.arpa.": {"1.2.0.192.in-addr.arpa. 60 PTR open.test."},
		"6.2.0.192.in-addr.arpa.": {"6.2.0.192.in-addr.arpa. 60 PTR x.secret.test."},
		"7.2.0.192.in-addr.arpa.": {"7.2.0.192.in-addr.arpa. 60 PTR x.secret.test.", "7.2.0.192.in-addr.arpa. 60 PTR open.test.", "7.2.0.192.in-addr.arpa. 60 PTR y.secret.test."},
		"8.2.0.192.in-addr.arpa.": {"8.2.0.192.in-addr.arpa. 60 CNAME 8.x.in-addr.arpa.", "8.x.in-addr.arpa. 60 PTR x.secret.test."},
		"9.2.0.192.in-addr.arpa.": {"9.2.0.192.in-addr.arpa. 60 PTR x.typed.secret.test."},
		"one.test.":               {"one.test. 60 MX 10 x.secret.test.", "+x.secret.test. 60 A 192.0.2.66"},
		"hint.test.":              {"hint.test. 60 HTTPS 1 x.typed.secret.test. ipv4hint=192.0.2.66"},
		"y.typed.secret.test.":    {"y.typed.secret.test. 60 HTTPS 1 . alpn=h2 ipv4hint=192.0.2.66"},
		"ns.test.":                {"ns.test. 60 NS x.secret.test.", "ns.test. 60 NS open.test.", "+x.secret.test. 60 A 192.0.2.66"},
		"mx.test.":                {"mx.test. 60 MX 10 x.secret.test.", "mx.test. 60 MX 20 open.test.", "+open.test. 60 A 192.0.2.1", "+x.secret.test. 60 A 192.0.2.66", "+open.test. 60 AAAA 2001:db8::1"},
	})
	const aclText = `acl typed.secret.test {
		block type A net 192.0.2.0/24
		allow
	}
	acl filter.secret.test {
		filter net 192.0.2.0/24
	}
	acl {
		drop net 192.0.2.9
		block net 192.0.2.0/24
	}`
	made := config.Source{Text: []byte(". {\ntemplate IN A made.test {\nanswer \"{{ .Name }} 60 IN CNAME direct.test.\"\n}\n}\n")}
	c, err := config.Parse(made)
	if err != nil {
		t.Fatal(err)
	}
	zones := func() []*resolver.Zone {
		p := newPartial(t, "cluster.local")
		return []*resolver.Zone{
			{Name: resolvertest.ZoneName(t, "secret.test."), ACL: aclOf(t, aclText), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()},
			{Name: resolvertest.ZoneName(t, "cluster.local."), Cluster: p, ACL: aclOf(t, "acl other.svc.cluster.local {\nblock net 192.0.2.0/24\n}")},
			{Name: resolvertest.ZoneName(t, "ext.test."), External: &outside{name: "web.ext.test.", outcome: kubernetes.Alias}, Cluster: p},
			{Name: resolvertest.ZoneName(t, "cached.test."), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()},
			{Name: resolvertest.ZoneName(t, "six.test."), DNS64: mapping(t, func(c *config.DNS64) { c.AllowIPv4 = true }), Rewrite: rulesOf(t, "rewrite name suffix .six.test .test answer auto"), Forward: resolvertest.Pool(t, b.Addr())},
			{Name: resolvertest.ZoneName(t, "back.test."), Rewrite: rulesOf(t, "rewrite name suffix .back.test .test answer auto"), Forward: resolvertest.Pool(t, b.Addr())},
			{Name: resolvertest.ZoneName(t, "made.test."), Template: template.New(c.Blocks[0].Template)},
			{Name: resolvertest.ZoneName(t, "by.hand."), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 x.by.hand")},
			{Name: resolvertest.ZoneName(t, "7.0.10.in-addr.arpa."), Hosts: resolvertest.Hosts(t, false, "10.0.7.1 x.secret.test")},
			{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()},
		}
	}
	const (
		mail   = " |  | open.test. 60 A 192.0.2.1, "
		second = "mx.test. 60 MX 20 open.test."
	)
	tests := []struct{ query, inside, outside string }{ // for a client that may not ask, and one that may
		{"open.test. A", "NOERROR | open.test. 60 A 192.0.2.1", ""},
		{"x.secret.test. A", isBlocked, "NOERROR | x.secret.test. 60 A 192.0.2.66"},
		{"direct.test. A", isBlocked, "NOERROR | direct.test. 60 CNAME x.secret.test., x.secret.test. 60 A 192.0.2.66"},
		{"upper.test. A", isBlocked, "NOERROR | upper.test. 60 CNAME X.Secret.TEST., X.Secret.TEST. 60 A 192.0.2.66"},
		{"middle.test. A", isBlocked, "NOERROR | middle.test. 60 CNAME x.secret.test., x.secret.test. 60 CNAME open.test., open.test. 60 A 192.0.2.1"},
		{"last.test. A", isBlocked, "NOERROR | last.test. 60 CNAME open.test., open.test. 60 A 192.0.2.1, y.secret.test. 60 A 192.0.2.66"},
		{"nothing.test. A", isBlocked, "NOERROR | nothing.test. 60 CNAME x.secret.test."},
		{"direct.test. CNAME", isBlocked, "NOERROR | direct.test. 60 CNAME x.secret.test."},
		{"www.dname.test. A", isBlocked, "NOERROR | dname.test. 60 DNAME secret.test., www.dname.test. 60 CNAME www.secret.test., www.secret.test. 60 A 192.0.2.66"},
		{"svc.test. HTTPS", isBlocked, "NOERROR | svc.test. 60 HTTPS 1 x.secret.test. ipv4hint=\"192.0.2.66\""},
		{"own.test. HTTPS", "NOERROR | own.test. 60 HTTPS 1 . ipv4hint=\"192.0.2.1\"", ""},
		{"typed.test. A", isBlocked, "NOERROR | typed.test. 60 CNAME x.typed.secret.test., x.typed.secret.test. 60 A 192.0.2.66"},
		{"typed.test. TXT", "NOERROR | typed.test. 60 CNAME x.typed.secret.test., x.typed.secret.test. 60 TXT \"text\"", ""},
		{"web.ext.test. A", isBlocked, "NOERROR | web.ext.test. 5 CNAME lb.test., lb.test. 60 CNAME x.secret.test., x.secret.test. 60 A 192.0.2.66"},
		{"made.test. A", isBlocked, "NOERROR aa | made.test. 60 CNAME direct.test., direct.test. 60 CNAME x.secret.test., x.secret.test. 60 A 192.0.2.66"},
		{"open.back.test. A", "NOERROR | open.back.test. 60 A 192.0.2.1", ""},
		{"x.secret.back.test. A", isBlocked, "NOERROR | x.secret.back.test. 60 A 192.0.2.66"},
		{"direct.back.test. A", isBlocked, "NOERROR | direct.back.test. 60 CNAME x.secret.back.test., x.secret.back.test. 60 A 192.0.2.66"},
		{"typed.six.test. AAAA", isBlocked, "NOERROR | typed.six.test. 60 CNAME x.typed.secret.six.test., x.typed.secret.six.test. 60 AAAA 64:ff9b::c000:242"},
		{"1.2.0.192.in-addr.arpa. PTR", "NOERROR | 1.2.0.192.in-addr.arpa. 60 PTR open.test.", ""},
		{"6.2.0.192.in-addr.arpa. PTR", isBlocked, "NOERROR | 6.2.0.192.in-addr.arpa. 60 PTR x.secret.test."},
		{"7.2.0.192.in-addr.arpa. PTR", "NOERROR | 7.2.0.192.in-addr.arpa. 60 PTR open.test.", "NOERROR | 7.2.0.192.in-addr.arpa. 60 PTR x.secret.test., 7.2.0.192.in-addr.arpa. 60 PTR open.test., 7.2.0.192.in-addr.arpa. 60 PTR y.secret.test."},
		{"8.2.0.192.in-addr.arpa. PTR", isBlocked, "NOERROR | 8.2.0.192.in-addr.arpa. 60 CNAME 8.x.in-addr.arpa., 8.x.in-addr.arpa. 60 PTR x.secret.test."},
		{"9.2.0.192.in-addr.arpa. PTR", isBlocked, "NOERROR | 9.2.0.192.in-addr.arpa. 60 PTR x.typed.secret.test."},
		{"1.7.0.10.in-addr.arpa. PTR", isBlocked, "NOERROR aa | 1.7.0.10.in-addr.arpa. 3600 PTR x.secret.test."},
		{"hint.test. HTTPS", isBlocked, "NOERROR | hint.test. 60 HTTPS 1 x.typed.secret.test. ipv4hint=\"192.0.2.66\""},
		{"y.typed.secret.test. HTTPS", isBlocked, "NOERROR | y.typed.secret.test. 60 HTTPS 1 . alpn=\"h2\" ipv4hint=\"192.0.2.66\""},
		{"ns.test. NS", "NOERROR | ns.test. 60 NS open.test.", "NOERROR | ns.test. 60 NS x.secret.test., ns.test. 60 NS open.test. |  | x.secret.test. 60 A 192.0.2.66"},
		{"one.test. MX", isBlocked, "NOERROR | one.test. 60 MX 10 x.secret.test. |  | x.secret.test. 60 A 192.0.2.66"},
		{"mx.test. MX", "NOERROR | " + second + mail + "open.test. 60 AAAA 2001:db8::1", "NOERROR | mx.test. 60 MX 10 x.secret.test., " + second + mail + "x.secret.test. 60 A 192.0.2.66, open.test. 60 AAAA 2001:db8::1"},
	}
	for _, via := range []resolver.Proto{resolver.UDP, resolver.TCP} {
		d := newDesk(t, zones()...)
		for _, tt := range tests {
			if tt.outside == "" {
				tt.outside = tt.inside
			}
			for range 2 {
				for client, want := range map[string]string{"192.0.2.2:53": tt.inside, "198.51.100.1:53": tt.outside} {
					if diff := cmp.Diff(want, told(d.from(client, via).ask(asked(tt.query+" edns")))); diff != "" {
						t.Errorf("%s of %s over %s (-want +got):\n%s", tt.query, client, via, diff)
					}
				}
			}
			if got := told(d.from("192.0.2.9:53", via).ask(asked(tt.query))); tt.inside == isBlocked && strings.Contains(tt.query, "secret") && !strings.Contains(tt.query, "typed") && got != "nothing" {
				t.Errorf("%s of a client of which nothing is taken: %s", tt.query, got)
			}
		}
	}
}

// TestACLStrictest: of several verdicts on one reply the strictest holds.
func TestACLStrictest(t *testing.T) {
	alias := func(names ...string) (list []string) {
		for i, n := range names[1:] {
			list = append(list, names[i]+". 60 CNAME "+n+".")
		}
		return list
	}
	b := scripted(t, map[string][]string{
		"a.test.": alias("a.test", "filter", "block", "drop"), "b.test.": alias("b.test", "block", "filter"), "c.test.": alias("c.test", "filter", "open"),
		"d.test.": alias("d.test", "drop", "block"), "e.test.": alias("e.test", "open", "filter", "block"),
		"1.2.0.192.in-addr.arpa.": append(alias("1.2.0.192.in-addr.arpa", "block"), "block. 60 PTR filter."),
		"2.2.0.192.in-addr.arpa.": append(alias("2.2.0.192.in-addr.arpa", "filter"), "filter. 60 PTR block."),
	})
	z := &resolver.Zone{Name: wire.Root, ACL: aclOf(t, "acl filter {\nfilter\n}\nacl block {\nblock\n}\nacl drop {\ndrop\n}"), Forward: resolvertest.Pool(t, b.Addr())}
	d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
	for query, want := range map[string]string{"a.test.": "nothing", "b.test.": isBlocked, "c.test.": isFiltered, "d.test.": "nothing", "e.test.": isBlocked} {
		if got := told(d.ask(asked(query + " A edns"))); got != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
	for query, want := range map[string]string{"1.2.0.192.in-addr.arpa.": isBlocked, "2.2.0.192.in-addr.arpa.": isFiltered} {
		if got := told(d.ask(asked(query + " PTR edns"))); got != want { // a target does not change what the chain's names decide
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
	name := func(s string) wire.Name { return resolvertest.ZoneName(t, s+".") }
	want := resolver.Verdicts{Blocked: map[wire.Name]uint64{name("block"): 3}, Filtered: map[wire.Name]uint64{name("filter"): 2}, Dropped: map[wire.Name]uint64{name("drop"): 2}}
	if diff := cmp.Diff(want, z.Stats.Verdicts()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// TestACLRewrites: where rules of rewrite take a query, the client's own question is judged,
// the names that it sees in the reply, and what a rule for aliases leads to.
func TestACLRewrites(t *testing.T) {
	b := scripted(t, map[string][]string{
		"open.in.test.": {"open.in.test. 60 A 192.0.2.1"}, "x.secret.test.": {"x.secret.test. 60 A 192.0.2.66"},
		"alias.in.test.": {"alias.in.test. 60 CNAME hidden.in.test.", "hidden.in.test. 60 A 192.0.2.66"},
		"turn.in.test.":  {"turn.in.test. 60 CNAME elsewhere.test.", "elsewhere.test. 60 A 192.0.2.1"},
	})
	z := &resolver.Zone{
		Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()),
		Rewrite: rulesOf(t, "rewrite continue cname exact elsewhere.test. x.secret.test.\nrewrite name suffix .out.test .in.test answer auto"),
		ACL:     aclOf(t, "acl own.out.test hidden.out.test {\nblock net 192.0.2.0/24\n}\nacl secret.test {\nfilter net 192.0.2.0/24\n}"),
	}
	d := newDesk(t, z)
	for _, tt := range []struct{ query, inside, outside string }{
		{"open.out.test. A", "NOERROR | open.out.test. 60 A 192.0.2.1", "NOERROR | open.out.test. 60 A 192.0.2.1"},
		{"own.out.test. A", isBlocked, "NOERROR"},
		{"alias.out.test. A", isBlocked, "NOERROR | alias.out.test. 60 CNAME hidden.out.test., hidden.out.test. 60 A 192.0.2.66"},
		{"turn.out.test. A", isFiltered, "NOERROR | turn.out.test. 60 CNAME x.secret.test., x.secret.test. 60 A 192.0.2.66"},
	} {
		for client, want := range map[string]string{"192.0.2.2:53": tt.inside, "198.51.100.1:53": tt.outside} {
			if got := told(d.from(client, resolver.UDP).ask(asked(tt.query + " edns"))); got != want {
				t.Errorf("%s of %s is %s, want %s", tt.query, client, got, want)
			}
		}
	}
	want := resolver.Verdicts{Allowed: 5, Blocked: map[wire.Name]uint64{resolvertest.ZoneName(t, "own.out.test."): 1, resolvertest.ZoneName(t, "hidden.out.test."): 1}, Filtered: map[wire.Name]uint64{resolvertest.ZoneName(t, "secret.test."): 1}}
	if diff := cmp.Diff(want, z.Stats.Verdicts()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if n := b.CountName("own.in.test."); n != 1 {
		t.Errorf("the upstream was asked %d times for a name that one of two clients may ask for", n)
	}
}

// TestACLByView: a name of a chain is judged by the view that would take it from the client.
func TestACLByView(t *testing.T) {
	b := scripted(t, map[string][]string{"alias.test.": {"alias.test. 60 CNAME x.secret.test.", "x.secret.test. 60 A 192.0.2.66"}})
	d := newDesk(t,
		&resolver.Zone{Name: resolvertest.ZoneName(t, "secret.test."), View: viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8') && name() == 'x.secret.test.'"), ACL: aclOf(t, "acl {\nblock\n}")},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "secret.test."), Forward: resolvertest.Pool(t, b.Addr())},
		&resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr())},
	)
	for client, want := range map[string]string{"10.0.0.1:53": isBlocked, "192.0.2.1:53": "NOERROR | alias.test. 60 CNAME x.secret.test., x.secret.test. 60 A 192.0.2.66"} {
		if got := told(d.from(client, resolver.UDP).ask(asked("alias.test. A edns"))); got != want {
			t.Errorf("from %s: %s, want %s", client, got, want)
		}
	}
}

// pointers is an upstream with a reply of n PTR records, one of which leads to name.
func pointers(t *testing.T, n int, name string) *resolvertest.Backend {
	list := []string{"6.2.0.192.in-addr.arpa. 60 PTR " + name}
	for i := range n {
		list = append(list, fmt.Sprintf("6.2.0.192.in-addr.arpa. 60 PTR n%d.z%d.test.", i, i%3))
	}
	return scripted(t, map[string][]string{"6.2.0.192.in-addr.arpa.": list})
}

// TestACLChainCost: however many names a reply has, and however many lines the list, the
// client is checked against the rules of each zone once for each type; and over UDP no names
// are judged that reach no client.
func TestACLChainCost(t *testing.T) {
	const lines, names = 10000, 2500
	var text strings.Builder
	text.WriteString("acl z0.test z1.test z2.test {\n")
	for i := range lines {
		fmt.Fprintf(&text, "block net 10.%d.%d.0/30\n", i/250, i%250)
	}
	text.WriteString("}\nacl z1.test {\nfilter type TXT\n}\n")
	z := &resolver.Zone{Name: wire.Root, ACL: aclOf(t, text.String()), Forward: resolvertest.Pool(t, pointers(t, names, "x.test.").Addr()), Cache: resolvertest.Cache()}
	if n := z.ACL.Policies(0); n != 1 {
		t.Errorf("lines that differ in nets only are %d policies", n)
	}
	d := newDesk(t, z)
	for _, via := range []resolver.Proto{resolver.TCP, resolver.UDP} {
		d.from("192.0.2.1:53", via).ask(asked("6.2.0.192.in-addr.arpa. PTR"))
		var x resolver.Request
		x.Query.Packet = d.x.Query.Packet
		x.Query.Parse(x.Query.Packet)
		x.Reply().Start(nil, &x.Query)
		x.Client, x.Proto = netip.MustParseAddrPort("192.0.2.1:53"), via
		z.Cache.Get(&x.Query, x.Reply(), d.x.Arrival)
		pointers, decided := d.rt.VetCost(z, &x)
		want := names + 1
		if via == resolver.UDP {
			want = (resolver.VettedUDP - wire.HeaderLen) / 16 // a PTR record has more bytes
		}
		if pointers > want || via == resolver.TCP && pointers != want {
			t.Errorf("over %s %d names were judged, want %d", via, pointers, want)
		}
		if decided > 2*3 {
			t.Errorf("over %s the client was checked against the rules %d times, of three zones for two types", via, decided)
		}
	}
}

// TestACLChainAllocs: a reply that is given costs no allocation for its names.
func TestACLChainAllocs(t *testing.T) {
	b := scripted(t, map[string][]string{"alias.test.": {"alias.test. 60 CNAME x.other.test.", "x.other.test. 60 A 192.0.2.1", "x.other.test. 60 A 192.0.2.2"}})
	d := newDesk(t, &resolver.Zone{Name: wire.Root, ACL: aclOf(t, "acl other.test {\nblock net 10.0.0.0/8\n}"), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()})
	d.from("192.0.2.1:53", resolver.UDP)
	packet, err := asked("alias.test. A edns").Pack()
	if err != nil {
		t.Fatal(err)
	}
	d.serve(packet)
	if n := testing.AllocsPerRun(100, func() { d.serve(packet) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkACLChain is what the names of an answer cost where there is an ACL.
func BenchmarkACLChain(b *testing.B) {
	for _, withACL := range []bool{false, true} {
		b.Run(fmt.Sprintf("acl=%v", withACL), func(b *testing.B) {
			z := &resolver.Zone{Name: wire.Root, Cluster: newPartial(b, "cluster.local"), Hosts: resolvertest.Hosts(b, true, "192.0.2.9 by.hand")}
			if withACL {
				z.ACL = resolver.NewACL(&config.ACL{Rules: []config.ACLRule{{Zones: []wire.Name{resolvertest.ZoneName(b, "secret.test.")}, Policies: []config.ACLPolicy{{Action: config.ACLBlock}}}}})
			}
			d := newDesk(b, z).from("192.0.2.1:53", resolver.UDP)
			packet, err := asked("web.shop.svc.cluster.local. A").Pack()
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
