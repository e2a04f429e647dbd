// These tests use tcp, inherited and listeners, which are not exported.

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/test/soak"
	"github.com/nodens-dns/nodens/upstream"
)

// Inside the package: it inspects sockets and connections.

// successor starts a server on the sockets of old. It reads at once.
func successor(t *testing.T, old *Server, limits Limits, routes map[ListenAddr]ListenerConfig) *Server {
	t.Helper()
	next := New(slog.New(slog.DiscardHandler), limits)
	handles, err := old.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	next.SetInherited(handles)
	if err := next.Listen(routes); err != nil {
		t.Fatal(err)
	}
	return next
}

// adoptInto returns a function that transfers connections to s.
func adoptInto(s *Server) func(netip.AddrPort, *net.TCPConn, []byte) error {
	return func(at netip.AddrPort, conn *net.TCPConn, read []byte) error {
		f, err := conn.File()
		if err != nil {
			return err
		}
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			return err
		}
		if !s.AdoptConn(at, c.(*net.TCPConn), read) {
			return errors.New("not admitted")
		}
		return nil
	}
}

// suspendInto suspends s, which transfers its connections to next.
func suspendInto(t *testing.T, s, next *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Suspend(ctx, adoptInto(next)); err != nil {
		t.Errorf("yield: %v", err)
	}
}

// openConns returns the number of s's connections.
func openConns(s *Server) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		l.tcp.mu.Lock()
		n += l.tcp.conns.Len()
		l.tcp.mu.Unlock()
	}
	return n
}

// slowZone is a zone that answers by.hand. at once, and all else from an upstream after some
// milliseconds, so that queries are under way at any time.
func slowZone(t *testing.T) *resolver.Zone { return slowZoneAt(t, slowUpstream(t)) }

func slowZoneAt(t *testing.T, addr netip.AddrPort) *resolver.Zone {
	t.Helper()
	p := upstream.New(&config.Forward{
		From: wire.Root, To: []config.Target{{Addr: addr}}, PreferUDP: true,
		ReadTimeout: 2 * time.Second, HealthInterval: time.Second, HealthDomain: wire.Root,
	}, upstream.Options{})
	t.Cleanup(func() { _ = p.Close() })
	z := byHand(t)
	z.Forward = []*upstream.Pool{p}
	return z
}

// slowUpstream answers after some milliseconds.
func slowUpstream(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	reply := resolvertest.Address("192.0.2.1")
	go func() {
		for buf := make([]byte, 512); ; {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			q := new(dns.Msg)
			if err != nil || q.Unpack(buf[:n]) != nil {
				return
			}
			packet, err := reply(q).Pack()
			if err != nil {
				return
			}
			time.AfterFunc(5*time.Millisecond, func() { _, _ = conn.WriteToUDPAddrPort(packet, from) })
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestTransferChain checks that servers of every kind take over from each other under load,
// and that each query is answered once, over connections that last.
func TestTransferChain(t *testing.T) {
	for _, from := range readerKinds {
		for _, next := range readerKinds {
			if from.plain != next.plain && (from.limits.Poller || next.limits.Poller) {
				continue
			}
			t.Run(from.name+" to "+next.name, func(t *testing.T) {
				z := slowZone(t)
				s, addr := startReaders(t, from.limits, from.plain, z)
				routes := map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}
				kinds := []Limits{next.limits, from.limits}
				kinds[0].oneByOne, kinds[1].oneByOne = next.plain, from.plain
				f := startFlood(t, addr, 4, 2)
				for turn := range soak.Choose(2, 4) {
					awaitCount(t, f.answered.Load, 300)
					n := successor(t, s, kinds[turn%2], routes)
					awaitCount(t, f.answered.Load, 100)
					suspendInto(t, s, n)
					awaitCount(t, f.answered.Load, 100)
					shutdown(t, s)
					if s = n; openConns(s) != 2 {
						t.Errorf("turn %d: %d connections, want 2", turn, openConns(s))
					}
					if list := socketsAt(t, addr); len(list) != 5 {
						t.Errorf("turn %d: sockets %q, want two for packets, a listener and two connections", turn, list)
					}
				}
				f.stopAndCheck()
				shutdown(t, s)
			})
		}
	}
}

// descriptorsAt returns the descriptors of this process's sockets that have the local address.
func descriptorsAt(t *testing.T, addr netip.AddrPort) (fds []int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		at, err := unix.Getsockname(fd)
		if err == nil && (socketKey{addr: addr}).hasAddr(at) {
			fds = append(fds, fd)
		}
	}
	return fds
}

// socketsAt describes this process's sockets that have the address, including the server's ends
// of connections.
func socketsAt(t *testing.T, addr netip.AddrPort) (found []string) {
	t.Helper()
	for _, fd := range descriptorsAt(t, addr) {
		kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		what := map[int]string{unix.SOCK_DGRAM: "udp", unix.SOCK_STREAM: "tcp"}[kind]
		if peer, err := unix.Getpeername(fd); err == nil {
			what += fmt.Sprintf(" from port %d", peer.(*unix.SockaddrInet4).Port)
		}
		found = append(found, what)
	}
	return found
}

// TestTransferBackAndForth checks twenty hand-overs between two servers under load.
func TestTransferBackAndForth(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			z := slowZone(t)
			a, addr := startReaders(t, w.limits, w.plain, z)
			other := readerKinds[0].limits
			b := successor(t, a, other, map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}})
			defer func() { shutdown(t, b) }()
			f := startFlood(t, addr, 4, 2)
			suspendInto(t, a, b)
			for range soak.Choose(3, 10) {
				awaitCount(t, f.answered.Load, 100)
				a.Resume()
				suspendInto(t, b, a)
				awaitCount(t, f.answered.Load, 100)
				b.Resume()
				suspendInto(t, a, b)
			}
			f.stopAndCheck()
		})
	}
}

// TestTransferOneQuestion checks that no connection for one question ends without a reply, however
// hand-overs meet it: before it is accepted, before its query arrives, or while its query waits.
func TestTransferOneQuestion(t *testing.T) {
	z := slowZone(t)
	a, addr := startReaders(t, readerKinds[0].limits, readerKinds[0].plain, z)
	b := successor(t, a, readerKinds[0].limits, map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}})
	defer func() { shutdown(t, b) }()
	var (
		stop     = make(chan struct{})
		clients  sync.WaitGroup
		answered atomic.Uint64
	)
	ask := func(name string) error {
		conn, err := net.Dial("tcp4", addr.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		c := &dns.Conn{Conn: conn}
		if err := c.WriteMsg(question(name, dns.TypeA)); err != nil {
			return err
		}
		_, err = c.ReadMsg()
		return err
	}
	for i := range 8 {
		name := "by.hand."
		if i%4 == 0 {
			name = "forwarded.test."
		}
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := ask(name); err != nil {
					t.Errorf("%s after %d replies: %v", name, answered.Load(), err)
				}
				answered.Add(1)
			}
		})
	}
	suspendInto(t, a, b)
	for range soak.Choose(20, 1000) {
		awaitCount(t, answered.Load, 50)
		a.Resume()
		suspendInto(t, b, a)
		awaitCount(t, answered.Load, 50)
		b.Resume()
		suspendInto(t, a, b)
	}
	close(stop)
	clients.Wait()
}

// TestSetInherited checks that a server takes the inherited sockets that match their
// description, closes the others, and has the configured number of readers.
func TestSetInherited(t *testing.T) {
	z := byHand(t)
	a, addr := startReaders(t, Limits{Readers: 2}, false, z)
	_, other := startReaders(t, Limits{Readers: 1}, false, z)
	files := openFDs(t)
	elsewhere, err := a.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	for i := range elsewhere {
		elsewhere[i].Addr = netip.AddrPortFrom(loopback, other.Port())
	}
	handles, err := a.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := a.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	for i := range swapped {
		swapped[i].UDP = !swapped[i].UDP
	}
	for _, more := range []int{1, 2, 4} {
		b := New(a.log, Limits{Readers: more})
		b.SetInherited(swapped)
		b.SetInherited(elsewhere)
		b.SetInherited(handles)
		swapped, elsewhere = nil, nil
		if err := b.Listen(plainConfig(addr, z)); err != nil {
			t.Fatal(err)
		}
		if n := len(b.listeners[ListenAddr{AddrPort: addr}].udp); n != max(2, more) {
			t.Errorf("%d readers, want %d of which 2 are adopted", n, more)
		}
		checkServes(t, addr)
		for _, h := range handles {
			if _, err := h.File.Stat(); err == nil {
				t.Error("a file that was handed down is open")
			}
		}
		if handles, err = a.SocketFiles(); err != nil {
			t.Fatal(err)
		}
		shutdown(t, b)
		checkServes(t, addr)
	}
	for _, h := range handles {
		_ = h.File.Close()
	}
	eventually(t, "all files to be closed", func() bool { return openFDs(t) <= files })
}

// TestAdoptConn checks that a transferred connection is served and limited as any other.
func TestAdoptConn(t *testing.T) {
	s, addr := startReaders(t, Limits{Conns: 1}, false, byHand(t))
	whole := frame(t, question("by.hand.", dns.TypeA))
	for _, tt := range []struct {
		name  string
		at    netip.AddrPort
		read  []byte
		admit bool
		got   int // replies at once
	}{
		{"nothing read", addr, nil, true, 0},
		{"a whole query", addr, whole, true, 1},
		{"two and a half", addr, append(append(append([]byte(nil), whole...), whole...), whole[:9]...), true, 2},
		{"nobody there", netip.AddrPortFrom(loopback, addr.Port()+1), nil, false, 0},
		{"more than a message", addr, make([]byte, lengthPrefix+65536), false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, conn := connPair(t)
			if s.AdoptConn(tt.at, conn, tt.read) != tt.admit {
				t.Fatalf("admitted: %v", !tt.admit)
			}
			for range tt.got {
				if m, err := client.ReadMsg(); err != nil || len(m.Answer) != 1 {
					t.Fatalf("got %v, %v", m, err)
				}
			}
			if !tt.admit {
				if !isClosed(client) {
					t.Error("the connection is open")
				}
				return
			}
			if rest := len(tt.read) % len(whole); rest > 0 {
				if _, err := client.Conn.Write(whole[rest:]); err != nil {
					t.Fatal(err)
				}
				if m, err := client.ReadMsg(); err != nil || len(m.Answer) != 1 {
					t.Fatalf("the rest: got %v, %v", m, err)
				}
			}
			if !isServed(client) {
				t.Error("not served")
			}
			if n := openConns(s); n > 1 {
				t.Errorf("%d connections, more than the limit", n)
			}
		})
	}
}

// connPair are the two ends of a connection that no server has accepted.
func connPair(t *testing.T) (client *dns.Conn, server *net.TCPConn) {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client = dial(t, loopback, ln.Addr().(*net.TCPAddr).AddrPort())
	if server, err = ln.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	return client, server
}
