package app

import (
	"context"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/resolver"
)

// maxStatisticsZones bounds the zones of one sample. A Corefile with more is compared by its
// busiest zones.
const maxStatisticsZones = 4 * baseline.MaxZones

// statistics returns what the agent has measured since its start. It is safe for concurrent
// use. Zones are summed over the addresses that serve them: a successor may have others.
func (a *agent) statistics() baseline.Statistics {
	s := baseline.Statistics{Interval: time.Since(a.created)}
	g := a.current.Load()
	if g == nil {
		return s
	}
	a.kernelPath.updateCounters() // before the counters are read
	s.Zones, s.Views = zoneStatistics(g), viewStatistics(g)
	if len(s.Zones) > maxStatisticsZones {
		s.Sort()
		s.Zones, s.More = s.Zones[:maxStatisticsZones], true
	}
	return s
}

func zoneStatistics(g *generation) []baseline.Zone {
	type key struct{ name, group string }
	sums := make(map[key]*resolver.Sums)
	for _, l := range g.listeners {
		for z := range l.Routes.Zones() {
			k := key{z.Name.String(), zoneGroup(l.Transport, z.View.Name())}
			if sums[k] == nil {
				sums[k] = new(resolver.Sums)
			}
			z.Stats.AddTo(sums[k])
		}
	}
	list := make([]baseline.Zone, 0, len(sums))
	for k, sum := range sums {
		list = append(list, baseline.Zone{
			Name: k.name, Group: k.group, Queries: sum.Queries(), ServFail: sum.ServFail, Lookups: sum.Lookups, Hits: sum.Hits, Duration: sum.Durations,
		})
	}
	return list
}

// zoneGroup returns what tells a zone from others with its name.
func zoneGroup(transport config.Transport, view string) string {
	var parts []string
	if transport != config.PlainDNS {
		parts = append(parts, "over "+transport.String())
	}
	if view != noView {
		parts = append(parts, "in view "+view)
	}
	return strings.Join(parts, " ")
}

// viewStatistics returns the state of the views. Views with the same first zone are one: the
// worst of each.
func viewStatistics(g *generation) (list []baseline.View) {
	known := make(map[string]int) // by zone: index in list
	for _, p := range g.blocks {
		if p.view == nil {
			continue
		}
		st := p.view.Stats()
		v := baseline.View{Zone: p.cluster().Origins()[0].String(), Objects: st.Services + st.Namespaces, Synced: st.Synced}
		if len(p.block.Kubernetes.Manifests) == 0 && !st.LastEvent.IsZero() {
			v.Age = max(0, time.Since(st.LastEvent))
		}
		i, ok := known[v.Zone]
		if !ok {
			known[v.Zone] = len(list)
			list = append(list, v)
			continue
		}
		list[i].Objects = min(list[i].Objects, v.Objects)
		list[i].Age = max(list[i].Age, v.Age)
		list[i].Synced = list[i].Synced && v.Synced
	}
	return list
}

// sampleStatistics adds samples to the agent's window until ctx ends.
func (a *agent) sampleStatistics(ctx context.Context) {
	tick := time.NewTicker(baseline.SampleInterval)
	defer tick.Stop()
	for {
		a.window.Add(baseline.Sample[counters]{Statistics: a.statistics(), Counters: a.counters()})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// recentStatistics returns what the agent has measured in the last minutes.
func (a *agent) recentStatistics() baseline.Statistics {
	return a.window.Last(a.statistics())
}
