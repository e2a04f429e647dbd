package resolver_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestDS: a DS record is the parent's.
func TestDS(t *testing.T) {
	z := func(name string) *resolver.Zone {
		return &resolver.Zone{Name: resolvertest.ZoneName(t, name), Stats: resolver.NewStats()}
	}
	rt := resolver.NewRoutes([]*resolver.Zone{z("."), z("test."), z("a.test."), z("b.a.test.")}, resolver.NewStats())
	for _, c := range []struct {
		qname string
		qtype uint16
		want  string
	}{
		{"b.a.test.", dns.TypeA, "b.a.test."},
		{"b.a.test.", dns.TypeDS, "a.test."},
		{"x.b.a.test.", dns.TypeDS, "b.a.test."},
		{"y.x.b.a.test.", dns.TypeDS, "b.a.test."},
		{"test.", dns.TypeDS, "test."},
		{"org.", dns.TypeDS, "."},
		{".", dns.TypeNS, "."},
	} {
		var x resolver.Request
		packet, err := question(c.qname, c.qtype).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if x.Query.Parse(packet) != wire.Serve {
			t.Fatalf("%s is not taken", c.qname)
		}
		if got := rt.Match(&x).Name.String(); got != c.want {
			t.Errorf("%s %s goes to %s, want %s", c.qname, dns.TypeToString[c.qtype], got, c.want)
		}
	}
}
