package server

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
)

// connActivity is what the limits of connections know about one.
type connActivity struct {
	// share is what the client counts as.
	share netip.Addr
	// lastQuery is when the last query arrived, or the connection before its first query,
	// by package clock.
	lastQuery atomic.Int64
	// waiting is the number of queries that wait, or of requests or streams in flight.
	waiting atomic.Int32
	// large is set while the last reply was larger than largeReply: the next one is made in turn.
	large atomic.Bool
}

// largeReply is the size above which a reply is large. Copying it, and shuffling its addresses, takes tens of microseconds.
const largeReply = 16 << 10

// ClientAddr implements connlimit's interface.
func (a *connActivity) ClientAddr() netip.Addr { return a.share }

// Activity implements connlimit's interface.
func (a *connActivity) Activity() (last time.Duration, busy bool) {
	return time.Duration(a.lastQuery.Load()), a.waiting.Load() > 0
}

// streamPlaces are the places of a listener's streams in flight: requests over HTTP, or queries over
// QUIC. They are divided among clients by the same rule as waiting queries, but have places of their
// own, because a query that arrives slowly occupies no place of a waiting query. It is safe for
// concurrent use.
type streamPlaces struct {
	*share.Limiter

	mu       sync.Mutex
	draining bool
	drained  chan struct{} // closed when draining is set and no stream is in flight
}

func newStreamPlaces(n int) *streamPlaces {
	return &streamPlaces{Limiter: share.NewLimiter(n), drained: make(chan struct{})}
}

// begin makes e a stream in flight on the connection c; false if there is no room.
func (p *streamPlaces) begin(c *connActivity, e *streamQuery) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining || !p.Acquire(&e.inFlight, c.share) {
		return false
	}
	c.waiting.Add(1)
	c.lastQuery.Store(int64(clock.Now()))
	e.conn = c
	return true
}

// end ends a stream that begin has admitted, and releases e.
func (p *streamPlaces) end(c *connActivity, e *streamQuery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.waiting.Add(-1)
	p.Release(&e.inFlight)
	e.release()
	if p.draining && p.Idle() {
		close(p.drained)
	}
}

// drain admits no more streams. It is called once.
func (p *streamPlaces) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	if p.Idle() {
		close(p.drained)
	}
}

// isDraining reports whether drain was called.
func (p *streamPlaces) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}
