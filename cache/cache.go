// Package cache keeps packed replies between queries.
//
// A [Store] is the memory of all caches of a process, under one budget of bytes; a [Cache]
// is what one `cache` directive keeps in it. The hash of the question and of the DO and CD
// bits selects one of a few dozen shards, each with a lock. In a shard a cache has two LRU
// lists: success, and denial for NXDOMAIN, NODATA and failures. Each kind has its own
// capacity, so that a flood of names that don't exist can't evict names that do. It holds for all
// shards together: the entry that makes room is the least recently used one of them all. If the
// budget is exceeded, a shard that has more than its share evicts the entry that was used
// longest ago, of whichever cache.
//
// An entry is a [wire.Packed] reply with its expiry; a hit copies the reply and sets every
// TTL to what is left. A key has one entry, of one kind. A new reply replaces it, but a
// failure never replaces an answer that is alive or may still be served stale.
//
// A miss becomes a call in the same shard: the first client exchanges, and clients that
// come meanwhile wait for its result. The entry is looked up again before a call starts,
// because of this interleaving: A and B both miss; A exchanges, stores the reply and ends
// its call; then B finds no call, and would exchange again. If the first client loses its
// waiting place, one of the others exchanges in its place (fetch.go).
//
// Where an expired answer may be served, the call runs on another goroutine, so that it
// goes on when its clients stop waiting (RFC 8767). A name that does not exist
// may answer for the names below it (RFC 8020).
package cache

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrLocal marks an error of an [ExchangeFunc] that says nothing about the name: a limit of
// this process was reached, or the query could not be sent. Clients that wait get the
// error, but the cache keeps no SERVFAIL for it.
var ErrLocal = errors.New("not sent")

// ErrUnreachable marks an error of an [ExchangeFunc] that is the same for every name: no server could be reached. Clients that
// wait get it, and names rest as after other failures where expired answers are served, but the cache keeps no SERVFAIL.
var ErrUnreachable = errors.New("no server can be reached")

// ErrMismatch is the error of a Fetch whose [ExchangeFunc] returned the reply to another
// question, or no reply and no error.
var ErrMismatch = errors.New("the reply is to another question")

// errPanicked is the error of clients that wait for an exchange that panics.
var errPanicked = errors.New("the exchange panicked")

// ExchangeFunc gets the reply to q from upstream. It must not keep q. It may be called on
// another goroutine than Fetch or Refresh, after they have returned.
type ExchangeFunc func(ctx context.Context, q *wire.Query) (wire.Response, error)

// Cache is what one `cache` directive keeps. [Store.NewCache] makes it. It is safe
// for concurrent use.
type Cache struct {
	cfg        config.Cache
	boundaries []wire.Name
	store      *Store
	shards     []cacheShard // a power of two
	capacity   [kinds]capacity

	leaseHits   [leaseStripes]leaseHits
	cuts        atomic.Int64 // entries with cutFlag
	existing    existingNames
	failures    failureRun
	nextProbe   atomic.Int64 // in an outage, the next time to exchange; on the store's clock
	recoveredAt atomic.Int64 // the end of the last outage, on the store's clock; 0: there was none
}

// Close removes the cache's entries from its store. After that, Get finds nothing, and Fetch
// still exchanges but stores nothing. Close may be called again.
func (c *Cache) Close() {
	for i := range c.shards {
		c.shards[i].close()
	}
	c.cuts.Store(0)
	c.existing.clear()
}

// Covers reports whether name, lower case and in wire form, is in a zone of the
// directive. Without zones every name is.
func (c *Cache) Covers(name []byte) bool {
	for _, zone := range c.cfg.Zones {
		if wire.Under(name, zone) {
			return true
		}
	}
	return len(c.cfg.Zones) == 0
}

// Kinds is one number for each kind of entry.
type Kinds struct {
	Success, Denial uint64
}

// Stats are counts since the start, and the current number of entries.
type Stats struct {
	// Requests is the number of lookups that were counted: Hits and Misses.
	Requests uint64
	Hits     Kinds
	Misses   uint64
	// Evictions are the entries, expired or not, that made room for others.
	Evictions Kinds
	// Drops are the replies that were to another question.
	Drops uint64
	// Stale are the expired answers served, Prefetches the refreshes that no client waited
	// for, Cuts the hits by the denial of a name above.
	Stale, Prefetches, Cuts uint64
	// Entries includes those that have expired but were not removed yet.
	Entries Kinds
}

// Stats adds up the shards, one after the other, and the hits of copies.
func (c *Cache) Stats() Stats {
	var t Stats
	for i := range c.shards {
		c.shards[i].addTo(&t)
	}
	for i := range c.leaseHits {
		t.Hits.Success += c.leaseHits[i].success.Load()
		t.Hits.Denial += c.leaseHits[i].denial.Load()
	}
	t.Requests = t.Hits.Success + t.Hits.Denial + t.Misses
	return t
}

// key returns q's key. The highest bits of its hash choose the shard.
func (c *Cache) key(q *wire.Query) key {
	f := keyFlagsOf(q)
	h := c.store.hash(q.Name(), q.Type, q.Class, f)
	if f&optionsFlag != 0 {
		h = bits.RotateLeft64(h, 1) ^ maphash.Bytes(c.store.seed, q.Options)
	}
	return key{shard: c.shardOf(h), q: q, hash: h, flags: f}
}

func (c *Cache) shardOf(hash uint64) *cacheShard {
	return &c.shards[int(hash>>48)&(len(c.shards)-1)]
}

// Result is what [Cache.Get] found for one question. It is a value: it refers to no query,
// and it stays valid whatever happens to the cache. The zero Result counts nothing.
type Result struct {
	shard *cacheShard // where the lookup is counted; nil in the zero Result
	entry *entry      // nil at a miss
	hash  uint64      // of the entry
	now   time.Duration
	state resultState
}

type resultState uint8

const (
	resultMiss resultState = iota
	resultFresh
	resultStale
	resultCut // inferred from the denial of a name at or above the question's
)

// Hit reports whether Get has completed the reply.
func (r *Result) Hit() bool { return r.state != resultMiss }

// copy makes to the reply packed, and says in it that the answer has expired, if it has.
func (r *Result) copy(to *wire.Reply, packed wire.Packed, ttl uint32) {
	to.Copy(packed, ttl)
	if r.state == resultStale {
		explainStale(to)
	}
}

// Get makes r the cached reply to q, with the TTL that is left at now, a time on the
// store's clock. At a miss r is unchanged. Get changes nothing in the cache: the caller
// counts the lookup with [Result.Count] when the query is finished, or drops the Result if
// the query will run again. Get never waits for an upstream, and it allocates only what r's
// buffer needs to grow.
func (c *Cache) Get(q *wire.Query, r *wire.Reply, now time.Duration) Result {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	res := c.lookup(&k, now)
	if res.entry == nil {
		s.mu.Unlock()
		return c.inferDenial(&k, r, now)
	}
	packed, ttl := res.entry.packed, c.ttl(res.entry, now)
	s.mu.Unlock()
	res.copy(r, packed, ttl)
	return res
}

// GetFinal is Get for a query that will not run again if there is a hit: it counts the hit at
// once, which saves taking the lock twice. refresh is the result of [Result.Count]. A miss is
// left to the caller to count, as after Get.
func (c *Cache) GetFinal(q *wire.Query, r *wire.Reply, now time.Duration) (res Result, refresh bool) {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	res = c.lookup(&k, now)
	if res.entry == nil {
		s.mu.Unlock()
		if res = c.inferDenial(&k, r, now); res.Hit() {
			refresh = res.Count()
		}
		return res, refresh
	}
	packed, ttl := res.entry.packed, c.ttl(res.entry, now)
	refresh = res.count()
	s.mu.Unlock()
	res.copy(r, packed, ttl)
	return res, refresh
}

// lookup finds the entry that answers k without a wait; k's shard is locked.
func (c *Cache) lookup(k *key, now time.Duration) Result {
	res := Result{shard: k.shard, now: now}
	e := k.find()
	switch {
	case e == nil:
		return res
	case e.alive(now):
		res.state = resultFresh
	case c.servedAtOnce(e, now):
		res.state = resultStale
	default:
		return res
	}
	res.entry, res.hash = e, k.hash
	return res
}

// ttl returns the TTL of the records of e at now.
func (c *Cache) ttl(e *entry, now time.Duration) uint32 {
	switch {
	case !e.alive(now):
		return seconds(c.cfg.Stale.TTL)
	case c.cfg.KeepTTL && e.flags&failedFlag == 0:
		return e.ttl
	}
	return e.remaining(now)
}

// Count counts the lookup as a request, and as a hit, a stale answer or a miss, and marks
// the entry as used. It reports whether the caller must now call [Cache.Refresh] for the
// same question; no other caller is told so for a while. Call it at most once. It never
// waits for an upstream and allocates nothing.
func (r *Result) Count() (refresh bool) {
	if r.shard == nil {
		return false
	}
	s := r.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.count()
}

// count is Count with the shard locked.
func (r *Result) count() (refresh bool) {
	p, e := r.shard, r.entry
	if e == nil {
		p.misses++
		return false
	}
	l := &p.lists[e.kind()]
	l.hits++
	switch r.state {
	case resultStale:
		p.stale++
	case resultCut:
		p.cuts++
	}
	if l.lru == nil { // the cache is closed
		return false
	}
	current, ok := l.lru.Get(r.hash)
	if !ok { // removed since Get
		return false
	}
	if current == e { // not replaced since Get
		refresh = r.claimRefresh()
	}
	current.lastUsed = p.shard.tick(r.now)
	return refresh
}

// claimRefresh reports whether the client that r answers is to refresh the entry. If so, no
// other client is for a while. The shard is locked.
func (r *Result) claimRefresh() bool {
	c, e := r.shard.cache, r.entry
	switch {
	case r.state == resultStale:
		return c.claimStale(e, r.now)
	case r.state == resultFresh && c.cfg.Prefetch.Amount > 0:
		e.countHits(r.now, c.cfg.Prefetch.Within, 1)
		if e.needsPrefetch(&c.cfg.Prefetch, r.now) {
			e.flags |= refreshingFlag
			return true
		}
	}
	return false
}

// Lease says how long a copy of an answer may be served in the cache's place.
type Lease struct {
	// Mark moves when the entry is removed or replaced: the copy ends then.
	Mark epoch.Mark
	// Lifetime is on the store's clock. It expires when the entry does, or earlier so that the cache can have the name
	// prefetched.
	epoch.Lifetime
	// Denial is the kind of the answer, for [Cache.CountHits].
	Denial bool
}

// Lease returns the lease of the entry for q. ok is false if no copy may be made: the entry
// is missing, expired, a failure or about to be prefetched, or the store has no
// [Options.Epochs]. The caller reads [epoch.Table.Any] before [Cache.Get] and again after
// Lease, and makes no copy if it has moved: the entry may not be the one that Get found.
func (c *Cache) Lease(q *wire.Query, now time.Duration) (t Lease, ok bool) {
	return c.lease(q, now, leasedFlag)
}

// MayLease reports whether [Cache.Lease] would return a lease. It is no use of the entry.
func (c *Cache) MayLease(q *wire.Query, now time.Duration) bool {
	_, ok := c.lease(q, now, 0)
	return ok
}

// lease implements Lease, and sets flag in the entry.
func (c *Cache) lease(q *wire.Query, now time.Duration, flag flags) (t Lease, ok bool) {
	if c.store.epochs == nil {
		return Lease{}, false
	}
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	e := k.find()
	if e == nil {
		return Lease{}, false
	}
	t = Lease{
		Mark:     c.store.epochs.Mark(k.hash),
		Lifetime: epoch.Lifetime{Expires: e.expires, Ends: e.expires, Life: e.ttl, CountsDown: !c.cfg.KeepTTL},
		Denial:   e.kind() == denial,
	}
	if c.cfg.Prefetch.Amount > 0 {
		t.Expires -= ttlOf(e.prefetchTTL(&c.cfg.Prefetch)) // before that, no client refreshes it
	}
	if now >= t.Expires || e.packed.Rcode() == wire.ServFail {
		return Lease{}, false
	}
	e.flags |= flag
	return t, true
}

// leaseStripes is the number of counters for hits of copies: as many callers as there are readers on most
// nodes don't share cache lines.
const leaseStripes = 16

// leaseHits are the hits of copies in one stripe.
type leaseHits struct {
	success, denial atomic.Uint64

	_ [48]byte // keeps the next stripe out of this one's cache line
}

// CountHits counts n hits that were answered with a copy, of the kind that the [Lease] said. stripe
// chooses the counter; any number will do, and callers with different numbers do not wait for each other.
func (c *Cache) CountHits(stripe int, n uint64, denied bool) {
	h := &c.leaseHits[uint(stripe)%leaseStripes]
	if denied {
		h.denial.Add(n)
	} else {
		h.success.Add(n)
	}
}

// Use records that the answer to q was given n times with a copy, the last time at now: as a use of the
// entry, and for `prefetch`.
func (c *Cache) Use(q *wire.Query, n uint64, now time.Duration) {
	now = c.store.now(now)
	k := c.key(q)
	p := k.shard
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	e := k.find()
	if e == nil || !e.alive(now) {
		return
	}
	if c.cfg.Prefetch.Amount > 0 {
		e.countHits(now, c.cfg.Prefetch.Within, n)
	}
	p.lists[e.kind()].lru.Get(k.hash) // the most recently used one
	e.lastUsed = p.shard.tick(now)
}

// atOnceBelow is the capacity of a kind below which [Cache.NeedsEachUse] holds: a few other answers may evict one.
const atOnceBelow = 512

// NeedsEachUse reports whether [Cache.Use] is to be called for each use, and not later for several: the cache is small, or the
// directive has popular answers refreshed before they expire.
func (c *Cache) NeedsEachUse() bool {
	small := func(entries int) bool { return entries > 0 && entries < atOnceBelow }
	return c.cfg.Prefetch.Amount > 0 || small(c.cfg.Success.Entries) || small(c.cfg.Denial.Entries)
}

// EntryInfo describes an entry at one moment.
type EntryInfo struct {
	Name        wire.Name
	Type, Class uint16
	DO, CD      bool // bits of the query, which belong to the key
	Rcode       wire.Rcode
	// Denial: NXDOMAIN, NODATA or a failure. Answers is the number of records in the answer section.
	Denial  bool
	Answers int
	// Subtree: the entry denies all names below, too (RFC 8020).
	Subtree bool
	// Age is the time since the answer came; it is unknown, and -1, after a failed refresh. TTL is what is
	// left, 0 after the expiry.
	Age time.Duration
	TTL time.Duration
	// Stale is for how long the entry may be served, also after its expiry; 0 if expired entries may not.
	// Usable: it may be served, fresh or stale.
	Stale  time.Duration
	Usable bool
	Size   int // in bytes, with what finds it
}

// keyFlags orders entries for the same question.
func (i *EntryInfo) keyFlags() (n int) {
	if i.DO {
		n++
	}
	if i.CD {
		n += 2
	}
	return n
}

// info describes e at now; its shard is locked.
func (c *Cache) info(e *entry, now time.Duration) EntryInfo {
	qtype, class := e.packed.Question()
	i := EntryInfo{
		Name: wire.Name(e.packed.Name()), Type: qtype, Class: class, DO: e.flags&doFlag != 0, CD: e.flags&cdFlag != 0,
		Rcode: e.packed.Rcode(), Denial: e.kind() == denial, Answers: e.packed.Answers(), Subtree: e.flags&cutFlag != 0,
		Age: -1, TTL: max(e.expires-now, 0), Usable: e.alive(now) || c.servable(e, now), Size: int(e.size()),
	}
	if e.flags&failedFlag == 0 {
		i.Age = max(now-e.fetchedAt(), 0)
	}
	if c.cfg.Stale.For > 0 && c.servable(e, now) {
		i.Stale = max(e.expires+c.cfg.Stale.For-now, 0)
	}
	return i
}

// Inspect describes the entry for q at now, as Get would find it; false for none. It is no use of the entry.
func (c *Cache) Inspect(q *wire.Query, now time.Duration) (i EntryInfo, ok bool) {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := k.find(); e != nil {
		return c.info(e, now), true
	}
	return EntryInfo{}, false
}

// Entries describes the entries for name, lower case and in wire form, of all types, sorted by type. It is no
// use of them. It may take some milliseconds; the cache stays usable.
func (c *Cache) Entries(name []byte) (list []EntryInfo) {
	now := c.store.clock()
	for i := range c.shards {
		p := &c.shards[i]
		p.visit(p.keys(), func(_ uint64, e *entry) {
			if string(e.packed.Name()) == string(name) {
				list = append(list, c.info(e, now))
			}
		})
	}
	slices.SortFunc(list, func(a, b EntryInfo) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Class, b.Class), cmp.Compare(a.keyFlags(), b.keyFlags()))
	})
	return list
}

// Capacity returns the most entries of each kind.
func (c *Cache) Capacity() Kinds {
	return Kinds{Success: uint64(c.cfg.Success.Entries), Denial: uint64(c.cfg.Denial.Entries)} //nolint:gosec // not negative
}

// Bytes returns what the entries take, with what finds them.
func (c *Cache) Bytes() (n int) {
	for i := range c.shards {
		p := &c.shards[i]
		p.shard.mu.Lock()
		n += int(p.bytes)
		p.shard.mu.Unlock()
	}
	return n
}

// Flush removes the entries for name, lower case and in wire form, of all types. With
// subtree it also removes those for all names below. A denial of a name above that denies name,
// too, is removed. It returns how many it removed. The
// result of an exchange that runs meanwhile reaches its clients and is not stored. Flush may
// take some milliseconds; the cache stays usable.
func (c *Cache) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range c.shards {
		n += c.shards[i].flush(name, subtree)
	}
	return n
}

// maxCutLookups bounds the names that are looked up for one miss: the name itself and those
// above it. What clients ask for below a missing name is nearly always one or two labels
// longer.
const maxCutLookups = 4

// deniesSubtree reports whether resp, the reply to q, says that no name at or below q's
// exists (RFC 8020, 2): an NXDOMAIN for the name itself, not for the target of an alias.
//
// Only replies to A queries count: some servers answer NXDOMAIN to AAAA for a name that has
// an A record (RFC 4074, 4.2). Names that begin with an underscore don't count: some servers,
// such as CoreDNS, deny these although SRV records exist below. Reverse names and top-level
// domains don't count: different servers hold the parts, and some deny what lies between. A
// client that asks for proof (DO), or checks for itself (CD), gets its own answers.
func deniesSubtree(q *wire.Query, resp *wire.Response) bool {
	name := q.Name()
	return resp.Rcode == wire.NXDomain && resp.Answers == 0 && resp.SOA && q.Type == wire.TypeA &&
		q.Class == wire.ClassIN && keyFlagsOf(q) == 0 && len(name) > 1 && name[1] != '_' &&
		len(parent(name)) > 1 && !wire.Under(name, arpa)
}

// arpa is the domain of all reverse names.
const arpa wire.Name = "\x04arpa\x00"

// inferDenial finds an entry for a name at or above k's that denies k's name, and makes r that denial. If r is nil, it only
// finds one. No boundary may lie between the two names, and no shard may be locked. It is called after a miss, and returns it
// if there is no such entry.
func (c *Cache) inferDenial(k *key, r *wire.Reply, now time.Duration) Result {
	q, miss := k.q, Result{shard: k.shard, now: now}
	if c.cuts.Load() == 0 || !mayInfer(k) {
		return miss
	}
	name, shortest := q.Name(), c.boundaryLen(q.Name())
	if q.Type == wire.TypeA { // that lookup has just missed
		name = parent(name)
	}
	for range maxCutLookups {
		if len(name) <= 1 || len(name) < shortest {
			return miss
		}
		if res := c.denyBy(name, r, now); res.Hit() {
			return res
		}
		name = parent(name)
	}
	return miss
}

// mayInfer reports whether k's question may be answered by the denial of a name above.
func mayInfer(k *key) bool {
	return k.q.Class == wire.ClassIN && k.flags == 0 && k.q.Type != wire.TypeAXFR && k.q.Type != wire.TypeIXFR
}

// parent returns name without its first label; it is empty for the root.
func parent(name []byte) []byte { return name[1+name[0]:] }

// boundaryLen returns the length of the longest boundary that name is under, 0 if there is
// none. Names shorter than that belong to other servers.
func (c *Cache) boundaryLen(name []byte) int {
	n := 0
	for _, b := range c.boundaries {
		if len(b) > n && wire.Under(name, b) {
			n = len(b)
		}
	}
	return n
}

// denyBy makes r a denial by the entry that says that name does not exist, unless r is nil. At a
// miss r is unchanged. An entry for a name at or below name that exists is proof that the denial says
// nothing about the names below.
func (c *Cache) denyBy(name []byte, r *wire.Reply, now time.Duration) Result {
	h := c.store.hash(name, wire.TypeA, wire.ClassIN, 0)
	p := c.shardOf(h)
	s := p.shard
	s.mu.Lock()
	e := p.at(h)
	if e == nil || e.flags&cutFlag == 0 || !e.alive(now) || string(e.packed.Name()) != string(name) {
		s.mu.Unlock()
		return Result{}
	}
	packed, ttl := e.packed, c.ttl(e, now)
	s.mu.Unlock()
	if c.existing.has(c.nameHash(name)) || r != nil && !r.Deny(packed, ttl) {
		return Result{}
	}
	return Result{shard: p, entry: e, hash: h, now: now, state: resultCut}
}

// DeniedBy describes the denial of a name at or above q's that answers q at now, for which there is no entry; false for
// none. It is no use of the entry.
func (c *Cache) DeniedBy(q *wire.Query, now time.Duration) (i EntryInfo, ok bool) {
	now = c.store.now(now)
	k := c.key(q)
	res := c.inferDenial(&k, nil, now)
	if !res.Hit() {
		return EntryInfo{}, false
	}
	s := res.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.info(res.entry, now), true
}

// maxExistingNames bounds the names that are counted for one entry: its own and those above it. While an entry has
// a name that is longer, no denial answers for other names.
const maxExistingNames = 16

// existingNames counts, by hash, the entries that show that a name exists: those for the name and for names below
// it that have records, or another type. Servers deny names that have names below: CoreDNS where `hosts` or another
// plugin holds these, Unbound for `local-data`. It is empty without `nxdomain_cut`. It is safe for concurrent use.
type existingNames struct {
	mu     sync.Mutex
	counts map[uint64]int32
	long   int // entries with more names than are counted
}

// noteExisting adds n, which is 1 or -1, to the number of entries for each name that e shows to exist.
func (c *Cache) noteExisting(e *entry, n int32) {
	if !c.cfg.NXDomainCut || e.packed.Rcode() != wire.NoError && e.packed.Answers() == 0 {
		return
	}
	x := &c.existing
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts == nil {
		x.counts = make(map[uint64]int32)
	}
	name := e.packed.Name()
	for range maxExistingNames {
		if len(name) <= 1 {
			return
		}
		h := c.nameHash(name)
		if x.counts[h] += n; x.counts[h] == 0 {
			delete(x.counts, h)
		}
		name = parent(name)
	}
	if len(name) > 1 {
		x.long += int(n)
	}
}

// clear forgets all names.
func (x *existingNames) clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts, x.long = nil, 0
}

// has reports whether the name with hash h, or one below it, exists.
func (x *existingNames) has(h uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.long > 0 || x.counts[h] > 0
}

// nameHash returns the hash of a name for [existingNames].
func (c *Cache) nameHash(name []byte) uint64 { return c.store.hash(name, 0, 0, 0) }
