package upstream

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Waiter waits for an exchange of [Pool.Start] in place of a goroutine. It may be used for another
// exchange after [Exchange.Wait] has returned. It must not be copied.
type Waiter struct {
	// Ready is called when Wait returns the answer without blocking. It runs on the goroutine that reads
	// from the server, and must call Wait, and not block. flush is called, unless it is nil, when all replies
	// of the server that have arrived are passed on.
	Ready func() (flush func())
	// Resume is called when another goroutine has to call Wait: a server is late or has failed, or the
	// exchange is over without an answer. Locks are held: it must neither block nor call Wait.
	Resume func()
	// ReadBy, unless it is nil, is the sockets that the goroutine which calls [Pool.Start] reads, too. The query is sent on one of
	// them if it is sent at once, and over UDP. Start sets it to nil.
	ReadBy *pollset.Set

	// parked says that no goroutine waits. Who changes it to false calls Ready or Resume.
	parked atomic.Bool
}

// Interrupt calls Resume if no goroutine waits. It is to be called when the context of Wait has ended. It
// is safe for concurrent use, also while w is used for another exchange: Resume may be called
// needlessly.
func (w *Waiter) Interrupt() {
	if w.claim() {
		w.Resume()
	}
}

// claim ends the time in which no goroutine waits. It reports whether the caller has to call Ready or Resume.
// w may be nil.
func (w *Waiter) claim() bool {
	return w != nil && w.parked.Load() && w.parked.CompareAndSwap(true, false)
}

// Exchange is an exchange that has begun. The zero Exchange has not.
type Exchange struct{ x *exchange }

// Begun reports whether e has begun, and Wait has not been called.
func (e Exchange) Begun() bool { return e.x != nil }

// Start begins what [Pool.ExchangeFrom] does: it sends the first query, without blocking, or queues it.
// [Exchange.Wait] must be called, once, for the result. q must not change until then. w may wait in
// the meantime, see [Exchange.Park].
//
// Start reports false, and does nothing, for an exchange that has to block before that: ExchangeFrom makes
// it.
func (p *Pool) Start(q *wire.Query, from From, w *Waiter) (Exchange, bool) {
	if p.chained() || p.limiter.acquire(from.Client) != nil {
		return Exchange{}, false
	}
	now := time.Now()
	x := p.begin(q, &from, now)
	started := false
	defer func() {
		if !started {
			p.end(x)
		}
	}()
	if len(x.servers) == 0 && p.members.ready != nil {
		return Exchange{}, false
	}
	x.waiter, x.readBy, w.ReadBy = w, w.ReadBy, nil
	x.start(now)
	x.readBy = nil
	started = true
	return Exchange{x}, true
}

// StartsAtOnce reports whether [Pool.Start] takes no longer than it takes to send a datagram, for a client
// that has used UDP.
func (p *Pool) StartsAtOnce() bool { return p.overUDP }

// Park lets the Waiter of [Pool.Start] wait. ctx is that of [Exchange.Wait]. After true, Ready or Resume is
// called, once, perhaps before Park returns, and the caller must use neither e nor what belongs to Ready and
// Resume. After false a goroutine has to call Wait.
func (e Exchange) Park(ctx context.Context) bool {
	x := e.x
	if x.inFlight != 1 || x.queries[0].phase != inTransport {
		return false
	}
	q, w, completed := x.queries[0], x.waiter, x.completed // x may be another exchange after park
	x.parked = x.pool.parkedFor(q.readBy)
	x.parked.park(x, q.attempt.nextCheck)
	if len(completed) == 0 && !q.softError.Load() && ctx.Err() == nil {
		return true
	}
	return !w.claim()
}

// Wait blocks like ExchangeFrom, and returns its result.
func (e Exchange) Wait(ctx context.Context) (wire.Response, error) {
	x := e.x
	defer x.pool.end(x)
	if x.parked != nil {
		x.parked.remove(x)
	}
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	return x.finish(ctx, x.begun)
}

// repliedQueries are queries with a reply, for each of which the transport has called [query.claimReply].
type repliedQueries []*query

// finish goes on with the exchanges, and forgets the queries. The transport's locks are released. The caller calls flush unless it is nil.
func (l *repliedQueries) finish() (flush func()) {
	for i, q := range *l {
		(*l)[i] = nil
		f := q.exchange.replied(q)
		if flush != nil && (f != nil || i%batchSize == 0) {
			flush()
			flush = nil
		}
		if f != nil {
			flush = f
		}
	}
	*l = (*l)[:0]
	return flush
}

// replied is called when the transport, whose locks are released, has claimed the Waiter for q, which has a reply.
func (x *exchange) replied(q *query) (flush func()) {
	w, set := x.waiter, q.readBy // x and q are not to be used once they are completed
	plain := x.plain(q)
	x.completed <- q
	if plain {
		return w.Ready()
	}
	w.Resume()
	if set != nil {
		set.Wake()
	}
	return nil
}

// plain reports whether the reply to q, the only query of x in flight, ends the exchange. If so, it is parsed.
func (x *exchange) plain(q *query) (plain bool) {
	msg, a := q.reply[:q.replyLen], &q.attempt
	if lacksEDNS(msg) || isTruncated(msg) || len(x.pool.cfg.Failover) > 0 {
		return false
	}
	defer func() {
		if recover() != nil { // it panics again where that is counted
			plain = false
		}
	}()
	answer, err := parseResponse(msg, q)
	a.parsed, a.isParsed = answer, err == nil
	return a.isParsed
}

// parkedFor returns where exchanges are parked whose replies are read by the goroutine that reads set; nil is another one.
func (p *Pool) parkedFor(set *pollset.Set) *parkedExchanges {
	if set == nil {
		return &p.parked
	}
	p.parkedMu.Lock()
	defer p.parkedMu.Unlock()
	l := p.parkedBy[set]
	if l == nil {
		maps.DeleteFunc(p.parkedBy, func(other *pollset.Set, _ *parkedExchanges) bool { return other.Closed() })
		l = &parkedExchanges{driven: true}
		p.parkedBy[set] = l
		set.AddTimer(l)
	}
	return l
}

// stopParked stops all timers for parked exchanges. None is parked, and none will be.
func (p *Pool) stopParked() {
	p.parked.stop()
	p.parkedMu.Lock()
	defer p.parkedMu.Unlock()
	for set, l := range p.parkedBy {
		set.RemoveTimer(l)
	}
}

// parkedExchanges are exchanges of a Pool for which no goroutine waits: a heap, ordered by the times at
// which they have to be checked. One timer is enough for all of them, and it is hardly ever set. Where replies are read by the goroutine that
// reads a set, that goroutine is the timer, which costs nothing. It is safe for concurrent use.
type parkedExchanges struct {
	driven bool // by a set
	size   atomic.Int32

	mu      sync.Mutex
	heap    []*exchange
	timer   *time.Timer // nil until the first exchange
	timerAt time.Time   // when it fires; zero: never
}

// park adds x, which has to be checked at the given time, and lets its Waiter wait.
func (p *parkedExchanges) park(x *exchange, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.nextCheck, x.parkedAt = at, len(p.heap)+1
	p.heap = append(p.heap, x)
	p.size.Store(int32(len(p.heap)))
	p.up(len(p.heap) - 1)
	if !p.driven && (p.timerAt.IsZero() || at.Before(p.timerAt)) {
		p.schedule(at)
	}
	x.waiter.parked.Store(true)
}

// schedule sets the timer; p is locked.
func (p *parkedExchanges) schedule(at time.Time) {
	p.timerAt = at
	d := time.Until(at)
	if p.timer == nil {
		p.timer = time.AfterFunc(d, p.check)
		return
	}
	p.timer.Reset(d)
}

// check is called by the timer.
func (p *parkedExchanges) check() {
	p.mu.Lock()
	p.timerAt = time.Time{}
	p.mu.Unlock()
	p.Fire(time.Now())
	if next := p.Next(); !next.IsZero() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timerAt.IsZero() || next.Before(p.timerAt) {
			p.schedule(next)
		}
	}
}

// Next implements [pollset.Timer].
func (p *parkedExchanges) Next() time.Time {
	if p.size.Load() == 0 {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.heap) == 0 {
		return time.Time{}
	}
	return p.heap[0].nextCheck
}

// Fire implements [pollset.Timer]: goroutines have to wait for the exchanges that are due.
func (p *parkedExchanges) Fire(now time.Time) (resumed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.heap) > 0 && !now.Before(p.heap[0].nextCheck) {
		x := p.heap[0]
		p.removeAt(0)
		if x.waiter.claim() {
			x.ring()
			x.waiter.Resume()
			resumed = true
		}
	}
	return resumed
}

// remove removes x, if it is in p.
func (p *parkedExchanges) remove(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.parkedAt > 0 {
		p.removeAt(x.parkedAt - 1)
	}
}

// stop stops the timer. No exchange is in p, and none comes.
func (p *parkedExchanges) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// removeAt removes the i-th exchange; p is locked.
func (p *parkedExchanges) removeAt(i int) {
	last := len(p.heap) - 1
	p.heap[i].parkedAt = 0
	if i != last {
		p.place(i, p.heap[last])
	}
	p.heap[last] = nil
	p.heap = p.heap[:last]
	p.size.Store(int32(last))
	if i != last {
		p.down(i)
		p.up(i)
	}
}

// place puts x at i.
func (p *parkedExchanges) place(i int, x *exchange) { p.heap[i], x.parkedAt = x, i+1 }

// up moves the i-th exchange towards the root as far as it belongs.
func (p *parkedExchanges) up(i int) {
	x := p.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !x.nextCheck.Before(p.heap[parent].nextCheck) {
			break
		}
		p.place(i, p.heap[parent])
		i = parent
	}
	p.place(i, x)
}

// down moves the i-th exchange away from the root as far as it belongs.
func (p *parkedExchanges) down(i int) {
	x := p.heap[i]
	for {
		child := 2*i + 1
		if child+1 < len(p.heap) && p.heap[child+1].nextCheck.Before(p.heap[child].nextCheck) {
			child++
		}
		if child >= len(p.heap) || !p.heap[child].nextCheck.Before(x.nextCheck) {
			break
		}
		p.place(i, p.heap[child])
		i = child
	}
	p.place(i, x)
}
