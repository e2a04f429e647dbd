package server

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/connlimit"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/socket"
)

// tcpBufferSize is requested for both directions of a connection, so that the kernel
// neither holds megabytes for a client that does not read nor accepts them from a client
// that is not read from. The kernel doubles the size for its own accounting; it then holds
// one reply of the largest size or some hundred typical ones.
const tcpBufferSize = 64 << 10

// connState is what a listener knows about one of its connections.
type connState struct {
	connActivity
	conn   *net.TCPConn
	client netip.AddrPort
	stripe int
	// hijacked is set when net/http serves the connection; the listener then closes it to
	// end it. Guarded by the listener's lock.
	hijacked bool
	// lost is called when the connection is evicted, without the listener's lock; nil: nothing is to be done.
	lost func()
	// requested is set once net/http has had a request on the connection.
	requested atomic.Bool
	// closing is set, under the listener's lock, when the connection must end although its
	// client may still send.
	closing atomic.Bool
	// transferring is set, under the listener's lock, when the connection is to be
	// transferred to another process once none of its queries waits. forced also stops
	// reading from it until then.
	transferring, forced atomic.Bool
}

func (g *connState) init(conn *net.TCPConn, stripe int, pods *podrange.Ranges) {
	g.conn, g.stripe = conn, stripe
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		g.client = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
	}
	g.share = pods.Client(g.client.Addr())
	g.lastQuery.Store(int64(clock.Now()))
}

func (g *connState) state() *connState { return g }

// shouldTransfer reports whether c is to be transferred now. Until then it is read from,
// so that queries behind a pending one do not wait for it.
func (g *connState) shouldTransfer() bool {
	return g.transferring.Load() && (g.forced.Load() || g.waiting.Load() == 0)
}

// clientConn is a connection that can be served: a tcpConn or an httpsConn.
type clientConn interface {
	state() *connState
	// serve serves the connection and returns when it is closed or handed to another
	// owner.
	serve()
}

// tcpListener is a listening TCP socket and its connections. It is safe for concurrent use.
type tcpListener struct {
	*net.TCPListener

	mu     sync.Mutex
	closed bool
	conns  connlimit.Set[*connState]
}

// listenTCP takes the inherited listener of addr, or binds a new one.
func listenTCP(addr netip.AddrPort, limits Limits, inherited inheritedSockets) (*tcpListener, error) {
	ln, err := inherited.takeTCP(addr)
	if ln == nil && err == nil {
		ln, err = bindTCP(addr)
	}
	if err != nil {
		return nil, err
	}
	return &tcpListener{TCPListener: ln, conns: connlimit.Set[*connState]{
		Total: limits.Conns, PerClient: limits.ClientConns, Fair: true,
	}}, nil
}

// setTCPBuffers sets the buffer sizes that accepted connections inherit. The kernel may
// grant less.
func setTCPBuffers(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, tcpBufferSize)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, tcpBufferSize)
}

// bindTCP binds a listener to addr. On an error no socket is held.
func bindTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return socket.Control(c, func(fd int) error {
			setTCPBuffers(fd)
			return socket.SetReuseport(fd, addr.Addr())
		})
	}}
	lc.SetMultipathTCP(false) // Go's default is of no use within a node, and [socket.Distribute] fails with it
	ln, err := lc.Listen(context.Background(), socket.Network("tcp", addr.Addr()), addr.String())
	if err != nil {
		return nil, socket.ExplainBindError(err, addr)
	}
	return ln.(*net.TCPListener), nil
}

// past is a deadline in the past. It ends all current and future waits.
var past = time.Unix(1, 0)

// close closes the listening socket and stops reading from all connections. Replies to
// pending queries can still be written. Other processes that share the listening socket
// are not affected.
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

// closeSoon makes c end soon, whatever it is doing. It does not close the connection of a
// tcpConn, because closing would block until the reader has left it.
func (t *tcpListener) closeSoon(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeSoonLocked(c)
}

// closeSoonLocked is closeSoon for callers that hold t.mu.
func (t *tcpListener) closeSoonLocked(c *connState) {
	c.closing.Store(true)
	if c.hijacked {
		_ = c.conn.Close()
		return
	}
	_ = c.conn.SetDeadline(past)
}

// setDeadline limits all reads and writes of c. It returns false if c is closing.
func (t *tcpListener) setDeadline(c *connState, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.closing.Load() && c.conn.SetDeadline(until) == nil
}

// hijack notes that net/http now serves c. It returns false if c is closing.
func (t *tcpListener) hijack(c *connState) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.hijacked = true
	return !c.closing.Load()
}

// closeUnused closes the hijacked connections that have never had a request. Other idle
// connections are left to net/http: it knows whether the last reply has been written.
func (t *tcpListener) closeUnused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns.All() {
		if c.hijacked && !c.requested.Load() {
			t.closeSoonLocked(c)
		}
	}
}

// setReadDeadline sets until when, by package clock, c's reader may wait. It returns
// false if c is closing or being transferred, which set deadlines of their own.
func (t *tcpListener) setReadDeadline(c *connState, until time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !c.closing.Load() && !c.shouldTransfer() && c.conn.SetReadDeadline(time.Now().Add(until-clock.Now())) == nil
}

// add admits c. If the limits are reached, it evicts another connection: one of the same
// client if that client has all it may have, otherwise one of the client with the most, in both
// cases the one that has been idle longest. A busy one goes only for a client that has far fewer. evicted is nil if
// there is room. ok is false if t is closed or no connection can go.
func (t *tcpListener) add(c *connState) (evicted *connState, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	victim, evict, _, ok := t.conns.Add(c)
	if !evict {
		return nil, ok
	}
	t.closeSoonLocked(victim)
	return victim, ok
}

// connCount returns the number of connections.
func (t *tcpListener) connCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns.Len()
}

// remove removes c, which is closed.
func (t *tcpListener) remove(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns.Remove(c)
}

// transferConns makes all connections move to another process when they become idle.
// force makes them idle by not reading from them any more.
func (t *tcpListener) transferConns(force bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns.All() {
		c.forced.Store(force)
		c.transferring.Store(true)
		t.wakeLocked(c)
	}
}

// wake is called when c's last pending query has ended.
func (t *tcpListener) wake(c *connState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeLocked(c)
}

// wakeLocked makes c's reader return from reading if c is to be transferred now. The
// caller holds t.mu.
func (t *tcpListener) wakeLocked(c *connState) {
	if c.shouldTransfer() && !c.closing.Load() {
		_ = c.conn.SetReadDeadline(past)
	}
}

// tcpTurn is a connection's turn to be read from. Data may arrive on all connections at once. If each of them were answered as soon as
// its goroutine is scheduled, a reader of UDP that the scheduler has preempted would wait for all of them. So a turn is as short as a few
// batches of UDP queries, there are as many turns as cores, and clients, not connections, take turns. A connection gives its turn
// back before it waits for anything else. A tcpTurn belongs to the connection's reader.
type tcpTurn struct {
	turns *share.Turns
	// place gives the client its number. It is held as long as the connection is served.
	place share.Place
	held  bool
	over  time.Duration // when the turn is over, by package clock
}

const (
	// turnLength is how long a turn lasts, but for the query that exceeds it.
	turnLength = 100 * time.Microsecond
	// asyncCost is what a query costs that waits: another goroutine spends that time on it, soon.
	asyncCost = 25 * time.Microsecond
	// turnPlaces is how many connections are told apart by client, over all addresses. All beyond are one client.
	turnPlaces = 16 << 10
)

// begin makes the turn last from now on. It waits for one unless the connection has one that is not over.
func (t *tcpTurn) begin(now time.Duration) {
	if t.held && now < t.over {
		return
	}
	if t.held {
		t.end()
	}
	_ = t.turns.Take(context.Background(), t.place.Client()) // it does not end without a turn
	t.held, t.over = true, clock.Now()+turnLength
}

// end gives the turn back, if the connection has one.
func (t *tcpTurn) end() {
	if t.held {
		t.held = false
		t.turns.Pass(t.place.Client())
	}
}
