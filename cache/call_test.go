// Inside the package: it checks that no call is left in a shard.

package cache

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

var errUpstream = errors.New("no upstream answers")

// exchangeStub counts its calls. They block until gate is closed.
type exchangeStub struct {
	calls atomic.Int32
	gate  chan struct{}
	resp  wire.Response
	err   error
}

func (a *exchangeStub) run(ctx context.Context, _ *wire.Query) (wire.Response, error) {
	a.calls.Add(1)
	select {
	case <-a.gate:
		return a.resp, a.err
	case <-ctx.Done():
		return wire.Response{}, ctx.Err()
	}
}

func newExchangeStub(t testing.TB) *exchangeStub {
	q := question(t, "www.example.", dns.TypeA)
	return &exchangeStub{gate: make(chan struct{}), resp: response(t, q, message{answer: []string{addr}})}
}

func TestConcurrentFetchesShareCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 1000
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		var wg sync.WaitGroup
		var good atomic.Int32
		for range clients {
			wg.Go(func() {
				q := question(t, "www.example.", dns.TypeA)
				r := reply(q)
				if _, err := c.Fetch(t.Context(), q, r, a.run); err != nil {
					t.Errorf("fetching: %v", err)
					return
				}
				if m := replyMsg(t, r); len(m.Answer) == 1 && m.Answer[0].Header().Ttl == 300 {
					good.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := a.calls.Load(); n != 1 {
			t.Errorf("%d asks under way for one key", n)
		}
		close(a.gate)
		wg.Wait()
		if a.calls.Load() != 1 || good.Load() != clients {
			t.Errorf("%d asks, %d of %d clients answered", a.calls.Load(), good.Load(), clients)
		}
		checkNoCalls(t, c)
	})
}

// checkNoCalls checks that no call is left in c's shards.
func checkNoCalls(t *testing.T, c *Cache) {
	t.Helper()
	for i := range c.store.shards {
		s := &c.store.shards[i]
		s.mu.Lock()
		for _, f := range s.calls {
			if f != nil {
				t.Errorf("a call of shard %d has not ended", i)
			}
		}
		s.mu.Unlock()
	}
}

// TestFetchAfterCallEnded is the interleaving in the package doc: a client that missed before
// the entry was stored, and calls Fetch after the call has ended, starts no second exchange.
func TestFetchAfterCallEnded(t *testing.T) {
	c := newCache(nil, Options{Clock: newManualClock().now})
	q := question(t, "www.example.", dns.TypeA)
	if answer(t, c, q) != nil {
		t.Fatal("a hit in an empty cache")
	}
	fetch(t, c, q, message{answer: []string{addr}})
	r := reply(q)
	noError(t, fetchErr(c.Fetch(t.Context(), q, r, mustNotExchange(t))))
	if m := replyMsg(t, r); len(m.Answer) != 1 {
		t.Errorf("filled with\n%s", m)
	}
	if st := c.Stats(); st.Requests != 3 || st.Misses != 2 || st.Hits.Success != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestDistinctQuestionsDontShareCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		queries := []*wire.Query{
			question(t, "www.example.", dns.TypeA),
			question(t, "www.example.", dns.TypeA, noRD),
			question(t, "www.example.", dns.TypeA, do),
			question(t, "www.example.", dns.TypeA, cd),
		}
		for _, q := range queries {
			go func() {
				if _, err := c.Fetch(t.Context(), q, reply(q), a.run); err != nil {
					t.Errorf("fetching: %v", err)
				}
			}()
		}
		synctest.Wait()
		if n := a.calls.Load(); int(n) != len(queries) {
			t.Errorf("%d asks for %d keys", n, len(queries))
		}
		close(a.gate)
		synctest.Wait()
		checkNoCalls(t, c)
	})
}

// TestManyCalls: each of many questions under way has one exchange, also where calls share a chain.
func TestManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const questions = 4 * callBuckets
		cfg := defaults()
		cfg.Success.Entries, cfg.Denial.Entries = 1, 1 // one shard
		c := newCache(cfg, Options{})
		gate := make(chan struct{})
		var calls atomic.Int32
		exchange := func(_ context.Context, q *wire.Query) (wire.Response, error) {
			calls.Add(1)
			<-gate
			return wire.ErrorResponse(q, wire.NXDomain), nil
		}
		for range 2 {
			for i := range questions {
				q := question(t, fmt.Sprintf("n%d.example.", i), dns.TypeA)
				go func() {
					if _, err := c.Fetch(t.Context(), q, reply(q), exchange); err != nil {
						t.Errorf("fetching: %v", err)
					}
				}()
			}
			synctest.Wait()
		}
		if n := calls.Load(); n != questions {
			t.Errorf("%d exchanges for %d questions", n, questions)
		}
		close(gate)
		synctest.Wait()
		checkNoCalls(t, c)
	})
}

func TestExchangeFailure(t *testing.T) {
	tests := map[string]struct {
		err      error
		servfail time.Duration
		kept     bool
	}{
		"kept as SERVFAIL":     {errUpstream, 5 * time.Second, true},
		"servfail 0":           {errUpstream, 0, false},
		"no server reachable":  {errors.Join(ErrUnreachable, errUpstream), 5 * time.Second, false},
		"a local error":        {errors.Join(ErrLocal, errUpstream), 5 * time.Second, false},
		"its own time ran out": {context.DeadlineExceeded, 5 * time.Second, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := defaults()
			cfg.Servfail = tt.servfail
			clock := newManualClock()
			c := newCache(cfg, Options{Clock: clock.now})
			q := question(t, "www.example.", dns.TypeA)
			r := reply(q)
			r.SetRcode(wire.NotImp)
			_, err := c.Fetch(t.Context(), q, r, func(context.Context, *wire.Query) (wire.Response, error) { return wire.Response{}, tt.err })
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if r.Rcode() != wire.NotImp {
				t.Error("the reply was touched")
			}
			m := answer(t, c, q)
			if (m != nil) != tt.kept {
				t.Fatalf("answered %v", m)
			}
			if m != nil && m.Rcode != dns.RcodeServerFailure {
				t.Errorf("rcode %d", m.Rcode)
			}
			clock.advance(5 * time.Second)
			if m := answer(t, c, q); m != nil {
				t.Errorf("still answered after servfail:\n%s", m)
			}
			checkNoCalls(t, c)
		})
	}
}

// TestLocalError: if the first client's exchange fails locally at once, its waiters run one
// exchange for all of them. After a slow local failure nobody retries.
func TestLocalError(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration
		asks  int32
		good  int32
	}{
		"at once":                          {0, 2, 99},
		"after another client's full wait": {2 * time.Second, 2, 99},
		"late":                             {3 * time.Second, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache(nil, Options{})
				a := newExchangeStub(t)
				var calls, good atomic.Int32
				first := make(chan struct{})
				run := func(ctx context.Context, q *wire.Query) (wire.Response, error) {
					if calls.Add(1) > 1 {
						return a.resp, nil
					}
					<-first
					time.Sleep(tt.takes)
					return wire.Response{}, fmt.Errorf("busy: %w", ErrLocal)
				}
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						q := question(t, "www.example.", dns.TypeA)
						if fetchErr(c.Fetch(t.Context(), q, reply(q), run)) == nil {
							good.Add(1)
						}
					})
				}
				synctest.Wait()
				close(first)
				wg.Wait()
				if calls.Load() != tt.asks || good.Load() != tt.good {
					t.Errorf("%d asks, %d good answers; want %d and %d", calls.Load(), good.Load(), tt.asks, tt.good)
				}
			})
		})
	}
}

func TestReplyToOtherQuestion(t *testing.T) {
	c := newCache(nil, Options{Clock: newManualClock().now})
	q := question(t, "www.example.", dns.TypeA)
	other := question(t, "web.example.", dns.TypeA)
	for name, resp := range map[string]wire.Response{
		"another name": response(t, other, message{answer: []string{"web.example. 300 IN A 192.0.2.1"}}),
		"nothing":      {},
	} {
		r := reply(q)
		if _, err := c.Fetch(t.Context(), q, r, returns(resp)); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if st := c.Stats(); st.Drops != 2 || st.Entries != (Kinds{}) {
		t.Errorf("stats %+v, want two drops and nothing kept", st)
	}
	checkNoCalls(t, c)
}

// TestExchangePanics uses exchanges that don't return: they panic, or call runtime.Goexit.
func TestExchangePanics(t *testing.T) {
	ends := map[string]func(){
		"panic":  func() { panic("boom") },
		"goexit": runtime.Goexit,
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache(nil, Options{})
				gate := make(chan struct{})
				var recovered any
				go func() {
					defer func() { recovered = recover() }()
					q := question(t, "www.example.", dns.TypeA)
					_, err := c.Fetch(t.Context(), q, reply(q), func(context.Context, *wire.Query) (wire.Response, error) {
						<-gate
						end()
						return wire.Response{}, nil
					})
					t.Errorf("Fetch came back with %v", err)
				}()
				synctest.Wait()
				var waited error
				go func() {
					q := question(t, "www.example.", dns.TypeA)
					_, waited = c.Fetch(t.Context(), q, reply(q), mustNotExchange(t))
				}()
				synctest.Wait()
				close(gate)
				synctest.Wait()
				if name == "panic" && recovered != "boom" {
					t.Errorf("the panic became %v", recovered)
				}
				if !errors.Is(waited, errPanicked) {
					t.Errorf("the waiter gets %v", waited)
				}
				if st := c.Stats(); st.Entries != (Kinds{}) {
					t.Errorf("a panic was kept: %+v", st)
				}
				checkNoCalls(t, c)
				fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
			})
		})
	}
}

func TestWaiterContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		var mu sync.Mutex
		results := make(map[string]error)
		client := func(name string, ctx context.Context) {
			q := question(t, "www.example.", dns.TypeA)
			_, err := c.Fetch(ctx, q, reply(q), a.run)
			mu.Lock()
			defer mu.Unlock()
			results[name] = err
		}
		ctx, ends := context.WithCancel(t.Context())
		go client("first", t.Context())
		synctest.Wait()
		go client("second", ctx)
		synctest.Wait()
		go client("third", t.Context())
		synctest.Wait()

		ends()
		synctest.Wait()
		if !errors.Is(results["second"], context.Canceled) {
			t.Errorf("the second client gets %v", results["second"])
		}
		close(a.gate)
		synctest.Wait()
		for _, name := range []string{"first", "third"} {
			if err, ok := results[name]; !ok || err != nil {
				t.Errorf("the %s client: ended %v, with %v", name, ok, err)
			}
		}
		if a.calls.Load() != 1 {
			t.Errorf("%d asks", a.calls.Load())
		}
		checkNoCalls(t, c)
	})
}

// TestExchangeContextCancelled: the end of an exchange's context is not cached as a failure.
func TestExchangeContextCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		ctx, end := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				q := question(t, "www.example.", dns.TypeA)
				errs <- fetchErr(c.Fetch(ctx, q, reply(q), a.run))
			}()
			synctest.Wait()
		}
		end()
		for range 2 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		}
		if st := c.Stats(); st.Entries != (Kinds{}) {
			t.Errorf("a cancelled ask was kept as a failure: %+v", st)
		}
		checkNoCalls(t, c)
		fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
	})
}

type ctxKey struct{}

func TestExchangeSeesContextValues(t *testing.T) {
	c := newCache(nil, Options{Clock: newManualClock().now})
	q := question(t, "www.example.", dns.TypeA)
	var seen any
	_, _ = c.Fetch(context.WithValue(t.Context(), ctxKey{}, "v"), q, reply(q), func(ctx context.Context, _ *wire.Query) (wire.Response, error) {
		seen = ctx.Value(ctxKey{})
		return wire.Response{}, errUpstream
	})
	if seen != "v" {
		t.Errorf("the ask sees %v", seen)
	}
}

// TestConcurrentUse runs all methods concurrently, for the race detector, and checks the
// counts.
func TestConcurrentUse(t *testing.T) {
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = 64, 64 // fewer than the names
	c := newCache(cfg, Options{})
	const workers, rounds, names = 4, 200, 150
	var queries [names]*wire.Query
	var responses [names]wire.Response
	for i := range queries {
		name := fmt.Sprintf("n%d.example.", i)
		m := message{answer: []string{name + " 300 IN A 192.0.2.1"}}
		if i%2 == 1 {
			m = message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
		}
		queries[i] = question(t, name, dns.TypeA)
		responses[i] = response(t, queries[i], m)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				n := (w*37 + i*11) % names
				q := queries[n]
				r := reply(q)
				if lookup(c, q, r, c.store.clock()) == missed {
					if _, err := c.Fetch(t.Context(), q, r, returns(responses[n])); err != nil {
						t.Errorf("fetching: %v", err)
					}
				}
				if r.Rcode() != responses[n].Rcode {
					t.Errorf("%v became rcode %d", n, r.Rcode())
				}
				c.Stats()
			}
		})
	}
	wg.Wait()
	st := c.Stats()
	if st.Requests != workers*rounds || st.Entries.Success > 64 || st.Entries.Denial > 64 {
		t.Errorf("stats %+v", st)
	}
}
