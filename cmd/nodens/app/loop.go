package app

import (
	"context"
	"net/netip"

	"github.com/nodens-dns/nodens/server/resolver"
)

// addLoops adds a loop detector for each zone of p. If p reuses its pools, forwarding that a
// detector had stopped stays stopped until a probe has shown that no query comes back.
func (a *builder) addLoops(g *generation, p *blockParts) error {
	if p.block.Loop == nil {
		return nil
	}
	for _, z := range p.block.Zones {
		l, err := resolver.NewLoop(z, p.pools, resolver.LoopOptions{
			Logger: a.log.With("part", "loop"), Sources: a.loopSources(g), Was: p.previousLoops[z],
		})
		if err != nil {
			return err
		}
		p.loops[z] = l
	}
	return nil
}

// loopSources returns which clients a query that was sent to servers may come back from: one
// of them; an endpoint, if a server is the cluster IP of a Service; or this node, where another
// resolver may forward it. A pod is none of these, unless it uses the node's network.
func (a *builder) loopSources(g *generation) func([]netip.Addr) func(netip.Addr) bool {
	return func(servers []netip.Addr) func(netip.Addr) bool {
		expected := make(map[netip.Addr]struct{})
		for _, s := range servers {
			expected[s] = struct{}{}
			for _, v := range g.views {
				for _, e := range v.EndpointsBehind(s) {
					expected[e] = struct{}{}
				}
			}
		}
		a.addrs.refresh() // here, because the returned function must not block a reader
		return func(client netip.Addr) bool {
			_, ok := expected[client]
			return ok || a.addrs.has(client)
		}
	}
}

func (p *blockParts) hasLoop(part any) bool {
	for _, l := range p.loops {
		if part == any(l) {
			return true
		}
	}
	return false
}

// watchLoops probes in the background whether a zone's upstreams forward back to this agent,
// which would multiply every query. All addresses of a block share the detector.
func (a *agent) watchLoops(ctx context.Context, g *generation) {
	for _, p := range g.blocks {
		for _, l := range p.loops {
			a.launch(ctx, l, l.Run)
		}
	}
}
