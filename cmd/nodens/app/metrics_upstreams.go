package app

import (
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/upstream"
)

// upstreams puts the metrics of upstreams.
func (s scrape) upstreams(g *generation) {
	var broken, rejects uint64
	for f := range g.forwards() {
		st := f.pool.Stats()
		broken += st.HealthcheckBroken
		rejects += st.MaxConcurrentRejects
	}
	s.put(forwardBroken, float64(broken))
	s.put(forwardRejects, float64(rejects))
	for to, sum := range g.servers() {
		for directive, counters := range sum.byDirective {
			s.exchanges(directive, counters)
		}
		s.upstream(to.String(), &sum.Server)
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

// upstreamConns writes how often the connections to an upstream were used again.
func (s scrape) upstreamConns(to upstream.Server, label, directive string) {
	put := func(proto string, r upstream.Reuse) {
		s.put(proxyConnHits, float64(r.Hits), label, proto, directive)
		s.put(proxyConnMisses, float64(r.Misses), label, proto, directive)
	}
	if !to.GRPC {
		put("udp", to.UDP)
	}
	put("tcp", to.TCP)
	if to.QUIC != (upstream.Reuse{}) { // most agents have no upstream over QUIC
		put("quic", to.QUIC)
	}
}

// budget puts the metrics of an upstream's budget; nil is none.
func (s scrape) budget(to string, b *upstream.BudgetStats) {
	if b == nil {
		return
	}
	s.put(budgetLimit, b.Limit, to)
	s.put(budgetUsed, b.Used, to)
	s.put(budgetWaiting, float64(b.Waiting), to)
	s.put(budgetExpired, float64(b.Expired), to)
	s.put(budgetGivenUp, float64(b.GivenUp), to)
}
