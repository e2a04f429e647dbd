// Inside the package: it replaces an entry without Fetch and checks the store's invariants.

package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestLease checks which answers may be copied, and for how long.
func TestLease(t *testing.T) {
	const start = time.Hour // newHand's
	www := message{answer: []string{"www.example. 100 IN A 192.0.2.1"}}
	denied := message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
	for name, c := range map[string]struct {
		change func(*config.Cache)
		of     string // the name fetched first; "" is the question's
		m      message
		later  time.Duration
		hits   int
		want   Lease
		ok     bool
	}{
		"an answer":    {m: www, ok: true, want: Lease{Lifetime: epoch.Lifetime{Ends: start + 100*time.Second, Expires: start + 100*time.Second, Life: 100, CountsDown: true}}},
		"its last bit": {m: www, later: 100*time.Second - 1, ok: true, want: Lease{Lifetime: epoch.Lifetime{Ends: start + 100*time.Second, Expires: start + 100*time.Second, Life: 100, CountsDown: true}}},
		"its end":      {m: www, later: 100 * time.Second},
		"a denial":     {m: denied, ok: true, want: Lease{Lifetime: epoch.Lifetime{Ends: start + time.Minute, Expires: start + time.Minute, Life: 60, CountsDown: true}, Denial: true}},
		"keepttl": {
			m: www, change: func(c *config.Cache) { c.KeepTTL = true },
			ok: true, want: Lease{Lifetime: epoch.Lifetime{Ends: start + 100*time.Second, Expires: start + 100*time.Second, Life: 100}},
		},
		"a failure": {m: message{rcode: dns.RcodeServerFailure}},
		"an expired answer that is given": {
			m: www, later: 101 * time.Second, change: func(c *config.Cache) { c.Stale = immediate },
		},
		"the denial of a name above": {of: "example.", m: denied, change: func(c *config.Cache) { c.NXDomainCut = true }},
		"with prefetch": {
			m: www, change: copyConfigs["prefetch"],
			ok: true, want: Lease{Lifetime: epoch.Lifetime{Ends: start + 100*time.Second, Expires: start + 70*time.Second, Life: 100, CountsDown: true}},
		},
		"where prefetch begins": {m: www, later: 70 * time.Second, change: copyConfigs["prefetch"]},
		"what is fetched again": {m: www, later: 70 * time.Second, hits: 3, change: copyConfigs["prefetch"]},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, clock, epochs := defaults(), newManualClock(), newEpochTable()
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
				lookupNow(cache, q)
			}
			got, ok := cache.Lease(q, 0)
			if ok != c.ok {
				t.Fatalf("a copy may be kept: %v, want %v (%+v)", ok, c.ok, got)
			}
			if !ok {
				return
			}
			c.want.Mark = got.Mark
			if got != c.want || !epochs.isCurrent(got.Mark) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestLeaseRefused(t *testing.T) {
	q := question(t, "www.example.", dns.TypeA)
	c := newCache(nil, Options{})
	fetch(t, c, q, hotMessage)
	if _, ok := c.Lease(q, 0); ok {
		t.Error("a lease without epochs")
	}
	epochs := newEpochTable()
	c = newCache(nil, Options{Epochs: epochs.Table})
	if _, ok := c.Lease(q, 0); ok {
		t.Error("a lease of an entry that does not exist")
	}
	fetch(t, c, q, hotMessage)
	c.Close()
	if _, ok := c.Lease(q, 0); ok {
		t.Error("a lease from a closed cache")
	}
}

// TestLeaseOfReplacedDenial: if an answer replaces an inferred denial before Lease is called,
// the epoch shows that the denial must not be copied.
func TestLeaseOfReplacedDenial(t *testing.T) {
	cfg, epochs := defaults(), newEpochTable()
	cfg.NXDomainCut = true
	c := newCache(cfg, Options{Epochs: epochs.Table})
	fetch(t, c, question(t, "www.example.", dns.TypeA), message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)})
	q := question(t, "a.www.example.", dns.TypeA)
	before := epochs.Any()
	if m := answer(t, c, q); m == nil || m.Rcode != dns.RcodeNameError {
		t.Fatalf("answered %v", m)
	}
	k := c.key(q)
	put(c, &k, response(t, q, message{answer: []string{"a.www.example. 100 IN A 192.0.2.1"}}))
	if _, ok := c.Lease(q, c.store.clock()); !ok {
		t.Fatal("no lease")
	}
	if epochs.Any() == before {
		t.Error("the epoch does not change with the answer")
	}
}

// TestCopies: hits of copies count as hits of the cache, as uses for the LRU, and for prefetch.
func TestCopies(t *testing.T) {
	q, other := question(t, "www.example.", dns.TypeA), question(t, "b.example.", dns.TypeA)
	more := func(i int) (*wire.Query, message) {
		name := fmt.Sprintf("c%d.example.", i)
		return question(t, name, dns.TypeA), message{answer: []string{name + " 100 IN A 192.0.2.1"}}
	}
	t.Run("counts", func(t *testing.T) {
		c := newCache(nil, Options{})
		fetch(t, c, q, hotMessage)
		c.CountHits(0, 5, false)
		c.CountHits(leaseStripes-1, 3, true)
		c.CountHits(leaseStripes, 4, true)
		if st := c.Stats(); st.Hits != (Kinds{5, 7}) || st.Requests != 13 || st.Misses != 1 {
			t.Errorf("stats %+v", st)
		}
		c.Close()
		c.Use(q, 1, c.store.clock())
		c.store.check(t)
	})
	t.Run("uses", func(t *testing.T) {
		cfg := defaults()
		cfg.Success.Entries = 2
		c := newCache(cfg, Options{})
		fetch(t, c, q, hotMessage)
		fetch(t, c, other, message{answer: []string{"b.example. 100 IN A 192.0.2.1"}})
		c.Use(q, 1, c.store.clock())
		name, m := more(0)
		fetch(t, c, name, m)
		if answer(t, c, q) == nil || answer(t, c, other) != nil {
			t.Error("a used entry was evicted before an unused one")
		}
		c.store.check(t)
	})
	t.Run("expired", func(t *testing.T) {
		cfg, clock := defaults(), newManualClock()
		cfg.Success.Entries = 2
		c := newCache(cfg, Options{Clock: clock.now})
		fetch(t, c, q, hotMessage)
		clock.advance(100 * time.Second)
		fetch(t, c, other, message{answer: []string{"b.example. 100 IN A 192.0.2.1"}})
		c.Use(q, 1, 0)
		name, m := more(0)
		fetch(t, c, name, m)
		if answer(t, c, other) == nil {
			t.Error("a live entry was evicted before an expired one")
		}
	})
	for hits, want := range map[uint64]outcome{1: answered, 2: needsRefresh, 1 << 20: needsRefresh} {
		t.Run(fmt.Sprint("prefetch ", hits), func(t *testing.T) {
			c, clock := hotCache(t, config.Prefetch{Amount: 3, Within: time.Minute, Percent: 30}, Options{})
			clock.advance(65 * time.Second)
			c.Use(q, hits, 0)
			clock.advance(10 * time.Second)
			if got := lookupNow(c, q); got != want {
				t.Errorf("%d, want %d", got, want)
			}
			if want == needsRefresh {
				c.Use(q, hits, 0)
				if got := lookupNow(c, q); got != answered {
					t.Errorf("a second client is told to refresh it: %d", got)
				}
			}
		})
	}
}
