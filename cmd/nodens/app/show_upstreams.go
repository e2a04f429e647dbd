package app

import (
	"net/http"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/upstream"
)

// maxShownForwards bounds the forward directives in one reply. A kube-dns ConfigMap may have hundreds
// of stub domains.
const maxShownForwards = 256

func (a *agent) showUpstreams(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.upstreams()) }

// upstreams returns what /upstreams shows.
func (a *agent) upstreams() *report.Upstreams {
	list := &report.Upstreams{Header: a.header(), Forwards: []report.Forward{}}
	now, age := a.counters(), time.Since(a.created)
	before := a.window.Before(age, rateWindow)
	seconds := (age - before.Interval).Seconds()
	for f := range a.current.Load().forwards() {
		if len(list.Forwards) == maxShownForwards {
			list.More++
			continue
		}
		show := report.Forward{Zones: []string{}, From: f.From.String(), Upstreams: []report.Upstream{},
			Directives: f.block.Directives(), ServeStale: f.block.Cache != nil && f.block.Cache.Stale.For > 0}
		for _, z := range f.block.Zones {
			show.Zones = append(show.Zones, z.String())
		}
		for _, to := range f.pool.Stats().Servers {
			u := newUpstream(to)
			u.Recent = now.upstreams[to.To].since(before.Counters.upstreams[to.To], seconds)
			u.Budget = a.newBudget(to.Budget)
			show.Upstreams = append(show.Upstreams, u)
		}
		list.Forwards = append(list.Forwards, show)
	}
	return list
}

// newUpstream returns to's counters.
func newUpstream(to upstream.Server) report.Upstream {
	u := report.Upstream{
		To: to.To.String(), Down: to.Down, Suspect: to.Suspected, RTTSeconds: to.RTT.Seconds(), Exchanges: make(map[string]uint64),
		HealthcheckFailures: to.HealthcheckFailures, ConnectionFailures: to.Broken, UnexpectedReplies: to.UnexpectedReplies,
		Hedges: to.Hedges, HedgeWins: to.HedgeWins, Suspicions: to.SuspectedTotal,
		ReusedConnections:    to.UDP.Hits + to.TCP.Hits + to.TLS.Hits + to.QUIC.Hits,
		NotReusedConnections: to.UDP.Misses + to.TCP.Misses + to.TLS.Misses + to.QUIC.Misses,
	}
	var n, sum float64
	for rcode, h := range to.Durations {
		u.Exchanges[rcode.String()] = h.Count
		n, sum = n+float64(h.Count), sum+h.Sum
	}
	if n > 0 {
		u.MeanSeconds = sum / n
	}
	return u
}
