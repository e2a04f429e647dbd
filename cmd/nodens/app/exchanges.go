package app

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// rateWindow is the time that rates are of, at least.
	rateWindow = time.Minute
	// maxSampledUpstreams bounds the servers in one sample; others have no rates.
	maxSampledUpstreams = 256
)

// counters are those that [baseline.Statistics] has not.
type counters struct {
	kernel    uint64 // queries answered in the kernel
	upstreams map[netip.AddrPort]exchangeCounts
}

// exchangeCounts are the exchanges with one upstream.
type exchangeCounts struct {
	servfail, unanswered uint64
	durations            baseline.Histogram
}

// counters returns the present counters.
func (a *agent) counters() counters {
	s := counters{upstreams: make(map[netip.AddrPort]exchangeCounts)}
	if a.kernelPath.available() {
		s.kernel = a.kernelPath.program.Counters().Results["answered"]
	}
	g := a.current.Load()
	if g == nil {
		return s
	}
	for to, sum := range g.servers() {
		if len(s.upstreams) < maxSampledUpstreams {
			s.upstreams[to] = newExchangeCounts(&sum.Server)
		}
	}
	return s
}

// newExchangeCounts returns the counters of an upstream.
func newExchangeCounts(to *upstream.Server) (e exchangeCounts) {
	e.unanswered = to.Unanswered
	for rcode, h := range to.Durations {
		if rcode == wire.ServFail {
			e.servfail += h.Count
		}
		for i, n := range baseline.NewHistogram(h) {
			e.durations[i] += n
		}
	}
	return e
}

// since returns the rates between an earlier sample and s. The counters of a pool that a reload has
// replaced begin again: then they are all of that time.
func (e exchangeCounts) since(b exchangeCounts, seconds float64) report.Exchanges {
	d := e
	if b.servfail <= e.servfail && b.unanswered <= e.unanswered && b.durations.Total() <= e.durations.Total() {
		d.servfail -= b.servfail
		d.unanswered -= b.unanswered
		for i := range d.durations {
			d.durations[i] -= min(d.durations[i], b.durations[i])
		}
	}
	n := d.durations.Total()
	return report.Exchanges{
		Seconds: seconds, PerSecond: report.PerSecond(n, seconds), ServfailShare: ratio(d.servfail, n), UnansweredShare: ratio(d.unanswered, n+d.unanswered),
		P50Seconds: d.durations.Quantile(50).Seconds(), P99Seconds: d.durations.Quantile(99).Seconds(),
	}
}

// rates returns the rates of the last minute.
func (a *agent) rates() report.Rates {
	now, counters := a.statistics(), a.counters()
	before := a.window.Before(now.Interval, rateWindow)
	s := now.Sub(before.Statistics)
	var sum baseline.Zone
	for _, z := range s.Zones {
		sum = sum.Add(z)
	}
	seconds := s.Interval.Seconds()
	kernel := counters.kernel - min(counters.kernel, before.Counters.kernel)
	return report.Rates{
		Seconds: seconds, QueriesPerSecond: report.PerSecond(sum.Queries, seconds), ServfailShare: ratio(sum.ServFail, sum.Queries),
		P50Seconds: sum.Duration.Quantile(50).Seconds(), P99Seconds: sum.Duration.Quantile(99).Seconds(),
		HitRatio: ratio(sum.Hits, sum.Lookups), KernelShare: min(1, ratio(kernel, sum.Queries)),
	}
}

// ratio returns n of all, 0 if there are none.
func ratio(n, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}
