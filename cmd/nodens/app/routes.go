package app

import (
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/upstream"
)

// buildRoutes adds a listener for each address, with the zones of its blocks.
func (a *builder) buildRoutes(g *generation) {
	zones := make(map[server.ListenAddr][]*resolver.Zone)
	for _, p := range g.blocks {
		b, installers := p.block, a.installers(p)
		for _, addr := range b.Listen {
			at := listenAddr(b, addr)
			g.listeners[at] = g.listenerConfig(g.listeners[at], b)
			for _, name := range b.Zones {
				z := &resolver.Zone{Name: name, Line: b.Line, Addr: addr, Stats: a.statsFor(b.Transport, addr, name.String(), b.ViewName())}
				for _, install := range installers {
					install(z)
				}
				zones[at] = append(zones[at], z)
			}
		}
	}
	search, labels := nodeSearch(), a.clients != nil && len(config.PodLabels(g.cfg.Blocks)) > 0
	for addr, list := range zones {
		for _, z := range list {
			z.IsClusterIP = g.isClusterIP
		}
		l := g.listeners[addr]
		l.Routes = resolver.NewRoutes(list, a.statsFor(l.Transport, addr.AddrPort, droppedZone, noView))
		l.Routes.StartWaiting = a.opts.StartWaiting
		l.Routes.Clients, l.Routes.Search = a.clients.counted(), search
		l.Routes.Owners, l.Routes.Tail = a.clients.owners(), a.tail
		l.Routes.OnNode = a.clients.onNode(a.addrs)
		if labels {
			l.Routes.PodLabel = a.clients.label
		}
		g.listeners[addr] = l
	}
}

// droppedZone is CoreDNS's zone label for queries outside of all zones.
const droppedZone = "dropped"

// statsFor returns the counters of a zone, the same ones after a reload.
func (a *builder) statsFor(transport config.Transport, addr netip.AddrPort, zone, view string) *resolver.Stats {
	k := statsKey{transport, addr, zone, view}
	if a.stats[k] == nil {
		a.stats[k] = resolver.NewStats()
	}
	return a.stats[k]
}

// designates returns which of p's pools are asked for the names of zones that are otherwise served here, such as
// resolver.arpa: only those that are configured for such names.
func (p *blockParts) designates(zone wire.Name) func(*upstream.Pool) bool {
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
func (p *blockParts) clusterDNS(zone wire.Name) func(*upstream.Pool) bool {
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
