package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// counters are a table whose groups are so many that hardly two keys share one.
type counters struct {
	*epoch.Table
	words []atomic.Uint64
}

func newCounters() *counters {
	const bits = 12
	words := make([]atomic.Uint64, epoch.Words(bits))
	return &counters{epoch.New(words, 0, bits), words}
}

func (c *counters) good(m epoch.Mark) bool { return c.words[m.Index].Load() == m.Value }

// copied is a copy of an answer.
type copied struct {
	cache *Cache
	q     *wire.Query
	msg   *dns.Msg
	term  Lease
}

// copy gets c's answer as those do who keep copies; ok is false if there is none to keep.
func (e *counters) copy(t testing.TB, c *Cache, q *wire.Query) (k copied, ok bool) {
	t.Helper()
	before, now, r := e.Any(), c.store.clock(), reply(q)
	if lookup(c, q, r, now) == Miss {
		return k, false
	}
	k = copied{cache: c, q: q, msg: sent(t, r)}
	k.term, ok = c.Lease(q, now)
	return k, ok && e.Any() == before
}

// at is the copy as it is given at now.
func (k *copied) at(now time.Duration) *dns.Msg {
	m := k.msg.Copy()
	left := k.term.Life
	if k.term.CountsDown {
		left = min(left, seconds(k.term.Expires-now))
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				rr.Header().Ttl = left
			}
		}
	}
	return m
}

// walk is a random walk of a store of several caches, with copies of their answers.
type walk struct {
	*testing.T
	*counters
	rng    *rand.Rand
	clock  *hand
	office *office
	store  *Store
	caches map[string]*Cache
	kept   map[string]copied
	lasted int // copies that were good after a step
}

var walked = map[string]func(*config.Cache){
	"plain":    func(*config.Cache) {},
	"keepttl":  func(c *config.Cache) { c.KeepTTL = true },
	"small":    func(c *config.Cache) { c.Success.Entries, c.Denial.Entries = 10, 5 },
	"prefetch": func(c *config.Cache) { c.Prefetch = config.Prefetch{Amount: 2, Within: time.Minute, Percent: 30} },
	"stale":    func(c *config.Cache) { c.Stale = immediate },
	"cut":      func(c *config.Cache) { c.NXDomainCut = true },
}

func newWalk(t *testing.T, seed uint64) *walk {
	w := &walk{
		T: t, counters: newCounters(), rng: rand.New(rand.NewPCG(seed, 2)), clock: newHand(), office: newOffice(),
		caches: map[string]*Cache{}, kept: map[string]copied{},
	}
	w.store = NewStore(12<<10, Options{Clock: w.clock.now, Epochs: w.Table})
	for name := range walked {
		w.open(name)
	}
	return w
}

func (w *walk) open(name string) {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 50, 30
	walked[name](cfg)
	w.caches[name] = w.store.NewCache(cfg)
}

// some is a random question and what it is kept under.
func (w *walk) some(name string) (key string, q *wire.Query) {
	qname := fmt.Sprintf("n%d.example.", w.rng.IntN(12))
	if w.rng.IntN(3) == 0 {
		qname = "below." + qname
	}
	return name + " " + qname, question(w, qname, dns.TypeA)
}

// says is what an upstream says to q.
func (w *walk) says(q *wire.Query) wire.Response {
	switch w.rng.IntN(5) {
	case 0:
		return response(w, q, message{rcode: dns.RcodeServerFailure})
	case 1:
		return response(w, q, message{rcode: dns.RcodeNameError, authority: soaOf(5+w.rng.IntN(60), 60)})
	}
	return response(w, q, message{answer: []string{
		fmt.Sprintf("%s %d IN A 192.0.2.%d", wire.Name(q.Name()), 5+w.rng.IntN(60), w.rng.IntN(250)),
	}})
}

// step is one random thing that happens to the cache of that name.
func (w *walk) step(name string) string {
	c := w.caches[name]
	_, q := w.some(name)
	switch w.rng.IntN(16) {
	case 0, 1:
		d := time.Duration(w.rng.IntN(4000)) * time.Millisecond
		w.clock.advance(d)
		w.office.pass(d)
		return "time"
	case 2:
		c.Flush(q.Name(), w.rng.IntN(2) == 0)
		return "a flush"
	case 3:
		w.store.Flush([]byte("\x07example\x00"), w.rng.IntN(4) == 0)
		return "a flush of all"
	case 4:
		if w.rng.IntN(4) == 0 {
			c.Close()
			w.open(name)
			return "another cache"
		}
	case 5:
		from := newCache(nil, Options{Clock: w.clock.now})
		_, _ = from.Fetch(w.Context(), q, reply(q), give(w.says(q)))
		_ = w.office.move(w, from, c)
		return "a restored answer"
	case 6, 7:
		k := c.key(q)
		k.shard.shard.mu.Lock()
		put(c, &k, w.says(q))
		k.shard.shard.mu.Unlock()
		w.store.enforceBudget(k.shard.shard)
		return "an answer that comes late"
	case 8:
		c.CountHits(q, uint64(w.rng.IntN(5)), w.rng.IntN(2) == 0, w.clock.now())
		return "hits"
	}
	r := reply(q)
	if lookup(c, q, r, w.clock.now()) == Miss {
		_, _ = c.Fetch(w.Context(), q, r, give(w.says(q)))
	}
	return "a client"
}

// check holds what is good of the copies against the answers of now.
func (w *walk) check(after string) {
	w.Helper()
	for key, k := range w.kept {
		now := w.clock.now()
		if now >= k.term.Renew || !w.good(k.term.Mark) {
			delete(w.kept, key)
			continue
		}
		r := reply(k.q)
		if lookup(k.cache, k.q, r, now) == Miss {
			w.Fatalf("after %s: a copy for %s is good, and there is no answer", after, key)
		}
		if d := cmp.Diff(k.at(now).String(), sent(w, r).String()); d != "" {
			w.Fatalf("after %s: a copy for %s is good (-copy +answer):\n%s", after, key, d)
		}
		w.lasted++
	}
}

// Whatever happens to a store, copies that are good are what its caches answer.
func TestGoodCopiesAreTheAnswers(t *testing.T) {
	lasted := 0
	for seed := range uint64(30) {
		w := newWalk(t, seed)
		names := []string{"plain", "keepttl", "small", "prefetch", "stale", "cut"}
		for i := range 400 {
			name := names[w.rng.IntN(len(names))]
			w.check(fmt.Sprintf("seed %d, step %d: %s of %s", seed, i, w.step(name), name))
			key, q := w.some(name)
			if _, ok := w.kept[key]; ok {
				continue
			}
			if k, ok := w.copy(t, w.caches[name], q); ok {
				w.kept[key] = k
			}
		}
		w.store.check(t)
		lasted += w.lasted
	}
	t.Logf("%d copies were good after a step", lasted)
	if lasted < 10_000 {
		t.Errorf("only %d copies were good after a step: the test tests little", lasted)
	}
}

// Entries that nobody has a copy of end no copies when they go: names that don't exist, of
// which somebody asks for many, would else end those of all others.
func TestFloodEndsNoCopies(t *testing.T) {
	cfg, epochs := defaults(), newCounters()
	cfg.Denial.Entries = 10
	c := newCache(cfg, Options{Epochs: epochs.Table})
	flood := func(i int) *wire.Query { return question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA) }
	for i := range 100 {
		fetch(t, c, flood(i), message{rcode: dns.RcodeNameError, authority: soaOf(60, 60)})
	}
	for i := range epochs.words[1:] {
		if epochs.words[1+i].Load() != 0 {
			t.Fatalf("counter %d has moved", i+1)
		}
	}
	k, ok := epochs.copy(t, c, flood(99))
	if !ok {
		t.Fatal("no copy")
	}
	if c.Flush(k.q.Name(), false); epochs.good(k.term.Mark) {
		t.Error("a copy of what is gone is good")
	}
}

// A cache that is closed answers no more, and so no copy of its answers is good.
func TestCopiesOfWhatCloses(t *testing.T) {
	epochs := newCounters()
	store := NewStore(budget, Options{Epochs: epochs.Table})
	c := store.NewCache(defaults())
	kept := make([]copied, 300)
	for i := range kept {
		q := question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA)
		fetch(t, c, q, message{answer: []string{fmt.Sprintf("n%d.example. 100 IN A 192.0.2.1", i)}})
		var ok bool
		if kept[i], ok = epochs.copy(t, c, q); !ok {
			t.Fatal("no copy")
		}
	}
	c.Close()
	for i := range kept {
		if epochs.good(kept[i].term.Mark) || answer(t, c, kept[i].q) != nil {
			t.Fatalf("copy %d is good, and the answer is %v", i, answer(t, c, kept[i].q))
		}
	}
}

// While answers come, nobody who has one finds an older one in a copy that is good.
func TestCopiesAreNeverOlder(t *testing.T) {
	const enough = 300 // copies that were good when they were looked at
	epochs := newCounters()
	c := newCache(nil, Options{Epochs: epochs.Table})
	q := question(t, "www.example.", dns.TypeA)
	var kept atomic.Pointer[copied]
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			q := *q
			for {
				if k, ok := epochs.copy(t, c, &q); ok {
					kept.Store(&k)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	wg.Go(func() {
		q := *q
		k := c.key(&q)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			// The number of the answer is in its address.
			r := reply(&q)
			r.Add(wire.Answer, wire.AtQuestion, dns.TypeA, 100, []byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			resp, err := wire.ParseResponse(r.Finish(wire.MaxMessage), &q)
			if err != nil {
				t.Error(err)
				return
			}
			k.shard.shard.mu.Lock()
			put(c, &k, resp)
			k.shard.shard.mu.Unlock()
		}
	})
	number := func(m *dns.Msg) int {
		ip := m.Answer[0].(*dns.A).A.To4()
		return int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
	}
	defer wg.Wait()
	defer close(done)
	for good := 0; good < enough; {
		m, k := answer(t, c, q), kept.Load()
		if m != nil && k != nil && epochs.good(k.term.Mark) {
			if good++; number(m) > number(k.msg) {
				t.Fatalf("after answer %d a copy is good of %d", number(m), number(k.msg))
			}
		}
	}
}
