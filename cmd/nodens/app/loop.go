package app

import (
	"context"
	"net/netip"
	"sync"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// loops are a block's loop detectors.
type loops struct{ of map[wire.Name]*resolver.Loop }

// openLoops returns a loop detector for each zone of p. If p keeps its pools, forwarding that a detector had
// stopped stays stopped until a probe has shown that no query comes back.
func openLoops(a *builder, p *blockParts) (any, error) {
	var was map[wire.Name]*resolver.Loop
	if from := p.keptFrom["forward"]; from != nil {
		was = from.loops()
	}
	l := &loops{make(map[wire.Name]*resolver.Loop)}
	for _, z := range p.block.Zones {
		var err error
		if l.of[z], err = resolver.NewLoop(z, p.pools(), resolver.LoopOptions{
			Logger: a.log.With("part", "loop"), Sources: loopSources(a, p.generation), Was: was[z],
		}); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// loopSources returns which clients a query that was sent to servers may come back from: one
// of them; an endpoint, if a server is the cluster IP of a Service; or this node, where another
// resolver may forward it. A pod is none of these, unless it uses the node's network.
func loopSources(a *builder, g *generation) func([]netip.Addr) func(netip.Addr) bool {
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

// watchLoops probes in the background whether a zone's upstreams forward back to this agent,
// which would multiply every query. All addresses of a block share the detector.
func (a *agent) watchLoops(ctx context.Context, g *generation) {
	for _, p := range g.blocks {
		if l := part[*loops](p, "loop"); l != nil {
			a.launch(ctx, l, l.watch)
		}
	}
}

// watch runs the detectors until ctx ends.
func (l *loops) watch(ctx context.Context) {
	var all sync.WaitGroup
	for _, detector := range l.of {
		all.Go(func() { detector.Run(ctx) })
	}
	all.Wait()
}
