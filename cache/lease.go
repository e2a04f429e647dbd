package cache

import (
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Lease says how long a copy of an answer may be served in the cache's place.
type Lease struct {
	// Mark moves when the entry is removed or replaced: the copy ends then.
	Mark epoch.Mark
	// Lifetime is on the store's clock. It expires when the entry does, or earlier so that the cache can have the name
	// prefetched.
	epoch.Lifetime
	// Denial is the kind of the answer, for [Cache.CountHits].
	Denial bool
}

// Lease returns the lease of the entry for q. ok is false if no copy may be made: the entry
// is missing, expired, a failure or about to be prefetched, or the store has no
// [Options.Epochs]. The caller reads [epoch.Table.Any] before [Cache.Get] and again after
// Lease, and makes no copy if it has moved: the entry may not be the one that Get found.
func (c *Cache) Lease(q *wire.Query, now time.Duration) (t Lease, ok bool) {
	return c.lease(q, now, leasedFlag)
}

// MayLease reports whether [Cache.Lease] would return a lease. It is no use of the entry.
func (c *Cache) MayLease(q *wire.Query, now time.Duration) bool {
	_, ok := c.lease(q, now, 0)
	return ok
}

// lease implements Lease, and sets flag in the entry.
func (c *Cache) lease(q *wire.Query, now time.Duration, flag flags) (t Lease, ok bool) {
	if c.store.epochs == nil {
		return Lease{}, false
	}
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	e := k.find()
	if e == nil {
		return Lease{}, false
	}
	t = Lease{
		Mark:     c.store.epochs.Mark(k.hash),
		Lifetime: epoch.Lifetime{Expires: e.expires, Ends: e.expires, Life: e.ttl, CountsDown: !c.cfg.KeepTTL},
		Denial:   e.kind() == denial,
	}
	if c.cfg.Prefetch.Amount > 0 {
		t.Expires -= ttlOf(e.prefetchTTL(&c.cfg.Prefetch)) // before that, no client refreshes it
	}
	if now >= t.Expires || e.packed.Rcode() == wire.ServFail {
		return Lease{}, false
	}
	e.flags |= flag
	return t, true
}

// leaseStripes is the number of counters for hits of copies: as many callers as there are readers on most
// nodes don't share cache lines.
const leaseStripes = 16

// leaseHits are the hits of copies in one stripe.
type leaseHits struct {
	success, denial atomic.Uint64

	_ [48]byte // keeps the next stripe out of this one's cache line
}

// CountHits counts n hits that were answered with a copy, of the kind that the [Lease] said. stripe
// chooses the counter; any number will do, and callers with different numbers do not wait for each other.
func (c *Cache) CountHits(stripe int, n uint64, denied bool) {
	h := &c.leaseHits[uint(stripe)%leaseStripes]
	if denied {
		h.denial.Add(n)
	} else {
		h.success.Add(n)
	}
}

// Use records that the answer to q was given n times with a copy, the last time at now: as a use of the
// entry, and for `prefetch`.
func (c *Cache) Use(q *wire.Query, n uint64, now time.Duration) {
	now = c.store.now(now)
	k := c.key(q)
	p := k.shard
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	e := k.find()
	if e == nil || !e.alive(now) {
		return
	}
	if c.cfg.Prefetch.Amount > 0 {
		e.countHits(now, c.cfg.Prefetch.Within, n)
	}
	p.touch(k.hash, e, now)
}

// atOnceBelow is the capacity of a kind below which [Cache.NeedsEachUse] holds: a few other answers may evict one.
const atOnceBelow = 512

// NeedsEachUse reports whether [Cache.Use] is to be called for each use, and not later for several: the cache is small, or the
// directive has popular answers refreshed before they expire.
func (c *Cache) NeedsEachUse() bool {
	small := func(entries int) bool { return entries > 0 && entries < atOnceBelow }
	return c.cfg.Prefetch.Amount > 0 || small(c.cfg.Success.Entries) || small(c.cfg.Denial.Entries)
}
