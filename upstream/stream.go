package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// maxConns is the maximum number of connections to one server, retired ones included.
	// RFC 7766, 6.2.2, asks clients for few. Two suffice for a node's cache misses; four
	// leave room for new ones while others are retired.
	maxConns = 4
	// pipelineLimit is how many queries are in flight on a connection before another one is
	// opened. At 10 ms each that is 12,800 queries per second. Fewer connections mean more
	// queries per write; but one lost segment delays all queries of its connection.
	pipelineLimit = 128
	// maxResends is how often a query is sent again because its connection failed: once for
	// a server that closes idle connections, twice for one that also restarts at that
	// moment.
	maxResends = 2
	// connectTimeout is the default of the option.
	connectTimeout = DefaultDeadline
)

// streamTransport is a transport over TCP (RFC 7766) or TLS (RFC 7858) with a few
// connections, many queries in flight on each, and replies in any order.
//
// Connections are opened in the background while queries wait. A query uses the first
// connection below its pipeline limit. Another connection is opened when all are at the
// limit or stalled. The goroutine that starts a query writes it, together with the queries
// queued by then. Nothing waits for the network: [asyncConn] writes in the background what
// the socket does not accept at once. Each connection has one reading goroutine and one
// timer.
//
// When a connection fails, its queries are sent again on another one, because servers close
// connections at any time. A connection that never brought a reply indicates a failing
// server: its queries fail, and the pool asks the next server.
//
// Many servers, CoreDNS among them, answer the queries of a connection strictly in order,
// so one slow name delays all queries behind it (head-of-line blocking). Until a server has
// once answered out of order, a connection that owes replies and is silent for longer than
// usual is considered blocked: queries use other connections, and more of them if necessary
// (see [streamTransport.headOfLineBlocked]).
//
// An ID is not reused on a connection before its reply has arrived, even if the query was
// canceled or has expired. So a late reply is never taken for another query's.
type streamTransport struct {
	addr netip.AddrPort
	streamOptions
	ctx   context.Context // ends connecting
	stop  context.CancelFunc
	tasks sync.WaitGroup // connections and background writes

	mu     sync.Mutex
	open   []*streamConn            // take queries; oldest first
	live   map[*streamConn]struct{} // connected or connecting
	closed bool
	// dialFailed says that the last attempt to connect failed.
	dialFailed bool
	// outOfOrder says that the server has answered a query before an earlier one.
	outOfOrder bool
	// typicalRTT estimates the median time of a reply; 0 without samples.
	typicalRTT time.Duration
	lastReply  time.Time // of any connection
	// inFlight divides the queries in flight among the clients.
	inFlight share.FairShare

	hits, misses atomic.Uint64
}

// newStreamTransport opens no connection.
func newStreamTransport(to netip.AddrPort, opts streamOptions) transport {
	opts.setDefaults()
	if opts.tls != nil {
		opts.tls = clientTLS(opts.tls, to.Addr())
	}
	t := &streamTransport{addr: to, streamOptions: opts, live: make(map[*streamConn]struct{}), inFlight: share.NewFairShare(maxConns * maxInFlightPerConn)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// start is [transport.newPool].
func (t *streamTransport) start(q *query) {
	q.resends, q.movedFrom = 0, nil
	now := time.Now()
	t.mu.Lock()
	c, err := t.assignNew(q, now)
	mine := err == nil && c.claimWrite()
	t.mu.Unlock()
	if err != nil {
		q.complete(err)
	} else if mine {
		t.write(c)
	}
}

// assignNew is assign for a query that starts: it enforces the limits; t is locked.
func (t *streamTransport) assignNew(q *query, now time.Time) (*streamConn, error) {
	if t.inFlight.Check(q.client) == share.Full {
		return nil, ErrBusy
	}
	return t.assign(q, now)
}

// assign assigns q to a connection, which may still be connecting; t is locked.
func (t *streamTransport) assign(q *query, now time.Time) (*streamConn, error) {
	if t.closed {
		return nil, ErrClosed
	}
	c := t.pickConn(now)
	if c == nil {
		return nil, ErrBusy
	}
	c.add(q, now)
	t.scheduleBlockedCheck(c, now)
	return c, nil
}

// pickConn returns the connection for the next query, and opens one if that is useful; nil
// if all are full. t is locked.
func (t *streamTransport) pickConn(now time.Time) *streamConn {
	c := t.bestConn(now)
	if c == nil && t.closeOldestRetired(now) {
		c = t.bestConn(now) // resending its queries may have opened a connection
	}
	if len(t.live) < t.connLimit(c, now) && t.needsConn(c, now) {
		t.misses.Add(1)
		if fresh := t.dial(now); c == nil || t.rankOf(c, now) >= rankBlocked {
			return fresh
		}
	} else if c != nil {
		t.hits.Add(1)
	}
	return c
}

// bestConn returns the best connection for the next query, nil for none; t is locked. It
// prefers the first one below the pipeline limit, so that surplus connections become idle.
func (t *streamTransport) bestConn(now time.Time) (best *streamConn) {
	for i := len(t.open) - 1; i >= 0; i-- {
		if c := t.open[i]; t.expired(c, now) {
			t.retire(c, now)
		}
	}
	for _, c := range t.open {
		if len(c.queries) >= maxInFlightPerConn {
			continue
		}
		if best == nil || t.rankOf(c, now) < t.rankOf(best, now) ||
			t.rankOf(c, now) == t.rankOf(best, now) && best.inFlight >= t.currentPipelineLimit() && c.inFlight < best.inFlight {
			best = c
		}
	}
	return best
}

// needsConn reports whether another connection should be opened if best is the best one; t
// is locked.
func (t *streamTransport) needsConn(best *streamConn, now time.Time) bool {
	if best == nil {
		return true
	}
	switch t.rankOf(best, now) {
	case rankStalled, rankBlocked:
		return !t.dialFailed
	case rankReady:
		return best.inFlight >= t.currentPipelineLimit() && !t.dialFailed && !slices.ContainsFunc(t.open, func(c *streamConn) bool { return c.conn == nil })
	}
	return false
}

// expired reports whether c should take no more queries; t is locked.
func (t *streamTransport) expired(c *streamConn, now time.Time) bool {
	return c.inFlight == 0 && !c.idleSince.IsZero() && now.Sub(c.idleSince) >= t.expire ||
		t.maxAge > 0 && now.Sub(c.begunAt) >= t.maxAge ||
		c.replyOverdue(now) >= closeStalledAfter
}

// closeOldestRetired closes the oldest retired connection if there are maxConns
// connections, and reports whether it did; t is locked.
func (t *streamTransport) closeOldestRetired(now time.Time) bool {
	if len(t.live) < maxConns {
		return false
	}
	var oldest *streamConn
	for c := range t.live {
		if c.retired && (oldest == nil || c.begunAt.Before(oldest.begunAt)) {
			oldest = c
		}
	}
	if oldest != nil {
		t.closeConn(oldest, errConnStuck, now)
	}
	return oldest != nil
}

// errConnStuck is the error of a connection closed because it owes replies for too long.
var errConnStuck error = localError{errors.New("the connection is stuck")}

// dial starts connecting; t is locked and not closed.
func (t *streamTransport) dial(now time.Time) *streamConn {
	c := newStreamConn(now, &t.inFlight)
	c.ctx, c.cancel = context.WithTimeout(t.ctx, t.connectTimeout)
	c.timer = time.AfterFunc(t.connectTimeout, func() { t.onTimer(c) })
	t.open = append(t.open, c)
	t.live[c] = struct{}{}
	t.tasks.Go(func() { t.run(c) })
	return c
}

// run is the goroutine of c: it connects and then reads.
func (t *streamTransport) run(c *streamConn) {
	conn, err := t.connect(c.ctx)
	if !t.handleConnected(c, conn, err) {
		return
	}
	t.write(c)
	t.readLoop(c)
}

// handleConnected processes the result of connecting, and reports whether c is usable. If
// so, the caller has to write the queries queued on c.
func (t *streamTransport) handleConnected(c *streamConn, conn net.Conn, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.closed {
		if err == nil {
			conn.Close()
		}
		return false
	}
	if t.dialFailed = err != nil; t.dialFailed {
		t.closeConn(c, fmt.Errorf("connecting: %w", err), time.Now())
		return false
	}
	c.setConn(conn)
	c.writing = true
	return true
}

// connect opens a connection, including the TLS handshake.
func (t *streamTransport) connect(ctx context.Context) (net.Conn, error) {
	var from netip.AddrPort
	if t.source.IsValid() {
		from = netip.AddrPortFrom(t.source, 0)
	}
	d := net.Dialer{KeepAlive: -1} // the timeouts above detect a dead connection earlier than keep-alives
	conn, err := d.DialTCP(ctx, "tcp", from, t.addr)
	if err != nil {
		return nil, err
	}
	c, err := newAsyncConn(conn, t.tasks.Go)
	switch {
	case err != nil:
		return nil, err
	case t.tls == nil:
		return c, nil
	}
	return handshake(ctx, c, t.tls)
}

// readLoop reads from c until it fails or is closed.
func (t *streamTransport) readLoop(c *streamConn) {
	r := frameReader{buf: make([]byte, readBufSize)}
	for {
		err := r.fill(c.conn)
		t.mu.Lock()
		if !c.closed {
			t.deliver(c, &r)
		}
		if err != nil && !c.closed {
			t.closeConn(c, err, time.Now())
		}
		over := c.closed
		t.mu.Unlock()
		c.replied.finish()
		if over {
			return
		}
	}
}

// deliver processes the messages in r; t is locked.
func (t *streamTransport) deliver(c *streamConn, r *frameReader) {
	before, now := c.inFlight, time.Now()
	for msg, ok := r.next(); ok; msg, ok = r.next() {
		if t.deliverMessage(c, msg, now) {
			continue
		}
		t.unexpected.Add(1)
		if c.unexpected++; c.unexpected == maxUnexpected {
			t.retire(c, now)
		}
	}
	t.closeIfUnused(c, before-c.inFlight, now)
}

// closeIfUnused closes or retires c if it is of no use after n queries have left it; t is
// locked.
func (t *streamTransport) closeIfUnused(c *streamConn, n int, now time.Time) {
	if c.closed {
		return
	}
	if c.orphans >= maxOrphans || c.replyOverdue(now) >= closeStalledAfter {
		t.retire(c, now)
	}
	if c.closed || c.inFlight > 0 {
		return
	}
	if n > 0 {
		c.idleSince = now
	}
	if c.retired || t.expire <= 0 || t.tooManyIdle() {
		t.closeConn(c, nil, now)
	}
}

// tooManyIdle reports whether more connections are idle than maxIdle; t is locked.
func (t *streamTransport) tooManyIdle() bool {
	idle := 0
	for _, c := range t.open {
		if c.inFlight == 0 && !c.idleSince.IsZero() {
			idle++
		}
	}
	return t.maxIdle > 0 && idle > t.maxIdle
}

// retire makes c take no more queries, and closes it once none is in flight; t is locked.
func (t *streamTransport) retire(c *streamConn, now time.Time) {
	c.retired = true
	if i := slices.Index(t.open, c); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	if c.inFlight == 0 {
		t.closeConn(c, nil, now)
	}
}

// closeConn closes c because of err; nil if nothing is wrong. Queries in flight are sent
// again or fail. t is locked.
func (t *streamTransport) closeConn(c *streamConn, err error, now time.Time) {
	if c.closed {
		return
	}
	c.release()
	delete(t.live, c)
	t.retire(c, now)
	if err == nil {
		return
	}
	if c.inFlight > 0 || c.conn == nil {
		t.brokenConns.Add(1)
	}
	again := c.answered || t.hasReadyConn(now)
	for _, q := range c.removeAll() {
		if !again || !t.resend(q, now) {
			if t.closed {
				err = ErrClosed
			}
			q.complete(err)
		}
	}
}

// hasReadyConn reports whether a connection is ready; t is locked.
func (t *streamTransport) hasReadyConn(now time.Time) bool {
	return slices.ContainsFunc(t.open, func(c *streamConn) bool { return c.rank(now) == rankReady })
}

// resend assigns q to another connection; false if it has been sent too often or its
// deadline has passed. t is locked.
func (t *streamTransport) resend(q *query, now time.Time) bool {
	if t.closed || q.resends == maxResends || !q.deadline.After(now) || !t.mayResend() {
		return false
	}
	q.resends++
	c, err := t.assign(q, now)
	if err != nil {
		return false
	}
	if c.claimWrite() {
		t.tasks.Go(func() { t.write(c) })
	}
	return true
}

// onTimer is called by the timer of c.
func (t *streamTransport) onTimer(c *streamConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	n := c.expire(now)
	t.moveOneBlocked(c, now)
	t.closeIfUnused(c, n, now)
}

// cancel is [transport.cancel].
func (t *streamTransport) cancel(q *query) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := q.conn
	if c == nil {
		return false
	}
	c.orphan(q)
	t.closeIfUnused(c, 1, time.Now())
	return true
}

// closeIdle is [transport.closeIdle].
func (t *streamTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.open) - 1; i >= 0; i-- {
		if c := t.open[i]; t.expired(c, now) {
			t.retire(c, now)
		}
	}
}

// close is [transport.close].
func (t *streamTransport) close() {
	t.mu.Lock()
	t.closed = true
	t.stop()
	for c := range t.live {
		t.closeConn(c, ErrClosed, time.Now())
	}
	t.mu.Unlock()
	t.tasks.Wait()
}

// reuse is [transport.reuse].
func (t *streamTransport) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }

// write writes the queries queued on c; the caller has claimed that. Queries queued
// meanwhile are written by another goroutine, because the caller waits for its own reply.
func (t *streamTransport) write(c *streamConn) {
	if t.flush(c) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !c.closed { // so that close waits for the goroutine
			t.tasks.Go(func() {
				for t.flush(c) {
				}
			})
		}
	}
}

// flush writes once, without blocking, and reports whether more is queued.
func (t *streamTransport) flush(c *streamConn) (more bool) {
	t.mu.Lock()
	if c.inFlight >= yieldAbove && len(c.writeBuf) < maxKeptWriteBuf {
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
	if c.closed || len(c.writeBuf) == 0 {
		c.writing = false
		t.mu.Unlock()
		return false
	}
	b, conn := c.writeBuf, c.conn
	c.writeBuf = c.spareBuf
	t.mu.Unlock()
	_, err := conn.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.closed {
		return false
	}
	c.spareBuf = nil
	if cap(b) <= maxKeptWriteBuf {
		c.spareBuf = b[:0]
	}
	if err != nil {
		t.closeConn(c, err, time.Now())
		return false
	}
	c.writing = len(c.writeBuf) > 0
	return c.writing
}
