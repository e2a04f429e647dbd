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

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/fastpath"
)

// FastPathMode is the value of -kernel-path.
type FastPathMode uint8

const (
	FastPathOff FastPathMode = iota
	FastPathAuto
	FastPathOn
)

// kernelWords are the values' names.
var kernelWords = [...]string{"off", "auto", "on"}

func (k *FastPathMode) Set(s string) error {
	for i, word := range kernelWords {
		if s == word {
			*k = FastPathMode(i)
			return nil
		}
	}
	return errors.New("give off, auto or on")
}

func (k FastPathMode) String() string { return kernelWords[k] }

const (
	// heartbeatInterval is between two looks at whether the agent is well. Four fit into the time
	// that answers are given without: three may be late on a busy node. With half of it
	// an idle agent would wake twice as often for nothing; with twice as much, one late
	// look takes the answers away.
	heartbeatInterval = fastpath.HeartbeatTimeout / 4
	// countersEvery is how many of these are from one sweep to the next: hits are brought to
	// the counters, and to the cache's order of use, every second. Nobody sees the
	// difference of half as many, as each scrape sweeps too; after twice as many the
	// cache would drop what is in use more often.
	countersEvery = 2
	// retryInterval is how long the links are left alone after they could not be followed: as
	// long as it takes the kernel to have memory for a socket again. Half of it would be
	// noise in the log, twice as much is not quicker seen than by an operator.
	retryInterval = 10 * time.Second
)

// program is [fastpath.Program], or a test's in its place. Nobody closes it: the parts of the
// agent may use its memory to the last, and the end of the process does it.
type program interface {
	server.FastPath
	Update(ifindex int, filtered bool) (answers bool, err error)
	Detach(ifindex int)
	Links() (answering, watched int)
	ConfirmWatched()
	Heartbeat()
	Stop()
	Sweep()
	Counters() fastpath.Counters
}

// platform is what a path depends on, for tests to have another.
type platform struct {
	open   func(fastpath.Options) (program, error)
	cilium func() (bool, error)
	follow func(ctx context.Context, o netsetup.PodInterfaceObserver) error
}

func hostPlatform() platform {
	return platform{
		open:   func(opts fastpath.Options) (program, error) { return fastpath.Open(opts) },
		cilium: netsetup.HasCilium,
		follow: netsetup.WatchPodInterfaces,
	}
}

// load loads the program. Next to those of Cilium, which answer for what passes the pods'
// links, it is only where an operator wants it.
func (m platform) load(want FastPathMode, opts fastpath.Options) (program, error) {
	if want == FastPathAuto {
		there, err := m.cilium()
		if err != nil {
			return nil, err
		}
		if there {
			return nil, fmt.Errorf("%w beside Cilium, whose own programs are on the pods' links; -kernel-path=on does not look", fastpath.ErrUnsupported)
		}
	}
	return m.open(opts)
}

// fastPath is the agent's path inside of the kernel: on which links it is, and that it
// goes on only as long as the agent is well. What it answers is the server's affair. A nil
// shortcut is that of an agent without one, and does nothing.
type fastPath struct {
	log      *slog.Logger
	platform platform
	program  program // nil: it can't be had, and -kernel-path=auto
	active   atomic.Bool
	failed   atomic.Uint64 // links that could not be attached to
	// detaching is who takes the program off the links. That takes the kernel some ten
	// milliseconds for each, longer in all than a stop or a hand-over may.
	detaching   sync.WaitGroup
	heartbeatMu sync.Mutex // held for a beat, and for the end of all
}

// openFastPath loads the program as -kernel-path says; it answers nothing yet. The error
// is one of on: auto goes on without it.
func openFastPath(opts *Options, log *slog.Logger, m platform) (*fastPath, error) {
	if opts.FastPath == FastPathOff {
		return nil, nil
	}
	s := &fastPath{log: log.With("part", "fastpath"), platform: m}
	path, err := m.load(opts.FastPath, fastpath.Options{Order: opts.FastPathOrder})
	switch {
	case err == nil:
		s.program = path
	case opts.FastPath == FastPathOn:
		return nil, fmt.Errorf("-kernel-path=on: %w; -kernel-path=auto serves without it", err)
	case errors.Is(err, fastpath.ErrUnsupported):
		s.log.Info("every query comes to the agent: -kernel-path=auto finds no other way", "why", err)
	default:
		s.log.Warn("every query comes to the agent: -kernel-path=auto has failed", "err", err)
	}
	return s, nil
}

// epochs are what copies of answers hang on, nil where there are none.
func (s *fastPath) epochs() (cluster, cached *epoch.Table) {
	if !s.available() {
		return nil, nil
	}
	return s.program.Epochs()
}

// available reports whether there is anything to look after.
func (s *fastPath) available() bool { return s != nil && s.program != nil }

// run has queries answered inside of the kernel until ctx ends, for as long as well says
// so, which is asked twice a second and may wait. When it returns every query comes to the
// agent. One goroutine calls it at a time.
func (s *fastPath) run(ctx context.Context, well func() bool) {
	if !s.available() {
		return
	}
	go s.heartbeats(ctx, well) // nobody waits for it, as it may wait for ever
	defer func() {
		s.heartbeatMu.Lock()
		defer s.heartbeatMu.Unlock()
		s.program.Stop()
	}()
	for ctx.Err() == nil {
		err := s.attach(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Error("every query comes to the agent: the pods' links can't be followed", "again", retryInterval, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// attach has the programs on all interfaces of pods, until ctx ends or they can't be followed.
func (s *fastPath) attach(ctx context.Context) error {
	s.detaching.Wait()
	v := podLinkWatch{fastPath: s, links: make(map[int]*podLink)}
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
			s.program.Detach(l.Index)
			delete(v.links, l.Index)
		},
		Checked: v.update,
	})
}

// podLinkWatch is what is known of the pods' interfaces while they are followed.
type podLinkWatch struct {
	*fastPath
	links      map[int]*podLink
	incomplete bool // said in the log
}

// podLink is one of them.
type podLink struct {
	name            string
	failed, leftOut bool // said in the log
}

// update has each interface answered on or only watched, by what others have there. While one of
// them is not even watched no client is admitted: a pod behind it could ask in another's name.
func (v *podLinkWatch) update(at netsetup.PodInterfaceCheck) {
	blind := at.Err
	if blind == nil && at.Incomplete {
		blind = errors.New("there are interfaces of pods that are not veth, or more than 4096")
	}
	for _, index := range slices.Sorted(maps.Keys(v.links)) {
		l := v.links[index]
		answers, err := v.program.Update(index, at.Err != nil || at.Filtered[index])
		if errors.Is(err, fastpath.ErrGone) {
			continue // which is told later
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
		v.log.Warn("all queries come to the agent until every pod's interface can be watched", "err", blind)
	}
	v.incomplete = blind != nil
}

// report says once of each interface that it is left out.
func (v *podLinkWatch) report(l *podLink, answers bool, err error) {
	switch {
	case err != nil && !l.failed:
		l.failed = true
		v.failed.Add(1)
		v.log.Warn("a pod's interface does not take the program", "link", l.name, "err", err)
	case err == nil && !answers && !l.leftOut:
		v.log.Info("all queries of a pod come to the agent: programs or filters of others stand on its interface behind ours", "link", l.name)
	}
	l.leftOut = l.leftOut || err == nil && !answers
}

// heartbeats tells the program that the agent is well, and the owners of answers how often these
// were given. It may be late to see the end of ctx, and does no harm then.
func (s *fastPath) heartbeats(ctx context.Context, well func() bool) {
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

// heartbeatIf is one beat, if the agent is well and ctx has not ended.
func (s *fastPath) heartbeatIf(ctx context.Context, well bool) {
	s.heartbeatMu.Lock()
	defer s.heartbeatMu.Unlock()
	if well && ctx.Err() == nil {
		s.program.Heartbeat()
	}
}

// updateCounters has the hits until now counted. A scrape costs far more than that.
func (s *fastPath) updateCounters() {
	if s.available() {
		s.program.Sweep()
	}
}

// fastPath puts what the path inside of the kernel counts; without one it is nothing.
func (s scrape) fastPath(of *fastPath) {
	var active, failed float64
	var links, watched int
	results := map[string]uint64{"answered": 0}
	if of.available() {
		active, failed = boolFloat(of.active.Load()), float64(of.failed.Load())
		links, watched = of.program.Links()
		results = of.program.Counters().Results
	}
	s.put(kernelActive, active)
	s.put(kernelInterfaces, float64(links))
	s.put(kernelWatched, float64(watched))
	s.put(kernelAttachErrors, failed)
	for result, n := range results {
		s.put(kernelQueries, float64(n), result)
	}
}

// healthy reports whether answers come about as they should: nobody keeps a lock that they
// take, or it waits for as long, and every reader has gone on since the last call.
func (a *agent) healthy() bool {
	if g := a.current.Load(); g != nil {
		for _, v := range g.views {
			v.IsClusterIP(netip.Addr{})
		}
		for _, p := range g.blocks {
			if p.cache != nil {
				p.cache.Stats()
			}
		}
	}
	return a.server.Alive()
}
