package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// list is the entries of one kind that a cache has in one shard, with what it counts.
type list struct {
	newest, oldest  ref
	len, limit      int32
	hits, evictions uint64
}

// part is what a cache has in one shard. The shard's lock guards all but shard and
// owner. It has whole lines of the CPU's caches: another lock guards the next part.
type part struct {
	shard      *shard
	cache      *Cache
	owner      uint32 // of its slots, without the lowest bits; good until closed
	closed     bool
	lists      [kinds]list
	misses     uint64
	drops      uint64
	stale      uint64 // expired answers given
	prefetches uint64
	cuts       uint64 // names answered by the denial of one above
}

// key is what an entry or a flight is found by. It is good as long as q.
type key struct {
	part  *part
	q     *wire.Query
	hash  uint32
	owner uint32 // without the kind
}

// shard is a piece of the store under one lock, which is held for a look into the
// table and a move in a list, never while an answer is copied or asked for.
type shard struct {
	mu sync.Mutex
	slab
	table   []ref   // heads of chains; its length is a power of two
	uses    uint64  // the tick of the last use, see hitBits
	parts   []*part // nil where one has left
	flights [flightBuckets]*flight
	spare   *flight // flights to be used again
	store   *Store
	index   int
	bytes   atomic.Int64 // written under the lock

	_ [64]byte // keeps the next shard's lock out of this one's lines
}

// refBytes is the size of a ref.
const refBytes = 4

func (s *shard) init(store *Store, index, buckets int) {
	s.store, s.index = store, index
	s.table = make([]ref, buckets)
	s.weigh(int64(buckets) * refBytes)
}

// find gives the slot of k, none if there is none; s is locked.
func (s *shard) find(k *key) ref {
	if k.part.closed {
		return none // its number may be another's by now
	}
	i := *s.bucket(k.hash)
	for i != none {
		e := s.at(i)
		if e.hash == k.hash && e.owner&^stateBits == k.owner && e.packed.For(k.q) {
			break
		}
		i = e.chain
	}
	return i
}

func (s *shard) bucket(hash uint32) *ref { return &s.table[int(hash)&(len(s.table)-1)] }

// touch makes e, which is i, the one used last; s is locked.
func (s *shard) touch(i ref, e *slot, now time.Duration) {
	if l := s.list(e); l.newest != i {
		s.unlink(l, e)
		s.push(l, i, e)
	}
	e.used = s.tick(now)<<hitBits | e.used&hitMask
}

// tick is the next moment of use; s is locked. More uses than ticks make the count go
// ahead of the clock, which does no harm.
func (s *shard) tick(now time.Duration) uint64 {
	s.uses = max(s.uses+1, uint64(now)>>tickBits)
	return s.uses
}

// put keeps n under k, in place of what is there; s is locked. A SERVFAIL, or
// whatever else is no better, is dropped if an answer is there that may still be given:
// kept is false only then.
func (s *shard) put(k *key, n entry) (kept bool) {
	p := k.part
	l := &p.lists[n.kind]
	if p.closed || l.limit == 0 {
		return true
	}
	used := s.tick(n.stored) << hitBits
	if i := s.find(k); i != none {
		old := s.at(i)
		if p.cache.holds(old, &n) {
			return false
		}
		if n.warm {
			used |= uint64(p.cache.cfg.Prefetch.Amount) // claimed stood for at least as many
		}
		s.remove(i)
	}
	owner := k.owner | uint32(n.kind)
	if n.cut {
		owner |= cutBit
	}
	s.insert(p, l, &slot{
		packed: n.packed, expires: n.stored + n.life, life: seconds(n.life), used: used, hash: k.hash, owner: owner,
	})
	return true
}

// insert makes a copy of n, which has no neighbours yet, the newest of l, which is of p
// and in which the oldest makes place if need be; s is locked.
func (s *shard) insert(p *part, l *list, n *slot) {
	if l.len == l.limit {
		l.evictions++
		s.remove(l.oldest)
	}
	s.store.epochs.BumpAny() // who is about to copy what was here before sees it
	if n.owner&cutBit != 0 {
		p.cache.deniers.Add(1)
	}
	i, b := s.grow(), s.bucket(n.hash)
	e := s.at(i)
	*e = *n
	e.chain = *b
	*b = i
	l.len++
	s.push(l, i, e)
	s.weigh(e.cost())
}

// evict removes the entry that is unused for longest, of any cache, and reports
// whether there was one.
func (s *shard) evict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var from *list
	for _, p := range s.parts {
		if p == nil {
			continue
		}
		for k := range p.lists {
			l := &p.lists[k]
			if l.len > 0 && (from == nil || s.at(l.oldest).used < s.at(from.oldest).used) {
				from = l
			}
		}
	}
	if from == nil {
		return false
	}
	from.evictions++
	s.remove(from.oldest)
	return true
}

// remove takes i out of its list and its bucket, and moves the last slot into its
// place, so that numbers that were got before are good no more; s is locked.
func (s *shard) remove(i ref) {
	e := s.at(i)
	if e.owner&copiedBit != 0 { // else a flood of names would end the copies of others
		s.store.epochs.Bump(uint64(e.hash))
	}
	l := s.list(e)
	s.unlink(l, e)
	l.len--
	*s.link(e.hash, i) = e.chain
	s.weigh(-e.cost())
	if e.owner&cutBit != 0 {
		s.parts[e.owner>>ownerShift].cache.deniers.Add(-1)
	}
	if last := s.last; last != i {
		m := s.at(last)
		*s.link(m.hash, last) = i
		s.relink(s.list(m), m, i)
		*e = *m
	}
	s.shrink()
}

// link is what points to i in the chain of hash.
func (s *shard) link(hash uint32, i ref) *ref {
	at := s.bucket(hash)
	for *at != i {
		at = &s.at(*at).chain
	}
	return at
}

// list is the one e is in.
func (s *shard) list(e *slot) *list {
	return &s.parts[e.owner>>ownerShift].lists[e.owner&kindBit]
}

// push makes e, which is i, the newest of l.
func (s *shard) push(l *list, i ref, e *slot) {
	e.newer, e.older = none, l.newest
	if l.newest != none {
		s.at(l.newest).newer = i
	} else {
		l.oldest = i
	}
	l.newest = i
}

// unlink takes e out of l.
func (s *shard) unlink(l *list, e *slot) {
	if e.newer != none {
		s.at(e.newer).older = e.older
	} else {
		l.newest = e.older
	}
	if e.older != none {
		s.at(e.older).newer = e.newer
	} else {
		l.oldest = e.newer
	}
}

// relink makes e's neighbours in l point to i, where e is about to be.
func (s *shard) relink(l *list, e *slot, i ref) {
	if e.newer != none {
		s.at(e.newer).older = i
	} else {
		l.newest = i
	}
	if e.older != none {
		s.at(e.older).newer = i
	} else {
		l.oldest = i
	}
}

// weigh counts n bytes more; s is locked or not in use yet.
func (s *shard) weigh(n int64) {
	s.bytes.Store(s.bytes.Load() + n)
	s.store.bytes.Add(n)
}

// join gives p its place in s.
func (p *part) join(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.parts, nil)
	if i < 0 {
		i = len(s.parts)
		s.parts = append(s.parts, nil)
	}
	s.parts[i] = p
	p.shard, p.owner = s, uint32(i)<<ownerShift
}

// leave removes p's entries and p from its shard. It may be called again.
func (p *part) leave() {
	for p.leaveSome() {
	}
}

// leaving is how many entries go in one taking of the lock: those who wait for an
// answer meanwhile wait some ten microseconds. With half as many it would be taken
// twice as often to no use.
const leaving = 256

// leaveSome reports whether there is more to do.
func (p *part) leaveSome() bool {
	s := p.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.closed {
		s.store.epochs.BumpAll() // what is still to go is found no more
		p.closed = true
	}
	at := &s.parts[p.owner>>ownerShift]
	if *at != p { // it has left before
		return false
	}
	for range leaving {
		l := &p.lists[success]
		if l.len == 0 {
			l = &p.lists[denial]
		}
		if l.len == 0 {
			*at = nil
			return false
		}
		s.remove(l.oldest)
	}
	return true
}

func (p *part) addTo(t *Stats) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	a, b := &p.lists[success], &p.lists[denial]
	t.Hits.Success += a.hits
	t.Hits.Denial += b.hits
	t.Misses += p.misses
	t.Drops += p.drops
	t.Stale += p.stale
	t.Prefetches += p.prefetches
	t.Cuts += p.cuts
	t.Evictions.Success += a.evictions
	t.Evictions.Denial += b.evictions
	t.Entries.Success += uint64(a.len)
	t.Entries.Denial += uint64(b.len)
}
