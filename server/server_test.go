// These tests use listeners, serve and ctx, which are not exported.

package server

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects listeners and counters.

// patience ends a test that would hang; no test measures it.
const patience = 30 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

// start serves zones on a loopback address until the test ends.
func start(t testing.TB, limits Limits, zones ...*resolver.Zone) (*Server, netip.AddrPort) {
	t.Helper()
	for _, z := range zones {
		if z.Stats == nil {
			z.Stats = resolver.NewStats()
		}
	}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	s := New(slog.New(slog.DiscardHandler), limits)
	rt := resolver.NewRoutes(zones, resolver.NewStats())
	rt.Clients = clients.New(clients.Options{})
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: rt}}); err != nil {
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

// TestPath: who answers what, over both transports.
func TestPath(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	inner := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.2"))
	_, addr := start(t, Limits{},
		&resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr())},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "corp.test."), Forward: resolvertest.Pool(t, inner.Addr())},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "a.corp.test."), Forward: resolvertest.Pool(t, b.Addr())},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "empty.test.")},
	)
	for _, c := range []struct {
		name, qname string
		rcode       int
		want        string
	}{
		{"hosts go first", "by.hand.", dns.RcodeSuccess, "192.0.2.9"},
		{"the rest is forwarded", "www.example.org.", dns.RcodeSuccess, "192.0.2.1"},
		{"again, from the cache", "www.example.org.", dns.RcodeSuccess, "192.0.2.1"},
		{"the longest zone wins", "x.corp.test.", dns.RcodeSuccess, "192.0.2.2"},
		{"a longer one still", "x.a.corp.test.", dns.RcodeSuccess, "192.0.2.1"},
		{"a zone's own name", "corp.test.", dns.RcodeSuccess, "192.0.2.2"},
		{"not a label boundary", "xcorp.test.", dns.RcodeSuccess, "192.0.2.1"},
		{"case does not matter", "X.CoRp.TEST.", dns.RcodeSuccess, "192.0.2.2"},
		{"nobody to ask", "x.empty.test.", dns.RcodeServerFailure, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.name+"/"+network, func(t *testing.T) {
				m := query(t, network, addr, question(c.qname, dns.TypeA))
				if m.Rcode != c.rcode {
					t.Fatalf("rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[c.rcode])
				}
				got := ""
				if len(m.Answer) > 0 {
					got = m.Answer[0].(*dns.A).A.String()
					if owner := m.Answer[0].Header().Name; owner != c.qname {
						t.Errorf("owner %s, want the query's %s", owner, c.qname)
					}
				}
				if got != c.want {
					t.Errorf("answer %q, want %q", got, c.want)
				}
			})
		}
	}
	if n := b.CountName("www.example.org."); n != 1 {
		t.Errorf("the cached name was asked for %d times, want once", n)
	}
}

// TestErrors: what is no ordinary question.
func TestErrors(t *testing.T) {
	_, addr := start(t, Limits{}, &resolver.Zone{Name: resolvertest.ZoneName(t, "only.test."), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 www.only.test")})
	edit := func(f func(*dns.Msg)) []byte {
		m := question("www.only.test.", dns.TypeA)
		f(m)
		packet, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return packet
	}
	for _, c := range []struct {
		name   string
		packet []byte
		rcode  int
	}{
		{"no zone", edit(func(m *dns.Msg) { m.Question[0].Name = "www.example.org." }), dns.RcodeRefused},
		{"class CH", edit(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		{"NOTIFY", edit(func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }), dns.RcodeNotImplemented},
		{"UPDATE", edit(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		{"two questions", edit(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), dns.RcodeFormatError},
		{"no question", edit(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		{"cut inside the question", edit(func(*dns.Msg) {})[:20], dns.RcodeFormatError},
		{"only a header", append(edit(func(*dns.Msg) {})[:4], 0, 1, 0, 0, 0, 0, 0, 0), dns.RcodeFormatError},
		{"EDNS version 1", edit(func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }), dns.RcodeBadVers},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.name+"/"+network, func(t *testing.T) {
				conn, err := dns.DialTimeout(network, addr.String(), patience)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				if _, err := conn.Write(c.packet); err != nil {
					t.Fatal(err)
				}
				m, err := conn.ReadMsg()
				if err != nil {
					t.Fatal(err)
				}
				if m.Rcode != c.rcode || !m.Response || m.Id != uint16(c.packet[0])<<8|uint16(c.packet[1]) {
					t.Errorf("got %v, want rcode %s", m, dns.RcodeToString[c.rcode])
				}
			})
		}
	}
}

// TestNoReply: what must not be answered is not, and what follows is.
func TestNoReply(t *testing.T) {
	_, addr := start(t, Limits{}, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, "192.0.2.9 www.only.test")})
	conn, err := dns.DialTimeout("udp", addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	response := question("www.only.test.", dns.TypeA)
	response.Response = true
	packet, err := response.Pack()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range [][]byte{{}, {1}, packet[:11], packet} {
		if _, err := conn.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	q := question("www.only.test.", dns.TypeA)
	q.Id = response.Id + 1
	if err := conn.WriteMsg(q); err != nil {
		t.Fatal(err)
	}
	m, err := conn.ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	if m.Id != q.Id {
		t.Errorf("the first reply has ID %d, want that of the only question, %d", m.Id, q.Id)
	}
}

// TestTruncation: a reply that is too long for UDP has TC and is whole over TCP.
func TestTruncation(t *testing.T) {
	lines := make([]string, 200)
	for i := range lines {
		lines[i] = "10.0.0." + itoa(i+1) + " many.test"
	}
	_, addr := start(t, Limits{}, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, lines...), Shuffle: true, Bufsize: 4096})
	for _, size := range []uint16{0, 512, 1232, 4096} {
		q := question("many.test.", dns.TypeA)
		limit := 512
		if size > 0 {
			q.SetEdns0(size, false)
			limit = int(size)
		}
		m := query(t, "udp", addr, q)
		full := 12 + 15 + 16*200 // header, question, records
		if whole := full+11 <= limit; m.Truncated == whole {
			t.Errorf("size %d: TC is %v with %d records", size, m.Truncated, len(m.Answer))
		}
		if packed, _ := m.Pack(); !m.Truncated && len(m.Answer) != 200 || m.Truncated && len(m.Answer) == 0 {
			t.Errorf("size %d: %d records in %d bytes", size, len(m.Answer), len(packed))
		}
	}
	seen := make(map[string]bool)
	for _, rr := range query(t, "tcp", addr, question("many.test.", dns.TypeA)).Answer {
		seen[rr.(*dns.A).A.String()] = true
	}
	if len(seen) != 200 {
		t.Errorf("over TCP there are %d different addresses, want 200", len(seen))
	}
}

func itoa(n int) string { return netip.AddrFrom4([4]byte{0, 0, 0, byte(n)}).String()[len("0.0.0."):] }

// shed counts the queries that s has turned away.
func shed(s *Server) (all uint64) {
	s.EachShed(func(_ string, n uint64) { all += n })
	return all
}

// TestShed: when all places are taken by one client, its query that has waited longest is
// answered SERVFAIL for each new one, and hits are served as if nothing were.
func TestShed(t *testing.T) {
	const limit, more = 8, 5
	b, _, release := holdingBackend(t)
	s, addr := start(t, Limits{Waiting: limit}, byHand(t, b.Addr()))
	conn, err := dns.DialTimeout("udp", addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	for i := range limit + more {
		q := question("n"+itoa(i)+".test.", dns.TypeA)
		q.Id = uint16(i)
		if err := conn.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it to wait", func() bool { return s.waiting.InUse() == min(i+1, limit) && shed(s) == uint64(max(0, i+1-limit)) })
	}
	expect := func(rcode int, ids ...uint16) {
		t.Helper()
		for range ids {
			m, err := conn.ReadMsg()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(ids, m.Id) || m.Rcode != rcode {
				t.Errorf("query %d: %s, want %s for %d", m.Id, dns.RcodeToString[m.Rcode], dns.RcodeToString[rcode], ids)
			}
		}
	}
	expect(dns.RcodeServerFailure, 0, 1, 2, 3, 4)
	if n := reasons(s)["client"]; n != more {
		t.Errorf("%d were shed, want %d", n, more)
	}
	if m := query(t, "udp", addr, question("by.hand.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("a name that needs no upstream: %v", m)
	}
	close(release)
	expect(dns.RcodeSuccess, 5, 6, 7, 8, 9, 10, 11, 12)
	eventually(t, "the places to be free again", s.waiting.Idle)
}

// TestPanic: one query's panic is its SERVFAIL, and is counted.
func TestPanic(t *testing.T) {
	broken := &resolver.Zone{Name: resolvertest.ZoneName(t, "broken.test."), Hosts: new(hosts.Table)} // was never made by hosts.New
	s, addr := start(t, Limits{}, broken, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, "192.0.2.9 by.hand")})
	for i, network := range []string{"udp", "tcp"} {
		m := query(t, network, addr, question("www.broken.test.", dns.TypeA))
		if m.Rcode != dns.RcodeServerFailure {
			t.Errorf("rcode %s, want SERVFAIL", dns.RcodeToString[m.Rcode])
		}
		if n := s.Panics(); n != uint64(i+1) {
			t.Errorf("%d panics counted, want %d", n, i+1)
		}
		if m := query(t, network, addr, question("by.hand.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("after a panic: %v", m)
		}
	}
}

// TestListen: all or nothing, and addresses that stay keep their sockets.
func TestListen(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), Limits{})
	first, second := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0]), netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	taken, err := net.ListenPacket("udp4", "127.0.0.1:0") // without SO_REUSEPORT
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.LocalAddr().(*net.UDPAddr).AddrPort()
	rt := func() *resolver.Routes {
		return resolver.NewRoutes([]*resolver.Zone{{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, false, "192.0.2.9 by.hand")}}, resolver.NewStats())
	}
	err = s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: first}: {Routes: rt()}, {AddrPort: busy}: {Routes: rt()}})
	if err == nil || !strings.Contains(err.Error(), "-localip") || !strings.Contains(err.Error(), busy.String()) {
		t.Errorf("an address in use: %v", err)
	}
	if len(s.listeners) != 0 {
		t.Errorf("%d listeners after a failed Listen", len(s.listeners))
	}
	if pc, err := net.ListenPacket("udp4", first.String()); err != nil {
		t.Errorf("the other address is still held: %v", err)
	} else {
		_ = pc.Close()
	}
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: first}: {Routes: rt()}}); err != nil {
		t.Fatal(err)
	}
	kept := s.listeners[ListenAddr{AddrPort: first}]
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: first}: {Routes: rt()}, {AddrPort: second}: {Routes: rt()}}); err != nil {
		t.Fatal(err)
	}
	if s.listeners[ListenAddr{AddrPort: first}] != kept {
		t.Error("an address that stays got new sockets")
	}
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: second}: {Routes: rt()}}); err != nil {
		t.Fatal(err)
	}
	query(t, "udp", second, question("by.hand.", dns.TypeA))
	if _, err := net.DialTimeout("tcp", first.String(), patience); err == nil {
		t.Error("an address that went still listens")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// TestWildcard: a reply comes from the address that was asked.
func TestWildcard(t *testing.T) {
	port := peer.Ports(t, 1)[0]
	s := New(slog.New(slog.DiscardHandler), Limits{})
	rt := resolver.NewRoutes([]*resolver.Zone{{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"),
		Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1")).Addr())}}, resolver.NewStats())
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: netip.AddrPortFrom(netip.IPv6Unspecified(), port)}: {Routes: rt}}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	for _, to := range []string{"127.0.0.1", "127.0.0.2", "127.8.9.10", "::1"} {
		for _, name := range []string{"by.hand.", "forwarded.test."} {
			for _, network := range []string{"udp", "tcp"} {
				// The client's socket is connected: a reply from elsewhere is lost.
				m := query(t, network, netip.AddrPortFrom(netip.MustParseAddr(to), port), question(name, dns.TypeA))
				if len(m.Answer) != 1 {
					t.Errorf("%s over %s to %s: %v", name, network, to, m)
				}
			}
		}
	}
}

// TestShutdown: a query that waits is answered, or dropped when time is up.
func TestShutdown(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer bool
	}{{"answered", true}, {"dropped", false}} {
		t.Run(c.name, func(t *testing.T) {
			b, asked, release := holdingBackend(t)
			addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
			s := New(slog.New(slog.DiscardHandler), Limits{})
			z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Forward: patientPool(t, b.Addr())}
			if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
				t.Fatal(err)
			}
			conn, err := dns.DialTimeout("tcp", addr.String(), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			<-asked
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(ctx) }()
			if !c.answer {
				cancel()
				if err := <-ended; err == nil {
					t.Error("Shutdown says that nothing was dropped")
				}
				close(release)
				return
			}
			close(release)
			if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
				t.Errorf("the waiting query got %v, %v", m, err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServeAllocPin: a query that needs no upstream allocates nothing, counted for its client.
func TestServeAllocPin(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr()), Shuffle: true}
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	rt.Clients = clients.New(clients.Options{})
	s := New(slog.New(slog.DiscardHandler), Limits{})
	x := resolver.Request{Client: netip.AddrPortFrom(loopback, 53)}
	out := make([]byte, 0, udp.ReplyBuffer)
	for _, name := range []string{"by.hand.", "cached.test.", "refused.class."} {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		if name == "refused.class." {
			m.Question[0].Qclass = dns.ClassCHAOS
		}
		packet, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		x.Query.Packet = packet
		if _, o := s.serve(rt, &x, out); o != resolver.Answered {
			s.resume(rt, &x, o) // fills the cache
		}
		if n := testing.AllocsPerRun(200, func() {
			x.Query.Packet = packet
			if _, o := s.serve(rt, &x, out); o != resolver.Answered {
				t.Fatal("not answered at once")
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// resume completes a copy of r, whose first run has come to o.
func (s *Server) resume(rt *resolver.Routes, r *resolver.Request, o resolver.Outcome) []byte {
	w := new(resolver.Request)
	r.Detach(s.ctx, w, nil, nil)
	return s.wait(rt, w, o, nil)
}
