package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
)

// departure is one [Server.Yield], from its beginning to the Resume that ends it.
type departure struct {
	mu sync.Mutex
	// pass is nil when no more connections are passed on: it has failed, or Yield has
	// returned.
	pass func(at netip.AddrPort, conn *net.TCPConn, read []byte) error
}

// take passes c on; false if it stays here. One connection is passed at a time.
func (d *departure) take(c *stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pass == nil {
		return false
	}
	if err := d.pass(c.l.addr, c.conn, c.in[:c.had]); err != nil {
		d.pass = nil
		return false
	}
	return true
}

func (d *departure) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pass = nil
}

// errAway is what is not possible between Yield and Resume.
var errAway = errors.New("the sockets are handed over to another process")

// yieldPoll is how often Yield looks whether all has ended. That happens once in the
// life of an agent, and takes as long as its slowest query: with ten times as much a
// successor would wait for it, with a tenth it would only cost.
const yieldPoll = time.Millisecond

// lenience is how long connections on which queries wait are read on, if they never come
// to rest by themselves: longer than nearly all queries take. With half of it a client
// whose upstream is slow would more often wait behind one query for another; with twice
// as much the end would be put off for no more than a few.
const lenience = time.Second

// Yield stops reading and accepting while another process reads from the same sockets,
// which stay open. Connections over plain TCP are given to pass as they come to rest,
// with the part of a message that was read, one at a time; pass doesn't keep conn, but
// what it duplicates. After an error of pass the rest stays here and is served on. Over
// TLS connections end as they do at [Server.Shutdown]. Yield returns when nothing is
// under way any more, or with ctx's error; it has stopped reading then, in any case, and
// does not call pass any more. What is left goes on until Shutdown.
func (s *Server) Yield(ctx context.Context, pass func(at netip.AddrPort, conn *net.TCPConn, read []byte) error) error {
	d := &departure{pass: pass}
	leaving, err := s.depart(d)
	if err != nil {
		return err
	}
	defer d.end()
	tick := time.NewTicker(yieldPoll)
	defer tick.Stop()
	// Readers and acceptors end within [silence], whatever ctx says: nobody else could
	// tell when they may begin again.
	for !all(leaving, (*listener).still) {
		<-tick.C
	}
	for _, l := range leaving {
		s.seeOff(l)
	}
	return s.linger(ctx, leaving, tick.C)
}

// linger waits until nothing is under way any more, or for the end of ctx. It looks at
// each tick.
func (s *Server) linger(ctx context.Context, leaving []*listener, tick <-chan time.Time) error {
	late := time.NewTimer(lenience)
	defer late.Stop()
	for s.waiting.Used() > 0 || !all(leaving, (*listener).empty) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			for _, l := range leaving {
				if l.plain() {
					l.tcp.move(true)
				}
			}
		case <-tick:
		}
	}
	return nil
}

// depart tells all readers and acceptors to end, and gives their listeners.
func (s *Server) depart(d *departure) ([]*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.away.CompareAndSwap(nil, d) {
		return nil, errAway
	}
	s.closeDoors()
	var leaving []*listener
	for _, l := range s.listeners {
		leaving = append(leaving, l)
		for _, p := range l.udp {
			p.yield()
		}
		_ = l.tcp.SetDeadline(past)
	}
	return leaving, nil
}

// seeOff asks the clients of l to go, who no longer become more.
func (s *Server) seeOff(l *listener) {
	if l.plain() {
		l.tcp.move(false)
		return
	}
	l.tcp.dismissAll()
	if l.hall != nil {
		s.running.Go(l.hall.leave)
	}
}

// Resume goes back to reading and accepting after [Server.Yield], which has returned.
// Connections that were passed on are gone.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away.Swap(nil) == nil {
		return
	}
	for _, l := range s.listeners {
		if l.hall != nil {
			l.hall = s.newHall(l) // the one before is closed for good
		}
		_ = l.tcp.SetDeadline(time.Time{})
		for _, p := range l.udp {
			p.resume()
		}
		steer(l.udp)
		s.start(l)
	}
	s.openDoors()
}

// still reports whether nobody reads packets or accepts connections.
func (l *listener) still() bool { return l.busy.Load() == 0 }

func (l *listener) plain() bool { return l.routes.Load().Door.Transport == config.PlainDNS }

// empty reports whether there are no connections.
func (l *listener) empty() bool {
	l.tcp.mu.Lock()
	defer l.tcp.mu.Unlock()
	return l.tcp.guests.Len() == 0
}

func all(listeners []*listener, holds func(*listener) bool) bool {
	for _, l := range listeners {
		if !holds(l) {
			return false
		}
	}
	return true
}

// move makes all connections move to another process when they come to rest; hasty has
// them come to rest.
func (t *tcpListener) move(hasty bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.guests.All() {
		c.hasty.Store(hasty)
		c.moving.Store(true)
		t.rouse(c)
	}
}

// nudge is called when no query of c waits any more.
func (t *tcpListener) nudge(c *guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rouse(c)
}

// rouse has c's reader come back from reading if c is to move now. The caller holds t.mu.
func (t *tcpListener) rouse(c *guest) {
	if c.goes() && !c.leaving.Load() {
		_ = c.conn.SetReadDeadline(past)
	}
}

// goes reports whether c is to move now. Until then it is read from, since what comes
// behind a query that waits should not wait for it.
func (c *guest) goes() bool {
	return c.moving.Load() && (c.hasty.Load() || c.waiting.Load() == 0)
}

// moves reports whether the connection, whose reader has come back from reading, is to
// be passed on.
func (c *stream) moves() bool {
	return c.moving.Load() && !c.leaving.Load() && !c.over && c.tls == nil
}

// passOn passes the connection on when no query waits; false if it stays here.
func (c *stream) passOn() bool {
	c.out.settle()
	d := c.s.away.Load()
	if d != nil && !c.leaving.Load() && d.take(c) {
		return true
	}
	c.l.tcp.mu.Lock()
	defer c.l.tcp.mu.Unlock()
	if c.s.away.Load() == d { // else there is another one to go with
		c.moving.Store(false)
	}
	return false
}

// goOn has the connection go on here, as if the client had just come.
func (c *stream) goOn() {
	// Whoever tried to pass it on may have had its descriptor from [os.File.Fd].
	_ = c.raw.Control(func(fd uintptr) { _ = unix.SetNonblock(int(fd), true) })
	c.partial, c.until = false, 0
	c.rearm(false)
}
