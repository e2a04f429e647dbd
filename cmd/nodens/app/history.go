package app

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/server/resolver"
)

// history has the samples of the last hour, which the page draws. The zero value is ready for use. It is
// safe for concurrent use.
type history struct {
	mu      sync.Mutex
	samples [page.HistoryLength]page.Sample
	n       int // that have been added
	end     time.Time
	// upstreams are the first servers with exchanges, which samples count one by one.
	upstreams []netip.AddrPort
	last      historyCounters
}

// historyCounters are the counters that a sample is made from.
type historyCounters struct {
	sums      resolver.Sums
	kernel    uint64
	exchanges map[netip.AddrPort]uint64
}

// historyCounters returns the present counters. seen is an empty map for them.
func (a *agent) historyCounters(seen map[netip.AddrPort]uint64) historyCounters {
	c := historyCounters{exchanges: seen}
	if a.kernelPath.available() {
		c.kernel = a.kernelPath.program.Counters().Results["answered"]
	}
	g := a.current.Load()
	if g == nil {
		return c
	}
	for _, l := range g.listeners {
		for z := range l.Routes.Zones() {
			z.Stats.AddTo(&c.sums)
		}
	}
	for f := range g.forwards() {
		f.pool.EachExchanges(func(to netip.AddrPort, n uint64) {
			if _, ok := seen[to]; ok || len(seen) < maxSampledUpstreams {
				seen[to] += n
			}
		})
	}
	return c
}

// add adds the sample between the last counters and c.
func (h *history) add(c historyCounters, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, s := &h.last.sums, &c.sums
	sample := page.Sample{
		Cluster: increase(b.Cluster, s.Cluster), Cache: increase(b.Cache, s.Cache),
		Upstream: increase(b.Upstream, s.Upstream), Others: increase(b.Others, s.Others), Kernel: increase(h.last.kernel, c.kernel),
		NXDomain: increase(b.NXDomain, s.NXDomain), ServFail: increase(b.ServFail, s.ServFail),
	}
	var durations baseline.Histogram
	for i := range durations {
		durations[i] = uint64(increase(b.Durations[i], s.Durations[i]))
	}
	sample.P50, sample.P99 = float32(durations.Quantile(50).Seconds()), float32(durations.Quantile(99).Seconds())
	for to, n := range c.exchanges {
		if more := increase(h.last.exchanges[to], n); more > 0 {
			sample.Exchanges[h.upstreamIndex(to)] += more
		}
	}
	h.samples[h.n%len(h.samples)] = sample
	h.n++
	h.end, h.last = now, c
}

// increase returns how far a counter has grown. A lower one than before has been made anew by a reload.
func increase(before, now uint64) uint32 {
	if now < before {
		before = 0
	}
	return uint32(min(now-before, 1<<32-1))
}

// upstreamIndex returns the index of a server in [page.Sample.Exchanges].
func (h *history) upstreamIndex(to netip.AddrPort) int {
	for i, known := range h.upstreams {
		if known == to {
			return i
		}
	}
	if len(h.upstreams) < page.MaxUpstreams {
		h.upstreams = append(h.upstreams, to)
		return len(h.upstreams) - 1
	}
	return page.MaxUpstreams
}

// read returns the samples.
func (h *history) read() page.History {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := page.History{End: h.end, Samples: make([]page.Sample, 0, min(h.n, len(h.samples)))}
	for i := max(0, h.n-len(h.samples)); i < h.n; i++ {
		out.Samples = append(out.Samples, h.samples[i%len(h.samples)])
	}
	for _, to := range h.upstreams {
		out.Upstreams = append(out.Upstreams, to.String())
	}
	return out
}

// lastSample returns when the last sample was added.
func (h *history) lastSample() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// sampleHistory adds samples to the agent's history until ctx ends.
func (a *agent) sampleHistory(ctx context.Context) {
	tick := time.NewTicker(page.HistoryInterval)
	defer tick.Stop()
	spare := make(map[netip.AddrPort]uint64)
	a.history.last = a.historyCounters(make(map[netip.AddrPort]uint64))
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c := a.historyCounters(spare)
			spare = a.history.last.exchanges
			a.history.add(c, now)
			clear(spare)
		}
	}
}
