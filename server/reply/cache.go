package reply

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// MaxReplies bounds the replies of a cache: a busy node has some thousand names in use.
	MaxReplies = 2048
	// MinReplies is the least number of replies of a cache: a few names take a great part of all queries.
	MinReplies = 128
	// ways is the number of replies in a set.
	ways = 4
	// maxQuery and maxReply bound the bytes of an entry. Nearly all queries and replies are shorter, and
	// longer ones gain less.
	maxQuery, maxReply = 256, 512
	// tcBit is TC in the third byte of a message. A truncated reply is not kept: another client may get more of it, and
	// the next one a different sample.
	tcBit = 0x02
	// maxWatches bounds what a reply depends on: its source, and the hosts table in front of it.
	maxWatches = 2
	// maxStrength bounds by how many failed attempts to replace it an entry without hits stays.
	maxStrength = 15
	// reportedHits, reportedChanges and reportInterval are after how many hits, changes elsewhere, or how much time the owner
	// of a reply learns that it was in use. So few changes evict no entry from a cache of ordinary size.
	reportedHits, reportedChanges, reportInterval = 256, 64, 10 * time.Second
)

// Owner is told of the hits of one reply. The goroutine that uses the Cache calls it.
type Owner interface {
	// CountHits counts n hits, not 0, at the end of the batch of packets that they are of, and before
	// the replies are sent.
	CountHits(n uint64)
	// Use says that the reply was sent n times since the last call, not 0, the last one at now. It
	// is called when that is worth an update of what the reply was made of: before many other answers
	// have changed, within ten seconds of a hit that more hits follow, and at the latest when the reply ends
	// and is asked for again. Until then, up to n are not known.
	Use(n uint64, now time.Duration)
}

// Cache keeps replies and their owners. Only one goroutine may use it. It takes 16 bytes for each reply that it
// may have, and some hundred bytes for each that it has.
type Cache[O Owner] struct {
	tables  *Tables
	seed    maphash.Seed
	sets    []set[O]    // a power of two
	touched []*Entry[O] // with hits in this batch
}

// set has the size of a cache line.
type set[O Owner] struct {
	tags    [ways]uint32    // of the entries
	asked   [ways]uint32    // of the last queries that were not found, in turn
	entries [ways]*Entry[O] // nil is none
}

// For says whom a reply is for.
type For struct {
	// IPv6 says that the query came over IPv6.
	IPv6 bool
	// Class is the clients that get the same replies; others have another one.
	Class uint32
}

// Entry is a reply in a Cache.
type Entry[O Owner] struct {
	// Owner is what [Cache.Put] was given.
	Owner O

	query    []byte // behind the ID; nil: there is no reply
	whom     For
	strength uint8
	watches  [maxWatches]epoch.Watch
	nwatches int
	life     epoch.Lifetime
	reply    []byte
	layout   Layout

	hits     uint64 // in this batch
	unused   uint64 // that Use is still to be told of
	reported time.Duration
	changes  uint64 // when it was reported
}

// New makes a cache for n replies, rounded up to a power of two, at least [MinReplies] and at most [MaxReplies]. Their
// marks are of the tables.
func New[O Owner](n int, tables *Tables) *Cache[O] {
	n = min(max(n, MinReplies), MaxReplies)
	return &Cache[O]{tables: tables, seed: maphash.MakeSeed(), sets: make([]set[O], 1<<bits.Len(uint(n-1))/ways)}
}

// classFactor spreads the entries of one query for different classes over the sets: the golden ratio, as a fraction of 2^64.
const classFactor = 0x9E3779B97F4A7C15

// setOf returns the set and the tag, which is not 0, of a query of a class.
func (c *Cache[O]) setOf(query []byte, class uint32) (s *set[O], tag uint32) {
	h := maphash.Bytes(c.seed, query) ^ uint64(class)*classFactor
	return &c.sets[h%uint64(len(c.sets))], uint32(h>>32) | 1
}

// Get appends the reply to packet at now to buf, and counts a hit. Without a reply the entry is nil, and
// wanted reports whether the path's reply is worth a [Cache.Put]: one of the last queries of the set that were not
// found was the same, or a reply to it has just ended. Get allocates only to grow buf.
func (c *Cache[O]) Get(packet []byte, whom For, now time.Duration, buf []byte) (reply []byte, e *Entry[O], wanted bool) {
	if len(packet) < wire.HeaderLen || len(packet) > maxQuery {
		return nil, nil, false
	}
	query := packet[2:]
	s, tag := c.setOf(query, whom.Class)
	if e = s.find(tag, whom, query); e == nil {
		return nil, nil, s.note(tag)
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

// find returns the entry for a query with that tag, nil if there is none.
func (s *set[O]) find(tag uint32, whom For, query []byte) *Entry[O] {
	for i, t := range s.tags {
		if t != tag {
			continue
		}
		if e := s.entries[i]; e != nil && e.whom == whom && bytes.Equal(e.query, query) {
			return e
		}
	}
	return nil
}

// note notes that a query with that tag was not found, and reports whether it is one of the last.
func (s *set[O]) note(tag uint32) bool {
	for _, t := range s.asked {
		if t == tag {
			return true
		}
	}
	copy(s.asked[1:], s.asked[:ways-1])
	s.asked[0] = tag
	return false
}

// append appends the reply with the ID to buf.
func (e *Entry[O]) append(buf []byte, id [2]byte, now time.Duration) []byte {
	var ttl uint32
	if e.layout.nttls > 0 {
		ttl = e.life.TTL(now)
	}
	at := len(buf)
	buf = append(buf, e.reply...)
	msg := buf[at:]
	copy(msg, id[:])
	e.layout.patch(msg, ttl, e.watches[0].Serial())
	if e.layout.Rotated > 1 {
		e.layout.rotate(msg, e.reply, rand.Uint64()) //nolint:gosec // spreads load
	}
	return buf
}

// valid reports whether the reply may be sent at now.
func (e *Entry[O]) valid(now time.Duration) bool {
	for i := range e.watches[:e.nwatches] {
		if !e.watches[i].Holds() {
			return false
		}
	}
	return e.life.Expires == 0 || now < e.life.Expires
}

// Put keeps the answer a, whose query Get has not found, for owner. It does nothing if the reply is
// too long, if it cannot be sent again, or if the replies in its place are asked for more often.
func (c *Cache[O]) Put(a *Answer, whom For, owner O, now time.Duration) {
	packet := a.Query.Packet
	if len(packet) > maxQuery || len(a.Reply) > maxReply || len(a.Reply) < wire.HeaderLen || len(a.More) >= maxWatches || a.Reply[2]&tcBit != 0 {
		return
	}
	s, tag := c.setOf(packet[2:], whom.Class)
	i := c.victim(s, now)
	if i < 0 || !s.entries[i].layout.Parse(a) {
		return
	}
	e := s.entries[i]
	s.tags[i] = tag
	e.Owner, e.whom, e.strength = owner, whom, 1
	e.query, e.reply = append(e.query[:0], packet[2:]...), append(e.reply[:0], a.Reply...)
	e.watches[0], e.nwatches = c.tables.watch(a.Mark), 1
	for _, m := range a.More {
		e.watches[e.nwatches] = c.tables.watch(m)
		e.nwatches++
	}
	e.life, e.reported, e.changes = a.Lifetime, now, c.tables.Cached.Any()
}

// victim returns the index of an entry of s without a reply; -1 if all are asked for more often than what is to
// replace them.
func (c *Cache[O]) victim(s *set[O], now time.Duration) int {
	weakest := 0
	for i, e := range s.entries {
		if e == nil {
			s.entries[i] = new(Entry[O])
			return i
		}
		if len(e.query) == 0 || !e.valid(now) {
			c.end(e, now)
			return i
		}
		if e.strength < s.entries[weakest].strength {
			weakest = i
		}
	}
	if s.entries[weakest].strength > 0 {
		for _, e := range s.entries {
			e.strength /= 2
		}
		return -1
	}
	c.end(s.entries[weakest], now)
	return weakest
}

// EndBatch reports the hits since the last call. The last of them was at now.
func (c *Cache[O]) EndBatch(now time.Duration) {
	// An entry whose use the caches do not know of is evicted after many changes and new answers.
	changes := c.tables.Cached.Any()
	for i, e := range c.touched {
		c.touched[i] = nil
		e.count()
		if e.unused >= reportedHits || changes-e.changes >= reportedChanges || now-e.reported >= reportInterval {
			e.use(now)
			e.changes = changes
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
		s.tags, s.asked = [ways]uint32{}, [ways]uint32{}
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
	e.Owner, e.query = none, e.query[:0]
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
