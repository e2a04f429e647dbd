package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// maxBeforeFirstReply is how many queries use a connection before its first reply. The
// server's limit is known only afterwards, and net/http blocks forever if more are
// reserved.
const maxBeforeFirstReply = 8

// dohConn is one connection of a [dohTransport], whose lock guards the fields that are not
// atomic.
type dohConn struct {
	conn     *http.ClientConn
	answered atomic.Bool // a reply has arrived

	connection
	canceled bool // a query was given up, for which net/http ends a connection of HTTP/1.1
	// capacity is how many queries the server allowed at once when the last one was
	// reserved; 0 before the first reply.
	capacity int
}

// acquireConn reserves a connection for r.
// It waits for one until ctx ends or connecting fails.
func (t *dohTransport) acquireConn(ctx context.Context, r *dohRequest) (*dohConn, error) {
	for first := true; ; first = false {
		place := t.waitQueue.join(r.clientInFlight) // before checking, so that no wake-up is missed
		c, err := t.tryAcquireConn(r, first)
		if c != nil || err != nil {
			t.waitQueue.leave(place)
			if err != nil {
				t.waitQueue.wake(-1, err) // the others need a connection, too
			}
			return c, err
		}
		if err := t.waitQueue.wait(ctx, place, t.timeoutError); err != nil {
			return nil, err
		}
	}
}

// errNoCapacity is the error of a query that was never sent.
var errNoCapacity error = localError{errors.New("no connection to the server had capacity in time")}

// timeoutError returns the error of a query that got no connection in time. The server is
// at fault only if there is no connection at all.
func (t *dohTransport) timeoutError(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoCapacity
	}
	return ctx.Err()
}

// tryAcquireConn reserves a connection if one is available, and otherwise starts opening
// one. During a [connectPause], queries wait for the connections that take queries, or fail if
// there are none. first says that the query has not been counted yet.
func (t *dohTransport) tryAcquireConn(r *dohRequest, first bool) (*dohConn, error) {
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
		r.conn = c
		return c, nil
	case !more || t.connecting || len(t.live) >= maxConns:
		return nil, nil
	}
	if err := t.pause.err(now); err != nil {
		if len(t.open) > 0 {
			return nil, nil
		}
		return nil, err
	}
	t.connecting = true
	t.misses.Add(1)
	t.tasks.Go(t.connect)
	return nil, nil
}

// bestConn reserves a connection; a stalled one only if no other can be opened. If it
// returns nil, more says whether another connection is useful, which is not the case while
// the limit of an existing one is unknown. t is locked.
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
	if silent != nil && !t.mayConnect(now) && t.reserve(silent, now) {
		return silent, false
	}
	return nil, more
}

// mayConnect reports whether another connection may be opened; t is locked.
func (t *dohTransport) mayConnect(now time.Time) bool {
	return len(t.live) < maxConns && t.pause.err(now) == nil
}

// draining reports whether the server has announced that it takes no more queries on c
// (GOAWAY: RFC 9113, 6.8). The last query in flight closes c. net/http does not tell: it refuses
// reservations as if the server's limit were reached, although fewer queries are in flight.
func (c *dohConn) draining() bool {
	inFlight := c.conn.InFlight() // first: if one ends meanwhile, one is available
	return c.conn.Available() == 0 && inFlight < c.capacity
}

// reserve reserves c for one query if possible; t is locked. It leaves one place free while others are taken. In net/http
// (Go 1.26), a request gives its reservation up before it makes sure of a place, and others wait behind it. If a canceled
// one counts twice in that moment and its place is reserved again, all places may be those of requests that wait
// behind the first one, until they are canceled.
func (t *dohTransport) reserve(c *dohConn, now time.Time) bool {
	answered := c.answered.Load()   // before the limit is read, which is not the server's until then
	available := c.conn.Available() // first, so that a query that ends meanwhile counts once at most
	inFlight := c.conn.InFlight()
	if available < 2 && inFlight > 0 || c.conn.Reserve() != nil {
		return false
	}
	c.begin(now)
	if answered {
		c.capacity = available + inFlight
	}
	return true
}

// closeExpired removes connections that have failed, are draining, idle for too long or too old;
// t is locked.
func (t *dohTransport) closeExpired(now time.Time) {
	t.open = slices.DeleteFunc(t.open, func(c *dohConn) bool {
		gone := c.conn.Err() != nil || c.draining() || c.expired(&t.connOptions, now)
		if gone {
			t.retire(c)
		}
		return gone
	})
}

// retire closes c, which takes no more queries, if none is in flight or it has failed;
// otherwise the last query closes it. One that fails before its first reply counts as a failed
// attempt to connect, unless no query needed it. t is locked.
func (t *dohTransport) retire(c *dohConn) {
	err := c.conn.Err()
	if err != nil && c.inFlight > 0 {
		t.brokenConns.Add(1)
	}
	if err != nil && !c.answered.Load() && !c.canceled && (c.idleSince.IsZero() || !c.owedSince.IsZero()) {
		t.pause.start(errEndedUnanswered, time.Now())
	}
	if c.inFlight == 0 || err != nil {
		delete(t.live, c)
		_ = c.conn.Close() // does not block
	}
}

// release undoes a reservation of c. heard says that a reply has arrived.
func (t *dohTransport) release(c *dohConn, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if c.inFlight--; heard {
		c.replied(c.inFlight > 0, now)
	}
	failed := c.conn.Err() != nil
	if c.inFlight > 0 && !failed {
		return
	}
	c.idleSince = now
	i := slices.Index(t.open, c)
	if i >= 0 && (failed || t.expire <= 0 || tooManyIdle(t.open, t.maxIdle)) {
		t.open = slices.Delete(t.open, i, i+1)
		i = -1
	}
	if _, live := t.live[c]; live && i < 0 {
		t.retire(c)
	}
}

// connect opens a connection and wakes waiting queries; if that fails and no other connection
// takes queries, they get the error.
func (t *dohTransport) connect() {
	ctx, cancel := context.WithTimeout(t.ctx, t.connectTimeout)
	defer cancel()
	conn, err := t.client.NewClientConn(ctx, t.url.Scheme, t.url.Host)
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
			t.waitQueue.wake(1, nil) // so that it opens another connection
			return
		}
		t.waitQueue.wake(c.Available(), nil)
	})
	t.waitQueue.wake(conn.Available(), nil)
}

// addConn adds a new connection; false if the transport is closed, or if no query waits and
// idle connections are not kept.
func (t *dohTransport) addConn(conn *http.ClientConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connecting = false
	if t.closed || t.expire <= 0 && t.waitQueue.empty() {
		return false
	}
	now := time.Now()
	c := &dohConn{conn: conn, connection: connection{openedAt: now}}
	if t.waitQueue.empty() {
		c.idleSince = now
	}
	t.open = append(t.open, c)
	t.live[c] = struct{}{}
	return true
}

// connectFailed begins a pause after connecting failed with err. It returns the error for waiting
// queries; nil if there may be another connection to wait for.
func (t *dohTransport) connectFailed(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.connecting = false
	t.brokenConns.Add(1)
	err = fmt.Errorf("connecting: %w", err)
	t.pause.start(err, time.Now())
	if len(t.open) > 0 {
		return nil
	}
	return err
}

// dial connects to the configured address, regardless of the URL.
func (t *dohTransport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1} // pings detect a dead connection earlier than keep-alives
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
