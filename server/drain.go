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

// drain is one [Server.Suspend], from its beginning to the Resume that ends it.
type drain struct {
	mu sync.Mutex
	// transfer is nil when no more connections are passed on: it has failed, or Yield has
	// returned.
	transfer func(at netip.AddrPort, conn *net.TCPConn, read []byte) error
}

// transferConn passes c on; false if it stays here. One connection is passed at a time.
func (d *drain) transferConn(c *tcpConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.transfer == nil {
		return false
	}
	if err := d.transfer(c.l.addr, c.conn, c.readBuf[:c.buffered]); err != nil {
		d.transfer = nil
		return false
	}
	return true
}

func (d *drain) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.transfer = nil
}

// errSuspended is what is not possible between Yield and Resume.
var errSuspended = errors.New("the sockets are handed over to another process")

// drainPollInterval is how often Yield looks whether all has ended. That happens once in the
// life of an agent, and takes as long as its slowest query: with ten times as much a
// successor would wait for it, with a tenth it would only cost.
const drainPollInterval = time.Millisecond

// drainGrace is how long connections on which queries wait are read on, if they never come
// to rest by themselves: longer than nearly all queries take. With half of it a client
// whose upstream is slow would more often wait behind one query for another; with twice
// as much the end would be put off for no more than a few.
const drainGrace = time.Second

// Suspend stops reading and accepting while another process reads from the same sockets,
// which stay open. Connections over plain TCP are given to pass as they come to rest,
// with the part of a message that was read, one at a time; pass doesn't keep conn, but
// what it duplicates. After an error of pass the rest stays here and is served on. Over
// TLS connections end as they do at [Server.Shutdown]. Yield returns when nothing is
// under way any more, or with ctx's error; it has stopped reading then, in any case, and
// does not call pass any more. What is left goes on until Shutdown.
func (s *Server) Suspend(ctx context.Context, pass func(at netip.AddrPort, conn *net.TCPConn, read []byte) error) error {
	d := &drain{transfer: pass}
	leaving, err := s.stopReaders(d)
	if err != nil {
		return err
	}
	defer d.stop()
	tick := time.NewTicker(drainPollInterval)
	defer tick.Stop()
	// Readers and acceptors end within [recvTimeout], whatever ctx says: nobody else could
	// tell when they may begin again.
	for !all(leaving, (*listener).stopped) {
		<-tick.C
	}
	for _, l := range leaving {
		s.drainConns(l)
	}
	return s.waitDrained(ctx, leaving, tick.C)
}

// waitDrained waits until nothing is under way any more, or for the end of ctx. It looks at
// each tick.
func (s *Server) waitDrained(ctx context.Context, leaving []*listener, tick <-chan time.Time) error {
	late := time.NewTimer(drainGrace)
	defer late.Stop()
	for s.waiting.Used() > 0 || !all(leaving, (*listener).hasNoConns) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			for _, l := range leaving {
				if l.isPlainDNS() {
					l.tcp.transferConns(true)
				}
			}
		case <-tick:
		}
	}
	return nil
}

// stopReaders tells all readers and acceptors to end, and gives their listeners.
func (s *Server) stopReaders(d *drain) ([]*listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.CompareAndSwap(nil, d) {
		return nil, errSuspended
	}
	s.closeDoors()
	var leaving []*listener
	for _, l := range s.listeners {
		leaving = append(leaving, l)
		for _, p := range l.udp {
			p.suspend()
		}
		_ = l.tcp.SetDeadline(past)
	}
	return leaving, nil
}

// drainConns asks the clients of l to go, who no longer become more.
func (s *Server) drainConns(l *listener) {
	if l.isPlainDNS() {
		l.tcp.transferConns(false)
		return
	}
	l.tcp.stopReading()
	if l.https != nil {
		s.running.Go(l.https.shutdown)
	}
}

// Resume goes back to reading and accepting after [Server.Suspend], which has returned.
// Connections that were passed on are gone.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Swap(nil) == nil {
		return
	}
	for _, l := range s.listeners {
		if l.https != nil {
			l.https = s.newHTTPSServer(l) // the one before is closed for good
		}
		_ = l.tcp.SetDeadline(time.Time{})
		for _, p := range l.udp {
			p.resume()
		}
		balance(l.udp)
		s.startListener(l)
	}
	s.openDoors()
}

// stopped reports whether nobody reads packets or accepts connections.
func (l *listener) stopped() bool { return l.active.Load() == 0 }

func (l *listener) isPlainDNS() bool { return l.config.Load().Transport == config.PlainDNS }

// hasNoConns reports whether there are no connections.
func (l *listener) hasNoConns() bool {
	l.tcp.mu.Lock()
	defer l.tcp.mu.Unlock()
	return l.tcp.conns.Len() == 0
}

func all(listeners []*listener, holds func(*listener) bool) bool {
	for _, l := range listeners {
		if !holds(l) {
			return false
		}
	}
	return true
}

// transferConns makes all connections move to another process when they come to rest; hasty has
// them come to rest.
func (t *tcpListener) transferConns(hasty bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns.All() {
		c.forced.Store(hasty)
		c.transferring.Store(true)
		t.wakeLocked(c)
	}
}

// wake is called when no query of c waits any more.
func (t *tcpListener) wake(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeLocked(c)
}

// wakeLocked has c's reader come back from reading if c is to move now. The caller holds t.mu.
func (t *tcpListener) wakeLocked(c *connState) {
	if c.shouldTransfer() && !c.closing.Load() {
		_ = c.conn.SetReadDeadline(past)
	}
}

// shouldTransfer reports whether c is to move now. Until then it is read from, since what comes
// behind a query that waits should not wait for it.
func (c *connState) shouldTransfer() bool {
	return c.transferring.Load() && (c.forced.Load() || c.waiting.Load() == 0)
}

// mayTransfer reports whether the connection, whose reader has come back from reading, is to
// be passed on.
func (c *tcpConn) mayTransfer() bool {
	return c.transferring.Load() && !c.closing.Load() && !c.ended && c.tls == nil
}

// transferAway passes the connection on when no query waits; false if it stays here.
func (c *tcpConn) transferAway() bool {
	c.writer.waitIdle()
	d := c.s.suspended.Load()
	if d != nil && !c.closing.Load() && d.transferConn(c) {
		return true
	}
	c.l.tcp.mu.Lock()
	defer c.l.tcp.mu.Unlock()
	if c.s.suspended.Load() == d { // else there is another one to go with
		c.transferring.Store(false)
	}
	return false
}

// keepServing has the connection go on here, as if the client had just come.
func (c *tcpConn) keepServing() {
	// Whoever tried to pass it on may have had its descriptor from [os.File.Fd].
	_ = c.raw.Control(func(fd uintptr) { _ = unix.SetNonblock(int(fd), true) })
	c.partial, c.deadline = false, 0
	c.resetDeadline(false)
}
