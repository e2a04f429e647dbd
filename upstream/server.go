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
	// [call.land], from start itself or from another goroutine: with the first
	// reply that c accepts, of which c.reply holds c.got bytes; with
	// os.ErrDeadlineExceeded at c.until; or with any other error when the server
	// can't be asked, ErrClosed after close, ErrBusy if too many are in flight.
	// Until then c belongs to the transport.
	start(c *call)
	// withdraw ends c's flight without a result and gives c back at once; false if
	// it has ended, so that c is in c.landed or about to be.
	withdraw(c *call) bool
	// sweep closes the connections idle for too long at now.
	sweep(now time.Time)
	// close ends the flights on their way and closes every connection.
	close()
	// reuse is how often a connection was there already, and how often not.
	reuse() (hits, misses uint64)
}

// server is one upstream.
type server struct {
	target      config.Target // where it comes from
	to          netip.AddrPort
	name        string // to, as text
	readTimeout time.Duration
	// udp and tcp are the same where the target has one transport only.
	udp, tcp transport
	// probes has sockets of its own: a probe must not wait behind the queries
	// that a silent server holds up.
	probes transport
	// gone is closed when it has left the set.
	gone chan struct{}

	trust
	overUDP, overTCP rtt
	// flying is how many queries it owes an answer, probes not counted.
	flying atomic.Int32
	// scouting is true while a scout is under way, which are begun at scouted.
	scouting atomic.Bool
	scouted  atomic.Int64

	fails     atomic.Uint32 // failed probes since the last reply to one
	probing   atomic.Bool
	failures  atomic.Uint64 // failed probes ever
	strays    atomic.Uint64
	broken    atomic.Uint64 // connections
	hedges    atomic.Uint64 // queries it got because another server was late
	wins      atomic.Uint64 // those of them that it answered first
	doubts    atomic.Uint64
	durations durations
}

// newServer opens no connection yet. Where what cfg says about TLS can't be done,
// every query to the server fails with the reason.
func newServer(target config.Target, to netip.AddrPort, cfg *config.Forward) *server {
	s := &server{target: target, to: to, name: to.String(), readTimeout: cfg.ReadTimeout, durations: newDurations(), gone: make(chan struct{})}
	opts := streamOptions{
		source: cfg.SourceAddress, expire: cfg.Expire, maxAge: cfg.MaxAge, maxIdle: cfg.MaxIdle,
		strays: &s.strays, broken: &s.broken,
	}
	probe := streamOptions{source: cfg.SourceAddress, strays: &s.strays}
	if target.Transport == config.PlainDNS {
		s.plain(cfg, opts, probe)
		return s
	}
	secure, err := tlsConfig(cfg.TLS, cmp.Or(target.ServerName, cfg.ServerName, target.Host))
	if err != nil {
		s.udp = unusable{err}
		s.tcp, s.probes = s.udp, s.udp
		return s
	}
	opts.tls, probe.tls = secure, secure
	if target.Transport == config.DNSOverHTTPS {
		s.tcp = newDoH(target, to, dohOptions{streamOptions: opts, method: cfg.DoHMethod})
		s.probes = newDoH(target, to, dohOptions{streamOptions: probe, method: cfg.DoHMethod})
	} else {
		s.tcp, s.probes = newStream(to, opts), newStream(to, probe)
	}
	s.udp = s.tcp
	return s
}

// plain makes the transports of DNS without encryption.
func (s *server) plain(cfg *config.Forward, opts, probe streamOptions) {
	s.udp = newUDP(s.to, ports{busy: maxBusyUDP, open: maxPorts, expire: cfg.Expire, source: cfg.SourceAddress}, &s.strays)
	s.tcp = newStream(s.to, opts)
	if cfg.ForceTCP { // UDP may be blocked: that would be why it is set
		s.probes = newStream(s.to, probe)
		return
	}
	s.probes = newUDP(s.to, ports{busy: 1, source: cfg.SourceAddress}, &s.strays)
}

// route is how s is asked, and the times that are measured on the way.
func (s *server) route(tcp bool) (transport, *rtt) {
	if tcp || s.udp == s.tcp {
		return s.tcp, &s.overTCP
	}
	return s.udp, &s.overUDP
}

// sweep closes what is idle for too long.
func (s *server) sweep(now time.Time) {
	s.tcp.sweep(now)
	if s.udp != s.tcp {
		s.udp.sweep(now)
	}
}

func (s *server) close() {
	s.tcp.close()
	s.probes.close()
	if s.udp != s.tcp {
		s.udp.close()
	}
}

// unusable is a transport that can't be.
type unusable struct{ err error }

func (t unusable) start(c *call)                { c.land(t.err) }
func (t unusable) withdraw(*call) bool          { return false }
func (t unusable) sweep(time.Time)              {}
func (t unusable) close()                       {}
func (t unusable) reuse() (hits, misses uint64) { return 0, 0 }

func parse(msg []byte, c *call) (wire.Response, error) {
	r, err := wire.ParseResponse(msg, c.query)
	if err != nil {
		return wire.Response{}, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return r, nil
}

// fly is one whole flight of c: it blocks until the reply, until, or the end of ctx.
func fly(ctx context.Context, via transport, c *call, until time.Time) ([]byte, error) {
	c.until = until
	via.start(c)
	select {
	case <-c.landed:
	case <-ctx.Done():
		if via.withdraw(c) {
			return nil, ctx.Err()
		}
		<-c.landed
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.reply[:c.got], nil
}
