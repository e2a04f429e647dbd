package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

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
		want   Lease
		ok     bool
	}{
		"an answer":    {m: www, ok: true, want: Lease{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100, CountsDown: true}},
		"its last bit": {m: www, later: 100*time.Second - 1, ok: true, want: Lease{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100, CountsDown: true}},
		"its end":      {m: www, later: 100 * time.Second},
		"a denial":     {m: denied, ok: true, want: Lease{Expires: start + time.Minute, Renew: start + time.Minute, Life: 60, CountsDown: true, Denial: true}},
		"keepttl": {
			m: www, change: func(c *config.Cache) { c.KeepTTL = true },
			ok: true, want: Lease{Expires: start + 100*time.Second, Renew: start + 100*time.Second, Life: 100},
		},
		"a failure": {m: message{rcode: dns.RcodeServerFailure}},
		"an expired answer that is given": {
			m: www, later: 101 * time.Second, change: func(c *config.Cache) { c.Stale = immediate },
		},
		"the denial of a name above": {of: "example.", m: denied, change: func(c *config.Cache) { c.NXDomainCut = true }},
		"with prefetch": {
			m: www, change: walked["prefetch"],
			ok: true, want: Lease{Expires: start + 100*time.Second, Renew: start + 70*time.Second, Life: 100, CountsDown: true},
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
			got, ok := cache.Lease(q, 0)
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
	if _, ok := c.Lease(q, 0); ok {
		t.Error("a term without epochs")
	}
	epochs := newCounters()
	c = newCache(nil, Options{Epochs: epochs.Table})
	if _, ok := c.Lease(q, 0); ok {
		t.Error("a term of what isn't there")
	}
	fetch(t, c, q, hot)
	c.Close()
	if _, ok := c.Lease(q, 0); ok {
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
	k := c.key(q)
	put(c, &k, response(t, q, message{answer: []string{"a.www.example. 100 IN A 192.0.2.1"}}))
	if _, ok := c.Lease(q, c.store.clock()); !ok {
		t.Fatal("no term")
	}
	if epochs.Any() == before {
		t.Error("nobody can tell that the answer is another")
	}
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
		c.CountHits(q, 5, false, c.store.clock())
		c.CountHits(other, 7, true, c.store.clock()) // which is gone
		if st := c.Stats(); st.Hits != (Kinds{5, 7}) || st.Requests != 13 || st.Misses != 1 {
			t.Errorf("stats %+v", st)
		}
		c.Close()
		c.CountHits(q, 1, false, c.store.clock())
		c.store.check(t)
	})
	t.Run("uses", func(t *testing.T) {
		cfg := defaults()
		cfg.Success.Entries = 2
		c := newCache(cfg, Options{})
		fetch(t, c, q, hot)
		fetch(t, c, other, message{answer: []string{"b.example. 100 IN A 192.0.2.1"}})
		c.CountHits(q, 1, false, c.store.clock())
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
		c.CountHits(q, 1, false, 0)
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
			c.CountHits(q, hits, false, 0)
			clock.advance(10 * time.Second)
			if got := look(c, q); got != want {
				t.Errorf("%d, want %d", got, want)
			}
			if want == Refresh {
				c.CountHits(q, hits, false, 0)
				if got := look(c, q); got != Hit {
					t.Errorf("a second one is told to fetch it: %d", got)
				}
			}
		})
	}
}
