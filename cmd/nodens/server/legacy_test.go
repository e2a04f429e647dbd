package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// heir starts a server on what old listens with. It reads as soon as it listens.
func heir(t *testing.T, old *Server, limits Limits, routes map[netip.AddrPort]*Routes) *Server {
	t.Helper()
	next := New(slog.New(slog.DiscardHandler), limits)
	handles, err := old.Handles()
	if err != nil {
		t.Fatal(err)
	}
	next.Adopt(handles)
	if err := next.Listen(routes); err != nil {
		t.Fatal(err)
	}
	return next
}

// to passes connections to s.
func to(s *Server) func(netip.AddrPort, *net.TCPConn, []byte) error {
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
		if !s.Admit(at, c.(*net.TCPConn), read) {
			return errors.New("not admitted")
		}
		return nil
	}
}

// yield has s give way to next, which takes its connections.
func yield(t *testing.T, s, next *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Yield(ctx, to(next)); err != nil {
		t.Errorf("yield: %v", err)
	}
}

// open are the connections of s.
func open(s *Server) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		l.tcp.mu.Lock()
		n += len(l.tcp.guests)
		l.tcp.mu.Unlock()
	}
	return n
}

// slowly is a zone that answers by.hand. at once, and all else from an upstream after some
// milliseconds, so that queries are under way at any time.
func slowly(t *testing.T) *Zone { return slowlyOf(t, slow(t)) }

func slowlyOf(t *testing.T, addr netip.AddrPort) *Zone {
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

// slow is that upstream.
func slow(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	reply := addressed("192.0.2.1")
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

// TestLegacyChain: one server after the other takes over under load, of any kind, and
// each query is answered once, over connections that last.
func TestLegacyChain(t *testing.T) {
	for _, from := range ways {
		for _, next := range ways {
			if from.plain != next.plain && (from.limits.Polled || next.limits.Polled) {
				continue
			}
			t.Run(from.name+" to "+next.name, func(t *testing.T) {
				z := slowly(t)
				s, addr := startWith(t, from.limits, from.plain, z)
				routes := map[netip.AddrPort]*Routes{addr: NewRoutes([]*Zone{z}, NewStats())}
				kinds := []Limits{next.limits, from.limits}
				kinds[0].plain, kinds[1].plain = next.plain, from.plain
				f := startFlood(t, addr, 4, 2)
				for turn := range 4 {
					await(t, f.answered.Load, 300)
					n := heir(t, s, kinds[turn%2], routes)
					await(t, f.answered.Load, 100)
					yield(t, s, n)
					await(t, f.answered.Load, 100)
					shutdown(t, s)
					if s = n; open(s) != 2 {
						t.Errorf("turn %d: %d connections, want 2", turn, open(s))
					}
					if n := socketsAt(t, addr); n != 5 {
						t.Errorf("turn %d: %d sockets, want two for packets, a listener and two connections", turn, n)
					}
				}
				f.end()
				shutdown(t, s)
			})
		}
	}
}

// socketsAt is how many of this process's sockets have the address, connections of servers
// included.
func socketsAt(t *testing.T, addr netip.AddrPort) (n int) {
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
		if at, err := unix.Getsockname(fd); err == nil && (seat{addr: addr}).at(at) {
			n++
		}
	}
	return n
}

// TestLegacyBackAndForth: two servers give way to each other, twenty times.
func TestLegacyBackAndForth(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			z := slowly(t)
			a, addr := startWith(t, w.limits, w.plain, z)
			other := ways[0].limits
			b := heir(t, a, other, map[netip.AddrPort]*Routes{addr: NewRoutes([]*Zone{z}, NewStats())})
			defer func() { shutdown(t, b) }()
			f := startFlood(t, addr, 4, 2)
			yield(t, a, b)
			for range 10 {
				await(t, f.answered.Load, 100)
				a.Resume()
				yield(t, b, a)
				await(t, f.answered.Load, 100)
				b.Resume()
				yield(t, a, b)
			}
			f.end()
		})
	}
}
