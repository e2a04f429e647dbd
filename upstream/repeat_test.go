// Inside the package: the transports are simulated.

package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// TestRateLimitedReplies: a server that drops most of its replies over UDP fails no query. What is repeated over TCP costs no
// hedge budget, and once the server is known to drop replies it is repeated soon.
func TestRateLimitedReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queries = 2000
		s := newSimulated(2 * time.Millisecond)
		n := 0
		s.lose = func(time.Time) bool { n++; return n > 100 && n%3 != 0 }
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		defer p.Close()
		late := 0
		var mu sync.Mutex
		offer(t, p, 1, 200, queries/200*time.Second, func(took time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil || took > time.Second+maxCheckInterval {
				t.Errorf("%v after %v", err, took)
			}
			if took > 100*time.Millisecond {
				late++
			}
		})
		if late > queries/20 {
			t.Errorf("%d of %d queries were late", late, queries)
		}
	})
}

// TestRepeatWithoutTCP: where TCP is silent, for example because a firewall drops it, a query that is lost over UDP is repeated over
// UDP, and further ones without trying TCP first.
func TestRepeatWithoutTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tcp := newSimulated(2*time.Millisecond), newSimulated(0)
		var lose atomic.Bool
		s.lose = func(time.Time) bool { return lose.Swap(false) }
		tcp.silent = true
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		defer p.Close()
		p.servers()[0].tcp = tcp
		for i := range 200 {
			lose.Store(i >= 100 && i%50 == 0)
			took, err := askFor(t, p, 1)
			if err != nil || took > 600*time.Millisecond {
				t.Errorf("query %d: %v after %v", i, err, took)
			}
		}
		count(t, len(tcp.queries()), 1, "queries over TCP")
	})
}

// TestSlowNamesOfOneClient: one client's slow names neither delay the repetition of what others have lost nor use up the credit
// for it.
func TestSlowNamesOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attacker, victim = 9, 1
		s := newSimulated(2 * time.Millisecond)
		s.delayFor = func(c share.Client) time.Duration {
			if c == attacker {
				return 1500 * time.Millisecond
			}
			return 2 * time.Millisecond
		}
		var lose atomic.Bool
		s.lose = func(time.Time) bool { return lose.Swap(false) }
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		defer p.Close()
		separateSlots(p, attacker, victim)
		tcp := p.servers()[0].tcp.(*simulated)
		tcp.delayFor = s.delayFor
		var attack sync.WaitGroup
		attack.Go(func() { offer(t, p, attacker, 50, 30*time.Second, func(time.Duration, error) {}) })
		for i := range 400 {
			time.Sleep(51 * time.Millisecond)
			lose.Store(i >= 200 && i%50 == 0)
			took, err := askFor(t, p, victim)
			if most := 2*minResendDelay + maxCheckInterval; err != nil || took > most {
				t.Errorf("query %d: %v after %v, want %v at most", i, err, took, most)
			}
		}
		attack.Wait()
	})
}

// TestUnknownClientBesideSlowNames: a client without measurements of its own is not delayed without bound either.
func TestUnknownClientBesideSlowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(1900 * time.Millisecond)
		var lose atomic.Bool
		s.lose = func(time.Time) bool { return lose.Swap(false) }
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		defer p.Close()
		separateSlots(p, 9, 1)
		p.servers()[0].tcp = newSimulated(2 * time.Millisecond)
		offer(t, p, 9, 50, 10*time.Second, func(time.Duration, error) {})
		s.delay = 2 * time.Millisecond
		lose.Store(true)
		if took, err := askFor(t, p, 1); err != nil || took > 750*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// separateSlots gives two clients different slots: one pair in clientSlots shares one by chance.
func separateSlots(p *Pool, a, b share.Client) {
	for p.slotOf(clientAddr(a)) == p.slotOf(clientAddr(b)) {
		p.seed[0]++
	}
}
