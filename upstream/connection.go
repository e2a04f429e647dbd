package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// connTransport is what the transports over streams, HTTPS and QUIC share.
type connTransport struct {
	connOptions
	ctx   context.Context // ends connecting and waiting
	stop  context.CancelFunc
	tasks sync.WaitGroup // connections, queries and writes in the background

	mu     sync.Mutex
	pause  connectPause
	closed bool

	hits, misses atomic.Uint64
}

// init makes t ready, with complete options.
func (t *connTransport) init(opts connOptions) {
	t.connOptions = opts
	t.ctx, t.stop = context.WithCancel(context.Background())
}

// reuse is [transport.reuse].
func (t *connTransport) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }

// connOptions are the settings of a transport with connections.
type connOptions struct {
	// tls are the settings of TLS; nil means without TLS, where there is a choice. It is cloned. An empty ServerName
	// stands for the server's address.
	tls *tls.Config
	// source is the local address; the system chooses if it is invalid.
	source netip.Addr
	// expire is how long an idle connection is kept; 0 means not at all.
	expire time.Duration
	// maxAge is how long a connection takes new queries; 0 means without limit.
	maxAge time.Duration
	// maxIdle is the maximum number of idle connections kept; 0 means without limit.
	maxIdle int
	// connectTimeout bounds connecting, including the TLS handshake; 0 means the constant of this
	// name.
	connectTimeout time.Duration
	// unexpected counts messages that match no query; brokenConns counts connections that
	// could not be opened or failed with queries in flight. Either may be nil.
	unexpected, brokenConns *atomic.Uint64
	// mayResend reports whether a query may be sent once more on another connection; nil means always. It must not block.
	mayResend func() bool
}

// setDefaults replaces nil fields and connectTimeout.
func (o *connOptions) setDefaults() {
	if o.mayResend == nil {
		o.mayResend = func() bool { return true }
	}
	if o.connectTimeout == 0 {
		o.connectTimeout = connectTimeout
	}
	if o.unexpected == nil {
		o.unexpected = new(atomic.Uint64)
	}
	if o.brokenConns == nil {
		o.brokenConns = new(atomic.Uint64)
	}
}

// connection is the life of a connection, whatever the transport: it is opened, has queries in flight, owes replies, is idle, and is
// retired, after which it takes no more queries and is closed once none is in flight. The transport's lock guards it.
type connection struct {
	openedAt time.Time
	// idleSince is when the last query left; zero before the connection is established. It
	// is meaningless while queries are in flight.
	idleSince time.Time
	// owedSince is since when a reply is owed and none has arrived; zero if none is owed.
	owedSince  time.Time
	inFlight   int
	retired    bool
	closed     bool
	unexpected int // messages that match no query
}

// idle reports whether c is established and has no query in flight.
func (c *connection) idle() bool { return c.inFlight == 0 && !c.idleSince.IsZero() }

// expired reports whether c is idle for too long or too old: it should take no more queries.
func (c *connection) expired(o *connOptions, now time.Time) bool {
	return c.idle() && now.Sub(c.idleSince) >= o.expire || o.maxAge > 0 && now.Sub(c.openedAt) >= o.maxAge
}

// begin records that a query begins.
func (c *connection) begin(now time.Time) {
	c.inFlight++
	if c.owedSince.IsZero() {
		c.owedSince = now
	}
}

// replied records that a reply has arrived; more says that others are owed, from now on.
func (c *connection) replied(more bool, now time.Time) {
	if c.owedSince = now; !more {
		c.owedSince = time.Time{}
	}
}

// replyOverdue returns for how long a reply is owed.
func (c *connection) replyOverdue(now time.Time) time.Duration {
	if c.owedSince.IsZero() {
		return 0
	}
	return now.Sub(c.owedSince)
}

// isStray counts a message that matches no query, and reports whether c has had so many that it is to be retired.
func (c *connection) isStray(o *connOptions) (retire bool) {
	o.unexpected.Add(1)
	c.unexpected++
	return c.unexpected == maxUnexpected
}

// tooManyIdle reports whether more of the connections are idle than most; 0 is no limit.
func tooManyIdle[C interface{ idle() bool }](open []C, most int) bool {
	n := 0
	for _, c := range open {
		if c.idle() {
			n++
		}
	}
	return most > 0 && n > most
}

const (
	// firstConnectPause is how long a transport does not connect after a failed attempt.
	firstConnectPause = 100 * time.Millisecond
	// connectPauseDoublings is how often the pause doubles while attempts fail. The longest
	// pause of 400 ms adds that much to a restart, and means 2.5 attempts per second to a
	// server that stays away.
	connectPauseDoublings = 2
)

// connectPause keeps a transport from connecting in a loop to a server that refuses
// connections or closes them at once, as one that shuts down does. Without it, each query
// that waits would cause an attempt. The zero value is no pause; the transport's lock
// guards it.
type connectPause struct {
	failures int       // in a row
	until    time.Time // no attempts before
	reason   error     // of the last failure
}

// errEndedUnanswered is the reason of a pause after a connection that was opened in vain.
var errEndedUnanswered = errors.New("the server ends connections before the first reply")

// start begins a pause because an attempt has failed with err.
func (p *connectPause) start(err error, now time.Time) {
	p.until = now.Add(firstConnectPause << min(p.failures, connectPauseDoublings))
	p.failures++
	p.reason = err
}

// startUnlessFirst is start for a connection that the server has closed without a reply. The first one may have met the end of a restart,
// so another one may follow at once.
func (p *connectPause) startUnlessFirst(err error, now time.Time) {
	if p.failures > 0 {
		p.start(err, now)
		return
	}
	p.failures++
}

// end ends the pause because the server has replied.
func (p *connectPause) end() { *p = connectPause{} }

// err returns the error for queries that need a new connection; nil if the transport may
// connect.
func (p *connectPause) err(now time.Time) error {
	if now.Before(p.until) {
		return p.reason
	}
	return nil
}

// waitQueue is the queries that wait for a connection, ordered by how many queries their
// clients have in flight, rounded to powers of two, and then by arrival. Its lock is
// acquired last, because net/http calls back with its own locks held.
type waitQueue struct {
	mu      sync.Mutex
	waiters []chan error
	ranks   []int // of waiters
}

// join adds a waiter of a client with held queries in flight. Its channel receives at most
// one value: nil to try again, or an error to give up with.
func (w *waitQueue) join(held int) chan error {
	w.mu.Lock()
	defer w.mu.Unlock()
	place, rank := make(chan error, 1), bits.Len(uint(held))
	i, _ := slices.BinarySearch(w.ranks, rank+1) // behind all waiters of the same rank
	w.ranks = slices.Insert(w.ranks, i, rank)
	w.waiters = slices.Insert(w.waiters, i, place)
	return place
}

// wait waits at place until it is woken, maybe with an error to give up with. timeout returns the error if ctx ends before that.
func (w *waitQueue) wait(ctx context.Context, place chan error, timeout func(context.Context) error) error {
	select {
	case err := <-place:
		return err
	case <-ctx.Done():
		w.leave(place)
		return timeout(ctx)
	}
}

// leave removes a waiter. If it was woken already, the next one is woken instead.
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

// empty reports whether there are no waiters.
func (w *waitQueue) empty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters) == 0
}

// wake wakes the first n waiters, to try again or to give up with err; all if n is
// negative.
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
