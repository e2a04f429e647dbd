// Package cache keeps packed replies between queries.
//
// A [Store] is the memory of all caches of a process, under one budget of bytes; a [Cache]
// is what one `cache` directive keeps in it. The hash of the question and of the DO and CD
// bits selects one of a few dozen shards, each with a lock. In a shard a cache has two LRU
// lists: success, and denial for NXDOMAIN, NODATA and failures. Each list has its own
// capacity, so that a flood of names that don't exist can't evict names that do. If the
// budget is exceeded, a shard that has more than its share evicts the entry that was used
// longest ago, of whichever cache.
//
// An entry is a [wire.Packed] reply with its expiry; a hit copies the reply and sets every
// TTL to what is left. A key has one entry, of one kind. A new reply replaces it, but a
// failure never replaces an answer that is alive or may still be served stale.
//
// A miss becomes a call in the same shard: the first client exchanges, and clients that
// come meanwhile wait for its result. The entry is looked up again before a call starts,
// because of this interleaving: A and B both miss; A exchanges, stores the reply and ends
// its call; then B finds no call, and would exchange again. If the first client loses its
// waiting place, one of the others exchanges in its place (call.go).
//
// Where an expired answer may be served, the call runs on another goroutine, so that it
// goes on when its clients stop waiting (stale.go, RFC 8767). A name that does not exist
// may answer for the names below it (nxdomain_cut.go, RFC 8020).
package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrLocal marks an error of an [ExchangeFunc] that says nothing about the name: a limit of
// this process was reached, or the query could not be sent. Clients that wait get the
// error, but the cache keeps no SERVFAIL for it.
var ErrLocal = errors.New("not sent")

// ErrUnreachable marks an error of an [ExchangeFunc] that is the same for every name: no server could be reached. Clients that
// wait get it, and names rest as after other failures where expired answers are served, but the cache keeps no SERVFAIL.
var ErrUnreachable = errors.New("no server can be reached")

// ErrMismatch is the error of a Fetch whose [ExchangeFunc] returned the reply to another
// question, or no reply and no error.
var ErrMismatch = errors.New("the reply is to another question")

// errPanicked is the error of clients that wait for an exchange that panics.
var errPanicked = errors.New("the exchange panicked")

// ExchangeFunc gets the reply to q from upstream. It must not keep q. It may be called on
// another goroutine than Fetch or Refresh, after they have returned.
type ExchangeFunc func(ctx context.Context, q *wire.Query) (wire.Response, error)

// Cache is what one `cache` directive keeps. [Store.NewCache] makes it. It is safe
// for concurrent use.
type Cache struct {
	cfg        config.Cache
	boundaries []wire.Name
	store      *Store
	shards     []cacheShard // a power of two

	leaseHits   [leaseStripes]leaseHits
	cuts        atomic.Int64 // entries with cutFlag
	existing    existingNames
	failures    failureRun
	nextProbe   atomic.Int64 // in an outage, the next time to exchange; on the store's clock
	recoveredAt atomic.Int64 // the end of the last outage, on the store's clock; 0: there was none
}

// Close removes the cache's entries from its store. After that, Get finds nothing, and Fetch
// still exchanges but stores nothing. Close may be called again.
func (c *Cache) Close() {
	for i := range c.shards {
		c.shards[i].close()
	}
	c.cuts.Store(0)
	c.existing.clear()
}

// Covers reports whether name, lower case and in wire form, is in a zone of the
// directive. Without zones every name is.
func (c *Cache) Covers(name []byte) bool {
	for _, zone := range c.cfg.Zones {
		if wire.Under(name, zone) {
			return true
		}
	}
	return len(c.cfg.Zones) == 0
}

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
		r.Copy(packed, ttl)
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

// Kinds is one number for each kind of entry.
type Kinds struct {
	Success, Denial uint64
}

// Stats are counts since the start, and the current number of entries.
type Stats struct {
	// Requests is the number of lookups that were counted: Hits and Misses.
	Requests uint64
	Hits     Kinds
	Misses   uint64
	// Evictions are the entries, expired or not, that made room for others.
	Evictions Kinds
	// Drops are the replies that were to another question.
	Drops uint64
	// Stale are the expired answers served, Prefetches the refreshes that no client waited
	// for, Cuts the hits by the denial of a name above.
	Stale, Prefetches, Cuts uint64
	// Entries includes those that have expired but were not removed yet.
	Entries Kinds
}

// Stats adds up the shards, one after the other, and the hits of copies.
func (c *Cache) Stats() Stats {
	var t Stats
	for i := range c.shards {
		c.shards[i].addTo(&t)
	}
	for i := range c.leaseHits {
		t.Hits.Success += c.leaseHits[i].success.Load()
		t.Hits.Denial += c.leaseHits[i].denial.Load()
	}
	t.Requests = t.Hits.Success + t.Hits.Denial + t.Misses
	return t
}

// key returns q's key. The highest bits of its hash choose the shard.
func (c *Cache) key(q *wire.Query) key {
	f := keyFlagsOf(q)
	h := c.store.hash(q.Name(), q.Type, q.Class, f)
	if f&optionsFlag != 0 {
		h = c.store.hashOptions(h, q.Options)
	}
	return key{shard: c.shardOf(h), q: q, hash: h, flags: f}
}

func (c *Cache) shardOf(hash uint64) *cacheShard {
	return &c.shards[int(hash>>48)&(len(c.shards)-1)]
}
