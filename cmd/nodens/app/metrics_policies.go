package app

import (
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// policyCounters sums the counters of zones with equal labels, for one scrape.
type policyCounters struct {
	localhosts uint64
	local      bool
	dns64      map[string]uint64                // by server
	allowed    map[aclKey]uint64                // zone is ""
	denied     map[metricDesc]map[aclKey]uint64 // by metric
}

// aclKey are the labels of an ACL's counter.
type aclKey struct{ server, zone, view string }

func newPolicyCounters() *policyCounters {
	return &policyCounters{dns64: make(map[string]uint64), allowed: make(map[aclKey]uint64), denied: make(map[metricDesc]map[aclKey]uint64)}
}

func (g *policyCounters) add(srv, view string, z *resolver.Zone) {
	if z.Local != nil {
		g.local = true
		g.localhosts += z.Stats.Localhosts()
	}
	if z.DNS64 != nil {
		g.dns64[srv] += z.Stats.Mapped()
	}
	v := z.Stats.Verdicts()
	if z.ACL != nil {
		g.allowed[aclKey{server: srv, view: view}] += v.Allowed
	}
	for f, of := range map[metricDesc]map[wire.Name]uint64{aclBlocked: v.Blocked, aclFiltered: v.Filtered, aclDropped: v.Dropped} {
		if g.denied[f] == nil {
			g.denied[f] = make(map[aclKey]uint64)
		}
		for zone, n := range of {
			g.denied[f][aclKey{srv, zone.String(), view}] += n
		}
	}
}

func (g *policyCounters) put(s scrape) {
	if g.local {
		s.put(localNames, float64(g.localhosts))
	}
	for srv, n := range g.dns64 {
		s.put(dns64Mapped, float64(n), srv)
	}
	for k, n := range g.allowed {
		s.put(aclAllowed, float64(n), k.server, k.view)
	}
	for f, of := range g.denied {
		for k, n := range of {
			s.put(f, float64(n), k.server, k.zone, k.view)
		}
	}
}
