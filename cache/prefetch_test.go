// Inside the package: it counts hits on an entry and checks the store's invariants.

package cache

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// hotCache returns a cache with prefetch and a manual clock. It holds www.example. with a TTL
// of 100 seconds.
func hotCache(t testing.TB, f config.Prefetch, opts Options) (*Cache, *manualClock) {
	t.Helper()
	clock := newManualClock()
	opts.Clock = clock.now
	cfg := defaults()
	cfg.Prefetch = f
	c := newCache(cfg, opts)
	fetch(t, c, question(t, "www.example.", dns.TypeA), hotMessage)
	return c, clock
}

var hotMessage = message{answer: []string{"www.example. 100 IN A 192.0.2.1"}}

// lookupNow calls lookup at the present time.
func lookupNow(c *Cache, q *wire.Query) outcome { return lookup(c, q, reply(q), c.store.clock()) }

// hitCounter counts hits by the rule: hits count together if they are at most gap apart.
type hitCounter struct {
	hits int
	last time.Duration
}

func (h *hitCounter) count(now, gap time.Duration) int {
	if h.last < now-gap {
		h.hits = 0
	}
	h.hits, h.last = h.hits+1, now
	return h.hits
}

// TestPrefetchMatchesModel queries an entry at random times and compares the lookups that
// request a refresh with the rule.
func TestPrefetchMatchesModel(t *testing.T) {
	told := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := config.Prefetch{Amount: 1 + rng.IntN(8), Within: time.Duration(1+rng.IntN(20)) * time.Second, Percent: 10 + rng.IntN(81)}
		c, clock := hotCache(t, f, Options{})
		q := question(t, "www.example.", dns.TypeA)
		h := hitCounter{last: clock.now()}
		start := clock.now()
		for {
			// Entries store times in ticks of about a microsecond.
			clock.advance(time.Duration(1+rng.IntN(10_000)) * time.Millisecond)
			age := clock.now() - start
			if age >= 100*time.Second {
				break
			}
			hits := h.count(clock.now(), f.Within)
			left := 100 - int(age.Seconds())
			want := answered
			if hits >= f.Amount && left <= f.Percent {
				want = needsRefresh
			}
			if got := lookupNow(c, q); got != want {
				t.Fatalf("seed %d, %+v, %v old, hit %d: %d, want %d", seed, f, age, hits, got, want)
			}
			if want == needsRefresh {
				told++
				break
			}
		}
	}
	if told < 50 || told > 290 {
		t.Errorf("told to fetch in %d walks of 300", told)
	}
}

// TestPrefetch follows one name: it is refreshed once, in time, and stays hot.
func TestPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, clock := hotCache(t, config.Prefetch{Amount: 3, Within: 2 * time.Minute, Percent: 10}, Options{})
		q := question(t, "www.example.", dns.TypeA)
		u := &fakeUpstream{t: t, m: hotMessage, after: time.Second}
		clock.advance(50 * time.Second)
		for range 10 {
			if got := lookupNow(c, q); got != answered {
				t.Fatalf("%d in the middle of its life", got)
			}
		}
		clock.advance(40 * time.Second)
		if got := lookupNow(c, q); got != needsRefresh {
			t.Fatalf("%d at the end of its life", got)
		}
		if got := lookupNow(c, q); got != answered {
			t.Errorf("%d for the second client", got)
		}
		c.Refresh(q, u.ask)
		synctest.Wait()
		c.Refresh(q, u.ask) // during the first exchange
		if lookupNow(c, q) != answered {
			t.Error("another client is told to fetch what is being fetched")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := u.count(); n != 1 {
			t.Errorf("%d asks", n)
		}
		if m := answer(t, c, q); ttls(m)[0] != 100 {
			t.Errorf("the TTL is %v", ttls(m))
		}
		clock.advance(90 * time.Second) // the second hit of the new entry
		if lookupNow(c, q) != needsRefresh {
			t.Error("its hits are forgotten")
		}
		checkNoCalls(t, c)
		if st := c.Stats(); st.Prefetches != 1 || st.Misses != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestPrefetchFailure: after a failed refresh the next hit requests another, and the entry
// stays until it expires.
func TestPrefetchFailure(t *testing.T) {
	for name, u := range map[string]*fakeUpstream{
		"error": {err: errUpstream}, "SERVFAIL": {m: message{rcode: dns.RcodeServerFailure}}, "a local error": {err: ErrLocal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u.t = t
				c, clock := hotCache(t, config.Prefetch{Amount: 1, Within: time.Hour, Percent: 10}, Options{})
				q := question(t, "www.example.", dns.TypeA)
				clock.advance(90 * time.Second)
				for i := range 3 {
					if lookupNow(c, q) != needsRefresh || lookupNow(c, q) != answered {
						t.Fatalf("not told once, at the %d. time", i+1)
					}
					c.Refresh(q, u.ask)
					synctest.Wait()
				}
				if m := answer(t, c, q); m == nil || len(m.Answer) != 1 {
					t.Errorf("the answer is gone: %v", m)
				}
				c.store.check(t)
			})
		})
	}
	t.Run("no place", func(t *testing.T) {
		c, clock := hotCache(t, config.Prefetch{Amount: 1, Within: time.Hour, Percent: 10},
			Options{Go: func(func(context.Context)) bool { return false }})
		q := question(t, "www.example.", dns.TypeA)
		clock.advance(90 * time.Second)
		if lookupNow(c, q) != needsRefresh || lookupNow(c, q) != answered {
			t.Fatal("not told once")
		}
		c.Refresh(q, mustNotExchange(t))
		if lookupNow(c, q) != needsRefresh {
			t.Error("nobody is told to try again")
		}
		checkNoCalls(t, c)
	})
}

// TestPrefetchOfRemovedEntry: Refresh of an entry that has gone stores nothing.
func TestPrefetchOfRemovedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, clock := hotCache(t, config.Prefetch{Amount: 1, Within: time.Hour, Percent: 10}, Options{})
		q := question(t, "www.example.", dns.TypeA)
		clock.advance(95 * time.Second)
		c.Refresh(q, (&fakeUpstream{t: t, m: gone}).ask)
		synctest.Wait()
		if m := answer(t, c, q); m == nil || m.Rcode != dns.RcodeNameError {
			t.Errorf("answered %v", m)
		}
		c.store.check(t)
	})
}

// TestHitCountSaturates: an entry's hit count stops at its maximum.
func TestHitCountSaturates(t *testing.T) {
	var e entry
	for i := range 100_000 {
		e.countHits(0, time.Hour, 1)
		if n := int(e.hits); n != min(i+1, maxHits) {
			t.Fatalf("%d after %d hits", n, i+1)
		}
	}
	e.lastUsed = time.Hour
	e.countHits(time.Hour+time.Second, time.Second, 1)
	if int(e.hits) != maxHits {
		t.Errorf("%d after a hit in time", e.hits)
	}
	e.countHits(time.Hour+time.Second+1, time.Second, 5)
	if e.hits != 5 {
		t.Errorf("%d after a pause", e.hits)
	}
	e.countHits(time.Hour+time.Second+1, time.Hour, 1<<20)
	if int(e.hits) != maxHits {
		t.Errorf("%d after many at once", e.hits)
	}
}

// TestKeepTTL: with keepttl the TTL stays the original one until the entry expires.
func TestKeepTTL(t *testing.T) {
	clock := newManualClock()
	cfg := defaults()
	cfg.KeepTTL, cfg.Stale = true, immediate
	c := newCache(cfg, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	for _, step := range []struct {
		advance time.Duration
		want    uint32
	}{{0, 300}, {100 * time.Second, 300}, {200*time.Second - 1, 300}, {1, 30}} {
		clock.advance(step.advance)
		if m := answer(t, c, q); m == nil || ttls(m)[0] != step.want {
			t.Errorf("after %v more: %v, want TTL %d", step.advance, m, step.want)
		}
		r := reply(q)
		if _, err := c.Fetch(t.Context(), q, r, returns(response(t, q, gone))); step.want == 300 && (err != nil || ttls(replyMsg(t, r))[0] != 300) {
			t.Errorf("after %v more, Fetch: %v", step.advance, err)
		}
	}
}
