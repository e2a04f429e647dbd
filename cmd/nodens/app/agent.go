package app

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/ethtool"
	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// shutdownGrace is the time for queries in flight when the sockets close. Queries that
	// take longer wait for a dead upstream.
	shutdownGrace = time.Second
)

// agent is a running agent. Fields without another comment belong to the goroutine of run, or
// are safe for concurrent use.
type agent struct {
	opts     *options.Agent
	dry      bool // of a [DryRun]
	log      *slog.Logger
	logLevel *slog.LevelVar // of log
	logQueue *logqueue.Queue
	// libraries takes what libraries log.
	libraries  *libraryLog
	server     *server.Server
	http       *endpoint.Servers
	builder    builder
	net        *netsetup.Setup // nil: the node's network stays unchanged
	fallback   *fallback       // nil: there are no rules
	host       *hostLookups    // nil: no address for the node's own look-ups
	kernelPath *kernelPath     // nil: --kernel-path=off
	active     activeTasks
	handoverState
	selfProbe *endpoint.SelfProbe
	progress  progress
	window    baseline.Window[counters]
	history   history
	created   time.Time
	instance  string // another one for each start
	times     statusTimes
	faults    *faultRing // of log

	current  atomic.Pointer[generation]
	stopping atomic.Bool
	serving  atomic.Bool // the start is complete: sockets listen, rules are installed
	// reloadFailed counts failed reloads, configMapFailed those that the kube-dns ConfigMap
	// caused.
	reloadFailed, configMapFailed atomic.Uint64
	reloadState                   reloadState
	awaited                       awaited
	ports                         sharedPorts
	background                    sync.WaitGroup
	// cancels stop the running parts of the current generation.
	cancels map[any]context.CancelFunc
	fatal   chan error

	// nodeReporter and nodeWriter are nil without --node-condition.
	nodeReporter *nodeReporter
	nodeWriter   *kubernetes.NodeWriter

	draining chan struct{} // holds a value for each old generation whose pools are still open
	drained  chan struct{} // closed when no query is in flight any more
	// lameduckTime is what [agent.lameduck] has taken.
	lameduckTime time.Duration
}

// Serve runs an agent until ctx ends, or until it has handed over to another agent. It logs
// to log. An error means that the agent did not start, or could not continue; it names the
// setting at fault.
func Serve(ctx context.Context, opts options.Agent, log io.Writer) error {
	a, cfg, err := prepare(&opts, log)
	if err != nil {
		return err
	}
	defer redirectLibraries(a.libraries)()
	if a.nodeWriter != nil {
		defer a.nodeWriter.Close()
	}
	return a.run(ctx, cfg)
}

// prepare returns an agent that logs to w, and the configuration to serve. The agent's run closes the log.
func prepare(opts *options.Agent, w io.Writer) (a *agent, cfg *config.Config, err error) {
	level := new(slog.LevelVar)
	level.Set(opts.LogLevel)
	log, err := openLog(opts.LogFormat, w, level)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			log.queue.Close(flushTimeout)
		}
	}()
	opts.Lacks = Lacks()
	if err := opts.CheckHost(); err != nil {
		return nil, nil, err
	}
	cfg, ignored, err := opts.LoadFirst()
	if err != nil {
		return nil, nil, err
	}
	if err := checkTakeover(opts, log.Logger); err != nil {
		return nil, nil, err
	}
	if a, err = newAgent(opts, &log, level); err == nil {
		a.nodeReporter, a.nodeWriter, err = newNodeReporter(a, cfg)
	}
	if err == nil && ignored != nil {
		a.countConfigMapError(ignored)
		a.log.Warn("starting without the broken keys of the kube-dns ConfigMap", "err", ignored)
	}
	return a, cfg, err
}

// newAgent returns an agent without a configuration that logs to l. level is the level of l; the
// configuration sets it.
func newAgent(opts *options.Agent, l *agentLog, level *slog.LevelVar) (*agent, error) {
	faults := new(faultRing)
	log := faults.keepFaults(l)
	addrs := newHostAddrs()
	table := clients.New(clients.Options{Host: addrs.has, Level: seriesLevel(opts.ClientMetrics), Log: log.With("part", "server")})
	ranges := new(podrange.Ranges)
	limits := limiters{ranges: ranges, addrs: addrs, except: opts.ClientLimitExcept}
	limit := limits.agentLimit(opts)
	path, err := openKernelPath(opts, log, hostPlatform(), table, limit)
	if err != nil {
		return nil, err
	}
	srv := server.New(log, server.Limits{Readers: opts.Readers, Poller: opts.Polled, PodRanges: ranges, Client: limit})
	clusterEpochs, cacheEpochs := path.epochs()
	ranges.Epochs = clusterEpochs
	if path.available() {
		srv.UseKernelPath(path.program)
	} else {
		srv.CacheReplies(server.ReplyCaches{Cluster: clusterEpochs, Cached: cacheEpochs, Clock: opts.CacheClock})
	}
	owners := newAttribution(table, path)
	owners.ranges = ranges
	owners.off = opts.ClientMetrics == options.ClientMetricsOff
	libraries := newLibraryLog(log)
	a := &agent{
		opts:       opts,
		kernelPath: path,
		created:    time.Now(),
		instance:   newInstance(),
		faults:     faults,
		log:        log,
		logQueue:   l.queue, libraries: libraries,
		logLevel: level,
		server:   srv,
		http:     endpoint.New(endpoint.Options{Log: log, Errors: libraries.logger(), ReusePort: opts.HandoverDir != "", Local: addrs.has}),
		builder: builder{
			opts: opts, log: log, stats: make(map[statsKey]*resolver.Stats),
			store:  cache.NewStore(opts.CacheSize, cache.Options{Go: srv.Go, Epochs: cacheEpochs, Clock: opts.CacheClock}),
			epochs: clusterEpochs, hostsEpochs: cacheEpochs, addrs: addrs, clients: owners, clientLevels: newClientLevels(owners.counted(), log),
			limiters: limits, tail: new(tail.Feed), directives: slices.Concat(directives[:], optional(log)),
			budgets: upstream.NewBudgets(upstream.BudgetOptions{Logger: log.With("part", "upstream"), Drops: ethtool.Drops}),
		},
		selfProbe: endpoint.NewSelfProbe(),
		cancels:   make(map[any]context.CancelFunc),
		fatal:     make(chan error, 1),

		draining: make(chan struct{}, maxDraining),
		drained:  make(chan struct{}),
	}
	a.builder.lookup = a.lookupCollector
	if opts.DNSPolicies != options.DNSPoliciesOff {
		a.builder.egress = dnspolicy.NewEgress(new(netsetup.EgressSets), log.With("part", "egress sets"))
	}
	if path != nil && path.bypass != nil {
		path.bypass.isOwn, path.bypass.clusterDNS = a.isOwnAddr, a.clusterDNS
	}
	a.mainCalls, a.mainClosed = make(chan func(context.Context)), make(chan struct{})
	if err := a.newNetwork(opts, log); err != nil {
		return nil, err
	}
	a.host = newHostLookups(a, opts, log)
	return a, nil
}

// newNetwork sets what the agent sets up on the node, if anything.
func (a *agent) newNetwork(opts *options.Agent, log *slog.Logger) (err error) {
	if !opts.SetsUpNetwork() {
		return nil
	}
	c := opts.Network(log)
	c.TakingOver = a.handingOver
	if a.net, err = netsetup.New(c, nil); err != nil {
		return err
	}
	if opts.SetsUpRules() && len(opts.LocalIPs) > 0 {
		a.fallback = newFallback(log.With("part", "netsetup"), opts.UpstreamService, a.net.Divert)
	}
	return nil
}

// run starts the agent on cfg, serves until parent ends, and shuts down.
func (a *agent) run(parent context.Context, cfg *config.Config) (err error) {
	defer a.logQueue.Close(flushTimeout)
	defer a.background.Wait()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer func() {
		if errors.Is(err, context.Canceled) && parent.Err() != nil {
			err = nil // stopped before the start was complete
		}
	}()
	defer func() { err = errors.Join(err, a.shutdown()) }()
	if err := a.start(ctx, cfg); err != nil {
		return err
	}
	a.logServing()
	a.releaseProgramPages()
	if a.opts.OnServing != nil {
		a.opts.OnServing()
	}
	return a.loop(ctx)
}

// releaseProgramPages removes the pages of the program that the start has used so far. If that fails, the agent
// takes more memory.
func (a *agent) releaseProgramPages() {
	if err := releaseProgramPages(); err != nil {
		a.log.Debug("releasing the pages of the program failed", "err", err)
	}
}

// start runs the steps of a start. Their order leaves no query without a server: first the
// addresses, then the sockets, and only then the rules that take queries away from the
// cluster DNS. A predecessor hands over at each step, and serves until commitHandover.
func (a *agent) start(ctx context.Context, cfg *config.Config) error {
	a.agentID = a.identity(cfg)
	steps := []func(context.Context) error{
		a.connectPredecessor,
		a.awaitSavedViews,
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
	a.background.Go(func() { a.progress.watch(ctx, a.server) })
	a.background.Go(func() { a.sampleStatistics(ctx) })
	a.background.Go(func() { a.watchPorts(ctx) })
	a.background.Go(func() { a.http.Retry(ctx) })
	a.background.Go(func() { a.builder.clients.owners().Run(ctx) })
	if a.opts.Page.IsValid() {
		a.background.Go(func() { a.sampleHistory(ctx) })
	}
	if a.predecessor == nil { // else waitSynced has done it
		debug.FreeOSMemory()
	}
	a.startComparison(ctx) // first, so that started does not return nil in between
	a.serving.Store(true)
	a.times.startedServing()
	return nil
}

// startSelfProbe starts to probe the first health endpoint of the configuration.
func (a *agent) startSelfProbe(ctx context.Context) {
	if addr := a.healthAddr(); addr != "" {
		a.background.Go(func() { a.selfProbe.Run(ctx, addr) })
	}
}

// healthAddr returns the address of the first health endpoint of the configuration, as a client
// writes it; "" if there is none.
func (a *agent) healthAddr() string {
	for _, b := range a.current.Load().cfg.Blocks {
		if b.Health == nil {
			continue
		}
		host, port, err := net.SplitHostPort(b.Health.Addr)
		if err != nil {
			return ""
		}
		return net.JoinHostPort(cmp.Or(host, "localhost"), port)
	}
	return ""
}

// loop reloads, and runs the calls of callMain, until the agent has to end.
func (a *agent) loop(ctx context.Context) error {
	timer := time.NewTimer(a.reloadInterval())
	defer timer.Stop()
	for {
		if ended, err := a.handleNext(ctx, timer); ended || err != nil {
			return err
		}
	}
}

// handleNext waits for the next event of loop, and handles it. It returns true or an error if the agent has to end.
// After a reload it resets timer, which fires when the files are to be checked.
func (a *agent) handleNext(ctx context.Context, timer *time.Timer) (ended bool, err error) {
	select {
	case <-ctx.Done():
		a.endService(ctx)
		return true, nil
	case err := <-a.fatal:
		return true, err
	case call := <-a.mainCalls:
		call(ctx)
	case <-a.awaited.beat():
		a.checkAwaited(ctx)
	case healthy := <-a.comparison.beat():
		return false, a.compare(ctx, healthy)
	case <-a.handedOver():
		a.log.Info("handover complete; ending")
		return true, nil
	case <-a.opts.Reload:
		a.reload(ctx, true)
		timer.Reset(a.reloadInterval())
	case <-timer.C:
		a.reload(ctx, false)
		timer.Reset(a.reloadInterval())
	}
	return false, nil
}

// endService leaves the node to the successor or to the predecessor, if there is one, or else serves
// for the lame-duck time.
func (a *agent) endService(ctx context.Context) {
	if !a.waitHandover(ctx) && !a.giveBackAtStop(ctx) {
		a.lameduck()
	}
}

// never is the interval of a timer that does not fire.
const never = 1<<63 - 1

// fail makes the agent end with err. The kubelet restarts it.
func (a *agent) fail(err error) {
	select {
	case a.fatal <- err:
	default:
	}
}
