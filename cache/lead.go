package cache

import (
	"context"

	"github.com/nodens-dns/nodens/internal/wire"
)

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
