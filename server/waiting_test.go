// These tests use waiting, which is not exported.

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// Inside the package: it inspects the places of waiting queries.

// withholding answers all names at once, but those below hold.test. when it is released.
func withholding(release <-chan struct{}) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		if strings.HasSuffix(q.Question[0].Name, ".hold.test.") {
			<-release
		}
		return resolvertest.Address("192.0.2.1")(q)
	}
}

// holdingBackend starts an upstream that keeps all queries until release is closed. asked gets
// each name once, although an upstream is asked again when its reply is late.
func holdingBackend(t *testing.T) (b *resolvertest.Backend, asked chan string, release chan struct{}) {
	t.Helper()
	asked, release = make(chan string, 100), make(chan struct{})
	var names sync.Map
	b = resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		if _, again := names.LoadOrStore(name, true); !again {
			asked <- name
		}
		<-release
		return resolvertest.Address("192.0.2.1")(q)
	})
	return b, asked, release
}

// patientPool waits for its servers as long as it takes. It does not probe them, so they get
// only the queries of the test.
func patientPool(t testing.TB, to ...netip.AddrPort) []*upstream.Pool {
	t.Helper()
	targets := make([]config.Target, len(to))
	for i, addr := range to {
		targets[i].Addr = addr
	}
	p := upstream.New(&config.Forward{
		From: wire.Root, To: targets, Expire: 10 * time.Second,
		ReadTimeout: time.Hour, HealthInterval: time.Second, HealthDomain: wire.Root,
	}, upstream.Options{Deadline: time.Hour})
	t.Cleanup(func() { _ = p.Close() })
	return []*upstream.Pool{p}
}

// queries is a socket of one client.
type queries struct {
	*dns.Conn
	t *testing.T
}

func newAsker(t *testing.T, network, from string, to netip.AddrPort) queries {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(from), 0)
	d := net.Dialer{Timeout: patience, LocalAddr: net.UDPAddrFromAddrPort(at)}
	if network == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(at)
	}
	c, err := d.Dial(network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return queries{&dns.Conn{Conn: c}, t}
}

func (c queries) send(name string) {
	c.t.Helper()
	if err := c.WriteMsg(question(name, dns.TypeA)); err != nil {
		c.t.Fatal(err)
	}
}

func (c queries) rcode() string {
	c.t.Helper()
	m, err := c.ReadMsg()
	if err != nil {
		c.t.Fatal(err)
	}
	return dns.RcodeToString[m.Rcode]
}

// reasons are what s has turned away, by reason.
func reasons(s *Server) map[string]uint64 {
	m := make(map[string]uint64)
	s.EachShed(func(reason string, n uint64) { m[reason] = n })
	return m
}

// TestClientShare: a client may wait in all places, over UDP and TCP together and whether or not it
// waits for the same name. Clients that come then get the places that it has held longest, until all
// hold as many.
func TestClientShare(t *testing.T) {
	const limit = 16
	for name, format := range map[string]string{"many names": "n%s.hold.test.", "one name": "n%.0s.hold.test."} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			b := resolvertest.StartBackend(t, withholding(release))
			s, addr := start(t, Limits{Waiting: limit}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: patientPool(t, b.Addr())})
			greedy := []queries{newAsker(t, "udp", "127.0.0.9", addr), newAsker(t, "tcp", "127.0.0.9", addr)}
			for n := range limit {
				greedy[n%2].send(fmt.Sprintf(format, strconv.Itoa(n)))
				eventually(t, "it to wait", func() bool { return s.waiting.InUse() == n+1 })
			}
			want := Usages{
				Waiting: Usage{Used: limit, Limit: limit}, Unsent: Usage{Limit: maxUnsent}, Requests: Usage{Limit: limit},
				Conns: Usage{Used: 1, Limit: s.limits.Conns, Addr: addr},
			}
			if diff := cmp.Diff(want, s.Usage(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			other := newAsker(t, "udp", "127.0.0.10", addr)
			for n := range limit / 2 {
				other.send(fmt.Sprintf(format, strconv.Itoa(n)))
				if rcode := greedy[n%2].rcode(); rcode != "SERVFAIL" {
					t.Errorf("place %d of the client with most places: %s", n, rcode)
				}
			}
			other.send("more.hold.test.")
			if rcode := other.rcode(); rcode != "SERVFAIL" {
				t.Errorf("a client that holds as many as another, and wants more: %s", rcode)
			}
			victim := newAsker(t, "udp", "127.0.0.1", addr)
			for n := range 3 {
				victim.send(fmt.Sprintf("victim%d.test.", n))
				if rcode := victim.rcode(); rcode != "NOERROR" {
					t.Errorf("a client without places: %s", rcode)
				}
				eventually(t, "its place to be free", func() bool { return s.waiting.InUse() == limit-1 })
			}
			// A query that has lost its place may still get its answer.
			eventually(t, "all lost places to be counted", func() bool { return reasons(s)["client"] >= limit/2+2 })
			close(release)
			eventually(t, "the places to be free again", s.waiting.Idle)
			if diff := cmp.Diff(map[string]uint64{"capacity": 0, "client": limit/2 + 2, "upstream": 0}, reasons(s)); diff != "" {
				t.Errorf("turned away (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEvictedLeader: clients that wait for an exchange of a client that is evicted get their answer.
func TestEvictedLeader(t *testing.T) {
	release := make(chan struct{})
	b := resolvertest.StartBackend(t, withholding(release))
	s, addr := start(t, Limits{Waiting: 8}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: patientPool(t, b.Addr())})
	waits := func(n int) {
		t.Helper()
		eventually(t, "the query to wait", func() bool { return s.waiting.InUse() == n })
	}
	greedy := newAsker(t, "udp", "127.0.0.9", addr)
	greedy.send("same.hold.test.")
	waits(1)
	victims := []queries{newAsker(t, "udp", "127.0.0.1", addr), newAsker(t, "tcp", "127.0.0.2", addr)}
	for i, v := range victims {
		v.send("same.hold.test.")
		waits(2 + i)
	}
	for n := range 20 {
		greedy.send(fmt.Sprintf("n%d.hold.test.", n))
		waits(min(4+n, 8))
	}
	for range 15 {
		if rcode := greedy.rcode(); rcode != "SERVFAIL" {
			t.Errorf("the client with most places: %s", rcode)
		}
	}
	close(release)
	for _, v := range victims {
		if rcode := v.rcode(); rcode != "NOERROR" {
			t.Errorf("%v waited for an evicted client's exchange: %s", v.LocalAddr(), rcode)
		}
	}
}

// TestBusyWaits: a client has seven eighths of the queries in flight to an upstream, hedges included. Its other queries wait,
// and are answered as soon as there is room; another client is answered at once.
func TestBusyWaits(t *testing.T) {
	const sent = 2048 + 64 // more than may be in flight
	release := make(chan struct{})
	b := resolvertest.StartBackend(t, withholding(release))
	s, addr := start(t, Limits{Waiting: 2 * sent}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: patientPool(t, b.Addr())})
	victim, flood := newAsker(t, "udp", "127.0.0.1", addr), newAsker(t, "udp", "127.0.0.9", addr)
	for n := range sent {
		flood.send(fmt.Sprintf("n%d.hold.test.", n))
		eventually(t, "it to wait", func() bool { return s.waiting.InUse() == n+1 })
	}
	victim.send("victim.test.")
	if rcode := victim.rcode(); rcode != "NOERROR" {
		t.Errorf("another client: %s", rcode)
	}
	eventually(t, "its place to be free", func() bool { return s.waiting.InUse() == sent })
	close(release)
	eventually(t, "the places to be free again", s.waiting.Idle)
	for n := range sent {
		if name := fmt.Sprintf("n%d.hold.test.", n); b.CountName(name) == 0 {
			t.Fatalf("%s was not asked when there was room again", name)
		}
	}
	if n := reasons(s)["upstream"]; n != 0 {
		t.Errorf("%d queries failed", n)
	}
}

// TestGo: background work has places, leaves some free, ends when a client needs its place and with the
// server, and its panics are counted.
func TestGo(t *testing.T) {
	b, _, release := holdingBackend(t)
	s, addr := start(t, Limits{Waiting: 2}, byHand(t, b.Addr()))
	if !s.Go(func(context.Context) { panic("boom") }) {
		t.Fatal("no place in an idle server")
	}
	eventually(t, "the panic", func() bool { return s.Panics() == 1 && s.waiting.Idle() })
	causes := make(chan error, 2)
	waitForEnd := func(ctx context.Context) {
		<-ctx.Done()
		causes <- ctx.Err()
	}
	for range 2 {
		if !s.Go(waitForEnd) {
			t.Fatal("the place was not given back")
		}
	}
	if s.Go(func(context.Context) { t.Error("run without a place") }) {
		t.Error("there are more places than may wait")
	}
	client := newAsker(t, "udp", "127.0.0.1", addr)
	client.send("n.test.")
	if err := <-causes; !errors.Is(err, share.ErrEvicted) {
		t.Errorf("a client needs the place: %v", err)
	}
	close(release)
	if rcode := client.rcode(); rcode != "NOERROR" {
		t.Errorf("the client: %s", rcode)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	select {
	case err := <-causes:
		if errors.Is(err, share.ErrEvicted) || !errors.Is(err, context.Canceled) {
			t.Errorf("the end of the server: %v", err)
		}
	default:
		t.Error("Shutdown does not wait")
	}
}
