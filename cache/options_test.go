// Inside the package: it compares hashes, and checks that no call is left in a shard.

package cache

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// optioned returns a query for www.example. with options, in wire form, for upstream servers.
func optioned(t testing.TB, options string) *wire.Query {
	t.Helper()
	q := question(t, "www.example.", dns.TypeA)
	q.Options = []byte(options)
	return q
}

const (
	subnetOne = "\x00\x08\x00\x07\x00\x01\x18\x00\xc0\x00\x02"
	subnetTwo = "\x00\x08\x00\x07\x00\x01\x18\x00\xc6\x33\x64"
)

// TestOptionsApart: an answer that was fetched with options is for queries with the same options only.
func TestOptionsApart(t *testing.T) {
	c := newCache(nil, Options{})
	addresses := map[string]string{"": "192.0.2.1", subnetOne: "192.0.2.2", subnetTwo: "192.0.2.3"}
	for options, addr := range addresses {
		if m := answer(t, c, optioned(t, options)); m != nil {
			t.Errorf("%x is answered before it was asked:\n%s", options, m)
		}
		fetch(t, c, optioned(t, options), message{answer: []string{"www.example. 300 A " + addr}})
	}
	for options, addr := range addresses {
		m := answer(t, c, optioned(t, options))
		if m == nil || m.Answer[0].(*dns.A).A.String() != addr {
			t.Errorf("%x: want %s, got\n%v", options, addr, m)
		}
	}
	if n := c.Stats().Entries.Success; n != 3 {
		t.Errorf("%d entries", n)
	}
	if n := c.Flush([]byte("\x03www\x07example\x00"), false); n != 3 {
		t.Errorf("%d entries flushed", n)
	}
}

// TestOptionsCollide: entries whose hashes are the same, which chance hardly makes, are told apart by their options.
func TestOptionsCollide(t *testing.T) {
	c := newCache(nil, Options{})
	fetch(t, c, optioned(t, subnetOne), message{answer: []string{addr}})
	k, other := c.key(optioned(t, subnetOne)), c.key(optioned(t, subnetTwo))
	if k.hash == other.hash || k.hash == c.key(optioned(t, "")).hash {
		t.Errorf("the hashes are %x, %x", k.hash, other.hash)
	}
	e := k.find()
	if e == nil || !k.matches(e) || other.matches(e) {
		t.Errorf("entry %v matches the other options", e)
	}
	if q := question(t, "WWW.example.", dns.TypeA); func() bool { k := c.key(q); return k.matches(e) }() {
		t.Error("the entry matches a query without options")
	}
}

// TestOptionsJoin: clients wait for the exchange of one with the same options only.
func TestOptionsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		var mu sync.Mutex
		asked := map[string]int{}
		gate := make(chan struct{})
		resp := response(t, optioned(t, ""), message{answer: []string{addr}})
		exchange := func(_ context.Context, q *wire.Query) (wire.Response, error) {
			mu.Lock()
			asked[string(q.Options)]++
			mu.Unlock()
			<-gate
			return resp, nil
		}
		var wg sync.WaitGroup
		for _, options := range []string{"", subnetOne, subnetTwo} {
			for range 3 {
				wg.Go(func() {
					q := optioned(t, options)
					if _, err := c.Fetch(t.Context(), q, reply(q), exchange); err != nil {
						t.Errorf("fetching: %v", err)
					}
				})
			}
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		for _, options := range []string{"", subnetOne, subnetTwo} {
			if asked[options] != 1 {
				t.Errorf("%d exchanges with the options %x", asked[options], options)
			}
		}
		checkNoCalls(t, c)
	})
}

// TestOptionsRefresh: a refresh carries the options, whatever becomes of the query that caused it.
func TestOptionsRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		c := newCache(nil, Options{Go: func(f func(context.Context)) bool {
			wg.Go(func() { f(context.Background()) })
			return true
		}})
		resp := response(t, optioned(t, ""), message{answer: []string{addr}})
		q, begin := optioned(t, subnetOne), make(chan struct{})
		c.Refresh(q, func(_ context.Context, q *wire.Query) (wire.Response, error) {
			<-begin
			if string(q.Options) != subnetOne {
				t.Errorf("refreshed with the options %x", q.Options)
			}
			return resp, nil
		})
		clear(q.Options)
		close(begin)
		wg.Wait()
		if answer(t, c, optioned(t, subnetOne)) == nil || answer(t, c, optioned(t, "")) != nil {
			t.Error("the refreshed answer is not where it belongs")
		}
	})
}

// TestOptionsNotCut: NXDOMAIN for a query with options denies nothing for others, and is inferred for none.
func TestOptionsNotCut(t *testing.T) {
	cfg := defaults()
	cfg.NXDomainCut = true
	c := newCache(cfg, Options{})
	denied := message{rcode: dns.RcodeNameError, authority: []string{"example. 300 SOA ns.example. host.example. 1 2 3 4 300"}}
	below := question(t, "a.www.example.", dns.TypeA)
	fetch(t, c, optioned(t, subnetOne), denied)
	if m := answer(t, c, below); m != nil {
		t.Errorf("denied by an answer for one client:\n%s", m)
	}
	fetch(t, c, optioned(t, ""), denied)
	if answer(t, c, below) == nil {
		t.Fatal("not denied by an answer for all")
	}
	below.Options = []byte(subnetOne)
	if m := answer(t, c, below); m != nil {
		t.Errorf("a query with options is denied by another answer:\n%s", m)
	}
}

// TestOptionsNotSaved: a snapshot has no answers that were fetched with options, as a reader could not tell
// whom they are for.
func TestOptionsNotSaved(t *testing.T) {
	c := newCache(nil, Options{})
	fetch(t, c, optioned(t, subnetOne), message{answer: []string{addr}})
	fetch(t, c, question(t, "other.example.", dns.TypeA), message{answer: []string{"other.example. 300 A 192.0.2.1"}})
	var b bytes.Buffer
	if n, err := Write(t.Context(), &b, map[string]*Cache{"c": c}); n != 1 || err != nil {
		t.Errorf("%d entries written, %v", n, err)
	}
}

// TestOptionsStale: an expired answer is served to clients with its options only.
func TestOptionsStale(t *testing.T) {
	cfg, clock := defaults(), newManualClock()
	cfg.Stale.For, cfg.Stale.TTL = time.Hour, 30*time.Second
	c := newCache(cfg, Options{Clock: clock.now})
	fetch(t, c, optioned(t, subnetOne), message{answer: []string{addr}})
	clock.advance(10 * time.Minute)
	if answer(t, c, optioned(t, subnetTwo)) != nil || answer(t, c, optioned(t, "")) != nil {
		t.Error("an expired answer of another client is served")
	}
	q := optioned(t, subnetOne)
	r := reply(q)
	if _, err := c.Fetch(t.Context(), q, r, func(context.Context, *wire.Query) (wire.Response, error) {
		return wire.Response{}, errUpstream
	}); err != nil {
		t.Fatalf("fetching: %v", err)
	}
	if m := replyMsg(t, r); len(m.Answer) != 1 {
		t.Errorf("the client's own expired answer is not served:\n%s", m)
	}
}
