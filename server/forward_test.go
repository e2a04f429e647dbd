// These tests use waiting and workers, which are not exported.

package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// Inside the package: it counts places and workers.

// slowBackend starts an upstream that keeps the names below hold.test. until release is closed, and returns pools for it that know that it
// is slow: for a second they expect no reply. held counts the names that it keeps. The address of nN.hold.test. is 192.0.2.N.
func slowBackend(t *testing.T, release <-chan struct{}) (pools []*upstream.Pool, held *atomic.Int32) {
	t.Helper()
	held = new(atomic.Int32)
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		var n byte
		switch name := q.Question[0].Name; {
		case name == "slow.test.":
			time.Sleep(time.Second / 2)
		case strings.HasSuffix(name, ".hold.test."):
			held.Add(1)
			<-release
			fmt.Sscanf(name, "n%d.", &n)
		}
		return resolvertest.Address(heldAddress(n))(q)
	})
	pools = patientPool(t, b.Addr())
	var all sync.WaitGroup
	for range 8 { // as many samples as the estimate needs
		all.Go(func() {
			var q wire.Query
			q.Parse(wire.AppendQuery(nil, 1, []byte("\x04slow\x04test\x00"), wire.TypeA, nil, wire.MinUDP))
			if _, err := pools[0].Exchange(context.Background(), &q, false); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return pools, held
}

func heldAddress(n byte) string { return netip.AddrFrom4([4]byte{192, 0, 2, n}).String() }

// sendHeld sends the first n queries for names that slowBackend keeps, and waits until it has got each.
func sendHeld(t *testing.T, client queries, n int, held *atomic.Int32) {
	t.Helper()
	for i := range n {
		m := question(fmt.Sprintf("n%d.hold.test.", i), dns.TypeA)
		m.Id = uint16(i)
		if err := client.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it to be asked", func() bool { return held.Load() == int32(i)+1 })
	}
}

// readHeld reads the replies to the first n queries.
func readHeld(t *testing.T, client queries, n int) {
	t.Helper()
	for range n {
		m, err := client.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		if want := heldAddress(byte(m.Id)); len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("query %d: %v, want %s", m.Id, m.Answer, want)
		}
	}
}

// TestForwardWithoutGoroutine: queries that wait for an upstream that is in time need no goroutine, and each gets its own answer, however
// the socket is read and written.
func TestForwardWithoutGoroutine(t *testing.T) {
	const queries = 200
	for name, limits := range map[string]Limits{"mmsg": {}, "no mmsg": {oneByOne: true}, "poller": {Poller: true}} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			pools, held := slowBackend(t, release)
			s, addr := start(t, limits, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: pools})
			client := newAsker(t, "udp", "127.0.0.1", addr)
			before := runtime.NumGoroutine()
			sendHeld(t, client, queries, held)
			sockets := queries/16 + 16 // each of which has a reader
			if more := runtime.NumGoroutine() - before - queries; more > sockets {
				t.Errorf("%d goroutines wait for %d queries, want one for each socket, %d at most", more, queries, sockets)
			}
			close(release)
			readHeld(t, client, queries)
			eventually(t, "the places to be free again", s.waiting.Idle)
			client.send("n1.hold.test.")
			if rcode := client.rcode(); rcode != "NOERROR" || held.Load() != queries {
				t.Errorf("the answer is not in the cache: %s", rcode)
			}
		})
	}
}

// TestForwardAfterClose: queries that wait without a goroutine when the server stops reading are answered.
func TestForwardAfterClose(t *testing.T) {
	for name, limits := range map[string]Limits{"mmsg": {}, "poller": {Poller: true}} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			pools, held := slowBackend(t, release)
			s, addr := start(t, limits, &resolver.Zone{Name: wire.Root, Forward: pools})
			l := s.listeners[ListenAddr{AddrPort: addr}]
			client := newAsker(t, "udp", "127.0.0.1", addr)
			sendHeld(t, client, 20, held)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				shutdown(t, s)
			}()
			eventually(t, "the readers to end", l.stopped)
			close(release)
			readHeld(t, client, 20)
			<-ended
		})
	}
}

// TestForwardContinues: a query whose upstream is late, truncates, does not know EDNS or fails is answered, too.
func TestForwardContinues(t *testing.T) {
	good := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	tests := map[string]func(q *fakedns.Query){
		"silent": func(*fakedns.Query) {},
		"truncates": func(q *fakedns.Query) {
			m := fakedns.Address(q.Msg, 60, "192.0.2.1")
			m.Truncated = q.Transport == fakedns.UDP
			q.Reply(m)
		},
		"no EDNS": func(q *fakedns.Query) {
			m := fakedns.Address(q.Msg, 60, "192.0.2.1")
			if q.Msg.IsEdns0() != nil {
				m = new(dns.Msg).SetRcode(q.Msg, dns.RcodeFormatError)
			}
			m.Extra = nil
			q.Reply(m)
		},
	}
	for name, reply := range tests {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cache %t", name, cached), func(t *testing.T) {
				f := fakedns.Start(t, reply)
				z := &resolver.Zone{Name: wire.Root, Forward: patientPool(t, f.Addr(), good.Addr())}
				if cached {
					z.Cache = resolvertest.Cache()
				}
				s, addr := start(t, Limits{}, z)
				if m := query(t, "udp", addr, question("a.test.", dns.TypeA)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
					t.Errorf("%v", m)
				}
				eventually(t, "the place to be free again", s.waiting.Idle)
			})
		}
	}
}

// TestForwardEnds: a query that waits without a goroutine ends with its place, with the server, and with the pool after a reload.
func TestForwardEnds(t *testing.T) {
	tests := map[string]struct {
		end   func(t *testing.T, s *Server, addr netip.AddrPort, p *upstream.Pool)
		rcode string // "": no reply
	}{
		"evicted": {func(t *testing.T, s *Server, addr netip.AddrPort, _ *upstream.Pool) {
			other := newAsker(t, "udp", "127.0.0.9", addr)
			other.send("b.hold.test.")
			eventually(t, "the first to lose its place", func() bool { return reasons(s)["client"] == 1 })
		}, "SERVFAIL"},
		"shutdown": {func(_ *testing.T, s *Server, _ netip.AddrPort, _ *upstream.Pool) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := s.Shutdown(ctx); err == nil {
				t.Error("no query was dropped")
			}
		}, "SERVFAIL"},
		"reload": {func(t *testing.T, s *Server, addr netip.AddrPort, p *upstream.Pool) {
			if err := s.Listen(plainConfig(addr, byHand(t))); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}, "SERVFAIL"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, asked, release := holdingBackend(t)
			defer close(release)
			pools := patientPool(t, b.Addr())
			s, addr := start(t, Limits{Waiting: 1}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: pools})
			client := newAsker(t, "udp", "127.0.0.1", addr)
			client.send("a.hold.test.")
			<-asked
			tt.end(t, s, addr, pools[0])
			if rcode := client.rcode(); rcode != tt.rcode {
				t.Errorf("rcode %s, want %s", rcode, tt.rcode)
			}
		})
	}
}

// panicking is a log that panics.
type panicking struct{ slog.Handler }

func (panicking) Enabled(context.Context, slog.Level) bool { return true }

func (panicking) Handle(context.Context, slog.Record) error { panic("boom") }

// TestForwardPanic: a panic after the reply of an upstream is SERVFAIL, and is counted; the socket's reader goes on.
func TestForwardPanic(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	log := &resolver.QueryLog{Logger: slog.New(panicking{slog.DiscardHandler}), Rules: []resolver.LogRule{{Success: true}}}
	pools := patientPool(t, b.Addr())
	s, addr := start(t, Limits{}, &resolver.Zone{Name: resolvertest.ZoneName(t, "broken.test."), Log: log, Cache: resolvertest.Cache(), Forward: pools},
		&resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: pools})
	for n := range 3 {
		if m := query(t, "udp", addr, question(fmt.Sprintf("n%d.broken.test.", n), dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("rcode %s, want SERVFAIL", dns.RcodeToString[m.Rcode])
		}
		if s.Panics() != uint64(n+1) {
			t.Errorf("%d panics counted, want %d", s.Panics(), n+1)
		}
		if m := query(t, "udp", addr, question(fmt.Sprintf("n%d.test.", n), dns.TypeA)); m.Rcode != dns.RcodeSuccess {
			t.Errorf("after a panic: rcode %s", dns.RcodeToString[m.Rcode])
		}
	}
	eventually(t, "the places to be free again", s.waiting.Idle)
}
