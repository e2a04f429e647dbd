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

// The modes as they are without further words.
var (
	fallback  = config.Stale{For: time.Hour, ClientTimeout: 1800 * time.Millisecond, TTL: 30 * time.Second, Recheck: 30 * time.Second}
	immediate = config.Stale{For: time.Hour, Mode: config.StaleImmediate, TTL: 30 * time.Second, Recheck: 30 * time.Second}
	verify    = config.Stale{For: time.Hour, Mode: config.StaleVerify, TTL: 30 * time.Second}
)

// staleCache is a cache on the clock of a bubble, with www.example. in it, whose TTL of
// 300 seconds is over.
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

// got is what one client got: the address, "" for none, its TTL and the time it took.
type got struct {
	Addr  string
	TTL   uint32
	Rcode int
	Took  time.Duration
	Err   error
}

func read(t testing.TB, r *wire.Reply) got {
	t.Helper()
	m := sent(t, r)
	g := got{Rcode: m.Rcode}
	for _, ttl := range ttls(m) {
		g.TTL = ttl
	}
	if len(m.Answer) > 0 {
		g.Addr = m.Answer[0].(*dns.A).A.String()
	}
	return g
}

// resolve is what the server does with a query: Answer, Refresh if it says so, and Fetch
// at a miss.
func resolve(t testing.TB, c *Cache, q *wire.Query, ask ExchangeFunc) got {
	t.Helper()
	start, r := time.Now(), reply(q)
	switch lookup(c, q, r, c.store.clock()) {
	case Miss:
		if _, err := c.Fetch(t.Context(), q, r, ask); err != nil {
			return got{Err: err, Took: time.Since(start)}
		}
	case Refresh:
		c.Refresh(q, ask)
	case Hit:
	}
	g := read(t, r)
	g.Took = time.Since(start)
	return g
}

// upstream answers after a while with what m says, or with err.
type upstream struct {
	t     testing.TB
	m     message
	err   error
	after time.Duration
	asked []time.Time
	mu    sync.Mutex
}

func (u *upstream) ask(_ context.Context, q *wire.Query) (wire.Response, error) {
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

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.asked)
}

func (u *upstream) become(v *upstream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.m, u.err, u.after = v.m, v.err, v.after
}

const (
	old   = "192.0.2.1"
	newer = "192.0.2.2"
)

var (
	fresh = message{answer: []string{"www.example. 60 IN A " + newer}}
	gone  = message{rcode: dns.RcodeNameError, authority: soaOf(60, 60)}
)

// TestStale is the list of what a client gets whose answer has expired, and of what the
// next one gets who comes when the ask has ended.
func TestStale(t *testing.T) {
	const patience = 1800 * time.Millisecond
	given := got{Addr: old, TTL: 30}
	late := given
	late.Took = patience
	changed := func(st config.Stale, f func(*config.Stale)) config.Stale {
		f(&st)
		return st
	}
	tests := map[string]struct {
		stale       config.Stale
		up          *upstream
		first, next got
		asks        int // after both
	}{
		"an answer in time": {fallback, &upstream{m: fresh, after: time.Second},
			got{Addr: newer, TTL: 60, Took: time.Second}, got{Addr: newer, TTL: 60}, 1},
		"an answer too late": {fallback, &upstream{m: fresh, after: 2 * time.Second},
			late, got{Addr: newer, TTL: 60}, 1},
		"silence":  {fallback, &upstream{err: errUpstream, after: 5 * time.Second}, late, given, 1},
		"an error": {fallback, &upstream{err: errUpstream}, given, given, 1},
		"an error after a while": {fallback, &upstream{err: errUpstream, after: time.Second},
			got{Addr: old, TTL: 30, Took: time.Second}, given, 1},
		"SERVFAIL":            {fallback, &upstream{m: message{rcode: dns.RcodeServerFailure}}, given, given, 1},
		"REFUSED":             {fallback, &upstream{m: message{rcode: dns.RcodeRefused}}, given, given, 1},
		"a reply that is cut": {fallback, &upstream{m: message{tc: true, answer: fresh.answer}}, given, given, 1},
		"to another question": {fallback, &upstream{m: message{answer: []string{addr}}, err: ErrMismatch}, given, given, 1},
		"a local error":       {fallback, &upstream{err: ErrLocal}, given, given, 2},
		"NXDOMAIN":            {fallback, &upstream{m: gone}, got{Rcode: 3, TTL: 60}, got{Rcode: 3, TTL: 60}, 1},
		"NODATA":              {fallback, &upstream{m: message{authority: soaOf(60, 60)}}, got{TTL: 60}, got{TTL: 60}, 1},
		"NXDOMAIN without SOA": {fallback, &upstream{m: message{rcode: dns.RcodeNameError}},
			got{Rcode: 3}, got{Rcode: 3}, 2},
		"too old": {changed(fallback, func(s *config.Stale) { s.For = 0 }), &upstream{err: errUpstream},
			got{Err: errUpstream}, got{Rcode: 2}, 1},
		"a TTL of its own": {changed(fallback, func(s *config.Stale) { s.TTL = 7 * time.Second }), &upstream{err: errUpstream},
			got{Addr: old, TTL: 7}, got{Addr: old, TTL: 7}, 1},

		"immediate, an answer":  {immediate, &upstream{m: fresh}, given, got{Addr: newer, TTL: 60}, 1},
		"immediate, NXDOMAIN":   {immediate, &upstream{m: gone}, given, got{Rcode: 3, TTL: 60}, 1},
		"immediate, an error":   {immediate, &upstream{err: errUpstream}, given, given, 1},
		"immediate, SERVFAIL":   {immediate, &upstream{m: message{rcode: dns.RcodeServerFailure}}, given, given, 1},
		"immediate, no recheck": {changed(immediate, func(s *config.Stale) { s.Recheck = 0 }), &upstream{err: errUpstream}, given, given, 2},

		"verify, an answer": {verify, &upstream{m: fresh, after: 3 * time.Second},
			got{Addr: newer, TTL: 60, Took: 3 * time.Second}, got{Addr: newer, TTL: 60}, 1},
		"verify, an error": {verify, &upstream{err: errUpstream, after: 3 * time.Second},
			got{Addr: old, TTL: 30, Took: 3 * time.Second}, got{Addr: old, TTL: 30, Took: 3 * time.Second}, 2},
		"verify for a while": {changed(verify, func(s *config.Stale) { s.ClientTimeout = time.Second }), &upstream{err: errUpstream, after: 3 * time.Second},
			got{Addr: old, TTL: 30, Took: time.Second}, got{Addr: old, TTL: 30, Took: time.Second}, 2},
		"verify, with a recheck": {changed(verify, func(s *config.Stale) { s.Recheck = 30 * time.Second }), &upstream{err: errUpstream},
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
				for i := range q.Packet { // its buffer is used again
					q.Packet[i] = 0xFF
				}
				time.Sleep(tt.up.after - first.Took) // until the ask has ended
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
				landed(t, c)
				c.store.check(t)
			})
		})
	}
}

// TestStaleCount: what is given after its end is counted, and nothing else.
func TestStaleCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		u := &upstream{t: t, err: errUpstream}
		for range 5 {
			resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
		}
		u.become(&upstream{m: fresh})
		time.Sleep(30 * time.Second)
		resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask) // and asks
		synctest.Wait()
		resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
		want := Stats{Requests: 8, Hits: Kinds{Success: 6}, Misses: 2, Stale: 6, Prefetches: 1, Entries: Kinds{Success: 1}}
		if diff := cmp.Diff(want, c.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
	})
}

// TestStaleCrowd: a thousand clients of one expired name are one ask.
func TestStaleCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 1000
		c := staleCache(t, fallback, Options{})
		u := &upstream{t: t, err: errUpstream, after: 5 * time.Second}
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				g := resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
				if g != (got{Addr: old, TTL: 30, Took: fallback.ClientTimeout}) {
					t.Errorf("a client got %+v", g)
				}
			})
		}
		wg.Wait()
		if u.count() != 1 || c.failures.Load() != 1 {
			t.Errorf("%d asks, %d failures", u.count(), c.failures.Load())
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := c.failures.Load(); n != 1 {
			t.Errorf("one name counts as %d failures", n)
		}
		landed(t, c)
	})
}

// TestVerifyTogether: with a time-out or a recheck one client verifies, and the others
// don't wait; without, all do.
func TestVerifyTogether(t *testing.T) {
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
				u := &upstream{t: t, m: fresh, after: time.Second}
				first := make(chan got)
				go func() { first <- resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask) }()
				synctest.Wait()
				want := got{Addr: newer, TTL: 60, Took: time.Second}
				second := resolve(t, c, question(t, "www.example.", dns.TypeA), u.ask)
				if g := <-first; g != want {
					t.Errorf("the first client got %+v", g)
				}
				if tt.took == 0 {
					want = got{Addr: old, TTL: 30}
				}
				if second != want || u.count() != 1 {
					t.Errorf("the second client got %+v, after %d asks", second, u.count())
				}
				landed(t, c)
			})
		})
	}
}

// TestNoPlace: where nothing can be asked for behind a client, it gets the expired answer.
func TestNoPlace(t *testing.T) {
	for name, st := range map[string]config.Stale{"fallback": fallback, "immediate": immediate} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := staleCache(t, st, Options{Go: func(func(context.Context)) bool { return false }})
				q := question(t, "www.example.", dns.TypeA)
				for range 3 {
					if g := resolve(t, c, q, never(t)); g != (got{Addr: old, TTL: 30}) {
						t.Errorf("%+v", g)
					}
				}
				landed(t, c)
				if st := c.Stats(); st.Stale != 3 || st.Prefetches != 0 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// TestStalePanic lets an ask behind a client's back not return: the clients get what
// there is, and the next is not refused.
func TestStalePanic(t *testing.T) {
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
		if g != (got{Addr: old, TTL: 30}) {
			t.Errorf("the client gets %+v", g)
		}
		synctest.Wait()
		landed(t, c)
		u := &upstream{t: t, m: fresh}
		if g := resolve(t, c, q, u.ask); g.Addr != newer || panics != 1 {
			t.Errorf("then %+v, after %d panics", g, panics)
		}
	})
}

// TestStaleKinds gives expired denials as well, but no failures.
func TestStaleKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		q, bad := question(t, "x.example.", dns.TypeA), question(t, "bad.example.", dns.TypeA)
		fetch(t, c, q, gone)
		fetch(t, c, bad, message{rcode: dns.RcodeServerFailure})
		time.Sleep(time.Minute)
		u := &upstream{t: t, err: errUpstream}
		if g := resolve(t, c, q, u.ask); g != (got{Rcode: dns.RcodeNameError, TTL: 30}) {
			t.Errorf("a denial became %+v", g)
		}
		if g := resolve(t, c, bad, u.ask); !errors.Is(g.Err, errUpstream) {
			t.Errorf("a failure became %+v", g)
		}
	})
}

// TestStaleEnd: an answer may be given for an hour after its end, and not a moment longer.
func TestStaleEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, immediate, Options{})
		q := question(t, "www.example.", dns.TypeA)
		u := &upstream{t: t, err: errUpstream}
		time.Sleep(time.Hour - 1)
		if g := resolve(t, c, q, u.ask); g.Addr != old {
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

// TestPreferPositive keeps an answer whatever comes that is none.
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
					u := &upstream{t: t, m: m}
					for range 3 {
						if g := resolve(t, c, q, u.ask); g != (got{Addr: old, TTL: 30}) {
							t.Errorf("%+v", g)
						}
						synctest.Wait()
					}
					u.become(&upstream{m: fresh})
					time.Sleep(time.Minute)
					resolve(t, c, q, u.ask)
					synctest.Wait()
					if g := resolve(t, c, q, u.ask); g.Addr != newer {
						t.Errorf("an answer came, and the client gets %+v", g)
					}
				})
			})
		}
	}
}

// TestContradiction: a reply that contradicts itself goes to its client, and takes the
// place of nothing: neither is there an entry that could be copied, nor is the expired
// answer gone that the next failure is to be bridged with.
func TestContradiction(t *testing.T) {
	odd := message{
		answer:    []string{"www.example. 60 IN CNAME www.example.", "www.example. 60 IN A " + newer},
		authority: soaOf(60, 60),
	}
	// Its first record is no address.
	given := func(c *Cache, q *wire.Query) int { return len(fetch(t, c, q, odd).Answer) }
	q := question(t, "www.example.", dns.TypeA)
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{Epochs: newCounters().Table})
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
		u := &upstream{t: t, err: errors.New("no answer")}
		if diff := cmp.Diff(got{Addr: old, TTL: 30}, resolve(t, c, q, u.ask)); diff != "" {
			t.Errorf("when all has failed after it (-want +got):\n%s", diff)
		}
	})
}
