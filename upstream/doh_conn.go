package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxBeforeFirstReply is how many queries go out on a connection before its first reply. How
// many the server allows is known only then, and the library waits for ever if more
// have been promised. Nobody allows fewer; half would hold up more at a start.
const maxBeforeFirstReply = 8

// dohConn is one connection of a [dohTransport]. The lock of its doh guards what is not atomic.
type dohConn struct {
	conn     *http.ClientConn
	answered atomic.Bool // a reply has come

	openedAt  time.Time // when it was made
	idleSince time.Time // since when nothing is in flight; zero before the first flight
	owedSince time.Time // since when a reply is owed and none has come; zero if none is
	inFlight  int
}

// acquireConn takes a place on a connection for one request of a client that has held others in
// flight, and waits for it until ctx.
func (t *dohTransport) acquireConn(ctx context.Context, held int) (*dohConn, error) {
	for first := true; ; first = false {
		place := t.waitQueue.join(held) // before looking, so that nothing is missed
		c, err := t.tryAcquireConn(first)
		if c != nil || err != nil {
			t.waitQueue.leave(place)
			return c, err
		}
		select {
		case err = <-place:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			t.waitQueue.leave(place)
			return nil, t.timeoutError(ctx)
		}
	}
}

// errNoCapacity is the end of a query that was never sent.
var errNoCapacity error = localError{errors.New("no connection to the server had a place in time")}

// timeoutError is the error of a query whose time was over before it had a place: the server's
// fault only where there is no connection.
func (t *dohTransport) timeoutError(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoCapacity
	}
	return ctx.Err()
}

// tryAcquireConn takes a place on a connection if there is one, and has another connection
// made if not. first says that the query has not been counted.
func (t *dohTransport) tryAcquireConn(first bool) (*dohConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	now := time.Now()
	t.closeExpired(now)
	c, more := t.bestConn(now)
	switch {
	case c != nil:
		if first {
			t.hits.Add(1)
		}
		return c, nil
	case more && !t.connecting && len(t.live) < maxConns:
		t.connecting = true
		t.misses.Add(1)
		t.tasks.Go(t.connect)
	}
	return nil, nil
}

// bestConn takes a place on a connection, on one that is silent only where no other can be
// made. Without a place, more says that another connection is of use: not while there
// is one of which nobody knows what it will take. t is locked.
func (t *dohTransport) bestConn(now time.Time) (c *dohConn, more bool) {
	var silent *dohConn
	more = true
	for _, c := range t.open {
		known := c.answered.Load()
		switch {
		case c.replyOverdue(now) >= stalledAfter:
			silent = c
		case (known || c.inFlight < maxBeforeFirstReply) && t.reserve(c, now):
			return c, false
		default:
			more = more && known
		}
	}
	if silent != nil && len(t.live) == maxConns && t.reserve(silent, now) {
		return silent, false
	}
	return nil, more
}

// replyOverdue is for how long a reply is owed.
func (c *dohConn) replyOverdue(now time.Time) time.Duration {
	if c.owedSince.IsZero() {
		return 0
	}
	return now.Sub(c.owedSince)
}

// reserve takes a place on l if there is one; t is locked.
func (t *dohTransport) reserve(c *dohConn, now time.Time) bool {
	if c.conn.Reserve() != nil {
		return false
	}
	if c.owedSince.IsZero() {
		c.owedSince = now
	}
	c.inFlight++
	return true
}

// closeExpired lets go of connections that are broken, idle for too long or too old; t is
// locked.
func (t *dohTransport) closeExpired(now time.Time) {
	t.open = slices.DeleteFunc(t.open, func(c *dohConn) bool {
		gone := c.conn.Err() != nil ||
			c.inFlight == 0 && !c.idleSince.IsZero() && now.Sub(c.idleSince) >= t.expire ||
			t.maxAge > 0 && now.Sub(c.openedAt) >= t.maxAge
		if gone {
			t.retire(c)
		}
		return gone
	})
}

// retire closes l, which takes no more queries, unless some are in flight on it; t is
// locked. Whether it is broken already the last one will see.
func (t *dohTransport) retire(c *dohConn) {
	if c.conn.Err() != nil && c.inFlight > 0 {
		t.brokenConns.Add(1)
	}
	if c.inFlight == 0 || c.conn.Err() != nil {
		delete(t.live, c)
		_ = c.conn.Close() // does not wait
	}
}

// release gives back a place on l. heard says that a reply has come.
func (t *dohTransport) release(c *dohConn, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	c.inFlight--
	if heard {
		c.owedSince = time.Time{}
		if c.inFlight > 0 {
			c.owedSince = now
		}
	}
	if c.inFlight > 0 {
		return
	}
	c.idleSince = now
	i := slices.Index(t.open, c)
	if i >= 0 && (t.expire <= 0 || t.tooManyIdle()) {
		t.open = slices.Delete(t.open, i, i+1)
		i = -1
	}
	if _, live := t.live[c]; live && i < 0 {
		t.retire(c)
	}
}

// tooManyIdle reports whether more connections are idle than should be kept; t is locked.
func (t *dohTransport) tooManyIdle() bool {
	idle := 0
	for _, c := range t.open {
		if c.inFlight == 0 {
			idle++
		}
	}
	return t.maxIdle > 0 && idle > t.maxIdle
}

// connect makes a connection and lets those that wait have it, or the error if there
// is no other.
func (t *dohTransport) connect() {
	ctx, cancel := context.WithTimeout(t.ctx, connectTimeout)
	defer cancel()
	conn, err := t.client.NewClientConn(ctx, "https", t.url.Host)
	if err != nil {
		t.waitQueue.wake(-1, t.connectFailed(err))
		return
	}
	if !t.addConn(conn) {
		_ = conn.Close()
		t.waitQueue.wake(-1, nil)
		return
	}
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			t.waitQueue.wake(1, nil) // to have another one made
			return
		}
		t.waitQueue.wake(c.Available(), nil)
	})
	t.waitQueue.wake(conn.Available(), nil)
}

// addConn takes in a connection that is made; false after close, and where it was
// made for those only who have gone.
func (t *dohTransport) addConn(conn *http.ClientConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connecting = false
	if t.closed || t.expire <= 0 && t.waitQueue.empty() {
		return false
	}
	now := time.Now()
	c := &dohConn{conn: conn, openedAt: now}
	if t.waitQueue.empty() {
		c.idleSince = now
	}
	t.open = append(t.open, c)
	t.live[c] = struct{}{}
	return true
}

// connectFailed is what those that wait are told when no connection can be made because of
// err: nil, to wait on, if there is another one.
func (t *dohTransport) connectFailed(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connecting = false
	t.brokenConns.Add(1)
	if len(t.open) > 0 {
		return nil
	}
	return fmt.Errorf("connecting: %w", err)
}

// dial connects to the server, whatever the URL says.
func (t *dohTransport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // silence shows earlier than by keep-alives
	if t.source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.source, 0))
	}
	return d.DialContext(ctx, "tcp", t.addr)
}

// closeIdle is [transport.closeIdle].
func (t *dohTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeExpired(now)
}

// waitQueue is the flights that wait for a place on a connection, in their order: a client
// that has few queries in flight is ahead of one that has many, and of those that have
// about as many, within a factor of two, the first that came. Its
// lock is taken last: the library calls back from within what a doh calls.
type waitQueue struct {
	mu      sync.Mutex
	waiters []chan error
	ranks   []int // of places
}

// join puts in one more, of a client that has held queries in flight. Its channel gets one
// value at most: nil to look again, or the error to give up with.
func (w *waitQueue) join(held int) chan error {
	w.mu.Lock()
	defer w.mu.Unlock()
	place, rank := make(chan error, 1), bits.Len(uint(held))
	i, _ := slices.BinarySearch(w.ranks, rank+1) // behind all of its rank
	w.ranks = slices.Insert(w.ranks, i, rank)
	w.waiters = slices.Insert(w.waiters, i, place)
	return place
}

// leave takes one out. What was meant for it goes to the next.
func (w *waitQueue) leave(place chan error) {
	w.mu.Lock()
	i := slices.Index(w.waiters, place)
	if i >= 0 {
		w.waiters, w.ranks = slices.Delete(w.waiters, i, i+1), slices.Delete(w.ranks, i, i+1)
	}
	w.mu.Unlock()
	if i < 0 && <-place == nil {
		w.wake(1, nil)
	}
}

// empty reports whether nobody waits.
func (w *waitQueue) empty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters) == 0
}

// wake lets the first n look again, or give up with err; all of them if n is negative.
func (w *waitQueue) wake(n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 || n > len(w.waiters) {
		n = len(w.waiters)
	}
	for _, place := range w.waiters[:n] {
		place <- err
	}
	w.waiters, w.ranks = slices.Delete(w.waiters, 0, n), slices.Delete(w.ranks, 0, n)
}
