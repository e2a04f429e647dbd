package upstream

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// transport sends queries to one server over one protocol. Its methods are safe for
// concurrent use with different queries.
type transport interface {
	// start sends the query in q.frame, whose ID it may change, without waiting for the
	// network. The transport owns q until it calls [query.complete], once, from start
	// itself or from another goroutine: with nil for the first reply that q matches, of
	// which q.reply holds q.replyLen bytes; with os.ErrDeadlineExceeded at q.deadline; with
	// ErrClosed after close; with ErrBusy if too many queries are in flight; or with
	// another error if the server can't be asked.
	start(q *query)
	// cancel takes q back without a result. It returns false if q is complete: then it is
	// in q.done or about to be.
	cancel(q *query) bool
	// closeIdle closes the connections whose idle time has expired at now.
	closeIdle(now time.Time)
	// close completes the queries in flight and closes every connection.
	close()
	// reuse returns how many queries used an existing connection, and how many did not.
	reuse() (hits, misses uint64)
}

// protocol is how servers are asked over one transport.
type protocol struct {
	name        string // in traces
	maxInFlight int    // queries to a server, which is also the number of slots of its gate
	datagrams   bool   // UDP or QUIC
	// open returns the transport to a server; nil for plain DNS. It opens no connection.
	open func(target config.Target, to netip.AddrPort, cfg *config.Forward, opts connOptions) transport
}

// protocols is the table of the transports, but for plain DNS over TCP.
var protocols = [...]protocol{
	config.PlainDNS: {name: "udp", maxInFlight: maxInFlightUDP, datagrams: true},
	config.DNSOverTLS: {name: "tls", maxInFlight: plainTCP.maxInFlight, open: func(_ config.Target, to netip.AddrPort, _ *config.Forward, opts connOptions) transport {
		return newStreamTransport(to, opts)
	}},
	config.DNSOverHTTPS: {name: "https", maxInFlight: maxInFlightDoH, open: func(target config.Target, to netip.AddrPort, cfg *config.Forward, opts connOptions) transport {
		return newDoHTransport(target, to, dohOptions{connOptions: opts, method: cfg.DoHMethod})
	}},
	config.DNSOverGRPC: {name: "grpc", maxInFlight: maxInFlightDoH, open: func(target config.Target, to netip.AddrPort, _ *config.Forward, opts connOptions) transport {
		return newGRPCTransport(target, to, opts)
	}},
	config.DNSOverQUIC: {name: "quic", maxInFlight: maxInFlightDoQ, datagrams: true, open: func(_ config.Target, to netip.AddrPort, _ *config.Forward, opts connOptions) transport {
		return newDoQTransport(to, opts)
	}},
}

var plainTCP = protocol{name: "tcp", maxInFlight: maxConns * maxInFlightPerConn}

// protocol returns the protocol of queries over TCP or UDP.
func (s *server) protocol(tcp bool) *protocol {
	if t := s.target.Transport; t != config.PlainDNS || !tcp {
		return &protocols[t]
	}
	return &plainTCP
}

// server is one upstream address.
type server struct {
	target      config.Target // as configured
	addr        netip.AddrPort
	label       string // addr as text, for logs
	readTimeout time.Duration
	cookies     *cookies // nil except for plain DNS
	encrypted   bool     // nobody on the way can read queries
	// udp and tcp are the same if the target has only one transport.
	udp, tcp transport
	// probes has its own sockets: a probe must not wait behind queries to a silent server.
	probes transport
	// closing releases the budget once.
	closing sync.Once
	// removed is closed when the server has left the pool.
	removed chan struct{}

	udpGate, tcpGate *gate   // the same if udp and tcp are
	budget           *budget // of the address; shared with other pools

	passiveHealth
	udpRTT, tcpRTT rtt
	// inFlight counts the queries without a reply yet, probes excluded.
	inFlight atomic.Int32
	// shadowing says that a shadow query is in flight; shadowedAt is when the last one
	// began.
	shadowing  atomic.Bool
	shadowedAt atomic.Int64
	// tcpSilent says that the last repetition over TCP was late. lossy says that the last query that was repeated over TCP was lost:
	// the server limits the rate of replies over UDP, or packets get lost.
	tcpSilent, lossy atomic.Bool

	consecutiveProbeFailures atomic.Uint32 // since the last answered probe
	probing                  atomic.Bool
	probeFailures            atomic.Uint64 // total
	unexpected               atomic.Uint64
	brokenConns              atomic.Uint64 // failed connections
	hedges                   atomic.Uint64 // queries sent because another server was late
	hedgeWins                atomic.Uint64 // hedges that it answered first
	suspectedCount           atomic.Uint64
	unansweredCount          atomic.Uint64 // see [Server.Unanswered]
	durations                durations
}

// newServer opens no connection. If the TLS settings of cfg can't be used, every query to
// the server fails with the reason.
func newServer(target config.Target, to netip.AddrPort, cfg *config.Forward, b *budget) *server {
	s := &server{target: target, addr: to, label: to.String(), readTimeout: cfg.ReadTimeout, budget: b, durations: newDurations(), removed: make(chan struct{})}
	s.tcpGate = newGate(s.protocol(true).maxInFlight)
	s.udpGate = s.tcpGate
	if s.target.Transport == config.PlainDNS {
		s.udpGate = newGate(s.protocol(false).maxInFlight)
	}
	opts := connOptions{
		source: cfg.SourceAddress, expire: cfg.Expire, maxAge: cfg.MaxAge, maxIdle: cfg.MaxIdle,
		unexpected: &s.unexpected, brokenConns: &s.brokenConns, mayResend: b.resend,
	}
	probe := connOptions{source: cfg.SourceAddress, unexpected: &s.unexpected}
	if target.Transport == config.PlainDNS {
		s.initPlainDNS(cfg, opts, probe)
		return s
	}
	if s.encrypted = cfg.UsesTLS(target); s.encrypted {
		secure, err := newTLSConfig(cfg.TLS, cmp.Or(target.ServerName, cfg.ServerName, target.Host))
		if err != nil {
			s.udp = errTransport{err}
			s.tcp, s.probes = s.udp, s.udp
			return s
		}
		opts.tls, probe.tls = secure, secure
	}
	open := s.protocol(true).open
	s.tcp, s.probes = open(target, to, cfg, opts), open(target, to, cfg, probe)
	s.udp = s.tcp
	return s
}

// gateFor returns the gate for a query over TCP or UDP.
func (s *server) gateFor(tcp bool) *gate {
	if tcp {
		return s.tcpGate
	}
	return s.udpGate
}

// displayedRTT returns [Server.RTT].
func (s *server) displayedRTT() time.Duration {
	if t := s.udpRTT.srtt.Load(); t > 0 {
		return time.Duration(t)
	}
	return time.Duration(s.tcpRTT.srtt.Load())
}

// acquireSpare takes a slot and a token for a query to s without which a client can do: a hedge or a copy of its query.
func (s *server) acquireSpare(c share.Client, tcp bool, now time.Time) bool {
	g := s.gateFor(tcp)
	if !g.try(c) {
		return false
	}
	if !s.budget.try(background, now) {
		g.release(c)
		return false
	}
	return true
}

// initPlainDNS sets the transports for unencrypted DNS.
func (s *server) initPlainDNS(cfg *config.Forward, opts, probe connOptions) {
	s.cookies = new(cookies)
	s.udp = newUDPTransport(s.addr, udpOptions{maxInFlight: maxInFlightUDP, maxOpen: maxOpenSockets, expire: cfg.Expire, source: cfg.SourceAddress}, &s.unexpected)
	s.tcp = newStreamTransport(s.addr, opts)
	if cfg.ForceTCP { // UDP may be blocked, which would be the reason for force_tcp
		s.probes = newStreamTransport(s.addr, probe)
		return
	}
	s.probes = newUDPTransport(s.addr, udpOptions{maxInFlight: 1, source: cfg.SourceAddress}, &s.unexpected)
}

// transportFor returns the transport for a query over TCP or UDP, and its measurements.
func (s *server) transportFor(tcp bool) (transport, *rtt) {
	if tcp || s.udp == s.tcp {
		return s.tcp, &s.tcpRTT
	}
	return s.udp, &s.udpRTT
}

// closeIdle closes the connections whose idle time has expired.
func (s *server) closeIdle(now time.Time) {
	s.tcp.closeIdle(now)
	if s.udp != s.tcp {
		s.udp.closeIdle(now)
	}
}

func (s *server) close() {
	s.tcp.close()
	s.probes.close()
	if s.udp != s.tcp {
		s.udp.close()
	}
}

// errTransport is a transport that fails every query with err.
type errTransport struct{ err error }

func (t errTransport) start(q *query)               { q.complete(fmt.Errorf("%w: %w", errConfiguration, t.err)) }
func (t errTransport) cancel(*query) bool           { return false }
func (t errTransport) closeIdle(time.Time)          {}
func (t errTransport) close()                       {}
func (t errTransport) reuse() (hits, misses uint64) { return 0, 0 }

func parseResponse(msg []byte, q *query) (wire.Response, error) {
	r, err := wire.ParseResponse(msg, q.request)
	if err != nil {
		return wire.Response{}, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return r, nil
}

// roundTrip sends q and blocks until the reply, the time until, or the end of ctx.
func roundTrip(ctx context.Context, via transport, q *query, until time.Time) ([]byte, error) {
	q.deadline = until
	via.start(q)
	select {
	case <-q.done:
	case <-ctx.Done():
		if via.cancel(q) {
			return nil, ctx.Err()
		}
		<-q.done
	}
	if q.err != nil {
		return nil, q.err
	}
	return q.reply[:q.replyLen], nil
}
