package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/upstream"
)

// blockParts are the steps of one server block, nil where it does not have them. Zones
// and addresses of the block share them.
type blockParts struct {
	block         *config.Block
	policies      policies
	errors        *server.ErrorLog
	hosts         *hosts.Table
	view          *kubernetes.View
	cluster       *kubernetes.Zone
	external      *kubernetes.External
	autopath      *server.Autopath
	rewrite       *rewrite.Rules
	template      *template.Templates
	cache         *cache.Cache
	certDigest    string           // tells apart what the certificates of upstreams were
	endpointsView *kubernetes.View // that has the endpoints of upstreams that are Services
	pools         []*upstream.Pool // in the order of the block's forward directives
	loops         map[wire.Name]*server.Loop
}

// generation is everything that was made from one Config.
type generation struct {
	cfg    *config.Config
	blocks []*blockParts
	views  map[string]*kubernetes.View   // by what they watch
	taps   map[config.Dnstap]*dnstap.Tap // by their directives, Next aside
	certs  map[config.TLSServer]*server.Certificate
	// listeners is what the server listens on.
	listeners map[netip.AddrPort]server.ListenerConfig
}

// statsKey says whose counters they are: they outlive generations.
type statsKey struct {
	transport config.Transport
	addr      netip.AddrPort
	zone      string // as labelled
	view      string
}

// builder makes generations.
type builder struct {
	opts  *Options
	log   *slog.Logger
	stats map[statsKey]*server.Stats
	store *cache.Store // where all caches keep what they keep
	addrs *hostAddrs
	// epochs are moved when what copies of the cluster's answers are made of changes; nil
	// where there are no copies.
	epochs *epoch.Table
}

// build makes the parts cfg asks for. What an earlier generation (nil: none)
// has in the same form is taken over as it is: a cache stays warm and a view
// synced. On an error whatever is new is closed again.
func (a *builder) build(cfg *config.Config, old *generation) (*generation, error) {
	g := &generation{cfg: cfg, views: make(map[string]*kubernetes.View), taps: make(map[config.Dnstap]*dnstap.Tap), listeners: make(map[netip.AddrPort]server.ListenerConfig)}
	if err := a.openViews(g, old); err != nil {
		return nil, err
	}
	heirs := old.heirs(cfg.Blocks)
	for _, b := range cfg.Blocks {
		p, err := a.buildBlock(g, b, old, heirs[b])
		if p != nil {
			g.blocks = append(g.blocks, p)
		}
		if err != nil {
			g.closeUnused(old)
			return nil, err
		}
	}
	if err := a.loadCertificates(g, old); err != nil {
		g.closeUnused(old)
		return nil, err
	}
	a.openTaps(g, old)
	a.buildRoutes(g)
	return g, nil
}

// buildBlock makes the steps of b, which inherits those of was (nil: none). With an error,
// what is there already is given too, to be closed.
func (a *builder) buildBlock(g *generation, b *config.Block, old *generation, was *blockParts) (*blockParts, error) {
	p := &blockParts{block: b, policies: newPolicies(b), errors: a.errorLog(b), certDigest: certDigest(g.cfg, b), loops: make(map[wire.Name]*server.Loop)}
	var err error
	if p.hosts, err = a.hostsTable(b, was); err != nil {
		return nil, err
	}
	if err = a.addClusterZone(g, p, old); err != nil {
		return nil, err
	}
	if b.Autopath != nil {
		p.autopath = server.NewAutopath(b.Autopath, p.cluster)
	}
	if b.Rewrite != nil {
		p.rewrite = rewrite.New(b.Rewrite)
	}
	if b.Template != nil {
		p.template = template.New(b.Template)
	}
	if p.endpointsView, err = a.endpointsView(g, b, old); err != nil {
		return nil, err
	}
	a.setUpstreamsAndCache(p, was)
	return p, a.newLoops(g, p, was)
}

// addClusterZone makes the steps that answer from a view.
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
	return nil
}

func (a *builder) hostsTable(b *config.Block, was *blockParts) (*hosts.Table, error) {
	if b.Hosts == nil {
		return nil, nil
	}
	if was != nil && reflect.DeepEqual(was.block.Hosts, b.Hosts) {
		return was.hosts, nil
	}
	t, err := hosts.New(b.Hosts, hosts.Options{Logger: a.log.With("part", "hosts")})
	if err != nil {
		return nil, fmt.Errorf("line %d, hosts: %w", b.Line, err)
	}
	return t, nil
}

// openView gives the view that b needs: blocks that watch the same share one.
func (a *builder) openView(g *generation, b *config.Block, old *generation) (*kubernetes.View, error) {
	addrs, err := concreteAddrs(b.Listen)
	if err != nil {
		return nil, err
	}
	key := viewKey(b, addrs)
	if v := g.views[key]; v != nil {
		return v, nil
	}
	if old != nil && old.views[key] != nil {
		g.views[key] = old.views[key]
		return old.views[key], nil
	}
	v, err := kubernetes.Open(b.Kubernetes, kubernetes.Options{
		Log: a.log.With("part", "kubernetes"), ServerAddrs: addrs, Node: a.opts.NodeName, Zone: a.opts.NodeZone,
		Epochs: a.epochs,
	})
	if err != nil {
		return nil, err
	}
	g.views[key] = v
	return v, nil
}

// concreteAddrs gives the addresses of listen, those of the machine in place of "all".
func concreteAddrs(listen []netip.AddrPort) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, l := range listen {
		if !l.Addr().IsUnspecified() {
			addrs = append(addrs, l.Addr())
			continue
		}
		all, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("listing the machine's addresses: %w", err)
		}
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				addrs = append(addrs, p.Addr().Unmap())
			}
		}
	}
	return addrs, nil
}

// viewKey says what a view depends on (see [kubernetes.Open]): blocks for which it
// is the same share a view.
func viewKey(b *config.Block, addrs []netip.Addr) string {
	k := *b.Kubernetes
	var tls config.TLS
	if k.TLS != nil {
		tls = *k.TLS
	}
	return fmt.Sprintf("%q", []any{
		k.Endpoint, tls, k.Kubeconfig, k.Context, k.Manifests, k.QPS, k.Burst, k.Save, addrs,
		k.Labels, k.NamespaceLabels, k.NoEndpoints, k.EndpointPodNames, k.Multicluster, k.Zonal,
		k.Scope, k.ScopeIdle, k.ScopeMax, k.AllEndpoints, k.Topology, k.Pods == config.PodsVerified,
	})
}

// buildRoutes makes the zones of every address, and says how clients come in there.
func (a *builder) buildRoutes(g *generation) {
	zones := make(map[netip.AddrPort][]*server.Zone)
	for _, p := range g.blocks {
		b := p.block
		for _, addr := range b.Listen {
			g.listeners[addr] = g.listenerConfig(g.listeners[addr], b)
			for _, name := range b.Zones {
				z := p.newZone(name)
				z.View = newView(b, addr)
				z.Stats = a.statsFor(b.Transport, addr, name.String(), b.ViewName())
				z.Taps = a.blockTaps(g, b)
				z.Log = a.queryLog(b, name.String(), addr.Addr())
				zones[addr] = append(zones[addr], z)
			}
		}
	}
	for addr, list := range zones {
		l := g.listeners[addr]
		l.Routes = server.NewRoutes(list, a.statsFor(l.Transport, addr, droppedZone, noView))
		g.listeners[addr] = l
	}
}

// droppedZone is CoreDNS's zone label for what no zone takes.
const droppedZone = "dropped"

func (a *builder) statsFor(via config.Transport, addr netip.AddrPort, zone, view string) *server.Stats {
	k := statsKey{via, addr, zone, view}
	if a.stats[k] == nil {
		a.stats[k] = server.NewStats()
	}
	return a.stats[k]
}

func (p *blockParts) newZone(name wire.Name) *server.Zone {
	b := p.block
	z := &server.Zone{
		Name: name, Hosts: p.hosts, Autopath: p.autopath, Cache: p.cache, Forward: p.pools,
		Loop: p.loops[name], Shuffle: b.Loadbalance != nil,
	}
	p.setPolicies(z)
	if p.cluster != nil {
		z.Cluster, z.ClusterDNS = p.cluster, p.clusterDNS(name)
		z.Ordered = p.cluster.Ordered()
	}
	if p.external != nil {
		z.External = p.external
	}
	z.Designates = p.designates(name)
	z.Rewrite, z.Template = p.rewrite, p.template
	if b.Bufsize != nil {
		z.Bufsize = b.Bufsize.Size
	}
	z.Errors = p.errors
	return z
}

// designates tells which of p's pools may say what the designated resolvers of zone's
// clients are (RFC 9462): those that are configured for just that.
func (p *blockParts) designates(zone wire.Name) func(*upstream.Pool) bool {
	own := make(map[*upstream.Pool]bool)
	f := p.block.Forward
	for _, u := range p.pools {
		own[u] = server.InResolverZone(zone) || server.InResolverZone(f.From)
		f = f.Next
	}
	return func(u *upstream.Pool) bool { return own[u] }
}

// clusterDNS tells which of p's pools lead to the cluster's own DNS when they are
// asked for names in zone: those that get names of the cluster only, and those that
// have an address of a Service. The first is known from here on, the second may
// change. A resolver that gets all names of the world is neither, unless it is one of
// the cluster's.
func (p *blockParts) clusterDNS(zone wire.Name) func(*upstream.Pool) bool {
	inside := func(name wire.Name) bool {
		return slices.ContainsFunc(p.cluster.Origins(), func(o wire.Name) bool { return o != wire.Root && name.Under(o) })
	}
	type target struct {
		named bool
		to    []config.Target
	}
	targets := make(map[*upstream.Pool]target)
	f := p.block.Forward
	for _, u := range p.pools {
		targets[u] = target{named: inside(zone) || inside(f.From), to: f.To}
		f = f.Next
	}
	return func(u *upstream.Pool) bool {
		t := targets[u]
		return t.named || slices.ContainsFunc(t.to, func(a config.Target) bool { return a.Service != "" || p.view.IsClusterIP(a.Addr.Addr()) })
	}
}

// synced is nil once every view has had its first list, else it says what is
// missing.
func (g *generation) synced() error {
	for _, v := range g.views {
		if !v.Synced() {
			return errors.New("the view of the cluster is not synced yet")
		}
	}
	return nil
}

// syncPoll is how often a start looks whether the view is synced: a few looks
// within the tens of milliseconds a sync takes.
const syncPoll = 10 * time.Millisecond

// startupGCPercent is how much garbage there may be, in percent of what is kept, while first
// lists come in: of an object little is kept, and what a process has once taken counts
// against its limit. With half of it a start would take half as much CPU again; at the
// usual 100 % a first list takes a third more memory than what is left of it.
const startupGCPercent = 25

// awaitSync waits until the views are synced, but no longer than limit; 0 is the
// directives' startup_timeout. Meanwhile garbage is collected early.
func (g *generation) awaitSync(ctx context.Context, limit time.Duration) {
	if g.synced() == nil {
		return
	}
	usual := debug.SetGCPercent(startupGCPercent)
	defer func() { debug.SetGCPercent(usual) }()
	if limit == 0 {
		limit = g.startupTimeout()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	for g.synced() != nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// startupTimeout is the longest startup_timeout.
func (g *generation) startupTimeout() (limit time.Duration) {
	for _, p := range g.blocks {
		if p.block.Kubernetes != nil {
			limit = max(limit, p.block.Kubernetes.StartupTimeout)
		}
	}
	return limit
}

// start runs what has to be run: all that old (nil: none) does not run already.
// launch decides when each part ends.
func (g *generation) start(old *generation, launch func(part any, run func(context.Context))) {
	for _, v := range g.views {
		if !old.owns(v) {
			launch(v, v.Run)
		}
	}
	for _, t := range g.taps {
		if !old.owns(t) {
			launch(t, t.Run)
		}
	}
	for _, p := range g.blocks {
		if p.hosts != nil && !old.owns(p.hosts) {
			launch(p.hosts, p.hosts.Run)
		}
	}
}

// owns reports whether part is one of g's. A nil generation has none.
func (g *generation) owns(part any) bool {
	if g == nil {
		return false
	}
	for _, v := range g.views {
		if part == any(v) {
			return true
		}
	}
	for _, t := range g.taps {
		if part == any(t) {
			return true
		}
	}
	return slices.ContainsFunc(g.blocks, func(p *blockParts) bool {
		return part == any(p.hosts) || part == any(p.cache) || p.hasLoop(part) || slices.ContainsFunc(p.pools, func(u *upstream.Pool) bool { return part == any(u) })
	})
}
