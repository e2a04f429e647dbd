package resolver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
)

const patience = 30 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

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
	rt := resolver.NewRoutes(zones, resolver.NewStats())
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: rt}}); err != nil {
		t.Fatal(err)
	}
	served.Store(addr, rt)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s, addr
}

// served are the routes of the servers by address.
var served sync.Map

// explainFirst has the query explained. That leaves nothing behind: the tests see the same as without it.
func explainFirst(t *testing.T, network string, addr netip.AddrPort, q *dns.Msg) {
	t.Helper()
	rt, ok := served.Load(addr)
	packet, err := q.Pack()
	if !ok || err != nil {
		return
	}
	proto := resolver.UDP
	if network == "tcp" {
		proto = resolver.TCP
	}
	rt.(*resolver.Routes).Explain(packet, netip.AddrPortFrom(loopback, 0), proto)
}

// query sends one query and gives its reply.
func query(t *testing.T, network string, addr netip.AddrPort, q *dns.Msg) *dns.Msg {
	t.Helper()
	explainFirst(t, network, addr, q)
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
		return rt.AnswerUnsupported(r, buf[:0]), resolver.Answered
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
