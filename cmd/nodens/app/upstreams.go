package app

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/upstream"
)

// forward is a directive forward or grpc of a block, and its pool.
type forward struct {
	*config.Forward
	block *config.Block
	pool  *upstream.Pool
}

// forwards yields the directives forward and grpc of p in their order.
func (p *blockParts) forwards() iter.Seq[forward] {
	return func(yield func(forward) bool) {
		f := p.block.Forward
		for _, pool := range p.pools() {
			if !yield(forward{f, p.block, pool}) {
				return
			}
			f = f.Next
		}
	}
}

// forwards yields the directives forward and grpc of all blocks in the order of the Corefile.
func (g *generation) forwards() iter.Seq[forward] {
	return func(yield func(forward) bool) {
		for _, p := range g.blocks {
			for f := range p.forwards() {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// upstreamSum is what all pools count for one address. A server has one pair of labels for each directive that
// names it, and one address for the other metrics.
type upstreamSum struct {
	upstream.Server
	// byDirective has the counters for forward and for grpc.
	byDirective map[string]upstream.Server
}

// servers returns the counters of all upstreams by address.
func (g *generation) servers() map[netip.AddrPort]*upstreamSum {
	sums := make(map[netip.AddrPort]*upstreamSum)
	for f := range g.forwards() {
		for _, to := range f.pool.Stats().Servers {
			sum := sums[to.To]
			if sum == nil {
				sum = &upstreamSum{byDirective: make(map[string]upstream.Server)}
				sums[to.To] = sum
			}
			directive := "forward"
			if to.GRPC {
				directive = "grpc"
			}
			sum.byDirective[directive] = merge(sum.byDirective[directive], to)
			sum.Server = merge(sum.Server, to)
		}
	}
	return sums
}

// merge sums the counters of one upstream in two pools.
func merge(a, b upstream.Server) upstream.Server {
	sum := b
	sum.Down, sum.Suspected = a.Down || b.Down, a.Suspected || b.Suspected
	sum.RTT, sum.InFlight = max(a.RTT, b.RTT), max(a.InFlight, b.InFlight)
	sum.HealthcheckFailures += a.HealthcheckFailures
	sum.UnexpectedReplies += a.UnexpectedReplies
	sum.Unanswered += a.Unanswered
	sum.SuspectedTotal += a.SuspectedTotal
	sum.Broken += a.Broken
	sum.Hedges, sum.HedgeWins = a.Hedges+b.Hedges, a.HedgeWins+b.HedgeWins
	if b.Budget == nil { // otherwise both have the budget of the address
		sum.Budget = a.Budget
	}
	sum.UDP, sum.TCP = addReuse(a.UDP, b.UDP), addReuse(a.TCP, b.TCP)
	sum.TLS, sum.QUIC = addReuse(a.TLS, b.TLS), addReuse(a.QUIC, b.QUIC)
	sum.Durations = maps.Clone(b.Durations)
	for rcode, h := range a.Durations {
		sum.Durations[rcode] = sum.Durations[rcode].Add(h)
	}
	return sum
}

// addReuse returns the sum of a and b.
func addReuse(a, b upstream.Reuse) upstream.Reuse {
	return upstream.Reuse{Hits: a.Hits + b.Hits, Misses: a.Misses + b.Misses}
}
