package server

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// BenchmarkServe is what a query costs without a socket: a hit in the cache, and the run that
// finds out that a query has to be forwarded, with the copy for the worker.
func BenchmarkServe(b *testing.B) {
	backend := startBackend(b, addressed("192.0.2.1"))
	z := &Zone{Name: wire.Root, Stats: NewStats(), Hosts: table(b, true, "192.0.2.9 by.hand"), Cache: answers(), Forward: pool(b, backend.addr), Shuffle: true}
	rt := NewRoutes([]*Zone{z}, NewStats())
	s := New(slog.New(slog.DiscardHandler), Limits{})
	x := request{client: netip.MustParseAddrPort("192.0.2.7:53")}
	out := make([]byte, 0, replyBuffer)
	for _, name := range []string{"cached.test.", "missed.test."} {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		packet, err := m.Pack()
		if err != nil {
			b.Fatal(err)
		}
		x.query.Packet = packet
		if name == "cached.test." {
			_, o := s.serve(rt, &x, out, (*wire.Query).Limit)
			s.resume(rt, &x, o, wire.MinUDP)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			w := pendingQueries.Get().(*pendingQuery)
			for b.Loop() {
				if _, o := s.serve(rt, &x, out, (*wire.Query).Limit); o != answered {
					x.detach(s.ctx, &w.request, w.in[:], w.out)
				}
			}
		})
	}
}
