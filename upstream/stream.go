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
	// maxLinks is the connections to one server, those that drain included. Servers
	// count them per client (RFC 7766, 6.2.2, asks for few). Two would be enough for
	// a node's misses; four leave place for a new one while others drain.
	maxLinks = 4
	// crowd is how many queries a connection has in flight before another one is
	// opened: at 10 ms each, 128 are 12,800 a second. Half would open a second
	// connection for a burst, and the fewer there are, the more queries go out in
	// one write; with double, one lost segment holds up twice as many.
	crowd = 128
	// maxFlying is the IDs one connection has in use, of 65,536: an ID drawn at
	// random is free at the first try nearly always. With maxLinks it bounds the
	// queries in flight per server, at double what UDP has, since they cost no
	// sockets; one more fails at once.
	maxFlying = 1024
	// maxLost is how many queries that nobody waits for any more may hold an ID of
	// a connection; then it takes no more. Half would retire the connection to a
	// server that drops what it can't resolve after every burst of those, double
	// is half of all IDs.
	maxLost = maxFlying / 4
	// maxResends is how often a query is sent again because its connection broke.
	// Once meets a server that closes what was idle; twice also one that restarts
	// at that moment. More would feed what kills a server to all its connections.
	maxResends = 2
	// doubt is how long a connection is silent, with a reply owed, before new
	// queries go to another one. A lost segment is sent again after 200 ms, the
	// least time Linux waits: half would open connections for every one of those,
	// double lets twice as many queries run into a connection that is gone.
	doubt = 250 * time.Millisecond
	// patience is how long such a connection is kept in the hope that it comes back:
	// about as long as a reply is waited for. Half would close it on names that are
	// slow to resolve, double keeps one of maxLinks places for twice as long.
	patience = 2 * time.Second
	// connectTime is the time to connect, handshakes included: the time of a whole
	// exchange. Nobody waits for longer, and half would fail where a segment was
	// lost twice.
	connectTime = DefaultDeadline
)

// streamOptions is what a [stream] needs beside the server's address.
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
	// strays counts the messages that answer nothing, broken the connections that
	// could not be made or broke with queries in flight. nil counts nothing.
	strays, broken *atomic.Uint64
}

// fill replaces what is nil.
func (o *streamOptions) fill() {
	if o.strays == nil {
		o.strays = new(atomic.Uint64)
	}
	if o.broken == nil {
		o.broken = new(atomic.Uint64)
	}
}

// stream is a transport over TCP (RFC 7766) or TLS (RFC 7858): a few connections,
// many queries in flight on each, answers in any order.
//
// Connections are made in the background, and queries wait on them meanwhile. A
// query goes to the first connection that is not crowded; one more is opened when
// all are, or when those there are owe replies and say nothing. The goroutine that
// starts a flight writes the query itself, and what others have queued by then with
// it; nothing waits for the network, since what a socket does not take at once is
// written in the background ([pipe]). One goroutine per connection reads. A
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
// otherwise if need be ([stream.held]).
//
// An ID is not used again on a connection before its reply has come, whether or not
// somebody waits for it still: a late reply is never taken for another query's.
type stream struct {
	to netip.AddrPort
	streamOptions
	ctx    context.Context // ends dials
	cancel context.CancelFunc
	tasks  sync.WaitGroup // one for each connection, and those that write behind

	mu     sync.Mutex
	open   []*link            // those that take queries, the oldest first
	live   map[*link]struct{} // those that have a connection, or will
	closed bool
	// refused says that no connection could be made the last time it was tried.
	refused bool
	// anyTurn says that the server has answered a query before one that was sent ahead
	// of it.
	anyTurn bool
	// usual is the time of every second reply, or its estimate; 0 before the first.
	usual time.Duration
	heard time.Time // when the last reply came
	// flying is the queries in flight on all connections.
	flying share.Division

	hits, misses atomic.Uint64
}

// newStream opens no connection yet.
func newStream(to netip.AddrPort, opts streamOptions) transport {
	opts.fill()
	if opts.tls != nil {
		opts.tls = clientTLS(opts.tls, to.Addr())
	}
	t := &stream{to: to, streamOptions: opts, live: make(map[*link]struct{}), flying: share.NewDivision(maxLinks * maxFlying)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// start is [transport.start].
func (t *stream) start(c *call) {
	c.resent, c.from = 0, nil
	now := time.Now()
	t.mu.Lock()
	l, err := t.admit(c, now)
	mine := err == nil && l.claim()
	t.mu.Unlock()
	if err != nil {
		c.land(err)
	} else if mine {
		t.write(l)
	}
}

// admit is [stream.board] for a flight that begins; t is locked.
func (t *stream) admit(c *call, now time.Time) (*link, error) {
	if t.flying.Ask(c.client) != share.Fits {
		return nil, ErrBusy
	}
	return t.board(c, now)
}

// board puts c on a connection, which may still be in the making; t is locked.
func (t *stream) board(c *call, now time.Time) (*link, error) {
	if t.closed {
		return nil, ErrClosed
	}
	l := t.find(now)
	if l == nil {
		return nil, ErrBusy
	}
	l.put(c, now)
	t.watch(l, now)
	return l, nil
}

// find gives the connection for the next query, and begins one where that is of use;
// nil if there is no place. t is locked.
func (t *stream) find(now time.Time) *link {
	l := t.choose(now)
	if l == nil && t.evict(now) {
		l = t.choose(now) // what was in flight there may have opened one
	}
	if len(t.live) < t.places(l, now) && t.wants(l, now) {
		t.misses.Add(1)
		if fresh := t.dial(now); l == nil || t.rank(l, now) >= held {
			return fresh
		}
	} else if l != nil {
		t.hits.Add(1)
	}
	return l
}

// choose gives the connection for the next query, nil for none; t is locked. It is
// the first that is not crowded, so that those there are too many of get idle.
func (t *stream) choose(now time.Time) (best *link) {
	for i := len(t.open) - 1; i >= 0; i-- {
		if l := t.open[i]; t.old(l, now) {
			t.retire(l, now)
		}
	}
	for _, l := range t.open {
		if len(l.ids) >= maxFlying {
			continue
		}
		if best == nil || t.rank(l, now) < t.rank(best, now) ||
			t.rank(l, now) == t.rank(best, now) && best.flying >= t.crowded() && l.flying < best.flying {
			best = l
		}
	}
	return best
}

// wants reports whether another connection should be made where best is the best
// there is; t is locked.
func (t *stream) wants(best *link, now time.Time) bool {
	if best == nil {
		return true
	}
	switch t.rank(best, now) {
	case doubted, held:
		return !t.refused
	case ready:
		return best.flying >= t.crowded() && !t.refused && !slices.ContainsFunc(t.open, func(l *link) bool { return l.conn == nil })
	}
	return false
}

// old reports whether l should take no more queries; t is locked.
func (t *stream) old(l *link, now time.Time) bool {
	return l.flying == 0 && !l.idle.IsZero() && now.Sub(l.idle) >= t.expire ||
		t.maxAge > 0 && now.Sub(l.since) >= t.maxAge ||
		l.silent(now) >= patience
}

// evict breaks the oldest connection that drains, if all places are taken, and reports
// whether one has become free; t is locked.
func (t *stream) evict(now time.Time) bool {
	if len(t.live) < maxLinks {
		return false
	}
	var oldest *link
	for l := range t.live {
		if l.retired && (oldest == nil || l.since.Before(oldest.since)) {
			oldest = l
		}
	}
	if oldest != nil {
		t.lose(oldest, errStuck, now)
	}
	return oldest != nil
}

// errStuck is the end of a connection that owes replies for too long.
var errStuck error = localError{errors.New("the connection is stuck")}

// dial begins a connection; t is locked and not closed.
func (t *stream) dial(now time.Time) *link {
	l := newLink(now, &t.flying)
	l.ctx, l.cancel = context.WithTimeout(t.ctx, connectTime)
	l.timer = time.AfterFunc(connectTime, func() { t.ring(l) })
	t.open = append(t.open, l)
	t.live[l] = struct{}{}
	t.tasks.Go(func() { t.run(l) })
	return l
}

// run is the goroutine of l: it connects, and then reads.
func (t *stream) run(l *link) {
	conn, err := t.connect(l.ctx)
	if !t.arrive(l, conn, err) {
		return
	}
	t.write(l)
	t.read(l)
}

// arrive takes conn, or the error there is instead, and reports whether l is alive
// with it. What waits on l is claimed then.
func (t *stream) arrive(l *link, conn net.Conn, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.dead {
		if err == nil {
			conn.Close()
		}
		return false
	}
	if t.refused = err != nil; t.refused {
		t.lose(l, fmt.Errorf("connecting: %w", err), time.Now())
		return false
	}
	l.connected(conn)
	l.writing = true
	return true
}

// connect makes a connection, ready to carry messages.
func (t *stream) connect(ctx context.Context) (net.Conn, error) {
	var from netip.AddrPort
	if t.source.IsValid() {
		from = netip.AddrPortFrom(t.source, 0)
	}
	d := net.Dialer{KeepAlive: -1} // silence shows earlier than by keep-alives
	conn, err := d.DialTCP(ctx, "tcp", from, t.to)
	if err != nil {
		return nil, err
	}
	p, err := newPipe(conn, t.tasks.Go)
	switch {
	case err != nil:
		return nil, err
	case t.tls == nil:
		return p, nil
	}
	return shake(ctx, p, t.tls)
}

// read reads from l until it breaks.
func (t *stream) read(l *link) {
	f := frames{buf: make([]byte, readRoom)}
	for {
		err := f.fill(l.conn)
		t.mu.Lock()
		if !l.dead {
			t.deliver(l, &f)
		}
		if err != nil && !l.dead {
			t.lose(l, err, time.Now())
		}
		over := l.dead
		t.mu.Unlock()
		if over {
			return
		}
	}
}

// deliver hands out the messages that f holds; t is locked.
func (t *stream) deliver(l *link, f *frames) {
	before, now := l.flying, time.Now()
	for msg, ok := f.next(); ok; msg, ok = f.next() {
		if t.deliverTo(l, msg, now) {
			continue
		}
		t.strays.Add(1)
		if l.strays++; l.strays == maxStrays {
			t.retire(l, now)
		}
	}
	t.landed(l, before-l.flying, now)
}

// landed ends l if it is of no use any more after n calls have left it; t is locked.
func (t *stream) landed(l *link, n int, now time.Time) {
	if l.dead {
		return
	}
	if l.lost >= maxLost || l.silent(now) >= patience {
		t.retire(l, now)
	}
	if l.dead || l.flying > 0 {
		return
	}
	if n > 0 {
		l.idle = now
	}
	if l.retired || t.expire <= 0 || t.surplus() {
		t.lose(l, nil, now)
	}
}

// surplus reports whether more connections are idle than should be kept; t is
// locked.
func (t *stream) surplus() bool {
	idle := 0
	for _, l := range t.open {
		if l.flying == 0 && !l.idle.IsZero() {
			idle++
		}
	}
	return t.maxIdle > 0 && idle > t.maxIdle
}

// retire lets l take no more queries; t is locked.
func (t *stream) retire(l *link, now time.Time) {
	l.retired = true
	if i := slices.Index(t.open, l); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	if l.flying == 0 {
		t.lose(l, nil, now)
	}
}

// lose is the end of l, because of err; nil if nothing is wrong. t is locked.
func (t *stream) lose(l *link, err error, now time.Time) {
	if l.dead {
		return
	}
	l.end()
	delete(t.live, l)
	t.retire(l, now)
	if err == nil {
		return
	}
	if l.flying > 0 || l.conn == nil {
		t.broken.Add(1)
	}
	again := l.answered || t.usable(now)
	for _, c := range l.leave() {
		if !again || !t.resend(c, now) {
			if t.closed {
				err = ErrClosed
			}
			c.land(err)
		}
	}
}

// usable reports whether a connection works; t is locked.
func (t *stream) usable(now time.Time) bool {
	return slices.ContainsFunc(t.open, func(l *link) bool { return l.rank(now) == ready })
}

// resend puts c on another connection; false if it has been on too many, or its time
// is over. t is locked.
func (t *stream) resend(c *call, now time.Time) bool {
	if t.closed || c.resent == maxResends || !c.until.After(now) {
		return false
	}
	c.resent++
	l, err := t.board(c, now)
	if err != nil {
		return false
	}
	if l.claim() {
		t.tasks.Go(func() { t.write(l) })
	}
	return true
}

// ring is called by l's timer.
func (t *stream) ring(l *link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.dead {
		return
	}
	now := time.Now()
	n := l.expire(now)
	t.relieve(l, now)
	t.landed(l, n, now)
}

// withdraw is [transport.withdraw].
func (t *stream) withdraw(c *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := c.link
	if l == nil {
		return false
	}
	l.abandon(c)
	t.landed(l, 1, time.Now())
	return true
}

// sweep is [transport.sweep].
func (t *stream) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.open) - 1; i >= 0; i-- {
		if l := t.open[i]; t.old(l, now) {
			t.retire(l, now)
		}
	}
}

// close is [transport.close].
func (t *stream) close() {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	for l := range t.live {
		t.lose(l, ErrClosed, time.Now())
	}
	t.mu.Unlock()
	t.tasks.Wait()
}

// reuse is [transport.reuse].
func (t *stream) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
