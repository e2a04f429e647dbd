package app

import (
	"log/slog"
	"maps"
	"slices"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/upstream"
)

// directive is what the agent does for one directive of a server block. Its functions are called only
// for blocks that have the directive; nil functions do nothing.
type directive struct {
	name string
	// key returns everything that the block's part is made of. A reload keeps a part whose key is equal,
	// wherever its block stands in the Corefile. Without key, every reload opens a new part.
	key func(x keyed) any
	// open returns the block's part, nil for none. A part with a method Run(context.Context) runs, and
	// one with Close() or Stop() is closed, when a later configuration no longer uses it.
	open func(a *builder, p *blockParts) (any, error)
	// install returns a function that sets the directive, and part, in a zone of the block. The zone already
	// has its name, address and counters.
	install func(a *builder, p *blockParts, part any) func(z *resolver.Zone)
	// beside returns another part, which runs with the block's parts; nil for none. All of these are open.
	beside func(p *blockParts) runner
	// metrics puts the metrics of the directive in all blocks of g.
	metrics func(s *scrape, g *generation)
	// check reads what the agent reads of b's directive when it starts, its files or selectors, and reports what is wrong with it.
	check func(b *config.Block, to *config.FileCheck)
}

// optional returns the directives that a build may lack. A build without one of these lines refuses its directives, and the
// linker leaves out their packages.
func optional(log *slog.Logger) (list []directive) {
	list = append(list, authoritative(log)...) // rpz, file, auto, secondary, transfer, tsig
	return list
}

// Lacks returns the directives that this build refuses ([config.Options]).
func Lacks() []string {
	list := optional(discardLog)
	return slices.DeleteFunc(config.Optional(), func(name string) bool {
		return slices.ContainsFunc(list, func(d directive) bool { return d.name == name })
	})
}

// CheckFiles reads the files and the selectors that b's directives read when the agent starts.
func CheckFiles(b *config.Block, to *config.FileCheck) {
	for _, d := range slices.Concat(directives[:], optional(discardLog)) {
		if d.check != nil && b.Has(d.name) {
			d.check(b, to)
		}
	}
}

var discardLog = slog.New(slog.DiscardHandler)

// directives is the table of directives that answer or observe queries, in the order in which parts are
// opened: a part that uses another one comes after it. The order of a query's steps is package
// resolver's. Directives that only set up listeners (bind, tls, timeouts, …) are in [listenerConfig]. Those of [optional] come after
// them.
var directives = [...]directive{
	{name: "errors", open: openErrors, install: setPart(func(z *resolver.Zone, log *resolver.ErrorLog) { z.Errors = log })},
	{name: "log", install: installLog},
	{name: "dnstap", install: installTaps},
	{name: "trace", install: shared(func(_ *builder, p *blockParts) *resolver.Tracing { return tracingOf(p.generation, p.block) },
		func(z *resolver.Zone, tracing *resolver.Tracing) { z.Tracing = tracing })},
	{name: "metadata", install: setting(func(z *resolver.Zone, b *config.Block) { z.Metadata = b.Metadata.Zones })},
	{name: "view", install: setting(func(z *resolver.Zone, b *config.Block) { z.View = resolver.NewView(b.View, z.Addr) })},
	{name: "client_limit", key: keyLimit, open: openLimiter, install: installLimit},
	{name: "acl", install: shared(func(_ *builder, p *blockParts) *resolver.ACL { return resolver.NewACL(p.block.ACL) },
		func(z *resolver.Zone, acl *resolver.ACL) { z.ACL = acl })},
	{name: "bufsize", install: setting(func(z *resolver.Zone, b *config.Block) { z.Bufsize = b.Bufsize.Size })},
	{name: "nsid", install: setting(func(z *resolver.Zone, b *config.Block) { z.NSID = b.NSID.ID })},
	{name: "header", install: setting(func(z *resolver.Zone, b *config.Block) { z.Header = b.Header })},
	{name: "any", install: setting(func(z *resolver.Zone, _ *config.Block) { z.Any = true })},
	{name: "minimal", install: setting(func(z *resolver.Zone, _ *config.Block) { z.Minimal = true })},
	{name: "whoami", install: setting(func(z *resolver.Zone, _ *config.Block) { z.Whoami = true })},
	{name: "local", install: shared(func(_ *builder, p *blockParts) *resolver.Local { return resolver.NewLocal(p.block.Local) },
		func(z *resolver.Zone, local *resolver.Local) { z.Local = local })},
	{name: "chaos", install: shared(func(a *builder, p *blockParts) *resolver.Chaos {
		return resolver.NewChaos(p.block.Chaos, "nodens-"+a.opts.Build.Version)
	}, func(z *resolver.Zone, chaos *resolver.Chaos) { z.Chaos = chaos })},
	{name: "dns64", install: shared(func(_ *builder, p *blockParts) *resolver.DNS64 { return resolver.NewDNS64(p.block.DNS64) },
		func(z *resolver.Zone, dns64 *resolver.DNS64) { z.DNS64 = dns64 })},
	{name: "aaaa", install: shared(func(a *builder, p *blockParts) *resolver.AAAA {
		return resolver.NewAAAA(p.block.AAAA, a.limiters.ranges)
	},
		func(z *resolver.Zone, aaaa *resolver.AAAA) { z.AAAA = aaaa })},
	{name: "rewrite", install: shared(func(_ *builder, p *blockParts) *rewrite.Rules { return rewrite.New(p.block.Rewrite) },
		func(z *resolver.Zone, rules *rewrite.Rules) { z.Rewrite = rules })},
	{name: "template", install: shared(func(_ *builder, p *blockParts) *template.Templates { return template.New(p.block.Template) },
		func(z *resolver.Zone, t *template.Templates) { z.Template = t })},
	{name: "loadbalance", key: func(x keyed) any { return *x.block.Loadbalance }, open: (*builder).openBalance,
		install: (*builder).installBalance},
	{name: "hosts", key: func(x keyed) any { return *x.block.Hosts }, open: (*builder).openHosts,
		install: setPart(func(z *resolver.Zone, t *hosts.Table) { z.Hosts = t })},
	{name: "kubernetes", open: (*builder).openCluster, install: (*builder).installCluster, check: checkSelectors},
	{name: "k8s_external", open: (*builder).openExternal,
		install: setPart(func(z *resolver.Zone, e *kubernetes.External) { z.External = e })},
	{name: "autopath", install: shared(func(_ *builder, p *blockParts) *resolver.Autopath {
		return resolver.NewAutopath(p.block.Autopath, p.cluster())
	},
		func(z *resolver.Zone, path *resolver.Autopath) { z.Autopath = path })},
	{name: "forward", key: keyPools, open: (*builder).openPools, install: (*builder).installPools},
	{name: "tunnel", key: func(x keyed) any { return *x.block.Tunnel }, open: (*builder).openTunnel,
		install: setPart(func(z *resolver.Zone, d *tunnel.Detector) { z.Tunnel = d }), metrics: readTunnels},
	{name: "cache", key: keyCache, open: (*builder).openCache,
		install: setPart(func(z *resolver.Zone, c *cache.Cache) { z.Cache = c })},
	{name: "keep", open: func(_ *builder, p *blockParts) (any, error) { return resolver.NewKeeper(p.block.Keep.Names), nil },
		install: func(_ *builder, _ *blockParts, part any) func(*resolver.Zone) { return part.(*resolver.Keeper).Add }},
	{name: "loop", open: openLoops, install: setPart(func(z *resolver.Zone, l *loops) { z.Loop = l.of[z.Name] })},
}

// setting is the install function of a directive that is copied from its block to each zone.
func setting(set func(z *resolver.Zone, b *config.Block)) func(*builder, *blockParts, any) func(*resolver.Zone) {
	return func(_ *builder, p *blockParts, _ any) func(*resolver.Zone) {
		return func(z *resolver.Zone) { set(z, p.block) }
	}
}

// shared is the install function of a directive that is compiled once for all zones of its block.
func shared[T any](compile func(a *builder, p *blockParts) T, set func(z *resolver.Zone, compiled T)) func(*builder, *blockParts, any) func(*resolver.Zone) {
	return func(a *builder, p *blockParts, _ any) func(*resolver.Zone) {
		compiled := compile(a, p)
		return func(z *resolver.Zone) { set(z, compiled) }
	}
}

// setPart is the install function of a directive whose part, of type T, is set in each zone.
func setPart[T any](set func(z *resolver.Zone, part T)) func(*builder, *blockParts, any) func(*resolver.Zone) {
	return func(_ *builder, _ *blockParts, part any) func(*resolver.Zone) {
		return func(z *resolver.Zone) { set(z, part.(T)) }
	}
}

// blockParts are the parts of one server block, by directive. All zones and addresses of the block share
// them. They do not change once their generation is built.
type blockParts struct {
	block      *config.Block
	generation *generation
	parts      map[string]any
	keys       map[string]partKey
	// keptFrom are the blocks of the generation before whose parts this one keeps, by directive; nil once the
	// generation is built.
	keptFrom map[string]*blockParts
	// view has the cluster's names for the kubernetes directive; nil without it.
	view *kubernetes.View
	// endpointsView resolves the upstreams that are Services; nil: none is one.
	endpointsView *kubernetes.View
	// beside are the parts that run beside these.
	beside []runner
}

// part returns the part of p's directive called name, the zero value if there is none.
func part[T any](p *blockParts, name string) T {
	v, _ := p.parts[name].(T)
	return v
}

func (p *blockParts) hosts() *hosts.Table       { return part[*hosts.Table](p, "hosts") }
func (p *blockParts) cache() *cache.Cache       { return part[*cache.Cache](p, "cache") }
func (p *blockParts) cluster() *kubernetes.Zone { return part[*kubernetes.Zone](p, "kubernetes") }
func (p *blockParts) external() *kubernetes.External {
	return part[*kubernetes.External](p, "k8s_external")
}

// pools returns the pools of the block's forward directives, in their order.
func (p *blockParts) pools() []*upstream.Pool {
	if u := part[*pools](p, "forward"); u != nil {
		return u.list
	}
	return nil
}

// loops returns the block's loop detectors by zone.
func (p *blockParts) loops() map[wire.Name]*resolver.Loop {
	if l := part[*loops](p, "loop"); l != nil {
		return l.of
	}
	return nil
}

// all returns everything in p that may run or must be closed.
func (p *blockParts) all() []any {
	list := slices.Collect(maps.Values(p.parts))
	for _, r := range p.beside {
		list = append(list, r)
	}
	return list
}
