package resolver

import "github.com/nodens-dns/nodens/internal/wire"

// Sums are the counters of any number of zones, summed up for a graph. Unlike [Totals] they take no
// allocation, so that they can be read often. The zero value is ready for use.
type Sums struct {
	// Cluster, Cache, Upstream and Others are the numbers of replies by the step that made them.
	Cluster, Cache, Upstream, Others uint64
	NXDomain, ServFail               uint64
	// Durations are the numbers of replies by the bounds of [stat.DurationBuckets], not cumulative;
	// the last one is of longer times.
	Durations [17]uint64
}

// AddTo adds the counters of s to sum.
func (s *Stats) AddTo(sum *Sums) {
	for i := range s.stripes {
		c := &s.stripes[i]
		c.mu.Lock()
		for rcode := range c.responses {
			sum.addResponses(wire.Rcode(rcode), &c.responses[rcode])
		}
		c.duration.AddCounts(sum.Durations[:])
		c.mu.Unlock()
	}
}

func (sum *Sums) addResponses(rcode wire.Rcode, bySource *[sources]uint64) {
	var all uint64
	for _, n := range bySource {
		all += n
	}
	if all == 0 {
		return
	}
	switch rcode {
	case wire.NXDomain:
		sum.NXDomain += all
	case wire.ServFail:
		sum.ServFail += all
	}
	sum.Cluster += bySource[fromCluster]
	sum.Cache += bySource[fromCache]
	upstream := bySource[fromForward] + bySource[fromGRPC]
	sum.Upstream += upstream
	sum.Others += all - bySource[fromCluster] - bySource[fromCache] - upstream
}
