package upstream

import (
	"context"
	"errors"
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
	// can't be asked, ErrClosed after close, errBusy if too many are in flight.
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
	to          netip.AddrPort
	name        string // to, as text
	readTimeout time.Duration
	udp, tcp    transport
	// probes has sockets of its own: a probe must not wait behind the queries
	// that a silent server holds up.
	probes transport

	fails     atomic.Uint32 // failed probes since the last reply to one
	probing   atomic.Bool
	failures  atomic.Uint64 // failed probes ever
	strays    atomic.Uint64
	durations durations
}

func newServer(to netip.AddrPort, cfg *config.Forward, stop context.Context) *server {
	s := &server{to: to, name: to.String(), readTimeout: cfg.ReadTimeout, durations: newDurations()}
	s.udp = newUDP(to, ports{busy: maxBusyUDP, open: maxPorts, expire: cfg.Expire}, &s.strays)
	s.tcp = newStream(to, streamOptions{expire: cfg.Expire, strays: &s.strays})
	s.probes = newUDP(to, ports{busy: 1}, &s.strays)
	if cfg.ForceTCP { // UDP may be blocked: that would be why it is set
		s.probes = newStream(to, streamOptions{strays: &s.strays})
	}
	return s
}

func (s *server) close() {
	s.udp.close()
	s.tcp.close()
	s.probes.close()
}

// ask asks s for c's query over the protocol c says.
func (s *server) ask(ctx context.Context, c *call, now time.Time) (wire.Response, error) {
	defer func() {
		s.strays.Add(c.strays)
		c.strays = 0
	}()
	via := s.udp
	if c.tcp {
		via = s.tcp
	}
	msg, err := s.fetch(ctx, c, via, now)
	if err != nil {
		return wire.Response{}, err
	}
	if c.tcp || !cut(msg) {
		return parse(msg, c)
	}
	// Half an answer can't be cached. The client gets it only if TCP fails, and
	// may have more luck there itself. What is cut inside a record is no answer.
	short, shortErr := parse(msg, c)
	if msg, err = s.fetch(ctx, c, s.tcp, time.Now()); err != nil {
		if shortErr == nil && ctx.Err() == nil {
			return short, nil
		}
		return wire.Response{}, err
	}
	return parse(msg, c)
}

func parse(msg []byte, c *call) (wire.Response, error) {
	r, err := wire.ParseResponse(msg, c.query)
	if err != nil {
		return wire.Response{}, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return r, nil
}

// fetch sends the query over one transport, a second time without EDNS if the
// server can't read that. Every round has the read timeout, within the deadline.
func (s *server) fetch(ctx context.Context, c *call, via transport, now time.Time) ([]byte, error) {
	c.build(true)
	msg, err := s.round(ctx, c, via, now)
	if err != nil || !lacksEDNS(msg) {
		return msg, err
	}
	c.build(false)
	return s.round(ctx, c, via, time.Now())
}

func (s *server) round(ctx context.Context, c *call, via transport, now time.Time) ([]byte, error) {
	until := now.Add(s.readTimeout)
	if c.deadline.Before(until) {
		until = c.deadline
	}
	msg, err := fly(ctx, via, c, until)
	switch {
	case err == nil:
		return msg, nil
	case errors.Is(err, ErrClosed):
		return nil, err
	case timedOut(err):
		return nil, ErrTimeout
	}
	return nil, fmt.Errorf("%w: %w", ErrFailed, err)
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
