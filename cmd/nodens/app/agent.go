package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// maxLameduck cuts `lameduck`: the whole stop has to fit into five seconds,
	// teardown and the last queries included.
	maxLameduck = 2 * time.Second
	// shutdownGrace is for queries under way when the sockets close. Those that take
	// longer are for a dead upstream, and the client asks elsewhere.
	shutdownGrace = time.Second
)

// agent is a running nodens.
type agent struct {
	opts     *Options
	log      *slog.Logger
	logLevel *slog.LevelVar // of log
	server   *server.Server
	http     *httpServers
	builder  builder
	net      *netsetup.Setup // nil: the node's network is left alone
	// fallback is nil where there are no rules.
	fallback *fallback
	fastPath *fastPath // nil: -kernel-path=off
	active   activeTasks
	handoverState
	selfProbe *selfProbe

	current  atomic.Pointer[generation]
	stopping atomic.Bool
	serving  atomic.Bool // sockets listen and rules stand
	// reloadFailed counts all reloads that failed, configMapFailed those for what
	// the kube-dns ConfigMap says.
	reloadFailed, configMapFailed atomic.Uint64
	reloadState                   reloadState
	background                    sync.WaitGroup
	// cancels stop the parts that run; only run's goroutine uses it.
	cancels map[any]context.CancelFunc
	fatal   chan error

	draining chan struct{} // one value for each generation whose pools linger
	drained  chan struct{} // closed when no query is on its way any more
}

// Serve runs an agent until ctx ends, or until it has handed over to another agent. It logs
// to log. An error means that the agent did not
// start, or could not go on; it names the setting at fault.
func Serve(ctx context.Context, opts Options, log io.Writer) error {
	a, cfg, err := prepare(&opts, log)
	if err != nil {
		return err
	}
	return a.run(ctx, cfg)
}

// prepare returns an agent that logs to w, and the configuration to serve.
func prepare(opts *Options, w io.Writer) (*agent, *config.Config, error) {
	level := new(slog.LevelVar)
	log, err := newLogger(opts.LogFormat, w, level)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := opts.LoadConfig()
	if err != nil {
		return nil, nil, err
	}
	a, err := newAgent(opts, log, level)
	return a, cfg, err
}

// newAgent returns an agent that has nothing to serve yet. It sets level, which must be the
// level of log, as the configuration says.
func newAgent(opts *Options, log *slog.Logger, level *slog.LevelVar) (*agent, error) {
	short, err := openFastPath(opts, log, hostPlatform())
	if err != nil {
		return nil, err
	}
	srv := server.New(log, server.Limits{Readers: opts.Readers, Poller: opts.Polled})
	if short.available() {
		srv.UseKernel(short.program)
	}
	clusterEpochs, cacheEpochs := short.epochs()
	addrs := newHostAddrs()
	a := &agent{
		fastPath: short,

		opts:     opts,
		log:      log,
		logLevel: level,
		server:   srv,
		http:     &httpServers{log: log, reusePort: opts.HandoverDir != "", local: addrs.has, servers: make(map[string]*httpServer)},
		builder: builder{
			opts: opts, log: log, stats: make(map[statsKey]*resolver.Stats),
			store:  cache.NewStore(opts.CacheSize, cache.Options{Go: srv.Go, Epochs: cacheEpochs, Clock: opts.CacheClock}),
			epochs: clusterEpochs, addrs: addrs,
		},
		selfProbe: &selfProbe{duration: stat.NewHistogram(stat.DurationBuckets)},
		cancels:   make(map[any]context.CancelFunc),
		fatal:     make(chan error, 1),

		draining: make(chan struct{}, maxDraining),
		drained:  make(chan struct{}),
	}
	a.mainCalls, a.mainClosed = make(chan func(context.Context)), make(chan struct{})
	if !opts.SetsUpNetwork() {
		return a, nil
	}
	if a.net, err = netsetup.New(opts.Network(log), nil); err != nil {
		return nil, err
	}
	if opts.rules() {
		a.fallback = newFallback(log.With("part", "netsetup"), opts.UpstreamService, a.net.Divert)
	}
	return a, nil
}

// run starts everything, serves, and takes everything down again.
func (a *agent) run(asked context.Context, cfg *config.Config) (err error) {
	defer a.background.Wait()
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	defer func() {
		if errors.Is(err, context.Canceled) && asked.Err() != nil {
			err = nil // the stop came before the start was complete
		}
	}()
	defer func() { err = errors.Join(err, a.shutdown()) }()
	if err := a.start(ctx, cfg); err != nil {
		return err
	}
	a.log.Info("serving", "version", a.opts.Build.String(), "config", cfg.Path, "hash", cfg.Hash)
	return a.loop(ctx)
}

// start does it in the order that never leaves a packet without somebody to take it:
// addresses, sockets, and only then the rules that keep packets away from the cluster
// DNS. An agent that runs already gives what it has at each step, and serves until all
// of them are done.
func (a *agent) start(ctx context.Context, cfg *config.Config) error {
	steps := []func(context.Context) error{
		a.connectPredecessor,
		a.setUpInterface,
		func(ctx context.Context) error { return a.apply(ctx, cfg) },
		a.setUpRules,
		a.commitHandover,
		a.startActive,
		a.listenForSuccessor,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	a.startSelfProbe(ctx)
	if a.predecessor == nil { // else ripen has seen to the garbage of the first lists
		debug.FreeOSMemory()
	}
	a.serving.Store(true)
	return nil
}

// startSelfProbe starts looking at the first health endpoint there is.
func (a *agent) startSelfProbe(ctx context.Context) {
	for _, b := range a.current.Load().cfg.Blocks {
		if b.Health != nil {
			a.background.Go(func() { a.selfProbe.run(ctx, b.Health.Addr) })
			return
		}
	}
}

// loop waits for the end, does what a successor asks for, and reloads until then.
func (a *agent) loop(ctx context.Context) error {
	timer := time.NewTimer(a.reloadInterval())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			if !a.waitHandover(ctx) {
				a.lameduck()
			}
			return nil
		case err := <-a.fatal:
			return err
		case order := <-a.mainCalls:
			order(ctx)
			continue
		case <-a.handedOver():
			a.log.Info("all is handed over")
			return nil
		case <-a.opts.Reload:
			a.reload(ctx, true)
		case <-timer.C:
			a.reload(ctx, false)
		}
		timer.Reset(a.reloadInterval())
	}
}

// never is an interval that does not come.
const never = 1<<63 - 1

// apply makes cfg what is served. On an error what was served before still is.
func (a *agent) apply(ctx context.Context, cfg *config.Config) error {
	old := a.current.Load()
	g, err := a.builder.build(cfg, old)
	if err != nil {
		return err
	}
	if a.predecessor == nil || old != nil { // else the agent that runs answers probes
		if err := a.http.listen(a.handlers(g)); err != nil {
			g.closeUnused(old)
			return err
		}
	}
	g.start(old, func(part any, run func(context.Context)) { a.launch(ctx, part, run) })
	// Until then the old generation serves or, at the start, the agent before this one
	// does, or the node's packets find another way.
	err = a.waitSynced(ctx, g, old)
	if err == nil {
		err = a.server.Listen(g.listeners)
	}
	if err != nil {
		a.stopUnused(g, old)
		closePools(g.unusedPools(old))
		if old != nil {
			return errors.Join(err, a.http.listen(a.handlers(old)))
		}
		return err
	}
	a.current.Store(g)
	a.applyProcessSettings(cfg)
	for _, text := range cfg.Warnings {
		a.log.Warn("configuration: " + text)
	}
	if old != nil {
		a.replace(ctx, old, g)
	}
	a.fallback.useView(g)
	a.watchLoops(ctx, g)
	return nil
}

// waitSynced waits until g knows as much as it should before it serves. The first lists of a
// large cluster leave as much garbage as they leave objects; at the start of a process it
// is collected then, or it would be kept for the minutes until the next collection, and
// its pages for longer.
func (a *agent) waitSynced(ctx context.Context, g, old *generation) error {
	if old != nil {
		g.awaitSync(ctx, 0)
		return nil
	}
	if a.predecessor == nil {
		g.awaitSync(ctx, 0)
		return a.restoreCache(ctx, g)
	}
	g.awaitSync(ctx, syncTimeout)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	debug.FreeOSMemory() // before the first query comes that would wait for it
	if err := a.receiveSockets(ctx); err != nil {
		return err
	}
	if err := g.synced(); err != nil && a.predecessor != nil {
		return fmt.Errorf("taking over from the agent that runs: %w; it goes on serving; look why the API server does not answer", err)
	}
	if err := a.restoreCache(ctx, g); err != nil {
		return err
	}
	return a.http.listen(a.handlers(g))
}

// launch runs one part until it is retired or the agent ends.
func (a *agent) launch(ctx context.Context, part any, run func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	a.cancels[part] = cancel
	a.background.Go(func() { run(ctx) })
}

// fail ends the agent with err: kubelet starts it anew, with a clear last line in
// the log.
func (a *agent) fail(err error) {
	select {
	case a.fatal <- err:
	default:
	}
}

// stopUnused ends the parts of g that keep (nil: none) does not have, but for the pools.
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
	// drainTime is how long the pools of a generation stay open after another has
	// come in its place: whatever was on its way then has had its answer, or the
	// whole deadline of an exchange and the time to be handed over. With half of it
	// a reload would fail queries; more than all of it has nobody to wait for.
	drainTime = upstream.DefaultDeadline + time.Second
	// maxDraining bounds the generations whose pools do. At the shortest interval
	// of `reload` there are three; it takes a signal every 200 ms to meet it, and
	// the next reload then waits.
	maxDraining = 32
)

// replace retires old, in whose place g has come. Queries that were on their way
// through old's pools find them open until they are done.
func (a *agent) replace(ctx context.Context, old, g *generation) {
	pools := old.unusedPools(g)
	a.stopUnused(old, g)
	if len(pools) == 0 {
		return
	}
	select {
	case a.draining <- struct{}{}:
	case <-ctx.Done(): // and no further reload will come
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
