// Inside the package: it moves the store's clock.

package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// keptConfig keeps kept.example. and does not serve other expired answers.
func keptConfig() *config.Cache {
	cfg := defaults()
	cfg.Keep = []wire.Name{"\x04kept\x07example\x00"}
	cfg.Stale = config.Stale{ClientTimeout: time.Second, TTL: 30 * time.Second, Recheck: 30 * time.Second}
	return cfg
}

// addressOf is a reply with an address.
func addressOf(q *wire.Query) message {
	return message{answer: []string{wire.Name(q.Name()).String() + " 300 IN A 192.0.2.1"}}
}

// bubbleClock is the clock of a synctest bubble.
func bubbleClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Hour + time.Since(start) }
}

// TestKeptIsServedStale: however long upstreams fail, a kept name has its last answer, at once after the first failure; other names,
// other types and queries with DO have none. A failure does not replace it, and a new answer does.
func TestKeptIsServedStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(keptConfig(), Options{Clock: bubbleClock()})
		kept, other, text := question(t, "kept.example.", dns.TypeA), question(t, "other.example.", dns.TypeA), question(t, "kept.example.", dns.TypeTXT)
		signed := question(t, "kept.example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
		for _, q := range []*wire.Query{kept, other, signed} {
			fetch(t, c, q, addressOf(q))
		}
		fetch(t, c, text, message{answer: []string{`kept.example. 300 IN TXT "x"`}})
		time.Sleep(30 * 24 * time.Hour)
		down := func(context.Context, *wire.Query) (wire.Response, error) {
			return wire.Response{}, errors.New("no answer")
		}
		if got := resolve(t, c, kept, down); got.Addr == "" || got.Err != nil || got.TTL != 30 {
			t.Errorf("the kept name gets %+v", got)
		}
		if got := resolve(t, c, kept, down); got.Addr == "" || got.Took != 0 {
			t.Errorf("after a failure it gets %+v", got)
		}
		for _, q := range []*wire.Query{other, text, signed} {
			if got := resolve(t, c, q, down); got.Err == nil && got.Rcode != dns.RcodeServerFailure {
				t.Errorf("%s %d gets %+v", wire.Name(q.Name()), q.Type, got)
			}
		}
		info, ok := c.Inspect(kept, c.store.clock())
		if !ok || !info.Usable || info.TTL != 0 {
			t.Errorf("the entry is %+v", info)
		}
		c.Refresh(kept, returns(response(t, kept, message{answer: []string{"kept.example. 300 IN A 192.0.2.99"}})))
		synctest.Wait()
		if got := resolve(t, c, kept, down); got.Addr != "192.0.2.99" || got.TTL == 0 {
			t.Errorf("after an answer it gets %+v", got)
		}
	})
}

// TestKeptIsNotEvicted: floods of names evict a kept one neither from a full cache nor from a full store, and the others go on to be
// evicted.
func TestKeptIsNotEvicted(t *testing.T) {
	for _, budget := range []int{1 << 20, 100_000} {
		cfg := keptConfig()
		cfg.Success.Entries = 200
		c := NewStore(budget, Options{}).NewCache(cfg)
		kept := question(t, "kept.example.", dns.TypeA)
		fetch(t, c, kept, addressOf(kept))
		for i := range 5000 {
			q := question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA)
			fetch(t, c, q, addressOf(q))
		}
		if _, ok := c.Inspect(kept, c.store.clock()); !ok {
			t.Errorf("budget %d: the kept name is gone", budget)
		}
		if n := c.Stats().Entries.Success; n > 200 || n < 50 || c.store.Bytes() > budget {
			t.Errorf("budget %d: %d entries with %d bytes", budget, n, c.store.Bytes())
		}
	}
}

// TestKeptSnapshot: of an old snapshot only kept names are read, with expired answers, and only into a cache that keeps them.
func TestKeptSnapshot(t *testing.T) {
	from := newCache(keptConfig(), Options{})
	for _, name := range []string{"kept.example.", "other.example."} {
		q := question(t, name, dns.TypeA)
		fetch(t, from, q, addressOf(q))
	}
	var stream bytes.Buffer
	if _, err := Write(t.Context(), &stream, map[string]*Cache{"c": from}); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[int]*config.Cache{1: keptConfig(), 0: defaults()} {
		to := newCache(cfg, Options{})
		if n, err := ReadKept(t.Context(), bytes.NewReader(stream.Bytes()), map[string]*Cache{"c": to}); n != want || err != nil {
			t.Errorf("%d answers, %v; want %d", n, err, want)
		}
		if _, ok := to.Inspect(question(t, "kept.example.", dns.TypeA), to.store.clock()); ok != (want == 1) {
			t.Errorf("the kept name is there: %t", ok)
		}
	}
}
