// Inside the package: see simulated_test.go.

package upstream

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/test/soak"
)

// silentBudget drops the queries beyond a rate, as a cloud does, and counts them.
type silentBudget struct {
	perSecond, burst float64

	tokens  float64
	last    time.Time
	dropped uint64
	reads   int
}

func (b *silentBudget) lose(now time.Time) bool {
	b.tokens = min(b.burst, b.tokens+b.perSecond*now.Sub(b.last).Seconds())
	b.last = now
	if b.tokens < 1 {
		b.dropped++
		return true
	}
	b.tokens--
	return false
}

// readDrops returns [BudgetOptions.Drops] that reads b's counter; via's lock guards it.
func (b *silentBudget) readDrops(via *simulated) func(netip.Addr) (func() (uint64, error), error) {
	return func(netip.Addr) (func() (uint64, error), error) {
		return func() (uint64, error) {
			via.mu.Lock()
			defer via.mu.Unlock()
			b.reads++
			return b.dropped, nil
		}, nil
	}
}

// readCount returns how often the counter was read.
func (b *silentBudget) readCount(via *simulated) int {
	via.mu.Lock()
	defer via.mu.Unlock()
	return b.reads
}

// TestAutoFindsBudget: ten clients ask for 300 names a second each through a network that silently drops what exceeds 1,000 a
// second. Within ten seconds, the agent sends hardly more than that, and not much less.
func TestAutoFindsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seconds := soak.Choose(20, 30)
		network := &silentBudget{perSecond: 1000, burst: 100, last: time.Now()}
		via := newSimulated(2 * time.Millisecond)
		via.lose = network.lose
		budgets := NewBudgets(BudgetOptions{Drops: network.readDrops(via)})
		p := newSimulatedPool(simulatedTo(config.MaxRate{Auto: true}, simulatedServer), Options{Budgets: budgets}, via)
		defer p.Close()
		start := time.Now()
		var all sync.WaitGroup
		for c := range share.Client(10) {
			all.Go(func() { offer(t, p, c+1, 300, time.Duration(seconds)*time.Second, func(time.Duration, error) {}) })
		}
		all.Wait()
		var total, lost int
		for i := 10; i < seconds; i++ {
			from := start.Add(time.Duration(i) * time.Second)
			n := via.countBetween(from, from.Add(time.Second))
			if n > 1100 || n < 450 {
				t.Errorf("%d queries left in second %d, want between half of the budget of 1000 and little more than it", n, i)
			}
			total += n
		}
		for _, at := range via.lost {
			if at.Sub(start) >= 10*time.Second {
				lost++
			}
		}
		t.Logf("%d queries a second left after 10 seconds, %.2f %% of them were dropped", total/(seconds-10), 100*float64(lost)/float64(total))
		if total < (seconds-10)*700 {
			t.Errorf("%d queries a second left, want at least 700 of the budget of 1000", total/(seconds-10))
		}
		if lost > total/100 {
			t.Errorf("%d of %d queries were dropped after 10 seconds, want at most 1 %%", lost, total)
		}
		if s := p.Stats().Servers[0].Budget; !s.Auto || s.Limit < 450 || s.Limit > 1100 {
			t.Errorf("the budget is %+v", s)
		}
	})
}

// TestAutoReadsWhileSending: the counter is read once when the pool opens, then once a second while queries are
// sent, and not while there are none. Without drops there is no limit.
func TestAutoReadsWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &silentBudget{perSecond: 1000, burst: 100, last: time.Now()}
		via := newSimulated(time.Millisecond)
		via.lose = network.lose
		p := newSimulatedPool(simulatedTo(config.MaxRate{Auto: true}, simulatedServer), Options{Budgets: NewBudgets(BudgetOptions{Drops: network.readDrops(via)})}, via)
		defer p.Close()
		time.Sleep(time.Minute)
		if n := network.readCount(via); n != 1 {
			t.Errorf("the counter was read %d times without queries, want once", n)
		}
		offer(t, p, 1, 10, 5*time.Second, func(_ time.Duration, err error) { mustBe(t, "a query", err, nil) })
		time.Sleep(time.Minute)
		if n := network.readCount(via); n < 6 || n > 8 {
			t.Errorf("the counter was read %d times after 5 seconds with queries, want 6 to 8", n)
		}
		if s := p.Stats().Servers[0].Budget; s == nil || s.Limit != 0 || !s.Auto || s.Used != 0 {
			t.Errorf("without drops the budget is %+v, want no limit", s)
		}
	})
}

// TestAutoBelowFixed: with both, the lower limit applies, and the floor keeps the agent alive whoever causes the drops.
func TestAutoBelowFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &silentBudget{perSecond: 0, last: time.Now()} // drops all
		via := newSimulated(time.Millisecond)
		via.lose = network.lose
		budgets := NewBudgets(BudgetOptions{Drops: network.readDrops(via)})
		p := newSimulatedPool(simulatedTo(config.MaxRate{Auto: true}, simulatedServer), Options{Budgets: budgets}, via)
		defer p.Close()
		fixed := newSimulatedPool(simulatedTo(config.MaxRate{PerSecond: 300, Burst: 15}, simulatedServer), Options{Budgets: budgets}, via)
		defer fixed.Close()
		if s := p.Stats().Servers[0].Budget; s.Limit != 300 || !s.Auto {
			t.Errorf("before a drop the budget is %+v, want a limit of 300", s)
		}
		offer(t, p, 1, 500, 10*time.Second, func(time.Duration, error) {})
		if s := fixed.Stats().Servers[0].Budget; s.Limit != minAutoLimit {
			t.Errorf("with each query dropped the limit is %v, want %d", s.Limit, minAutoLimit)
		}
	})
}

// TestAutoWithoutCounter: one log line says why there is no limit.
func TestAutoWithoutCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		for _, drops := range []func(netip.Addr) (func() (uint64, error), error){
			nil,
			func(netip.Addr) (func() (uint64, error), error) { return nil, errors.New("no such counter") },
			func(netip.Addr) (func() (uint64, error), error) {
				return func() (uint64, error) { return 0, errors.New("no such counter") }, nil
			},
		} {
			log.Reset()
			via := newSimulated(time.Millisecond)
			budgets := NewBudgets(BudgetOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), Drops: drops})
			p := newSimulatedPool(simulatedTo(config.MaxRate{Auto: true}, simulatedServer), Options{Budgets: budgets}, via)
			offer(t, p, 1, 100, 3*time.Second, func(_ time.Duration, err error) { mustBe(t, "a query", err, nil) })
			p.Close()
			if n := strings.Count(log.String(), "max_rate auto sets no limit"); n != 1 || !strings.Contains(log.String(), simulatedServer) {
				t.Errorf("%d lines say that there is no limit, want one:\n%s", n, log.String())
			}
		}
	})
}
