// Inside the package: see simulated_test.go.

package upstream

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// outcomes counts the ends of exchanges.
type outcomes struct {
	mu             sync.Mutex
	offered, ok    int
	withinSecond   int
	slowest        time.Duration // of the answers
	soonestFailure time.Duration // of the others
}

func (o *outcomes) add(took time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch o.offered++; {
	case err != nil && (o.soonestFailure == 0 || took < o.soonestFailure):
		o.soonestFailure = took
	case err == nil:
		o.ok++
		o.slowest = max(o.slowest, took)
		if took <= time.Second+2*time.Millisecond { // the server's own time
			o.withinSecond++
		}
	}
}

// TestOverloadIsFresh: what clients get that ask for three times their share comes within a second, not at the end of
// the time-out, whatever they wait for; and it is as much as the server could answer.
func TestOverloadIsFresh(t *testing.T) {
	const clients, seconds = 4, 6
	for name, tt := range map[string]struct {
		rate          config.MaxRate
		maxConcurrent int
		delay         time.Duration
		gate          int
	}{
		"max_rate":       {rate: config.MaxRate{PerSecond: 120, Burst: 6}, delay: 2 * time.Millisecond},
		"in flight":      {delay: 100 * time.Millisecond, gate: 12},
		"max_concurrent": {delay: 100 * time.Millisecond, maxConcurrent: 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				via := newSimulated(tt.delay)
				cfg := simulatedTo(tt.rate, simulatedServer)
				cfg.MaxConcurrent = tt.maxConcurrent
				p := newSimulatedPool(cfg, Options{}, via)
				defer p.Close()
				if tt.gate > 0 {
					p.servers()[0].udpGate = newGate(tt.gate)
				}
				var got [clients]outcomes
				var all sync.WaitGroup
				for c := range clients {
					all.Go(func() {
						time.Sleep(time.Duration(c) * time.Millisecond)
						offer(t, p, share.Client(c+1), 90, seconds*time.Second, got[c].add)
					})
				}
				all.Wait()
				for c := range got {
					checkOverload(t, c, &got[c], 30*seconds)
				}
				s := p.servers()[0]
				count(t, s.udpGate.slots.Waiting()+s.budget.queue.Len()+p.limiter.slots.Waiting(), 0, "queries wait after the end")
			})
		})
	}
}

// checkOverload checks what a client got whose share was to answer share queries while it asked.
func checkOverload(t *testing.T, c int, o *outcomes, share int) {
	t.Helper()
	// While it asks, and up to the time-out afterwards.
	if o.ok < share*9/10 || o.ok > share*14/10 {
		t.Errorf("client %d got %d answers, want %d within 10 %% and what it gets after the end", c, o.ok, share)
	}
	if o.withinSecond < share*9/10 {
		t.Errorf("client %d got %d answers within a second, and %d in all; want at least %d", c, o.withinSecond, o.ok, share*9/10)
	}
	if o.soonestFailure != 2*time.Second || o.slowest > 2*time.Second+100*time.Millisecond {
		t.Errorf("client %d: a query failed after %v, and one was answered after %v, want 2s and less", c, o.soonestFailure, o.slowest)
	}
}

// TestBurstIsAnswered: a burst that the client's share serves within the time-out is answered in full, together with what the
// client asks meanwhile, and while others ask for more than their shares.
func TestBurstIsAnswered(t *testing.T) {
	for name, tt := range map[string]struct {
		burst, perSecond int
		others           int
	}{
		"alone, almost the time-out":   {burst: 230},
		"alone, with more queries":     {burst: 120, perSecond: 50},
		"beside others":                {burst: 50, others: 3},
		"beside others, mostly steady": {burst: 20, perSecond: 25, others: 3},
		"beside others, at its share":  {burst: 29, perSecond: 28, others: 3},
		"beside others, little else":   {burst: 44, perSecond: 5, others: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				via := newSimulated(time.Millisecond)
				p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 120, Burst: 6}, simulatedServer), Options{}, via)
				defer p.Close()
				var all sync.WaitGroup
				var got, ignored outcomes
				for c := range tt.others {
					all.Go(func() { offer(t, p, share.Client(c+2), 90, 9*time.Second, ignored.add) })
				}
				time.Sleep(3 * time.Second)
				if tt.perSecond > 0 {
					all.Go(func() { offer(t, p, 1, tt.perSecond, 5*time.Second, got.add) })
				}
				for i := range tt.burst {
					all.Go(func() {
						start := time.Now()
						_, err := p.ExchangeFrom(context.Background(), question(t, fmt.Sprintf("b%d.test.", i)), From{Client: 1})
						got.add(time.Since(start), err)
					})
				}
				all.Wait()
				if want := tt.burst + 5*tt.perSecond; got.ok != want {
					t.Errorf("%d of %d queries were answered, the slowest after %v", got.ok, want, got.slowest)
				}
			})
		})
	}
}

// TestOrderWithinShare: while a client asks for no more than its share, its queries are sent in order, even those
// of a burst that takes more than half of the time-out.
func TestOrderWithinShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		via := newSimulated(time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 100, Burst: 5}, simulatedServer), Options{}, via)
		defer p.Close()
		var all sync.WaitGroup
		var mu sync.Mutex
		var order []int
		ask := func(i int) {
			all.Go(func() {
				if _, err := p.ExchangeFrom(context.Background(), question(t, "a.test."), From{Client: 1}); err != nil {
					t.Errorf("query %d: %v", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
		}
		n := 0
		for ; n < 130; n++ {
			ask(n)
		}
		for ; n < 400; n++ {
			time.Sleep(time.Second / 60)
			ask(n)
		}
		all.Wait()
		for i, got := range order {
			if got < i-5 || got > i+5 { // the burst of the bucket is sent at once
				t.Fatalf("query %d was answered as number %d", got, i)
			}
		}
	})
}
