// These tests use readBufSize, tcp and listeners, which are not exported.

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects sockets and connections during a hand-over.

// plainConfig returns the configuration of a server that serves z at addr over plain DNS.
func plainConfig(addr netip.AddrPort, z *resolver.Zone) map[ListenAddr]ListenerConfig {
	return map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}
}

// checkServes fails unless queries over both transports are answered, often enough for each
// reader to have had some.
func checkServes(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	for range 20 {
		for _, network := range []string{"udp", "tcp"} {
			if m := query(t, network, addr, question("by.hand.", dns.TypeA)); len(m.Answer) != 1 {
				t.Fatalf("over %s: %v", network, m)
			}
		}
	}
}

// TestSuspendEitherEnds checks that when either of two servers with the same sockets ends,
// the other goes on.
func TestSuspendEitherEnds(t *testing.T) {
	for _, first := range readerKinds {
		for _, second := range readerKinds {
			t.Run(first.name+", "+second.name, func(t *testing.T) {
				z := byHand(t)
				first.limits.oneByOne, second.limits.oneByOne = first.plain, second.plain
				a, addr := startReaders(t, first.limits, first.plain, z)
				b := successor(t, a, second.limits, plainConfig(addr, z))
				checkServes(t, addr)
				shutdown(t, b) // has read, and breaks off
				checkServes(t, addr)
				checkIdle(t, a)
				b = successor(t, a, second.limits, plainConfig(addr, z))
				suspendInto(t, a, b)
				checkServes(t, addr)
				shutdown(t, a)
				checkServes(t, addr)
				checkIdle(t, b)
				shutdown(t, b)
			})
		}
	}
}

// checkIdle fails if a socket of s is readable although nobody asks. A socket that was shut
// down always is.
func checkIdle(t *testing.T, s *Server) {
	t.Helper()
	handles, err := s.SocketFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range handles {
		if err := socket.WithFD(h.File, func(fd int) error {
			n, err := 0, error(unix.EINTR)
			for errors.Is(err, unix.EINTR) {
				n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}, 0)
			}
			if err == nil && n > 0 {
				err = errors.New("there is something to read")
			}
			return err
		}); err != nil {
			t.Errorf("a socket, UDP %v: %v", h.UDP, err)
		}
		_ = h.File.Close()
	}
}

// TestSuspendResume checks that a suspended server serves again when the other one is gone.
func TestSuspendResume(t *testing.T) {
	for _, w := range readerKinds {
		t.Run(w.name, func(t *testing.T) {
			z := byHand(t)
			a, addr := startReaders(t, w.limits, w.plain, z)
			for range 3 {
				b := successor(t, a, readerKinds[0].limits, plainConfig(addr, z))
				suspendInto(t, a, b)
				checkServes(t, addr)
				if err := a.Suspend(t.Context(), nil); !errors.Is(err, errSuspended) {
					t.Errorf("a second Yield: %v", err)
				}
				if err := a.Listen(plainConfig(addr, z)); !errors.Is(err, errSuspended) {
					t.Errorf("Listen in between: %v", err)
				}
				shutdown(t, b)
				a.Resume()
				checkServes(t, addr)
				if err := a.Listen(plainConfig(addr, z)); err != nil {
					t.Errorf("Listen afterwards: %v", err)
				}
			}
		})
	}
}

// TestSocketMadeNonblocking checks that a reader makes its socket blocking again after
// another process has made it non-blocking.
func TestSocketMadeNonblocking(t *testing.T) {
	a, addr := startReaders(t, Limits{Readers: 1}, false, byHand(t))
	p, err := a.listeners[ListenAddr{AddrPort: addr}].udp[0].Duplicate()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	fd := int(p.Fd()) // which makes the socket blocking, as it is
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		return err == nil && flags&unix.O_NONBLOCK == 0
	}
	c := newClient(t, addr)
	for start := time.Now(); !waits(); { // packets that come soon after one another
		if err := c.ask(); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > patience {
			t.Fatal("the socket doesn't wait")
		}
	}
	checkServes(t, addr)
}

// TestSuspendPartialQuery checks that the part of a query that was read is transferred with
// its connection.
func TestSuspendPartialQuery(t *testing.T) {
	z := byHand(t)
	a, addr := startReaders(t, Limits{}, false, z)
	q := question("by.hand.", dns.TypeA)
	q.SetEdns0(1232, false)
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_PADDING{Padding: make([]byte, 3*readBufSize)})
	long := frame(t, q)
	for _, sent := range []int{1, 2, 3, readBufSize - 1, readBufSize, readBufSize + 1, 2 * readBufSize, len(long) - 1} {
		conn := dial(t, loopback, addr)
		if !isServed(conn) {
			t.Fatal("not served")
		}
		if _, err := conn.Conn.Write(long[:sent]); err != nil {
			t.Fatal(err)
		}
		b := successor(t, a, Limits{}, plainConfig(addr, z))
		var read []byte
		eventually(t, "the part of a query to come", func() bool { return allAcked(t, conn.Conn) })
		err := a.Suspend(t.Context(), func(at netip.AddrPort, c *net.TCPConn, part []byte) error {
			read = append(read[:0], part...)
			return adoptInto(b)(at, c, part)
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(read) > sent {
			t.Errorf("%d bytes sent, %d passed on", sent, len(read))
		}
		if _, err := conn.Conn.Write(long[sent:]); err != nil {
			t.Fatal(err)
		}
		if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
			t.Errorf("cut after %d bytes: %v, %v", sent, m, err)
		}
		if !isServed(conn) {
			t.Errorf("cut after %d bytes: not served on", sent)
		}
		_ = conn.Close()
		shutdown(t, b)
		a.Resume()
	}
}

// allAcked reports whether the other side's kernel has all that was written.
func allAcked(t *testing.T, conn net.Conn) bool {
	t.Helper()
	unsent := -1
	if err := socket.WithFD(conn.(*net.TCPConn), func(fd int) (err error) {
		unsent, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return unsent == 0
}

// blockingZone is byHand with an upstream that keeps all queries until they are let go.
func blockingZone(t *testing.T) (z *resolver.Zone, asked chan string, release chan struct{}) {
	t.Helper()
	b, asked, release := holdingBackend(t)
	return byHand(t, b.Addr()), asked, release
}

// TestSuspendPendingQueries checks that pending queries are answered by the server that has
// them, that queries behind them do not wait, and that the connection then moves.
func TestSuspendPendingQueries(t *testing.T) {
	z, asked, release := blockingZone(t)
	a, addr := startReaders(t, Limits{}, false, z)
	conn := dial(t, loopback, addr)
	packets, err := dns.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	for name, c := range map[string]*dns.Conn{"tcp.test.": conn, "udp.test.": packets} {
		if err := c.WriteMsg(question(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		<-asked
	}
	b := successor(t, a, Limits{}, plainConfig(addr, byHand(t)))
	defer func() { shutdown(t, b) }()
	ended := make(chan error, 1)
	go func() { ended <- a.Suspend(context.Background(), adoptInto(b)) }()
	eventually(t, "the connection to be asked to move", func() bool { return transferring(a) })
	if !isServed(conn) {
		t.Error("a query behind one that waits is not answered")
	}
	select {
	case err := <-ended:
		t.Fatalf("Yield has returned %v while a query is under way", err)
	default:
	}
	if openConns(b) > 0 {
		t.Error("the connection has moved with a query under way")
	}
	close(release)
	for _, c := range []*dns.Conn{conn, packets} {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if m, err := c.ReadMsg(); err != nil || len(m.Answer) != 1 {
			t.Errorf("the waiting query got %v, %v", m, err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := openConns(b); n != 1 {
		t.Errorf("%d connections have moved, want 1", n)
	}
	shutdown(t, a)
	if !isServed(conn) {
		t.Error("the connection is not served where it has moved")
	}
}

// transferring reports whether the connections of s are to move.
func transferring(s *Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		l.tcp.mu.Lock()
		defer l.tcp.mu.Unlock()
		for c := range l.tcp.conns.All() {
			if c.transferring.Load() {
				return true
			}
		}
	}
	return false
}

// TestSuspendBusyConn checks that a client that always has pending queries does not hold up
// the hand-over.
func TestSuspendBusyConn(t *testing.T) {
	z := slowZone(t)
	a, addr := startReaders(t, Limits{}, false, z)
	conn := dial(t, loopback, addr)
	if !isServed(conn) {
		t.Fatal("not served")
	}
	b := successor(t, a, Limits{}, plainConfig(addr, z))
	defer func() { shutdown(t, b) }()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- func() error {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := conn.WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
					return err
				}
				if n < 4 {
					continue // so many are always under way
				}
				if m, err := conn.ReadMsg(); err != nil || len(m.Answer) != 1 {
					return errors.Join(err, errors.New("no answer"))
				}
			}
		}()
	}()
	suspendInto(t, a, b)
	if n := openConns(b); n != 1 {
		t.Errorf("%d connections have moved, want 1", n)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSuspendForced checks that when a connection is forced to move, queries behind the
// pending one are answered by the new server.
func TestSuspendForced(t *testing.T) {
	z, asked, release := blockingZone(t)
	a, addr := startReaders(t, Limits{}, false, z)
	conn := dial(t, loopback, addr)
	if err := conn.WriteMsg(question("slow.test.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	<-asked
	there := byHand(t)
	there.Hosts = resolvertest.Hosts(t, true, "192.0.2.10 by.hand")
	b := successor(t, a, Limits{}, plainConfig(addr, there))
	defer func() { shutdown(t, b) }()
	ended := make(chan error, 1)
	go func() { ended <- a.Suspend(context.Background(), adoptInto(b)) }()
	eventually(t, "the connection to be asked to move", func() bool { return transferring(a) })
	a.listeners[ListenAddr{AddrPort: addr}].tcp.transferConns(true)
	if err := conn.WriteMsg(question("by.hand.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	close(release)
	for _, want := range []string{"192.0.2.1", "192.0.2.10"} {
		m, err := conn.ReadMsg()
		if err != nil || len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Fatalf("got %v, %v, want %s", m, err, want)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSuspendTransferFails checks that connections that cannot be transferred, or are left
// when ctx ends, are served on.
func TestSuspendTransferFails(t *testing.T) {
	a, addr := startReaders(t, Limits{}, false, byHand(t))
	conns := []*dns.Conn{dial(t, loopback, addr), dial(t, loopback, addr)}
	for _, c := range conns {
		if !isServed(c) {
			t.Fatal("not served")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	var tried *net.TCPConn
	err := a.Suspend(ctx, func(_ netip.AddrPort, c *net.TCPConn, _ []byte) error {
		calls++
		tried = c
		if f, err := c.File(); err == nil {
			_ = f.Fd() // makes the connection wait
			_ = f.Close()
		}
		cancel()
		return errors.New("nobody there")
	})
	if !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("Yield: %v after %d calls, want its context's error after one", err, calls)
	}
	for _, c := range conns {
		if !isServed(c) {
			t.Error("a connection that stays is not served")
		}
	}
	if err := socket.WithFD(tried, func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_NONBLOCK == 0 {
			err = errors.New("reading from it waits, and holds up others")
		}
		return err
	}); err != nil {
		t.Errorf("the connection that was tried: %v", err)
	}
	a.Resume()
	for _, c := range conns {
		if !isServed(c) {
			t.Error("a connection that has stayed is not served")
		}
	}
	checkServes(t, addr)
}

// TestSuspendTLS checks that idle connections over TLS and HTTPS are closed properly, and
// that clients can connect again after Resume.
func TestSuspendTLS(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS} {
		t.Run(via.String(), func(t *testing.T) {
			a, addr, roots := startListener(t, Limits{}, ListenerConfig{Transport: via}, byHand(t))
			cfg := &tls.Config{RootCAs: roots}
			for range 3 {
				conn := openTLS(t, addr, roots)
				if via == config.DNSOverTLS {
					if err := askOver(conn); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.Suspend(t.Context(), nil); err != nil {
					t.Errorf("yield: %v", err)
				}
				if _, err := conn.Read(make([]byte, 1)); via == config.DNSOverTLS && !errors.Is(err, io.EOF) {
					t.Errorf("the connection ends with %v, want EOF", err)
				}
				if !isClosed(conn) {
					t.Error("the connection is open")
				}
				a.Resume()
				if err := askOnce(t, via, addr, cfg); err != nil {
					t.Errorf("after Resume: %v", err)
				}
			}
		})
	}
}
