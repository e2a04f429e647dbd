package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// heartbeatInterval is the interval of health checks. On a busy node three heartbeats may
	// be late before the kernel stops to answer.
	heartbeatInterval = kernelpath.HeartbeatTimeout / 4
	// countersEvery is the number of heartbeats between two updates of the hit counters and
	// the caches' order of use.
	countersEvery = 2
	// After a heartbeat with floodChanges changes of the caches, the order of use is updated every floodInterval of the
	// next: at 20,000 misses a second, a cache of the default size forgets what is not used in half a second.
	floodChanges  = 1000
	floodInterval = heartbeatInterval / 10
	// retryInterval is the pause after the pods' interfaces could not be watched.
	retryInterval = 10 * time.Second
)

// program is a [kernelpath.Program], or a fake of a test. It is never closed, because parts of the
// agent may use its memory until the process ends.
type program interface {
	server.KernelPath
	Update(ifindex int, filtered bool) (answers bool, err error)
	Detach(ifindex int)
	Links() (answering, watched int)
	ConfirmWatched()
	Heartbeat()
	Stop()
	Sweep()
	Counters() kernelpath.Counters
	Usage() (answers, limit int)
	ReportClient(addr netip.Addr)
	ClientsOf(ifindex int) []netip.Addr
	Copies(name []byte, qtype uint16, at netip.AddrPort) []kernelpath.CopyInfo
	Client(addr netip.Addr, at netip.AddrPort) (c kernelpath.ClientInfo, ok bool)
	KeepOut(selects func(netip.Addr) bool, d time.Duration)
}

// platform is the kernel path's access to the node. Tests replace it.
type platform struct {
	open   func(kernelpath.Options) (program, error)
	cilium func() (bool, error)
	follow func(ctx context.Context, o netsetup.PodInterfaceObserver) error
}

func hostPlatform() platform {
	return platform{
		open:   func(opts kernelpath.Options) (program, error) { return kernelpath.Open(opts) },
		cilium: netsetup.HasCilium,
		follow: netsetup.WatchPodInterfaces,
	}
}

// load loads the program. With Cilium, whose own programs handle the traffic of the pods, only
// KernelPathOn loads it.
func (m platform) load(want options.KernelPathMode, opts kernelpath.Options) (program, error) {
	if want == options.KernelPathAuto {
		there, err := m.cilium()
		if err != nil {
			return nil, err
		}
		if there {
			return nil, fmt.Errorf("%w beside Cilium, whose own programs are on the pods' links; --kernel-path=on does not look", kernelpath.ErrUnsupported)
		}
	}
	return m.open(opts)
}

// kernelPath attaches the kernel's program to the pods' interfaces, and lets it answer only
// while the agent is healthy. Package server decides what it answers. The methods of a nil
// kernelPath do nothing.
type kernelPath struct {
	log      *slog.Logger
	platform platform
	program  program        // nil: not supported, with KernelPathAuto
	clients  *clients.Table // counts the answers by client; nil: nobody does
	active   atomic.Bool
	since    atomic.Pointer[time.Time] // when it became active for the last time
	reason   string                    // why there is no program; "" if there is one
	bypass   *bypassCounts             // nil: --bypass=off
	failed   atomic.Uint64             // interfaces that the program could not be attached to
	// detaching counts the goroutines that detach the program and report its last answers. The
	// kernel takes some 30 milliseconds for each interface, too long for a stop or a handover to
	// wait.
	detaching   sync.WaitGroup
	heartbeatMu sync.Mutex // held for a heartbeat, and for Stop
}

// openKernelPath loads the program as --kernel-path says. It answers nothing yet. limit is that of
// --client-limit, nil without. Only KernelPathOn fails if the program cannot be loaded.
func openKernelPath(opts *options.Agent, log *slog.Logger, m platform, table *clients.Table, limit *resolver.ClientLimit) (*kernelPath, error) {
	if opts.KernelPath == options.KernelPathOff {
		if opts.Bypass != options.BypassOff {
			log.Warn("packets to other DNS servers are not counted, because --kernel-path is off", "fix", bypassFix)
		}
		return nil, nil
	}
	s := &kernelPath{log: log.With("part", "kernel path"), platform: m, clients: table, bypass: newBypassCounts(opts, table)}
	settings := kernelpath.Options{Order: kernelpath.Order(opts.KernelPathOrder), ClientLimit: kernelLimit(opts), Bypass: s.bypass.options(opts.BypassDoH)}
	if opts.ClientMetrics != options.ClientMetricsOff {
		settings.Clients = kernelCounts{table, limit}
	} else if limit != nil {
		settings.Clients = kernelCounts{nil, limit}
	}
	path, err := m.load(opts.KernelPath, settings)
	switch {
	case err == nil:
		s.program = path
		table.SetKernelSample(kernelpath.SampleWeight)
	case opts.KernelPath == options.KernelPathOn:
		return nil, fmt.Errorf("--kernel-path=on: %w; --kernel-path=auto serves without it", err)
	case errors.Is(err, kernelpath.ErrUnsupported):
		s.reason = err.Error()
		s.log.Info("kernel path is not supported; the agent answers all queries", "err", err)
	default:
		s.reason = err.Error()
		s.log.Warn("kernel path failed; the agent answers all queries", "err", err)
	}
	return s, nil
}

// epochBits is the number of bits of a group of answers where the kernel does not set it: of 4,096 groups, few
// have more than one answer that is kept.
const epochBits = 12

// epochs returns the tables that guard copied answers. Without a program they are in the memory of this process.
func (s *kernelPath) epochs() (cluster, cached *epoch.Table) {
	if s.available() {
		return s.program.Epochs()
	}
	n := epoch.Words(epochBits)
	words := make([]atomic.Uint64, 2*n)
	return epoch.New(words[:n], 0, epochBits), epoch.New(words[n:], uint32(n), epochBits) //nolint:gosec // some thousand
}

// available reports whether there is a program.
func (s *kernelPath) available() bool { return s != nil && s.program != nil }

// activeSince returns when the programs became active for the last time; nil if they never did.
func (s *kernelPath) activeSince() *time.Time {
	if s == nil {
		return nil
	}
	return s.since.Load()
}

// run lets the kernel answer queries until ctx ends, while well returns true. It calls well
// four times per heartbeat timeout; well may block. When run returns, all queries reach the
// agent. It must not run twice at a time.
func (s *kernelPath) run(ctx context.Context, well func() bool) {
	if !s.available() {
		return
	}
	go s.heartbeats(ctx, well) // not waited for, because well may block
	go s.sweepInFloods(ctx)    // nor is this
	defer func() {
		s.heartbeatMu.Lock()
		defer s.heartbeatMu.Unlock()
		s.program.Stop()
		s.detaching.Go(s.program.Sweep) // what was answered belongs to the present owners of the addresses
	}()
	for ctx.Err() == nil {
		err := s.attach(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Error("watching the pods' interfaces failed; the agent answers all queries", "retry", retryInterval, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// attach keeps the program on all interfaces of pods until ctx ends, or until watching them
// fails.
func (s *kernelPath) attach(ctx context.Context) error {
	s.detaching.Wait()
	v := podLinkWatch{kernelPath: s, links: make(map[int]*podLink)}
	now := time.Now().UTC()
	s.since.Store(&now)
	s.active.Store(true)
	defer func() {
		s.active.Store(false)
		s.detaching.Go(func() {
			for index := range v.links {
				s.program.Detach(index)
			}
		})
	}()
	return s.platform.follow(ctx, netsetup.PodInterfaceObserver{
		Added: func(l netsetup.PodInterface) { v.links[l.Index] = &podLink{name: l.Name} },
		Removed: func(l netsetup.PodInterface) {
			s.endClients(l.Index)
			s.program.Detach(l.Index)
			delete(v.links, l.Index)
		},
		Checked: v.update,
	})
}

// podLinkWatch is the state of the pods' interfaces while they are watched.
type podLinkWatch struct {
	*kernelPath
	links      map[int]*podLink
	incomplete bool // logged that not all interfaces are watched
}

// podLink is a pod's interface.
type podLink struct {
	name            string
	failed, leftOut bool // logged
}

// update lets the program answer on each interface, or only watch it if other programs or
// filters are there. While an interface is not even watched, no client is answered: a pod
// behind it could send queries in another pod's name.
func (v *podLinkWatch) update(at netsetup.PodInterfaceCheck) {
	blind := at.Err
	if blind == nil && at.Incomplete {
		blind = errors.New("there are interfaces of pods that are not veth, or more than 4096")
	}
	for _, index := range slices.Sorted(maps.Keys(v.links)) {
		l := v.links[index]
		answers, err := v.program.Update(index, at.Err != nil || at.Filtered[index])
		if errors.Is(err, kernelpath.ErrGone) {
			continue // Removed follows
		}
		if err != nil {
			blind = fmt.Errorf("interface %s: %w", l.name, err)
		}
		v.report(l, answers, err)
	}
	if blind == nil {
		v.program.ConfirmWatched()
	}
	if blind != nil && !v.incomplete {
		v.log.Warn("not every pod's interface is watched; the agent answers all queries", "err", blind)
	}
	v.incomplete = blind != nil
}

// report logs once for each interface that the program does not answer there.
func (v *podLinkWatch) report(l *podLink, answers bool, err error) {
	switch {
	case err != nil && !l.failed:
		l.failed = true
		v.failed.Add(1)
		v.log.Warn("attaching the program failed", "interface", l.name, "err", err)
	case err == nil && !answers && !l.leftOut:
		v.log.Info("other programs or filters on a pod's interface; the agent answers its queries", "interface", l.name)
	}
	l.leftOut = l.leftOut || err == nil && !answers
}

// heartbeats sends a heartbeat to the program while the agent is healthy, and updates the hit
// counters. It may run for a while after ctx has ended, without effect.
func (s *kernelPath) heartbeats(ctx context.Context, well func() bool) {
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		s.heartbeatIf(ctx, well())
		if n%countersEvery == 0 {
			s.program.Sweep()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweepInFloods updates the caches' order of use often while many entries are new, until ctx ends: otherwise names that the kernel
// answers would look unused, and be evicted.
func (s *kernelPath) sweepInFloods(ctx context.Context) {
	_, cached := s.program.Epochs()
	wait := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	before := cached.Any()
	changes := func() (n uint64) { // since the last call
		now := cached.Any()
		n, before = now-before, now
		return n
	}
	for wait(heartbeatInterval) {
		for changes() >= floodChanges {
			for range heartbeatInterval / floodInterval {
				if !wait(floodInterval) {
					return
				}
				s.program.Sweep()
			}
		}
	}
}

// heartbeatIf sends a heartbeat if well, unless ctx has ended.
func (s *kernelPath) heartbeatIf(ctx context.Context, well bool) {
	s.heartbeatMu.Lock()
	defer s.heartbeatMu.Unlock()
	if well && ctx.Err() == nil {
		s.program.Heartbeat()
	}
}

// reportDelay is how late the kernel's answers to a client are reported: half as long again as the
// interval of the reports.
const reportDelay = countersEvery * heartbeatInterval * 3 / 2

// kernelCounts counts the kernel's answers by client.
type kernelCounts struct {
	table *clients.Table        // nil: nobody does
	limit *resolver.ClientLimit // of --client-limit; nil: there is none
}

// ReportClient implements [kernelpath.ClientReporter].
func (k kernelCounts) ReportClient(addr netip.Addr, n kernelpath.ClientAnswers) {
	k.table.CountKernel(addr, n.NoError+n.NXDomain, n.NXDomain, n.Waste)
	if k.limit != nil {
		k.limit.Add(addr, n.NoError+n.NXDomain, clock.Now())
	}
}

// ReportSample implements [kernelpath.ClientReporter].
func (k kernelCounts) ReportSample(addr netip.Addr, name []byte, waste bool) {
	k.table.SampleKernel(addr, name, waste)
}

// ReportLimited implements [kernelpath.ClientReporter].
func (k kernelCounts) ReportLimited(addr netip.Addr, n uint64) {
	k.table.Limit(0, addr, clients.ReasonClientLimit, n)
}

// reportClient brings the count of the kernel's answers to addr up to date.
func (s *kernelPath) reportClient(addr netip.Addr) {
	if s.available() {
		s.program.ReportClient(addr)
	}
}

// endClients tells the table that the clients behind an interface have lost it.
func (s *kernelPath) endClients(ifindex int) {
	if s.clients == nil {
		return
	}
	for _, addr := range s.program.ClientsOf(ifindex) {
		s.program.ReportClient(addr)
		s.clients.EndAddr(addr)
	}
}

// keepOut makes the clients that selects selects reach the agent with all their queries, for d.
func (s *kernelPath) keepOut(selects func(netip.Addr) bool, d time.Duration) {
	if s.available() {
		s.program.KeepOut(selects, d)
	}
}

// updateCounters brings the hit counters up to date.
func (s *kernelPath) updateCounters() {
	if s.available() {
		s.program.Sweep()
	}
}

// newHealthCheck returns a function that reports whether every reader has made progress since its
// last call. The function takes the locks of views and caches that answers need, and so blocks if
// one is never released.
func (a *agent) newHealthCheck() func() bool {
	readers := a.server.NewWatchdog()
	return func() bool {
		if g := a.current.Load(); g != nil {
			for _, v := range g.views {
				v.IsClusterIP(netip.Addr{})
			}
			for _, p := range g.blocks {
				if p.cache() != nil {
					p.cache().Stats()
				}
			}
		}
		return readers.Alive()
	}
}

// state returns the state of the kernel path, all 0 without a program.
func (s *kernelPath) state() kernelState {
	if !s.available() {
		return kernelState{Counters: kernelpath.Counters{Results: map[string]uint64{"answered": 0}}}
	}
	k := kernelState{active: s.active.Load(), failed: s.failed.Load(), Counters: s.program.Counters()}
	k.answering, k.watched = s.program.Links()
	return k
}

// copiesOf returns the copies of answers for name, and of one type unless qtype is 0, at all listeners.
func (s *kernelPath) copiesOf(name wire.Name, qtype uint16) []report.KernelCopy {
	if !s.available() {
		return []report.KernelCopy{}
	}
	return newKernelCopies(s.program.Copies([]byte(name), qtype, netip.AddrPort{}))
}
