package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// maxLameduck cuts `lameduck`: the whole stop has to fit into five seconds,
	// teardown and the last queries included.
	maxLameduck = 2 * time.Second
	// grace is for queries under way when the sockets close. Those that take
	// longer are for a dead upstream, and the client asks elsewhere.
	grace = time.Second
)

// agent is a running nodens.
type agent struct {
	opts     *options
	log      *slog.Logger
	server   *server.Server
	http     *endpoints
	assembly assembly
	net      *netsetup.Setup // nil: the node's network is left alone
	// diversion is nil where there are no rules.
	diversion *diversion
	shortcut  *shortcut // nil: -kernel-path=off
	care      care
	succession
	pulse *pulse
	usr1  chan os.Signal // asks for a reload

	current  atomic.Pointer[generation]
	stopping atomic.Bool
	serving  atomic.Bool // sockets listen and rules stand
	// reloadFailed counts all reloads that failed, configMapFailed those for what
	// the kube-dns ConfigMap says.
	reloadFailed, configMapFailed atomic.Uint64
	watch                         watch
	background                    sync.WaitGroup
	// cancels stop the parts that run; only run's goroutine uses it.
	cancels map[any]context.CancelFunc
	fatal   chan error

	lingering chan struct{} // one value for each generation whose pools linger
	drained   chan struct{} // closed when no query is on its way any more
}

// serve runs the agent until ctx ends.
func serve(ctx context.Context, opts *options, stderr io.Writer) error {
	a, cfg, err := prepare(opts, stderr)
	if err != nil {
		return err
	}
	return a.run(ctx, cfg)
}

// prepare makes an agent that logs to stderr, and reads what it is to serve.
func prepare(opts *options, stderr io.Writer) (*agent, *config.Config, error) {
	log, err := newLogger(opts.logFormat, stderr, opts.level)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := opts.loadConfig()
	if err != nil {
		return nil, nil, err
	}
	a, err := newAgent(opts, log)
	return a, cfg, err
}

func newAgent(opts *options, log *slog.Logger) (*agent, error) {
	short, err := openShortcut(opts, log, thisMachine())
	if err != nil {
		return nil, err
	}
	srv := server.New(log, server.Limits{Readers: opts.readers, Poller: opts.polled})
	if short.works() {
		srv.UseKernel(short.path)
	}
	clusterEpochs, cacheEpochs := short.epochs()
	addrs := newHostAddrs()
	a := &agent{
		shortcut: short,

		opts:   opts,
		log:    log,
		server: srv,
		http:   &endpoints{log: log, shared: opts.handoverDir != "", local: addrs.has, servers: make(map[string]*endpoint)},
		assembly: assembly{
			opts: opts, log: log, stats: make(map[statsKey]*server.Stats),
			store:  cache.NewStore(opts.cacheSize, cache.Options{Go: srv.Go, Epochs: cacheEpochs}),
			epochs: clusterEpochs, addrs: addrs,
		},
		pulse:   &pulse{took: stat.NewHistogram(stat.Seconds)},
		usr1:    make(chan os.Signal, 1),
		cancels: make(map[any]context.CancelFunc),
		fatal:   make(chan error, 1),

		lingering: make(chan struct{}, maxLingering),
		drained:   make(chan struct{}),
	}
	a.orders, a.deaf = make(chan func(context.Context)), make(chan struct{})
	if !opts.setsUpNetwork() {
		return a, nil
	}
	if a.net, err = netsetup.New(opts.network(log), nil); err != nil {
		return nil, err
	}
	if opts.rules() {
		a.diversion = newDiversion(log.With("part", "netsetup"), opts.upstreamSvc, a.net.Divert)
	}
	return a, nil
}

// setsUpNetwork: without -localip there is no address to give to a link, nor to
// make rules for.
func (o *options) setsUpNetwork() bool {
	return len(o.localIPs) > 0 && (o.setupInterface || o.rules())
}

func (o *options) network(log *slog.Logger) netsetup.Config {
	return netsetup.Config{
		Addresses:      o.localIPs,
		DNSPort:        o.dnsPort,
		HealthPort:     o.healthPort,
		InterfaceName:  o.interfaceName,
		SetupInterface: o.setupInterface,
		SetupIptables:  o.rules(),
		Netfilter:      o.netfilter,
		Interval:       o.syncInterval,
		SkipTeardown:   o.skipTeardown,
		Logger:         log.With("part", "netsetup"),

		ExternalInterfaces: o.external,
	}
}

// run starts everything, serves, and takes everything down again.
func (a *agent) run(asked context.Context, cfg *config.Config) (err error) {
	signal.Notify(a.usr1, syscall.SIGUSR1) // from the first moment on: unhandled, it would end the process
	defer signal.Stop(a.usr1)
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
	a.log.Info("serving", "version", versionLine(), "config", cfg.Path, "hash", cfg.Hash)
	return a.loop(ctx)
}

// start does it in the order that never leaves a packet without somebody to take it:
// addresses, sockets, and only then the rules that keep packets away from the cluster
// DNS. An agent that runs already gives what it has at each step, and serves until all
// of them are done.
func (a *agent) start(ctx context.Context, cfg *config.Config) error {
	steps := []func(context.Context) error{
		a.meet,
		a.setLinks,
		func(ctx context.Context) error { return a.apply(ctx, cfg) },
		a.setRules,
		a.commit,
		a.takeCare,
		a.receiveHeirs,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	a.watchHealth(ctx)
	if a.from == nil { // else ripen has seen to the garbage of the first lists
		debug.FreeOSMemory()
	}
	a.serving.Store(true)
	return nil
}

// watchHealth starts looking at the first health endpoint there is.
func (a *agent) watchHealth(ctx context.Context) {
	for _, b := range a.current.Load().cfg.Blocks {
		if b.Health != nil {
			a.background.Go(func() { a.pulse.run(ctx, b.Health.Addr) })
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
			if !a.succeeded(ctx) {
				a.lameduck()
			}
			return nil
		case err := <-a.fatal:
			return err
		case order := <-a.orders:
			order(ctx)
			continue
		case <-a.complete():
			a.log.Info("all is handed over")
			return nil
		case <-a.usr1:
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
	g, err := a.assembly.assemble(cfg, old)
	if err != nil {
		return err
	}
	if a.from == nil || old != nil { // else the agent that runs answers probes
		if err := a.http.listen(a.handlers(g)); err != nil {
			g.closeUnless(old)
			return err
		}
	}
	g.start(old, func(part any, run func(context.Context)) { a.launch(ctx, part, run) })
	// Until then the old generation serves or, at the start, the agent before this one
	// does, or the node's packets find another way.
	err = a.ripen(ctx, g, old)
	if err == nil {
		err = a.server.Listen(g.listeners)
	}
	if err != nil {
		a.retire(g, old)
		closeAll(g.poolsUnless(old))
		if old != nil {
			return errors.Join(err, a.http.listen(a.handlers(old)))
		}
		return err
	}
	a.current.Store(g)
	a.tune(cfg)
	for _, text := range cfg.Warnings {
		a.log.Warn("configuration: " + text)
	}
	if old != nil {
		a.succeed(ctx, old, g)
	}
	a.diversion.follow(g)
	a.watchLoops(ctx, g)
	return nil
}

// ripen waits until g knows as much as it should before it serves. The first lists of a
// large cluster leave as much garbage as they leave objects; at the start of a process it
// is collected then, or it would be kept for the minutes until the next collection, and
// its pages for longer.
func (a *agent) ripen(ctx context.Context, g, old *generation) error {
	if old != nil {
		g.awaitSync(ctx, 0)
		return nil
	}
	if a.from == nil {
		g.awaitSync(ctx, 0)
		return a.restore(ctx, g)
	}
	g.awaitSync(ctx, syncing)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	debug.FreeOSMemory() // before the first query comes that would wait for it
	if err := a.inherit(ctx); err != nil {
		return err
	}
	if err := g.synced(); err != nil && a.from != nil {
		return fmt.Errorf("taking over from the agent that runs: %w; it goes on serving; look why the API server does not answer", err)
	}
	if err := a.restore(ctx, g); err != nil {
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

// retire ends the parts of g that keep (nil: none) does not have, but for the pools.
func (a *agent) retire(g, keep *generation) {
	for part, cancel := range a.cancels {
		if g.has(part) && !keep.has(part) {
			cancel()
			delete(a.cancels, part)
		}
	}
	g.endUnless(keep)
}

const (
	// lingering is how long the pools of a generation stay open after another has
	// come in its place: whatever was on its way then has had its answer, or the
	// whole deadline of an exchange and the time to be handed over. With half of it
	// a reload would fail queries; more than all of it has nobody to wait for.
	lingering = upstream.DefaultDeadline + time.Second
	// maxLingering bounds the generations whose pools do. At the shortest interval
	// of `reload` there are three; it takes a signal every 200 ms to meet it, and
	// the next reload then waits.
	maxLingering = 32
)

// succeed retires old, in whose place g has come. Queries that were on their way
// through old's pools find them open until they are done.
func (a *agent) succeed(ctx context.Context, old, g *generation) {
	pools := old.poolsUnless(g)
	a.retire(old, g)
	if len(pools) == 0 {
		return
	}
	select {
	case a.lingering <- struct{}{}:
	case <-ctx.Done(): // and no further reload will come
	}
	a.background.Go(func() {
		select {
		case <-time.After(lingering):
		case <-a.drained:
		}
		closeAll(pools)
		select {
		case <-a.lingering:
		default:
		}
	})
}
