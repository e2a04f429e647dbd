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
)

// check holds what must be true of a store whenever none of its locks is held: the bytes
// are those of the entries, and each entry is once in the right list, in the order of use.
func (s *Store) check(t testing.TB) {
	t.Helper()
	total := int64(0)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.check(t)
		total += sh.bytes.Load()
		sh.mu.Unlock()
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
			bytes += e.size()
		}
	}
	if p.bytes != bytes || p.closed {
		t.Errorf("an open cache counts %d bytes, and has %d", p.bytes, bytes)
	}
	return bytes
}

// modelKey is a key as a test thinks of it.
type modelKey struct {
	cache *Cache
	name  int
	qtype uint16
	do    bool
}

// modelEntry is what a model keeps: used is the step of the last use.
type modelEntry struct {
	resp    wire.Response
	kind    kind
	expires time.Duration
	used    int
}

// model is the simplest store of one shard: a map that is looked through from end to
// end for what was unused longest.
type model struct {
	entries map[modelKey]*modelEntry
	evicted map[*Cache]*[kinds]uint64
	fixed   int // bytes of the empty store
	budget  int
	steps   int
	tight   int // how often the budget was met
}

func (m *model) bytes() int {
	n := m.fixed
	for _, e := range m.entries {
		n += entryOverhead + e.resp.Packed.Size()
	}
	return n
}

// evict removes the entry unused for longest among those that of takes.
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
		m.tight++
		m.evict(func(modelKey, *modelEntry) bool { return true })
	}
}

// look finds what lives, and uses it.
func (m *model) look(k modelKey, now time.Duration) *modelEntry {
	e := m.entries[k]
	if e == nil || now >= e.expires {
		return nil
	}
	m.steps++
	e.used = m.steps
	return e
}

// history is a random walk of a store and its model, side by side.
type history struct {
	t      *testing.T
	rng    *rand.Rand
	clock  *hand
	store  *Store
	model  *model
	caches []*Cache
	limits map[*Cache][kinds]int
}

// historyBudget has room for about half of what the limits of three caches allow: so
// that both bounds are met all the time.
const historyBudget = 16 << 10

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, rng: rand.New(rand.NewPCG(seed, 0)), clock: newHand(), limits: make(map[*Cache][kinds]int)}
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

func (h *history) open() {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = h.rng.IntN(60), h.rng.IntN(40)
	c := h.store.NewCache(cfg)
	h.caches = append(h.caches, c)
	h.limits[c] = [kinds]int{cfg.Success.Entries, cfg.Denial.Entries}
	h.model.evicted[c] = new([kinds]uint64)
}

func (h *history) close(i int) {
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

// some gives a random key and a query for it.
func (h *history) some() (modelKey, *wire.Query) {
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

// says is what an upstream says to q, in 30 to 2,000 bytes.
func (h *history) says(k modelKey) message {
	switch h.rng.IntN(6) {
	case 0:
		return message{rcode: dns.RcodeServerFailure}
	case 1, 2:
		return message{rcode: dns.RcodeNameError, authority: soaOf(1+h.rng.IntN(60), 60)}
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

// step does one random thing to both.
func (h *history) step() {
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
func (h *history) flush() {
	k, q := h.some()
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

// put keeps a reply without a look before it, as a flight does that began long ago.
func (h *history) put() {
	k, q := h.some()
	resp := response(h.t, q, h.says(k))
	stale := k.cache.key(q)
	s := stale.shard.shard
	s.mu.Lock()
	put(k.cache, &stale, resp)
	s.mu.Unlock()
	h.store.enforceBudget(s)
	h.modelPut(k, q, resp)
}

func (h *history) modelPut(k modelKey, q *wire.Query, resp wire.Response) {
	v := k.cache.classify(q, &resp)
	if limit := h.limits[k.cache][v.kind]; v.cacheable && limit > 0 {
		now := h.clock.now()
		h.model.put(k, &modelEntry{resp: resp, kind: v.kind, expires: now + v.ttl}, limit, now)
	}
}

// ask is a client: Answer, and Fetch if it must.
func (h *history) ask() {
	k, q := h.some()
	want := h.model.look(k, h.clock.now())
	r := reply(q)
	if got := lookup(k.cache, q, r, h.clock.now()) != Miss; got != (want != nil) {
		h.t.Fatalf("%d, type %d: a hit is %v, want %v", k.name, k.qtype, got, want != nil)
	}
	resp := response(h.t, q, h.says(k))
	if want == nil {
		if _, err := k.cache.Fetch(h.t.Context(), q, r, give(resp)); err != nil {
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

// compare holds the store to the model.
func (h *history) compare() {
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

// TestModel walks a store of one shard, with three caches in it that come and go,
// beside the model of it, for some seeds that are always the same and one that never
// is.
func TestModel(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, 4, rand.Uint64()} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			h := newHistory(t, seed)
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
			if h.model.tight == 0 {
				t.Error("the walk never came to the end of the budget")
			}
			if n := h.store.Bytes(); n != h.model.fixed {
				t.Errorf("the empty store has %d bytes, at first it had %d", n, h.model.fixed)
			}
		})
	}
}

// TestTogether lets clients of caches that come and go meet in one store, and looks
// at the invariants afterwards.
func TestTogether(t *testing.T) {
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
		responses[i] = response(t, queries[i], large(i))
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
				if lookup(c, &q, r, store.clock()) == Miss {
					if _, err := c.Fetch(context.Background(), &q, r, give(responses[n])); err != nil {
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
	landed(t, shared)
}

// large is an answer of some ten kilobytes, or every fifth time a denial.
func large(i int) message {
	if i%5 == 0 {
		return message{rcode: dns.RcodeNameError, authority: soaOf(60, 60)}
	}
	return texts(fmt.Sprintf("n%d.example.", i), 30+i)
}

// texts are n records of a quarter of a kilobyte each.
func texts(name string, n int) message {
	m := message{compression: true}
	for i := range n {
		m.answer = append(m.answer, fmt.Sprintf("%s 300 IN TXT \"%0240d\"", name, i))
	}
	return m
}
