package resolver_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/upstream"
)

const patience = 30 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

// backend is a scripted upstream on loopback.
type backend struct {
	addr netip.AddrPort

	mu    sync.Mutex
	asked map[string]int
}

// startBackend answers with reply; nil is silence.
func startBackend(t testing.TB, reply func(q *dns.Msg) *dns.Msg) *backend {
	t.Helper()
	b := &backend{addr: netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0]), asked: make(map[string]int)}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		b.mu.Lock()
		b.asked[q.Question[0].Name]++
		b.mu.Unlock()
		go func() { // the package reads no more of a TCP connection until a handler is done
			if m := reply(q); m != nil {
				_ = w.WriteMsg(m)
			}
		}()
	})
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		srv := &dns.Server{Addr: b.addr.String(), Net: network, Handler: handler, NotifyStartedFunc: func() { close(started) }}
		go func() { _ = srv.ListenAndServe() }()
		<-started
		t.Cleanup(func() { _ = srv.Shutdown() })
	}
	return b
}

func (b *backend) count(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[name]
}

// addressed answers every A question with one address.
func addressed(ip string) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   net.ParseIP(ip),
			}}
		}
		return m
	}
}

func zoneName(t testing.TB, s string) wire.Name {
	t.Helper()
	n, err := wire.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func pool(t testing.TB, to ...netip.AddrPort) []*upstream.Pool {
	t.Helper()
	var targets []config.Target
	for _, addr := range to {
		targets = append(targets, config.Target{Addr: addr})
	}
	p := upstream.New(&config.Forward{
		From: wire.Root, To: targets, MaxFails: 2, Expire: 10 * time.Second,
		ReadTimeout: 2 * time.Second, HealthInterval: time.Second, HealthDomain: wire.Root,
	}, upstream.Options{})
	t.Cleanup(func() { _ = p.Close() })
	return []*upstream.Pool{p}
}

func answers() *cache.Cache {
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	return cache.NewStore(1<<20, cache.Options{}).NewCache(&config.Cache{Success: limits, Denial: limits, Servfail: 5 * time.Second})
}

func table(t testing.TB, through bool, lines ...string) *hosts.Table {
	t.Helper()
	cfg := &config.Hosts{File: t.TempDir() + "/none", Zones: []wire.Name{wire.Root}, Inline: lines, TTL: 3600}
	if through {
		cfg.Fallthrough = &config.Fallthrough{}
	}
	h, err := hosts.New(cfg, hosts.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// start serves zones on a loopback address until the test ends.
func start(t testing.TB, limits server.Limits, zones ...*resolver.Zone) (*server.Server, netip.AddrPort) {
	t.Helper()
	for _, z := range zones {
		if z.Stats == nil {
			z.Stats = resolver.NewStats()
		}
	}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	s := server.New(slog.New(slog.DiscardHandler), limits)
	if err := s.Listen(map[netip.AddrPort]server.ListenerConfig{addr: {Routes: resolver.NewRoutes(zones, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s, addr
}

// query sends one query and gives its reply.
func query(t *testing.T, network string, addr netip.AddrPort, q *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: patience, UDPSize: dns.MaxMsgSize}
	m, _, err := c.Exchange(q, addr.String())
	if err != nil {
		t.Fatalf("%s %s: %v", network, q.Question[0].String(), err)
	}
	return m
}

func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(name, qtype)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

const replyBuffer = 2048

// serve runs the path on the packet in r, which may not wait. msg is nil with any outcome but
// Answered.
func serve(rt *resolver.Routes, r *resolver.Request, buf []byte) (msg []byte, o resolver.Outcome) {
	switch r.Parse() {
	case wire.Drop:
		return nil, resolver.Answered
	case wire.Malformed:
		return wire.AppendError(buf[:0], r.Query.Packet, wire.FormErr), resolver.Answered
	case wire.Unsupported:
		return wire.AppendError(buf[:0], r.Query.Packet, wire.NotImp), resolver.Answered
	case wire.Serve:
	}
	r.Begin(rt, r.Arrival, buf)
	if o = rt.Resolve(r); o != resolver.Answered {
		return nil, o
	}
	return r.Finish(), o
}

// resume answers a copy of r, whose run has come to o and which may wait.
func resume(rt *resolver.Routes, r *resolver.Request, o resolver.Outcome) []byte {
	w := new(resolver.Request)
	r.Detach(context.Background(), w, nil, nil)
	if o == resolver.WouldWait {
		w.Begin(rt, clock.Now(), nil)
		o = rt.Resolve(w)
	}
	if o == resolver.Forward {
		w.Forward()
	}
	return w.Finish()
}

// itoa is n, which is at most 255, in decimal.
func itoa(n int) string { return strconv.Itoa(n) }
