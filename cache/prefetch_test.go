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

// hotCache is a cache with prefetch, whose clock is moved by hand, with www.example. in
// it for a hundred seconds.
func hotCache(t testing.TB, f config.Prefetch, opts Options) (*Cache, *hand) {
	t.Helper()
	clock := newHand()
	opts.Clock = clock.now
	cfg := defaults()
	cfg.Prefetch = f
	c := newCache(cfg, opts)
	fetch(t, c, question(t, "www.example.", dns.TypeA), hot)
	return c, clock
}

var hot = message{answer: []string{"www.example. 100 IN A 192.0.2.1"}}

// look is what Answer comes to.
func look(c *Cache, q *wire.Query) Found { return lookup(c, q, reply(q), c.store.clock()) }

// counter counts hits as the rule says: those that follow each other within gap.
type counter struct {
	hits int
	last time.Duration
}

func (h *counter) beat(now, gap time.Duration) int {
	if h.last < now-gap {
		h.hits = 0
	}
	h.hits, h.last = h.hits+1, now
	return h.hits
}

// TestPrefetchRule walks at random over the life of an entry, and compares who is told to
// fetch it again with the rule.
func TestPrefetchRule(t *testing.T) {
	told := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := config.Prefetch{Amount: 1 + rng.IntN(8), Within: time.Duration(1+rng.IntN(20)) * time.Second, Percent: 10 + rng.IntN(81)}
		c, clock := hotCache(t, f, Options{})
		q := question(t, "www.example.", dns.TypeA)
		h := counter{last: clock.now()}
		start := clock.now()
		for {
			// The count of moments is in ticks of about a microsecond.
			clock.advance(time.Duration(1+rng.IntN(10_000)) * time.Millisecond)
			age := clock.now() - start
			if age >= 100*time.Second {
				break
			}
			hits := h.beat(clock.now(), f.Within)
			left := 100 - int(age.Seconds())
			want := Hit
			if hits >= f.Amount && left <= f.Percent {
				want = Refresh
			}
			if got := look(c, q); got != want {
				t.Fatalf("seed %d, %+v, %v old, hit %d: %d, want %d", seed, f, age, hits, got, want)
			}
			if want == Refresh {
				told++
				break
			}
		}
	}
	if told < 50 || told > 290 {
		t.Errorf("told to fetch in %d walks of 300", told)
	}
}

// TestPrefetch follows one name: it is fetched once, in time, and stays known as hot.
func TestPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, clock := hotCache(t, config.Prefetch{Amount: 3, Within: 2 * time.Minute, Percent: 10}, Options{})
		q := question(t, "www.example.", dns.TypeA)
		u := &upstream{t: t, m: hot, after: time.Second}
		clock.advance(50 * time.Second)
		for range 10 {
			if got := look(c, q); got != Hit {
				t.Fatalf("%d in the middle of its life", got)
			}
		}
		clock.advance(40 * time.Second)
		if got := look(c, q); got != Refresh {
			t.Fatalf("%d at the end of its life", got)
		}
		if got := look(c, q); got != Hit {
			t.Errorf("%d for the second client", got)
		}
		c.Refresh(q, u.ask)
		synctest.Wait()
		c.Refresh(q, u.ask) // while the first asks
		if look(c, q) != Hit {
			t.Error("somebody is told to fetch what is being fetched")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := u.count(); n != 1 {
			t.Errorf("%d asks", n)
		}
		if m := answer(t, c, q); ttls(m)[0] != 100 {
			t.Errorf("the TTL is %v", ttls(m))
		}
		clock.advance(90 * time.Second) // the second hit of the new one
		if look(c, q) != Refresh {
			t.Error("its hits are forgotten")
		}
		landed(t, c)
		if st := c.Stats(); st.Prefetches != 1 || st.Misses != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestPrefetchFails: what came to nothing is tried again with the next hit, and the entry
// lives to its end.
func TestPrefetchFails(t *testing.T) {
	for name, u := range map[string]*upstream{
		"error": {err: errUpstream}, "SERVFAIL": {m: message{rcode: dns.RcodeServerFailure}}, "a local error": {err: ErrLocal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u.t = t
				c, clock := hotCache(t, config.Prefetch{Amount: 1, Within: time.Hour, Percent: 10}, Options{})
				q := question(t, "www.example.", dns.TypeA)
				clock.advance(90 * time.Second)
				for i := range 3 {
					if look(c, q) != Refresh || look(c, q) != Hit {
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
		if look(c, q) != Refresh || look(c, q) != Hit {
			t.Fatal("not told once")
		}
		c.Refresh(q, never(t))
		if look(c, q) != Refresh {
			t.Error("nobody is told to try again")
		}
		landed(t, c)
	})
}

// TestPrefetchReplaced: a name that is gone when it is fetched again is gone.
func TestPrefetchReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, clock := hotCache(t, config.Prefetch{Amount: 1, Within: time.Hour, Percent: 10}, Options{})
		q := question(t, "www.example.", dns.TypeA)
		clock.advance(95 * time.Second)
		c.Refresh(q, (&upstream{t: t, m: gone}).ask)
		synctest.Wait()
		if m := answer(t, c, q); m == nil || m.Rcode != dns.RcodeNameError {
			t.Errorf("answered %v", m)
		}
		c.store.check(t)
	})
}

// TestCountHits holds the count at its bounds.
func TestCountHits(t *testing.T) {
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

// TestKeepTTL gives the first TTL until the end.
func TestKeepTTL(t *testing.T) {
	clock := newHand()
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
		if _, err := c.Fetch(t.Context(), q, r, give(response(t, q, gone))); step.want == 300 && (err != nil || ttls(sent(t, r))[0] != 300) {
			t.Errorf("after %v more, Fetch: %v", step.advance, err)
		}
	}
}
