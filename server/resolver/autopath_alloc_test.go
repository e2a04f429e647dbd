package resolver_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// searcher is a server without sockets, with everything in its cache that
// www.example.org takes on shopper's path.
func searcher(t testing.TB) (z *resolver.Zone, ask func(name string) resolver.Outcome) {
	t.Helper()
	z, _ = searching(t, resolvertest.StartBackend(t, outer).Addr())
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	x := &resolver.Request{Client: netip.AddrPortFrom(shopper, 4242)}
	out := make([]byte, 0, replyBuffer)
	packets := make(map[string][]byte)
	return z, func(name string) resolver.Outcome {
		packet := packets[name]
		if packet == nil {
			m := question(name, dns.TypeA)
			m.SetEdns0(1232, false)
			var err error
			if packet, err = m.Pack(); err != nil {
				t.Fatal(err)
			}
			packets[name] = packet
		}
		x.Query.Packet = packet
		_, o := serve(rt, x, out)
		if o != resolver.Answered {
			resume(rt, x, o)
		}
		return o
	}
}

// TestSearchCounts: only what was found on a path is counted, whatever the reader
// answered before.
func TestSearchCounts(t *testing.T) {
	z, ask := searcher(t)
	for range 3 {
		ask("db.other" + inShop)
		ask("web" + inShop)
		ask("www.example.org.")
		ask("no.such" + inShop)
	}
	if n := z.Stats.ViaSearch(); n != 3 {
		t.Errorf("%d were found, want 3", n)
	}
}

// TestSearchAllocPin: a path whose names are all known is gone down without anything
// allocated.
func TestSearchAllocPin(t *testing.T) {
	_, ask := searcher(t)
	for _, name := range []string{"www.example.org" + inShop, "db.other" + inShop, "no.such" + inShop, "empty.example.org" + inShop} {
		ask(name) // fills the cache
		if n := testing.AllocsPerRun(200, func() {
			if ask(name) != resolver.Answered {
				t.Fatal("not answered at once")
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// BenchmarkSearch compares a name of the world that is asked for by itself with the
// same at the end of a pod's path.
func BenchmarkSearch(b *testing.B) {
	_, ask := searcher(b)
	for _, c := range []struct{ name, qname string }{
		{"hit", "www.example.org."}, {"searched", "www.example.org" + inShop}, {"service", "web" + inShop}, {"neighbor", "db.other" + inShop},
	} {
		b.Run(c.name, func(b *testing.B) {
			ask(c.qname)
			b.ReportAllocs()
			for b.Loop() {
				if ask(c.qname) != resolver.Answered {
					b.Fatal("not answered at once")
				}
			}
		})
	}
}
