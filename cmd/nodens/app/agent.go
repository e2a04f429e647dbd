package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
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

// loadConfig reads the Corefile the flags name. It touches nothing.
func (o *options) loadConfig() (*config.Config, error) {
	path, err := o.corefile()
	if err != nil {
		return nil, err
	}
	return config.Load(path, config.Options{
		Port:            o.dnsPort,
		LocalIPs:        o.localIPs,
		UpstreamService: o.upstreamSvc,
		KubeDNS:         o.kubeDNSDir,
		PrometheusAddr:  o.prometheusAddr,
		Interface:       o.interfaceAddrs,
	})
}

// interfaceAddrs gives the addresses of a network interface that `bind` names. The
// agent's own link may not be there yet; its addresses are known.
func (o *options) interfaceAddrs(name string) ([]netip.Addr, error) {
	if name == o.interfaceName && o.setupInterface && len(o.localIPs) > 0 {
		return o.localIPs, nil
	}
	return config.InterfaceAddrs(name)
}

// corefile decides between -basecorefile and -conf. NodeLocal DNSCache renders
// the one into the other; here the rendered text stays in memory, so the base is
// read wherever it is asked for, or is all there is.
func (o *options) corefile() (string, error) {
	if o.given["basecorefile"] {
		return o.baseConf, nil
	}
	_, confErr := os.Stat(o.conf)
	if confErr == nil {
		return o.conf, nil
	}
	if _, err := os.Stat(o.baseConf); err == nil && errors.Is(confErr, fs.ErrNotExist) {
		return o.baseConf, nil
	}
	return "", fmt.Errorf("reading the Corefile: %w; name one with -conf or -basecorefile", confErr)
}

// parts are the steps of one server block, nil where it does not have them. Zones
// and addresses of the block share them.
type parts struct {
	block    *config.Block
	guards   guards
	errors   *server.ErrorLog
	hosts    *hosts.Table
	view     *kubernetes.View
	cluster  *kubernetes.Zone
	external *kubernetes.External
	search   *server.Autopath
	rewrite  *rewrite.Rules
	template *template.Templates
	cache    *cache.Cache
	secrets  string           // tells apart what the certificates of upstreams were
	around   *kubernetes.View // that has the endpoints of upstreams that are Services
	pools    []*upstream.Pool // in the order of the block's forward directives
	loops    map[wire.Name]*server.Loop
}

// generation is everything that was made from one Config.
type generation struct {
	cfg   *config.Config
	parts []*parts
	views map[string]*kubernetes.View   // by what they watch
	taps  map[config.Dnstap]*dnstap.Tap // by their directives, Next aside
	certs map[config.TLSServer]*server.Certificate
	// listeners is what the server listens on.
	listeners map[netip.AddrPort]server.ListenerConfig
}

// statsKey says whose counters they are: they outlive generations.
type statsKey struct {
	via  config.Transport
	addr netip.AddrPort
	zone string // as labelled
	view string
}

// assembly makes generations.
type assembly struct {
	opts  *options
	log   *slog.Logger
	stats map[statsKey]*server.Stats
	store *cache.Store // where all caches keep what they keep
	addrs *hostAddrs
	// epochs are moved when what copies of the cluster's answers are made of changes; nil
	// where there are no copies.
	epochs *epoch.Table
}

// assemble makes the parts cfg asks for. What an earlier generation (nil: none)
// has in the same form is taken over as it is: a cache stays warm and a view
// synced. On an error whatever is new is closed again.
func (a *assembly) assemble(cfg *config.Config, old *generation) (*generation, error) {
	g := &generation{cfg: cfg, views: make(map[string]*kubernetes.View), taps: make(map[config.Dnstap]*dnstap.Tap), listeners: make(map[netip.AddrPort]server.ListenerConfig)}
	if err := a.look(g, old); err != nil {
		return nil, err
	}
	heirs := old.heirs(cfg.Blocks)
	for _, b := range cfg.Blocks {
		p, err := a.parts(g, b, old, heirs[b])
		if p != nil {
			g.parts = append(g.parts, p)
		}
		if err != nil {
			g.closeUnless(old)
			return nil, err
		}
	}
	if err := a.certify(g, old); err != nil {
		g.closeUnless(old)
		return nil, err
	}
	a.tap(g, old)
	a.route(g)
	return g, nil
}

// parts makes the steps of b, which inherits those of was (nil: none). With an error,
// what is there already is given too, to be closed.
func (a *assembly) parts(g *generation, b *config.Block, old *generation, was *parts) (*parts, error) {
	p := &parts{block: b, guards: newGuards(b), errors: a.errorLog(b), secrets: secrets(g.cfg, b), loops: make(map[wire.Name]*server.Loop)}
	var err error
	if p.hosts, err = a.hosts(b, was); err != nil {
		return nil, err
	}
	if err = a.cluster(g, p, old); err != nil {
		return nil, err
	}
	if b.Autopath != nil {
		p.search = server.NewAutopath(b.Autopath, p.cluster)
	}
	if b.Rewrite != nil {
		p.rewrite = rewrite.New(b.Rewrite)
	}
	if b.Template != nil {
		p.template = template.New(b.Template)
	}
	if p.around, err = a.neighbourhood(g, b, old); err != nil {
		return nil, err
	}
	a.outside(p, was)
	return p, a.loops(g, p, was)
}

// cluster makes the steps that answer from a view.
func (a *assembly) cluster(g *generation, p *parts, old *generation) (err error) {
	b := p.block
	if b.Kubernetes == nil {
		return nil
	}
	if p.view, err = a.view(g, b, old); err != nil {
		return err
	}
	p.cluster = kubernetes.NewZone(p.view, b.Kubernetes)
	if b.K8sExternal != nil {
		p.external = kubernetes.NewExternal(p.view, b.K8sExternal, b.Kubernetes)
	}
	return nil
}

func (a *assembly) hosts(b *config.Block, was *parts) (*hosts.Table, error) {
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

// view gives the view that b needs: blocks that watch the same share one.
func (a *assembly) view(g *generation, b *config.Block, old *generation) (*kubernetes.View, error) {
	addrs, err := reachable(b.Listen)
	if err != nil {
		return nil, err
	}
	key := watched(b, addrs)
	if v := g.views[key]; v != nil {
		return v, nil
	}
	if old != nil && old.views[key] != nil {
		g.views[key] = old.views[key]
		return old.views[key], nil
	}
	v, err := kubernetes.Open(b.Kubernetes, kubernetes.Options{
		Log: a.log.With("part", "kubernetes"), ServerAddrs: addrs, Node: a.opts.node(), Zone: a.opts.zone(),
		Epochs: a.epochs,
	})
	if err != nil {
		return nil, err
	}
	g.views[key] = v
	return v, nil
}

// reachable gives the addresses of listen, those of the machine in place of "all".
func reachable(listen []netip.AddrPort) ([]netip.Addr, error) {
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

// watched says what a view depends on (see [kubernetes.Open]): blocks for which it
// is the same share a view.
func watched(b *config.Block, addrs []netip.Addr) string {
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

// route makes the zones of every address, and says how clients come in there.
func (a *assembly) route(g *generation) {
	zones := make(map[netip.AddrPort][]*server.Zone)
	for _, p := range g.parts {
		b := p.block
		for _, addr := range b.Listen {
			g.listeners[addr] = g.door(g.listeners[addr], b)
			for _, name := range b.Zones {
				z := p.zone(name)
				z.View = newView(b, addr)
				z.Stats = a.counters(b.Transport, addr, name.String(), b.ViewName())
				z.Taps = a.taps(g, b)
				z.Log = a.queryLog(b, name.String(), addr.Addr())
				zones[addr] = append(zones[addr], z)
			}
		}
	}
	for addr, list := range zones {
		l := g.listeners[addr]
		l.Routes = server.NewRoutes(list, a.counters(l.Transport, addr, droppedZone, noView))
		g.listeners[addr] = l
	}
}

// droppedZone is CoreDNS's zone label for what no zone takes.
const droppedZone = "dropped"

func (a *assembly) counters(via config.Transport, addr netip.AddrPort, zone, view string) *server.Stats {
	k := statsKey{via, addr, zone, view}
	if a.stats[k] == nil {
		a.stats[k] = server.NewStats()
	}
	return a.stats[k]
}

func (p *parts) zone(name wire.Name) *server.Zone {
	b := p.block
	z := &server.Zone{
		Name: name, Hosts: p.hosts, Autopath: p.search, Cache: p.cache, Forward: p.pools,
		Loop: p.loops[name], Shuffle: b.Loadbalance != nil,
	}
	p.guard(z)
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
func (p *parts) designates(zone wire.Name) func(*upstream.Pool) bool {
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
func (p *parts) clusterDNS(zone wire.Name) func(*upstream.Pool) bool {
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

// listPercent is how much garbage there may be, in percent of what is kept, while first
// lists come in: of an object little is kept, and what a process has once taken counts
// against its limit. With half of it a start would take half as much CPU again; at the
// usual 100 % a first list takes a third more memory than what is left of it.
const listPercent = 25

// awaitSync waits until the views are synced, but no longer than limit; 0 is the
// directives' startup_timeout. Meanwhile garbage is collected early.
func (g *generation) awaitSync(ctx context.Context, limit time.Duration) {
	if g.synced() == nil {
		return
	}
	usual := debug.SetGCPercent(listPercent)
	defer func() { debug.SetGCPercent(usual) }()
	if limit == 0 {
		limit = g.patience()
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

// patience is the longest startup_timeout.
func (g *generation) patience() (limit time.Duration) {
	for _, p := range g.parts {
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
		if !old.has(v) {
			launch(v, v.Run)
		}
	}
	for _, t := range g.taps {
		if !old.has(t) {
			launch(t, t.Run)
		}
	}
	for _, p := range g.parts {
		if p.hosts != nil && !old.has(p.hosts) {
			launch(p.hosts, p.hosts.Run)
		}
	}
}

// has reports whether part is one of g's. A nil generation has none.
func (g *generation) has(part any) bool {
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
	return slices.ContainsFunc(g.parts, func(p *parts) bool {
		return part == any(p.hosts) || part == any(p.cache) || p.hasLoop(part) || slices.ContainsFunc(p.pools, func(u *upstream.Pool) bool { return part == any(u) })
	})
}
