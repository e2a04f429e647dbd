// Inside the package: it checks the invariants of shards and lists.

package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/soak"
)

// check checks a store's invariants: the bytes are the sum of the entries' sizes, and each
// entry is once in the right list, in order of use. No lock may be held.
func (s *Store) check(t testing.TB) {
	t.Helper()
	total := int64(0)
	entries := make(map[*Cache][kinds]int64)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.check(t)
		total += sh.bytes.Load()
		for _, p := range sh.caches {
			n := entries[p.cache]
			for k := range p.lists {
				n[k] += int64(p.lists[k].len())
			}
			entries[p.cache] = n
		}
		sh.mu.Unlock()
	}
	for c, got := range entries {
		for k, n := range got {
			if l := &c.capacity[k]; l.used.Load() != n || n > l.entries {
				t.Errorf("a cache counts %d entries of kind %d, and has %d; its capacity is %d", l.used.Load(), k, n, l.entries)
			}
		}
	}
	if n := s.bytes.Load(); n != total {
		t.Errorf("the store counts %d bytes, its shards %d", n, total)
	}
}

func (s *shard) check(t testing.TB) {
	t.Helper()
	bytes := int64(0)
	for _, p := range s.caches {
		bytes += p.check(t)
	}
	if n := s.bytes.Load(); n != bytes {
		t.Errorf("shard %d counts %d bytes, its caches %d", s.index, n, bytes)
	}
}

func (p *cacheShard) check(t testing.TB) (bytes int64) {
	t.Helper()
	seen := make(map[uint64]bool)
	for kd := range p.lists {
		l, before := &p.lists[kd], time.Duration(-1)
		if l.lru == nil {
			continue
		}
		for _, hash := range l.lru.Keys() {
			e, _ := l.lru.Peek(hash)
			if e.kind() != kind(kd) || seen[hash] {
				t.Errorf("entry %#x is in two lists or in the wrong one", hash)
			}
			if seen[hash] = true; e.lastUsed <= before {
				t.Errorf("entry %#x was used at %v, and the one before it at %v", hash, e.lastUsed, before)
			}
			if before = e.lastUsed; before > p.shard.lastTick {
				t.Errorf("entry %#x was used at %v, after %v", hash, before, p.shard.lastTick)
			}
			if at := time.Duration(l.oldest.Load()); e.lastUsed < at {
				t.Errorf("entry %#x was used at %v, before %v", hash, e.lastUsed, at)
			}
			bytes += e.size()
		}
	}
	if p.bytes != bytes || p.closed {
		t.Errorf("an open cache counts %d bytes, and has %d", p.bytes, bytes)
	}
	return bytes
}

// modelKey identifies an entry of the model.
type modelKey struct {
	cache *Cache
	name  int
	qtype uint16
	do    bool
}

// modelEntry is an entry of the model. used is the step of its last use.
type modelEntry struct {
	resp    wire.Response
	kind    kind
	expires time.Duration
	used    int
}

// model is a store of one shard as a plain map; eviction scans it.
type model struct {
	entries    map[modelKey]*modelEntry
	evicted    map[*Cache]*[kinds]uint64
	fixed      int // bytes of the empty store
	budget     int
	steps      int
	overBudget int // how often the budget was met
}

func (m *model) bytes() int {
	n := m.fixed
	for _, e := range m.entries {
		n += entryOverhead + e.resp.Packed.Size()
	}
	return n
}

// evict removes the least recently used entry for which of returns true.
func (m *model) evict(of func(modelKey, *modelEntry) bool) {
	var oldest modelKey
	var from *modelEntry
	for k, e := range m.entries {
		if of(k, e) && (from == nil || e.used < from.used) {
			oldest, from = k, e
		}
	}
	m.evicted[oldest.cache][from.kind]++
	delete(m.entries, oldest)
}

func (m *model) count(c *Cache, kd kind) (n int) {
	for k, e := range m.entries {
		if k.cache == c && e.kind == kd {
			n++
		}
	}
	return n
}

func (m *model) put(k modelKey, e *modelEntry, limit int, now time.Duration) {
	if old := m.entries[k]; old != nil {
		if e.resp.Rcode == wire.ServFail && old.resp.Rcode != wire.ServFail && now < old.expires {
			return
		}
		delete(m.entries, k)
	}
	m.steps++
	e.used = m.steps
	m.entries[k] = e
	if m.count(k.cache, e.kind) > limit {
		m.evict(func(o modelKey, x *modelEntry) bool { return o.cache == k.cache && x.kind == e.kind })
	}
	for m.bytes() > m.budget {
		m.overBudget++
		m.evict(func(modelKey, *modelEntry) bool { return true })
	}
}

// lookup returns the live entry of k, and marks it as used.
func (m *model) lookup(k modelKey, now time.Duration) *modelEntry {
	e := m.entries[k]
	if e == nil || now >= e.expires {
		return nil
	}
	m.steps++
	e.used = m.steps
	return e
}

// storeHistory runs random operations on a store and its model.
type storeHistory struct {
	t      *testing.T
	rng    *rand.Rand
	clock  *manualClock
	store  *Store
	model  *model
	caches []*Cache
	limits map[*Cache][kinds]int
}

// historyBudget is about half of what the limits of three caches allow, so that both the limits
// and the budget are reached.
const historyBudget = 16 << 10

func newStoreHistory(t *testing.T, seed uint64) *storeHistory {
	h := &storeHistory{t: t, rng: rand.New(rand.NewPCG(seed, 0)), clock: newManualClock(), limits: make(map[*Cache][kinds]int)}
	h.store = NewStore(historyBudget, Options{Clock: h.clock.now})
	h.model = &model{
		entries: make(map[modelKey]*modelEntry), evicted: make(map[*Cache]*[kinds]uint64),
		fixed: h.store.Bytes(), budget: historyBudget,
	}
	for range 3 {
		h.open()
	}
	return h
}

func (h *storeHistory) open() {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = h.rng.IntN(60), h.rng.IntN(40)
	c := h.store.NewCache(cfg)
	h.caches = append(h.caches, c)
	h.limits[c] = [kinds]int{cfg.Success.Entries, cfg.Denial.Entries}
	h.model.evicted[c] = new([kinds]uint64)
}

func (h *storeHistory) close(i int) {
	c := h.caches[i]
	h.caches = append(h.caches[:i], h.caches[i+1:]...)
	c.Close()
	for k := range h.model.entries {
		if k.cache == c {
			delete(h.model.entries, k)
		}
	}
	if got := c.Stats().Entries; got != (Kinds{}) {
		h.t.Errorf("a closed cache has %+v", got)
	}
}

// randomQuestion returns a random key and its query.
func (h *storeHistory) randomQuestion() (modelKey, *wire.Query) {
	k := modelKey{h.caches[h.rng.IntN(len(h.caches))], h.rng.IntN(40), dns.TypeA, h.rng.IntN(4) == 0}
	if h.rng.IntN(4) == 0 {
		k.qtype = dns.TypeTXT
	}
	var shape []func(*dns.Msg)
	if k.do {
		shape = append(shape, do)
	}
	return k, question(h.t, fmt.Sprintf("n%d.example.", k.name), k.qtype, shape...)
}

// randomMessage returns an upstream's reply of 30 to 2,000 bytes.
func (h *storeHistory) randomMessage(k modelKey) message {
	switch h.rng.IntN(6) {
	case 0:
		return message{rcode: dns.RcodeServerFailure}
	case 1, 2:
		return message{rcode: dns.RcodeNameError, authority: soaRecord(1+h.rng.IntN(60), 60)}
	}
	m := message{compression: true}
	for i := range 1 + h.rng.IntN(3) {
		data := fmt.Sprintf("A 192.0.2.%d", i)
		if k.qtype == dns.TypeTXT {
			data = fmt.Sprintf("TXT %q", strings.Repeat("x", 1+h.rng.IntN(250)))
		}
		m.answer = append(m.answer, fmt.Sprintf("n%d.example. %d IN %s", k.name, 5+h.rng.IntN(60), data))
	}
	return m
}

// step runs one random operation on both.
func (h *storeHistory) step() {
	switch h.rng.IntN(20) {
	case 0:
		h.clock.advance(time.Duration(h.rng.IntN(8000)) * time.Millisecond)
	case 1:
		if h.rng.IntN(5) == 0 {
			h.close(h.rng.IntN(len(h.caches)))
			h.open()
		}
	case 2, 3, 4:
		h.put()
	case 5:
		h.flush()
	default:
		h.ask()
	}
}

// flush removes one name from one cache.
func (h *storeHistory) flush() {
	k, q := h.randomQuestion()
	want := 0
	for o := range h.model.entries {
		if o.cache == k.cache && o.name == k.name {
			delete(h.model.entries, o)
			want++
		}
	}
	if n := k.cache.Flush(q.Name(), false); n != want {
		h.t.Errorf("%d entries went, want %d", n, want)
	}
}

// put stores a reply without a lookup, as a call does that began long ago.
func (h *storeHistory) put() {
	k, q := h.randomQuestion()
	resp := response(h.t, q, h.randomMessage(k))
	stale := k.cache.key(q)
	s := stale.shard.shard
	s.mu.Lock()
	put(k.cache, &stale, resp)
	s.mu.Unlock()
	stale.shard.makeRoom()
	h.modelPut(k, q, resp)
}

func (h *storeHistory) modelPut(k modelKey, q *wire.Query, resp wire.Response) {
	v := classify(&k.cache.cfg, q, &resp)
	if limit := h.limits[k.cache][v.kind]; v.cacheable && limit > 0 {
		now := h.clock.now()
		h.model.put(k, &modelEntry{resp: resp, kind: v.kind, expires: now + v.ttl}, limit, now)
	}
}

// ask is a client: Get, and Fetch at a miss.
func (h *storeHistory) ask() {
	k, q := h.randomQuestion()
	want := h.model.lookup(k, h.clock.now())
	r := reply(q)
	if got := lookup(k.cache, q, r, h.clock.now()) != missed; got != (want != nil) {
		h.t.Fatalf("%d, type %d: a hit is %v, want %v", k.name, k.qtype, got, want != nil)
	}
	resp := response(h.t, q, h.randomMessage(k))
	if want == nil {
		if _, err := k.cache.Fetch(h.t.Context(), q, r, returns(resp)); err != nil {
			h.t.Fatal(err)
		}
		h.modelPut(k, q, resp)
		return
	}
	expected := reply(q)
	expected.Copy(want.resp.Packed, seconds(want.expires-h.clock.now()))
	if diff := cmp.Diff(expected.Finish(wire.MaxMessage), r.Finish(wire.MaxMessage)); diff != "" {
		h.t.Fatalf("%d, type %d: the reply differs (-want +got):\n%s", k.name, k.qtype, diff)
	}
}

// compare compares the store with its model.
func (h *storeHistory) compare() {
	h.store.check(h.t)
	if got, want := h.store.Bytes(), h.model.bytes(); got != want || got > historyBudget {
		h.t.Errorf("%d bytes, want %d, at most %d", got, want, historyBudget)
	}
	for _, c := range h.caches {
		st := c.Stats()
		want := Kinds{uint64(h.model.count(c, success)), uint64(h.model.count(c, denial))}
		if st.Entries != want {
			h.t.Errorf("entries %+v, want %+v", st.Entries, want)
		}
		if e := h.model.evicted[c]; st.Evictions != (Kinds{e[success], e[denial]}) {
			h.t.Errorf("evictions %+v, want %v", st.Evictions, *e)
		}
	}
}

// TestStoreMatchesModel runs a store of one shard with three caches that open and close next to
// its model, for fixed seeds and a random one.
func TestStoreMatchesModel(t *testing.T) {
	seeds := soak.Choose([]uint64{rand.Uint64(), 1}, []uint64{rand.Uint64(), 1, 2, 3, 4})
	if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			h := newStoreHistory(t, seed)
			for i := range 3000 {
				h.step()
				if i%20 == 0 {
					h.compare()
				}
				if t.Failed() {
					t.Fatalf("seed %d, step %d", seed, i)
				}
			}
			for len(h.caches) > 0 {
				h.close(0)
				h.compare()
			}
			if h.model.overBudget == 0 {
				t.Error("the history never exceeded the budget")
			}
			if n := h.store.Bytes(); n != h.model.fixed {
				t.Errorf("the empty store has %d bytes, at first it had %d", n, h.model.fixed)
			}
		})
	}
}

// TestConcurrentCaches uses caches that open and close in one store concurrently, and then
// checks the invariants.
func TestConcurrentCaches(t *testing.T) {
	const workers, rounds, names, limit = 4, 400, 60, 1 << 20
	store := NewStore(limit, Options{})
	empty := store.Bytes()
	if len(store.shards) < 2 {
		t.Fatal("all is in one shard")
	}
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 600, 300
	var queries [names]*wire.Query
	var responses [names]wire.Response
	for i := range queries {
		queries[i] = question(t, fmt.Sprintf("n%d.example.", i), dns.TypeTXT)
		responses[i] = response(t, queries[i], largeMessage(i))
	}
	shared := store.NewCache(cfg)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			own := store.NewCache(cfg)
			defer func() { own.Close() }()
			for i := range rounds {
				c := own
				if i%2 == 0 {
					c = shared
				}
				n := (w*7 + i*11) % names
				q := *queries[n]
				r := reply(&q)
				if lookup(c, &q, r, store.clock()) == missed {
					if _, err := c.Fetch(context.Background(), &q, r, returns(responses[n])); err != nil {
						t.Errorf("fetching: %v", err)
					}
				}
				if r.Rcode() != responses[n].Rcode || r.Count(wire.Answer) != responses[n].Answers {
					t.Errorf("%d became rcode %d with %d answers", n, r.Rcode(), r.Count(wire.Answer))
				}
				if i%50 == 49 {
					shared.Stats()
					own.Close()
					own = store.NewCache(cfg)
				}
			}
		})
	}
	wg.Wait()
	store.check(t)
	if n := store.Bytes(); n > limit {
		t.Errorf("%d bytes, the budget is %d", n, limit)
	}
	if st := shared.Stats(); st.Evictions.Success == 0 || st.Requests != workers*rounds/2 {
		t.Errorf("stats %+v: want evictions, and every request", st)
	}
	shared.Close()
	store.check(t)
	if n := store.Bytes(); n != empty {
		t.Errorf("the empty store has %d bytes, at first it had %d", n, empty)
	}
	checkNoCalls(t, shared)
}

// largeMessage returns an answer of some ten kilobytes; every fifth one is a denial.
func largeMessage(i int) message {
	if i%5 == 0 {
		return message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
	}
	return txtMessage(fmt.Sprintf("n%d.example.", i), 30+i)
}

// txtMessage returns n TXT records of about 250 bytes each.
func txtMessage(name string, n int) message {
	m := message{compression: true}
	for i := range n {
		m.answer = append(m.answer, fmt.Sprintf("%s 300 IN TXT \"%0240d\"", name, i))
	}
	return m
}
