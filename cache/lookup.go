package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Result is what [Cache.Get] found for one question. It is a value: it refers to no query,
// and it stays valid whatever happens to the cache. The zero Result counts nothing.
type Result struct {
	shard *cacheShard // where the lookup is counted; nil in the zero Result
	entry *entry      // nil at a miss
	hash  uint64      // of the entry
	now   time.Duration
	state resultState
}

type resultState uint8

const (
	resultMiss resultState = iota
	resultFresh
	resultStale
	resultCut // inferred from the denial of a name at or above the question's
)

// Hit reports whether Get has completed the reply.
func (r *Result) Hit() bool { return r.state != resultMiss }

// Get makes r the cached reply to q, with the TTL that is left at now, a time on the
// store's clock. At a miss r is unchanged. Get changes nothing in the cache: the caller
// counts the lookup with [Result.Count] when the query is finished, or drops the Result if
// the query will run again. Get never waits for an upstream, and it allocates only what r's
// buffer needs to grow.
func (c *Cache) Get(q *wire.Query, r *wire.Reply, now time.Duration) Result {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	res := c.lookup(&k, now)
	if res.entry == nil {
		s.mu.Unlock()
		return c.inferDenial(&k, r, now)
	}
	packed, ttl := res.entry.packed, c.ttl(res.entry, now)
	s.mu.Unlock()
	r.Copy(packed, ttl)
	return res
}

// GetFinal is Get for a query that will not run again if there is a hit: it counts the hit at
// once, which saves taking the lock twice. refresh is the result of [Result.Count]. A miss is
// left to the caller to count, as after Get.
func (c *Cache) GetFinal(q *wire.Query, r *wire.Reply, now time.Duration) (res Result, refresh bool) {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	res = c.lookup(&k, now)
	if res.entry == nil {
		s.mu.Unlock()
		if res = c.inferDenial(&k, r, now); res.Hit() {
			refresh = res.Count()
		}
		return res, refresh
	}
	packed, ttl := res.entry.packed, c.ttl(res.entry, now)
	refresh = res.count()
	s.mu.Unlock()
	r.Copy(packed, ttl)
	return res, refresh
}

// lookup finds the entry that answers k without a wait; k's shard is locked.
func (c *Cache) lookup(k *key, now time.Duration) Result {
	res := Result{shard: k.shard, now: now}
	e := k.find()
	switch {
	case e == nil:
		return res
	case e.alive(now):
		res.state = resultFresh
	case c.servedAtOnce(e, now):
		res.state = resultStale
	default:
		return res
	}
	res.entry, res.hash = e, k.hash
	return res
}

// ttl returns the TTL of the records of e at now.
func (c *Cache) ttl(e *entry, now time.Duration) uint32 {
	switch {
	case !e.alive(now):
		return seconds(c.cfg.Stale.TTL)
	case c.cfg.KeepTTL && e.flags&failedFlag == 0:
		return e.ttl
	}
	return e.remaining(now)
}

// Count counts the lookup as a request, and as a hit, a stale answer or a miss, and marks
// the entry as used. It reports whether the caller must now call [Cache.Refresh] for the
// same question; no other caller is told so for a while. Call it at most once. It never
// waits for an upstream and allocates nothing.
func (r *Result) Count() (refresh bool) {
	if r.shard == nil {
		return false
	}
	s := r.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.count()
}

// count is Count with the shard locked.
func (r *Result) count() (refresh bool) {
	p, e := r.shard, r.entry
	if e == nil {
		p.misses++
		return false
	}
	l := &p.lists[e.kind()]
	l.hits++
	switch r.state {
	case resultStale:
		p.stale++
	case resultCut:
		p.cuts++
	}
	if l.lru == nil { // the cache is closed
		return false
	}
	current, ok := l.lru.Get(r.hash)
	if !ok { // removed since Get
		return false
	}
	if current == e { // not replaced since Get
		refresh = r.claimRefresh()
	}
	current.lastUsed = p.shard.tick(r.now)
	return refresh
}

// claimRefresh reports whether the client that r answers is to refresh the entry. If so, no
// other client is for a while. The shard is locked.
func (r *Result) claimRefresh() bool {
	c, e := r.shard.cache, r.entry
	switch {
	case r.state == resultStale:
		return c.claimStale(e, r.now)
	case r.state == resultFresh && c.cfg.Prefetch.Amount > 0:
		e.countHits(r.now, c.cfg.Prefetch.Within, 1)
		if e.needsPrefetch(&c.cfg.Prefetch, r.now) {
			e.flags |= refreshingFlag
			return true
		}
	}
	return false
}
