package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/connlimit"
)

// tcpBufferSize is asked for in both directions of a connection, so that the kernel
// neither holds megabytes for a client that doesn't read nor takes them from one
// that isn't read from. The kernel doubles it for its own accounting; it then
// holds one reply of the largest size, or some hundred of the usual ones. Half of
// it would make the largest reply wait for the client; twice as much is what a
// thousand connections should not be able to take.
const tcpBufferSize = 64 << 10

// connState is a connection as its listener knows it.
type connState struct {
	conn   *net.TCPConn
	client netip.AddrPort
	lane   int
	// hijacked says that the connection is in other hands, and is closed when it has to
	// go. Those who have it see to its end when the listener is closed. The listener's
	// lock is for this, too.
	hijacked bool
	// lastQuery is when the last query came, or else the connection, by package clock.
	lastQuery atomic.Int64
	// waiting is the number of queries that wait.
	waiting atomic.Int32
	// closing is set, under the listener's lock, when the connection has to go
	// although its client may still send.
	closing atomic.Bool
	// transferring is set, under the listener's lock, when the connection is to move to
	// another process as soon as no query waits; hasty, when it is no longer read from
	// until then.
	transferring, forced atomic.Bool
}

func (g *connState) init(conn *net.TCPConn, lane int) {
	g.conn, g.lane = conn, lane
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		g.client = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
	}
	g.lastQuery.Store(int64(clock.Now()))
}

func (g *connState) state() *connState { return g }

// ClientAddr and Activity are for package connlimit.

func (g *connState) ClientAddr() netip.Addr { return g.client.Addr() }

func (g *connState) Activity() (last time.Duration, busy bool) {
	return time.Duration(g.lastQuery.Load()), g.waiting.Load() > 0
}

// clientConn is a connection as it is served.
type clientConn interface {
	state() *connState
	// serve serves the connection, and returns when it is closed or in other hands.
	serve()
}

// newConn makes a visitor of a connection to l.
func (s *Server) newConn(l *listener, conn *net.TCPConn, lane int) (clientConn, error) {
	if l.https != nil {
		return l.https.newConn(conn, lane), nil
	}
	return s.newTCPConn(l, conn, lane)
}

// tcpListener is a listening socket and its connections.
type tcpListener struct {
	*net.TCPListener

	mu     sync.Mutex
	closed bool
	conns  connlimit.Set[*connState]
}

// listenTCP takes the listener that was handed down, or makes one.
func listenTCP(addr netip.AddrPort, limits Limits, legacy inheritedSockets) (*tcpListener, error) {
	ln, err := legacy.takeTCP(addr)
	if ln == nil && err == nil {
		ln, err = bindTCP(addr)
	}
	if err != nil {
		return nil, err
	}
	return &tcpListener{TCPListener: ln, conns: connlimit.Set[*connState]{Total: limits.Conns, PerClient: limits.ClientConns}}, nil
}

// setTCPBuffers sets what connections inherit; a kernel that allows less gives less.
func setTCPBuffers(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, tcpBufferSize)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, tcpBufferSize)
}

func bindTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			setTCPBuffers(fd)
			return setReuseport(fd, addr.Addr())
		})
	}}
	ln, err := lc.Listen(context.Background(), network("tcp", addr.Addr()), addr.String())
	if err != nil {
		return nil, explainBindError(err, addr)
	}
	return ln.(*net.TCPListener), nil
}

// past is a deadline that ends all waiting.
var past = time.Unix(1, 0)

// close stops listening and reading; replies under way can still be written. It does
// not end the listening of others who have the same socket.
func (t *tcpListener) close() {
	_ = t.Close()
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stopReading()
}

// stopReading stops reading from all connections.
func (t *tcpListener) stopReading() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns.All() {
		c.closing.Store(true)
		if !c.hijacked {
			_ = c.conn.SetReadDeadline(past)
		}
	}
}

// closeSoon makes c end soon, whatever it is at. It does not close the connection of a
// stream: that would wait until its reader has left it.
func (t *tcpListener) closeSoon(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeSoonLocked(c)
}

// closeSoonLocked is expel for who holds t.mu.
func (t *tcpListener) closeSoonLocked(c *connState) {
	c.closing.Store(true)
	if c.hijacked {
		_ = c.conn.Close()
		return
	}
	_ = c.conn.SetDeadline(past)
}

// setDeadline gives c until then for all that it reads and writes; false if it has to go.
func (t *tcpListener) setDeadline(c *connState, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.closing.Load() && c.conn.SetDeadline(until) == nil
}

// hijack leaves c to others; false if it has to go.
func (t *tcpListener) hijack(c *connState) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.hijacked = true
	return !c.closing.Load()
}

// closeIdle closes the connections in other hands on which nothing waits.
func (t *tcpListener) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns.All() {
		if c.hijacked && c.waiting.Load() == 0 {
			t.closeSoonLocked(c)
		}
	}
}

// setReadDeadline sets the time, by package clock, until which c may keep its reader
// waiting; false if c has to go or to move, whose own deadline must stand.
func (t *tcpListener) setReadDeadline(c *connState, until time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.closing.Load() && !c.shouldTransfer() && c.conn.SetReadDeadline(time.Now().Add(until-clock.Now())) == nil
}

// add takes c in, if need be in place of another connection: one of its client's that
// has all it may have, else, where all places are taken, the one that has been silent
// for longest (RFC 7766, 6.2.3). ok is false if all of those have queries that wait, or
// if t is closed.
func (t *tcpListener) add(c *connState) (evicted, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	victim, evicted, _, ok := t.conns.Add(c)
	if evicted {
		t.closeSoonLocked(victim)
	}
	return evicted, ok
}

// remove takes c, which is closed, off the list.
func (t *tcpListener) remove(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns.Remove(c)
}

// acceptRetryDelay is waited after an accept that failed, so that a process out of
// file descriptors doesn't spin: they come back as queries end.
const acceptRetryDelay = 10 * time.Millisecond

func (s *Server) acceptConns(l *listener) {
	for lane := 0; ; lane++ {
		conn, err := l.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // shut, or away
			return
		case err != nil:
			time.Sleep(acceptRetryDelay)
			continue
		}
		v, err := s.newConn(l, conn.(*net.TCPConn), lane)
		if err != nil {
			_ = conn.Close() // it is broken already
			continue
		}
		s.serveConn(l, v, conn)
	}
}

// serveConn serves v, which is conn, if there is a place for it; else it is false, and
// conn is closed.
func (s *Server) serveConn(l *listener, v clientConn, conn net.Conn) bool {
	evicted, ok := l.tcp.add(v.state())
	if !ok {
		s.refused.Add(1)
		_ = conn.Close()
		return false
	}
	if evicted {
		s.evicted.Add(1)
	}
	s.running.Go(v.serve)
	return true
}
