package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Fetch answers q from the cache or else by exchange, and stores the reply of exchange if it
// is cacheable. It looks the question up and counts the lookup as [Cache.Get] and
// [Result.Count] do, on the store's clock; drop a Result of Get for the same query. hit
// reports whether the reply came from the cache without a wait. If that entry is to be
// refreshed, Fetch calls Refresh with exchange.
//
// At a miss every TTL in r is the one that the reply is stored with, so that clients see no
// jump between this reply and the next one from the cache. At most one exchange runs for a
// key at a time, on the goroutine and with the ctx of the first client. Other clients wait
// for its result, for as long as exchange takes; exchange must return. They get its error,
// too; r is then unchanged. An error is stored as a SERVFAIL (RFC 9520) unless it wraps
// [ErrLocal] or ctx was cancelled. After an ErrLocal the clients that waited exchange
// themselves. An error that wraps [ErrUnreachable] is not stored either. q must not change until Fetch returns.
//
// If an expired answer may be served, r becomes that answer if exchange fails or takes longer
// than the directive's client timeout; err is nil then. exchange may then run on a goroutine
// of [Options.Go], and go on after Fetch has returned.
//
// A waiting client whose ctx ends gets ctx's error. The end of the first client's ctx ends
// the exchange for all, unless ctx ends with [share.ErrEvicted]: then a waiting client
// exchanges in its place. A client whose ctx ends so gets the expired answer if there is one.
// If exchange panics, the panic goes on in its goroutine, waiting clients get an
// error, and nothing is stored.
func (c *Cache) Fetch(ctx context.Context, q *wire.Query, r *wire.Reply, exchange ExchangeFunc) (hit bool, err error) {
	now := c.store.clock()
	if c.cuts.Load() > 0 { // the denial of a name above may be in another shard
		if res := c.Get(q, r, now); res.Hit() {
			if res.Count() {
				c.Refresh(q, exchange)
			}
			return true, nil
		}
	}
	deadline := now + retryWindow
	for attempt := 0; ; attempt++ {
		how, err := c.fetch(ctx, q, r, exchange, now, attempt == 0)
		if how != joined || attempt == maxRetries || !errors.Is(err, ErrLocal) {
			return how == found, err
		}
		if now = c.store.clock(); now >= deadline {
			return false, err
		}
	}
}

const (
	// maxRetries is how often a client exchanges again whose call ended with the ErrLocal of
	// another client. Such errors come at once, and hardly any client meets two.
	maxRetries = 2
	// retryWindow is how long after its start a client does so. It includes the time that the query of
	// another client waits for an upstream's slot or token, 2 s by default: that was the other client's share, and this
	// one may have its own. Stub resolvers wait for 5 s (resolv.conf(5), timeout).
	retryWindow = 2500 * time.Millisecond
)

// fetchOutcome says where an attempt of Fetch got its reply or its error.
type fetchOutcome uint8

const (
	found     fetchOutcome = iota // in the cache
	exchanged                     // by its own exchange
	joined                        // from the call of another client
)

// fetch is one attempt of Fetch, at now. It counts the lookup if first is set.
func (c *Cache) fetch(ctx context.Context, q *wire.Query, r *wire.Reply, exchange ExchangeFunc, now time.Duration, first bool) (fetchOutcome, error) {
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	res := c.lookup(&k, now)
	refresh := first && res.count()
	if e := res.entry; e != nil {
		packed, ttl := e.packed, c.ttl(e, now)
		s.mu.Unlock()
		res.copy(r, packed, ttl)
		if refresh {
			c.Refresh(q, exchange)
		}
		return found, nil
	}
	if e := k.find(); e != nil && c.servable(e, now) {
		return exchanged, c.fetchStale(ctx, &k, e, r, exchange)
	}
	f, done := s.join(&k)
	if done != nil {
		f.waiters++
	}
	s.mu.Unlock()
	if done != nil {
		return c.wait(ctx, waiter{call: f, done: done}, r, exchange)
	}
	return exchanged, c.do(ctx, f, exchange, waiter{}, r)
}

// Refresh exchanges q on a goroutine of [Options.Go], for which no client waits, and stores
// the reply if it is cacheable. It does nothing if Options.Go refuses. Call it if
// [Result.Count] says so. It returns at once, and q may change then.
func (c *Cache) Refresh(q *wire.Query, exchange ExchangeFunc) {
	w := copyQuery(q)
	if !c.store.run(func(ctx context.Context) { c.refresh(ctx, w, exchange) }) {
		k := c.key(&w.q)
		s := k.shard.shard
		s.mu.Lock()
		c.endRefresh(&k, c.store.clock())
		s.mu.Unlock()
		w.release()
	}
}

func (c *Cache) refresh(ctx context.Context, w *queryCopy, exchange ExchangeFunc) {
	k := c.key(&w.q)
	s := k.shard.shard
	s.mu.Lock()
	f, done := s.join(&k)
	if done != nil { // a client exchanges already
		s.mu.Unlock()
		w.release()
		return
	}
	f.prefetched, f.copied = true, w
	k.shard.prefetches++
	s.mu.Unlock()
	_ = c.do(ctx, f, exchange, waiter{}, nil)
}

// callBuckets is the number of chains in which a shard finds its calls. The server lets
// 4,096 queries wait: at most two for a chain, over 32 shards.
const callBuckets = 64

// call is an exchange under way and the clients that wait for it. The lock of the key's
// shard guards next, done, waiters, copied and key's query. The goroutine that exchanges
// leads the call. It writes the result; all may read it after done is closed.
//
// A leader whose place is evicted ([share.ErrEvicted]) hands the call over to the waiter that
// has waited longest, by a value in done. That one exchanges anew, with its own context, and
// the others wait on.
type call struct {
	// key's query is the first client's as long as that client leads, and copied afterwards.
	key
	copied *queryCopy    // a query that outlives the first client; released at the end
	next   *call         // in the chain, or in the list of free calls
	done   chan struct{} // holds a value for the next leader; closed at the end; nil as long as nobody waits
	// waiters is how many clients wait, without the leader.
	waiters int

	began      time.Duration // on the store's clock; 0 where nothing is served stale
	prefetched bool          // it refreshes the entry in the cache, see fetched
	late       bool          // a client has waited for longer than the client timeout
	flushed    bool          // its name was flushed: the result is not stored
	client     netip.Addr    // that asks for an expired name; invalid for others

	callResult
}

// callResult is what clients get from a call.
type callResult struct {
	packed wire.Packed
	ttl    uint32
	err    error
	// failed says that an expired answer is better, positive that it answers the question.
	failed, positive bool
}

// fetched is what a call stores; with a ttl of 0, nothing.
type fetched struct {
	packed     wire.Packed
	kind       kind
	at         time.Duration // on the store's clock
	ttl        time.Duration
	cut        bool // see cutFlag
	prefetched bool // it refreshes a popular entry, whose hits count on
	// replied says that a server gave a usable reply, failed that none did. An exchange
	// that ended for a local reason is neither.
	replied, failed bool
	// unanswered says that no server has answered at all.
	unanswered bool
}

// waiter is a client that waits for a call. done is the call's. old is the expired answer that
// may be served, zero for none.
type waiter struct {
	call *call
	done <-chan struct{}
	old  staleAnswer
}

// chain returns the head of the chain that k's call is in; s is locked.
func (s *shard) chain(k *key) **call {
	return &s.calls[k.hash%callBuckets]
}

// join finds the call for k or starts one; s is locked. done is what to wait for,
// nil for the first client. Another one that waits is to be counted in f.waiters.
func (s *shard) join(k *key) (f *call, done <-chan struct{}) {
	if f = s.findCall(k); f != nil {
		if f.done == nil {
			f.done = make(chan struct{}, 1)
		}
		return f, f.done
	}
	head := s.chain(k)
	if f = s.free; f != nil {
		s.free = f.next
	} else {
		f = new(call)
	}
	f.key, f.next = *k, *head
	*head = f
	return f, nil
}

// findCall returns the call that k's client may wait for; nil if there is none. s is locked.
func (s *shard) findCall(k *key) *call {
	f := *s.chain(k)
	for f != nil && !f.matches(k) {
		f = f.next
	}
	return f
}

// matches reports whether k's client may wait for f: the key, its EDNS options and the RD bit are
// the same. The reply to a query without RD may be a referral, or whatever else the upstream has.
func (f *call) matches(k *key) bool {
	a, b := f.q, k.q
	return !f.flushed && f.hash == k.hash && f.shard == k.shard && f.flags == k.flags && a.RD() == b.RD() &&
		a.Type == b.Type && a.Class == b.Class && bytes.Equal(a.Name(), b.Name()) && bytes.Equal(a.Options, b.Options)
}

// finish ends f and stores n if its ttl is not zero: from here on clients find the entry, or
// start another call. Only the clients that wait may use f afterwards.
func (s *shard) finish(f *call, n fetched) {
	s.mu.Lock()
	s.finishAndUnlock(f, n)
}

// finishAndUnlock is finish with s locked.
func (s *shard) finishAndUnlock(f *call, n fetched) {
	if !f.flushed {
		if n.ttl > 0 && !f.put(&n) {
			n.replied, n.failed = false, true
		}
		f.shard.cache.noteOutcome(f, &n)
	}
	at := s.chain(&f.key)
	for *at != f {
		at = &(*at).next
	}
	*at = f.next
	p, done, copied := f.shard, f.done, f.copied
	f.copied = nil
	if done == nil {
		*f = call{next: s.free}
		s.free = f
	}
	s.mu.Unlock()
	if copied != nil {
		copied.release()
	}
	if done != nil {
		close(done)
	}
	if n.ttl > 0 {
		p.makeRoom()
	}
}

// handOver makes the waiter of f that has waited longest its leader, in place of the caller. It
// finishes f if it has no waiters.
func (s *shard) handOver(f *call) {
	s.mu.Lock()
	if f.waiters == 0 {
		s.finishAndUnlock(f, fetched{})
		return
	}
	if f.copied == nil { // the query is the caller's
		f.copied = copyQuery(f.q)
		f.q = &f.copied.q
	}
	f.done <- struct{}{} // nobody else leads, so there is room
	s.mu.Unlock()
}

// leave records that a client waits for f no longer. If f was handed over to a waiter, and
// this was the last one, it is finished.
func (s *shard) leave(f *call) {
	s.mu.Lock()
	f.waiters--
	if f.waiters > 0 || len(f.done) == 0 {
		s.mu.Unlock()
		return
	}
	<-f.done
	s.finishAndUnlock(f, fetched{})
}

// wait waits for the call of another goroutine, or goes on with it if its leader is evicted.
func (c *Cache) wait(ctx context.Context, w waiter, r *wire.Reply, exchange ExchangeFunc) (fetchOutcome, error) {
	s := w.call.shard.shard
	select {
	case _, leads := <-w.done:
		if leads {
			s.mu.Lock()
			w.call.waiters--
			s.mu.Unlock()
			return exchanged, c.do(ctx, w.call, exchange, w, r)
		}
		return joined, c.deliver(w.call, w.old, r)
	case <-ctx.Done():
		s.leave(w.call)
		return joined, c.interrupted(ctx, w.call.shard, w.old, r)
	}
}

// interrupted makes r the expired answer old, of p, if there is one and the client is evicted.
// Otherwise it returns why ctx has ended.
func (c *Cache) interrupted(ctx context.Context, p *cacheShard, old staleAnswer, r *wire.Reply) error {
	err := ctx.Err()
	if old.packed.IsZero() || !errors.Is(err, share.ErrEvicted) {
		return err
	}
	c.serveStale(p, old, r)
	return nil
}

// deliver makes r the result of f, or else the expired answer.
func (c *Cache) deliver(f *call, old staleAnswer, r *wire.Reply) error {
	switch {
	case !old.packed.IsZero() && c.preferStale(&f.callResult, old):
		c.serveStale(f.shard, old, r)
		return nil
	case f.err == nil:
		r.Copy(f.packed, f.ttl)
	}
	return f.err
}

// do exchanges for all clients of f, and makes r the result. r may be nil. If ctx is evicted, f
// goes on without the caller.
func (c *Cache) do(ctx context.Context, f *call, exchange ExchangeFunc, w waiter, r *wire.Reply) (err error) {
	c.begin(f)
	return c.complete(ctx, f, exchange, w, r)
}

// begin notes that the exchange for f begins.
func (c *Cache) begin(f *call) {
	if c.cfg.Stale.For > 0 || len(c.cfg.Keep) > 0 {
		f.began = c.store.clock()
	}
}

// complete is do for an exchange that has begun.
func (c *Cache) complete(ctx context.Context, f *call, exchange ExchangeFunc, w waiter, r *wire.Reply) (err error) {
	p, s := f.shard, f.shard.shard
	f.err, f.failed = errPanicked, true // stands if exchange panics
	var n fetched
	handedOver := false
	defer func() {
		if handedOver {
			s.handOver(f)
			return
		}
		s.finish(f, n)
	}()

	resp, err := exchange(ctx, f.q)
	switch {
	case err == nil:
		n = c.setResult(f, &resp)
	case errors.Is(ctx.Err(), share.ErrEvicted):
		handedOver = true
		return c.interrupted(ctx, p, w.old, r)
	case errors.Is(err, ErrLocal), errors.Is(ctx.Err(), context.Canceled):
		f.err = err
	case errors.Is(err, ErrUnreachable):
		f.err, n.failed, n.unanswered = err, true, true
	default:
		resp = wire.ErrorResponse(f.q, wire.ServFail).Explain(wire.EDECachedError)
		n = c.setResult(f, &resp)
		f.err, n.unanswered = err, true
	}
	if r == nil {
		return nil
	}
	return c.deliver(f, w.old, r)
}

// setResult makes resp the call's result and returns what is to be stored.
func (c *Cache) setResult(f *call, resp *wire.Response) (n fetched) {
	if !resp.Packed.IsReplyTo(f.q) {
		s := f.shard.shard
		s.mu.Lock()
		f.shard.mismatches++
		s.mu.Unlock()
		f.err = ErrMismatch
		return fetched{failed: true}
	}
	v := classify(&c.cfg, f.q, resp)
	f.callResult = callResult{
		packed: resp.Packed, ttl: seconds(v.ttl), positive: resp.Answered,
		failed: resp.Truncated || resp.Rcode != wire.NoError && resp.Rcode != wire.NXDomain,
	}
	n = fetched{replied: !f.failed, failed: f.failed}
	if v.cacheable {
		n.packed, n.kind, n.at, n.ttl = resp.Packed, v.kind, c.store.clock(), v.ttl
		n.cut, n.prefetched = c.cfg.NXDomainCut && deniesSubtree(f.q, resp), f.prefetched
	}
	return n
}

// Lead is the exchange of a client that has begun without waiting. The zero Lead has not.
type Lead struct{ call *call }

// Begun reports whether l has begun.
func (l Lead) Begun() bool { return l.call != nil }

// Lead begins what [Cache.Fetch] does, without waiting, and counts the lookup: the caller exchanges for q, and gives
// the result to [Cache.FetchLed], which must be called, once. Other clients wait for it. q must not change
// until then.
//
// Lead reports false, and does nothing, where Fetch would do anything else: for an answer in the cache, an
// expired one that may be served, or an exchange of another client.
func (c *Cache) Lead(q *wire.Query) (Lead, bool) {
	now := c.store.clock()
	k := c.key(q)
	if res := c.inferDenial(&k, nil, now); res.Hit() {
		return Lead{}, false
	}
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	res := c.lookup(&k, now)
	if res.entry != nil {
		return Lead{}, false
	}
	if e := k.find(); e != nil && c.servable(e, now) || s.findCall(&k) != nil {
		return Lead{}, false
	}
	res.count()
	f, _ := s.join(&k)
	c.begin(f)
	return Lead{f}, true
}

// FetchLed completes l as [Cache.Fetch] does: exchange returns the result of the exchange that the caller of
// [Cache.Lead] has begun, and may wait for it. It is called with ctx.
func (c *Cache) FetchLed(ctx context.Context, l Lead, r *wire.Reply, exchange ExchangeFunc) error {
	return c.complete(ctx, l.call, exchange, waiter{}, r)
}

const (
	// outageTimeout is the client timeout in an outage. A healthy upstream nearly always
	// answers sooner, and clients feel it with each name.
	outageTimeout = 100 * time.Millisecond
	// probeInterval is the time between exchanges in an outage, whatever the name: servers
	// that are down for being overloaded see little of it.
	probeInterval = time.Second
	// refreshTimeout is how long no other client is told to refresh a name: longer than the
	// five seconds that an exchange takes.
	refreshTimeout = 6 * time.Second
)

// errBusy is the error of clients that wait for an exchange that [Options.Go] refused, and
// have no expired answer.
var errBusy = fmt.Errorf("%w: too many exchanges", ErrLocal)

// staleAnswer is an expired answer that may be served; zero for none.
type staleAnswer struct {
	packed   wire.Packed
	positive bool
}

// servable reports whether e may be served at now: it is no failure, and is alive or may be served
// although it has expired.
func (c *Cache) servable(e *entry, now time.Duration) bool {
	return (e.flags&keptFlag != 0 || now < e.expires+c.cfg.Stale.For) && e.packed.Rcode() != wire.ServFail
}

// keepsOld reports whether old stays where n would replace it. A failure does not replace
// what may still be served; with `prefer_positive` only an answer replaces an answer.
func (c *Cache) keepsOld(old *entry, n *fetched) bool {
	failed := n.packed.Rcode() == wire.ServFail
	lesser := c.cfg.Stale.PreferPositive && old.positive() && (n.kind == denial || n.packed.Answers() == 0)
	return (failed || lesser) && c.servable(old, n.at)
}

// preferStale reports whether old is served in place of n.
func (c *Cache) preferStale(n *callResult, old staleAnswer) bool {
	return n.failed || n.err != nil || c.cfg.Stale.PreferPositive && old.positive && !n.positive
}

// servedAtOnce reports whether e, which has expired, is served at now without waiting for an
// exchange; the shard is locked.
//
// By RFC 8767, 5, a client waits for the first exchange after the expiry. Once that has
// failed, no client waits for the name until an exchange succeeds, and exchanges are as far
// apart as the failure recheck timer says.
func (c *Cache) servedAtOnce(e *entry, now time.Duration) bool {
	if !c.servable(e, now) {
		return false
	}
	switch mode := c.cfg.Stale.Mode; {
	case c.backingOff(e, now), mode == config.StaleImmediate:
		return true
	default:
		return mode == config.StaleFallback && e.flags&failedFlag != 0
	}
}

// claimStale reports whether the client that is served e, which has expired, at now is to
// refresh it. If so, no other client is for a while. The shard is locked.
func (c *Cache) claimStale(e *entry, now time.Duration) bool {
	if c.backingOff(e, now) && !c.claimProbe(now) {
		return false
	}
	e.backOff(now + c.claimTime())
	return true
}

// backingOff reports whether no client is to refresh e, which has expired, at now. The end
// of an outage ends the wait of the names that failed in it.
func (c *Cache) backingOff(e *entry, now time.Duration) bool {
	if e.flags&failedFlag == 0 || now >= e.retryAt() {
		return false
	}
	at := time.Duration(c.recoveredAt.Load())
	return at == 0 || at < e.retryAt()-c.claimTime()
}

// claimProbe reports whether a client is to exchange at now, in an outage, although its name
// backs off: the first success ends the outage for all names.
func (c *Cache) claimProbe(now time.Duration) bool {
	if !c.failures.outage() {
		return false
	}
	at := c.nextProbe.Load()
	return int64(now) >= at && c.nextProbe.CompareAndSwap(at, int64(now+probeInterval))
}

// claimTime is how long a name is left alone that a client was told to refresh: at least as
// long as one that failed.
func (c *Cache) claimTime() time.Duration { return max(refreshTimeout, c.cfg.Stale.Recheck) }

// serveStale makes r the expired answer old.
func (c *Cache) serveStale(p *cacheShard, old staleAnswer, r *wire.Reply) {
	p.shard.mu.Lock()
	p.stale++
	p.shard.mu.Unlock()
	r.Copy(old.packed, seconds(c.cfg.Stale.TTL))
	explainStale(r)
}

// explainStale says in r that it is an expired answer (RFC 8914, 4.4 and 4.20).
func explainStale(r *wire.Reply) {
	if r.Rcode() == wire.NXDomain {
		r.SetEDE(wire.EDEStaleNXDomain)
	} else {
		r.SetEDE(wire.EDEStaleAnswer)
	}
}

// fetchStale is fetch where e has expired and may be served. It is called with the shard
// locked, and unlocks it.
func (c *Cache) fetchStale(ctx context.Context, k *key, e *entry, r *wire.Reply, exchange ExchangeFunc) error {
	s, st := k.shard.shard, &c.cfg.Stale
	old := staleAnswer{e.packed, e.positive()}
	f, done := s.join(k)
	if done == nil {
		f.client = share.AddrOf(ctx)
	}
	switch {
	case done != nil && st.Mode == config.StaleVerify && (st.ClientTimeout > 0 || st.Recheck > 0): // one client verifies
		s.mu.Unlock()
		c.serveStale(k.shard, old, r)
		return nil
	case done != nil:
		f.waiters++
		s.mu.Unlock()
		return c.waitOrStale(ctx, k, waiter{call: f, done: done, old: old}, r, exchange)
	case st.ClientTimeout == 0:
		s.mu.Unlock()
		return c.do(withStale(ctx), f, exchange, waiter{old: old}, r)
	}
	f.copied = copyQuery(k.q) // the call outlives k's query
	f.q, f.done, f.waiters = &f.copied.q, make(chan struct{}, 1), 1
	done = f.done
	s.mu.Unlock()
	c.start(f, exchange)
	return c.waitOrStale(ctx, k, waiter{call: f, done: done, old: old}, r, exchange)
}

// staleKey is the key of a context value that marks an exchange for a client that has an expired answer.
type staleKey struct{}

func withStale(ctx context.Context) context.Context { return context.WithValue(ctx, staleKey{}, true) }

// HasStale reports whether an [ExchangeFunc] that is called with ctx should fail with an [ErrLocal] rather than wait for
// a turn: the client gets its expired answer then.
func HasStale(ctx context.Context) bool { return ctx.Value(staleKey{}) != nil }

// start runs f, which has a query of its own, on another goroutine. If [Options.Go] refuses, f
// ends at once.
func (c *Cache) start(f *call, exchange ExchangeFunc) {
	if !c.store.run(func(ctx context.Context) { _ = c.do(withStale(ctx), f, exchange, waiter{}, nil) }) {
		f.err, f.failed = errBusy, true
		f.shard.shard.finish(f, fetched{})
	}
}

// waitOrStale waits for a call, for at most the client timeout; then it serves k's expired
// answer. If the call's leader is evicted, it goes on with the call on another goroutine.
func (c *Cache) waitOrStale(ctx context.Context, k *key, w waiter, r *wire.Reply, exchange ExchangeFunc) error {
	timeout := c.clientTimeout(ctx)
	if timeout == 0 {
		_, err := c.wait(ctx, w, r, exchange)
		return err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	s := k.shard.shard
	for {
		select {
		case _, leads := <-w.done:
			if !leads {
				return c.deliver(w.call, w.old, r)
			}
			c.start(w.call, exchange)
		case <-timer.C:
			c.timedOut(ctx, k, w)
			s.leave(w.call)
			c.serveStale(k.shard, w.old, r)
			return nil
		case <-ctx.Done():
			s.leave(w.call)
			return c.interrupted(ctx, k.shard, w.old, r)
		}
	}
}

// timedOut records that a client has waited for w's call, for k, longer than the client timeout.
func (c *Cache) timedOut(ctx context.Context, k *key, w waiter) {
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.noteFailure(k, c.cfg.Stale.Recheck) && !w.call.late {
		w.call.late = true
		c.failures.add(k.q.Name(), share.AddrOf(ctx))
	}
}

// clientTimeout is how long a client waits now before it is served the expired answer (RFC
// 8767, 5); 0: until the call ends.
func (c *Cache) clientTimeout(ctx context.Context) time.Duration {
	t := c.cfg.Stale.ClientTimeout
	if c.cfg.Stale.Mode == config.StaleFallback && c.failures.outageFor(ctx) {
		return min(t, outageTimeout)
	}
	return t
}

// noteOutcome records how f ended, for the entry of its key and for the detection of
// outages; the shard is locked. A SERVFAIL is a failure of its name, and a sign of life of the server.
func (c *Cache) noteOutcome(f *call, n *fetched) {
	switch {
	case n.failed && f.began < time.Duration(c.recoveredAt.Load()): // it began in an outage that is over
		c.noteFailure(&f.key, 0)
	case n.failed:
		counts := c.noteFailure(&f.key, c.cfg.Stale.Recheck) && !f.late
		if !n.unanswered {
			c.endOutage()
		} else if counts {
			c.failures.add(f.q.Name(), f.client)
		}
	case !n.replied:
		c.endRefresh(&f.key, c.store.clock())
	default:
		c.endOutage()
	}
}

// endOutage records that a server has replied.
func (c *Cache) endOutage() {
	if c.failures.reset() {
		c.recoveredAt.Store(int64(c.store.clock()))
	}
}

// noteFailure records that an exchange for k's name has failed. If an expired answer may be
// served meanwhile, the name backs off for d, and noteFailure returns true. The shard is
// locked.
func (c *Cache) noteFailure(k *key, d time.Duration) bool {
	now := c.store.clock()
	e := c.endRefresh(k, now)
	if e == nil || e.alive(now) || !c.servable(e, now) {
		return false
	}
	e.backOff(now + d)
	return true
}

// endRefresh allows another client to refresh k's entry before it expires. It returns the
// entry, nil if there is none. The shard is locked.
func (c *Cache) endRefresh(k *key, now time.Duration) *entry {
	e := k.find()
	if e != nil && e.alive(now) && e.flags&refreshingFlag != 0 {
		e.flags &^= refreshingFlag
		e.hits = uint16(c.cfg.Prefetch.Amount) //nolint:gosec // config allows no more than maxHits
	}
	return e
}

// queryCopy is a copy of a query for an exchange that outlives it.
type queryCopy struct {
	q      wire.Query
	packet []byte
}

// maxPooledPacket is the longest packet whose buffer is reused: stub resolvers send at most
// 300 bytes.
const maxPooledPacket = 512

var queryCopies = sync.Pool{New: func() any { return &queryCopy{packet: make([]byte, 0, maxPooledPacket)} }}

func copyQuery(q *wire.Query) *queryCopy {
	w := queryCopies.Get().(*queryCopy)
	w.q = *q
	w.q.Packet = append(w.packet[:0:maxPooledPacket], q.Packet...)
	w.q.Options = bytes.Clone(q.Options) // few queries have any
	return w
}

// release makes w available for another query.
func (w *queryCopy) release() { queryCopies.Put(w) }
