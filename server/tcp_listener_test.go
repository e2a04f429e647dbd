// These tests use listeners, tcp and conns, which are not exported.

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects the connections of a listener.

// dial opens a connection from an address of the loopback network. buffers are the
// sizes of the kernel's in both directions, if they are given.
func dial(t testing.TB, from netip.Addr, to netip.AddrPort, buffers ...int) *dns.Conn {
	t.Helper()
	d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return socket.Control(c, func(fd int) error {
			for _, size := range buffers {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
			}
			return nil
		})
	}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &dns.Conn{Conn: c}
}

// byHand is a zone that answers by.hand. at once, and all else from an upstream.
func byHand(t testing.TB, to ...netip.AddrPort) *resolver.Zone {
	z := &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Stats: resolver.NewStats()}
	if len(to) > 0 {
		z.Forward = patientPool(t, to...)
	}
	return z
}

// manyAddressesZone is a zone whose name many.test. has 200 addresses, which take 3 KiB.
func manyAddressesZone(t *testing.T) *resolver.Zone {
	lines := make([]string, 200)
	for i := range lines {
		lines[i] = "10.0.0." + itoa(i+1) + " many.test"
	}
	return &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, lines...)}
}

// isServed reports whether the connection answers a query that need not wait.
func isServed(conn *dns.Conn) bool {
	if err := conn.WriteMsg(question("by.hand.", dns.TypeA)); err != nil {
		return false
	}
	m, err := conn.ReadMsg()
	return err == nil && len(m.Answer) == 1
}

// isClosed reports whether the server has closed the connection; it waits for that.
func isClosed(conn *dns.Conn) bool {
	_, err := conn.Conn.Read(make([]byte, 1))
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

// frame is a message as it goes over TCP.
func frame(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return appendFrame(nil, packet)
}

// connections is the number of those the server holds.
func connections(s *Server, addr netip.AddrPort) int {
	l := s.listeners[ListenAddr{AddrPort: addr}].tcp
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns.Len()
}

// TestEviction: with all places taken, the connection that has been silent for
// longest goes; one whose query waits does not.
func TestEviction(t *testing.T) {
	b, asked, release := holdingBackend(t)
	s, addr := start(t, Limits{Conns: 2, ClientConns: 2, IdleTimeout: time.Hour}, byHand(t, b.Addr()))
	first, second := dial(t, loopback, addr), dial(t, loopback, addr)
	if !isServed(second) || !isServed(first) { // so second is the more silent one
		t.Fatal("a connection within the limit is not served")
	}
	third := dial(t, loopback, addr)
	if !isServed(third) {
		t.Error("a new connection is not served")
	}
	if !isClosed(second) {
		t.Error("the connection that was silent for longest is still there")
	}
	if n := s.ConnsEvicted(); n != 1 {
		t.Errorf("%d connections evicted, want one", n)
	}
	for i, conn := range []*dns.Conn{first, third} {
		name := "slow" + itoa(i) + ".test."
		if err := conn.WriteMsg(question(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		<-asked
	}
	if isServed(dial(t, loopback, addr)) {
		t.Error("a connection is served for which one with a query that waits had to go")
	}
	if n := s.ConnsRefused(); n != 1 {
		t.Errorf("%d connections refused, want one", n)
	}
	close(release)
	for _, conn := range []*dns.Conn{first, third} {
		if _, err := conn.ReadMsg(); err != nil {
			t.Errorf("a query that waited: %v", err)
		}
	}
	_ = first.Close()
	eventually(t, "the place to come back", func() bool { return connections(s, addr) == 1 })
	if !isServed(dial(t, loopback, addr)) || !isServed(third) {
		t.Error("there is a place, and the new connection or the old one isn't served")
	}
	if n := s.ConnsEvicted(); n != 1 {
		t.Errorf("%d connections evicted, want still one", n)
	}
}

// TestClientLimit: a client that has all its connections loses its own, and nobody
// else's.
func TestClientLimit(t *testing.T) {
	const own = 4
	s, addr := start(t, Limits{Conns: 64, ClientConns: own, IdleTimeout: time.Hour}, byHand(t))
	other := dial(t, netip.MustParseAddr("127.0.0.2"), addr)
	if !isServed(other) {
		t.Fatal("a connection within the limit is not served")
	}
	conns := make([]*dns.Conn, 3*own)
	for i := range conns {
		conns[i] = dial(t, loopback, addr)
		if !isServed(conns[i]) {
			t.Fatalf("connection %d of a client is not served", i)
		}
	}
	for i, conn := range conns[:2*own] {
		if !isClosed(conn) {
			t.Errorf("connection %d is still there", i)
		}
	}
	for i, conn := range append(conns[2*own:], other) {
		if !isServed(conn) {
			t.Errorf("connection %d is gone", i)
		}
	}
	if n := s.ConnsEvicted(); n != 2*own {
		t.Errorf("%d connections evicted, want %d", n, 2*own)
	}
	if n := connections(s, addr); n != own+1 {
		t.Errorf("%d connections, want %d", n, own+1)
	}
}

// TestManyIdleClients: connections on which nothing happens, of many clients and many times
// what there is room for, keep nobody out.
func TestManyIdleClients(t *testing.T) {
	const places, crowd = 32, 8
	s, addr := start(t, Limits{Conns: places}, byHand(t))
	live := dial(t, netip.MustParseAddr("127.0.1.1"), addr)
	for i := range crowd * places {
		idle := dial(t, netip.AddrFrom4([4]byte{127, 0, 2, byte(i)}), addr)
		if i%2 == 0 {
			_, _ = idle.Conn.Write([]byte{0}) // half of a length
		}
		if i%(places/4) > 0 {
			continue
		}
		// Connections are taken in order, so this one is the last.
		if !isServed(dial(t, netip.MustParseAddr("127.0.1.2"), addr)) {
			t.Fatalf("%d idle connections keep a client out", i)
		}
		if !isServed(live) {
			t.Fatalf("the client that asks lost its connection to %d idle ones", i)
		}
	}
	if n := connections(s, addr); n > places {
		t.Errorf("%d connections, want at most %d", n, places)
	}
	eventually(t, "the connections that were evicted to be closed", func() bool {
		s.listeners[ListenAddr{AddrPort: addr}].tcp.mu.Lock()
		defer s.listeners[ListenAddr{AddrPort: addr}].tcp.mu.Unlock()
		return s.listeners[ListenAddr{AddrPort: addr}].tcp.conns.Clients() <= places
	})
}

// TestSlowSender: a query has to come within its time, however many bytes come in
// the meantime; others are answered.
func TestSlowSender(t *testing.T) {
	s, addr := start(t, Limits{ReadTimeout: 50 * time.Millisecond}, byHand(t))
	conn := dial(t, loopback, addr)
	if !isServed(conn) {
		t.Fatal("not served")
	}
	slow := frame(t, question(strings.Repeat("a-name-that-takes-very-much-longer-than-the-time-there-is.", 4)+"by.hand.", dns.TypeA))
	finished := make(chan bool)
	go func() { finished <- isClosed(conn) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for cut := false; !cut; {
		select {
		case cut = <-finished:
			if !cut {
				t.Fatal("the whole query was waited for")
			}
		case <-tick.C:
			if len(slow) > 0 {
				_, _ = conn.Conn.Write(slow[:1])
				slow = slow[1:]
			}
		}
	}
	eventually(t, "it to be counted", func() bool { return s.ConnsCut() == 1 })
	if !isServed(dial(t, loopback, addr)) {
		t.Error("another client is not served")
	}
}

// TestIdle: a connection ends when it has been silent for its time, or has said
// nothing that is a query.
func TestIdle(t *testing.T) {
	s, addr := start(t, Limits{IdleTimeout: 50 * time.Millisecond}, byHand(t))
	for _, talk := range []func(*dns.Conn) bool{
		func(*dns.Conn) bool { return true },
		isServed,
		func(conn *dns.Conn) bool {
			go func() {
				for err := error(nil); err == nil; {
					_, err = conn.Conn.Write(make([]byte, 1000))
				}
			}()
			return true
		},
	} {
		conn := dial(t, loopback, addr)
		if !talk(conn) {
			t.Error("not served")
		}
		if !isClosed(conn) {
			t.Error("the connection does not end")
		}
	}
	eventually(t, "the places to come back", func() bool { return connections(s, addr) == 0 })
	if n := s.ConnsCut(); n != 0 {
		t.Errorf("%d connections counted as slow", n)
	}
}

// TestShutdownTCP: what is under way is answered, and nobody can put the end off:
// not who is silent, nor who never stops asking.
func TestShutdownTCP(t *testing.T) {
	b, asked, release := holdingBackend(t)
	s, addr := start(t, Limits{}, byHand(t, b.Addr()))
	idle, busy, waiting := dial(t, loopback, addr), dial(t, loopback, addr), dial(t, loopback, addr)
	if !isServed(idle) {
		t.Fatal("not served")
	}
	q := frame(t, question("by.hand.", dns.TypeA))
	go func() {
		for err := error(nil); err == nil; {
			_, err = busy.Conn.Write(q)
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, busy.Conn) }()
	if err := waiting.WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	<-asked
	done := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- s.Shutdown(ctx)
	}()
	if !isClosed(idle) {
		t.Error("a connection on which nothing happens does not end")
	}
	close(release)
	if _, err := waiting.ReadMsg(); err != nil {
		t.Errorf("the query that waited: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestShutdownStuck: who doesn't read can't put the end off either.
func TestShutdownStuck(t *testing.T) {
	s, addr := start(t, Limits{WriteTimeout: time.Hour}, manyAddressesZone(t))
	conn := dial(t, loopback, addr, 32<<10)
	q := frame(t, question("many.test.", dns.TypeA))
	go func() {
		for err := error(nil); err == nil; {
			_, err = conn.Conn.Write(q)
		}
	}()
	eventually(t, "the connection", func() bool { return connections(s, addr) == 1 })
	looks := 0 // in a row that have seen it stuck: once may be for a moment
	eventually(t, "the client to be in the way", func() bool {
		looks++
		if s.unsent.Load() == 0 {
			looks = 0
		}
		return looks > 50
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err == nil {
		t.Error("all replies were written to a client that reads none")
	}
	if n := s.ConnsCut(); n != 0 {
		t.Errorf("%d connections counted as slow", n)
	}
}

// TestSlowReader: a client that doesn't read is not read from, whatever it goes on
// to send, and has lost nothing when it reads at last.
func TestSlowReader(t *testing.T) {
	_, addr := start(t, Limits{WriteTimeout: patience}, manyAddressesZone(t))
	conn := dial(t, loopback, addr, 64<<10)
	q := frame(t, question("many.test.", dns.TypeA))
	// The kernel's buffers, of queries on both sides and of replies, and the server's
	// own hold some hundred KiB together.
	const most = 4 << 20
	sent := 0
	_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)) // after which it is taken to be stuck
	for sent < most {
		n, err := conn.Conn.Write(q[sent%len(q):])
		sent += n
		if err != nil {
			break
		}
	}
	if sent >= most {
		t.Fatalf("%d bytes of queries were read from a client that reads no replies", sent)
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_ = conn.SetWriteDeadline(time.Now().Add(patience))
		_, _ = conn.Conn.Write(q[(sent+len(q)-1)%len(q)+1:])
	}()
	whole := 0
	for i := range (sent + len(q) - 1) / len(q) {
		reply, err := conn.ReadMsgHeader(nil)
		if err != nil || whole > 0 && len(reply) != whole {
			t.Fatalf("reply %d: %d bytes (%v), the one before has %d", i, len(reply), err, whole)
		}
		whole = len(reply)
	}
	<-rest
	if err := conn.Conn.(*net.TCPConn).CloseWrite(); err != nil || !isClosed(conn) {
		t.Errorf("more replies than queries (%v)", err)
	}
}

// TestSlowReaderCut: a client that does not take its replies in time loses its
// connection, and what was held for it.
func TestSlowReaderCut(t *testing.T) {
	s, addr := start(t, Limits{WriteTimeout: 50 * time.Millisecond}, manyAddressesZone(t))
	conn := dial(t, loopback, addr)
	q := frame(t, question("many.test.", dns.TypeA))
	go func() {
		for err := error(nil); err == nil; {
			_, err = conn.Conn.Write(q)
		}
	}()
	eventually(t, "the connection to be cut", func() bool { return s.ConnsCut() == 1 && connections(s, addr) == 0 })
}
