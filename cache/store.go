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
	// maxShards: a lock is held for less than 100 ns of the microseconds that a
	// query takes, so at 32 shards even 64 cores that do nothing else meet in few
	// of a hundred look-ups. Half as many would double that; twice as many would
	// leave each list half as long (156 of the default's 9984 entries), so that
	// chance fills one well before its neighbours.
	maxShards = 32
	// minShare is the least number of entries that a cache has in a shard, for the
	// same reason: a small cache is spread over fewer shards. At 128 chance fills a
	// list when the others are at nine tenths.
	minShare = 128
	// minOther is the same for the kind of which there are fewer, where a list may
	// well be half empty: but with one or none to a shard, some names would never
	// be kept.
	minOther = 16
	// minShardBytes is the least part of the budget worth a shard. A segment of
	// slots has 32 KiB and may be nearly empty: an eighth of this.
	minShardBytes = 256 << 10
	// bytesPerBucket times the buckets of the table is the budget: an entry with
	// one address takes about this, so that a full table has an entry a bucket.
	// Half of it would make the table 6 % of all; twice as much would double the
	// slots looked at.
	bytesPerBucket = 128
	// minBuckets is the table of a budget that has no room for anything.
	minBuckets = 8
)

// Options are what a Store needs of its surroundings. The zero value is ready.
type Options struct {
	// Clock tells the time, also in place of the moments that Answer is given; nil is
	// [clock.Now]. Only differences count.
	Clock func() time.Duration
	// Go runs f on a goroutine of its own, with a context that outlives the queries, and
	// is false, without running it, where there is no place for one more. What panics in
	// f is its to recover from. nil is as many as come, with no end to the context.
	Go func(f func(ctx context.Context)) bool
	// Epochs are moved when entries go, for those who keep copies of answers, see
	// [Cache.Lease]; nil is nobody.
	Epochs *epoch.Table
}

// Store is the memory of all caches of a process. [NewStore] makes it. It is safe
// for concurrent use.
type Store struct {
	clock  func() time.Duration
	moved  bool // clock is not the path's
	run    func(func(context.Context)) bool
	seed   maphash.Seed
	salts  [2]uint64
	shards []shard
	epochs *epoch.Table
	caches atomic.Uint64 // made so far

	// budget is over all shards together. A shard may take what the others leave,
	// and one that has more than its share gives first when the whole is too
	// much: so neither chance nor a cache that lives in one shard only can push
	// out entries while there is room elsewhere.
	budget int64
	share  int64
	_      [64]byte // readers of the above don't share a line with what every put writes
	bytes  atomic.Int64
}

// NewStore makes a store whose entries, and the tables that find them, take at most
// budget bytes. What the garbage collector leaves lying until its next round comes
// on top, and at most two segments of slots in each shard.
func NewStore(budget int, opts Options) *Store {
	s := &Store{
		clock: opts.Clock, moved: opts.Clock != nil, run: opts.Go, seed: maphash.MakeSeed(), budget: int64(max(budget, 0)),
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
	for i := range s.salts {
		s.salts[i] = maphash.Comparable(s.seed, i)
	}
	n := powerOfTwo(budget/minShardBytes, maxShards)
	s.shards = make([]shard, n)
	s.share = s.budget / int64(n)
	buckets := powerOfTwo(int(s.share)/bytesPerBucket, 1<<31)
	for i := range s.shards {
		s.shards[i].init(s, i, max(buckets, minBuckets))
	}
	return s
}

// powerOfTwo is the greatest power of two that is at most n and most, at least 1.
func powerOfTwo(n, most int) int {
	return min(most, 1<<max(bits.Len(uint(max(n, 0)))-1, 0))
}

// NewCache makes an empty cache as cfg says, whose entries live in s. cfg is copied.
// A kind with no entries in cfg keeps nothing. Whoever makes a cache closes it. bounds
// are the names at which other servers are asked than above them: no denial of a name
// above one of them answers for those below it.
func (s *Store) NewCache(cfg *config.Cache, bounds ...wire.Name) *Cache {
	id := s.caches.Add(1)
	n := parts(cfg.Success.Entries, cfg.Denial.Entries, len(s.shards))
	c := &Cache{cfg: *cfg, bounds: bounds, store: s, id: id, parts: make([]part, n)}
	for i := range c.parts {
		p := &c.parts[i]
		p.cache = c
		p.lists[success].limit = share(cfg.Success.Entries, n, i)
		p.lists[denial].limit = share(cfg.Denial.Entries, n, i)
		// Small caches begin at different shards.
		p.join(&s.shards[(int(id)+i)%len(s.shards)])
	}
	return c
}

// parts is the number of shards, at most most, that a cache is spread over.
func parts(success, denial, most int) int {
	n := powerOfTwo(max(success, denial)/minShare, most)
	if other := min(success, denial); other > 0 {
		n = powerOfTwo(other/minOther, n)
	}
	return n
}

// share is the part of entries that shard i of n gets; the parts add up.
func share(entries, n, i int) int32 {
	if i < entries%n {
		return int32(entries/n + 1)
	}
	return int32(entries / n)
}

// Bytes is what the entries of all caches and the tables take.
func (s *Store) Bytes() int { return int(s.bytes.Load()) }

// Budget is the most [Store.Bytes] may be.
func (s *Store) Budget() int { return int(s.budget) }

// hash is that of a question in the cache id. The seed and the salts are random,
// so that nobody outside can choose names that all fall into one shard or bucket:
// the name's hash, which nobody knows, is multiplied with all else that tells keys
// apart, of which nobody knows the salted value.
func (s *Store) hash(name []byte, qtype uint16, tags uint32, id uint64) uint64 {
	rest := id<<18 | uint64(qtype)<<2 | uint64(tags>>1) // the class is nearly always IN
	hi, lo := bits.Mul64(maphash.Bytes(s.seed, name)^s.salts[0], rest^s.salts[1])
	return hi ^ lo
}

// trim makes the bytes fit into the budget again after entries came to the shard
// first. The shards that have more than their share give, that one before all
// others: the entries unused for longest, one for each taking of the lock.
func (s *Store) trim(first *shard) {
	for i := 0; s.bytes.Load() > s.budget && i < len(s.shards); {
		v := &s.shards[(first.index+i)%len(s.shards)]
		if v.bytes.Load() <= s.share || !v.evict() {
			i++
		}
	}
}
