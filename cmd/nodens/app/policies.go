package app

import (
	"log/slog"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// policies are the parts of a server block that depend on no other part.
type policies struct {
	acl   *resolver.ACL
	local *resolver.Local
	dns64 *resolver.DNS64
	chaos *resolver.Chaos
	// private looks at the replies of upstreams; nil without upstreams.
	private *resolver.PrivateAddress
}

// newPolicies makes the policies of b for an agent of this version.
func newPolicies(b *config.Block, version string, log *slog.Logger) (g policies) {
	if b.Forward != nil {
		g.private = resolver.NewPrivateAddress(b.PrivateAddress, log.With("part", "upstream"), nil)
	}
	if b.ACL != nil {
		g.acl = resolver.NewACL(b.ACL)
	}
	if b.Local != nil {
		g.local = resolver.NewLocal(b.Local)
	}
	if b.DNS64 != nil {
		g.dns64 = resolver.NewDNS64(b.DNS64)
	}
	if b.Chaos != nil {
		g.chaos = resolver.NewChaos(b.Chaos, "nodens-"+version)
	}
	return g
}

// setPolicies sets p's policies in z.
func (p *blockParts) setPolicies(z *resolver.Zone) {
	b := p.block
	z.ACL, z.Local, z.DNS64, z.PrivateAddress = p.policies.acl, p.policies.local, p.policies.dns64, p.policies.private
	if b.ClientLimit != nil {
		z.Limit = &resolver.ClientLimit{Limiter: p.limiter, Action: b.ClientLimit.Action}
	}
	z.Chaos, z.Header = p.policies.chaos, b.Header
	z.Any, z.Minimal, z.Whoami = b.Any != nil, b.Minimal != nil, b.Whoami != nil
	if b.NSID != nil {
		z.NSID = b.NSID.ID
	}
}

// newView returns the view of b on addr, nil if it has none.
func newView(b *config.Block, addr netip.AddrPort) *resolver.View {
	if b.View == nil {
		return nil
	}
	return resolver.NewView(b.View, addr)
}

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
