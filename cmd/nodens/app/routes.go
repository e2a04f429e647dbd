package app

import (
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/upstream"
)

// droppedZone is CoreDNS's zone label for queries outside of all zones.
const droppedZone = "dropped"

// designates returns which of p's pools are asked for the names of zones that are otherwise served here, such as
// resolver.arpa: only those that are configured for such names.
func designates(p *blockParts, zone wire.Name) func(*upstream.Pool) bool {
	own := make(map[*upstream.Pool]bool)
	for f := range p.forwards() {
		own[f.pool] = resolver.InServedZone(zone) || resolver.InServedZone(f.From)
	}
	return func(u *upstream.Pool) bool { return own[u] }
}

// clusterDNS returns which of p's pools reach the cluster's own DNS for names in zone: those
// that receive only names of the cluster, and those with the address of a Service. The
// former is fixed; the latter follows the view. A resolver for all names is neither, unless
// it is itself a Service.
func clusterDNS(p *blockParts, zone wire.Name) func(*upstream.Pool) bool {
	inside := func(name wire.Name) bool {
		return slices.ContainsFunc(p.cluster().Origins(), func(o wire.Name) bool { return o != wire.Root && name.Under(o) })
	}
	type target struct {
		named bool
		to    []config.Target
	}
	targets := make(map[*upstream.Pool]target)
	for f := range p.forwards() {
		targets[f.pool] = target{named: inside(zone) || inside(f.From), to: f.To}
	}
	return func(u *upstream.Pool) bool {
		t := targets[u]
		return t.named || slices.ContainsFunc(t.to, func(a config.Target) bool { return a.Service != "" || p.view.IsClusterIP(a.Addr.Addr()) })
	}
}
