package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// maxConns is the connections to one server, those that drain included. Servers
	// count them per client (RFC 7766, 6.2.2, asks for few). Two would be enough for
	// a node's misses; four leave place for a new one while others drain.
	maxConns = 4
	// pipelineLimit is how many queries a connection has in flight before another one is
	// opened: at 10 ms each, 128 are 12,800 a second. Half would open a second
	// connection for a burst, and the fewer there are, the more queries go out in
	// one write; with double, one lost segment holds up twice as many.
	pipelineLimit = 128
	// maxInFlightPerConn is the IDs one connection has in use, of 65,536: an ID drawn at
	// random is free at the first try nearly always. With maxLinks it bounds the
	// queries in flight per server, at double what UDP has, since they cost no
	// sockets; one more fails at once.
	maxInFlightPerConn = 1024
	// maxOrphans is how many queries that nobody waits for any more may hold an ID of
	// a connection; then it takes no more. Half would retire the connection to a
	// server that drops what it can't resolve after every burst of those, double
	// is half of all IDs.
	maxOrphans = maxInFlightPerConn / 4
	// maxResends is how often a query is sent again because its connection broke.
	// Once meets a server that closes what was idle; twice also one that restarts
	// at that moment. More would feed what kills a server to all its connections.
	maxResends = 2
	// stalledAfter is how long a connection is silent, with a reply owed, before new
	// queries go to another one. A lost segment is sent again after 200 ms, the
	// least time Linux waits: half would open connections for every one of those,
	// double lets twice as many queries run into a connection that is gone.
	stalledAfter = 250 * time.Millisecond
	// closeStalledAfter is how long such a connection is kept in the hope that it comes back:
	// about as long as a reply is waited for. Half would close it on names that are
	// slow to resolve, double keeps one of maxLinks places for twice as long.
	closeStalledAfter = 2 * time.Second
	// connectTimeout is the time to connect, handshakes included: the time of a whole
	// exchange. Nobody waits for longer, and half would fail where a segment was
	// lost twice.
	connectTimeout = DefaultDeadline
)

// streamOptions is what a [streamTransport] needs beside the server's address.
type streamOptions struct {
	// tls makes it DNS over TLS (RFC 7858); nil is plain TCP. It is copied. An empty
	// ServerName is the server's address.
	tls *tls.Config
	// source is the address to ask from; the system's choice if it is not valid.
	source netip.Addr
	// expire is how long an idle connection is kept; 0 keeps none.
	expire time.Duration
	// maxAge is how long a connection takes new queries; 0 is for ever.
	maxAge time.Duration
	// maxIdle is the most idle connections kept; 0 is as many as there are.
	maxIdle int
	// unexpected counts the messages that answer nothing, broken the connections that
	// could not be made or broke with queries in flight. nil counts nothing.
	unexpected, brokenConns *atomic.Uint64
}

// setDefaults replaces what is nil.
func (o *streamOptions) setDefaults() {
	if o.unexpected == nil {
		o.unexpected = new(atomic.Uint64)
	}
	if o.brokenConns == nil {
		o.brokenConns = new(atomic.Uint64)
	}
}

// streamTransport is a transport over TCP (RFC 7766) or TLS (RFC 7858): a few connections,
// many queries in flight on each, answers in any order.
//
// Connections are made in the background, and queries wait on them meanwhile. A
// query goes to the first connection that is not crowded; one more is opened when
// all are, or when those there are owe replies and say nothing. The goroutine that
// starts a flight writes the query itself, and what others have queued by then with
// it; nothing waits for the network, since what a socket does not take at once is
// written in the background ([asyncConn]). One goroutine per connection reads. A
// connection has one timer, not each query.
//
// When a connection breaks, the queries in flight on it are sent again on another
// one: servers close connections as they like, mostly idle ones, and a query
// may be asked twice. But a connection that never brought a reply says something
// about the server; then the queries fail, and the pool goes on to the next one.
//
// Many servers, CoreDNS among them, read the next query of a connection when they have
// answered the last, so that one slow name holds up all behind it. Until a server has
// answered out of turn once, a connection that is silent for longer than usual with
// replies owed is taken for held up: queries go elsewhere, over more connections than
// otherwise if need be ([streamTransport.clientInFlight]).
//
// An ID is not used again on a connection before its reply has come, whether or not
// somebody waits for it still: a late reply is never taken for another query's.
type streamTransport struct {
	addr netip.AddrPort
	streamOptions
	ctx   context.Context // ends dials
	stop  context.CancelFunc
	tasks sync.WaitGroup // one for each connection, and those that write behind

	mu     sync.Mutex
	open   []*streamConn            // those that take queries, the oldest first
	live   map[*streamConn]struct{} // those that have a connection, or will
	closed bool
	// dialFailed says that no connection could be made the last time it was tried.
	dialFailed bool
	// outOfOrder says that the server has answered a query before one that was sent ahead
	// of it.
	outOfOrder bool
	// typicalRTT is the time of every second reply, or its estimate; 0 before the first.
	typicalRTT time.Duration
	lastReply  time.Time // when the last reply came
	// inFlight is the queries in flight on all connections.
	inFlight share.Division

	hits, misses atomic.Uint64
}

// newStreamTransport opens no connection yet.
func newStreamTransport(to netip.AddrPort, opts streamOptions) transport {
	opts.setDefaults()
	if opts.tls != nil {
		opts.tls = clientTLS(opts.tls, to.Addr())
	}
	t := &streamTransport{addr: to, streamOptions: opts, live: make(map[*streamConn]struct{}), inFlight: share.NewDivision(maxConns * maxInFlightPerConn)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// start is [transport.start].
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

// assignNew is [streamTransport.acquireConn] for a flight that begins; t is locked.
func (t *streamTransport) assignNew(q *query, now time.Time) (*streamConn, error) {
	if t.inFlight.Ask(q.client) != share.Fits {
		return nil, ErrBusy
	}
	return t.assign(q, now)
}

// assign puts c on a connection, which may still be in the making; t is locked.
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

// pickConn gives the connection for the next query, and begins one where that is of use;
// nil if there is no place. t is locked.
func (t *streamTransport) pickConn(now time.Time) *streamConn {
	c := t.bestConn(now)
	if c == nil && t.closeOldestRetired(now) {
		c = t.bestConn(now) // what was in flight there may have opened one
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

// bestConn gives the connection for the next query, nil for none; t is locked. It is
// the first that is not crowded, so that those there are too many of get idle.
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

// needsConn reports whether another connection should be made where best is the best
// there is; t is locked.
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

// expired reports whether l should take no more queries; t is locked.
func (t *streamTransport) expired(c *streamConn, now time.Time) bool {
	return c.inFlight == 0 && !c.idleSince.IsZero() && now.Sub(c.idleSince) >= t.expire ||
		t.maxAge > 0 && now.Sub(c.begunAt) >= t.maxAge ||
		c.replyOverdue(now) >= closeStalledAfter
}

// closeOldestRetired breaks the oldest connection that drains, if all places are taken, and reports
// whether one has become free; t is locked.
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

// errConnStuck is the end of a connection that owes replies for too long.
var errConnStuck error = localError{errors.New("the connection is stuck")}

// dial begins a connection; t is locked and not closed.
func (t *streamTransport) dial(now time.Time) *streamConn {
	c := newStreamConn(now, &t.inFlight)
	c.ctx, c.cancel = context.WithTimeout(t.ctx, connectTimeout)
	c.timer = time.AfterFunc(connectTimeout, func() { t.onTimer(c) })
	t.open = append(t.open, c)
	t.live[c] = struct{}{}
	t.tasks.Go(func() { t.run(c) })
	return c
}

// run is the goroutine of l: it connects, and then reads.
func (t *streamTransport) run(c *streamConn) {
	conn, err := t.connect(c.ctx)
	if !t.handleConnected(c, conn, err) {
		return
	}
	t.write(c)
	t.readLoop(c)
}

// handleConnected takes conn, or the error there is instead, and reports whether l is alive
// with it. What waits on l is claimed then.
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

// connect makes a connection, ready to carry messages.
func (t *streamTransport) connect(ctx context.Context) (net.Conn, error) {
	var from netip.AddrPort
	if t.source.IsValid() {
		from = netip.AddrPortFrom(t.source, 0)
	}
	d := net.Dialer{KeepAlive: -1} // silence shows earlier than by keep-alives
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

// readLoop reads from l until it breaks.
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
		if over {
			return
		}
	}
}

// deliver hands out the messages that f holds; t is locked.
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

// closeIfUnused ends l if it is of no use any more after n calls have left it; t is locked.
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

// tooManyIdle reports whether more connections are idle than should be kept; t is
// locked.
func (t *streamTransport) tooManyIdle() bool {
	idle := 0
	for _, c := range t.open {
		if c.inFlight == 0 && !c.idleSince.IsZero() {
			idle++
		}
	}
	return t.maxIdle > 0 && idle > t.maxIdle
}

// retire lets l take no more queries; t is locked.
func (t *streamTransport) retire(c *streamConn, now time.Time) {
	c.retired = true
	if i := slices.Index(t.open, c); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	if c.inFlight == 0 {
		t.closeConn(c, nil, now)
	}
}

// closeConn is the end of l, because of err; nil if nothing is wrong. t is locked.
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

// hasReadyConn reports whether a connection works; t is locked.
func (t *streamTransport) hasReadyConn(now time.Time) bool {
	return slices.ContainsFunc(t.open, func(c *streamConn) bool { return c.rank(now) == rankReady })
}

// resend puts c on another connection; false if it has been on too many, or its time
// is over. t is locked.
func (t *streamTransport) resend(q *query, now time.Time) bool {
	if t.closed || q.resends == maxResends || !q.deadline.After(now) {
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

// onTimer is called by l's timer.
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
