// Inside the package: see simulated_test.go.

package upstream

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const simulatedServer = "192.0.2.53:53"

// TestBudgetShares: ten clients ask for 300 names a second each, and the budget is 1,000. What leaves never exceeds it by more than the
// burst in any second, and each client gets a tenth. Cached names and expired ones are answered at once.
func TestBudgetShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, seconds = 10, 6
		via := newSimulated(2 * time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 1000, Burst: 50}, simulatedServer), Options{}, via)
		defer p.Close()
		var failed atomic.Int32
		var all sync.WaitGroup
		begin := time.Now()
		for c := range share.Client(clients) {
			all.Go(func() {
				time.Sleep(time.Duration(c) * 100 * time.Microsecond)
				offer(t, p, c+1, 300, seconds*time.Second, func(took time.Duration, err error) {
					if err != nil {
						failed.Add(1)
						mustBe(t, "a query beyond the budget", err, ErrOverBudget)
						mustBe(t, "a query beyond the budget", err, ErrLocal)
						if took != 2*time.Second {
							t.Errorf("a query beyond the budget failed after %v, want the read timeout of 2s", took)
						}
					}
				})
			})
		}
		time.Sleep(4 * time.Second)
		checkStats(t, p.Stats().Servers[0].Budget, clients)
		all.Wait()
		if n := via.mostInOneSecond(); n > 1050 {
			t.Errorf("%d queries left within one second, want at most 1050", n)
		}
		got := map[share.Client]int{}
		for _, q := range via.queries() {
			if at := q.at.Sub(begin); at >= time.Second && at < seconds*time.Second {
				got[q.client]++
			}
		}
		for c, n := range got {
			if want := 100 * (seconds - 1); n < want*9/10 || n > want*11/10 {
				t.Errorf("client %d got %d queries in %d seconds, want %d within 10 %%", c, n, seconds-1, want)
			}
		}
		if len(got) != clients || failed.Load() == 0 {
			t.Errorf("%d of %d clients sent queries, and %d failed", len(got), clients, failed.Load())
		}
	})
}

// checkStats checks what is reported of a budget in the middle of [TestBudgetShares].
func checkStats(t *testing.T, s *BudgetStats, clients int) {
	t.Helper()
	if s == nil || s.Limit != 1000 || s.Auto || s.Used < 0.95 || s.Used > 1.06 || s.Waiting < 1000 || s.Waited < uint64(s.Waiting) || s.Expired == 0 {
		t.Errorf("the statistics of a budget that is used up are %+v", s)
		return
	}
	if len(s.Clients) != maxShownClients {
		t.Errorf("%d clients are shown, want %d", len(s.Clients), maxShownClients)
	}
	for _, c := range s.Clients {
		if !c.Addr.IsValid() || c.Waiting < s.Waiting/clients*9/10 {
			t.Errorf("client %s has %d of %d waiting queries", c.Addr, c.Waiting, s.Waiting)
		}
	}
}

// TestBudgetMaxMin: a client that asks for less than its share gets all of it, and at once; the others share the rest.
func TestBudgetMaxMin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 200, Burst: 10}, simulatedServer), Options{}, via)
		defer p.Close()
		var all sync.WaitGroup
		for c := range share.Client(2) {
			all.Go(func() { offer(t, p, c+1, 900, 5*time.Second, func(time.Duration, error) {}) })
		}
		all.Go(func() {
			time.Sleep(500 * time.Millisecond)
			offer(t, p, 3, 20, 4*time.Second, func(took time.Duration, err error) {
				// its turn comes after those of both others, at 5 ms each, and the token that is being waited for
				if err != nil || took > 20*time.Millisecond {
					t.Errorf("a client that asks for little: %v after %v", err, took)
				}
			})
		})
		all.Wait()
	})
}

// TestBudgetServesStaleFirst: where an expired answer may be served, no client waits for the budget, in any mode.
func TestBudgetServesStaleFirst(t *testing.T) {
	modes := map[string]config.Stale{
		"fallback":            {For: time.Hour, ClientTimeout: 1800 * time.Millisecond, TTL: 30 * time.Second, Recheck: 30 * time.Second},
		"immediate":           {For: time.Hour, Mode: config.StaleImmediate, TTL: 30 * time.Second, Recheck: 30 * time.Second},
		"verify":              {For: time.Hour, Mode: config.StaleVerify, TTL: 30 * time.Second},
		"verify for a second": {For: time.Hour, Mode: config.StaleVerify, ClientTimeout: time.Second, TTL: 30 * time.Second},
	}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkStaleFirst(t, mode) })
		})
	}
}

func checkStaleFirst(t *testing.T, mode config.Stale) {
	start := time.Now()
	store := cache.NewStore(1<<20, cache.Options{Clock: func() time.Duration { return time.Hour + time.Since(start) }})
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	c := store.NewCache(&config.Cache{Success: limits, Denial: limits, Stale: mode})
	via := newSimulated(time.Millisecond)
	p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 10, Burst: 4}, simulatedServer), Options{}, via)
	defer p.Close()
	exchange := func(client share.Client) cache.ExchangeFunc {
		return func(ctx context.Context, q *wire.Query) (wire.Response, error) {
			return p.ExchangeFrom(ctx, q, From{Client: client, NoWait: cache.HasStale(ctx)})
		}
	}
	fetch := func(name string) (took time.Duration) {
		q, r := question(t, name), new(wire.Reply)
		r.Start(nil, q)
		began := time.Now()
		if _, err := c.Fetch(t.Context(), q, r, exchange(1)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return time.Since(began)
	}
	fetch("expired.test.")
	time.Sleep(301 * time.Second)
	fetch("cached.test.")
	time.Sleep(time.Second)
	var flood sync.WaitGroup
	flood.Go(func() { offer(t, p, 2, 100, 2*time.Second, func(time.Duration, error) {}) })
	time.Sleep(time.Second)
	for _, name := range []string{"expired.test.", "cached.test."} {
		if took := fetch(name); took != 0 {
			t.Errorf("%s was answered after %v, want at once", name, took)
		}
	}
	if took := fetch("new.test."); took == 0 {
		t.Error("the budget was not used up: a new name did not wait")
	}
	flood.Wait()
}

// TestBudgetBackground: queries for which no client waits get a token only while half of the burst is left, and none
// while a client waits.
func TestBudgetBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 1, Burst: 8}, simulatedServer), Options{}, via)
		defer p.Close()
		n := 0
		for ; n < 10; n++ {
			if _, err := p.Exchange(t.Context(), question(t, "a.test."), false); err != nil {
				mustBe(t, "a background query", err, ErrOverBudget)
				break
			}
		}
		if n != 5 { // with 8, 7, 6, 5 and 4 tokens
			t.Errorf("%d background queries were sent from a bucket of 8, want 5", n)
		}
		var got []bool
		for _, u := range []urgency{forProbe, forProbe, forProbe, forDown} {
			got = append(got, p.servers()[0].budget.try(u, time.Now()))
		}
		equal(t, []bool{true, true, false, true}, got, "probes from a bucket with 3 of 8 tokens, the last of a server that is down")
		if _, err := p.ExchangeFrom(t.Context(), question(t, "b.test."), From{Client: 1, NoWait: true}); err == nil {
			t.Error("a query without a token did not fail")
		} else {
			mustBe(t, "a query that must not wait", err, ErrOverBudget)
		}
		want := &BudgetStats{Limit: 1, Used: 8, GivenUp: 3}
		stats := p.Stats().Servers[0].Budget
		stats.Used = 8
		equal(t, want, stats, "statistics")
	})
}

// TestBudgetPrefersOther: with two upstreams a query goes to the one whose budget is not used up. Only beyond both budgets it waits.
func TestBudgetPrefersOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSimulated(time.Millisecond), newSimulated(time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 10, Burst: 4}, "192.0.2.1:53", "192.0.2.2:53"), Options{}, a, b)
		defer p.Close()
		start := time.Now()
		for range 8 {
			if _, err := p.ExchangeFrom(t.Context(), question(t, "a.test."), From{Client: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 8*time.Millisecond || len(a.queries()) != 4 || len(b.queries()) != 4 {
			t.Errorf("the upstreams got %d and %d queries in %v, want 4 each in 8ms", len(a.queries()), len(b.queries()), took)
		}
		if _, err := p.ExchangeFrom(t.Context(), question(t, "a.test."), From{Client: 1}); err != nil || time.Since(start) < 90*time.Millisecond {
			t.Errorf("a query beyond both budgets: %v after %v, want an answer after a wait", err, time.Since(start))
		}
	})
}

// TestBudgetOfAddress: all pools of one address have one budget: the least of their limits. It stays while one of them is open.
func TestBudgetOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budgets := NewBudgets(BudgetOptions{})
		via := newSimulated(time.Millisecond)
		open := func(perSecond int) *Pool {
			return newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: perSecond, Burst: perSecond}, simulatedServer), Options{Budgets: budgets}, via)
		}
		send := func(p *Pool) (n int) {
			for {
				if _, err := p.ExchangeFrom(t.Context(), question(t, "a.test."), From{Client: 1, NoWait: true}); err != nil {
					mustBe(t, "beyond the budget", err, ErrOverBudget)
					return n
				}
				n++
			}
		}
		first, second, third := open(100), open(20), open(0)
		count(t, send(first), 20, "queries were sent from a full bucket")
		count(t, send(second)+send(third), 0, "queries were sent through the other pools")
		second.Close()
		second.Close()
		if s := third.Stats().Servers[0].Budget; s == nil || s.Limit != 100 {
			t.Errorf("after the pool with the lower limit was closed, the budget is %+v, want a limit of 100", s)
		}
		reloaded := open(100)
		first.Close()
		count(t, send(reloaded), 0, "queries were sent at once after a reload, with an empty bucket")
		reloaded.Close()
		if s := third.Stats().Servers[0].Budget; s != nil {
			t.Errorf("without a limit, the budget is %+v", s)
		}
		third.Close()
		if len(budgets.all) != 0 {
			t.Errorf("%d budgets are kept without a pool", len(budgets.all))
		}
	})
}

// TestBudgetWaitEnds: a query that waits for its turn ends with its context and with its Pool, and leaves its place in the queue.
func TestBudgetWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 1, Burst: 1}, simulatedServer), Options{}, via)
		ask := func(ctx context.Context) error {
			_, err := p.ExchangeFrom(ctx, question(t, "a.test."), From{Client: 1})
			return err
		}
		noError(t, ask(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		var first, second error
		var all sync.WaitGroup
		all.Go(func() { first = ask(ctx) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		mustBe(t, "a cancelled query", first, context.Canceled)
		count(t, p.Stats().Servers[0].Budget.Waiting, 0, "queries wait after the only one was cancelled")
		all.Go(func() { second = ask(t.Context()) })
		synctest.Wait()
		p.Close()
		all.Wait()
		mustBe(t, "a query that waits when the pool closes", second, ErrClosed)
		count(t, len(via.queries()), 1, "queries were sent")
	})
}
