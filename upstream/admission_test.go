// Inside the package: see simulated_test.go.

package upstream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// ask makes an exchange of a client.
func ask(t *testing.T, p *Pool, ctx context.Context, c share.Client) error {
	t.Helper()
	_, err := p.ExchangeFrom(ctx, question(t, "a.test."), From{Client: c})
	return err
}

// TestSlotsWait: a client that has many queries in flight leaves slots for others. Queries beyond the slots wait, and the clients take
// turns; what has waited for the read timeout fails with ErrBusy, which is a local error.
func TestSlotsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Second)
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, simulatedServer), Options{}, via)
		defer p.Close()
		p.servers()[0].udpGate = newGate(8)
		start := time.Now()
		var all sync.WaitGroup
		for i := range 24 { // seven in each second: the last three beyond the read timeout of 2 seconds
			all.Go(func() {
				err := ask(t, p, t.Context(), 1)
				if took := time.Since(start); err != nil && took != 2*time.Second {
					t.Errorf("query %d failed after %v, want 2s", i, took)
				} else if err != nil {
					mustBe(t, "a query that has waited", err, ErrBusy)
					mustBe(t, "a query that has waited", err, ErrLocal)
				}
			})
		}
		synctest.Wait()
		count(t, len(via.queries()), 7, "queries of one client are in flight: 7 of 8")
		for range 2 {
			all.Go(func() {
				began := time.Now()
				if err := ask(t, p, t.Context(), 2); err != nil || time.Since(began) > 2*time.Second {
					t.Errorf("another client: %v after %v", err, time.Since(began))
				}
			})
		}
		all.Wait()
		got := map[share.Client]int{}
		for _, q := range via.queries() {
			got[q.client]++
		}
		if got[1] < 14 || got[1] > 21 || got[2] != 2 {
			t.Errorf("the clients sent %d and %d queries", got[1], got[2])
		}
		s := p.servers()[0]
		if s.udpGate.slots.InUse() != 0 || s.udpGate.slots.Waiting() != 0 || s.inFlight.Load() != 0 {
			t.Errorf("%d slots are in use, %d wait and %d are in flight in the end", s.udpGate.slots.InUse(), s.udpGate.slots.Waiting(), s.inFlight.Load())
		}
	})
}

// TestSlotsAndTokens: a query that waits for a slot keeps no token, so that no more queries than the budget leave when
// many slots become free at once.
func TestSlotsAndTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A query without a reply after a second would be repeated over TCP, which takes a token.
		via := newSimulated(defaultResendDelay - 100*time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 10, Burst: 8}, simulatedServer), Options{}, via)
		defer p.Close()
		p.servers()[0].udpGate = newGate(8)
		var all sync.WaitGroup
		for c := range share.Client(8) {
			for range 3 {
				all.Go(func() { _ = ask(t, p, t.Context(), c+1) })
			}
		}
		all.Wait()
		start := via.queries()[0].at
		count(t, via.countBetween(start, start.Add(time.Second+500*time.Millisecond)), 16, "queries left in 1.5 seconds: 16: all slots twice")
		if n := via.mostInOneSecond(); n > 18 {
			t.Errorf("%d queries left within a second, want at most 18", n)
		}
	})
}

// TestSlotsCancelled: a query that waits for a slot ends with its context and with its Pool.
func TestSlotsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Minute)
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, simulatedServer), Options{}, via)
		p.servers()[0].udpGate = newGate(1)
		var all sync.WaitGroup
		var inFlight, cancelled, waiting error
		all.Go(func() { inFlight = ask(t, p, t.Context(), 1) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() { cancelled = ask(t, p, ctx, 2) })
		all.Go(func() { waiting = ask(t, p, t.Context(), 3) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		mustBe(t, "a cancelled query", cancelled, context.Canceled)
		count(t, p.servers()[0].udpGate.slots.Waiting(), 1, "queries wait")
		p.Close()
		all.Wait()
		mustBe(t, "a query in flight when the pool closes", inFlight, ErrClosed)
		mustBe(t, "a query that waits when the pool closes", waiting, ErrClosed)
	})
}

// TestMaxConcurrentDeadline: the deadline of a query includes the time in which it has waited for its turn.
func TestMaxConcurrentDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(1500 * time.Millisecond)
		cfg := simulatedTo(config.MaxRate{}, simulatedServer)
		cfg.MaxConcurrent = 1
		p := newSimulatedPool(cfg, Options{Deadline: 2500 * time.Millisecond}, via)
		defer p.Close()
		start := time.Now()
		var first sync.WaitGroup
		first.Go(func() { noError(t, ask(t, p, t.Context(), 1)) })
		synctest.Wait()
		via.mu.Lock()
		via.silent = true // to the second query
		via.mu.Unlock()
		mustBe(t, "the second query", ask(t, p, t.Context(), 2), ErrTimeout)
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("the second query failed after %v, want 2.5s", took)
		}
		first.Wait()
	})
}

// TestMaxConcurrentWaits: queries beyond max_concurrent wait for their turn, up to the read timeout.
func TestMaxConcurrentWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(1500 * time.Millisecond)
		cfg := simulatedTo(config.MaxRate{}, simulatedServer)
		cfg.MaxConcurrent = 1
		p := newSimulatedPool(cfg, Options{}, via)
		start := time.Now()
		var all sync.WaitGroup
		var errs [3]error
		var took [3]time.Duration
		for i := range errs {
			all.Go(func() {
				errs[i] = ask(t, p, t.Context(), share.Client(i+1))
				took[i] = time.Since(start)
			})
			synctest.Wait()
		}
		all.Wait()
		if errs[0] != nil || errs[1] != nil || took[0] != 1500*time.Millisecond || took[1] != 3*time.Second {
			t.Errorf("the first queries: %v after %v, %v after %v; want answers after 1.5s and 3s", errs[0], took[0], errs[1], took[1])
		}
		if mustBe(t, "the third query", errs[2], ErrTooMany); took[2] != 2*time.Second || p.Stats().MaxConcurrentRejects != 1 {
			t.Errorf("the third query failed after %v, want 2s, and %d are counted", took[2], p.Stats().MaxConcurrentRejects)
		}
		all.Go(func() { errs[0] = ask(t, p, t.Context(), 1) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() { errs[1] = ask(t, p, ctx, 2) })
		all.Go(func() { errs[2] = ask(t, p, t.Context(), 3) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		p.Close()
		all.Wait()
		mustBe(t, "a query in flight when the pool closes", errs[0], ErrClosed)
		mustBe(t, "a cancelled query", errs[1], context.Canceled)
		mustBe(t, "a query that waits when the pool closes", errs[2], ErrClosed)
	})
}
