package app

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
)

const (
	// changeWait is how long a reload itself waits for new views. Meanwhile the agent does nothing else that
	// belongs to its main goroutine. While the API server answers, views sync in less.
	changeWait = time.Second
	// awaitedPoll is the interval between two checks of views that take longer.
	awaitedPoll = 100 * time.Millisecond
	// awaitedLog is the interval at which the log says again what a change waits for.
	awaitedLog = time.Minute
)

// errAwaitsViews says that a configuration is valid, and waits for its views of the cluster.
var errAwaitsViews = errors.New("waiting for the view of the cluster")

// awaited is a configuration that waits for its views: they run, nothing else of it does. It belongs to the
// goroutine of [agent.run], but for shown.
type awaited struct {
	next *generation // nil: none waits
	tick *time.Ticker
	told time.Time // when the log last said so
	// shown is what /status shows; nil: none waits.
	shown atomic.Pointer[report.Awaited]
}

// applyChange serves g in place of old once all views that it needs are synced. Without the API server that may
// take as long as the outage, and old, whose views have their data, serves meanwhile: applyChange
// returns errAwaitsViews, and [agent.checkAwaited] serves g later. On any other error it closes g.
func (a *agent) applyChange(ctx context.Context, g, old *generation) error {
	g.startViews(old, a.launcher(ctx))
	awaitViews(ctx, changeWait, g, old)
	if !losesNames(g, old) {
		return a.switchTo(ctx, g, old)
	}
	if ctx.Err() != nil { // the agent stops
		a.closeUnused(g, old)
		return errAwaitsViews
	}
	w := &a.awaited
	w.next, w.tick, w.told = g, time.NewTicker(awaitedPoll), time.Now()
	w.shown.Store(&report.Awaited{Since: w.told.UTC(), Hash: g.cfg.Hash})
	a.logAwaited()
	return errAwaitsViews
}

// beat returns the channel that says when to check the views of the awaited configuration; nil for none.
func (w *awaited) beat() <-chan time.Time {
	if w.next == nil {
		return nil
	}
	return w.tick.C
}

// is reports whether it is cfg that waits.
func (w *awaited) is(cfg *config.Config) bool {
	return w.next != nil && w.next.cfg.Digest == cfg.Digest
}

// take returns the configuration that waits, and forgets it.
func (w *awaited) take() *generation {
	g := w.next
	w.tick.Stop()
	w.next = nil
	w.shown.Store(nil)
	return g
}

// checkAwaited serves the configuration that waits if its views are synced, but not during a handover.
func (a *agent) checkAwaited(ctx context.Context) {
	w, old := &a.awaited, a.current.Load()
	if a.handoverInProgress() {
		return
	}
	if losesNames(w.next, old) {
		if time.Since(w.told) >= awaitedLog {
			w.told = time.Now()
			a.logAwaited()
		}
		return
	}
	g := w.take()
	if err := a.switchTo(ctx, g, old); err != nil {
		a.setRefused(err, true)
		return
	}
	a.clearRefused()
	a.log.Info("reload: the new configuration is in force", "hash", shortHash(g.cfg))
}

// dropAwaited closes the configuration that waits, if there is one: the files no longer hold it, or the agent stops.
func (a *agent) dropAwaited() {
	if a.awaited.next == nil {
		return
	}
	a.closeUnused(a.awaited.take(), a.current.Load())
}

func (a *agent) logAwaited() {
	a.log.Warn("reload: the new configuration waits for its view of the cluster; the old one stays", "hash", shortHash(a.awaited.next.cfg),
		"resources", unlistedOf(a.awaited.next), "fix", "check why the API server does not answer, or undo the change of the kubernetes directive")
}

// unlistedOf returns the resources that views of g have not listed yet.
func unlistedOf(g *generation) (list []string) {
	for _, v := range g.views {
		if !v.Loaded() {
			list = union(list, v.Stats().Gaps.Unlisted)
		}
	}
	return list
}

// losesNames reports whether g, in place of old, could not answer names of the cluster that old can: a view that
// only g has has not listed a resource yet, and old waits for no such list, or has no view at all for the zones.
func losesNames(g, old *generation) bool {
	lost := func(v *kubernetes.View, of *config.Block) bool {
		if v == nil || v.Loaded() || old.owns(v) {
			return false
		}
		known := unlistedFor(old, of)
		return slices.ContainsFunc(v.Stats().Gaps.Unlisted, func(r string) bool { return !slices.Contains(known, r) })
	}
	return slices.ContainsFunc(g.blocks, func(p *blockParts) bool {
		return lost(p.view, p.block) || p.endpointsView != nil && lost(p.endpointsView, config.Cluster(g.cfg.Blocks, p.block))
	})
}

// unlistedFor returns the resources that all views for zones of b's kubernetes directive have yet to list, none
// without such a view.
func unlistedFor(g *generation, b *config.Block) (list []string) {
	first := true
	for _, p := range g.blocks {
		if p.view == nil || !slices.ContainsFunc(p.block.Kubernetes.Zones, func(z wire.Name) bool { return slices.Contains(b.Kubernetes.Zones, z) }) {
			continue
		}
		missing := p.view.Stats().Gaps.Unlisted
		if first {
			list, first = missing, false
		}
		list = slices.DeleteFunc(list, func(r string) bool { return !slices.Contains(missing, r) })
	}
	return list
}

// awaitViews waits until g loses no names of old, for limit at most.
func awaitViews(ctx context.Context, limit time.Duration, g, old *generation) {
	await(ctx, limit, func() bool { return !losesNames(g, old) })
}
