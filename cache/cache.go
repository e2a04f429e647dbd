// Package cache keeps packed answers between queries.
//
// A [Store] is the memory of all caches of a process; a [Cache] is what one `cache`
// directive keeps in it. A key (the cache, the lower-case qname, qtype, qclass and
// the DO and CD bits) hashes to one of a few dozen shards, each with a mutex, a
// table of chains and a slab of slots, which are found by number and hold no pointer
// but that to the packed reply. A slot is in one of the two LRU lists that its cache
// has in the shard: success, and denial for NXDOMAIN, NODATA and failures. The lists
// have a bound each, so that a flood of names that don't exist can't push out those
// that do. The bytes have one bound over all: when they are too many, a shard that
// has more than its share loses the entry that is unused for longest in any of its
// lists.
//
// An entry is a [wire.Packed] reply with its end and its life; a hit copies its bytes
// out and sets every TTL to what is left. There is one entry for a key, of one kind:
// what comes last replaces what was there, but a failure never replaces a usable
// answer that still lives, or that may be given although it has expired.
//
// A miss becomes a flight in the same shard: the first client asks, those that
// come while it does wait for the same result. The shard is looked at again before
// a flight starts, because this can happen: A and B both miss; A asks, stores and
// lands; only now B comes for its flight, finds none, and would ask once more.
//
// Where an expired answer is at hand (stale.go) the flight is another goroutine's, so
// that it can go on when the clients that wait for it wait no longer. A name that does
// not exist answers for those below it (cut.go).
package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrLocal marks the error of an ask that says nothing about the name: a limit of
// this process was met, a query could not be sent. Such an error reaches the
// clients that wait, but no SERVFAIL is kept for it.
var ErrLocal = errors.New("not asked")

// ErrMismatch is the error of a Fetch whose ask gave the reply to another question,
// or no reply and no error.
var ErrMismatch = errors.New("the reply is to another question")

// errUnfinished is what clients that wait get when the ask they wait for panics.
var errUnfinished = errors.New("the query that was waited for did not end")

// ExchangeFunc gets the reply to q, which it must not keep. It may be called on another
// goroutine than Fetch and Refresh were, after they have returned.
type ExchangeFunc func(ctx context.Context, q *wire.Query) (wire.Response, error)

// Cache is what one `cache` directive keeps. [Store.NewCache] makes it. It is safe
// for concurrent use.
type Cache struct {
	cfg    config.Cache
	bounds []wire.Name
	store  *Store
	id     uint64
	parts  []part // a power of two

	deniers   atomic.Int64 // entries with cutBit
	failures  atomic.Int32 // names that failed since one did not
	probe     atomic.Int64 // when somebody may ask next in an outage, on the store's clock
	recovered atomic.Int64 // when the last outage ended, on the store's clock; 0 is never
}

// Close removes the cache's entries from its store. What is called later finds and
// keeps nothing, but still asks.
func (c *Cache) Close() {
	for i := range c.parts {
		c.parts[i].leave()
	}
}

// Covers reports whether name, lower case and in wire form, is in a zone of the
// directive; without zones every name is.
func (c *Cache) Covers(name []byte) bool {
	for _, zone := range c.cfg.Zones {
		if wire.Under(name, zone) {
			return true
		}
	}
	return len(c.cfg.Zones) == 0
}

// ttl is what the records of e have at now.
func (c *Cache) ttl(e *slot, now time.Duration) uint32 {
	switch {
	case !e.alive(now):
		return seconds(c.cfg.Stale.TTL)
	case c.cfg.KeepTTL && e.owner&failedBit == 0:
		return e.life
	}
	return e.left(now)
}

// Fetch answers q, if need be by exchange, whose reply it keeps if it may be kept. It looks
// the question up and counts the lookup as [Cache.Get] and [Result.Count] do, with the
// store's clock, so that a Result for the same query that was not counted is to be dropped.
// hit reports whether the reply comes from the cache without a wait; if it is to be
// refreshed, Fetch has seen to it, with exchange.
//
// At a miss every TTL in r is the one value the reply is kept for, so that clients don't see
// it jump between this reply and the next from the cache. exchange is called at most
// once at a time for one key; it runs on the goroutine of the first client, with
// its ctx, and the others wait for its result: for as long as exchange takes, which must
// end. They share its error too; r is then untouched. An error is kept as a
// SERVFAIL (RFC 9520) unless it wraps [ErrLocal] or ctx was cancelled. An ErrLocal may be
// of the first client alone, so that the others ask for themselves. q must not change
// until Fetch returns.
//
// Where there is an expired answer that may be given, it is what r becomes if exchange
// fails, or takes longer than the directive's patience; there is no error then. exchange may
// then run on a goroutine of [Options.Go], and go on when Fetch has returned.
//
// A client that waits and whose ctx ends stops waiting, with ctx's error. The end of
// the first one's ctx ends the exchange for all: clients whose lives differ should come
// with a context that outlives them. If exchange panics the panic goes on in the goroutine
// it runs on, and those that wait get an error; nothing is kept.
func (c *Cache) Fetch(ctx context.Context, q *wire.Query, r *wire.Reply, exchange ExchangeFunc) (hit bool, err error) {
	now := c.store.clock()
	if c.deniers.Load() > 0 { // a denial may be in another shard
		if res := c.Get(q, r, now); res.Hit() {
			if res.Count() {
				c.Refresh(q, exchange)
			}
			return true, nil
		}
	}
	until := now + anew
	for left := anews; ; left-- {
		how, err := c.fetch(ctx, q, r, exchange, now, left == anews)
		if how != joined || left == 0 || !errors.Is(err, ErrLocal) {
			return how == found, err
		}
		if now = c.store.clock(); now >= until {
			return false, err
		}
	}
}

const (
	// anews is how often a client asks once more that has waited for another one's ask,
	// which could not be made. A client that may ask no more, and does so all the time, is
	// told so at once: hardly anybody waits for such an ask once, and nobody often.
	anews = 2
	// anew is how long after its beginning a client asks once more: an ask that could
	// not be made is over at once, and one that took longer has had its time.
	anew = time.Second
)

// outcome is how one attempt of Fetch got its reply or its error.
type outcome uint8

const (
	found  outcome = iota // in the cache
	asked                 // by its own exchange
	joined                // from another client's
)

// fetch is one attempt of Fetch, at now. Only the first one is counted.
func (c *Cache) fetch(ctx context.Context, q *wire.Query, r *wire.Reply, exchange ExchangeFunc, now time.Duration, first bool) (outcome, error) {
	k := c.key(q)
	s := k.part.shard
	s.mu.Lock()
	e, res := c.seek(&k, now)
	refresh := false
	if first {
		refresh = res.count()
	}
	if e != nil {
		packed, ttl := e.packed, c.ttl(e, now)
		s.mu.Unlock()
		r.Copy(packed, ttl)
		if refresh {
			c.Refresh(q, exchange)
		}
		return found, nil
	}
	if i := s.find(&k); i != none && c.usable(s.at(i), now) {
		return asked, c.fetchOver(ctx, &k, s.at(i), r, exchange)
	}
	f, done := s.board(&k)
	s.mu.Unlock()
	if done != nil {
		return joined, c.wait(ctx, seat{f: f, done: done}, r)
	}
	return asked, c.lead(ctx, f, exchange, seat{}, r)
}

// Refresh has q asked for behind the back of its client, after [Result.Count], and keeps
// the reply if it may be kept. It does not wait, and q may change when it has returned.
// Without a place on [Options.Go] nothing is asked.
func (c *Cache) Refresh(q *wire.Query, ask ExchangeFunc) {
	w := newErrand(q)
	if !c.store.run(func(ctx context.Context) { c.refresh(ctx, w, ask) }) {
		k := c.key(&w.q)
		s := k.part.shard
		s.mu.Lock()
		c.unclaim(&k, c.store.clock())
		s.mu.Unlock()
		errands.Put(w)
	}
}

func (c *Cache) refresh(ctx context.Context, w *errand, ask ExchangeFunc) {
	k := c.key(&w.q)
	s := k.part.shard
	s.mu.Lock()
	f, done := s.board(&k)
	if done == nil {
		f.warm = true
		k.part.prefetches++
	}
	s.mu.Unlock()
	if done == nil { // else somebody asks already
		_ = c.lead(ctx, f, ask, seat{}, nil)
	}
	errands.Put(w)
}

// Kinds is one number for each kind of entry.
type Kinds struct {
	Success, Denial uint64
}

// Stats are counts since the start, and the entries of this moment.
type Stats struct {
	// Requests is the number of lookups that were counted: Hits and Misses.
	Requests uint64
	Hits     Kinds
	Misses   uint64
	// Evictions are the entries pushed out by others, alive or not.
	Evictions Kinds
	// Drops are the replies that were to another question.
	Drops uint64
	// Stale are the expired answers given, Prefetches the names asked for behind the
	// back of a client, Cuts the hits by the denial of a name above.
	Stale, Prefetches, Cuts uint64
	// Entries are those held, the expired that nothing has replaced included.
	Entries Kinds
}

// Stats adds up the shards, one after the other.
func (c *Cache) Stats() Stats {
	var t Stats
	for i := range c.parts {
		c.parts[i].addTo(&t)
	}
	t.Requests = t.Hits.Success + t.Hits.Denial + t.Misses
	return t
}

// key is what q's reply is found by: one hash, whose highest bits choose the shard
// and whose lowest the bucket.
func (c *Cache) key(q *wire.Query) key {
	h := c.store.hash(q.Name(), q.Type, tags(q), c.id)
	p := c.part(h)
	return key{part: p, q: q, hash: uint32(h), owner: p.owner | tags(q)}
}

func (c *Cache) part(hash uint64) *part { return &c.parts[int(hash>>56)&(len(c.parts)-1)] }
