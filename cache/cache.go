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
// answer that still lives.
//
// A miss becomes a flight in the same shard: the first client asks, those that
// come while it does wait for the same result. The shard is looked at again before
// a flight starts, because this can happen: A and B both miss; A asks, stores and
// lands; only now B comes for its flight, finds none, and would ask once more.
package cache

import (
	"context"
	"errors"
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

// Cache is what one `cache` directive keeps. [Store.NewCache] makes it. It is safe
// for concurrent use.
type Cache struct {
	cfg   config.Cache
	store *Store
	id    uint64
	parts []part // a power of two
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

// Answer makes r the kept reply to q, with the TTL that is left at now, a moment of
// the store's clock, and reports whether there is one; without one r is untouched.
// It allocates nothing but what r's buffer needs to grow.
func (c *Cache) Answer(q *wire.Query, r *wire.Reply, now time.Duration) bool {
	k := c.key(q)
	s := k.part.shard
	s.mu.Lock()
	e := s.look(&k, now)
	if e == nil {
		k.part.misses++
		s.mu.Unlock()
		return false
	}
	k.part.lists[e.owner&kindBit].hits++
	packed, ttl := e.packed, e.left(now)
	s.mu.Unlock()
	r.Copy(packed, ttl)
	return true
}

// Fetch makes r the reply to q that ask gets, and keeps it if it may be kept.
// Every TTL in r is the one value the reply is kept for, so that clients don't see
// it jump between this reply and the next from the cache. ask is called at most
// once at a time for one key; it runs on the goroutine of the first client, with
// its ctx, and the others wait for its result: for as long as ask takes, which must
// end. They share its error too; r is then untouched. An error is kept as a
// SERVFAIL (RFC 9520) unless it wraps [ErrLocal] or ctx was cancelled. q must not
// change until Fetch returns.
//
// A client that waits and whose ctx ends stops waiting, with ctx's error. The end of
// the first one's ctx ends the ask for all: clients whose lives differ should come
// with a context that outlives them. If ask panics the panic goes on in the first
// client's goroutine, and those that wait get an error; nothing is kept.
func (c *Cache) Fetch(ctx context.Context, q *wire.Query, r *wire.Reply, ask func(context.Context) (wire.Response, error)) error {
	k := c.key(q)
	s, now := k.part.shard, c.store.clock()
	s.mu.Lock()
	if e := s.look(&k, now); e != nil {
		packed, ttl := e.packed, e.left(now)
		s.mu.Unlock()
		r.Copy(packed, ttl)
		return nil
	}
	f, done := s.board(&k)
	s.mu.Unlock()
	if done != nil {
		return f.wait(ctx, done, r)
	}
	return c.lead(ctx, f, r, ask)
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
	for i := range c.parts {
		c.parts[i].addTo(&t)
	}
	t.Requests = t.Hits.Success + t.Hits.Denial + t.Misses
	return t
}

// key is what q's reply is found by: one hash, whose highest bits choose the shard
// and whose lowest the bucket.
func (c *Cache) key(q *wire.Query) key {
	h := c.store.hash(q, c.id)
	p := &c.parts[int(h>>56)&(len(c.parts)-1)]
	return key{part: p, q: q, hash: uint32(h), owner: p.owner | tags(q)}
}
