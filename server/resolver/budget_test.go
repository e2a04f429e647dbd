// Inside the package: it calls refresh and asker.

package resolver

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// TestBudgetOfRefresh: a refresh for which no client waits does not wait for the budget of an upstream, and a client that has an
// expired answer does not either; a client without one waits.
func TestBudgetOfRefresh(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	p := upstream.New(&config.Forward{
		From: wire.Root, To: []config.Target{{Addr: b.Addr()}}, Expire: time.Minute, ReadTimeout: time.Minute, MaxRate: config.MaxRate{PerSecond: 1, Burst: 1},
	}, upstream.Options{Deadline: time.Minute})
	defer func() { _ = p.Close() }()
	budget := func() *upstream.BudgetStats { return p.Stats().Servers[0].Budget }
	var now atomic.Int64
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	store := cache.NewStore(1<<20, cache.Options{Clock: func() time.Duration { return time.Duration(now.Load()) }})
	z := &Zone{Name: wire.Root, Forward: []*upstream.Pool{p}, Cache: store.NewCache(&config.Cache{
		Success: limits, Denial: limits, Stale: config.Stale{For: time.Hour, Mode: config.StaleVerify, TTL: 30 * time.Second},
	})}
	from := upstream.From{Client: 1}
	q := budgetQuery(t, "a.test.")
	fetch := func() error {
		var r wire.Reply
		r.Start(nil, q)
		_, err := z.Cache.Fetch(context.Background(), q, &r, z.asker(p, UDP, from))
		return err
	}
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	for before := budget().GivenUp; budget().GivenUp == before; { // a token comes once a second: refreshes are faster
		now.Add(int64(2 * time.Minute))
		if err := fetch(); err != nil {
			t.Fatalf("a client with an expired answer: %v", err)
		}
	}
	for before := budget().GivenUp; budget().GivenUp == before; {
		z.refresh(q, UDP)
	}
	if n := budget().Waited; n != 0 {
		t.Errorf("%d queries have waited, want none", n)
	}
	for before := budget().Waited; budget().Waited == before; {
		if _, err := z.asker(p, UDP, from)(t.Context(), budgetQuery(t, "b.test.")); err != nil {
			t.Fatalf("a client without an expired answer: %v", err)
		}
	}
}

func budgetQuery(t *testing.T, name string) *wire.Query {
	t.Helper()
	packet := wire.AppendQuery(nil, 1, []byte(resolvertest.ZoneName(t, name)), wire.TypeA, nil, 1232)
	q := new(wire.Query)
	if v := q.Parse(packet); v != wire.Serve {
		t.Fatalf("the query does not parse: %v", v)
	}
	return q
}
