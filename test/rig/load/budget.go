package load

import (
	"sync"
	"time"
)

// Budget is a token bucket like those that cloud networks have for DNS: queries beyond it are dropped, and
// nothing says so. It keeps the time of each query. A Budget is safe for concurrent use.
type Budget struct {
	rate, burst float64

	mu       sync.Mutex
	tokens   float64
	last     time.Duration
	arrivals []time.Duration
	dropped  int
}

// maxArrivals is the number of queries whose times a budget has room for before it allocates.
const maxArrivals = 1 << 16

// NewBudget returns a full bucket of burst queries that gets rate queries a second.
func NewBudget(rate, burst int) *Budget {
	return &Budget{rate: float64(rate), burst: float64(burst), tokens: float64(burst), arrivals: make([]time.Duration, 0, maxArrivals)}
}

// take counts a query that arrived at the time, which is not before that of the last one, and returns whether there is a token for it.
func (b *Budget) take(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.arrivals) > 0 {
		b.tokens = min(b.burst, b.tokens+b.rate*(now-b.last).Seconds())
	}
	b.last, b.arrivals = now, append(b.arrivals, now)
	if b.tokens < 1 {
		b.dropped++
		return false
	}
	b.tokens--
	return true
}

// Arrived returns how many queries have come.
func (b *Budget) Arrived() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.arrivals)
}

// Dropped returns how many queries were dropped.
func (b *Budget) Dropped() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dropped
}

// MostPerSecond returns the number of queries in the second that had most of them. Seconds begin at any time.
func (b *Budget) MostPerSecond() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	most, first := 0, 0
	for i, at := range b.arrivals {
		for at-b.arrivals[first] >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
