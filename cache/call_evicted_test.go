// Inside the package: it checks that no call is left in a shard.

package cache

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// evictable is a client whose place a test takes away.
type evictable struct {
	share.Place
	limiter *share.Limiter
	done    chan struct{}
	got     clientResult
}

func (e *evictable) evict() { e.limiter.Revoke(&e.Place) }

// fetchEvictable starts a client that asks for www.example. It returns when the client waits.
func fetchEvictable(t *testing.T, c *Cache, exchange ExchangeFunc) *evictable {
	t.Helper()
	e := &evictable{limiter: share.NewLimiter(1), done: make(chan struct{})}
	e.limiter.Acquire(&e.Place, netip.MustParseAddr("192.0.2.1"))
	go func() {
		defer close(e.done)
		q := question(t, "www.example.", dns.TypeA)
		r, start := reply(q), time.Now()
		if _, err := c.Fetch(&e.Place, q, r, exchange); err != nil {
			e.got = clientResult{Err: err}
		} else {
			e.got = readResult(t, r)
		}
		e.got.Took = time.Since(start)
		// The next query uses the buffer.
		clear(q.Packet)
	}()
	synctest.Wait()
	return e
}

// result waits for the client's end.
func (e *evictable) result() clientResult {
	<-e.done
	return e.got
}

var asError = cmpopts.EquateErrors()

// TestLeaderEvicted: when the client that exchanges is evicted, the one that waits longest exchanges in its
// place, with its own context, and the others wait on. They get the answer however often that happens.
func TestLeaderEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		var clients []*evictable
		for range 2 * (maxRetries + 2) {
			clients = append(clients, fetchEvictable(t, c, a.run))
		}
		half := len(clients) / 2
		for i, e := range clients[:half] {
			time.Sleep(retryWindow)
			e.evict()
			synctest.Wait()
			if err := e.result().Err; !errors.Is(err, share.ErrEvicted) {
				t.Errorf("client %d is evicted, and gets %v", i, err)
			}
			if n := int(a.calls.Load()); n != i+2 {
				t.Errorf("%d exchanges after the eviction of client %d, want %d", n, i, i+2)
			}
		}
		clients[half+1].evict() // it only waits
		if err := clients[half+1].result().Err; !errors.Is(err, share.ErrEvicted) {
			t.Errorf("a client that waits for another is evicted, and gets %v", err)
		}
		close(a.gate)
		for i, e := range clients[half:] {
			if got := e.result(); i != 1 && (got.Err != nil || got.Addr == "") {
				t.Errorf("client %d gets %+v", half+i, got)
			}
		}
		if n := int(a.calls.Load()); n != half+1 {
			t.Errorf("%d exchanges, want %d", n, half+1)
		}
		checkNoCalls(t, c)
		q := question(t, "www.example.", dns.TypeA)
		if answer(t, c, q) == nil {
			t.Error("the answer is not in the cache")
		}
	})
}

// TestEvictedTogether: a call whose leader and waiters are evicted at the same time ends, leaves no failure,
// and the next client exchanges.
func TestEvictedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		a := newExchangeStub(t)
		for range 100 {
			n := rand.IntN(4) + 1
			var clients []*evictable
			for range n {
				clients = append(clients, fetchEvictable(t, c, a.run))
			}
			var all sync.WaitGroup
			for _, e := range clients {
				all.Go(e.evict)
			}
			all.Wait()
			for _, e := range clients {
				if err := e.result().Err; !errors.Is(err, share.ErrEvicted) {
					t.Errorf("it gets %v", err)
				}
			}
			checkNoCalls(t, c)
		}
		close(a.gate)
		if got := fetchEvictable(t, c, a.run).result(); got.Err != nil {
			t.Errorf("the next client gets %v", got.Err)
		}
	})
}

// TestEvictionsAtRandom: clients come, are evicted and get answers at random times. None but the evicted
// fails, and no call is left.
func TestEvictionsAtRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil, Options{})
		exchange := func(ctx context.Context, q *wire.Query) (wire.Response, error) {
			name := string(q.Name())
			timer := time.NewTimer(time.Duration(rand.IntN(20)) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return wire.Response{}, ctx.Err()
			}
			if name != string(q.Name()) {
				t.Error("the query has changed under the exchange")
			}
			return response(t, q, message{answer: []string{addr}}), nil
		}
		var all sync.WaitGroup
		for range 300 {
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			if rand.IntN(20) == 0 {
				c.Flush([]byte(wire.Root), true)
			}
			e := fetchEvictable(t, c, exchange)
			evicted := rand.IntN(2) == 0
			all.Go(func() {
				if evicted {
					time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
					e.evict()
				}
				if err := e.result().Err; err != nil && !(evicted && errors.Is(err, share.ErrEvicted)) {
					t.Errorf("evicted %v: it gets %v", evicted, err)
				}
			})
		}
		all.Wait()
		checkNoCalls(t, c)
	})
}

// TestEvictedStale: an evicted client gets the expired answer, whether it exchanges or waits, in each mode.
func TestEvictedStale(t *testing.T) {
	untilEnd := fallback
	untilEnd.ClientTimeout = 0
	for name, st := range map[string]config.Stale{"fallback": fallback, "fallback without a timeout": untilEnd, "verify": verify} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				goroutines := func(f func(context.Context)) bool { go f(context.Background()); return true }
				c := staleCache(t, st, Options{Go: goroutines})
				a := newExchangeStub(t)
				first, second := fetchEvictable(t, c, a.run), fetchEvictable(t, c, a.run)
				first.evict()
				second.evict()
				want := clientResult{Addr: staleAddr, TTL: 30}
				for i, e := range []*evictable{first, second} {
					if diff := cmp.Diff(want, e.result(), asError); diff != "" {
						t.Errorf("client %d (-want +got):\n%s", i, diff)
					}
				}
				close(a.gate)
				synctest.Wait()
				checkNoCalls(t, c)
			})
		})
	}
}

// TestBackgroundEvicted: an exchange in the background that is evicted goes on as another one. If there is
// no room for that, clients get the expired answer at once.
func TestBackgroundEvicted(t *testing.T) {
	for name, room := range map[string]bool{"with room": true, "without room": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, place, started := share.NewLimiter(1), new(share.Place), 0
				c := staleCache(t, fallback, Options{Go: func(f func(context.Context)) bool {
					if started++; started > 1 && !room {
						return false
					}
					l.AcquireBackground(place)
					go func() {
						defer l.Release(place)
						f(place)
					}()
					return true
				}})
				a := newExchangeStub(t)
				clients := []*evictable{fetchEvictable(t, c, a.run), fetchEvictable(t, c, a.run)}
				l.Revoke(place)
				synctest.Wait()
				want := clientResult{Addr: staleAddr, TTL: 30}
				if room {
					a.resp = response(t, question(t, "www.example.", dns.TypeA), message{answer: []string{"www.example. 300 IN A " + freshAddr}})
					close(a.gate)
					want = clientResult{Addr: freshAddr, TTL: 300}
				}
				for i, e := range clients {
					if diff := cmp.Diff(want, e.result(), asError); diff != "" {
						t.Errorf("client %d (-want +got):\n%s", i, diff)
					}
				}
				synctest.Wait()
				checkNoCalls(t, c)
			})
		})
	}
}

// TestRefreshEvicted: a refresh that is evicted goes on with a client that waits for it.
func TestRefreshEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, place := share.NewLimiter(1), new(share.Place)
		l.AcquireBackground(place)
		c := newCache(nil, Options{Go: func(f func(context.Context)) bool { go f(place); return true }})
		a := newExchangeStub(t)
		q := question(t, "www.example.", dns.TypeA)
		c.Refresh(q, a.run)
		synctest.Wait()
		e := fetchEvictable(t, c, a.run)
		l.Revoke(place)
		synctest.Wait()
		if n := a.calls.Load(); n != 2 {
			t.Errorf("%d exchanges, want the refresh's and the client's", n)
		}
		close(a.gate)
		if got := e.result(); got.Err != nil || got.Addr == "" {
			t.Errorf("the client gets %+v", got)
		}
		checkNoCalls(t, c)
	})
}

// TestLastWaiterLeaves is this interleaving: the last client that waits is evicted, the leader is evicted and
// hands the call over, and then the client leaves. The call ends.
func TestLastWaiterLeaves(t *testing.T) {
	c := newCache(nil, Options{Clock: newManualClock().now})
	k := c.key(question(t, "www.example.", dns.TypeA))
	s := k.shard.shard
	s.mu.Lock()
	f, _ := s.join(&k)
	_, done := s.join(&k)
	f.waiters++
	s.mu.Unlock()
	s.handOver(f)
	s.leave(f)
	if _, leads := <-done; leads {
		t.Error("the call has a leader")
	}
	checkNoCalls(t, c)
}
