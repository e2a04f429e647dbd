// Inside the package: it reads the outage detection and the store's clock.

package cache

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestStaleDuringOutage has all upstreams silent for a minute. Every name is answered: the
// first query within the client timeout, later ones at once. After the outage clients soon
// receive fresh answers.
func TestStaleDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const names = 50
		c := staleCache(t, fallback, Options{})
		var queries [names]*wire.Query
		for i := range queries {
			queries[i] = question(t, fmt.Sprintf("n.d%d.example.", i), dns.TypeA)
			fetch(t, c, queries[i], message{answer: []string{fmt.Sprintf("n.d%d.example. %d IN A %s", i, 5+i, staleAddr)}})
		}
		u := &fakeUpstream{t: t, err: errUpstream, after: 5 * time.Second}
		ask := func(ctx context.Context, q *wire.Query) (wire.Response, error) {
			if _, err := u.ask(ctx, q); err != nil {
				return wire.Response{}, err
			}
			return response(t, q, message{answer: []string{nameOf(t, q) + " 300 IN A " + freshAddr}}), nil
		}
		waited := make([]int, names)
		hurry := 0
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(100 * time.Millisecond) {
			for i, q := range queries {
				g := resolve(t, c, q, ask)
				if g.Addr != staleAddr || g.Err != nil || g.Took > fallback.ClientTimeout {
					t.Fatalf("name %d after %v: %+v", i, time.Since(start), g)
				}
				if g.Took > 0 {
					waited[i]++
				}
				if g.Took == outageTimeout {
					hurry++
				}
			}
		}
		for i, n := range waited {
			if n > 1 {
				t.Errorf("name %d was waited for %d times", i, n)
			}
		}
		if hurry < names/2 {
			t.Errorf("%d clients waited for a moment only, of %d that waited", hurry, names)
		}
		u.replaceBy(&fakeUpstream{after: 2 * time.Millisecond})
		for range 70 { // the last failing exchanges take five seconds
			for _, q := range queries {
				resolve(t, c, q, ask)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for i, q := range queries {
			if g := resolve(t, c, q, ask); g.Addr != freshAddr || g.Took > 0 {
				t.Errorf("name %d is still %+v", i, g)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		checkNoCalls(t, c)
		c.store.check(t)
	})
}

func nameOf(t testing.TB, q *wire.Query) string {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(q.Packet); err != nil {
		t.Error(err)
		return ""
	}
	return m.Question[0].Name
}

// TestRefreshAfterRecovery: once an upstream has answered for any name, names that failed in
// the outage are refreshed although their backoff is not over.
func TestRefreshAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := staleCache(t, fallback, Options{})
		for i := range outageThreshold {
			name := fmt.Sprintf("n.d%d.example.", i)
			fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 5 IN A " + staleAddr}})
		}
		time.Sleep(10 * time.Second)
		broken := &fakeUpstream{t: t, err: errUpstream}
		fail := func(n int) {
			for i := range n {
				resolve(t, c, question(t, fmt.Sprintf("n.d%d.example.", i), dns.TypeA), broken.ask)
			}
		}
		q := question(t, "n.d0.example.", dns.TypeA)
		other := func() {
			time.Sleep(2 * time.Second)
			fetch(t, c, question(t, fmt.Sprintf("other%d.example.", c.store.clock()), dns.TypeA), message{})
			time.Sleep(2 * time.Second)
		}
		fail(outageThreshold - 1)
		other()
		if n := broken.count(); lookup(c, q, reply(q), c.store.clock()) != answered || n != outageThreshold-1 {
			t.Errorf("names that are broken by themselves are not left alone, after %d asks", n)
		}
		time.Sleep(30 * time.Second)
		fail(outageThreshold - 1) // in the background
		synctest.Wait()
		resolve(t, c, question(t, "n.d3.example.", dns.TypeA), broken.ask)
		for range 3 { // seconds, in each of which one asks
			told := 0
			for i := range 20 {
				if lookup(c, question(t, fmt.Sprintf("n.d%d.example.", i%outageThreshold), dns.TypeA), reply(q), c.store.clock()) == needsRefresh {
					told++
				}
				time.Sleep(probeInterval / 20)
			}
			if told != 1 {
				t.Errorf("%d are told to ask in a second of an outage", told)
			}
		}
		other()
		if lookup(c, q, reply(q), c.store.clock()) != needsRefresh {
			t.Error("the outage is over, and the name rests")
		}
		if lookup(c, q, reply(q), c.store.clock()) != answered {
			t.Error("a second client is told to ask")
		}
	})
}

// TestWhoseFailuresAreAnOutage: names of which only one tenant's domain fails, or to which the servers reply at all, make nobody
// else get expired answers soon.
func TestWhoseFailuresAreAnOutage(t *testing.T) {
	type client = string
	tenant, other, victim := "10.0.0.9", "10.0.0.8", "10.0.0.1"
	servfail := func(ctx context.Context, q *wire.Query) (wire.Response, error) {
		return wire.ErrorResponse(q, wire.ServFail), nil
	}
	silent := func(context.Context, *wire.Query) (wire.Response, error) { return wire.Response{}, errUpstream }
	unreachable := func(context.Context, *wire.Query) (wire.Response, error) {
		return wire.Response{}, ErrUnreachable
	}
	for name, tt := range map[string]struct {
		format  string // of the names that fail
		ask     ExchangeFunc
		clients []client
		outage  bool // for the victim
	}{
		"SERVFAIL":                    {"n.d%d.example.", servfail, []client{tenant, other, victim}, false},
		"one domain":                  {"n%d.broken.example.", silent, []client{tenant, other, victim}, false},
		"one client's domains":        {"n.d%d.example.", silent, []client{tenant}, false},
		"its own domains":             {"n.d%d.example.", silent, []client{victim}, true},
		"two clients' domains":        {"n.d%d.example.", silent, []client{tenant, other}, true},
		"two clients, no server":      {"n.d%d.example.", unreachable, []client{tenant, other}, true},
		"one client, more than there": {"n.d%d.example.", silent, []client{tenant, tenant, tenant, tenant, victim}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := staleCache(t, fallback, Options{})
				var names []string
				for i := range 8 {
					names = append(names, fmt.Sprintf(tt.format, i))
					fetch(t, c, question(t, names[i], dns.TypeA), message{answer: []string{names[i] + " 5 IN A " + staleAddr}})
				}
				time.Sleep(10 * time.Second)
				places := share.NewLimiter(10)
				as := func(who client, f func(ctx context.Context)) {
					var place share.Place
					if !places.Acquire(&place, netip.MustParseAddr(who)) {
						t.Fatal("no place")
					}
					defer places.Release(&place)
					f(&place)
				}
				for i, name := range names {
					as(tt.clients[i%len(tt.clients)], func(ctx context.Context) {
						q := question(t, name, dns.TypeA)
						if _, err := c.Fetch(ctx, q, reply(q), tt.ask); err != nil {
							t.Error(err)
						}
					})
				}
				as(victim, func(ctx context.Context) {
					if got := c.clientTimeout(ctx) == outageTimeout; got != tt.outage {
						t.Errorf("an outage for the victim: %t, want %t", got, tt.outage)
					}
				})
				synctest.Wait()
			})
		})
	}
}
