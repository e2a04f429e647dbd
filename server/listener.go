package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/portholder"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/tentative"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// ListenAddr is where a listener receives queries. Two listeners may have the same address and
// port if QUIC is set for one of them, which has the UDP port, and the other one serves a
// transport over TCP alone. Plain DNS has both ports.
type ListenAddr struct {
	netip.AddrPort
	// QUIC is set for the transports over QUIC, and only for them.
	QUIC bool
}

// ListenerConfig says what one address serves and how clients connect to it. Only
// Routes is required: the rest defaults to plain DNS with the timeouts of [Limits].
// [Server.Listen] can replace all of it. Open connections keep their transport and
// certificate; new routes and timeouts apply to them from the next query on.
type ListenerConfig struct {
	// Routes answers the queries. It is not nil.
	Routes    *resolver.Routes
	Transport config.Transport
	// Certificate is the server certificate. It is ignored for plain DNS and required for
	// every other transport.
	Certificate *Certificate
	// Timeouts override the timeouts of [Limits] where they are not zero.
	Timeouts config.Timeouts
	// QUIC overrides limits of the transports over QUIC where it is not zero.
	QUIC config.QUICLimits
}

// timeouts are the limits of one connection in time and queries.
type timeouts struct {
	idle, read, write time.Duration // as in Limits
	maxQueries        int           // 0 means no limit
}

// timeouts returns l's timeouts, overridden by the ones that t sets.
func (l *Limits) timeouts(t config.Timeouts) timeouts {
	return timeouts{
		idle:       orDefault(t.Idle, l.IdleTimeout),
		read:       orDefault(t.Read, l.ReadTimeout),
		write:      orDefault(t.Write, l.WriteTimeout),
		maxQueries: max(0, t.MaxTCPQueries),
	}
}

// activeConfig is what one address serves now.
type activeConfig struct {
	ListenerConfig
	// kernelPathID identifies this configuration in the kernel; 0 if nothing is copied.
	kernelPathID atomic.Uint32
}

// listener is one listening address: its sockets, and what it serves. Its sockets are
// open from newListener until close; on an error newListener holds none.
type listener struct {
	s        *Server
	addr     ListenAddr
	bound    netip.AddrPort // what the sockets are bound to: addr, or all IPv4 addresses in place of all addresses
	config   atomic.Pointer[activeConfig]
	udp      []udp.Socket // only for plain DNS
	before   int          // UDP sockets of other processes that were there before, such as of an agent that hangs
	tcp      *tcpListener
	https    *httpsServer  // nil except for DNS over HTTPS and gRPC
	quic     *quicListener // nil except for the transports over QUIC, which have neither udp nor tcp
	active   atomic.Int32  // the number of running readers and acceptors
	progress []progress    // of the readers, by their index
}

// newListener opens all sockets of addr. If the kernel still checks whether another host has addr, it waits for that.
// The caller holds s.mu.
func newListener(s *Server, addr ListenAddr, cfg *ListenerConfig) (*listener, error) {
	l, err := openListener(s, addr, cfg)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		if state, waited := tentative.Await(addr.Addr()); waited && state == tentative.Assigned {
			return openListener(s, addr, cfg)
		}
	}
	return l, err
}

func openListener(s *Server, addr ListenAddr, cfg *ListenerConfig) (*listener, error) {
	l := &listener{s: s, addr: addr, bound: socket.BindAddr(addr.AddrPort)}
	l.config.Store(&activeConfig{ListenerConfig: *cfg})
	if cfg.Transport.OverQUIC() {
		socket, err := openQUICSocket(l.bound, s.inherited)
		if err != nil {
			return nil, fmt.Errorf("listening on udp %s: %w", addr, err)
		}
		l.passOver(socket, true)
		l.quic = newQUICListener(l, socket)
		return l, nil
	}
	var err error
	if cfg.Transport == config.PlainDNS {
		l.before = l.countOthers(true)
		o := udp.Options{Readers: s.limits.Readers, Poller: s.limits.Poller, OneByOne: s.limits.oneByOne, Before: l.before}
		if l.udp, err = udp.Open(l.bound, o, func() (int, error) { return s.inherited.takeUDP(l.bound) }); err != nil {
			return nil, fmt.Errorf("listening on udp %s: %w", addr, err)
		}
		l.progress = make([]progress, len(l.udp))
	}
	if l.tcp, err = listenTCP(l.bound, s.limits, s.inherited); err != nil {
		l.close()
		return nil, fmt.Errorf("listening on tcp %s: %w", addr, err)
	}
	l.passOver(l.tcp, false)
	if overHTTP(cfg.Transport) {
		l.https = newHTTPSServer(l)
	}
	return l, nil
}

// countOthers returns the number of sockets of other processes at l's address, 0 if that can't be read.
func (l *listener) countOthers(udp bool) int {
	n, _ := l.s.others.Count(portholder.Port{UDP: udp, AddrPort: l.bound})
	return n
}

// passOver makes the kernel give what arrives at l's address to c, and nothing to the sockets of other processes that were there
// before. Where it refuses, it chooses among them all.
func (l *listener) passOver(c syscall.Conn, udp bool) {
	if n := l.countOthers(udp); n > 0 {
		_ = socket.WithFD(c, func(fd int) error { return socket.Distribute(fd, n, 1) })
	}
}

// ForgetOthers makes the server read packets as usual again where other processes had sockets when it began to listen, and have
// none any more.
func (s *Server) ForgetOthers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		if l.before > 0 && s.suspended.Load() == nil && l.countOthers(true) == 0 {
			l.before = 0
			udp.OthersClosed(l.udp)
		}
	}
}

// start starts the readers and the acceptor.
func (l *listener) start() {
	s := l.s
	if l.quic != nil {
		if err := l.quic.start(); err != nil {
			s.log.Error("DNS over QUIC is not served", "address", l.addr.String(), "err", err)
		}
		return
	}
	if !s.limits.Poller {
		udp.AddProcs(len(l.udp))
	}
	var readers sync.WaitGroup
	l.active.Add(int32(len(l.udp)) + 1)
	for i := range l.udp {
		readers.Add(1)
		s.running.Go(func() {
			defer readers.Done()
			defer l.active.Add(-1)
			newUDPReader(l, i).run()
		})
	}
	s.running.Go(func() {
		readers.Wait()
		if !s.limits.Poller {
			udp.AddProcs(-len(l.udp))
		}
	})
	s.running.Go(func() {
		defer l.active.Add(-1)
		l.acceptConns()
	})
	if l.https != nil {
		s.running.Go(l.https.serve)
	}
}

// stop closes a listener that was started; pending queries are still answered. While the
// server is suspended there are no readers and the HTTPS server has been shut down. The
// UDP sockets then stay open for the replies to pending queries: a socket opened later
// for such a reply could receive packets that are meant for the other process.
func (l *listener) stop() {
	if l.quic != nil {
		l.s.running.Go(l.close)
		return
	}
	if l.s.suspended.Load() != nil {
		l.tcp.close()
		return
	}
	l.close()
	if l.https != nil {
		l.s.running.Go(l.https.shutdown)
	}
}

// close stops listening and reading.
func (l *listener) close() {
	if l.quic != nil {
		l.quic.shutdown()
		_ = l.quic.socket.Close()
	}
	udp.CloseAll(l.udp)
	if l.tcp != nil {
		l.tcp.close()
	}
}

// drain starts to move or close all connections; no new ones are accepted.
func (l *listener) drain() {
	if l.quic != nil {
		l.s.running.Go(l.quic.shutdown)
		return
	}
	if l.isPlainDNS() {
		l.tcp.transferConns(false)
		return
	}
	l.tcp.stopReading()
	if l.https != nil {
		l.s.running.Go(l.https.shutdown)
	}
}

// accepts reports whether l can take over cfg and keep its sockets and connections. The
// timeouts of an HTTP server are fixed when it starts, and so are limits of QUIC. Connections
// without TLS must not outlive a change to TLS.
func (l *listener) accepts(cfg *ListenerConfig) bool {
	old := l.config.Load()
	return old.Transport == cfg.Transport && old.QUIC == cfg.QUIC && (old.Certificate == nil) == (cfg.Certificate == nil) &&
		(!overHTTP(cfg.Transport) || old.Timeouts == cfg.Timeouts)
}

// overHTTP reports whether net/http serves the connections of t.
func overHTTP(t config.Transport) bool { return t == config.DNSOverHTTPS || t == config.DNSOverGRPC }

// timeouts returns the timeouts that apply to l's connections now.
func (l *listener) timeouts() timeouts {
	return l.s.limits.timeouts(l.config.Load().Timeouts)
}

func (l *listener) isPlainDNS() bool { return l.config.Load().Transport == config.PlainDNS }

// stopped reports whether all readers and the acceptor have ended.
func (l *listener) stopped() bool { return l.active.Load() == 0 }

// hasNoConns reports whether l has no connections.
func (l *listener) hasNoConns() bool {
	if l.quic != nil {
		return l.quic.hasEnded() && l.quic.connCount() == 0
	}
	return l.tcp.connCount() == 0
}

// acceptRetryDelay is the delay after a failed accept, so that a process without free file
// descriptors does not spin.
const acceptRetryDelay = 10 * time.Millisecond

// acceptConns accepts and serves connections until the listener is closed or suspended.
func (l *listener) acceptConns() {
	for n := 0; ; n++ {
		conn, err := l.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // closed or suspended
			return
		case err != nil:
			time.Sleep(acceptRetryDelay)
			continue
		}
		v, err := l.newConn(conn.(*net.TCPConn), n)
		if err != nil {
			_ = conn.Close() // already broken
			continue
		}
		l.serveConn(v, conn)
	}
}

// newConn returns the clientConn for conn, which l has accepted. stripe selects the
// counters that the connection uses.
func (l *listener) newConn(conn *net.TCPConn, stripe int) (clientConn, error) {
	if l.https != nil {
		return l.https.newConn(conn, stripe), nil
	}
	return newTCPConn(l, conn, stripe)
}

// serveConn serves v if the limits admit it. Otherwise it closes conn, which is v's
// connection, and returns false.
func (l *listener) serveConn(v clientConn, conn net.Conn) bool {
	evicted, ok := l.tcp.add(v.state())
	if !ok {
		l.s.refused.Add(1)
		l.countLimited(v.state())
		_ = conn.Close()
		return false
	}
	if evicted != nil {
		l.s.evicted.Add(1)
		l.countLimited(evicted)
		if evicted.lost != nil {
			evicted.lost()
		}
	}
	l.s.running.Go(v.serve)
	return true
}

// countLimited counts for its client that c is closed because of the limits.
func (l *listener) countLimited(c *connState) {
	l.config.Load().Routes.CountClosed(c.stripe, c.client.Addr())
}

// overLimit is [Server.overLimit] for a request whose query has not been read.
func (l *listener) overLimit(client netip.AddrPort, stripe int) bool {
	limit := l.s.limits.Client
	if limit == nil || !limit.Covers(resolver.TCP) || limit.Allow(client.Addr(), clock.Now()) {
		return false
	}
	l.config.Load().Routes.CountOverLimit(stripe, client.Addr())
	return true
}

// countRejected counts a stream that has lost its place, or got none, before its query was read.
func (l *listener) countRejected(client netip.AddrPort, stripe, reason int) {
	l.s.shed[reason].Add(1)
	l.config.Load().Routes.CountRejected(stripe, client.Addr())
}

// eachSocket calls add with a function that duplicates it for each of l's sockets, until an error.
func (l *listener) eachSocket(add func(udp bool, file func() (*os.File, error)) error) error {
	if l.quic != nil {
		return add(true, func() (*os.File, error) { return socket.Duplicate(l.quic.socket) })
	}
	err := add(false, func() (*os.File, error) { return socket.Duplicate(l.tcp.TCPListener) })
	for _, p := range l.udp {
		if err == nil {
			err = add(true, p.Duplicate)
		}
	}
	return err
}

// handshake performs the TLS handshake of a connection within the read timeout, and
// counts failures. A client that closes the connection without sending anything, such as
// a port check, is no failure.
func (l *listener) handshake(g *connState, conn *tls.Conn) bool {
	if !l.tcp.setDeadline(g, time.Now().Add(l.timeouts().read)) {
		return false
	}
	err := conn.Handshake()
	switch {
	case err == nil:
		// A client with Nagle's algorithm (RFC 896) holds back its first query until the end of its handshake is acknowledged.
		_ = socket.WithFD(g.conn, func(fd int) error { socket.Acknowledge(fd); return nil }) // only a closed one has none
		return true
	case g.closing.Load():
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.s.cut.Add(1)
		l.s.handshakesFailed.Add(1)
	case !errors.Is(err, io.EOF): // not a port check
		l.s.handshakesFailed.Add(1)
	}
	return false
}
