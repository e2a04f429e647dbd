package resolver_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// TestServedZones: a zone that forwards gives no upstream's designated resolvers, of no
// type and at no name of the resolver zone, unless they are what it forwards; one that
// does not forward says what it said before.
func TestServedZones(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.66"))
	denial := "NOERROR aa |  | resolver.arpa. 10800 SOA resolver.arpa. nobody.invalid. 1 3600 1200 604800 10800"
	none := func(zone string) string {
		return "NXDOMAIN aa |  | " + zone + " 10800 SOA " + zone + " nobody.invalid. 1 3600 1200 604800 10800"
	}
	loopback6 := "1." + strings.Repeat("0.", 31) + "ip6.arpa."
	found := func(name string) string { return "NOERROR | " + name + " 60 A 192.0.2.66" }
	all := func(*upstream.Pool) bool { return true }
	for _, tt := range []struct {
		zone        *resolver.Zone
		query, want string
	}{
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "_dns.resolver.arpa. SVCB", denial},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()}, "_dns.resolver.arpa. A", denial},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "resolver.arpa. NS", denial},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "resolver.arpa. DS", denial},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "a.b.c.resolver.arpa. ANY", denial},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "myresolver.arpa. A", found("myresolver.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "arpa. A", found("arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr()), Designates: all}, "x.resolver.arpa. A", found("x.resolver.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "x\\008resolver.arpa. A", found("x\\008resolver.arpa.")},
		{&resolver.Zone{}, "_dns.resolver.arpa. SVCB", "SERVFAIL"},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "10.20.254.169.in-addr.arpa. PTR", none("254.169.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()}, "254.169.in-addr.arpa. NS", strings.Replace(none("254.169.in-addr.arpa."), "NXDOMAIN", "NOERROR", 1)},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.f.8.e.f.ip6.arpa. PTR", none("8.e.f.ip6.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.0.0.127.in-addr.arpa. PTR", "NOERROR aa | 1.0.0.127.in-addr.arpa. 10800 PTR localhost."},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "2.0.0.127.in-addr.arpa. PTR", none("127.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, loopback6 + " PTR", "NOERROR aa | " + loopback6 + " 10800 PTR localhost."},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr()), Designates: all}, "10.20.254.169.in-addr.arpa. A", found("10.20.254.169.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.0.0.10.in-addr.arpa. A", found("1.0.0.10.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.168.192.in-addr.arpa. A", found("1.168.192.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.c.f.ip6.arpa. A", found("1.c.f.ip6.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr())}, "1.169.in-addr.arpa. A", found("1.169.in-addr.arpa.")},
		{&resolver.Zone{Forward: resolvertest.Pool(t, b.Addr()), Hosts: resolvertest.Hosts(t, true, "169.254.20.10 dns.node")}, "10.20.254.169.in-addr.arpa. PTR", "NOERROR aa | 10.20.254.169.in-addr.arpa. 3600 PTR dns.node."},
	} {
		tt.zone.Name = wire.Root
		d := newDesk(t, tt.zone).from("192.0.2.1:53", resolver.UDP)
		for range 2 {
			if got := told(d.ask(asked(tt.query))); got != tt.want {
				t.Errorf("%s is %s, want %s", tt.query, got, tt.want)
			}
		}
	}
	if n := b.CountName("_dns.resolver.arpa."); n != 0 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// BenchmarkServedHere is what the step costs a query for another name.
func BenchmarkServedHere(b *testing.B) {
	packet, err := question("www.example.org.", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	x := resolver.Request{}
	x.Query.Parse(packet)
	z := &resolver.Zone{}
	for b.Loop() {
		if z.ServedHere(&x) {
			b.Fatal("it is another name")
		}
	}
}
