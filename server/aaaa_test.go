package server

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/reply"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects what is copied, and plays the kernel.

// both is an upstream with an IPv6 address for each name, and a hint in each HTTPS record.
func both(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	text := q.Question[0].Name + map[uint16]string{
		dns.TypeA: " 60 A 192.0.2.1", dns.TypeAAAA: " 60 AAAA 2001:db8::1", dns.TypeHTTPS: " 60 HTTPS 1 . alpn=h2 ipv6hint=2001:db8::2",
	}[q.Question[0].Qtype]
	rr, err := dns.NewRR(text)
	if err != nil {
		panic(err)
	}
	m.Answer = []dns.RR{rr}
	return m
}

// aaaaRoutes are of a zone with `aaaa auto`.
func aaaaRoutes(t *testing.T, store *cache.Store, pods *podrange.Ranges) *resolver.Routes {
	t.Helper()
	z := &resolver.Zone{
		Name: wire.Root, Cache: store.NewCache(&config.Cache{Success: roomy, Denial: roomy}), Stats: resolver.NewStats(),
		Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, both).Addr()), AAAA: resolver.NewAAAA(&config.AAAA{}, pods),
	}
	return resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
}

// hasIPv6 reports whether m has an IPv6 address or a hint of one.
func hasIPv6(m *dns.Msg) bool {
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.AAAA:
			return true
		case *dns.HTTPS:
			for _, v := range rr.Value {
				if v.Key() == dns.SVCB_IPV6HINT {
					return true
				}
			}
		}
	}
	return false
}

// copyTable is a kernel: it gives a copy to the clients of its group, while all counters of the copy and the one of the group
// are as they were.
type copyTable struct {
	tables  reply.Tables
	copies  map[copyKey]kernelpath.Answer
	clients map[netip.Addr]kernelpath.Group
	given   int
}

type copyKey struct {
	query string
	group uint32
}

func (c *copyTable) Put(a *kernelpath.Answer) bool {
	kept := *a
	kept.Reply, kept.More = append([]byte(nil), a.Reply...), append([]epoch.Mark(nil), a.More...)
	c.copies[copyKey{string(a.Query.Packet[2:]), a.Group.Number}] = kept
	return true
}

func (c *copyTable) SetGroup(addr netip.Addr, g *kernelpath.Group) { c.clients[addr] = *g }
func (c *copyTable) Clear()                                        {}
func (c *copyTable) SetListeners(map[netip.AddrPort]uint32) error  { return nil }
func (c *copyTable) Epochs() (cluster, cached *epoch.Table)        { return c.tables.Cluster, c.tables.Cached }
func (c *copyTable) holds(m epoch.Mark) bool {
	table := c.tables.Cached
	if c.tables.Cluster.Has(m) {
		table = c.tables.Cluster
	}
	w := table.Watch(m)
	return w.Holds()
}

// get returns the copy for a client's query, nil if there is none.
func (c *copyTable) get(client netip.Addr, packet []byte) []byte {
	for _, group := range []kernelpath.Group{{}, c.clients[client]} {
		a, ok := c.copies[copyKey{string(packet[2:]), group.Number}]
		if !ok || !c.holds(a.Mark) || group.Number != 0 && group.Mark.Index != fixedIndex && !c.holds(group.Mark) {
			continue
		}
		for _, m := range a.More {
			ok = ok && c.holds(m)
		}
		if ok {
			c.given++
			return a.Reply
		}
	}
	return nil
}

// fixedIndex is the index of the counter that never moves.
const fixedIndex = 0

// TestAAAACopiesAreExact plays a kernel that answers from copies whenever it may, while pods get and lose IPv6 addresses: each
// client gets what the path would give it.
func TestAAAACopiesAreExact(t *testing.T) {
	const bits = 4
	tables := reply.Tables{Cluster: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1, bits), Cached: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1000, bits)}
	pods := &podrange.Ranges{Epochs: tables.Cluster}
	rt := aaaaRoutes(t, cache.NewStore(1<<20, cache.Options{Epochs: tables.Cached}), pods)
	kernel := &copyTable{tables: tables, copies: make(map[copyKey]kernelpath.Answer), clients: make(map[netip.Addr]kernelpath.Group)}
	path := &kernelPath{program: kernel, tables: tables}
	cfg := new(activeConfig)
	cfg.kernelPathID.Store(1)
	reused := reusedReplies{sink: &kernelReplies{path: path, config: cfg}, tables: &path.tables}
	type pod struct{ known, ipv4Only bool }
	state, r := make(map[netip.Addr]pod), rand.New(rand.NewPCG(1, 2))
	denied, changes := 0, 0
	for range 20_000 {
		client := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(6))})
		if r.IntN(20) == 0 {
			p := pod{r.IntN(4) > 0, r.IntN(2) == 0}
			pods.SetPod(client, p.known, p.ipv4Only)
			state[client] = p
			changes++
			continue
		}
		q := question([]string{"a.test.", "b.test."}[r.IntN(2)], []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS}[r.IntN(3)])
		q.Id = 0
		packet, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		msg := kernel.get(client, packet)
		if msg == nil {
			x := &resolver.Request{Client: netip.AddrPortFrom(client, 53), Arrival: clock.Now(), Sources: new(resolver.ReplySources)}
			x.Query.Packet = packet
			x.Parse()
			x.Permit(t.Context())
			reused.beginPath()
			x.Begin(rt, x.Arrival, nil)
			if rt.Resolve(x) == resolver.Forward {
				x.Forward()
			}
			msg = x.Finish()
			reused.offer(x, msg)
		}
		var m dns.Msg
		if err := m.Unpack(msg); err != nil {
			t.Fatal(err)
		}
		p := state[client]
		want := q.Question[0].Qtype != dns.TypeA && !(p.known && p.ipv4Only)
		if hasIPv6(&m) != want {
			t.Fatalf("after %d changes, %s, %+v, gets %v", changes, client, p, m.String())
		}
		if !want && q.Question[0].Qtype != dns.TypeA {
			denied++
		}
	}
	if kernel.given < 5000 || denied < 2000 {
		t.Errorf("%d replies are copies, and %d without IPv6 addresses: too few to tell", kernel.given, denied)
	}
}

// TestAAAAKeptReplies: over a socket whose reader keeps replies, each client gets its own, however often both ask.
func TestAAAAKeptReplies(t *testing.T) {
	const bits = 4
	caches := ReplyCaches{Cluster: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1, bits), Cached: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1000, bits)}
	s := New(slog.New(slog.DiscardHandler), Limits{Readers: 1})
	s.CacheReplies(caches)
	t.Cleanup(func() { shutdown(t, s) })
	pods := &podrange.Ranges{Epochs: caches.Cluster}
	pods.SetPod(shopPod, true, true)
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	rt := aaaaRoutes(t, cache.NewStore(1<<20, cache.Options{Epochs: caches.Cached}), pods)
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: rt}}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		for _, client := range []netip.Addr{infoPod, shopPod} {
			for range 3 {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS} {
					want := qtype != dns.TypeA && client == infoPod
					if m := askFrom(t, client, addr, question("a.test.", qtype)); hasIPv6(m) != want {
						t.Errorf("%s gets %v", client, m)
					}
				}
			}
		}
	}
	pods.SetPod(shopPod, true, false)
	if m := askFrom(t, shopPod, addr, question("a.test.", dns.TypeAAAA)); !hasIPv6(m) {
		t.Errorf("a pod that got an IPv6 address gets %v", m)
	}
}
