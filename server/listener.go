package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/tentative"
)

// listener is one listening address: its sockets, and what it serves. Its sockets are
// open from newListener until close; on an error newListener holds none.
type listener struct {
	s        *Server
	addr     ListenAddr
	bound    netip.AddrPort // what the sockets are bound to: addr, or all IPv4 addresses in place of all addresses
	config   atomic.Pointer[activeConfig]
	udp      []udpSocket // only for plain DNS
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
	l := &listener{s: s, addr: addr, bound: bindAddr(addr.AddrPort)}
	l.config.Store(&activeConfig{ListenerConfig: *cfg})
	if cfg.Transport.OverQUIC() {
		socket, err := openQUICSocket(l.bound, s.inherited)
		if err != nil {
			return nil, fmt.Errorf("listening on udp %s: %w", addr, err)
		}
		l.quic = newQUICListener(l, socket)
		return l, nil
	}
	var err error
	if cfg.Transport == config.PlainDNS {
		if l.udp, err = openUDPSockets(l.bound, s.limits, s.inherited); err != nil {
			return nil, fmt.Errorf("listening on udp %s: %w", addr, err)
		}
		l.progress = make([]progress, len(l.udp))
	}
	if l.tcp, err = listenTCP(l.bound, s.limits, s.inherited); err != nil {
		l.close()
		return nil, fmt.Errorf("listening on tcp %s: %w", addr, err)
	}
	if overHTTP(cfg.Transport) {
		l.https = newHTTPSServer(l)
	}
	return l, nil
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
		addProcs(len(l.udp))
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
			addProcs(-len(l.udp))
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
	closeAll(l.udp)
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
