package upstream

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestTrust follows one server through what may happen to it: m is a query it lets
// pass, a its answer to one, e a SERVFAIL, p its reply to a probe. A capital letter
// says that it is doubted after that.
func TestTrust(t *testing.T) {
	for _, events := range []string{
		"aaa", "mma", "mmM", "mmMM", "mmMa", "mmMam", "mmMamm", "mmMammM",
		"mmMpM",   // pardoned, and not better
		"mmMpMPP", // then probes don't help
		"mmMpMPa", // a reply does
		"mmMpMPammMp",
		"mmMpammM",
		"eeeeeeea", "eeeeeeeEEa", "eeeeeeeEPEa", "mmMe", "eeeeeeeEMMMEa", "eemmMea",
	} {
		var s trust
		for i, event := range events {
			switch event | 0x20 {
			case 'm':
				if s.miss() {
					s.doubt()
				}
			case 'a':
				s.answers(wire.NXDomain, 1)
			case 'e':
				if s.answers(wire.ServFail, 1) {
					s.doubt()
				}
			case 'p':
				s.pardon(1)
			}
			if want := event&0x20 == 0; s.doubted.Load() != want {
				t.Errorf("after %s of %s it is doubted: %t, want %t", events[:i+1], events, !want, want)
				break
			}
		}
	}
}

// TestBudget holds that no order of earning and spending gives more than the burst and
// one in twenty.
func TestBudget(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBudget()
		earned, spent := 0, 0
		for range 5000 {
			if random.IntN(1+int(seed%30)) > 0 {
				b.earn()
				earned++
			} else if b.spend() {
				spent++
			}
			if spent > burst+earned/perQuery {
				t.Fatalf("seed %d: %d spent after %d earned", seed, spent, earned)
			}
		}
	}
	b := newBudget()
	for range burst {
		if !b.spend() {
			t.Fatal("the burst is not there at the start")
		}
	}
	for i := range perQuery {
		if b.spend() {
			t.Fatalf("spent one after %d queries", i)
		}
		b.earn()
	}
	if !b.spend() {
		t.Errorf("nothing to spend after %d queries", perQuery)
	}
}

func TestBudgetOfMany(t *testing.T) {
	const each = 20000
	b := newBudget()
	var spent atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range each {
				b.earn()
				if b.spend() {
					spent.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n, most := spent.Load(), int64(burst+8*each/perQuery); n > most || n < burst {
		t.Errorf("%d were spent, want %d to %d", n, burst, most)
	}
}
