// Inside the package: it stores replies under a shard's lock and checks the store's invariants.

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
	"github.com/nodens-dns/nodens/test/soak"
)

// epochTable is a table with so many groups that two keys rarely share one.
type epochTable struct {
	*epoch.Table
	words []atomic.Uint64
}

func newEpochTable() *epochTable {
	const bits = 12
	words := make([]atomic.Uint64, epoch.Words(bits))
	return &epochTable{epoch.New(words, 0, bits), words}
}

func (c *epochTable) isCurrent(m epoch.Mark) bool { return c.words[m.Index].Load() == m.Value }

// answerCopy is a copy of an answer, as the kernel path keeps it.
type answerCopy struct {
	cache *Cache
	q     *wire.Query
	msg   *dns.Msg
	term  Lease
}

// copyAnswer copies c's answer the way the kernel path does. ok is false if it may not be copied.
func (e *epochTable) copyAnswer(t testing.TB, c *Cache, q *wire.Query) (k answerCopy, ok bool) {
	t.Helper()
	before, now, r := e.Any(), c.store.clock(), reply(q)
	if lookup(c, q, r, now) == missed {
		return k, false
	}
	k = answerCopy{cache: c, q: q, msg: replyMsg(t, r)}
	may := c.MayLease(q, now)
	if k.term, ok = c.Lease(q, now); may != ok && e.Any() == before {
		t.Errorf("a lease %t, told before as %t", ok, may)
	}
	return k, ok && e.Any() == before
}

// replyAt returns the reply made from the copy at now.
func (k *answerCopy) replyAt(now time.Duration) *dns.Msg {
	m := k.msg.Copy()
	left := k.term.Life
	if k.term.CountsDown {
		left = min(left, seconds(k.term.Ends-now))
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

// copyHistory changes a store of several caches at random and keeps copies of their answers.
type copyHistory struct {
	*testing.T
	*epochTable
	rng      *rand.Rand
	clock    *manualClock
	office   *snapshotClock
	store    *Store
	caches   map[string]*Cache
	kept     map[string]answerCopy
	survived int // copies still current after a step
}

var copyConfigs = map[string]func(*config.Cache){
	"plain":    func(*config.Cache) {},
	"keepttl":  func(c *config.Cache) { c.KeepTTL = true },
	"small":    func(c *config.Cache) { c.Success.Entries, c.Denial.Entries = 10, 5 },
	"prefetch": func(c *config.Cache) { c.Prefetch = config.Prefetch{Amount: 2, Within: time.Minute, Percent: 30} },
	"stale":    func(c *config.Cache) { c.Stale = immediate },
	"cut":      func(c *config.Cache) { c.NXDomainCut = true },
}

func newCopyHistory(t *testing.T, seed uint64) *copyHistory {
	w := &copyHistory{
		T: t, epochTable: newEpochTable(), rng: rand.New(rand.NewPCG(seed, 2)), clock: newManualClock(), office: newSnapshotClock(),
		caches: map[string]*Cache{}, kept: map[string]answerCopy{},
	}
	w.store = NewStore(12<<10, Options{Clock: w.clock.now, Epochs: w.Table})
	for name := range copyConfigs {
		w.open(name)
	}
	return w
}

func (w *copyHistory) open(name string) {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 50, 30
	copyConfigs[name](cfg)
	w.caches[name] = w.store.NewCache(cfg)
}

// randomQuestion returns a random question and the key of its copy.
func (w *copyHistory) randomQuestion(name string) (key string, q *wire.Query) {
	qname := fmt.Sprintf("n%d.example.", w.rng.IntN(12))
	if w.rng.IntN(3) == 0 {
		qname = "below." + qname
	}
	return name + " " + qname, question(w, qname, dns.TypeA)
}

// randomResponse returns an upstream's reply to q.
func (w *copyHistory) randomResponse(q *wire.Query) wire.Response {
	switch w.rng.IntN(5) {
	case 0:
		return response(w, q, message{rcode: dns.RcodeServerFailure})
	case 1:
		return response(w, q, message{rcode: dns.RcodeNameError, authority: soaRecord(5+w.rng.IntN(60), 60)})
	}
	return response(w, q, message{answer: []string{
		fmt.Sprintf("%s %d IN A 192.0.2.%d", wire.Name(q.Name()), 5+w.rng.IntN(60), w.rng.IntN(250)),
	}})
}

// step does one random operation on the named cache and returns its name.
func (w *copyHistory) step(name string) string {
	c := w.caches[name]
	_, q := w.randomQuestion(name)
	switch w.rng.IntN(16) {
	case 0, 1:
		d := time.Duration(w.rng.IntN(4000)) * time.Millisecond
		w.clock.advance(d)
		w.office.advance(d)
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
		_, _ = from.Fetch(w.Context(), q, reply(q), returns(w.randomResponse(q)))
		_ = w.office.transfer(w, from, c)
		return "a restored answer"
	case 6, 7:
		k := c.key(q)
		k.shard.shard.mu.Lock()
		put(c, &k, w.randomResponse(q))
		k.shard.shard.mu.Unlock()
		k.shard.makeRoom()
		return "an answer that comes late"
	case 8:
		c.Use(q, uint64(w.rng.IntN(5)), w.clock.now())
		return "hits"
	}
	r := reply(q)
	if lookup(c, q, r, w.clock.now()) == missed {
		_, _ = c.Fetch(w.Context(), q, r, returns(w.randomResponse(q)))
	}
	return "a client"
}

// check compares every copy that is current with the cache's answer.
func (w *copyHistory) check(after string) {
	w.Helper()
	for key, k := range w.kept {
		now := w.clock.now()
		if now >= k.term.Expires || !w.isCurrent(k.term.Mark) {
			delete(w.kept, key)
			continue
		}
		r := reply(k.q)
		if lookup(k.cache, k.q, r, now) == missed {
			w.Fatalf("after %s: a copy for %s is current, but there is no answer", after, key)
		}
		if d := cmp.Diff(k.replyAt(now).String(), replyMsg(w, r).String()); d != "" {
			w.Fatalf("after %s: a copy for %s is current (-copy +answer):\n%s", after, key, d)
		}
		w.survived++
	}
}

// TestCurrentCopiesEqualAnswers: a copy whose epoch is current equals the cache's answer,
// whatever has happened to the store.
func TestCurrentCopiesEqualAnswers(t *testing.T) {
	seeds, lasted := soak.Choose(8, 30), 0
	if testing.Short() {
		seeds = 3
	}
	for seed := range uint64(seeds) {
		w := newCopyHistory(t, seed)
		names := []string{"plain", "keepttl", "small", "prefetch", "stale", "cut"}
		for i := range 400 {
			name := names[w.rng.IntN(len(names))]
			w.check(fmt.Sprintf("seed %d, step %d: %s of %s", seed, i, w.step(name), name))
			key, q := w.randomQuestion(name)
			if _, ok := w.kept[key]; ok {
				continue
			}
			if k, ok := w.copyAnswer(t, w.caches[name], q); ok {
				w.kept[key] = k
			}
		}
		w.store.check(t)
		lasted += w.survived
	}
	t.Logf("%d copies were good after a step", lasted)
	if lasted < 300*seeds {
		t.Errorf("only %d copies were current after a step: too few to test anything", lasted)
	}
}

// TestEvictionWithoutCopiesKeepsEpochs: the eviction of entries without copies increments no
// epoch. Otherwise a flood of random names would invalidate all copies.
func TestEvictionWithoutCopiesKeepsEpochs(t *testing.T) {
	cfg, epochs := defaults(), newEpochTable()
	cfg.Denial.Entries = 10
	c := newCache(cfg, Options{Epochs: epochs.Table})
	flood := func(i int) *wire.Query { return question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA) }
	for i := range 100 {
		fetch(t, c, flood(i), message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)})
	}
	for i := range epochs.words[1:] {
		if epochs.words[1+i].Load() != 0 {
			t.Fatalf("counter %d has moved", i+1)
		}
	}
	k, ok := epochs.copyAnswer(t, c, flood(99))
	if !ok {
		t.Fatal("no copy")
	}
	if c.Flush(k.q.Name(), false); epochs.isCurrent(k.term.Mark) {
		t.Error("a copy of a removed entry is current")
	}
}

// TestCloseInvalidatesCopies: no copy of a closed cache's answers is current.
func TestCloseInvalidatesCopies(t *testing.T) {
	epochs := newEpochTable()
	store := NewStore(testBudget, Options{Epochs: epochs.Table})
	c := store.NewCache(defaults())
	kept := make([]answerCopy, 300)
	for i := range kept {
		q := question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA)
		fetch(t, c, q, message{answer: []string{fmt.Sprintf("n%d.example. 100 IN A 192.0.2.1", i)}})
		var ok bool
		if kept[i], ok = epochs.copyAnswer(t, c, q); !ok {
			t.Fatal("no copy")
		}
	}
	c.Close()
	for i := range kept {
		if epochs.isCurrent(kept[i].term.Mark) || answer(t, c, kept[i].q) != nil {
			t.Fatalf("copy %d is current, but the answer is %v", i, answer(t, c, kept[i].q))
		}
	}
}

// TestCurrentCopyIsNeverOlder: while answers are replaced concurrently, a current copy is never
// older than one read before.
func TestCurrentCopyIsNeverOlder(t *testing.T) {
	const enough = 300 // copies that were current when checked
	epochs := newEpochTable()
	c := newCache(nil, Options{Epochs: epochs.Table})
	q := question(t, "www.example.", dns.TypeA)
	var kept atomic.Pointer[answerCopy]
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			q := *q
			for {
				if k, ok := epochs.copyAnswer(t, c, &q); ok {
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
			// The address holds the number of the answer.
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
		if m != nil && k != nil && epochs.isCurrent(k.term.Mark) {
			if good++; number(m) > number(k.msg) {
				t.Fatalf("after answer %d a copy of %d is current", number(m), number(k.msg))
			}
		}
	}
}
