// These tests use waiting, which is not exported.

package server

// Inside the package: it inspects the places of waiting queries.

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

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

// TestClientShare: a client waits in as many places as it leaves free, over UDP and TCP
// together and whether or not it waits for the same name, and the next one is served.
func TestClientShare(t *testing.T) {
	for name, format := range map[string]string{"many names": "n%s.hold.test.", "one name": "n%.0s.hold.test."} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			b := resolvertest.StartBackend(t, withholding(release))
			s, addr := start(t, Limits{Waiting: 16}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: patientPool(t, b.Addr())})
			victim := newAsker(t, "udp", "127.0.0.1", addr)
			held := 0
			for i, places := range []int{8, 4, 2} {
				from := fmt.Sprintf("127.0.0.%d", 9+i)
				over := []queries{newAsker(t, "udp", from, addr), newAsker(t, "tcp", from, addr)}
				for n := range places {
					over[n%2].send(fmt.Sprintf(format, strconv.Itoa(n)))
					held++
					eventually(t, "it to wait", func() bool { return s.waiting.InUse() == held })
				}
				for n := range 4 {
					over[n%2].send(fmt.Sprintf("more%d.hold.test.", n))
					if rcode := over[n%2].rcode(); rcode != "SERVFAIL" {
						t.Errorf("client %d, one query more: %s", i, rcode)
					}
				}
				if n := reasons(s)["client"]; n != uint64(4*(i+1)) {
					t.Errorf("%d queries are counted that were one too many", n)
				}
				victim.send(fmt.Sprintf("victim%d.test.", i))
				if rcode := victim.rcode(); rcode != "NOERROR" {
					t.Errorf("beside %d that take what they can: %s", i+1, rcode)
				}
			}
			eventually(t, "the victim's place to be free", func() bool { return s.waiting.InUse() == held })
			want := Usages{
				Waiting: Usage{Used: 14, Limit: 16}, Unsent: Usage{Limit: maxUnsent}, Requests: Usage{Limit: 16},
				Conns: Usage{Used: 3, Limit: s.limits.Conns, Addr: addr},
			}
			if diff := cmp.Diff(want, s.Usage(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			close(release)
			eventually(t, "the places to be free again", func() bool { return s.waiting.InUse() == 0 })
		})
	}
}

// TestBusyIsNotKept: a name that failed because so many of its client's queries are in
// flight is answered as soon as there is room, and others are all the time. Neither is a
// name lost that both ask for.
func TestBusyIsNotKept(t *testing.T) {
	release := make(chan struct{})
	b := resolvertest.StartBackend(t, withholding(release))
	s, addr := start(t, Limits{}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: patientPool(t, b.Addr())})
	victim, flood := newAsker(t, "udp", "127.0.0.1", addr), newAsker(t, "udp", "127.0.0.9", addr)
	flights := 0
	for turned := false; !turned; turned = reasons(s)["upstream"] > 0 {
		name := fmt.Sprintf("n%d.hold.test.", flights)
		flood.send(name)
		eventually(t, "it to be asked, or turned away", func() bool { return b.CountName(name) > 0 || reasons(s)["upstream"] > 0 })
		flights++
		if flights > 2048 {
			t.Fatal("one client has as many queries in flight as there may be")
		}
	}
	if rcode := flood.rcode(); rcode != "SERVFAIL" {
		t.Errorf("one query too many: %s", rcode)
	}
	for _, ask := range []struct {
		queries
		want string
	}{{flood, "SERVFAIL"}, {victim, "NOERROR"}, {flood, "NOERROR"}} {
		ask.send("both.test.")
		if rcode := ask.rcode(); rcode != ask.want {
			t.Errorf("%v: %s, want %s", ask.LocalAddr(), rcode, ask.want)
		}
	}
	flood.send("late.test.")
	if rcode := flood.rcode(); rcode != "SERVFAIL" {
		t.Errorf("one query too many: %s", rcode)
	}
	close(release)
	eventually(t, "the places to be free again", func() bool { return s.waiting.InUse() == 0 })
	again := newAsker(t, "udp", "127.0.0.9", addr)
	again.send("late.test.")
	if rcode := again.rcode(); rcode != "NOERROR" {
		t.Errorf("with room again: %s", rcode)
	}
}

// TestGo: what runs behind the queries has a place of theirs, ends with the server, and
// its panics are counted.
func TestGo(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), Limits{Waiting: 2})
	if !s.Go(func(context.Context) { panic("boom") }) {
		t.Fatal("no place in an idle server")
	}
	eventually(t, "the panic", func() bool { return s.Panics() == 1 && s.waiting.InUse() == 0 })
	var ended atomic.Bool
	if !s.Go(func(ctx context.Context) {
		<-ctx.Done()
		ended.Store(true)
	}) {
		t.Fatal("the place was not given back")
	}
	if s.Go(func(context.Context) { t.Error("run without a place") }) {
		t.Error("there are more places than may wait")
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if !ended.Load() {
		t.Error("Shutdown does not wait")
	}
}
