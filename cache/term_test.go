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
	words := make([]atomic.Uint64, 1<<bits+1)
	return &counters{epoch.New(words, 0, bits), words}
}

func (c *counters) good(m epoch.Mark) bool { return c.words[m.Index].Load() == m.Value }

// copied is a copy of an answer.
type copied struct {
	cache *Cache
	q     *wire.Query
	msg   *dns.Msg
	term  Term
}

// copy gets c's answer as those do who keep copies; ok is false if there is none to keep.
func (e *counters) copy(t testing.TB, c *Cache, q *wire.Query) (k copied, ok bool) {
	t.Helper()
	before, now, r := e.Any(), c.store.clock(), reply(q)
	if c.Answer(q, r, now) == Miss {
		return k, false
	}
	k = copied{cache: c, q: q, msg: sent(t, r)}
	k.term, ok = c.Term(q, now)
	return k, ok && e.Any() == before
}

// at is the copy as it is given at now.
func (k *copied) at(now time.Duration) *dns.Msg {
	m := k.msg.Copy()
	left := k.term.Life
	if k.term.Counts {
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
		_ = from.Fetch(w.Context(), q, reply(q), give(w.says(q)))
		_ = w.office.move(w, from, c)
		return "a restored answer"
	case 6, 7:
		k := c.key(q)
		k.part.shard.mu.Lock()
		put(c, &k, w.says(q))
		k.part.shard.mu.Unlock()
		w.store.trim(k.part.shard)
		return "an answer that comes late"
	case 8:
		c.Hits(q, uint64(w.rng.IntN(5)), w.rng.IntN(2) == 0, w.clock.now())
		return "hits"
	}
	r := reply(q)
	if c.Answer(q, r, w.clock.now()) == Miss {
		_ = c.Fetch(w.Context(), q, r, give(w.says(q)))
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
		if k.cache.Answer(k.q, r, now) == Miss {
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

// TestTerm is the list of what copies may be kept of, and for how long.
func TestTerm(t *testing.T) {
	const start = time.Hour // newHand's
	www := message{answer: []string{"www.example. 100 IN A 192.0.2.1"}}
	denied := message{rcode: dns.RcodeNameError, authority: soaOf(60, 60)}
	for name, c := range map[string]struct {
		change func(*config.Cache)
		of     string // what is asked for first; the question itself
		m      message
		later  time.Duration
		hits   int
		want   Term
		ok     bool
	}{
		"an answer":    {m: www, ok: true, want: Term{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100, Counts: true}},
		"its last bit": {m: www, later: 100*time.Second - 1, ok: true, want: Term{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100, Counts: true}},
		"its end":      {m: www, later: 100 * time.Second},
		"a denial":     {m: denied, ok: true, want: Term{Expires: start + time.Minute, Renew: start + time.Minute, Life: 60, Counts: true, Denial: true}},
		"keepttl": {
			m: www, change: func(c *config.Cache) { c.KeepTTL = true },
			ok: true, want: Term{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100},
		},
		"a failure": {m: message{rcode: dns.RcodeServerFailure}},
		"an expired answer that is given": {
			m: www, later: 101 * time.Second, change: func(c *config.Cache) { c.Stale = immediate },
		},
		"the denial of a name above": {of: "example.", m: denied, change: func(c *config.Cache) { c.NXDomainCut = true }},
		"with prefetch": {
			m: www, change: walked["prefetch"],
			ok: true, want: Term{Expires: start + 100*time.Second, Renew: start + 70*time.Second, Life: 100, Counts: true},
		},
		"where prefetch begins": {m: www, later: 70 * time.Second, change: walked["prefetch"]},
		"what is fetched again": {m: www, later: 70 * time.Second, hits: 3, change: walked["prefetch"]},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, clock, epochs := defaults(), newHand(), newCounters()
			if c.change != nil {
				c.change(cfg)
			}
			cache := newCache(cfg, Options{Clock: clock.now, Epochs: epochs.Table})
			q := question(t, "www.example.", dns.TypeA)
			first := q
			if c.of != "" {
				first = question(t, c.of, dns.TypeA)
			}
			fetch(t, cache, first, c.m)
			clock.advance(c.later)
			for range c.hits {
				look(cache, q)
			}
			got, ok := cache.Term(q, 0)
			if ok != c.ok {
				t.Fatalf("a copy may be kept: %v, want %v (%+v)", ok, c.ok, got)
			}
			if !ok {
				return
			}
			c.want.Mark = got.Mark
			if got != c.want || !epochs.good(got.Mark) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestNoTerm(t *testing.T) {
	q := question(t, "www.example.", dns.TypeA)
	c := newCache(nil, Options{})
	fetch(t, c, q, hot)
	if _, ok := c.Term(q, 0); ok {
		t.Error("a term without epochs")
	}
	epochs := newCounters()
	c = newCache(nil, Options{Epochs: epochs.Table})
	if _, ok := c.Term(q, 0); ok {
		t.Error("a term of what isn't there")
	}
	fetch(t, c, q, hot)
	c.Close()
	if _, ok := c.Term(q, 0); ok {
		t.Error("a term of what is closed")
	}
}

// An answer that was the denial of a name above is no copy of what comes in its place
// before the term is asked for.
func TestTermIsOfTheAnswer(t *testing.T) {
	cfg, epochs := defaults(), newCounters()
	cfg.NXDomainCut = true
	c := newCache(cfg, Options{Epochs: epochs.Table})
	fetch(t, c, question(t, "www.example.", dns.TypeA), message{rcode: dns.RcodeNameError, authority: soaOf(60, 60)})
	q := question(t, "a.www.example.", dns.TypeA)
	before := epochs.Any()
	if m := answer(t, c, q); m == nil || m.Rcode != dns.RcodeNameError {
		t.Fatalf("answered %v", m)
	}
	fetch(t, c, q, message{answer: []string{"a.www.example. 100 IN A 192.0.2.1"}})
	if _, ok := c.Term(q, c.store.clock()); !ok {
		t.Fatal("no term")
	}
	if epochs.Any() == before {
		t.Error("nobody can tell that the answer is another")
	}
}

// A cache that is about to close has more entries than go at once: those that are still
// there are answered no more, and so no copies of them.
func TestCopiesOfWhatCloses(t *testing.T) {
	const n = leaving + 10
	cfg, epochs := defaults(), newCounters()
	store := NewStore(minShardBytes, Options{Epochs: epochs.Table})
	c := store.NewCache(cfg)
	kept := make([]copied, n)
	for i := range kept {
		q := question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA)
		fetch(t, c, q, message{answer: []string{fmt.Sprintf("n%d.example. 100 IN A 192.0.2.1", i)}})
		var ok bool
		if kept[i], ok = epochs.copy(t, c, q); !ok {
			t.Fatal("no copy")
		}
	}
	if !c.parts[0].leaveSome() {
		t.Fatal("all went at once: the test tests nothing")
	}
	for i := range kept {
		if epochs.good(kept[i].term.Mark) {
			t.Fatalf("copy %d is good, and the answer is %v", i, answer(t, c, kept[i].q))
		}
	}
	c.Close()
}

// Hits of copies are the cache's hits: they are counted, are uses, and make a name worth
// fetching again.
func TestHits(t *testing.T) {
	q, other := question(t, "www.example.", dns.TypeA), question(t, "b.example.", dns.TypeA)
	more := func(i int) (*wire.Query, message) {
		name := fmt.Sprintf("c%d.example.", i)
		return question(t, name, dns.TypeA), message{answer: []string{name + " 100 IN A 192.0.2.1"}}
	}
	t.Run("counts", func(t *testing.T) {
		c := newCache(nil, Options{})
		fetch(t, c, q, hot)
		c.Hits(q, 5, false, c.store.clock())
		c.Hits(other, 7, true, c.store.clock()) // which is gone
		if st := c.Stats(); st.Hits != (Kinds{5, 7}) || st.Requests != 12 || st.Misses != 0 {
			t.Errorf("stats %+v", st)
		}
		c.Close()
		c.Hits(q, 1, false, c.store.clock())
		c.store.check(t)
	})
	t.Run("uses", func(t *testing.T) {
		cfg := defaults()
		cfg.Success.Entries = 2
		c := newCache(cfg, Options{})
		fetch(t, c, q, hot)
		fetch(t, c, other, message{answer: []string{"b.example. 100 IN A 192.0.2.1"}})
		c.Hits(q, 1, false, c.store.clock())
		name, m := more(0)
		fetch(t, c, name, m)
		if answer(t, c, q) == nil || answer(t, c, other) != nil {
			t.Error("it went although it was used")
		}
		c.store.check(t)
	})
	t.Run("expired", func(t *testing.T) {
		cfg, clock := defaults(), newHand()
		cfg.Success.Entries = 2
		c := newCache(cfg, Options{Clock: clock.now})
		fetch(t, c, q, hot)
		clock.advance(100 * time.Second)
		fetch(t, c, other, message{answer: []string{"b.example. 100 IN A 192.0.2.1"}})
		c.Hits(q, 1, false, 0)
		name, m := more(0)
		fetch(t, c, name, m)
		if answer(t, c, other) == nil {
			t.Error("one that lives went for one that has expired")
		}
	})
	for hits, want := range map[uint64]Found{1: Hit, 2: Refresh, 1 << 20: Refresh} {
		t.Run(fmt.Sprint("prefetch ", hits), func(t *testing.T) {
			c, clock := hotCache(t, config.Prefetch{Amount: 3, Within: time.Minute, Percent: 30}, Options{})
			clock.advance(65 * time.Second)
			c.Hits(q, hits, false, 0)
			clock.advance(10 * time.Second)
			if got := look(c, q); got != want {
				t.Errorf("%d, want %d", got, want)
			}
			if want == Refresh {
				c.Hits(q, hits, false, 0)
				if got := look(c, q); got != Hit {
					t.Errorf("a second one is told to fetch it: %d", got)
				}
			}
		})
	}
}

// While answers come, nobody who has one finds an older one in a copy that is good.
func TestCopiesAreNeverOlder(t *testing.T) {
	const rounds = 20_000
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
		defer close(done)
		q := *q
		k := c.key(&q)
		for i := range rounds {
			// The number of the answer is in its address.
			r := reply(&q)
			r.Add(wire.Answer, wire.AtQuestion, dns.TypeA, 100, []byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			resp, err := wire.ParseResponse(r.Finish(wire.MaxMessage), &q)
			if err != nil {
				t.Error(err)
				return
			}
			k.part.shard.mu.Lock()
			put(c, &k, resp)
			k.part.shard.mu.Unlock()
		}
	})
	number := func(m *dns.Msg) int {
		ip := m.Answer[0].(*dns.A).A.To4()
		return int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
	}
	good := 0
	for {
		m, k := answer(t, c, q), kept.Load()
		if m != nil && k != nil && epochs.good(k.term.Mark) {
			if good++; number(m) > number(k.msg) {
				t.Fatalf("after answer %d a copy is good of %d", number(m), number(k.msg))
			}
		}
		select {
		case <-done:
			wg.Wait()
			t.Logf("%d copies were good", good)
			if good == 0 {
				t.Error("no copy was good: the test tests nothing")
			}
			return
		default:
		}
	}
}
