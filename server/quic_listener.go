package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/connlimit"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// maxQUICStreams is how many queries a client may have in flight on one connection, as
	// over HTTP/2. A client that needs more opens another connection.
	maxQUICStreams = 256
	// maxHTTP3UniStreams is how many unidirectional streams an HTTP/3 client may open: its
	// control stream, two of QPACK, and some of reserved types (RFC 9114, 6.2).
	maxHTTP3UniStreams = 8
	// maxStreamQuery limits the size of a query over QUIC. It has one question and the few
	// options of EDNS; padding makes it some hundred bytes (RFC 8467, 4.1).
	maxStreamQuery = 16 << 10
	// quicWindow is how much unread data a stream may have in flight at first, which a query
	// doesn't exceed, and quicConnWindow how much a connection may have: one byte in each of
	// its streams must not stop the others.
	quicWindow, quicConnWindow = 4 << 10, 64 << 10
	// quicConnIDLength is the length of connection IDs. Eight bytes don't collide.
	quicConnIDLength = 8

	// maxHandshakes is how many handshakes an address may have in flight; one client, all of
	// them but an eighth. Each holds some 50 KiB.
	maxHandshakes = 256
	// retryHandshakes is from how many handshakes on new clients have to prove their address
	// first, by a Retry packet, which keeps no state (RFC 9000, 8.1.2).
	retryHandshakes = 32
	// maxHandshakeRate is how many handshakes a second a client may begin, and
	// maxHandshakeBurst how many at once: as many as it may have connections.
	maxHandshakeRate, maxHandshakeBurst = 64, 512

	// quicFlushTime is how long a connection stays open for its last replies to be sent.
	quicFlushTime = 20 * time.Millisecond
)

// quicListener serves DNS over QUIC (RFC 9250) or over HTTP/3 (RFC 8484) at one address. It
// decides which connections are accepted, and how many queries are in flight. Its connections
// end with it: their keys can't be passed to another process.
type quicListener struct {
	l      *listener
	socket *net.UDPConn
	// settings are the limits that the configuration sets.
	settings config.QUICLimits
	// http is nil for DNS over QUIC.
	http  *http3.Server
	doh   dohHandler
	codes *doqCodes

	transport *quic.Transport
	ln        *quic.Listener
	// unproven and proven count handshakes by client: before it has proved its address, so
	// that others can use up its allowance, and after that.
	unproven, proven *ratelimit.Limiter

	requests *streamPlaces

	mu    sync.Mutex
	conns connlimit.Set[*quicConn]
	// handshakes counts those in flight by client.
	handshakes map[netip.Addr]int
	inFlight   int // the sum of handshakes

	stopOnce sync.Once
	hurry    chan struct{} // closed when queries in flight are not waited for
	ended    chan struct{} // closed by shutdown when nothing reads from socket any more
}

// openQUICSocket takes the inherited UDP socket of addr, or binds a new one.
func openQUICSocket(addr netip.AddrPort, inherited inheritedSockets) (*net.UDPConn, error) {
	fd, err := inherited.takeUDP(addr)
	if err == nil && fd < 0 {
		fd, err = socket.OpenUDP(addr)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "udp "+addr.String())
	defer f.Close() // FilePacketConn duplicates the descriptor
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

func newQUICListener(l *listener, socket *net.UDPConn) *quicListener {
	cfg, limits := l.config.Load(), l.s.limits
	q := &quicListener{
		l: l, socket: socket, settings: cfg.QUIC,
		doh: dohHandler{s: l.s, l: l, statuses: countersAt(l.s.httpStatuses, l.addr), maxBody: maxStreamQuery}, codes: countersAt(l.s.doqCodes, l.addr),
		unproven: newHandshakeLimit(&limits), proven: newHandshakeLimit(&limits),
		conns: connlimit.Set[*quicConn]{
			Total: lower(limits.Conns, cfg.QUIC.MaxConns), PerClient: lower(limits.ClientConns, cfg.QUIC.MaxConns), Fair: true,
		},
		requests:   newStreamPlaces(lower(limits.Waiting, cfg.QUIC.Workers)),
		handshakes: make(map[netip.Addr]int),
		hurry:      make(chan struct{}), ended: make(chan struct{}),
	}
	if cfg.Transport == config.DNSOverHTTP3 {
		// q accepts the connections and streams. Clients' mistakes are not worth a log line.
		q.http = &http3.Server{Handler: q, MaxHeaderBytes: maxHTTPHeader, Logger: slog.New(slog.DiscardHandler)}
	}
	return q
}

// lower returns set if it is not zero and below limit, and limit otherwise.
func lower(limit, set int) int {
	if set == 0 {
		return limit
	}
	return min(limit, set)
}

func newHandshakeLimit(limits *Limits) *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Options{Rate: maxHandshakeRate, Burst: maxHandshakeBurst, Client: limits.PodRanges.Client})
}

// start begins to read from the socket.
func (q *quicListener) start() error {
	// quic-go would print a line if the kernel grants less than 7 MiB of socket buffers. Its
	// authors' programs receive files; here a query fits into a packet.
	if err := os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true"); err != nil {
		return err
	}
	q.transport = &quic.Transport{
		Conn: q.socket, ConnectionIDLength: quicConnIDLength,
		VerifySourceAddress: q.needsRetry, ConnContext: q.beginHandshake,
	}
	ln, err := q.transport.Listen(&tls.Config{GetConfigForClient: q.tlsConfig, MinVersion: tls.VersionTLS13}, &quic.Config{GetConfigForClient: q.connConfig})
	if err != nil {
		return fmt.Errorf("listening over QUIC on %s: %w", q.l.addr, err)
	}
	q.ln = ln
	q.l.s.running.Go(q.acceptConns)
	return nil
}

// tlsConfig returns the TLS settings of a new connection.
func (q *quicListener) tlsConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	cfg := q.l.config.Load()
	return cfg.Certificate.tlsConfig(cfg.Transport), nil
}

// connConfig returns the settings of a new connection. There is no 0-RTT: a query in it could
// be replayed (RFC 9250, 4.5).
func (q *quicListener) connConfig(*quic.ClientInfo) (*quic.Config, error) {
	t := q.l.timeouts()
	c := &quic.Config{
		// The whole handshake may take twice this time.
		HandshakeIdleTimeout: t.read / 2, MaxIdleTimeout: t.idle,
		InitialStreamReceiveWindow: quicWindow, MaxStreamReceiveWindow: maxStreamQuery,
		InitialConnectionReceiveWindow: quicConnWindow, MaxConnectionReceiveWindow: quicConnWindow,
		MaxIncomingStreams: int64(lower(maxQUICStreams, q.settings.MaxStreams)), MaxIncomingUniStreams: -1,
		DisablePathMTUDiscovery: true, // most replies fit into the smallest packet
	}
	if q.http != nil {
		c.MaxIncomingUniStreams = maxHTTP3UniStreams
	}
	return c, nil
}

// needsRetry reports whether a client must prove its address before its handshake begins.
func (q *quicListener) needsRetry(addr net.Addr) bool {
	q.mu.Lock()
	many := q.inFlight >= retryHandshakes
	q.mu.Unlock()
	return many || !q.unproven.Allow(addrPort(addr).Addr(), clock.Now())
}

// quicConnKey is the context key of a connection's *quicConn.
type quicConnKey struct{}

// errHandshakes refuses a connection.
var errHandshakes = errors.New("too many handshakes")

// beginHandshake admits a client's handshake. ctx is the connection's.
func (q *quicListener) beginHandshake(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	c := &quicConn{q: q, client: addrPort(info.RemoteAddr)}
	c.share = q.l.s.limits.PodRanges.Client(c.client.Addr())
	q.mu.Lock()
	ok := !q.requests.isDraining() &&
		connlimit.HasShare(q.handshakes[c.share], maxHandshakes-q.inFlight, maxHandshakes) &&
		(!info.AddrVerified || q.proven.Allow(c.client.Addr(), clock.Now()))
	if ok {
		c.handshaking = true
		q.handshakes[c.share]++
		q.inFlight++
	}
	q.mu.Unlock()
	if !ok {
		q.l.s.refused.Add(1)
		return nil, errHandshakes
	}
	c.unwatch = context.AfterFunc(ctx, func() {
		if q.endHandshake(c) {
			q.l.s.handshakesFailed.Add(1)
		}
	})
	return context.WithValue(ctx, quicConnKey{}, c), nil
}

// endHandshake notes that c's handshake has ended. It returns false if that was known.
func (q *quicListener) endHandshake(c *quicConn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.handshaking {
		return false
	}
	c.handshaking = false
	q.inFlight--
	if q.handshakes[c.share]--; q.handshakes[c.share] == 0 {
		delete(q.handshakes, c.share)
	}
	return true
}

// acceptConns accepts and serves connections until the listener is closed.
func (q *quicListener) acceptConns() {
	for n := 0; ; n++ {
		conn, err := q.ln.Accept(context.Background())
		if err != nil {
			return
		}
		c, ok := conn.Context().Value(quicConnKey{}).(*quicConn)
		if !ok {
			continue // beginHandshake has made every connection's context
		}
		c.unwatch()
		q.endHandshake(c)
		c.conn, c.stripe = conn, n
		c.lastQuery.Store(int64(clock.Now()))
		q.serveConn(c)
	}
}

// serveConn serves c if the limits admit it, and closes it otherwise.
func (q *quicListener) serveConn(c *quicConn) {
	s := q.l.s
	q.mu.Lock()
	var victim *quicConn
	var evict bool
	ok := !q.requests.isDraining()
	if ok {
		victim, evict, _, ok = q.conns.Add(c)
	}
	q.mu.Unlock()
	if !ok {
		s.refused.Add(1)
		q.countLimited(c)
		s.running.Go(func() { c.close(quicExcessiveLoad) })
		return
	}
	if evict {
		s.evicted.Add(1)
		q.countLimited(victim)
		s.running.Go(func() { victim.close(quicExcessiveLoad) })
	}
	s.running.Go(c.serve)
}

// countLimited counts for its client that c is closed because of the limits.
func (q *quicListener) countLimited(c *quicConn) {
	q.l.config.Load().Routes.CountClosed(c.stripe, c.client.Addr())
}

// remove removes c, which is closed.
func (q *quicListener) remove(c *quicConn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conns.Remove(c)
}

// connCount returns the number of connections.
func (q *quicListener) connCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.conns.Len()
}

// shutdown accepts no more connections and queries, lets queries in flight finish, at the latest
// until the server stops, and closes all connections. Then nothing reads from the socket, which
// stays open. It blocks until then, and may be called again.
func (q *quicListener) shutdown() {
	q.stopOnce.Do(func() {
		defer close(q.ended)
		q.requests.drain()
		if q.ln == nil {
			return // start has failed, or was not called
		}
		_ = q.ln.Close()
		select {
		case <-q.requests.drained:
			time.Sleep(quicFlushTime)
		case <-q.hurry:
		case <-q.l.s.ctx.Done():
		}
		q.closeConns()
		_ = q.transport.Close()
	})
	<-q.ended
}

// closeConns closes all connections.
func (q *quicListener) closeConns() {
	q.mu.Lock()
	var all []*quicConn
	for c := range q.conns.All() {
		all = append(all, c)
	}
	q.mu.Unlock()
	var closing sync.WaitGroup
	for _, c := range all {
		closing.Go(func() { c.close(quicNoError) })
	}
	closing.Wait()
}

// hasEnded reports whether shutdown has returned.
func (q *quicListener) hasEnded() bool {
	select {
	case <-q.ended:
		return true
	default:
		return false
	}
}

// addrPort returns the address of a UDP client.
func addrPort(addr net.Addr) netip.AddrPort {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
}

// ServeHTTP answers one request over HTTP/3 as one over HTTPS. Its stream has a place among
// those in flight.
func (q *quicListener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(quicConnKey{}).(*quicConn)
	if !ok {
		q.doh.fail(w)
		return
	}
	if !q.doh.admit(w, r, c.client, c.stripe) {
		return
	}
	e := newStreamQuery(q.l.s, http.NewResponseController(w))
	e.x.Proto, e.x.Client, e.x.Stripe, e.x.Encrypted, e.conn = resolver.QUIC, c.client, c.stripe, true, &c.connActivity
	defer e.release()
	defer recoverRequest(q.l.s, w, &q.doh)
	q.doh.serve(e, w, r)
}

func (q *quicListener) count(code quicError) { q.codes[code].Add(1) }
