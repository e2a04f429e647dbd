package resolver_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// BenchmarkServe is what a query costs without a socket: a hit in the cache, and the run that
// finds out that a query has to be forwarded, with the copy for the worker.
func BenchmarkServe(b *testing.B) {
	backend := resolvertest.StartBackend(b, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(b, true, "192.0.2.9 by.hand"), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(b, backend.Addr()), Shuffle: true}
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	x := resolver.Request{Client: netip.MustParseAddrPort("192.0.2.7:53")}
	out := make([]byte, 0, replyBuffer)
	for _, name := range []string{"cached.test.", "missed.test."} {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		packet, err := m.Pack()
		if err != nil {
			b.Fatal(err)
		}
		x.Query.Packet = packet
		if name == "cached.test." {
			_, o := serve(rt, &x, out)
			resume(rt, &x, o)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			w, in, reply := new(resolver.Request), make([]byte, 512), make([]byte, replyBuffer)
			for b.Loop() {
				if _, o := serve(rt, &x, out); o != resolver.Answered {
					x.Detach(b.Context(), w, in, reply)
				}
			}
		})
	}
}
