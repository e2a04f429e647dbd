package load

import (
	"math/rand/v2"
	"time"
)

// arrivals are the times between queries of a rate. Queries of many clients that know nothing of each
// other arrive at random: the times are exponentially distributed, so that there are pairs, small
// bursts and long pauses. Runs of the same rate have the same times, so that servers are asked alike.
type arrivals struct {
	random *rand.Rand // nil: evenly spaced
	mean   time.Duration
}

func newArrivals(rate int, even bool) arrivals {
	a := arrivals{mean: time.Second / time.Duration(rate)}
	if !even {
		a.random = rand.New(rand.NewPCG(uint64(rate), 0)) //nolint:gosec // a rate is positive
	}
	return a
}

// next returns the time to the next query.
func (a arrivals) next() time.Duration {
	if a.random == nil {
		return a.mean
	}
	return time.Duration(a.random.ExpFloat64() * float64(a.mean))
}
