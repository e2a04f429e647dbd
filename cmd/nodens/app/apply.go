package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/upstream"
)

// apply builds what cfg describes, and serves it: the first configuration once its views are synced or the time
// for it is over, a later one as [agent.applyChange] says. On an error the agent keeps serving the old one.
func (a *agent) apply(ctx context.Context, cfg *config.Config) error {
	old := a.current.Load()
	g, err := a.builder.build(cfg, old)
	if err != nil {
		return err
	}
	if old != nil {
		return a.applyChange(ctx, g, old)
	}
	if a.predecessor == nil { // else the predecessor still answers probes
		a.warnOfHolders(g)
		if err := a.http.Listen(a.handlers(g)); err != nil {
			g.closeUnused(nil)
			return err
		}
	}
	launch := a.launcher(ctx)
	g.startViews(nil, launch)
	g.start(nil, launch)
	err = a.waitSynced(ctx, g) // meanwhile the predecessor or the cluster DNS serves
	if err == nil {
		err = a.server.Listen(g.listeners)
	}
	if err != nil {
		a.closeUnused(g, nil)
		return err
	}
	a.serve(ctx, g)
	return nil
}

// switchTo serves g in place of old. On an error it closes g, and the agent keeps serving old.
func (a *agent) switchTo(ctx context.Context, g, old *generation) error {
	g.start(old, a.launcher(ctx))
	g.awaitSync(ctx, maxTransferWait) // for the zones of primary servers
	err := a.http.Listen(a.handlers(g))
	if err != nil {
		a.closeUnused(g, old)
		return err
	}
	if err := a.server.Listen(g.listeners); err != nil {
		a.closeUnused(g, old)
		return errors.Join(err, a.http.Listen(a.handlers(old)))
	}
	a.serve(ctx, g)
	a.replace(ctx, old, g)
	return nil
}

// serve makes g, to which the listeners lead, the current generation.
func (a *agent) serve(ctx context.Context, g *generation) {
	g.loaded = time.Now()
	a.current.Store(g)
	g.setLimits()
	a.applyProcessSettings(g.cfg)
	for _, text := range g.cfg.Warnings {
		a.log.Warn("configuration warning", "warning", text)
	}
	for _, pattern := range g.cfg.EmptyImports {
		a.log.Info("no file matches the pattern of an import", "pattern", pattern)
	}
	a.fallback.useView(g)
	a.watchLoops(ctx, g)
}

// waitSynced waits until the views of g, the first generation, are synced, or the time for it is over. It first
// releases the pages of the program that the first lists do not use, and then also fetches the sockets and the cached answers of the predecessor, or reads the saved ones. It
// returns the garbage of the first lists to the system, which would otherwise stay for
// minutes.
func (a *agent) waitSynced(ctx context.Context, g *generation) error {
	if !g.settled() {
		a.releaseProgramPages() // the first lists need memory, and map two thirds of these pages again
	}
	if a.predecessor == nil {
		g.awaitSync(ctx, 0)
		return a.restoreCache(ctx, g)
	}
	g.awaitSync(ctx, syncTimeout)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	debug.FreeOSMemory() // before this agent has queries to delay
	if err := a.receiveSockets(ctx); err != nil {
		return err
	}
	if err := g.synced(); err != nil && a.predecessor != nil {
		return fmt.Errorf("taking over from the running agent: %w; it keeps serving; check why the API server does not answer", err)
	}
	if err := a.restoreCache(ctx, g); err != nil {
		return err
	}
	return a.http.Listen(a.handlers(g))
}

// launcher returns what runs a part of a generation until closeUnused stops it, or ctx ends.
func (a *agent) launcher(ctx context.Context) func(part any, run func(context.Context)) {
	return func(part any, run func(context.Context)) { a.launch(ctx, part, run) }
}

// launch runs a part until stopUnused stops it, or ctx ends.
func (a *agent) launch(ctx context.Context, part any, run func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	a.cancels[part] = cancel
	a.background.Go(func() { run(ctx) })
}

// closeUnused stops and closes all parts of g but those that keep (nil: none) owns.
func (a *agent) closeUnused(g, keep *generation) {
	a.stopUnused(g, keep)
	closePools(g.unusedPools(keep))
}

// stopUnused stops all parts of g but the pools and what keep (nil: none) owns.
func (a *agent) stopUnused(g, keep *generation) {
	for part, cancel := range a.cancels {
		if g.owns(part) && !keep.owns(part) {
			cancel()
			delete(a.cancels, part)
		}
	}
	g.stopUnused(keep)
}

const (
	// drainTime is how long replaced pools stay open: the longest deadline of a query that
	// was in flight at the reload, and a margin.
	drainTime = upstream.DefaultDeadline + time.Second
	// maxDraining bounds the generations with open old pools. At the limit the next reload
	// waits; it takes a signal every 200 ms.
	maxDraining = 32
)

// replace stops the parts of old that g does not reuse. Its pools stay open for drainTime,
// for queries in flight.
func (a *agent) replace(ctx context.Context, old, g *generation) {
	pools := old.unusedPools(g)
	a.stopUnused(old, g)
	if len(pools) == 0 {
		return
	}
	select {
	case a.draining <- struct{}{}:
	case <-ctx.Done(): // there will be no further reload
	}
	a.background.Go(func() {
		select {
		case <-time.After(drainTime):
		case <-a.drained:
		}
		closePools(pools)
		select {
		case <-a.draining:
		default:
		}
	})
}

// applyProcessSettings sets the log level and the block profile rate, which the whole process
// shares: the highest that a block of cfg asks for. The
// `debug` directive logs more than --log-level says, never less.
func (a *agent) applyProcessSettings(cfg *config.Config) {
	level, rate := a.opts.LogLevel, 0
	for _, b := range cfg.Blocks {
		if b.Debug != nil {
			level = slog.LevelDebug
		}
		if b.Pprof != nil {
			rate = max(rate, b.Pprof.BlockRate)
		}
	}
	a.logLevel.Set(level)
	runtime.SetBlockProfileRate(rate)
}
