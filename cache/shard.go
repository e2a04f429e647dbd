package cache

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/nodens-dns/nodens/internal/wire"
)

// shard is one stripe of a store's lock. The lock is held for a lookup and for a move in a
// list, never while a reply is copied or fetched.
type shard struct {
	mu       sync.Mutex
	lastTick time.Duration // see tick
	caches   []*cacheShard // those that are open
	calls    [callBuckets]*call
	free     *call // calls to be used again
	store    *Store
	index    int
	bytes    atomic.Int64 // written under the lock

	_ [64]byte // keeps the next shard's lock out of this one's cache lines
}

// cacheShard is what one cache has in one shard. The shard's lock guards all but shard and
// cache.
type cacheShard struct {
	shard  *shard
	cache  *Cache
	closed bool
	lists  [kinds]list
	bytes  int64 // of its entries

	misses     uint64
	mismatches uint64 // replies to another question
	stale      uint64 // expired answers served
	prefetches uint64
	cuts       uint64 // answers inferred from the denial of a name above

	_ [64]byte // the next cacheShard is under another lock
}

// list is an LRU list of one kind of entry, and its counters. The keys are hashes.
type list struct {
	lru             *simplelru.LRU[uint64, *entry] // nil if the kind has no capacity; it evicts nothing by itself
	oldest          *atomic.Int64                  // of the [capacity], written under the lock
	hits, evictions uint64
}

// key identifies an entry or a call. It is valid as long as q.
type key struct {
	shard *cacheShard
	q     *wire.Query
	hash  uint64
	flags flags // of the key alone
}

// newList makes an LRU list of p, which is shard i of those with the capacity c.
func (p *cacheShard) newList(c *capacity, i int) (l list) {
	l.oldest = &c.oldest[i]
	if c.entries > 0 {
		l.lru, _ = simplelru.NewLRU(math.MaxInt, p.onRemove) // it refuses only a size below 1
	}
	return l
}

// onRemove accounts for an entry that has left its list: by eviction, removal or replacement.
func (p *cacheShard) onRemove(hash uint64, e *entry) {
	if e.flags&leasedFlag != 0 { // without a copy the epoch stays, so that floods of names end no copies of others
		p.shard.store.epochs.Bump(hash)
	}
	if e.flags&cutFlag != 0 {
		p.cache.cuts.Add(-1)
	}
	p.cache.capacity[e.kind()].used.Add(-1)
	p.cache.noteExisting(e, -1)
	p.addBytes(-e.size())
}

// addBytes adds n to the bytes in use; the shard is locked.
func (p *cacheShard) addBytes(n int64) {
	s := p.shard
	p.bytes += n
	s.bytes.Store(s.bytes.Load() + n)
	s.store.bytes.Add(n)
}

// at returns the entry at hash, nil if there is none, without a use; the shard is locked.
func (p *cacheShard) at(hash uint64) *entry {
	for k := range p.lists {
		if l := p.lists[k].lru; l != nil {
			if e, ok := l.Peek(hash); ok {
				return e
			}
		}
	}
	return nil
}

// find returns the entry of k, nil if there is none, without a use; the shard is locked.
func (k *key) find() *entry {
	if e := k.shard.at(k.hash); e != nil && k.matches(e) {
		return e
	}
	return nil
}

// unkept makes the least recently used entry of l that is not kept the oldest one: kept ones become the most recently used. It
// returns that entry, nil if there is none; the shard is locked.
func (s *shard) unkept(l *list) *entry {
	for range l.lru.Len() {
		hash, e, _ := l.lru.GetOldest()
		if e.flags&keptFlag == 0 {
			return e
		}
		l.lru.Get(hash)
		e.lastUsed = s.tick(s.store.clock())
	}
	return nil
}

// matches reports whether e, which is at k's hash, has k's question and EDNS options.
func (k *key) matches(e *entry) bool {
	return e.flags&keyFlags == k.flags && e.packed.IsReplyTo(k.q) &&
		(k.flags&optionsFlag == 0 || bytes.Equal(e.packed.Options(), k.q.Options))
}

// tick returns now, or the next time that no entry of the shard was used at; s is locked.
func (s *shard) tick(now time.Duration) time.Duration {
	s.lastTick = max(s.lastTick+1, now)
	return s.lastTick
}

// newEntry makes an entry for k.
func (k *key) newEntry(p wire.Packed, kd kind, expires, ttl time.Duration) *entry {
	if k.flags&optionsFlag != 0 {
		p = p.WithOptions(k.q.Options)
	}
	e := &entry{packed: p, expires: expires, ttl: seconds(ttl), flags: k.flags}
	if k.isKept() {
		e.flags |= keptFlag
	}
	if kd == denial {
		e.flags |= denialFlag
	}
	return e
}

// put stores f under k in place of the entry that is there; the shard is locked. It is
// false if the entry that is there is better than f.
func (k *key) put(f *fetched) bool {
	p := k.shard
	if p.closed || p.lists[f.kind].lru == nil {
		return true
	}
	e := k.newEntry(f.packed, f.kind, f.at+f.ttl, f.ttl)
	if f.cut {
		e.flags |= cutFlag
	}
	old := p.at(k.hash)
	if old != nil && k.matches(old) {
		if p.cache.keepsOld(old, f) {
			return false
		}
		if f.prefetched { // the name is still popular
			e.hits = uint16(p.cache.cfg.Prefetch.Amount)
		}
	}
	p.replace(k.hash, old, e, f.at)
	return true
}

// isKept reports whether the entry of k stays: the addresses of a name of `keep`, as most clients ask for them. So a name has two such
// entries at most, whatever clients ask.
func (k *key) isKept() bool {
	kept := k.shard.cache.cfg.Keep
	if len(kept) == 0 || k.flags != 0 || k.q.Class != wire.ClassIN || k.q.Type != wire.TypeA && k.q.Type != wire.TypeAAAA {
		return false
	}
	_, found := slices.BinarySearchFunc(kept, k.q.Name(), func(name wire.Name, asked []byte) int { return cmp.Compare(string(name), string(asked)) })
	return found
}

// replace stores e at hash in place of old, the entry that is there or nil; the shard is
// locked and the list of e's kind has a capacity.
func (p *cacheShard) replace(hash uint64, old, e *entry, now time.Duration) {
	s := p.shard
	if old != nil { // an Add to an existing key would not call onRemove
		p.remove(hash, old)
	}
	s.store.epochs.BumpAny() // see [Cache.Lease]
	if e.flags&cutFlag != 0 {
		p.cache.cuts.Add(1)
	}
	p.cache.noteExisting(e, 1)
	e.lastUsed = s.tick(now)
	p.addBytes(e.size())
	p.cache.capacity[e.kind()].used.Add(1)
	l := &p.lists[e.kind()]
	if l.lru.Add(hash, e); l.lru.Len() == 1 {
		l.oldest.Store(int64(e.lastUsed))
	}
}

// remove removes the entry e, which is at hash; the shard is locked.
func (p *cacheShard) remove(hash uint64, e *entry) { p.lists[e.kind()].lru.Remove(hash) }

// open adds p to the caches of s.
func (s *shard) open(p *cacheShard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caches = append(s.caches, p)
}

// openCaches returns the open caches' parts of the shard.
func (s *shard) openCaches() []*cacheShard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.caches)
}

// evict removes the least recently used entry of all caches and reports whether there was
// one.
func (s *shard) evict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var from *list
	var oldest time.Duration
	for _, p := range s.caches {
		for k := range p.lists {
			l := &p.lists[k]
			if l.lru == nil {
				continue
			}
			if e := s.unkept(l); e != nil && (from == nil || e.lastUsed < oldest) {
				from, oldest = l, e.lastUsed
			}
		}
	}
	if from == nil {
		return false
	}
	from.evictions++
	from.lru.RemoveOldest() // oldest is still a lower bound
	return true
}

// keysPerLock is how many entries are visited while a shard is locked: a client that waits
// for the lock waits a few microseconds.
const keysPerLock = 64

// keys returns the hashes of p's entries. It holds the lock while it reads them, which takes
// some ten microseconds for the longest list, see maxShardBytes.
func (p *cacheShard) keys() (hashes []uint64) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	for k := range p.lists {
		if l := p.lists[k].lru; l != nil {
			hashes = append(hashes, l.Keys()...)
		}
	}
	return hashes
}

// visit calls f for the entries at hashes that still exist, with the shard locked. It unlocks
// the shard in between, see keysPerLock.
func (p *cacheShard) visit(hashes []uint64, f func(hash uint64, e *entry)) {
	for some := range slices.Chunk(hashes, keysPerLock) {
		p.visitSome(some, f)
	}
}

func (p *cacheShard) visitSome(hashes []uint64, f func(hash uint64, e *entry)) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	for _, hash := range hashes {
		if e := p.at(hash); e != nil {
			f(hash, e)
		}
	}
}

// flush removes the entries for name and, with subtree, for the names below, and the denials of names above
// that deny name.
func (p *cacheShard) flush(name []byte, subtree bool) (removed int) {
	matches := func(n []byte, cuts bool) bool {
		return bytes.Equal(n, name) || subtree && wire.Under(n, wire.Name(name)) || cuts && wire.Under(name, wire.Name(n))
	}
	s := p.shard
	s.mu.Lock()
	for _, f := range s.calls {
		for ; f != nil; f = f.next {
			f.flushed = f.flushed || f.shard == p && matches(f.q.Name(), p.cache.cfg.NXDomainCut)
		}
	}
	s.mu.Unlock()
	p.visit(p.keys(), func(hash uint64, e *entry) {
		if matches(e.packed.Name(), e.flags&cutFlag != 0) {
			p.remove(hash, e)
			removed++
		}
	})
	return removed
}

// close removes p and its entries from the shard. It may be called again.
func (p *cacheShard) close() {
	s := p.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.closed {
		return
	}
	s.store.epochs.BumpAll() // all copies of its entries end
	p.closed = true
	p.addBytes(-p.bytes)
	for k := range p.lists {
		p.lists[k].lru = nil
		p.lists[k].oldest.Store(math.MaxInt64)
	}
	s.caches = slices.DeleteFunc(s.caches, func(o *cacheShard) bool { return o == p })
}

// addTo adds p's counters to t.
func (p *cacheShard) addTo(t *Stats) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	a, b := &p.lists[success], &p.lists[denial]
	t.Hits.Success += a.hits
	t.Hits.Denial += b.hits
	t.Misses += p.misses
	t.Drops += p.mismatches
	t.Stale += p.stale
	t.Prefetches += p.prefetches
	t.Cuts += p.cuts
	t.Evictions.Success += a.evictions
	t.Evictions.Denial += b.evictions
	t.Entries.Success += a.len()
	t.Entries.Denial += b.len()
}

func (l *list) len() uint64 {
	if l.lru == nil {
		return 0
	}
	return uint64(l.lru.Len())
}

// makeRoom evicts entries until p's cache and its store hold no more than they may. No lock may be held. While other clients
// add entries, the cache exceeds its capacity by at most one for each of them.
func (p *cacheShard) makeRoom() {
	for k := range p.cache.capacity {
		c := &p.cache.capacity[k]
		for c.used.Load() > c.entries {
			shard, others := c.leastRecent()
			if shard < 0 { // all entries are still being added, by clients that make room themselves
				break
			}
			p.cache.shards[shard].evictUsedBy(kind(k), others)
		}
	}
	p.shard.store.enforceBudget(p.shard)
}

// evictUsedBy evicts p's least recently used entry of kind k, unless it was used after limit, and notes in [capacity] when the
// oldest entry was used.
func (p *cacheShard) evictUsedBy(k kind, limit time.Duration) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	l := &p.lists[k]
	if l.lru == nil { // the cache is closed
		return
	}
	if e := p.shard.unkept(l); e != nil && e.lastUsed <= limit {
		l.evictions++
		l.lru.RemoveOldest()
	}
	oldest := time.Duration(math.MaxInt64)
	if _, e, ok := l.lru.GetOldest(); ok {
		oldest = e.lastUsed
	}
	l.oldest.Store(int64(oldest))
}
