package upstream

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// transport carries queries to one server: the seam for each protocol. Its methods
// are safe for concurrent use, with different calls.
type transport interface {
	// start sends the query in c.frame, whose ID it may change, and begins c's
	// flight. It does not wait for the network. The flight ends once, with
	// [query.complete], from start itself or from another goroutine: with the first
	// reply that c accepts, of which c.reply holds c.got bytes; with
	// os.ErrDeadlineExceeded at c.until; or with any other error when the server
	// can't be asked, ErrClosed after close, ErrBusy if too many are in flight.
	// Until then c belongs to the transport.
	start(c *query)
	// cancel ends c's flight without a result and gives c back at once; false if
	// it has ended, so that c is in c.landed or about to be.
	cancel(c *query) bool
	// closeIdle closes the connections idle for too long at now.
	closeIdle(now time.Time)
	// close ends the flights on their way and closes every connection.
	close()
	// reuse is how often a connection was there already, and how often not.
	reuse() (hits, misses uint64)
}

// server is one upstream.
type server struct {
	target      config.Target // where it comes from
	addr        netip.AddrPort
	label       string // to, as text
	readTimeout time.Duration
	// udp and tcp are the same where the target has one transport only.
	udp, tcp transport
	// probes has sockets of its own: a probe must not wait behind the queries
	// that a silent server holds up.
	probes transport
	// removed is closed when it has left the set.
	removed chan struct{}

	passiveHealth
	udpRTT, tcpRTT rtt
	// inFlight is how many queries it owes an answer, probes not counted.
	inFlight atomic.Int32
	// shadowing is true while a scout is under way, which are begun at scouted.
	shadowing  atomic.Bool
	shadowedAt atomic.Int64

	consecutiveProbeFailures atomic.Uint32 // failed probes since the last reply to one
	probing                  atomic.Bool
	probeFailures            atomic.Uint64 // failed probes ever
	unexpected               atomic.Uint64
	brokenConns              atomic.Uint64 // connections
	hedges                   atomic.Uint64 // queries it got because another server was late
	hedgeWins                atomic.Uint64 // those of them that it answered first
	suspectedCount           atomic.Uint64
	durations                durations
}

// newServer opens no connection yet. Where what cfg says about TLS can't be done,
// every query to the server fails with the reason.
func newServer(target config.Target, to netip.AddrPort, cfg *config.Forward) *server {
	s := &server{target: target, addr: to, label: to.String(), readTimeout: cfg.ReadTimeout, durations: newDurations(), removed: make(chan struct{})}
	opts := streamOptions{
		source: cfg.SourceAddress, expire: cfg.Expire, maxAge: cfg.MaxAge, maxIdle: cfg.MaxIdle,
		unexpected: &s.unexpected, brokenConns: &s.brokenConns,
	}
	probe := streamOptions{source: cfg.SourceAddress, unexpected: &s.unexpected}
	if target.Transport == config.PlainDNS {
		s.initPlainDNS(cfg, opts, probe)
		return s
	}
	secure, err := newTLSConfig(cfg.TLS, cmp.Or(target.ServerName, cfg.ServerName, target.Host))
	if err != nil {
		s.udp = errTransport{err}
		s.tcp, s.probes = s.udp, s.udp
		return s
	}
	opts.tls, probe.tls = secure, secure
	if target.Transport == config.DNSOverHTTPS {
		s.tcp = newDoHTransport(target, to, dohOptions{streamOptions: opts, method: cfg.DoHMethod})
		s.probes = newDoHTransport(target, to, dohOptions{streamOptions: probe, method: cfg.DoHMethod})
	} else {
		s.tcp, s.probes = newStreamTransport(to, opts), newStreamTransport(to, probe)
	}
	s.udp = s.tcp
	return s
}

// initPlainDNS makes the transports of DNS without encryption.
func (s *server) initPlainDNS(cfg *config.Forward, opts, probe streamOptions) {
	s.udp = newUDPTransport(s.addr, udpOptions{maxInFlight: maxInFlightUDP, maxOpen: maxOpenSockets, expire: cfg.Expire, source: cfg.SourceAddress}, &s.unexpected)
	s.tcp = newStreamTransport(s.addr, opts)
	if cfg.ForceTCP { // UDP may be blocked: that would be why it is set
		s.probes = newStreamTransport(s.addr, probe)
		return
	}
	s.probes = newUDPTransport(s.addr, udpOptions{maxInFlight: 1, source: cfg.SourceAddress}, &s.unexpected)
}

// transportFor is how s is asked, and the times that are measured on the way.
func (s *server) transportFor(tcp bool) (transport, *rtt) {
	if tcp || s.udp == s.tcp {
		return s.tcp, &s.tcpRTT
	}
	return s.udp, &s.udpRTT
}

// closeIdle closes what is idle for too long.
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

// errTransport is a transport that can't be.
type errTransport struct{ err error }

func (t errTransport) start(q *query)               { q.complete(t.err) }
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

// roundTrip is one whole flight of c: it blocks until the reply, until, or the end of ctx.
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
