// These benchmarks use udpReader, which is not exported.

package server

import (
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// noSocket is a socket without packets.
type noSocket struct{}

func (noSocket) ReadBatch(*udp.Batch) bool              { return false }
func (noSocket) WriteBatch(*udp.Batch)                  {}
func (noSocket) Send(*udp.Peer, []byte)                 {}
func (noSocket) SendLater(udp.Late) func()              { return nil }
func (noSocket) Timestamp(*unix.Timespec) syscall.Errno { return 0 }
func (noSocket) Memory(*udp.Memory) syscall.Errno       { return unix.ENOTSUP }
func (noSocket) Close()                                 {}
func (noSocket) Suspend()                               {}
func (noSocket) Resume()                                {}
func (noSocket) Duplicate() (*os.File, error)           { return nil, os.ErrClosed }
func (noSocket) Upstreams() *pollset.Set                { return nil }

// newEpochTables returns the tables of a view and of caches.
func newEpochTables() (cluster, cached *epoch.Table) {
	const bits = 12
	n := epoch.Words(bits)
	return epoch.New(make([]atomic.Uint64, n), 0, bits), epoch.New(make([]atomic.Uint64, n), uint32(n), bits)
}

// hotServer returns a server whose zone has the answer to packet in its cache, and the listener of it. With
// kept, readers keep replies.
func hotServer(tb testing.TB, kept bool) (s *Server, l *listener, packet []byte) {
	tb.Helper()
	m := question("hot.test.", dns.TypeA)
	m.SetEdns0(1232, false)
	packet, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	cluster, cached := newEpochTables()
	b := resolvertest.StartBackend(tb, resolvertest.Address("192.0.2.1"))
	store := cache.NewStore(1<<20, cache.Options{Epochs: cached})
	z := &resolver.Zone{
		Name: wire.Root, Stats: resolver.NewStats(), Cache: resolvertest.CacheIn(store),
		Forward: resolvertest.Pool(tb, b.Addr()), Shuffle: true,
	}
	s = New(slog.New(slog.DiscardHandler), Limits{})
	if kept {
		s.CacheReplies(ReplyCaches{Cluster: cluster, Cached: cached})
	}
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	rt.Clients = clients.New(clients.Options{})
	l = &listener{s: s}
	l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: rt}})
	fillCache(tb, l, packet)
	return s, l, packet
}

// fillCache asks the upstream for the answer to packet, as a worker does.
func fillCache(tb testing.TB, l *listener, packet []byte) {
	tb.Helper()
	rt, r := l.config.Load().Routes, resolver.Request{Client: netip.MustParseAddrPort("192.0.2.7:53")}
	r.Query.Packet, r.Arrival = packet, clock.Now()
	_, o := l.s.serve(rt, &r, make([]byte, 0, udp.ReplyBuffer))
	r.Permit(tb.Context())
	if l.s.wait(rt, &r, o, make([]byte, 0, udp.ReplyBuffer)) == nil {
		tb.Fatal("no reply")
	}
}

// hotReader returns a reader with a full batch of packet.
func hotReader(l *listener, stripe int, packet []byte) *udpReader {
	l.udp = []udp.Socket{noSocket{}}
	l.progress = make([]progress, 1)
	u := newUDPReader(l, 0)
	u.request.Stripe = stripe
	if kept, ok := u.reused.sink.(*keptReplies); ok {
		kept.stripe = stripe
	}
	u.batch.N = udp.BatchSize
	for i := range u.batch.Packets {
		d := &u.batch.Packets[i]
		d.N = copy(d.In[:], packet)
		d.From.Client = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(stripe), byte(i)}), 4242)
	}
	return u
}

// answerBatch answers the packets of the batch.
func (u *udpReader) answerBatch() {
	cfg := u.l.config.Load()
	u.request.Arrival = clock.Now()
	u.reused.begin(cfg, u.request.Arrival)
	for i := range u.batch.Packets[:u.batch.N] {
		u.answer(cfg, &u.batch.Packets[i])
	}
	u.reused.end(cfg.Routes, u.request.Arrival)
}

// lockWaits returns how often a goroutine has had to wait for a mutex.
func lockWaits() (n int64) {
	records := make([]runtime.BlockProfileRecord, 1000)
	got, ok := runtime.MutexProfile(records)
	if !ok {
		return -1
	}
	for _, r := range records[:got] {
		n += r.Count
	}
	return n
}

// BenchmarkHotName is what a reader does for a query, without the socket, while all readers are asked for the same
// name: run it with -cpu 1,2. lock-waits/op are acquisitions of a mutex that had to wait.
func BenchmarkHotName(b *testing.B) {
	for name, kept := range map[string]bool{"path": false, "kept": true} {
		b.Run(name, func(b *testing.B) {
			_, l, packet := hotServer(b, kept)
			var stripes atomic.Int32
			defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(1))
			before := lockWaits()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				u := hotReader(l, int(stripes.Add(1))-1, packet)
				for n := udp.BatchSize; pb.Next(); n++ {
					if n == udp.BatchSize {
						u.answerBatch()
						n = 0
					}
				}
			})
			b.ReportMetric(float64(lockWaits()-before)/float64(b.N), "lock-waits/op")
		})
	}
}
