// Package cache keeps packed answers between queries.
//
// A key (the lower-case qname, qtype, qclass and the DO and CD bits) hashes to one
// of a few dozen shards, each with a mutex and two LRU lists: success, and denial
// for NXDOMAIN, NODATA and failures, so that a flood of names that don't exist
// can't push out those that do. An entry is a [wire.Packed] reply with the time it
// came and how long it lives; a hit copies its bytes out and sets every TTL to what
// is left. A key lives in at most one of the two lists: what comes last replaces
// what was there, but a failure never replaces a usable answer that still lives.
//
// A miss becomes a flight in the same shard: the first client asks, those that
// come while it does wait for the same result. The shard is looked at again before
// a flight starts, because this can happen: A and B both miss; A asks, stores and
// lands; only now B comes for its flight, finds none, and would ask once more.
package cache

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrLocal marks the error of an ask that says nothing about the name: a limit of
// this process was met, a query could not be sent. Such an error reaches the
// clients that wait, but no SERVFAIL is kept for it.
var ErrLocal = errors.New("not asked")

// ErrQuestion is the error of a Fetch whose ask gave the reply to another question,
// or no reply and no error.
var ErrQuestion = errors.New("the reply is to another question")

// errUnfinished is what clients that wait get when the ask they wait for panics.
var errUnfinished = errors.New("the query that was waited for did not end")

// Options are what tests change. The zero value is the real thing.
type Options struct {
	// Clock tells the time; nil is [time.Now]. Only differences count, and
	// time.Now's are monotonic: setting the wall clock neither revives nor ends
	// an entry.
	Clock func() time.Time
}

// Cache is safe for concurrent use. [New] makes it.
type Cache struct {
	cfg    config.Cache
	clock  func() time.Time
	start  time.Time
	seed   maphash.Seed
	shards []shard
}

// New makes an empty cache as cfg says. cfg is copied. A kind with no entries in
// cfg keeps nothing.
func New(cfg *config.Cache, opts Options) *Cache {
	c := &Cache{cfg: *cfg, clock: opts.Clock, seed: maphash.MakeSeed()}
	if c.clock == nil {
		c.clock = time.Now
	}
	c.start = c.clock()
	n := shardCount(cfg.Success.Entries, cfg.Denial.Entries)
	c.shards = make([]shard, n)
	for i := range c.shards {
		c.shards[i].init(share(cfg.Success.Entries, n, i), share(cfg.Denial.Entries, n, i))
	}
	return c
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

// Answer makes r the kept reply to q, with the TTL that is left, and reports
// whether there is one; without one r is untouched. It allocates nothing but what
// r's buffer needs to grow.
func (c *Cache) Answer(q *wire.Query, r *wire.Reply) bool {
	var buf keyBuffer
	key := buf.of(q)
	s, now := c.shard(key), c.now()
	s.mu.Lock()
	e, k, ok := s.look(key, now)
	s.count(k, ok)
	s.mu.Unlock()
	if !ok {
		return false
	}
	r.Copy(e.packed, e.left(now))
	return true
}

// Fetch makes r the reply to q that ask gets, and keeps it if it may be kept.
// Every TTL in r is the one value the reply is kept for, so that clients don't see
// it jump between this reply and the next from the cache. ask is called at most
// once at a time for one key; it runs on the goroutine of the first client, and the
// others wait for its result. They share its error too; r is then untouched. An
// error is kept as a SERVFAIL (RFC 9520) unless it wraps [ErrLocal].
//
// A client whose ctx ends stops waiting, with ctx's error. The first one can't:
// the ask works on its query. So the context that ask gets carries ctx's values,
// but ends only after five seconds, or when the contexts of all who wait for it
// have ended. If ask panics the panic goes on in the first client's goroutine, and
// those that wait get an error; nothing is kept.
func (c *Cache) Fetch(ctx context.Context, q *wire.Query, r *wire.Reply, ask func(context.Context) (wire.Response, error)) error {
	var buf keyBuffer
	key := buf.of(q)
	s, now := c.shard(key), c.now()
	s.mu.Lock()
	if e, _, ok := s.look(key, now); ok {
		s.mu.Unlock()
		r.Copy(e.packed, e.left(now))
		return nil
	}
	f, first := s.board(key, q.RD())
	s.mu.Unlock()
	if first {
		return c.lead(ctx, f, q, r, ask)
	}
	return f.wait(ctx, r)
}

// Kinds is one number for each kind of entry.
type Kinds struct {
	Success, Denial uint64
}

// Stats are counts since the start, and the entries of this moment.
type Stats struct {
	// Requests is the number of calls of Answer: Hits and Misses.
	Requests uint64
	Hits     Kinds
	Misses   uint64
	// Evictions are the entries pushed out by others, alive or not.
	Evictions Kinds
	// Drops are the replies that were to another question.
	Drops uint64
	// Entries are those held, the expired that nothing has replaced included.
	Entries Kinds
}

// Stats adds up the shards, one after the other.
func (c *Cache) Stats() Stats {
	var t Stats
	for i := range c.shards {
		c.shards[i].addTo(&t)
	}
	t.Requests = t.Hits.Success + t.Hits.Denial + t.Misses
	return t
}

// now is the time since the cache was made.
func (c *Cache) now() time.Duration { return c.clock().Sub(c.start) }

// shard is where key lives. The seed is random, so that nobody outside can choose
// names that all fall into one shard.
func (c *Cache) shard(key string) *shard {
	return &c.shards[maphash.String(c.seed, key)&uint64(len(c.shards)-1)]
}
