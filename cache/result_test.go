// Inside the package: the helpers are.

package cache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestZeroResult: a Result that no lookup has filled counts nothing.
func TestZeroResult(t *testing.T) {
	var r Result
	if r.Hit() || r.Count() {
		t.Error("the zero Result is a hit or wants a refresh")
	}
}

// TestCountAfterClose: a hit whose cache is closed before it is counted wants no refresh, though
// the entry was expired.
func TestCountAfterClose(t *testing.T) {
	clock := newManualClock()
	cfg := defaults()
	cfg.Stale = immediate
	c := newCache(cfg, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	clock.advance(301 * time.Second)
	res := c.Get(q, reply(q), clock.now())
	if !res.Hit() {
		t.Fatal("the expired answer is not served")
	}
	before := c.Stats()
	c.Close()
	if res.Count() {
		t.Error("a closed cache wants a refresh")
	}
	if got, want := c.Stats().Hits.Success, before.Hits.Success+1; got != want {
		t.Errorf("%d hits, want %d", got, want)
	}
}

// TestStaleWaiterContextEnds: a client that waits for the upstream while the cache has an
// expired answer returns when its context ends.
func TestStaleWaiterContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := fallback
		st.ClientTimeout = time.Second
		c := staleCache(t, st, Options{})
		a := newExchangeStub(t)
		ctx, cancel := context.WithCancel(t.Context())
		q := question(t, "www.example.", dns.TypeA)
		result := make(chan error)
		go func() { result <- fetchErr(c.Fetch(ctx, q, reply(q), a.run)) }()
		synctest.Wait()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("the client gets %v", err)
		}
		close(a.gate)
		synctest.Wait()
		checkNoCalls(t, c)
	})
}

// TestNXDomainCutNearRoot: the search for a denial above a name ends at the root, and the denial of
// a top-level domain denies no name below it.
func TestNXDomainCutNearRoot(t *testing.T) {
	c := cutCache(Options{})
	denial := message{rcode: dns.RcodeNameError, authority: []string{". 300 IN SOA . . 1 2 3 4 300"}}
	fetch(t, c, question(t, "test.", dns.TypeA), denial)
	fetch(t, c, question(t, "x.example.", dns.TypeA), denial)
	for _, tt := range []struct {
		name   string
		qtype  uint16
		denied bool
	}{
		{".", dns.TypeA, false}, {".", dns.TypeNS, false},
		{"test.", dns.TypeNS, false}, {"a.test.", dns.TypeA, false}, {"a.test.", dns.TypeNS, false},
		{"example.", dns.TypeA, false}, {"example.", dns.TypeNS, false},
		{"x.example.", dns.TypeNS, true}, {"a.x.example.", dns.TypeA, true}, {"a.x.example.", dns.TypeNS, true},
	} {
		q := question(t, tt.name, tt.qtype)
		r := reply(q)
		if res := c.Get(q, r, c.store.clock()); res.Hit() != tt.denied || res.Hit() && r.Rcode() != wire.NXDomain {
			t.Errorf("%s %d: hit %v, rcode %d; want denied: %v", tt.name, tt.qtype, res.Hit(), r.Rcode(), tt.denied)
		}
	}
}
