package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/balance"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/upstream"
)

// blockParts are the parts of one server block, nil for directives that it does not have.
// All zones and addresses of the block share them.
type blockParts struct {
	block    *config.Block
	policies policies
	limiter  *ratelimit.Limiter // of client_limit
	errors   *resolver.ErrorLog
	hosts    *hosts.Table
	file     *zonefile.Table
	balance  *balance.Balancer // nil if addresses are only shuffled
	// auto has the zones of a directory, secondary those of primary servers.
	auto, secondary *zonefile.Table
	// These lead from the tables to transfer.
	fileChanged, autoChanged, secondaryChanged *notifyHook
	transfer                                   *transfer.Table
	announcer                                  *clusterAnnouncer // nil: no server is told of changes of the cluster's zones
	view                                       *kubernetes.View
	cluster                                    *kubernetes.Zone
	external                                   *kubernetes.External
	autopath                                   *resolver.Autopath
	rewrite                                    *rewrite.Rules
	template                                   *template.Templates
	cache                                      *cache.Cache
	// endpointsView resolves the upstreams that are Services; nil: none is one.
	endpointsView *kubernetes.View
	pools         []*upstream.Pool // in the order of the block's forward directives
	loops         map[wire.Name]*resolver.Loop
	// previousLoops are the detectors of the block whose pools this one reuses.
	previousLoops map[wire.Name]*resolver.Loop
	keys          partKeys
}

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
	// primaries is what the zones of primary servers share, over all generations.
	primaries *zonefile.Primaries
	// budgets are those of all upstreams, over all generations.
	budgets *upstream.Budgets
	// clientLevels knows the level of the metrics of each namespace; nil: no queries are counted.
	clientLevels *clientLevels
	// limiters makes the limiters of the blocks' clients.
	limiters limiters
	// transfers bounds and counts the zone transfers of all blocks.
	transfers *transfer.Transfers
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
	g.primaries = a.primaries
	if err := a.buildParts(g, old); err != nil {
		g.closeUnused(old)
		return nil, err
	}
	a.openTaps(g, old)
	a.openExporters(g, old)
	a.buildRoutes(g)
	return g, nil
}

// buildParts builds all parts of g but taps and routes. Views come first, because a block
// may forward to a Service in the view of another one.
func (a *builder) buildParts(g, old *generation) error {
	if err := a.openViews(g, old); err != nil {
		return err
	}
	for _, b := range g.cfg.Blocks {
		v, err := a.endpointsView(g, b, old)
		if err != nil {
			return err
		}
		g.blocks = append(g.blocks, &blockParts{
			block: b, endpointsView: v, keys: newPartKeys(g.cfg, b, g.keyOf(v)),
			loops: make(map[wire.Name]*resolver.Loop),
		})
	}
	g.reuseParts(old)
	for _, p := range g.blocks {
		if err := a.buildBlock(g, p, old); err != nil {
			return err
		}
	}
	return a.loadCertificates(g, old)
}

// buildBlock builds the parts of p that it does not reuse.
func (a *builder) buildBlock(g *generation, p *blockParts, old *generation) error {
	b := p.block
	p.policies, p.errors = newPolicies(b, a.opts.Build.Version, a.log), a.errorLog(b)
	a.limiters.add(p)
	for _, add := range []func(*blockParts) error{a.addHosts, a.addFile, a.addBalance} {
		if err := add(p); err != nil {
			return err
		}
	}
	a.addTransfer(p)
	a.addZones(p)
	if err := a.addClusterZone(g, p, old); err != nil {
		return err
	}
	if b.Autopath != nil {
		p.autopath = resolver.NewAutopath(b.Autopath, p.cluster)
	}
	if b.Rewrite != nil {
		p.rewrite = rewrite.New(b.Rewrite)
	}
	if b.Template != nil {
		p.template = template.New(b.Template)
	}
	if p.pools == nil {
		p.pools = a.newPools(p)
	}
	if b.Cache != nil && p.cache == nil {
		p.cache = a.store.NewCache(b.Cache, b.Boundaries()...)
	}
	return a.addLoops(g, p)
}

// addHosts adds the hosts table, unless p reuses one.
func (a *builder) addHosts(p *blockParts) (err error) {
	if p.block.Hosts == nil || p.hosts != nil {
		return nil
	}
	if p.hosts, err = hosts.New(p.block.Hosts, hosts.Options{Logger: a.log.With("part", "hosts"), Epochs: a.hostsEpochs}); err != nil {
		return fmt.Errorf("line %d, hosts: %w", p.block.Line, err)
	}
	return nil
}

// addFile adds the table of zone files, unless p reuses one.
func (a *builder) addFile(p *blockParts) (err error) {
	if p.block.ZoneFile == nil || p.file != nil {
		return nil
	}
	p.fileChanged = new(notifyHook)
	if p.file, err = zonefile.New(p.block.ZoneFile, zonefile.Options{Logger: a.log.With("part", "file"), Changed: p.fileChanged.changed}); err != nil {
		return fmt.Errorf("line %d, file: %w", p.block.Line, err)
	}
	return nil
}

// addZones adds the tables of the zones of a directory and of primary servers, unless p reuses them.
func (a *builder) addZones(p *blockParts) {
	if p.block.Auto != nil && p.auto == nil {
		p.autoChanged = new(notifyHook)
		p.auto = zonefile.NewAuto(p.block.Auto, zonefile.Options{Logger: a.log.With("part", "auto"), Changed: p.autoChanged.changed})
	}
	if p.block.Secondary != nil && p.secondary == nil {
		p.secondaryChanged = new(notifyHook)
		p.secondary = zonefile.NewSecondary(p.block.Secondary, a.primaries, zonefile.Options{Logger: a.log.With("part", "secondary"), Changed: p.secondaryChanged.changed})
	}
}

// addTransfer adds the table of who may transfer the block's zones, unless p reuses one.
func (a *builder) addTransfer(p *blockParts) {
	if p.block.Transfer != nil && p.transfer == nil {
		p.transfer = transfer.New(p.block.Transfer, a.transfers)
	}
}

// addBalance adds what orders addresses, unless p reuses one.
func (a *builder) addBalance(p *blockParts) (err error) {
	l := p.block.Loadbalance
	if p.balance != nil || l == nil || l.Weights == "" && len(l.Prefer) == 0 {
		return nil
	}
	if p.balance, err = balance.New(l, balance.Options{Logger: a.log.With("part", "loadbalance")}); err != nil {
		return fmt.Errorf("line %d, loadbalance: %w", p.block.Line, err)
	}
	return nil
}

// addClusterZone adds the parts that answer from a view.
func (a *builder) addClusterZone(g *generation, p *blockParts, old *generation) (err error) {
	b := p.block
	if b.Kubernetes == nil {
		return nil
	}
	if p.view, err = a.openView(g, b, old); err != nil {
		return err
	}
	p.cluster = kubernetes.NewZone(p.view, b.Kubernetes)
	if b.K8sExternal != nil {
		p.external = kubernetes.NewExternal(p.view, b.K8sExternal, b.Kubernetes)
	}
	addAnnouncer(p)
	return nil
}

// newPools returns the pools of the block's forward directives.
func (a *builder) newPools(p *blockParts) (pools []*upstream.Pool) {
	opts := upstream.Options{Logger: a.log.With("part", "upstream"), Own: p.block.ListensAt, Budgets: a.budgets}
	if p.endpointsView != nil {
		opts.Endpoints = p.endpointsView.Endpoints
	}
	for f := p.block.Forward; f != nil; f = f.Next {
		pools = append(pools, upstream.New(f, opts))
	}
	return upstream.Chain(pools)
}
