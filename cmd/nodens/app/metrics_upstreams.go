package app

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/upstream"
)

// CoreDNS's metrics of the directive grpc.
var (
	grpcRequests  = counter("coredns_grpc_requests_total", "Exchanges with upstreams of the directive grpc.", "to")
	grpcResponses = counter("coredns_grpc_responses_total", "Exchanges with upstreams of the directive grpc, by rcode.", "to", "rcode")
	grpcDuration  = counter("coredns_grpc_request_duration_seconds", "Duration of exchanges with upstreams of the directive grpc.", "to")
)

// upstreams are the counters of the upstreams, summed over the pools, by address. A server has one
// pair of labels for each directive that names it, and one address for the other metrics.
type upstreams map[netip.AddrPort]*upstreamSum

// upstreamSum is the sum for one address. byDirective has the exchanges and connections for
// forward and for grpc.
type upstreamSum struct {
	all         upstream.Server
	byDirective map[string]upstream.Server
}

func (u upstreams) add(to upstream.Server) {
	sum := u[to.To]
	if sum == nil {
		sum = &upstreamSum{byDirective: make(map[string]upstream.Server)}
		u[to.To] = sum
	}
	directive := "forward"
	if to.GRPC {
		directive = "grpc"
	}
	sum.byDirective[directive] = merge(sum.byDirective[directive], to)
	to.Durations = nil // they belong to byDirective
	sum.all = merge(sum.all, to)
}

// merge sums the counters of one upstream in two pools, which have the same labels.
func merge(a, b upstream.Server) upstream.Server {
	b.Down = a.Down || b.Down
	b.HealthcheckFailures += a.HealthcheckFailures
	b.UnexpectedReplies += a.UnexpectedReplies
	b.Suspected = a.Suspected || b.Suspected
	b.RTT = max(a.RTT, b.RTT)
	b.SuspectedTotal, b.Broken = b.SuspectedTotal+a.SuspectedTotal, b.Broken+a.Broken
	b.Hedges, b.HedgeWins = b.Hedges+a.Hedges, b.HedgeWins+a.HedgeWins
	if b.Budget == nil { // otherwise both have the budget of the address
		b.Budget = a.Budget
	}
	b.UDP, b.TCP, b.QUIC = addReuse(a.UDP, b.UDP), addReuse(a.TCP, b.TCP), addReuse(a.QUIC, b.QUIC)
	for rcode, h := range a.Durations {
		b.Durations[rcode] = b.Durations[rcode].Add(h)
	}
	return b
}

func (s scrape) upstreams(all upstreams) {
	for to, sum := range all {
		for directive, counters := range sum.byDirective {
			s.exchanges(directive, counters)
		}
		s.upstream(to.String(), &sum.all)
	}
}

// exchanges puts what CoreDNS counts for each upstream of a directive.
func (s scrape) exchanges(directive string, to upstream.Server) {
	label := to.To.String()
	var total stat.Snapshot
	for rcode, h := range to.Durations {
		s.histogram(proxyDuration, h, label, rcode.String(), directive)
		total = total.Add(h)
	}
	s.put(proxyHealth, float64(to.HealthcheckFailures), label, directive)
	s.upstreamConns(to, label, directive)
	if to.GRPC {
		for rcode, h := range to.Durations {
			s.put(grpcResponses, float64(h.Count), label, rcode.String())
		}
		s.put(grpcRequests, float64(total.Count), label)
		s.histogram(grpcDuration, total, label)
		return
	}
	for rcode, h := range to.Durations {
		s.histogram(forwardDuration, h, label, rcode.String())
		s.put(forwardResponses, float64(h.Count), label, rcode.String())
	}
	s.put(forwardRequests, float64(total.Count), label)
	s.put(forwardHealth, float64(to.HealthcheckFailures), label)
}

func (s scrape) upstream(label string, to *upstream.Server) {
	s.put(upstreamUnexpected, float64(to.UnexpectedReplies), label)
	s.put(upstreamDown, boolFloat(to.Down), label)
	s.put(upstreamSuspect, boolFloat(to.Suspected), label)
	s.put(upstreamSuspicions, float64(to.SuspectedTotal), label)
	s.put(upstreamRTT, to.RTT.Seconds(), label)
	s.put(upstreamHedges, float64(to.Hedges), label)
	s.put(upstreamHedgeWins, float64(to.HedgeWins), label)
	s.put(upstreamConnFailures, float64(to.Broken), label)
	s.budget(label, to.Budget)
}
