package cache

import (
	"math/bits"
	"sync"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxShards: a lock is held for about 100 ns of the microseconds that a query
	// takes, so at 64 shards even 32 cores that do nothing else rarely meet.
	// Twice as many would leave each list so short (78 of the default's 9984
	// entries) that chance fills one long before its neighbours; half as many
	// would save nothing.
	maxShards = 64
	// minShare is the least number of entries a shard should have, for the same
	// reason: a small cache gets fewer shards, not shorter lists.
	minShare = 64
	// bytesPerEntry times the entries is the budget of a list in bytes. Packed
	// replies have 60 to 500 bytes and stay far below it; replies of up to 64 KiB
	// then can't make 9984 entries into 600 MiB. Half of it would touch signed
	// answers (DO), which reach 1 KiB.
	bytesPerEntry = 2048
)

// shardCount is the number of shards, a power of two so that a mask finds one.
func shardCount(success, denial int) int {
	n := max(success, denial) / minShare
	return min(maxShards, 1<<max(bits.Len(uint(n))-1, 0))
}

// share is the part of entries that shard i of n gets; the parts add up.
func share(entries, n, i int) int {
	if i < entries%n {
		return entries/n + 1
	}
	return entries / n
}

// keyBuffer holds a key: the qname, then type, class, and the bits DO and CD.
type keyBuffer [wire.MaxName + 5]byte

// of writes q's key. The string shares b's bytes, so that looking a key up costs no
// allocation: it is good until b is written again, and whoever stores it clones it.
func (b *keyBuffer) of(q *wire.Query) string {
	n := copy(b[:], q.Name())
	b[n], b[n+1] = byte(q.Type>>8), byte(q.Type)
	b[n+2], b[n+3] = byte(q.Class>>8), byte(q.Class)
	b[n+4] = 0
	if q.DO {
		b[n+4] |= 1
	}
	if q.CD() {
		b[n+4] |= 2
	}
	return unsafe.String(&b[0], n+5)
}

// kind is which of a shard's lists an entry is in.
type kind uint8

const (
	success kind = iota
	denial
)

func (k kind) other() kind { return 1 - k }

// entry is a reply and its life, in time since the cache was made.
type entry struct {
	packed wire.Packed
	stored time.Duration
	life   time.Duration
}

func (e *entry) alive(now time.Duration) bool { return now-e.stored < e.life }

// left is the TTL at now. A second that has begun counts, so that what lives has
// a TTL of at least one.
func (e *entry) left(now time.Duration) uint32 { return seconds(e.life - (now - e.stored)) }

// seconds is d in seconds, rounded up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// shard is a part of the cache under one lock, which is held for a map look-up and
// a move in a list, never while an answer is copied or asked for.
type shard struct {
	mu      sync.Mutex
	lists   [2]list // by kind
	flights map[boarding]*flight

	hits   [2]uint64 // by kind
	misses uint64
	drops  uint64

	_ [64]byte // keeps the next shard's lock out of this one's cache line
}

// list is one LRU list with what it counts. lru is nil if it keeps nothing.
type list struct {
	lru       *simplelru.LRU[string, entry]
	bytes     int // what the entries take
	budget    int
	evictions uint64
}

func (s *shard) init(successes, denials int) {
	s.flights = make(map[boarding]*flight)
	s.lists[success].init(successes)
	s.lists[denial].init(denials)
}

func (l *list) init(entries int) {
	if entries <= 0 {
		return
	}
	l.budget = entries * bytesPerEntry
	// The only error of NewLRU is a size that isn't positive.
	l.lru, _ = simplelru.NewLRU(entries, func(key string, e entry) { l.bytes -= len(key) + e.packed.Size() })
}

// look finds the living entry of key, and its kind.
func (s *shard) look(key string, now time.Duration) (entry, kind, bool) {
	for k := range s.lists {
		if s.lists[k].lru == nil {
			continue
		}
		if e, ok := s.lists[k].lru.Get(key); ok && e.alive(now) {
			return e, kind(k), true
		}
	}
	return entry{}, success, false
}

func (s *shard) count(k kind, hit bool) {
	if hit {
		s.hits[k]++
	} else {
		s.misses++
	}
}

// put keeps e under key, which is cloned by the caller. A SERVFAIL is dropped if
// something better lives there.
func (s *shard) put(key string, k kind, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists[k].lru == nil {
		return
	}
	if e.packed.Rcode() == wire.ServFail {
		if old, _, ok := s.look(key, e.stored); ok && old.packed.Rcode() != wire.ServFail {
			return
		}
	}
	if l := &s.lists[k.other()]; l.lru != nil {
		l.lru.Remove(key)
	}
	s.lists[k].put(key, e)
}

func (l *list) put(key string, e entry) {
	l.lru.Remove(key) // so that its bytes are counted off
	l.bytes += len(key) + e.packed.Size()
	if l.lru.Add(key, e) {
		l.evictions++
	}
	for l.bytes > l.budget && l.lru.Len() > 1 {
		l.lru.RemoveOldest()
		l.evictions++
	}
}

func (l *list) len() uint64 {
	if l.lru == nil {
		return 0
	}
	return uint64(l.lru.Len())
}

func (s *shard) addTo(t *Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Hits.Success += s.hits[success]
	t.Hits.Denial += s.hits[denial]
	t.Misses += s.misses
	t.Drops += s.drops
	t.Evictions.Success += s.lists[success].evictions
	t.Evictions.Denial += s.lists[denial].evictions
	t.Entries.Success += s.lists[success].len()
	t.Entries.Denial += s.lists[denial].len()
}
