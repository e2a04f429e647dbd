package resolver_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

func aclOf(t testing.TB, text string) *resolver.ACL {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	return resolver.NewACL(c.Blocks[0].ACL)
}

// TestACL: the first policy that a query matches decides, whatever the zone could say.
func TestACL(t *testing.T) {
	const rules = `acl a.test b.a.test {
		allow net 192.0.2.1
		block type A AAAA net 192.0.2.0/24 2001:db8::/32
		filter type TXT
	}
	acl {
		drop type SRV net 192.0.2.0/24
		filter type MX
	}`
	const found, blockedText, filteredText = "NOERROR aa | www.a.test. 3600 A 192.0.2.9", "REFUSED", "NOERROR"
	for _, tt := range []struct{ client, query, want string }{
		{"192.0.2.1:53", "www.a.test. A", found},
		{"192.0.2.2:53", "www.a.test. A", blockedText},
		{"192.0.2.2:53", "www.a.test. A edns", blockedText + " +15:15 (Blocked): ()"},
		{"[::ffff:192.0.2.2]:53", "www.a.test. A", blockedText},
		{"[2001:db8::1%eth0]:53", "www.a.test. A", blockedText},
		{"[2001:db9::1]:53", "www.a.test. A", found},
		{"198.51.100.1:53", "www.a.test. A", found},
		{"198.51.100.1:53", "X.a.test. TXT do", filteredText + " +15:17 (Filtered): ()"},
		{"192.0.2.1:53", "x.a.test. TXT", "SERVFAIL"},
		{"192.0.2.2:53", "x.a.test. SRV", "nothing"},
		{"198.51.100.1:53", "x.test. SRV", "SERVFAIL"},
		{"198.51.100.1:53", "x.test. MX", filteredText},
		{"192.0.2.1:53", "www.a.test. MX", "NOERROR aa"},
	} {
		z := &resolver.Zone{Name: wire.Root, ACL: aclOf(t, rules), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 www.a.test")}
		if got := told(newDesk(t, z).from(tt.client, resolver.UDP).ask(asked(tt.query))); got != tt.want {
			t.Errorf("%s from %s is %s, want %s", tt.query, tt.client, got, tt.want)
		}
	}
}

// TestACLCounts: verdicts are counted by the zone of their rule, once for each query.
func TestACLCounts(t *testing.T) {
	z := &resolver.Zone{Name: wire.Root, Whoami: true, ACL: aclOf(t, `acl b.a.test a.test b.test {
		block type A
		filter type MX
	}
	acl {
		drop type SRV
	}`)}
	d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
	for _, query := range []string{"x.a.test. A", "b.a.test. A", "y.b.a.test. A", "b.test. MX", "b.test. SRV", "x. SRV", "x. A", "b.test. AAAA", "y. A"} {
		d.ask(asked(query))
	}
	a, b, ba := resolvertest.ZoneName(t, "a.test."), resolvertest.ZoneName(t, "b.test."), resolvertest.ZoneName(t, "b.a.test.")
	want := resolver.Verdicts{
		Allowed: 3, Blocked: map[wire.Name]uint64{a: 1, ba: 2},
		Filtered: map[wire.Name]uint64{b: 1}, Dropped: map[wire.Name]uint64{wire.Root: 2},
	}
	if diff := cmp.Diff(want, z.Stats.Verdicts()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]uint64{"REFUSED acl": 3, "NOERROR acl": 3, "NOERROR whoami": 3}, repliesBy(z)); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
}

// TestACLDetours: neither another name for it nor the search path leads to what a
// client may not see.
func TestACLDetours(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	z, _ := searching(t, b.Addr(), "corp.test.")
	z.ACL = aclOf(t, "acl example.org {\nblock net 127.0.0.0/8\n}")
	d := newDesk(t, z).from(netip.AddrPortFrom(shopper, 53).String(), resolver.UDP)
	if got := told(d.ask(asked("www.example.org" + inShop + " A edns"))); got != "REFUSED +15:15 (Blocked): ()" {
		t.Errorf("what is at the end of the search path is %s", got)
	}
	z.ACL = aclOf(t, "acl example.org {\ndrop net 127.0.0.0/8\n}")
	for range 2 { // with and without waiting
		if got := told(d.ask(asked("www.example.org" + inShop + " A"))); got != "nothing" {
			t.Errorf("what is at the end of the search path is %s", got)
		}
	}
	if n := b.CountName("www.example.org."); n != 0 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// TestACLRewritten: it is the name behind the rules that counts, and the one that dns64
// asks for is behind them as well.
func TestACLRewritten(t *testing.T) {
	c, err := config.Parse(config.Source{Text: []byte(". {\nrewrite name exact door.test room.test\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.9"))
	for _, tt := range []struct{ rules, query, want string }{
		{"block", "door.test. A edns", "REFUSED +15:15 (Blocked): ()"},
		{"filter", "door.test. A edns", "NOERROR +15:17 (Filtered): ()"},
		{"drop", "door.test. A edns", "nothing"},
		{"drop", "other.test. A", "NOERROR | other.test. 60 A 192.0.2.9"},
		{"block type A", "door.test. AAAA edns", "REFUSED +15:15 (Blocked): ()"},
		{"allow", "door.test. AAAA", "NOERROR | door.test. 60 AAAA 64:ff9b::c000:209"},
	} {
		z := &resolver.Zone{
			Name: wire.Root, Rewrite: rewrite.New(c.Blocks[0].Rewrite), ACL: aclOf(t, "acl room.test {\n"+tt.rules+"\n}"),
			DNS64: mapping(t, func(*config.DNS64) {}), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache(),
		}
		d := newDesk(t, z).from("[2001:db8::1]:53", resolver.UDP)
		for range 2 {
			if got := told(d.ask(asked(tt.query))); got != tt.want {
				t.Errorf("%s: %s is %s, want %s", tt.rules, tt.query, got, tt.want)
			}
		}
	}
}

// TestACLOfOthers: what one zone does is nothing to the next query, of another zone.
func TestACLOfOthers(t *testing.T) {
	hosts := resolvertest.Hosts(t, true, "192.0.2.9 by.hand")
	local := &resolver.Zone{Name: wire.Root, Local: resolver.NewLocal(&config.Local{Prefix: true}), Hosts: hosts}
	d := newDesk(t, &resolver.Zone{Name: resolvertest.ZoneName(t, "a.test."), ACL: aclOf(t, "acl {\ndrop\n}")}, local).from("192.0.2.1:53", resolver.UDP)
	for _, tt := range []struct{ query, want string }{
		{"x.a.test. A", "nothing"}, {"by.hand. A", "NOERROR aa | by.hand. 3600 A 192.0.2.9"},
		{"a.localhost. A", "NOERROR | a.localhost. 604800 A 127.0.0.1"}, {"by.hand. A edns nsid", "NOERROR aa | by.hand. 3600 A 192.0.2.9"},
	} {
		if got := told(d.ask(asked(tt.query))); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.query, got, tt.want)
		}
	}
	if n := local.Stats.Localhosts(); n != 1 {
		t.Errorf("%d names below localhost are counted", n)
	}
}

// TestACLSilence: a query that is dropped gets no reply and is in nobody's way.
func TestACLSilence(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), ACL: aclOf(t, "acl {\ndrop type SRV\n}")}
	_, addr := start(t, server.Limits{}, z)
	for _, network := range []string{"udp", "tcp"} {
		conn, err := dns.DialTimeout(network, addr.String(), patience)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint16(3) {
			for n, qtype := range []uint16{dns.TypeSRV, dns.TypeA} {
				m := question("www.test.", qtype)
				m.Id = 2*i + uint16(n)
				if err := conn.WriteMsg(m); err != nil {
					t.Fatal(err)
				}
			}
			m, err := conn.ReadMsg()
			if err != nil || m.Id != 2*i+1 || len(m.Answer) != 1 {
				t.Errorf("%s: %v\n%v", network, err, m)
			}
		}
		conn.Close()
	}
	if n := z.Stats.Verdicts().Dropped[wire.Root]; n != 6 {
		t.Errorf("%d dropped", n)
	}
}

// TestNetSet: an address is in the set if and only if it is in one of the prefixes.
func TestNetSet(t *testing.T) {
	r := rand.New(rand.NewPCG(64, 53))
	for range 300 {
		var list []netip.Prefix
		addr := func() netip.Addr { // close to one another, so that they meet
			if r.IntN(2) == 0 {
				return netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(8))})
			}
			return netip.AddrFrom16([16]byte{0: 10, 1: byte(r.IntN(2)), 14: byte(r.IntN(2)), 15: byte(r.IntN(8))})
		}
		for range r.IntN(20) {
			a := addr()
			list = append(list, netip.PrefixFrom(a, r.IntN(a.BitLen()+1)).Masked())
			if r.IntN(3) > 0 { // seldom short ones, which hold nearly all
				list[len(list)-1] = netip.PrefixFrom(a, a.BitLen()-r.IntN(4)).Masked()
			}
		}
		set := resolver.NewNetSet(list)
		for range 50 {
			a := addr()
			want := false
			for _, p := range list {
				want = want || p.Contains(a)
			}
			if list != nil && set.Has(a) != want {
				t.Fatalf("%s in %v: %v, kept %v", a, list, !want, set)
			}
		}
	}
	if resolver.NewNetSet(nil) != nil {
		t.Error("nothing is not all")
	}
}

// TestACLStranger: who has no address is blocked where there are rules.
func TestACLStranger(t *testing.T) {
	var q wire.Query
	packet, err := asked("x.test. A").Pack()
	if err != nil {
		t.Fatal(err)
	}
	q.Parse(packet)
	for rules, want := range map[string]bool{"acl {\nallow\n}": false, "acl other.test {\nblock\n}": true} {
		if got := aclOf(t, rules).Judge(q.Name(), q.Type, netip.Addr{}); got != want {
			t.Errorf("%s: allowed is %v", rules, got)
		}
	}
}

func BenchmarkACL(b *testing.B) {
	var nets []netip.Prefix
	for i := range 500 {
		nets = append(nets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	acl := resolver.NewACL(&config.ACL{Rules: []config.ACLRule{{Zones: []wire.Name{wire.Root}, Policies: []config.ACLPolicy{{Action: config.ACLBlock, Nets: nets}}}}})
	packet, err := asked("www.example.org. A").Pack()
	if err != nil {
		b.Fatal(err)
	}
	var q wire.Query
	q.Parse(packet)
	client := netip.MustParseAddr("192.0.2.1")
	b.ReportAllocs()
	for b.Loop() {
		acl.Judge(q.Name(), q.Type, client)
	}
}
