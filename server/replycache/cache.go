package replycache

import (
	"bytes"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxReplies is the number of replies in a cache, ways that in a set of it, and sets the number of sets, a power
	// of two.
	maxReplies = 256
	ways       = 2
	sets       = maxReplies / ways
	// maxQuery and maxReply bound the bytes of an entry. Nearly all queries and replies are shorter, and
	// longer ones gain less.
	maxQuery, maxReply = 256, 512
	// maxWatches bounds what a reply depends on: its source, and the hosts table in front of it.
	maxWatches = 2
	// maxStrength bounds by how many failed attempts to replace it an entry without hits stays.
	maxStrength = 15
	// reportedHits and reportInterval are after how many hits, or how much time, the owner of a reply
	// learns that it was in use.
	reportedHits, reportInterval = 256, time.Second
)

// Owner is told of the hits of one reply. The goroutine that uses the Cache calls it.
type Owner interface {
	// CountHits counts n hits, not 0, at the end of the batch of packets that they are of, and before
	// the replies are sent.
	CountHits(n uint64)
	// Use says that the reply was sent n times since the last call, not 0, the last one at now. It
	// is called when that is worth an update of what the reply was made of: within a second, and at
	// the latest when the reply ends and is asked for again. Until then, up to n are not known.
	Use(n uint64, now time.Duration)
}

// Answer is a reply that the query path has given, and for how long it is valid. Times are by
// package clock.
type Answer struct {
	// Query is the query as received, over IPv6 if V6 is set, and Reply as sent.
	Query *wire.Query
	V6    bool
	Reply []byte
	// Watches end the reply before it expires. The first may have the serial of the SOA record. There is at least one.
	Watches []epoch.Watch
	// Expires is when the reply ends; 0 is never. Where CountsDown is set, the TTLs of all records are
	// what is left until Ends, in seconds rounded up and at most Life.
	Expires, Ends time.Duration
	CountsDown    bool
	Life          uint32
	// Shuffled says that addresses are in another order in each reply.
	Shuffled bool
}

// Cache keeps replies and their owners. Only one goroutine may use it. It takes 4 KiB, and at most
// 250 KiB with as many and as long replies as fit.
type Cache[O Owner] struct {
	seed    maphash.Seed
	sets    [sets]set[O]
	touched []*Entry[O] // with hits in this batch
}

type set[O Owner] struct {
	entries [ways]*Entry[O] // nil is none
	// asked is the hash of the last query that was not found.
	asked uint64
}

// Entry is a reply in a Cache.
type Entry[O Owner] struct {
	// Owner is what [Cache.Put] was given.
	Owner O

	hash     uint64
	query    []byte // behind the ID; nil: there is no reply
	v6       bool
	strength uint8
	watches  [maxWatches]epoch.Watch
	nwatches int
	expires  time.Duration
	ends     time.Duration
	life     uint32
	template template

	hits     uint64 // in this batch
	unused   uint64 // that Use is still to be told of
	reported time.Duration
}

// New makes a cache.
func New[O Owner]() *Cache[O] { return &Cache[O]{seed: maphash.MakeSeed()} }

// Get appends the reply to packet at now to buf, and counts a hit. Without a reply the entry is nil, and
// again reports whether the path's reply is worth a [Cache.Put]: the last query of the set that was not
// found was the same, or a reply to it has just ended. v6 says that the query came over IPv6. Get allocates only
// to grow buf.
func (c *Cache[O]) Get(packet []byte, v6 bool, now time.Duration, buf []byte) (reply []byte, e *Entry[O], again bool) {
	if len(packet) < wire.HeaderLen || len(packet) > maxQuery {
		return nil, nil, false
	}
	query := packet[2:]
	h := maphash.Bytes(c.seed, query)
	s := &c.sets[h%sets]
	if e = s.find(h, v6, query); e == nil {
		again = s.asked == h
		s.asked = h
		return nil, nil, again
	}
	if !e.valid(now) {
		c.end(e, now)
		return nil, nil, true
	}
	if e.hits++; e.hits == 1 {
		c.touched = append(c.touched, e)
	}
	return e.append(buf, [2]byte(packet), now), e, false
}

// find returns the entry for a query with the hash h, nil if there is none.
func (s *set[O]) find(h uint64, v6 bool, query []byte) *Entry[O] {
	for _, e := range s.entries {
		if e != nil && e.hash == h && e.v6 == v6 && bytes.Equal(e.query, query) {
			return e
		}
	}
	return nil
}

// append appends the reply with the ID to buf.
func (e *Entry[O]) append(buf []byte, id [2]byte, now time.Duration) []byte {
	var left uint32
	if e.template.nttls > 0 {
		left = ttl(now, e.ends, e.life)
	}
	var turn uint64
	if e.template.rotated > 1 {
		turn = rand.Uint64() //nolint:gosec // spreads load
	}
	return e.template.append(buf, id, left, e.watches[0].Serial(), turn)
}

// valid reports whether the reply may be sent at now.
func (e *Entry[O]) valid(now time.Duration) bool {
	for i := range e.watches[:e.nwatches] {
		if !e.watches[i].Holds() {
			return false
		}
	}
	return e.expires == 0 || now < e.expires
}

// Put keeps the answer a, whose query Get has not found, for owner. It does nothing if the reply is
// too long, if it cannot be sent again as it is, or if the replies in its place are asked for more often.
func (c *Cache[O]) Put(a *Answer, owner O, now time.Duration) {
	packet := a.Query.Packet
	if len(packet) > maxQuery || len(a.Reply) > maxReply || len(a.Reply) < wire.HeaderLen || len(a.Watches) > maxWatches {
		return
	}
	h := maphash.Bytes(c.seed, packet[2:])
	e := c.victim(&c.sets[h%sets], now)
	if e == nil || !e.template.set(a) {
		return
	}
	e.Owner, e.hash, e.v6, e.strength = owner, h, a.V6, 1
	e.query = append(e.query[:0], packet[2:]...)
	e.nwatches = copy(e.watches[:], a.Watches)
	e.expires, e.ends, e.life = a.Expires, a.Ends, a.Life
	e.reported = now
}

// victim returns an entry of s without a reply; nil if all are asked for more often than what is to
// replace them.
func (c *Cache[O]) victim(s *set[O], now time.Duration) *Entry[O] {
	var weakest *Entry[O]
	for i, e := range s.entries {
		if e == nil {
			s.entries[i] = new(Entry[O])
			return s.entries[i]
		}
		if len(e.query) == 0 || !e.valid(now) {
			c.end(e, now)
			return e
		}
		if weakest == nil || e.strength < weakest.strength {
			weakest = e
		}
	}
	if weakest.strength > 0 {
		for _, e := range s.entries {
			e.strength /= 2
		}
		return nil
	}
	c.end(weakest, now)
	return weakest
}

// EndBatch reports the hits since the last call. The last of them was at now.
func (c *Cache[O]) EndBatch(now time.Duration) {
	for i, e := range c.touched {
		c.touched[i] = nil
		e.count()
		if e.unused >= reportedHits || now-e.reported >= reportInterval {
			e.use(now)
		}
	}
	c.touched = c.touched[:0]
}

// Clear drops all replies and reports the hits that are left.
func (c *Cache[O]) Clear(now time.Duration) {
	for i := range c.sets {
		s := &c.sets[i]
		for j, e := range s.entries {
			if e != nil {
				c.end(e, now)
				s.entries[j] = nil
			}
		}
		s.asked = 0
	}
	clear(c.touched)
	c.touched = c.touched[:0]
}

// end drops e's reply and reports the hits that are left.
func (c *Cache[O]) end(e *Entry[O], now time.Duration) {
	if len(e.query) == 0 {
		return
	}
	e.count()
	e.use(now)
	var none O
	e.Owner, e.query, e.hash = none, e.query[:0], 0
}

// count tells the owner of the hits of this batch.
func (e *Entry[O]) count() {
	if e.hits == 0 {
		return
	}
	e.Owner.CountHits(e.hits)
	e.unused += e.hits
	e.strength = maxStrength
	e.hits = 0
}

// use tells the owner that the reply was in use.
func (e *Entry[O]) use(now time.Duration) {
	if e.unused > 0 {
		e.Owner.Use(e.unused, now)
		e.unused = 0
	}
	e.reported = now
}
