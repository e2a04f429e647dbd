// These tests look at the room for large replies, which is not exported.

package server

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// bigNameZone is a zone whose name big.test. has 4,000 addresses, which take 64 KB, and which answers by.hand.
func bigNameZone(t *testing.T) *resolver.Zone {
	lines := []string{"192.0.2.9 by.hand"}
	for i := range 4000 {
		lines = append(lines, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()+" big.test")
	}
	return &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, lines...), Stats: resolver.NewStats()}
}

// TestLargeRepliesHaveRoom: the large replies of a client that does not read take half of the room at most, from the second one on a
// connection on. Others get theirs.
func TestLargeRepliesHaveRoom(t *testing.T) {
	const conns = maxLargeReplies
	s, addr := start(t, Limits{WriteTimeout: time.Hour, IdleTimeout: time.Hour}, bigNameZone(t))
	ask := func(conn *dns.Conn) {
		t.Helper()
		if err := conn.WriteMsg(question("big.test.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	attacker := netip.MustParseAddr("127.0.3.1")
	for range conns {
		conn := dial(t, attacker, addr, 4096)
		for range 20 {
			ask(conn)
		}
	}
	eventually(t, "half of the room to be taken", func() bool { return s.largeRoom.InUse() == maxLargeReplies/2 })
	conn := dial(t, netip.MustParseAddr("127.0.3.2"), addr)
	for range 5 {
		ask(conn)
		if m, err := conn.ReadMsg(); err != nil || len(m.Answer) < 4000 {
			t.Fatalf("another client gets %v, %v", m, err)
		}
	}
	eventually(t, "the others' room to be free again", func() bool { return s.largeRoom.InUse() == maxLargeReplies/2 })
	if !isServed(dial(t, netip.MustParseAddr("127.0.3.3"), addr)) {
		t.Error("a small reply has to wait")
	}
}

// TestLargeRepliesEnd: when the connections are gone, so is what they held. A small reply ends the turns of a connection.
func TestLargeRepliesEnd(t *testing.T) {
	s, addr := start(t, Limits{}, bigNameZone(t))
	conn := dial(t, loopback, addr)
	for i := range 10 {
		name := []string{"big.test.", "big.test.", "by.hand."}[i%3]
		if err := conn.WriteMsg(question(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if m, err := conn.ReadMsg(); err != nil || len(m.Answer) == 0 {
			t.Fatalf("query %d: %v, %v", i, m, err)
		}
	}
	_ = conn.Close()
	eventually(t, "all room to be free", func() bool { return s.largeRoom.InUse() == 0 && s.Usage().Waiting.Used == 0 })
}

// TestLargeStreamReplies: over HTTP, gRPC and QUIC, the second large reply on a connection has room and a place until its stream ends, and
// a small one has none.
func TestLargeStreamReplies(t *testing.T) {
	s, addr := start(t, Limits{}, bigNameZone(t))
	rt := s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes
	conn := new(connActivity)
	for i, c := range []struct {
		name string
		room int
	}{{"big.test.", 0}, {"big.test.", 1}, {"by.hand.", 1}, {"by.hand.", 0}, {"big.test.", 0}} {
		packet, err := question(c.name, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		e := newStreamQuery(s, deadlines{})
		e.x.Proto, e.x.Client, e.conn = resolver.TCP, netip.AddrPortFrom(loopback, 1), conn
		msg := e.answer(rt, packet, e.out)
		var m dns.Msg
		if err := m.Unpack(msg); err != nil || len(m.Answer) == 0 {
			t.Fatalf("query %d: %v", i, err)
		}
		if got, places := s.largeRoom.InUse(), s.Usage().Waiting.Used; got != c.room || places != c.room {
			t.Errorf("query %d for %s: room for %d replies and %d places, want %d", i, c.name, got, places, c.room)
		}
		e.release()
		if got, places := s.largeRoom.InUse(), s.Usage().Waiting.Used; got != 0 || places != 0 {
			t.Errorf("query %d: room for %d replies and %d places are left", i, got, places)
		}
	}
}
