// Inside the package: it reads the store's clock and a call's waiters.

package cache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// The modes with their default settings.
var (
	fallback  = config.Stale{For: time.Hour, ClientTimeout: 1800 * time.Millisecond, TTL: 30 * time.Second, Recheck: 30 * time.Second}
	immediate = config.Stale{For: time.Hour, Mode: config.StaleImmediate, TTL: 30 * time.Second, Recheck: 30 * time.Second}
	verify    = config.Stale{For: time.Hour, Mode: config.StaleVerify, TTL: 30 * time.Second}
)

// staleCache returns a cache on the clock of a synctest bubble. It holds www.example., whose
// TTL of 300 seconds has just passed.
func staleCache(t *testing.T, st config.Stale, opts Options) *Cache {
	t.Helper()
	start := time.Now()
	opts.Clock = func() time.Duration { return time.Hour + time.Since(start) }
	cfg := defaults()
	cfg.Stale = st
	c := newCache(cfg, opts)
	fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
	time.Sleep(300 * time.Second)
	return c
}

// clientResult is what a client received: the address ("" for none), its TTL, and the time it
// took.
type clientResult struct {
	Addr  string
	TTL   uint32
	Rcode int
	Took  time.Duration
	Err   error
}

func readResult(t testing.TB, r *wire.Reply) clientResult {
	t.Helper()
	m := replyMsg(t, r)
	g := clientResult{Rcode: m.Rcode}
	for _, ttl := range ttls(m) {
		g.TTL = ttl
	}
	if len(m.Answer) > 0 {
		g.Addr = m.Answer[0].(*dns.A).A.String()
	}
	return g
}

// resolve does what the server does with a query: Get, Refresh if requested, and Fetch at a
// miss.
func resolve(t testing.TB, c *Cache, q *wire.Query, ask ExchangeFunc) clientResult {
	t.Helper()
	start, r := time.Now(), reply(q)
	switch lookup(c, q, r, c.store.clock()) {
	case missed:
		if _, err := c.Fetch(t.Context(), q, r, ask); err != nil {
			return clientResult{Err: err, Took: time.Since(start)}
		}
	case needsRefresh:
		c.Refresh(q, ask)
	case answered:
	}
	g := readResult(t, r)
	g.Took = time.Since(start)
	return g
}

// fakeUpstream replies with m or fails with err, after a delay.
type fakeUpstream struct {
	t     testing.TB
	m     message
	err   error
	after time.Duration
	asked []time.Time
	mu    sync.Mutex
}

func (u *fakeUpstream) ask(_ context.Context, q *wire.Query) (wire.Response, error) {
	u.mu.Lock()
	u.asked = append(u.asked, time.Now())
	m, err, after := u.m, u.err, u.after
	u.mu.Unlock()
	time.Sleep(after)
	if err != nil {
		return wire.Response{}, err
	}
	return response(u.t, q, m), nil
}

func (u *fakeUpstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.asked)
}

func (u *fakeUpstream) replaceBy(v *fakeUpstream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.m, u.err, u.after = v.m, v.err, v.after
}

const (
	staleAddr = "192.0.2.1"
	freshAddr = "192.0.2.2"
)

var (
	fresh = message{answer: []string{"www.example. 60 IN A " + freshAddr}}
	gone  = message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
)

// TestStaleModes checks what a client receives whose answer has expired, and what the next one
// receives after the exchange has ended.
func TestStaleModes(t *testing.T) {
	const patience = 1800 * time.Millisecond
	given := clientResult{Addr: staleAddr, TTL: 30}
	late := given
	late.Took = patience
	changed := func(st config.Stale, f func(*config.Stale)) config.Stale {
		f(&st)
		return st
	}
	tests := map[string]struct {
		stale       config.Stale
		up          *fakeUpstream
		first, next clientResult
		asks        int // after both
	}{
		"an answer in time": {fallback, &fakeUpstream{m: fresh, after: time.Second},
			clientResult{Addr: freshAddr, TTL: 60, Took: time.Second}, clientResult{Addr: freshAddr, TTL: 60}, 1},
		"an answer too late": {fallback, &fakeUpstream{m: fresh, after: 2 * time.Second},
			late, clientResult{Addr: freshAddr, TTL: 60}, 1},
		"silence":  {fallback, &fakeUpstream{err: errUpstream, after: 5 * time.Second}, late, given, 1},
		"an error": {fallback, &fakeUpstream{err: errUpstream}, given, given, 1},
		"an error after a while": {fallback, &fakeUpstream{err: errUpstream, after: time.Second},
			clientResult{Addr: staleAddr, TTL: 30, Took: time.Second}, given, 1},
		"SERVFAIL":            {fallback, &fakeUpstream{m: message{rcode: dns.RcodeServerFailure}}, given, given, 1},
		"REFUSED":             {fallback, &fakeUpstream{m: message{rcode: dns.RcodeRefused}}, given, given, 1},
		"a reply that is cut": {fallback, &fakeUpstream{m: message{tc: true, answer: fresh.answer}}, given, given, 1},
		"to another question": {fallback, &fakeUpstream{m: message{answer: []string{addr}}, err: ErrMismatch}, given, given, 1},
		"a local error":       {fallback, &fakeUpstream{err: ErrLocal}, given, given, 2},
		"NXDOMAIN":            {fallback, &fakeUpstream{m: gone}, clientResult{Rcode: 3, TTL: 60}, clientResult{Rcode: 3, TTL: 60}, 1},
		"NODATA":              {fallback, &fakeUpstream{m: message{authority: soaRecord(60, 60)}}, clientResult{TTL: 60}, clientResult{TTL: 60}, 1},
		"NXDOMAIN without SOA": {fallback, &fakeUpstream{m: message{rcode: dns.RcodeNameError}},
			clientResult{Rcode: 3}, clientResult{Rcode: 3}, 2},
		"too old": {changed(fallback, func(s *config.Stale) { s.For = 0 }), &fakeUpstream{err: errUpstream},
			clientResult{Err: errUpstream}, clientResult{Rcode: 2}, 1},
		"a TTL of its own": {changed(fallback, func(s *config.Stale) { s.TTL = 7 * time.Second }), &fakeUpstream{err: errUpstream},
			clientResult{Addr: staleAddr, TTL: 7}, clientResult{Addr: staleAddr, TTL: 7}, 1},

		"immediate, an answer":  {immediate, &fakeUpstream{m: fresh}, given, clientResult{Addr: freshAddr, TTL: 60}, 1},
		"immediate, NXDOMAIN":   {immediate, &fakeUpstream{m: gone}, given, clientResult{Rcode: 3, TTL: 60}, 1},
		"immediate, an error":   {immediate, &fakeUpstream{err: errUpstream}, given, given, 1},
		"immediate, SERVFAIL":   {immediate, &fakeUpstream{m: message{rcode: dns.RcodeServerFailure}}, given, given, 1},
		"immediate, no recheck": {changed(immediate, func(s *config.Stale) { s.Recheck = 0 }), &fakeUpstream{err: errUpstream}, given, given, 2},

		"verify, an answer": {verify, &fakeUpstream{m: fresh, after: 3 * time.Second},
			clientResult{Addr: freshAddr, TTL: 60, Took: 3 * time.Second}, clientResult{Addr: freshAddr, TTL: 60}, 1},
		"verify, an error": {verify, &fakeUpstream{err: errUpstream, after: 3 * time.Second},
			clientResult{Addr: staleAddr, TTL: 30, Took: 3 * time.Second}, clientResult{Addr: staleAddr, TTL: 30, Took: 3 * time.Second}, 2},
		"verify for a while": {changed(verify, func(s *config.Stale) { s.ClientTimeout = time.Second }), &fakeUpstream{err: errUpstream, after: 3 * time.Second},
			clientResult{Addr: staleAddr, TTL: 30, Took: time.Second}, clientResult{Addr: staleAddr, TTL: 30, Took: time.Second}, 2},
		"verify, with a recheck": {changed(verify, func(s *config.Stale) { s.Recheck = 30 * time.Second }), &fakeUpstream{err: errUpstream},
			given, given, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := staleCache(t, tt.stale, Options{})
				tt.up.t = t
				u := tt.up
				q := question(t, "www.example.", dns.TypeA)
				first := resolve(t, c, q, u.ask)
				for i := range q.Packet { // the server reuses the buffer
					q.Packet[i] = 0xFF
				}
				time.Sleep(tt.up.after - first.Took) // until the exchange has ended
				synctest.Wait()
				next := resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
				if diff := cmp.Diff(tt.first, first, cmp.Comparer(errors.Is)); diff != "" {
					t.Errorf("the first client (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.next, next, cmp.Comparer(errors.Is)); diff != "" {
					t.Errorf("the next client (-want +got):\n%s", diff)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := u.count(); n != tt.asks {
					t.Errorf("%d asks, want %d", n, tt.asks)
				}
				checkNoCalls(t, c)
				c.store.check(t)
			})
		})
	}
}

// TestStaleIsCounted: only answers served after they expired count as stale.
func TestStaleIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		u := &fakeUpstream{t: t, err: errUpstream}
		for range 5 {
			resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
		}
		u.replaceBy(&fakeUpstream{m: fresh})
		time.Sleep(30 * time.Second)
		resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask) // and asks
		synctest.Wait()
		resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
		want := Stats{Requests: 8, Hits: Kinds{Success: 6}, Misses: 2, Stale: 6, Prefetches: 1, Entries: Kinds{Success: 1}}
		equal(t, want, c.Stats(), "stats")
	})
}

// TestStaleClientsShareCall: a thousand clients of one expired name share one exchange.
func TestStaleClientsShareCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 1000
		c := staleCache(t, fallback, Options{})
		u := &fakeUpstream{t: t, err: errUpstream, after: 5 * time.Second}
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				g := resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
				if g != (clientResult{Addr: staleAddr, TTL: 30, Took: fallback.ClientTimeout}) {
					t.Errorf("a client got %+v", g)
				}
			})
		}
		wg.Wait()
		if u.count() != 1 || c.failures.count.Load() != 1 {
			t.Errorf("%d asks, %d failures", u.count(), c.failures.count.Load())
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := c.failures.count.Load(); n != 1 {
			t.Errorf("one name counts as %d failures", n)
		}
		checkNoCalls(t, c)
	})
}

// TestConcurrentVerify: with a client timeout or recheck one client verifies and the others
// don't wait. Otherwise all wait.
func TestConcurrentVerify(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*config.Stale)
		took time.Duration
	}{
		"as it is": {func(*config.Stale) {}, time.Second},
		"time-out": {func(s *config.Stale) { s.ClientTimeout = 2 * time.Second }, 0},
		"recheck":  {func(s *config.Stale) { s.Recheck = time.Second }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := verify
				tt.edit(&st)
				c := staleCache(t, st, Options{})
				u := &fakeUpstream{t: t, m: fresh, after: time.Second}
				first := make(chan clientResult)
				go func() { first <- resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask) }()
				synctest.Wait()
				want := clientResult{Addr: freshAddr, TTL: 60, Took: time.Second}
				second := resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
				if g := <-first; g != want {
					t.Errorf("the first client got %+v", g)
				}
				if tt.took == 0 {
					want = clientResult{Addr: staleAddr, TTL: 30}
				}
				if second != want || u.count() != 1 {
					t.Errorf("the second client got %+v, after %d asks", second, u.count())
				}
				checkNoCalls(t, c)
			})
		})
	}
}

// TestStaleWhenBusy: a client receives the expired answer if no exchange can start in the
// background.
func TestStaleWhenBusy(t *testing.T) {
	for name, st := range map[string]config.Stale{"fallback": fallback, "immediate": immediate} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := staleCache(t, st, Options{Go: func(func(context.Context)) bool { return false }})
				q := question(t, "www.example.", dns.TypeA)
				for range 3 {
					if g := resolve(t, c, q, mustNotExchange(t)); g != (clientResult{Addr: staleAddr, TTL: 30}) {
						t.Errorf("%+v", g)
					}
				}
				checkNoCalls(t, c)
				if st := c.Stats(); st.Stale != 3 || st.Prefetches != 0 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// TestStaleExchangePanics: if a background exchange does not return, clients receive the
// expired answer, and the next exchange can start.
func TestStaleExchangePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics := 0
		c := staleCache(t, fallback, Options{Go: func(f func(context.Context)) bool {
			go func() {
				defer func() {
					if recover() != nil {
						panics++
					}
				}()
				f(t.Context())
			}()
			return true
		}})
		q := question(t, "www.example.", dns.TypeA)
		g := resolve(t, c, q, func(context.Context, *wire.Query) (wire.Response, error) { panic("boom") })
		if g != (clientResult{Addr: staleAddr, TTL: 30}) {
			t.Errorf("the client gets %+v", g)
		}
		synctest.Wait()
		checkNoCalls(t, c)
		u := &fakeUpstream{t: t, m: fresh}
		if g := resolve(t, c, q, u.ask); g.Addr != freshAddr || panics != 1 {
			t.Errorf("then %+v, after %d panics", g, panics)
		}
	})
}

// TestStaleDenialAndFailure: expired denials are served as well, failures are not.
func TestStaleDenialAndFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		q, bad := question(t, "x.example.", dns.TypeA), question(t, "bad.example.", dns.TypeA)
		fetch(t, c, q, gone)
		fetch(t, c, bad, message{rcode: dns.RcodeServerFailure})
		time.Sleep(time.Minute)
		u := &fakeUpstream{t: t, err: errUpstream}
		if g := resolve(t, c, q, u.ask); g != (clientResult{Rcode: dns.RcodeNameError, TTL: 30}) {
			t.Errorf("a denial became %+v", g)
		}
		if g := resolve(t, c, bad, u.ask); !errors.Is(g.Err, errUpstream) {
			t.Errorf("a failure became %+v", g)
		}
	})
}

// TestStaleWindowEnds: an answer may be served for an hour after it has expired, and no longer.
func TestStaleWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, immediate, Options{})
		q := question(t, "www.example.", dns.TypeA)
		u := &fakeUpstream{t: t, err: errUpstream}
		time.Sleep(time.Hour - 1)
		if g := resolve(t, c, q, u.ask); g.Addr != staleAddr {
			t.Errorf("within the hour: %+v", g)
		}
		time.Sleep(time.Nanosecond)
		if g := resolve(t, c, q, u.ask); !errors.Is(g.Err, errUpstream) {
			t.Errorf("after the hour: %+v", g)
		}
		if g := resolve(t, c, q, u.ask); g.Rcode != dns.RcodeServerFailure {
			t.Errorf("the failure is not kept: %+v", g)
		}
	})
}

// TestPreferPositive: with prefer_positive only a positive answer replaces one.
func TestPreferPositive(t *testing.T) {
	empty := message{}
	referral := message{authority: []string{"example. 900 IN NS ns.example."}}
	for name, m := range map[string]message{"NXDOMAIN": gone, "nothing": empty, "a referral": referral} {
		for mode, st := range map[string]config.Stale{"fallback": fallback, "immediate": immediate, "verify": verify} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					st.PreferPositive = true
					c := staleCache(t, st, Options{})
					q := question(t, "www.example.", dns.TypeA)
					u := &fakeUpstream{t: t, m: m}
					for range 3 {
						if g := resolve(t, c, q, u.ask); g != (clientResult{Addr: staleAddr, TTL: 30}) {
							t.Errorf("%+v", g)
						}
						synctest.Wait()
					}
					u.replaceBy(&fakeUpstream{m: fresh})
					time.Sleep(time.Minute)
					resolve(t, c, q, u.ask)
					synctest.Wait()
					if g := resolve(t, c, q, u.ask); g.Addr != freshAddr {
						t.Errorf("an answer came, and the client gets %+v", g)
					}
				})
			})
		}
	}
}

// TestContradictionIsNotCached: a reply that contradicts itself goes to its client only. It is
// not stored, cannot be copied, and does not replace the expired answer.
func TestContradictionIsNotCached(t *testing.T) {
	odd := message{
		answer:    []string{"www.example. 60 IN CNAME www.example.", "www.example. 60 IN A " + freshAddr},
		authority: soaRecord(60, 60),
	}
	// The first record of the reply is not an address.
	given := func(c *Cache, q *wire.Query) int { return len(fetch(t, c, q, odd).Answer) }
	q := question(t, "www.example.", dns.TypeA)
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{Epochs: newEpochTable().Table})
		for range 2 {
			if n := given(c, q); n != 2 {
				t.Errorf("the client gets %d records, want 2", n)
			}
			if _, ok := c.Lease(q, c.store.clock()); ok || answer(t, c, q) != nil {
				t.Error("it was kept")
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, verify, Options{})
		if n := given(c, q); n != 2 {
			t.Errorf("in place of an expired answer the client gets %d records, want 2", n)
		}
		u := &fakeUpstream{t: t, err: errors.New("no answer")}
		equal(t, clientResult{Addr: staleAddr, TTL: 30}, resolve(t, c, q, u.ask), "when all has failed after it")
	})
}
