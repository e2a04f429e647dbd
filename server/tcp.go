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

// streamBuffer is asked for in both directions of a connection, so that the kernel
// neither holds megabytes for a client that doesn't read nor takes them from one
// that isn't read from. The kernel doubles it for its own accounting; it then
// holds one reply of the largest size, or some hundred of the usual ones. Half of
// it would make the largest reply wait for the client; twice as much is what a
// thousand connections should not be able to take.
const streamBuffer = 64 << 10

// guest is a connection as its listener knows it.
type guest struct {
	conn   *net.TCPConn
	client netip.AddrPort
	lane   int
	// sudden says that the connection is in other hands, and is closed when it has to
	// go. Those who have it see to its end when the listener is closed. The listener's
	// lock is for this, too.
	sudden bool
	// heard is when the last query came, or else the connection, by package clock.
	heard atomic.Int64
	// waiting is the number of queries that wait.
	waiting atomic.Int32
	// leaving is set, under the listener's lock, when the connection has to go
	// although its client may still send.
	leaving atomic.Bool
	// moving is set, under the listener's lock, when the connection is to move to
	// another process as soon as no query waits; hasty, when it is no longer read from
	// until then.
	moving, hasty atomic.Bool
}

func (g *guest) init(conn *net.TCPConn, lane int) {
	g.conn, g.lane = conn, lane
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		g.client = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
	}
	g.heard.Store(int64(clock.Now()))
}

func (g *guest) self() *guest { return g }

// ClientAddr and Activity are for package connlimit.

func (g *guest) ClientAddr() netip.Addr { return g.client.Addr() }

func (g *guest) Activity() (last time.Duration, busy bool) {
	return time.Duration(g.heard.Load()), g.waiting.Load() > 0
}

// visitor is a connection as it is served.
type visitor interface {
	self() *guest
	// run serves the connection, and returns when it is closed or in other hands.
	run()
}

// receive makes a visitor of a connection to l.
func (s *Server) receive(l *listener, conn *net.TCPConn, lane int) (visitor, error) {
	if l.hall != nil {
		return l.hall.newVisit(conn, lane), nil
	}
	return s.newStream(l, conn, lane)
}

// tcpListener is a listening socket and its connections.
type tcpListener struct {
	*net.TCPListener

	mu     sync.Mutex
	closed bool
	guests connlimit.Set[*guest]
}

// listenTCP takes the listener that was handed down, or makes one.
func listenTCP(addr netip.AddrPort, limits Limits, legacy legacy) (*tcpListener, error) {
	ln, err := legacy.takeTCP(addr)
	if ln == nil && err == nil {
		ln, err = bindTCP(addr)
	}
	if err != nil {
		return nil, err
	}
	return &tcpListener{TCPListener: ln, guests: connlimit.Set[*guest]{Total: limits.Conns, PerClient: limits.ClientConns}}, nil
}

// prepareTCP sets what connections inherit; a kernel that allows less gives less.
func prepareTCP(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, streamBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, streamBuffer)
}

func bindTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			prepareTCP(fd)
			return sharePort(fd, addr.Addr())
		})
	}}
	ln, err := lc.Listen(context.Background(), network("tcp", addr.Addr()), addr.String())
	if err != nil {
		return nil, explain(err, addr)
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
	t.dismissAll()
}

// dismissAll stops reading from all connections.
func (t *tcpListener) dismissAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.guests.All() {
		c.leaving.Store(true)
		if !c.sudden {
			_ = c.conn.SetReadDeadline(past)
		}
	}
}

// expel makes c end soon, whatever it is at. It does not close the connection of a
// stream: that would wait until its reader has left it.
func (t *tcpListener) expel(c *guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dismiss(c)
}

// dismiss is expel for who holds t.mu.
func (t *tcpListener) dismiss(c *guest) {
	c.leaving.Store(true)
	if c.sudden {
		_ = c.conn.Close()
		return
	}
	_ = c.conn.SetDeadline(past)
}

// grant gives c until then for all that it reads and writes; false if it has to go.
func (t *tcpListener) grant(c *guest, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.leaving.Load() && c.conn.SetDeadline(until) == nil
}

// release leaves c to others; false if it has to go.
func (t *tcpListener) release(c *guest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.sudden = true
	return !c.leaving.Load()
}

// clear closes the connections in other hands on which nothing waits.
func (t *tcpListener) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.guests.All() {
		if c.sudden && c.waiting.Load() == 0 {
			t.dismiss(c)
		}
	}
}

// await sets the time, by package clock, until which c may keep its reader
// waiting; false if c has to go or to move, whose own deadline must stand.
func (t *tcpListener) await(c *guest, until time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.leaving.Load() && !c.goes() && c.conn.SetReadDeadline(time.Now().Add(until-clock.Now())) == nil
}

// admit takes c in, if need be in place of another connection: one of its client's that
// has all it may have, else, where all places are taken, the one that has been silent
// for longest (RFC 7766, 6.2.3). ok is false if all of those have queries that wait, or
// if t is closed.
func (t *tcpListener) admit(c *guest) (evicted, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	victim, evicted, _, ok := t.guests.Add(c)
	if evicted {
		t.dismiss(victim)
	}
	return evicted, ok
}

// forget takes c, which is closed, off the list.
func (t *tcpListener) forget(c *guest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guests.Remove(c)
}

// acceptPause is waited after an accept that failed, so that a process out of
// file descriptors doesn't spin: they come back as queries end.
const acceptPause = 10 * time.Millisecond

func (s *Server) acceptTCP(l *listener) {
	for lane := 0; ; lane++ {
		conn, err := l.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // shut, or away
			return
		case err != nil:
			time.Sleep(acceptPause)
			continue
		}
		v, err := s.receive(l, conn.(*net.TCPConn), lane)
		if err != nil {
			_ = conn.Close() // it is broken already
			continue
		}
		s.welcome(l, v, conn)
	}
}

// welcome serves v, which is conn, if there is a place for it; else it is false, and
// conn is closed.
func (s *Server) welcome(l *listener, v visitor, conn net.Conn) bool {
	evicted, ok := l.tcp.admit(v.self())
	if !ok {
		s.refused.Add(1)
		_ = conn.Close()
		return false
	}
	if evicted {
		s.evicted.Add(1)
	}
	s.running.Go(v.run)
	return true
}
