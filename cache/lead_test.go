// Inside the package: it checks that no call is left in a shard.

package cache

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestLead: a client leads without waiting. Others wait for its exchange, and get its answer.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		q := question(t, "www.example.", dns.TypeA)
		l, ok := c.Lead(q)
		if !ok || !l.Begun() {
			t.Fatal("the first client does not lead")
		}
		if _, ok := c.Lead(question(t, "www.example.", dns.TypeA)); ok {
			t.Error("a second client leads")
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				q := question(t, "www.example.", dns.TypeA)
				if got := resolve(t, c, q, mustNotExchange(t)); got.Err != nil || got.Addr == "" {
					t.Errorf("a client that waits gets %+v", got)
				}
			})
		}
		synctest.Wait()
		r := reply(q)
		resp := response(t, q, message{answer: []string{addr}})
		noError(t, c.FetchLed(t.Context(), l, r, returns(resp)))
		all.Wait()
		if m := replyMsg(t, r); len(m.Answer) != 1 {
			t.Errorf("the leader gets %v", m)
		}
		if s := c.Stats(); s.Misses != 4 || s.Hits.Success != 0 {
			t.Errorf("%+v, want a miss for each client", s)
		}
		if _, ok := c.Lead(q); ok {
			t.Error("a client leads although the answer is in the cache")
		}
		if s := c.Stats(); s.Requests != 4 {
			t.Errorf("%d lookups are counted, want none of a client that does not lead", s.Requests)
		}
		checkNoCalls(t, c)
	})
}

// TestLeadEnds: a leader that is evicted hands its exchange over; if it panics, the others get an error. Nothing is stored.
func TestLeadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, panics := range []bool{false, true} {
			c := newCache(nil, Options{})
			q := question(t, "www.example.", dns.TypeA)
			l, _ := c.Lead(q)
			a := newExchangeStub(t)
			close(a.gate)
			got := make(chan clientResult, 1)
			go func() { got <- resolve(t, c, question(t, "www.example.", dns.TypeA), a.run) }()
			synctest.Wait()
			limiter := share.NewLimiter(1)
			var place share.Place
			limiter.Acquire(&place, netip.MustParseAddr("192.0.2.1"))
			limiter.Revoke(&place)
			func() {
				defer func() {
					if p := recover(); (p != nil) != panics {
						t.Errorf("recovered %v", p)
					}
				}()
				err := c.FetchLed(&place, l, reply(q), func(ctx context.Context, _ *wire.Query) (wire.Response, error) {
					if panics {
						panic("boom")
					}
					return wire.Response{}, ctx.Err()
				})
				if !errors.Is(err, share.ErrEvicted) {
					t.Errorf("the leader gets %v", err)
				}
			}()
			limiter.Release(&place)
			if r := <-got; panics == (r.Err == nil) {
				t.Errorf("panic %t: the client that waits gets %+v", panics, r)
			}
			checkNoCalls(t, c)
		}
	})
}

// TestLeadNot: no client leads where an expired answer may be served.
func TestLeadNot(t *testing.T) {
	clock := newManualClock()
	cfg := defaults()
	cfg.Stale = fallback
	c := newCache(cfg, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	clock.advance(time.Hour / 2)
	if _, ok := c.Lead(q); ok {
		t.Error("a client leads although there is an expired answer")
	}
	clock.advance(48 * time.Hour)
	l, ok := c.Lead(q)
	if !ok {
		t.Fatal("no client leads although the expired answer is too old")
	}
	noError(t, c.FetchLed(t.Context(), l, reply(q), returns(response(t, q, message{answer: []string{addr}}))))
	checkNoCalls(t, c)
}

// TestLeadBesideDenials: a denial keeps clients from leading for names below it, and no others.
func TestLeadBesideDenials(t *testing.T) {
	c := cutCache(Options{})
	fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
	for name, want := range map[string]bool{
		"www.example.": true, "b.a.y.example.": true, "x.example.": false, "a.x.example.": false, "b.a.x.example.": false,
	} {
		q := question(t, name, dns.TypeAAAA)
		l, ok := c.Lead(q)
		if ok != want {
			t.Errorf("%s: leads %t", name, ok)
		}
		if !ok {
			continue
		}
		if err := c.FetchLed(t.Context(), l, reply(q), returns(response(t, q, gone))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	checkNoCalls(t, c)
}
