package cache

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

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
	done, copied := f.done, f.copied
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
		s.store.enforceBudget(s)
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

// lead makes the caller, which waited for f and has received a value from done, its leader.
func (s *shard) lead(f *call) {
	s.mu.Lock()
	f.waiters--
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
			s.lead(w.call)
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
	if c.cfg.Stale.For > 0 {
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
		resp = wire.ErrorResponse(f.q, wire.ServFail)
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
	v := c.classify(f.q, resp)
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
