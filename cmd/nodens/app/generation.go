package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/upstream"
)

// generation is everything that the agent built from one configuration. A reload builds the
// next one, which reuses the parts that did not change.
type generation struct {
	cfg    *config.Config
	loaded time.Time                   // when it came into force
	blocks []*blockParts               // in the order of the Corefile
	views  map[string]*kubernetes.View // by viewKey
	// firstView is the viewKey of the first view, which has the policies; "" before it is opened.
	firstView string
	taps      map[config.Dnstap]*dnstap.Tap // by directive, without Next
	certs     map[config.TLSServer]*server.Certificate
	// exporters are the exporters of traces.
	exporters map[exporterKey]*otlp.Exporter
	// listeners is what the server listens on.
	listeners map[server.ListenAddr]server.ListenerConfig
}

func newGeneration(cfg *config.Config) *generation {
	return &generation{
		cfg:       cfg,
		views:     make(map[string]*kubernetes.View),
		taps:      make(map[config.Dnstap]*dnstap.Tap),
		certs:     make(map[config.TLSServer]*server.Certificate),
		exporters: make(map[exporterKey]*otlp.Exporter),
		listeners: make(map[server.ListenAddr]server.ListenerConfig),
	}
}

// synced returns nil once all views have received their first lists.
func (g *generation) synced() error {
	for _, v := range g.views {
		if !v.Loaded() {
			return errors.New("the view of the cluster is not synced yet")
		}
	}
	return nil
}

// syncPoll is the interval between two checks for a synced view. Syncing takes tens of
// milliseconds.
const syncPoll = 10 * time.Millisecond

// startupGCPercent is the garbage collector's target percentage during the first lists,
// which leave much garbage and few objects. At the default of 100 % they take a third more
// memory, which counts against the container's limit; at half of this value the start takes
// half as much CPU again.
const startupGCPercent = 25

// settled reports whether there is nothing to wait for before the sockets are opened: all views are synced, and each zone of a
// primary server is transferred, or the first attempt has failed.
func (g *generation) settled() bool {
	return g.synced() == nil && g.transfersSettled()
}

// saveViews writes all views to their files.
func (g *generation) saveViews() {
	for _, v := range g.views {
		v.Save()
	}
}

func (g *generation) transfersSettled() bool {
	return !slices.ContainsFunc(g.blocks, func(p *blockParts) bool {
		return slices.ContainsFunc(p.all(), func(part any) bool {
			s, ok := part.(interface{ Settled() bool })
			return ok && !s.Settled()
		})
	})
}

// awaitSync waits until g is settled, for limit at most; a limit of 0 means the
// longest startup_timeout, or that of transfers.
func (g *generation) awaitSync(ctx context.Context, limit time.Duration) {
	if limit == 0 {
		limit = g.startupTimeout()
	}
	await(ctx, limit, g.settled)
}

// await waits until done, for limit at most. Meanwhile the garbage collector runs more often.
func await(ctx context.Context, limit time.Duration, done func() bool) {
	if done() {
		return
	}
	before := debug.SetGCPercent(startupGCPercent)
	defer func() { debug.SetGCPercent(before) }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// maxTransferWait bounds the time for which the start, or a reload, waits for the zones of primary servers. Their names are
// SERVFAIL after that, as long as they are not transferred.
const maxTransferWait = 5 * time.Second

// startupTimeout returns the longest startup_timeout, or maxTransferWait.
func (g *generation) startupTimeout() (limit time.Duration) {
	if !g.transfersSettled() {
		limit = maxTransferWait
	}
	for _, p := range g.blocks {
		if p.block.Kubernetes != nil {
			limit = max(limit, p.block.Kubernetes.StartupTimeout)
		}
	}
	return limit
}

// startViews runs the views, unless old (nil: none) runs them already. launch decides when each ends.
func (g *generation) startViews(old *generation, launch func(part any, run func(context.Context))) {
	for _, v := range g.views {
		startPart(v, old, launch)
	}
}

// start runs the other parts that need a goroutine, unless old (nil: none) runs them already.
func (g *generation) start(old *generation, launch func(part any, run func(context.Context))) {
	for _, t := range g.taps {
		startPart(t, old, launch)
	}
	for _, e := range g.exporters {
		startPart(e, old, launch)
	}
	for _, p := range g.blocks {
		for _, part := range p.all() {
			if j, ok := part.(interface{ join(p *blockParts) }); ok {
				j.join(p)
			}
			if r, ok := part.(runner); ok {
				startPart(r, old, launch)
			}
		}
	}
}

// runner is a part that needs a goroutine. Run returns when ctx ends.
type runner interface{ Run(ctx context.Context) }

// startPart is [generation.start] for one part.
func startPart(part runner, old *generation, launch func(part any, run func(context.Context))) {
	if !old.owns(part) {
		launch(part, part.Run)
	}
}

// owns reports whether part is in use in g. A nil generation owns nothing.
func (g *generation) owns(part any) bool {
	if g == nil {
		return false
	}
	return isValue(part, g.views) || isValue(part, g.taps) || isValue(part, g.exporters) ||
		slices.ContainsFunc(g.blocks, func(p *blockParts) bool { return slices.Contains(p.all(), part) })
}

// isValue reports whether part is a value of m.
func isValue[K, V comparable](part any, m map[K]V) bool {
	for _, v := range m {
		if part == any(v) {
			return true
		}
	}
	return false
}

// closeUnused closes all of g's parts but those that keep (nil: none) owns.
func (g *generation) closeUnused(keep *generation) {
	g.stopUnused(keep)
	closePools(g.unusedPools(keep))
}

// stopUnused is closeUnused without the pools.
func (g *generation) stopUnused(keep *generation) {
	for _, p := range g.blocks {
		for _, part := range p.all() {
			switch part := part.(type) {
			case interface{ Close() }:
				if !keep.owns(part) {
					part.Close()
				}
			case interface{ Stop() }:
				part.Stop()
			}
		}
	}
	for _, l := range g.listeners {
		for z := range l.Routes.Zones() {
			z.Log.Stop()
		}
	}
}

// unusedPools returns g's pools that keep does not own.
func (g *generation) unusedPools(keep *generation) (list []*upstream.Pool) {
	for _, p := range g.blocks {
		if u := part[*pools](p, "forward"); u != nil && !keep.owns(u) {
			list = append(list, u.list...)
		}
	}
	return list
}

func closePools(pools []*upstream.Pool) {
	for _, u := range pools {
		_ = u.Close()
	}
}

// addresses returns the listen addresses, without duplicates, in order.
func (g *generation) addresses() (list []string) {
	for addr, l := range g.listeners {
		list = append(list, serverLabel(l.Transport, addr.AddrPort))
	}
	slices.Sort(list)
	return list
}

// zones returns the zones, without duplicates, in the order of the Corefile.
func (g *generation) zones() (list []string) {
	for _, p := range g.blocks {
		for _, z := range p.block.Zones {
			list = appendNew(list, z.String())
		}
	}
	return list
}

// upstreams returns the upstreams, without duplicates, in the order of the Corefile.
func (g *generation) upstreams() (list []string) {
	for _, p := range g.blocks {
		for f := p.block.Forward; f != nil; f = f.Next {
			for _, to := range f.To {
				list = appendNew(list, fmt.Sprint(to))
			}
		}
	}
	return list
}

// setLimits sets the limits of g's views: the largest of the directives that share one. They are no part of
// viewKey, because they change nothing that a view has, and may be set while it runs.
func (g *generation) setLimits() {
	type limits struct {
		idle time.Duration
		most int
	}
	largest := make(map[*kubernetes.View]limits)
	for _, p := range g.blocks {
		if p.view != nil {
			k, l := p.block.Kubernetes, largest[p.view]
			largest[p.view] = limits{max(l.idle, k.ScopeIdle), max(l.most, k.ScopeMax)}
		}
	}
	for v, l := range largest {
		v.SetLimits(l.idle, l.most)
	}
}

// keyOf returns the key of one of g's views, "" for nil.
func (g *generation) keyOf(v *kubernetes.View) string {
	for key, known := range g.views {
		if known == v {
			return key
		}
	}
	return ""
}

// isClusterIP reports whether addr is the cluster IP of a Service in one of g's views.
func (g *generation) isClusterIP(addr netip.Addr) bool {
	for _, v := range g.views {
		if v.IsClusterIP(addr) {
			return true
		}
	}
	return false
}

// keys returns the keys of one directive in all blocks.
func (g *generation) keys(directive string) []partKey {
	list := make([]partKey, len(g.blocks))
	for i, p := range g.blocks {
		list[i] = p.keys[directive]
	}
	return list
}

// endpoints returns what knows the endpoints of Services: the first view that has endpoints; nil if none has.
func (g *generation) endpoints() *endpointsFunc {
	for _, p := range g.blocks {
		if p.view != nil && !p.block.Kubernetes.NoEndpoints {
			f := endpointsFunc(p.view.Endpoints)
			return &f
		}
	}
	return nil
}

// policies returns the table of the policies, nil for none.
func (g *generation) policies() *dnspolicy.Table {
	if v := g.views[g.firstView+withPolicies]; v != nil {
		return v.Policies()
	}
	return nil
}

// detectors returns the detectors of g's blocks.
func (g *generation) detectors() (list []*tunnel.Detector) {
	for _, p := range g.blocks {
		if d := part[*tunnel.Detector](p, "tunnel"); d != nil {
			list = append(list, d)
		}
	}
	return list
}
