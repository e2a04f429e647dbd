// Inside the package: see simulated_test.go.

package upstream

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// TestBudgetOfTwoProcesses: while one process takes over from another and gives back, both together never send more than
// the budget, and hardly less; what waits in the one that has no part is sent when it gets one.
func TestBudgetOfTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst = 200, 10
		via := newSimulated(time.Millisecond)
		open := func() (*Budgets, *Pool) {
			bs := NewBudgets(BudgetOptions{})
			return bs, newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: perSecond, Burst: burst}, simulatedServer), Options{Budgets: bs}, via)
		}
		before, old := open()
		defer old.Close()
		time.Sleep(time.Second) // the bucket is full
		after := NewBudgets(BudgetOptions{})
		after.SetShare(NoBudget)
		next := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: perSecond, Burst: burst}, simulatedServer), Options{Budgets: after}, via)
		defer next.Close()

		var all sync.WaitGroup
		begin := time.Now()
		flood := func(p *Pool, c share.Client) {
			all.Go(func() { offer(t, p, c, 300, 8*time.Second, func(time.Duration, error) {}) })
		}
		flood(old, 1)
		flood(next, 2)
		steps := []struct {
			after       time.Duration
			old, next   BudgetShare
			least, most int // queries of next until the following step
		}{
			{500 * time.Millisecond, WholeBudget, NoBudget, 0, 0},
			{1500 * time.Millisecond, HalfBudget, HalfBudget, 140, 156},
			{time.Second, NoBudget, WholeBudget, 195, 210},
			{time.Second, NoBudget, HalfBudget, 95, 105},
			{time.Second, HalfBudget, HalfBudget, 95, 105},
			{time.Second, WholeBudget, NoBudget, 0, 0},
		}
		for i, step := range steps {
			before.SetShare(step.old)
			after.SetShare(step.next)
			start := time.Now()
			time.Sleep(step.after)
			if n := countOf(via, 2, start); n < step.least || n > step.most {
				t.Errorf("step %d: the second process sent %d queries, want %d to %d", i, n, step.least, step.most)
			}
		}
		if before.Share() != WholeBudget || after.Share() != NoBudget {
			t.Errorf("the shares are %v and %v", before.Share(), after.Share())
		}
		if n := via.mostInOneSecond(); n > perSecond+burst {
			t.Errorf("%d queries left within one second, want at most %d", n, perSecond+burst)
		}
		if n := via.countBetween(begin, begin.Add(3*time.Second)); n < 3*perSecond*95/100 {
			t.Errorf("%d queries left in three seconds, want %d", n, 3*perSecond)
		}
		all.Wait()
	})
}

// countOf returns how many queries of a client have left since a moment.
func countOf(via *simulated, c share.Client, since time.Time) (n int) {
	for _, q := range via.queries() {
		if q.client == c && q.at.After(since) {
			n++
		}
	}
	return n
}
