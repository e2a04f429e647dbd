package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/balance"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/upstream"
)

// statsKey identifies the counters of a zone. Counters outlive generations.
type statsKey struct {
	transport config.Transport
	addr      netip.AddrPort
	zone      string // as labelled
	view      string
}

// builder builds generations. It is not safe for concurrent use.
type builder struct {
	opts  *options.Agent
	log   *slog.Logger
	stats map[statsKey]*resolver.Stats
	store *cache.Store // of all caches
	addrs *hostAddrs
	// epochs guard copies of the cluster's answers, hostsEpochs those of hosts tables; nil: nobody copies them.
	epochs, hostsEpochs *epoch.Table
	// clients knows whose queries are counted; nil: none are.
	clients *attribution
	// directives is the whole table of the build, over all generations.
	directives []directive
	// budgets are those of all upstreams, over all generations.
	budgets *upstream.Budgets
	// clientLevels knows the level of the metrics of each namespace; nil: no queries are counted.
	clientLevels *clientLevels
	// policies has the counts of DNSPolicies, over all generations.
	policies dnspolicy.Counters
	// egress has their sets in the packet filter; nil without DNSPolicies.
	egress *dnspolicy.Egress
	// limiters makes the limiters of the blocks' clients.
	limiters limiters
	// tail gets the finished queries while an operator watches them.
	tail *tail.Feed
	// lookup returns the addresses of collectors of traces.
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// build returns the generation that cfg describes. It reuses the parts of old (nil: none)
// that did not change: a cache stays warm, a view stays synced. On an error it closes all
// new parts.
func (a *builder) build(cfg *config.Config, old *generation) (*generation, error) {
	g := newGeneration(cfg)
	if err := a.buildParts(g, old); err != nil {
		g.closeUnused(old)
		return nil, err
	}
	openTaps(a, g, old)
	openExporters(a, g, old)
	a.buildRoutes(g)
	return g, nil
}

// buildParts builds all parts of g but taps and routes. Views come first, because a block
// may forward to a Service in the view of another one.
func (a *builder) buildParts(g, old *generation) error {
	if err := openViews(a, g, old); err != nil {
		return err
	}
	for _, b := range g.cfg.Blocks {
		v, err := endpointsViewOf(a, g, b, old)
		if err != nil {
			return err
		}
		g.blocks = append(g.blocks, &blockParts{
			block: b, generation: g, endpointsView: v, parts: make(map[string]any), keys: newPartKeys(a.directives, g.cfg, b, g.keyOf(v)),
			keptFrom: make(map[string]*blockParts),
		})
	}
	a.keepParts(g, old)
	for _, p := range g.blocks {
		if err := a.open(p); err != nil {
			return err
		}
		a.openBeside(p)
	}
	for _, p := range g.blocks {
		p.keptFrom = nil // so that a generation does not hold on to the one before
	}
	return loadCertificates(a, g, old)
}

func (a *builder) openHosts(p *blockParts) (any, error) {
	return opened(hosts.New(p.block.Hosts, hosts.Options{Logger: a.log.With("part", "hosts"), Epochs: a.hostsEpochs}))
}

// openBalance returns what orders addresses, nil if they are only shuffled.
func (a *builder) openBalance(p *blockParts) (any, error) {
	l := p.block.Loadbalance
	if l.Weights == "" && len(l.Prefer) == 0 {
		return nil, nil
	}
	return opened(balance.New(l, balance.Options{Logger: a.log.With("part", "loadbalance")}))
}

// installBalance sets the order of addresses.
func (*builder) installBalance(p *blockParts, part any) func(*resolver.Zone) {
	b, _ := part.(*balance.Balancer)
	return func(z *resolver.Zone) { z.Shuffle, z.Balance = p.block.Loadbalance.Weights == "", b }
}

// opened is (part, err) for [directive.open], where a nil pointer would not be nil.
func opened[P any](part *P, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return part, nil
}

// checkSelectors reads the label selectors of b's kubernetes directive.
func checkSelectors(b *config.Block, to *config.FileCheck) {
	if err := kubernetes.CheckSelectors(b.Kubernetes); err != nil {
		to.Faults = append(to.Faults, &config.ParseError{File: b.File, Line: b.Line, Directive: "kubernetes", Text: err.Error()})
	}
}

// openCluster returns the zone that answers from the block's view.
func (a *builder) openCluster(p *blockParts) (_ any, err error) {
	if p.view, err = openView(a, p.generation, p.block, nil); err != nil {
		return nil, err
	}
	return kubernetes.NewZone(p.view, p.block.Kubernetes), nil
}

// installCluster sets the cluster's zone.
func (*builder) installCluster(p *blockParts, _ any) func(*resolver.Zone) {
	return func(z *resolver.Zone) {
		z.Cluster, z.ClusterDNS, z.Ordered = p.cluster(), clusterDNS(p, z.Name), p.cluster().Ordered()
		z.Multicluster, z.Zonal = p.block.Kubernetes.Multicluster, p.block.Kubernetes.Zonal
	}
}

func (*builder) openExternal(p *blockParts) (any, error) {
	return kubernetes.NewExternal(p.view, p.block.K8sExternal, p.block.Kubernetes), nil
}

// pools are the pools of a block's forward directives.
type pools struct {
	list []*upstream.Pool // in the order of the directives
}

// openPools returns the pools of the block's forward directives.
func (a *builder) openPools(p *blockParts) (any, error) {
	opts := upstream.Options{Logger: a.log.With("part", "upstream"), Own: p.block.ListensAt, Budgets: a.budgets}
	if p.endpointsView != nil {
		opts.Endpoints = p.endpointsView.Endpoints
	}
	var list []*upstream.Pool
	for f := p.block.Forward; f != nil; f = f.Next {
		list = append(list, upstream.New(f, opts))
	}
	return &pools{upstream.Chain(list)}, nil
}

// installPools sets the pools, and what looks at their replies.
func (a *builder) installPools(p *blockParts, _ any) func(*resolver.Zone) {
	private := resolver.NewPrivateAddress(p.block.PrivateAddress, a.log.With("part", "upstream"), nil)
	return func(z *resolver.Zone) {
		z.Forward, z.PrivateAddress, z.Designates = p.pools(), private, designates(p, z.Name)
	}
}

func (a *builder) openCache(p *blockParts) (any, error) {
	return a.store.NewCache(p.block.Cache, p.block.Boundaries()...), nil
}

// open opens the parts of p that it has not kept.
func (a *builder) open(p *blockParts) error {
	for _, d := range a.directives {
		if d.open == nil || p.parts[d.name] != nil || !p.block.Has(d.name) {
			continue
		}
		opened, err := d.open(a, p)
		if err != nil {
			return fmt.Errorf("line %d, %s: %w", p.block.Line, d.name, err)
		}
		if opened != nil {
			p.parts[d.name] = opened
		}
	}
	return nil
}

// openBeside opens what runs beside p's parts, which are open.
func (a *builder) openBeside(p *blockParts) {
	for _, d := range a.directives {
		if d.beside == nil || !p.block.Has(d.name) {
			continue
		}
		if r := d.beside(p); r != nil {
			p.beside = append(p.beside, r)
		}
	}
}

// installers returns what sets p's directives in a zone.
func (a *builder) installers(p *blockParts) (list []func(*resolver.Zone)) {
	for _, d := range a.directives {
		if d.install != nil && p.block.Has(d.name) {
			list = append(list, d.install(a, p, p.parts[d.name]))
		}
	}
	return list
}

// buildRoutes adds a listener for each address, with the zones of its blocks.
func (a *builder) buildRoutes(g *generation) {
	zones := make(map[server.ListenAddr][]*resolver.Zone)
	for _, p := range g.blocks {
		b, installers, agentOnly := p.block, a.installers(p), p.block.NeedsAgent()
		for _, addr := range b.Listen {
			at := listenAddr(b, addr)
			g.listeners[at] = listenerConfig(g, g.listeners[at], b)
			for _, name := range b.Zones {
				z := &resolver.Zone{
					Name: name, Line: b.Line, OnlySetup: b.OnlySetup(), Addr: addr, AgentOnly: agentOnly,
					Stats: a.statsFor(b.Transport, addr, name.String(), b.ViewName()),
				}
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
		l.Routes.BindPolicies(g.policies())
		if labels {
			l.Routes.PodLabel = a.clients.label
		}
		g.listeners[addr] = l
	}
}

// statsFor returns the counters of a zone, the same ones after a reload.
func (a *builder) statsFor(transport config.Transport, addr netip.AddrPort, zone, view string) *resolver.Stats {
	k := statsKey{transport, addr, zone, view}
	if a.stats[k] == nil {
		a.stats[k] = resolver.NewStats()
	}
	return a.stats[k]
}

// keepParts gives the blocks of g the parts of old (nil: none) that are made of the same.
func (a *builder) keepParts(g, old *generation) {
	if old == nil {
		return
	}
	for _, d := range a.directives {
		if d.key == nil {
			continue
		}
		for i, j := range matchParts(old.keys(d.name), g.keys(d.name)) {
			if j < 0 {
				continue
			}
			if kept := old.blocks[j].parts[d.name]; kept != nil {
				g.blocks[i].parts[d.name], g.blocks[i].keptFrom[d.name] = kept, old.blocks[j]
			}
		}
	}
}

// openTunnel returns the block's detector, which knows whose the clients' addresses are.
func (a *builder) openTunnel(p *blockParts) (any, error) {
	owners := a.clients.owners()
	return tunnel.New(p.block.Tunnel, tunnel.Options{Logger: a.log.With("part", "tunnel"), Owner: func(addr netip.Addr) tunnel.Owner {
		kind, pod := owners.Owner(addr)
		return tunnel.Owner{Namespace: pod.Namespace + kind.String(), Pod: pod.Name, UID: pod.UID}
	}}), nil
}

// endCopies ends all copies of replies: what they were made by has changed, and is visible.
func (a *builder) endCopies() {
	a.epochs.BumpAll()
	a.hostsEpochs.BumpAll()
}
