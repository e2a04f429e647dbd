package cache

import (
	"context"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// minShards is the number of shards where the budget allows it. A lock is held for some
	// 100 ns of the microseconds that a query takes, so that even 64 busy cores rarely meet.
	minShards = 32
	// minShardBytes is the smallest part of the budget that is worth a shard.
	minShardBytes = 256 << 10
	// maxShardBytes keeps lists short: a shard of this size has room for some 4,096 entries,
	// whose keys are read under one lock.
	maxShardBytes = 1 << 20
	// minList is the fewest entries of a cache that are worth a shard.
	minList = 128
)

// Options are what a Store needs of its surroundings. The zero value is ready.
type Options struct {
	// Clock is the store's clock, also in place of the times that callers pass; nil is
	// [clock.Now]. Only differences matter.
	Clock func() time.Duration
	// Go runs f on a new goroutine, with a context that outlives the queries. It returns
	// false, without running f, if too many run. It recovers from panics in f. nil starts any
	// number of goroutines.
	Go func(f func(ctx context.Context)) bool
	// Epochs are incremented when entries are removed or replaced, for copies of answers, see
	// [Cache.Lease]; nil: there are no copies.
	Epochs *epoch.Table
}

// Store is the memory of all caches of a process. [NewStore] makes it. It is safe
// for concurrent use.
type Store struct {
	clock    func() time.Duration
	ownClock bool // the times that Get is given are of another clock
	run      func(func(context.Context)) bool
	seed     maphash.Seed
	shards   []shard
	epochs   *epoch.Table
	caches   atomic.Uint64 // made so far

	// budget bounds the bytes of all shards together. A shard that has more than its share
	// evicts first, but only if the whole exceeds the budget: neither chance nor a cache
	// that lives in one shard evicts entries while there is room elsewhere.
	budget int64
	share  int64
	_      [64]byte // bytes is written at each put: keep it off the cache line of the above
	bytes  atomic.Int64
}

// NewStore makes a store whose entries take at most budget bytes, what finds them included.
// What the garbage collector has not freed yet comes on top.
func NewStore(budget int, opts Options) *Store {
	s := &Store{
		clock: opts.Clock, ownClock: opts.Clock != nil, run: opts.Go, seed: maphash.MakeSeed(), budget: int64(max(budget, 0)),
		epochs: opts.Epochs,
	}
	if s.clock == nil {
		s.clock = clock.Now
	}
	if s.run == nil {
		s.run = func(f func(context.Context)) bool {
			go f(context.Background())
			return true
		}
	}
	n := powerOfTwo(budget/minShardBytes, max(minShards, budget/maxShardBytes))
	s.shards = make([]shard, n)
	s.share = s.budget / int64(n)
	for i := range s.shards {
		s.shards[i].store, s.shards[i].index = s, i
	}
	return s
}

// now returns the time of the store's clock: t, unless the store has a clock of its own.
func (s *Store) now(t time.Duration) time.Duration {
	if s.ownClock {
		return s.clock()
	}
	return t
}

// powerOfTwo returns the greatest power of two that is at most n and at most limit, or 1.
func powerOfTwo(n, limit int) int {
	return 1 << max(bits.Len(uint(max(min(n, limit), 0)))-1, 0)
}

// NewCache makes an empty cache, configured by cfg, whose entries live in s. cfg is copied.
// The caller closes the cache. boundaries are the names at which other servers are asked
// than above: the denial of a name above a boundary does not answer for names below it.
func (s *Store) NewCache(cfg *config.Cache, boundaries ...wire.Name) *Cache {
	first := int(s.caches.Add(1)) // spreads small caches over the shards
	n := powerOfTwo(max(cfg.Success.Entries, cfg.Denial.Entries)/minList, len(s.shards))
	c := &Cache{cfg: *cfg, boundaries: boundaries, store: s, shards: make([]cacheShard, n)}
	c.capacity[success].init(cfg.Success.Entries, n)
	c.capacity[denial].init(cfg.Denial.Entries, n)
	for i := range c.shards {
		p := &c.shards[i]
		p.cache, p.shard = c, &s.shards[(first+i)%len(s.shards)]
		for k := range p.lists {
			p.lists[k] = p.newList(&c.capacity[k], i)
		}
		p.shard.open(p)
	}
	return c
}

// Bytes returns what the entries of all caches take.
func (s *Store) Bytes() int { return int(s.bytes.Load()) }

// Budget returns the most that [Store.Bytes] may be.
func (s *Store) Budget() int { return int(s.budget) }

// hash returns the hash of a question. The seed is random, so that nobody outside can choose
// names with the same hash, or of the same shard. The rest of the question is spread over
// all bits by a multiplication that no two values share, so that it can't make two questions
// about one name collide.
func (s *Store) hash(name []byte, qtype, class uint16, f flags) uint64 {
	const spread = 0x9E3779B97F4A7C15 // 2^64 divided by the golden ratio, odd
	rest := uint64(class)<<24 | uint64(qtype)<<8 | uint64(f)
	return maphash.Bytes(s.seed, name) ^ rest*spread
}

// enforceBudget evicts entries until the bytes fit into the budget, after entries were
// added to the shard first. Only shards with more than their share evict, first before the
// others, one entry per lock.
func (s *Store) enforceBudget(first *shard) {
	for i := 0; s.bytes.Load() > s.budget && i < len(s.shards); {
		v := &s.shards[(first.index+i)%len(s.shards)]
		if v.bytes.Load() <= s.share || !v.evict() {
			i++
		}
	}
}

// Flush is [Cache.Flush] for all caches of the store.
func (s *Store) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range s.shards {
		for _, p := range s.shards[i].openCaches() {
			n += p.flush(name, subtree)
		}
	}
	return n
}
