// Inside the package: it checks sizes, shards and hashes.

package cache

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/race"
)

// put stores resp under k as a call would; k's shard is locked.
func put(c *Cache, k *key, resp wire.Response) {
	v := classify(&c.cfg, k.q, &resp)
	if v.cacheable {
		k.put(&fetched{packed: resp.Packed, kind: v.kind, at: c.store.clock(), ttl: v.ttl})
	}
}

// TestStructSizes checks the sizes that entryOverhead assumes.
func TestStructSizes(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != 48 {
		t.Errorf("an entry has %d bytes, want 48", n)
	}
	if n := unsafe.Sizeof(snapshotEntry{}); n != 48 {
		t.Errorf("a copy for a snapshot has %d bytes, want 48", n)
	}
}

func TestShardCount(t *testing.T) {
	for _, tt := range []struct{ success, denial, want int }{
		{0, 0, 1}, {1, 0, 1}, {255, 1, 1}, {256, 0, 2}, {0, 600, 4}, {9984, 9984, 32}, {16, 9984, 32}, {1 << 20, 1, 32},
	} {
		cfg := defaults()
		cfg.Success.Entries, cfg.Denial.Entries = tt.success, tt.denial
		if n := len(newCache(cfg, Options{}).shards); n != tt.want {
			t.Errorf("parts for %d and %d entries: %d, want %d", tt.success, tt.denial, n, tt.want)
		}
	}
}

// TestCapacityIsShared: as long as the names in use fit into the cache, no shard evicts one of them, also if others that are
// asked only once come between.
func TestCapacityIsShared(t *testing.T) {
	for _, tt := range []struct{ capacity, inUse, once int }{{1024, 900, 0}, {1024, 1024, 0}, {1024, 700, 324}, {40, 20, 20}, {1, 1, 0}} {
		cfg := defaults()
		cfg.Success.Entries = tt.capacity
		c := newCache(cfg, Options{})
		if len(c.shards) != 32 {
			t.Fatalf("%d shards", len(c.shards))
		}
		ask := func(name string) {
			fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 300 IN A 192.0.2.1"}})
		}
		const rounds = 4
		for round := range rounds {
			for i := range tt.inUse {
				ask(fmt.Sprintf("n%d.example.", i))
			}
			for i := range tt.once {
				ask(fmt.Sprintf("x%d.n%d.example.", round, i))
			}
		}
		queries, misses := uint64(rounds*(tt.inUse+tt.once)), uint64(tt.inUse+rounds*tt.once)
		kept := min(uint64(tt.capacity), misses)
		want := Stats{
			Requests: queries, Hits: Kinds{Success: queries - misses}, Misses: misses,
			Evictions: Kinds{Success: misses - kept}, Entries: Kinds{Success: kept},
		}
		equal(t, want, c.Stats(), "%+v", tt)
		c.store.check(t)
	}
}

// TestBudget fills a cache with answers far larger than usual.
func TestBudget(t *testing.T) {
	const budget = 100 << 10
	c := NewStore(budget, Options{}).NewCache(defaults())
	for i := range 64 {
		name := fmt.Sprintf("n%d.example.", i)
		fetch(t, c, question(t, name, dns.TypeTXT), txtMessage(name, 20+i))
		if n := c.store.Bytes(); n > budget {
			t.Fatalf("%d bytes after %d answers, the budget is %d", n, i+1, budget)
		}
	}
	if st := c.Stats(); st.Entries.Success+st.Evictions.Success != 64 || st.Entries.Success < 1 {
		t.Errorf("entries and evictions don't add up: %+v", st)
	}
	if answer(t, c, question(t, "n63.example.", dns.TypeTXT)) == nil {
		t.Error("the newest entry is gone")
	}
	c.store.check(t)
}

// TestZeroBudget: without a budget nothing is cached, and clients still receive answers.
func TestZeroBudget(t *testing.T) {
	for _, budget := range []int{-1, 0, 1} {
		c := NewStore(budget, Options{}).NewCache(defaults())
		q := question(t, "www.example.", dns.TypeA)
		if m := fetch(t, c, q, message{answer: []string{addr}}); len(m.Answer) != 1 {
			t.Errorf("budget %d: answered\n%s", budget, m)
		}
		if answer(t, c, q) != nil {
			t.Errorf("budget %d: the answer was kept", budget)
		}
		c.store.check(t)
	}
}

// TestBytesMatchHeap compares the store's count of bytes with the heap, for names with one
// address each.
func TestBytesMatchHeap(t *testing.T) {
	race.SkipSequential(t)
	const entries = 20_000
	cfg := defaults()
	cfg.Success.Entries = 2 * entries // none is pushed out
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	c := newCache(cfg, Options{})
	for i := range entries {
		name := fmt.Sprintf("svc-%06d.default.example.com.", i)
		fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 300 IN A 192.0.2.1"}, compression: true})
	}
	held, says := heap()-before, c.store.Bytes()
	if st := c.Stats(); st.Entries.Success != entries {
		t.Fatalf("%d entries", st.Entries.Success)
	}
	if held > says*110/100 || held < says*90/100 { // maps grow in steps
		t.Errorf("the heap holds %d bytes, the store says %d", held, says)
	}
	t.Logf("%d bytes an entry by the store's count, %d by the heap's", says/entries, held/entries)
	runtime.KeepAlive(c)
}

// TestUnusedBudgetIsLent: a cache in one shard may use nearly the whole budget while no other
// needs it. Other caches then evict its entries, not their own.
func TestUnusedBudgetIsLent(t *testing.T) {
	const budget, records, others = 2 << 20, 32, 20 // 8 KiB each
	store := NewStore(budget, Options{})
	if len(store.shards) < 8 {
		t.Fatalf("%d shards", len(store.shards))
	}
	txt := func(c *Cache, i int) {
		name := fmt.Sprintf("n%d.example.", i)
		fetch(t, c, question(t, name, dns.TypeTXT), txtMessage(name, records))
	}
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 2*minList-1, 0
	one := store.NewCache(cfg)
	if len(one.shards) != 1 {
		t.Fatalf("%d parts", len(one.shards))
	}
	for i := range 2*minList - 1 {
		txt(one, i)
	}
	if n := store.Bytes(); n < budget*9/10 || n > budget {
		t.Errorf("a cache of one shard takes %d bytes of %d", n, budget)
	}
	many := store.NewCache(defaults())
	for i := range others {
		txt(many, i)
		if n := store.Bytes(); n > budget {
			t.Fatalf("%d bytes, the budget is %d", n, budget)
		}
	}
	if st := many.Stats(); st.Entries.Success != others || st.Evictions.Success != 0 {
		t.Errorf("caches within their share lost entries: %+v", st)
	}
	if st := one.Stats(); st.Evictions.Success == 0 || st.Entries.Success+st.Evictions.Success != 2*minList-1 {
		t.Errorf("the largest cache lost no entries: %+v", st)
	}
	store.check(t)
}

// TestHashSpread checks that names and types spread evenly over the shards. The bounds are ten
// standard deviations wide.
func TestHashSpread(t *testing.T) {
	const names = 20000
	store := NewStore(testBudget, Options{})
	c := store.NewCache(defaults())
	shards, hashes := make([]int, len(store.shards)), make(map[uint64]bool)
	for i := range names {
		q := question(t, fmt.Sprintf("svc-%d.default.", i/4), uint16(i%4+1))
		k := c.key(q)
		shards[k.shard.shard.index]++
		hashes[k.hash] = true
	}
	for i, n := range shards {
		if n < names/len(shards)/2 || n > names/len(shards)*3/2 {
			t.Errorf("shard %d gets %d of %d names", i, n, names)
		}
	}
	if len(hashes) != names {
		t.Errorf("%d hashes for %d questions", len(hashes), names)
	}
}

// TestCachesAreSeparate queries one cache for an entry of another.
func TestCachesAreSeparate(t *testing.T) {
	store := NewStore(testBudget, Options{})
	a, b := store.NewCache(defaults()), store.NewCache(defaults())
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, a, q, message{answer: []string{addr}})
	if answer(t, b, q) != nil {
		t.Error("a cache answers with what another keeps")
	}
	fetch(t, b, q, message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)})
	if m := answer(t, a, q); m == nil || m.Rcode != dns.RcodeSuccess {
		t.Errorf("the first answers %v", m)
	}
	store.check(t)
}

func TestClose(t *testing.T) {
	store := NewStore(testBudget, Options{})
	empty := store.Bytes()
	c, other := store.NewCache(defaults()), store.NewCache(defaults())
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, other, q, message{answer: []string{addr}})
	for i := range 300 {
		name := fmt.Sprintf("n%d.example.", i)
		fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 300 IN A 192.0.2.1"}})
	}
	resp := response(t, q, message{answer: []string{addr}})
	_, err := c.Fetch(t.Context(), q, reply(q), func(context.Context, *wire.Query) (wire.Response, error) {
		c.Close()
		return resp, nil
	})
	if err != nil {
		t.Errorf("the client of a cache closed meanwhile gets %v", err)
	}
	c.Close()
	third := store.NewCache(defaults())
	c.Close()
	fetch(t, third, q, message{answer: []string{addr}})
	if answer(t, c, q) != nil || c.Stats().Entries != (Kinds{}) {
		t.Error("a closed cache has entries")
	}
	if m := fetch(t, c, q, message{answer: []string{addr}}); len(m.Answer) != 1 {
		t.Errorf("a closed cache returns\n%s", m)
	}
	if answer(t, c, q) != nil || answer(t, other, q) == nil || answer(t, third, q) == nil {
		t.Error("closing one cache removed entries of another, or a reply was stored after it")
	}
	store.check(t)
	other.Close()
	third.Close()
	if n := store.Bytes(); n != empty {
		t.Errorf("the empty store has %d bytes, at first it had %d", n, empty)
	}
	checkNoCalls(t, c)
}

// TestGetBeforeStoreTime calls Get with a time before the entry was stored: the server reads
// the clock when a packet arrives, and another query may store the name meanwhile.
func TestGetBeforeStoreTime(t *testing.T) {
	clock := newManualClock()
	c := newCache(nil, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	before := clock.now()
	clock.advance(10 * time.Millisecond)
	fetch(t, c, q, message{answer: []string{addr}})
	r := reply(q)
	if lookup(c, q, r, before) == missed {
		t.Fatal("a miss")
	}
	equal(t, []uint32{300}, ttls(replyMsg(t, r)), "")
}

// TestHashCollision stores and finds questions with the same hash. The later entry replaces the
// earlier one, neither question gets the other's reply, and their calls are separate.
func TestHashCollision(t *testing.T) {
	store := NewStore(minShardBytes, Options{})
	a, b := store.NewCache(defaults()), store.NewCache(defaults())
	keys := []key{
		a.key(question(t, "www.example.", dns.TypeA)),
		a.key(question(t, "web.example.", dns.TypeA)),
		a.key(question(t, "www.example.", dns.TypeAAAA)),
		a.key(question(t, "www.example.", dns.TypeA, do)),
		a.key(question(t, "www.example.", dns.TypeA, cd)),
		b.key(question(t, "www.example.", dns.TypeA)),
	}
	s := keys[0].shard.shard
	s.mu.Lock()
	hashes := make(map[uint64]bool)
	for i := range keys {
		hashes[keys[i].hash] = true
		keys[i].hash = keys[0].hash
		kd := kind(i % kinds) // the other may be in either list
		keys[i].put(&fetched{packed: wire.ErrorResponse(keys[i].q, 3).Packed, kind: kd, at: store.clock(), ttl: time.Hour})
		for j := range i {
			if e := keys[j].find(); e != nil && keys[j].shard == keys[i].shard {
				t.Errorf("key %d finds what belongs to %d", j, i)
			}
		}
		if keys[i].find() == nil {
			t.Errorf("key %d is lost", i)
		}
		f, done := s.join(&keys[i])
		if done != nil || f.flags != keys[i].flags || f.shard != keys[i].shard || f.q != keys[i].q {
			t.Errorf("key %d joins the call of another", i)
		}
	}
	s.mu.Unlock()
	store.check(t)
	if len(hashes) != len(keys)-1 { // two caches have the same question
		t.Errorf("%d hashes for %d keys", len(hashes), len(keys))
	}
	if st := a.Stats(); st.Entries.Success+st.Entries.Denial != 1 {
		t.Errorf("entries %+v", st.Entries)
	}
}
