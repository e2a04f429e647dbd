// Inside the package: it checks the store's invariants and the visits of a shard.

package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestFlush removes random names and subtrees from one cache or from all, and compares what is
// left with a simple model.
func TestFlush(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 2))
		store := NewStore(testBudget, Options{})
		caches := []*Cache{store.NewCache(defaults()), store.NewCache(defaults())}
		type entry struct {
			c     *Cache
			name  string
			qtype uint16
			do    bool
		}
		kept := make(map[entry]*wire.Query)
		for range 700 {
			e := entry{caches[rng.IntN(2)], fmt.Sprintf("n%d.z%d.example.", rng.IntN(40), rng.IntN(8)), dns.TypeA, rng.IntN(2) == 0}
			if rng.IntN(2) == 0 {
				e.qtype = dns.TypeTXT
			}
			var shape []func(*dns.Msg)
			if e.do {
				shape = append(shape, do)
			}
			q := question(t, e.name, e.qtype, shape...)
			m := message{rcode: dns.RcodeNameError, authority: soaRecord(600, 600)}
			if rng.IntN(2) == 0 {
				m = message{answer: []string{fmt.Sprintf("%s 600 IN TXT \"x\"", e.name), fmt.Sprintf("%s 600 IN A 192.0.2.1", e.name)}}
			}
			fetch(t, e.c, q, m)
			kept[e] = q
		}
		for range 6 {
			name := []string{"n7.z3.example.", "z1.example.", "z5.example.", "n9.z4.example.", "nothing.example.", "3.example."}[rng.IntN(6)]
			subtree, flush, c := rng.IntN(2) == 0, store.Flush, (*Cache)(nil)
			if rng.IntN(2) == 0 {
				c = caches[rng.IntN(2)]
				flush = c.Flush
			}
			want := 0
			for e := range kept {
				if (c == nil || e.c == c) && (e.name == name || subtree && dns.IsSubDomain(name, e.name)) {
					delete(kept, e)
					want++
				}
			}
			if n := flush([]byte(wireName(t, name)), subtree); n != want {
				t.Errorf("seed %d: flushing %s, subtree %v: %d, want %d", seed, name, subtree, n, want)
			}
			store.check(t)
		}
		for e, q := range kept {
			if answer(t, e.c, q) == nil {
				t.Errorf("seed %d: %v was removed, too", seed, e)
			}
		}
		if n, m := caches[0].Stats().Entries, caches[1].Stats().Entries; n.Success+n.Denial+m.Success+m.Denial != uint64(len(kept)) {
			t.Errorf("seed %d: %+v and %+v are left, want %d", seed, n, m, len(kept))
		}
		left := 0
		for range kept {
			left++
		}
		if n := store.Flush([]byte(wire.Root), true); n != left {
			t.Errorf("seed %d: flushing all: %d, want %d", seed, n, left)
		}
		if n := store.Flush([]byte(wire.Root), true); n != 0 {
			t.Errorf("seed %d: flushing nothing: %d", seed, n)
		}
	}
}

// TestVisitRemoved: visiting tolerates entries that were removed or added after the keys were
// read.
func TestVisitRemoved(t *testing.T) {
	c := newCache(nil, Options{})
	queries := [3]*wire.Query{}
	for i := range queries {
		name := fmt.Sprintf("n%d.example.", i)
		queries[i] = question(t, name, dns.TypeA)
		fetch(t, c, queries[i], message{answer: []string{name + " 300 IN A 192.0.2.1"}})
	}
	gone, p := c.key(queries[0]), c.key(queries[1]).shard
	hashes := append(p.keys(), gone.hash)
	c.Flush(queries[0].Name(), false)
	seen := 0
	p.visit(hashes, func(_ uint64, e *entry) {
		if seen++; e.packed.IsReplyTo(queries[0]) {
			t.Error("the removed entry is visited")
		}
	})
	if seen == 0 || len(p.keys()) != seen {
		t.Errorf("%d entries of %d are visited", seen, len(p.keys()))
	}
}

// TestFlushDuringCall: waiters of a call receive its reply after a flush, but it is not stored,
// and later clients start a new call.
func TestFlushDuringCall(t *testing.T) {
	for _, subtree := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCache(nil, Options{})
			a, b := newExchangeStub(t), newExchangeStub(t)
			q := question(t, "www.example.", dns.TypeA)
			got := make(chan error, 3)
			client := func(ask ExchangeFunc) {
				q := question(t, "www.example.", dns.TypeA)
				got <- fetchErr(c.Fetch(t.Context(), q, reply(q), ask))
			}
			go client(a.run)
			synctest.Wait()
			go client(mustNotExchange(t))
			synctest.Wait()
			name := wireName(t, "www.example.")
			if subtree {
				name = wireName(t, "example.")
			}
			if n := c.Flush([]byte(name), subtree); n != 0 {
				t.Errorf("%d entries went of none", n)
			}
			go client(b.run)
			synctest.Wait()
			if b.calls.Load() != 1 {
				t.Error("a client after the flush waits for a call from before it")
			}
			close(a.gate)
			for range 2 {
				if err := <-got; err != nil {
					t.Errorf("the waiter gets %v", err)
				}
			}
			if answer(t, c, q) != nil {
				t.Error("the reply to a call from before the flush is cached")
			}
			close(b.gate)
			if err := <-got; err != nil || answer(t, c, q) == nil {
				t.Errorf("the reply to a call from after the flush is not cached: %v", err)
			}
			checkNoCalls(t, c)
			c.store.check(t)
		})
	}
}

// TestFlushRemovesStale: after a flush no expired answer is served, even if a refresh is under
// way.
func TestFlushRemovesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		u := &fakeUpstream{t: t, m: fresh, after: 4 * time.Second}
		q := question(t, "www.example.", dns.TypeA)
		if g := resolve(t, c, q, u.ask); g.Addr != staleAddr {
			t.Fatalf("%+v", g)
		}
		if n := c.Flush(q.Name(), false); n != 1 {
			t.Errorf("%d entries went", n)
		}
		if n := c.failures.count.Load(); n != 1 {
			t.Errorf("%d failures", n)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if answer(t, c, q) != nil {
			t.Error("the late reply is kept")
		}
		checkNoCalls(t, c)
	})
}

// TestConcurrentFlush flushes while clients use caches that open and close, for the race
// detector and the invariants.
func TestConcurrentFlush(t *testing.T) {
	var wg, behind sync.WaitGroup
	store := NewStore(1<<20, Options{Go: func(f func(context.Context)) bool {
		behind.Go(func() { f(context.Background()) })
		return true
	}})
	cfg := defaults()
	cfg.Stale, cfg.Prefetch.Amount, cfg.Prefetch.Percent, cfg.NXDomainCut = immediate, 1, 90, true
	cfg.Success.MinTTL, cfg.Denial.MinTTL = 0, 0
	const names = 40
	var queries [names]*wire.Query
	var responses [names]wire.Response
	for i := range queries {
		queries[i] = question(t, fmt.Sprintf("n%d.z%d.example.", i, i%4), dns.TypeA)
		responses[i] = response(t, queries[i], message{answer: []string{fmt.Sprintf("n%d.z%d.example. %d IN A 192.0.2.1", i, i%4, 1+i%2)}})
		if i%3 == 0 {
			responses[i] = response(t, queries[i], gone)
		}
	}
	shared := store.NewCache(cfg)
	var done atomic.Bool
	for w := range 3 {
		wg.Go(func() {
			own := store.NewCache(cfg)
			for i := range 600 {
				c := own
				if i%2 == 0 {
					c = shared
				}
				n := (w*7 + i*11) % names
				q := *queries[n]
				r := reply(&q)
				switch lookup(c, &q, r, store.clock()+time.Duration(i)*10*time.Millisecond) {
				case missed:
					if _, err := c.Fetch(context.Background(), &q, r, returns(responses[n])); err != nil {
						t.Errorf("fetching: %v", err)
					}
				case needsRefresh:
					c.Refresh(&q, returns(responses[n]))
				case answered:
				}
				if r.Rcode() != responses[n].Rcode {
					t.Errorf("%d became rcode %d", n, r.Rcode())
				}
				if i%97 == 0 {
					own.Close()
					own = store.NewCache(cfg)
				}
			}
			own.Close()
		})
	}
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for i := 0; !done.Load(); i++ {
			store.Flush([]byte(wireName(t, fmt.Sprintf("z%d.example.", i%4))), true)
			shared.Flush(queries[i%names].Name(), false)
			shared.Stats()
		}
	})
	wg.Wait()
	done.Store(true)
	flusher.Wait()
	behind.Wait()
	store.check(t)
	shared.Close()
	equal(t, Kinds{}, shared.Stats().Entries, "entries of a closed cache")
}
