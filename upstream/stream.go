package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"time"
)

const (
	// maxConns is the maximum number of connections to one server, retired ones included;
	// see maxConnsInOrder and maxConnsFewQueries for exceptions. RFC 7766, 6.2.2, asks clients for few. Two suffice
	// for a node's cache misses; four leave room for new ones while others are retired.
	maxConns = 4
	// pipelineLimit is how many queries are in flight on a connection to a server that
	// answers out of order before another one is opened. At 10 ms each that is 12,800
	// queries per second. Fewer connections mean more queries per write; but one lost
	// segment delays all queries of its connection.
	pipelineLimit = 128
	// maxResends is how often a query is sent again because its connection failed: once for
	// a server that closes idle connections, twice for one that also restarts at that
	// moment.
	maxResends = 2
	// maxStreamResends is the same over TCP and TLS, where servers also close connections
	// after some queries, which takes two connections to learn.
	maxStreamResends = 4
	// connectTimeout is the default of the option.
	connectTimeout = DefaultDeadline
)

// streamTransport is a transport over TCP (RFC 7766) or TLS (RFC 7858) with a few
// connections, many queries in flight on each, and replies in any order.
//
// Connections are opened in the background while queries wait (see
// [streamTransport.pickConn]). The goroutine that starts a query writes it, together with
// the queries queued by then. Nothing waits for the network: [asyncConn] writes in the background what
// the socket does not accept at once. Each connection has one reading goroutine and one
// timer.
//
// When a connection fails, its queries are sent again on another one, because servers close
// connections at any time. A connection that never brought a reply indicates a failing
// server: its queries fail, and the pool asks the next server.
//
// Many servers, CoreDNS among them, answer the queries of a connection strictly in order,
// so one slow name delays all queries behind it (head-of-line blocking). Unless a server has
// lately answered out of order, queries prefer idle connections, and a connection that owes
// replies and is silent for longer than usual is considered blocked: queries use other
// connections, and more of them if necessary (see [streamTransport.headOfLineBlocked]).
//
// Servers close connections after some queries, and accept some connections only. Both
// numbers are learned from the connections' ends, and forgotten after a while, see
// [learned].
//
// An ID is not reused on a connection before its reply has arrived, even if the query was
// canceled or has expired. So a late reply is never taken for another query's.
type streamTransport struct {
	addr netip.AddrPort
	connTransport

	// The lock guards these.
	open []*streamConn            // take queries; oldest first
	live map[*streamConn]struct{} // connected or connecting
	// backlog has the queries that wait until a server that answers few queries per
	// connection may get another one. It is never connected.
	backlog *streamConn
	learned
	inFlight int // queries, those of the backlog included
}

// newStreamTransport opens no connection.
func newStreamTransport(to netip.AddrPort, opts connOptions) transport {
	opts.setDefaults()
	if opts.tls != nil {
		opts.tls = clientTLS(opts.tls, to.Addr())
	}
	t := &streamTransport{addr: to, live: make(map[*streamConn]struct{})}
	t.init(opts)
	t.backlog = t.newConn(time.Now(), time.Hour)
	t.backlog.timer.Stop()
	return t
}

// start is [transport.start].
func (t *streamTransport) start(q *query) {
	q.resends, q.movedFrom = 0, nil
	now := time.Now()
	t.mu.Lock()
	c, err := t.assign(q, now)
	mine := err == nil && c.claimWrite()
	t.mu.Unlock()
	if err != nil {
		q.complete(err)
	} else if mine {
		t.write(c)
	}
}

// assign assigns q to a connection, which may still be connecting; t is locked.
func (t *streamTransport) assign(q *query, now time.Time) (*streamConn, error) {
	switch {
	case t.closed:
		return nil, ErrClosed
	case t.inFlight >= maxConns*maxInFlightPerConn:
		return nil, ErrBusy
	}
	c := t.pickConn(now)
	if c == nil && t.queryLimit > 0 && len(t.live) > 0 && t.backlog.inFlight < maxInFlightPerConn {
		c = t.backlog
	}
	if c == nil {
		return nil, cmp.Or(t.pause.err(now), ErrBusy)
	}
	c.add(q, now)
	t.scheduleBlockedCheck(c, now)
	return c, nil
}

// closeOldestRetired closes the oldest retired connection if no other may be opened, and
// reports whether it did; t is locked.
func (t *streamTransport) closeOldestRetired(now time.Time) bool {
	if len(t.live) < t.maxLive(nil, now) {
		return false
	}
	var oldest *streamConn
	for c := range t.live {
		if c.retired && (oldest == nil || c.openedAt.Before(oldest.openedAt)) {
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

// errNotAccepted is the error of a connection that the server seems not to have accepted.
var errNotAccepted = errors.New("only other connections bring replies")

// newConn returns a streamConn that is to be connected within the given time.
func (t *streamTransport) newConn(now time.Time, within time.Duration) *streamConn {
	c := newStreamConn(now, &t.inFlight)
	c.ctx, c.cancel = context.WithTimeout(t.ctx, within)
	c.timer = time.AfterFunc(within, func() { t.onTimer(c) })
	return c
}

// dial starts connecting; t is locked and not closed.
func (t *streamTransport) dial(now time.Time) *streamConn {
	c := t.newConn(now, t.connectTimeout)
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
	if err != nil {
		now := time.Now()
		err = fmt.Errorf("connecting: %w", err)
		t.pause.start(err, now)
		t.closeConn(c, err, now)
		t.drainBacklog(time.Now())
		return false
	}
	c.under = under(conn)
	c.setConn(conn)
	c.writing = true
	t.scheduleBlockedCheck(c, c.idleSince)
	t.takeWaiting(c, time.Now())
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
		t.drainBacklog(time.Now())
		over := c.closed
		c.under.ackNow = c.inFlight > 0 && c.inFlight < ackWithQuery
		t.mu.Unlock()
		if flush := c.claimed.finish(); flush != nil {
			flush()
		}
		if over {
			return
		}
	}
}

// under returns the TCP connection below conn, the result of connect.
func under(conn net.Conn) *asyncConn {
	if c, ok := conn.(*tlsConn); ok {
		return c.under
	}
	return conn.(*asyncConn)
}

// deliver processes the messages in r; t is locked.
func (t *streamTransport) deliver(c *streamConn, r *frameReader) {
	before, now := c.inFlight, time.Now()
	for msg, ok := r.next(); ok; msg, ok = r.next() {
		if t.deliverMessage(c, msg, now) {
			continue
		}
		if c.isStray(&t.connOptions) {
			t.retire(c, now)
		}
	}
	t.closeIfUnused(c, before-c.inFlight, now)
}

// closeIfUnused closes or retires c if it is of no use after n queries have left it; t is
// locked.
func (t *streamTransport) closeIfUnused(c *streamConn, n int, now time.Time) {
	if c.closed || c == t.backlog {
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
	if t.surplus(c) {
		t.closeConn(c, nil, now)
		return
	}
	t.takeWaiting(c, now)
}

// surplus reports whether c, which is idle, is of no use to later queries; t is locked.
func (t *streamTransport) surplus(c *streamConn) bool {
	return c.retired || t.expire <= 0 || t.usedUp(c) || tooManyIdle(t.open, t.maxIdle)
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
	if c.inFlight > 0 || c.conn == nil && c != t.backlog {
		t.brokenConns.Add(1)
	}
	again := t.answering(c)
	t.learnFromEnd(c, err, now)
	for _, q := range c.removeAll() {
		if !again || !t.resend(q, now) {
			if t.closed {
				err = ErrClosed
			}
			q.complete(err)
		}
	}
}

// resend assigns q to another connection; false if it has been sent too often or its
// deadline has passed. t is locked.
func (t *streamTransport) resend(q *query, now time.Time) bool {
	if t.closed || q.resends >= maxStreamResends || !q.deadline.After(now) || !t.mayResend() {
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
	t.moveBlocked(c, now)
	t.closeIfUnused(c, n, now)
	t.drainBacklog(now)
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
	t.drainBacklog(time.Now())
	return true
}

// closeIdle is [transport.closeIdle].
func (t *streamTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retireExpired(now)
}

// retireExpired retires the connections that should take no more queries; t is locked.
func (t *streamTransport) retireExpired(now time.Time) {
	for i := len(t.open) - 1; i >= 0; i-- {
		if c := t.open[i]; c.expired(&t.connOptions, now) || c.replyOverdue(now) >= closeStalledAfter {
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
	t.closeConn(t.backlog, ErrClosed, time.Now())
	t.mu.Unlock()
	t.tasks.Wait()
}

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
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		t.retire(c, time.Now()) // replies may have arrived before; readLoop gets an error after them
		return false
	default:
		t.closeConn(c, err, time.Now())
		return false
	}
	c.writing = len(c.writeBuf) > 0
	return c.writing
}
