package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/fastpath"
)

// kernelPath is the value of -kernel-path.
type kernelPath uint8

const (
	kernelOff kernelPath = iota
	kernelAuto
	kernelOn
)

// kernelWords are the values' names.
var kernelWords = [...]string{"off", "auto", "on"}

func (k *kernelPath) set(s string) error {
	for i, word := range kernelWords {
		if s == word {
			*k = kernelPath(i)
			return nil
		}
	}
	return errors.New("give off, auto or on")
}

func (k kernelPath) String() string { return kernelWords[k] }

func (o *options) setKernelOrder(s string) error {
	where, name, _ := strings.Cut(s, ":")
	switch {
	case s == "last":
		o.kernelOrder = fastpath.Order{}
	case s == "first":
		o.kernelOrder = fastpath.Order{First: true}
	case where == "before" && name != "":
		o.kernelOrder = fastpath.Order{Before: name}
	case where == "after" && name != "":
		o.kernelOrder = fastpath.Order{After: name}
	default:
		return errors.New("give last, first, before:NAME or after:NAME, with the name of a program in the kernel, such as before:cil_from_container")
	}
	return nil
}

// needsAgent are the directives of server blocks all of whose queries come to the agent: the
// answer depends on who asks, or somebody wants to know of each query, or it can change
// without a trace (see [server.Server.UseKernel]).
var needsAgent = []string{"acl", "autopath", "dns64", "dnstap", "hosts", "k8s_external", "log", "rewrite", "template"}

// copies says, for `nodens check`, which answers of b, one of blocks, the kernel may give.
// A view decides over all that comes to its address.
func copies(b *config.Block, blocks []*config.Block) string {
	var why []string
	if slices.ContainsFunc(blocks, func(o *config.Block) bool {
		return o.View != nil && slices.ContainsFunc(o.Listen, func(a netip.AddrPort) bool { return slices.Contains(b.Listen, a) })
	}) {
		why = append(why, "view")
	}
	for _, name := range b.Directives() {
		if slices.Contains(needsAgent, name) {
			why = append(why, name)
		}
	}
	switch {
	case b.Transport != config.PlainDNS:
		return "none, as clients come over " + b.Transport.String()
	case !slices.ContainsFunc(b.Listen, func(a netip.AddrPort) bool { return !a.Addr().IsUnspecified() }):
		return "none, as the block listens at all addresses; bind names some"
	case len(why) > 0:
		return "none, because of " + strings.Join(why, ", ")
	case b.Kubernetes == nil && b.Cache == nil:
		return "none, without kubernetes and cache"
	}
	return "answers are copied into the kernel"
}

// describeKernelPath says, for `nodens check`, what is to be done.
func (o *options) describeKernelPath() string {
	text := "needed: without it the agent does not start"
	if o.kernelPath == kernelAuto {
		text = "if this node's kernel can, and Cilium is not here"
	}
	order := "after the programs of others"
	switch at := o.kernelOrder; {
	case at.First:
		order = "before the programs of others"
	case at.Before != "":
		order = "before the program " + at.Before + " where it is there, else after all"
	case at.After != "":
		order = "after the program " + at.After + " where it is there, else after all"
	}
	return text + "\non each pod's link " + order
}

const (
	// beating is between two looks at whether the agent is well. Four fit into the time
	// that answers are given without: three may be late on a busy node. With half of it
	// an idle agent would wake twice as often for nothing; with twice as much, one late
	// look takes the answers away.
	beating = fastpath.HeartbeatTimeout / 4
	// sweeping is how many of these are from one sweep to the next: hits are brought to
	// the counters, and to the cache's order of use, every second. Nobody sees the
	// difference of half as many, as each scrape sweeps too; after twice as many the
	// cache would drop what is in use more often.
	sweeping = 2
	// refollow is how long the links are left alone after they could not be followed: as
	// long as it takes the kernel to have memory for a socket again. Half of it would be
	// noise in the log, twice as much is not quicker seen than by an operator.
	refollow = 10 * time.Second
)

// program is [fastpath.Program], or a test's in its place. Nobody closes it: the parts of the
// agent may use its memory to the last, and the end of the process does it.
type program interface {
	server.Kernel
	Update(ifindex int, filtered bool) (answers bool, err error)
	Detach(ifindex int)
	Links() (answering, watched int)
	ConfirmWatched()
	Heartbeat()
	Stop()
	Sweep()
	Counters() fastpath.Counters
}

// machine is what a path depends on, for tests to have another.
type machine struct {
	open   func(fastpath.Options) (program, error)
	cilium func() (bool, error)
	follow func(ctx context.Context, o netsetup.PodInterfaceObserver) error
}

func thisMachine() machine {
	return machine{
		open:   func(opts fastpath.Options) (program, error) { return fastpath.Open(opts) },
		cilium: netsetup.HasCilium,
		follow: netsetup.WatchPodInterfaces,
	}
}

// load loads the program. Next to those of Cilium, which answer for what passes the pods'
// links, it is only where an operator wants it.
func (m machine) load(want kernelPath, opts fastpath.Options) (program, error) {
	if want == kernelAuto {
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

// shortcut is the agent's path inside of the kernel: on which links it is, and that it
// goes on only as long as the agent is well. What it answers is the server's affair. A nil
// shortcut is that of an agent without one, and does nothing.
type shortcut struct {
	log     *slog.Logger
	machine machine
	path    program // nil: it can't be had, and -kernel-path=auto
	active  atomic.Bool
	failed  atomic.Uint64 // links that could not be attached to
	// leaving is who takes the program off the links. That takes the kernel some ten
	// milliseconds for each, longer in all than a stop or a hand-over may.
	leaving sync.WaitGroup
	beats   sync.Mutex // held for a beat, and for the end of all
}

// openShortcut loads the program as -kernel-path says; it answers nothing yet. The error
// is one of on: auto goes on without it.
func openShortcut(opts *options, log *slog.Logger, m machine) (*shortcut, error) {
	if opts.kernelPath == kernelOff {
		return nil, nil
	}
	s := &shortcut{log: log.With("part", "kernelpath"), machine: m}
	path, err := m.load(opts.kernelPath, fastpath.Options{Order: opts.kernelOrder})
	switch {
	case err == nil:
		s.path = path
	case opts.kernelPath == kernelOn:
		return nil, fmt.Errorf("-kernel-path=on: %w; -kernel-path=auto serves without it", err)
	case errors.Is(err, fastpath.ErrUnsupported):
		s.log.Info("every query comes to the agent: -kernel-path=auto finds no other way", "why", err)
	default:
		s.log.Warn("every query comes to the agent: -kernel-path=auto has failed", "err", err)
	}
	return s, nil
}

// epochs are what copies of answers hang on, nil where there are none.
func (s *shortcut) epochs() (cluster, cached *epoch.Table) {
	if !s.works() {
		return nil, nil
	}
	return s.path.Epochs()
}

// works reports whether there is anything to look after.
func (s *shortcut) works() bool { return s != nil && s.path != nil }

// run has queries answered inside of the kernel until ctx ends, for as long as well says
// so, which is asked twice a second and may wait. When it returns every query comes to the
// agent. One goroutine calls it at a time.
func (s *shortcut) run(ctx context.Context, well func() bool) {
	if !s.works() {
		return
	}
	go s.beat(ctx, well) // nobody waits for it, as it may wait for ever
	defer func() {
		s.beats.Lock()
		defer s.beats.Unlock()
		s.path.Stop()
	}()
	for ctx.Err() == nil {
		err := s.attach(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Error("every query comes to the agent: the pods' links can't be followed", "again", refollow, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(refollow):
		}
	}
}

// attach has the programs on all interfaces of pods, until ctx ends or they can't be followed.
func (s *shortcut) attach(ctx context.Context) error {
	s.leaving.Wait()
	v := vigil{shortcut: s, on: make(map[int]*podLink)}
	s.active.Store(true)
	defer func() {
		s.active.Store(false)
		s.leaving.Go(func() {
			for index := range v.on {
				s.path.Detach(index)
			}
		})
	}()
	return s.machine.follow(ctx, netsetup.PodInterfaceObserver{
		Added: func(l netsetup.PodInterface) { v.on[l.Index] = &podLink{name: l.Name} },
		Removed: func(l netsetup.PodInterface) {
			s.path.Detach(l.Index)
			delete(v.on, l.Index)
		},
		Checked: v.look,
	})
}

// vigil is what is known of the pods' interfaces while they are followed.
type vigil struct {
	*shortcut
	on    map[int]*podLink
	blind bool // said in the log
}

// podLink is one of them.
type podLink struct {
	name            string
	failed, leftOut bool // said in the log
}

// look has each interface answered on or only watched, by what others have there. While one of
// them is not even watched no client is admitted: a pod behind it could ask in another's name.
func (v *vigil) look(at netsetup.PodInterfaceCheck) {
	blind := at.Err
	if blind == nil && at.Incomplete {
		blind = errors.New("there are interfaces of pods that are not veth, or more than 4096")
	}
	for _, index := range slices.Sorted(maps.Keys(v.on)) {
		l := v.on[index]
		answers, err := v.path.Update(index, at.Err != nil || at.Filtered[index])
		if errors.Is(err, fastpath.ErrGone) {
			continue // which is told later
		}
		if err != nil {
			blind = fmt.Errorf("interface %s: %w", l.name, err)
		}
		v.tell(l, answers, err)
	}
	if blind == nil {
		v.path.ConfirmWatched()
	}
	if blind != nil && !v.blind {
		v.log.Warn("all queries come to the agent until every pod's interface can be watched", "err", blind)
	}
	v.blind = blind != nil
}

// tell says once of each interface that it is left out.
func (v *vigil) tell(l *podLink, answers bool, err error) {
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

// beat tells the program that the agent is well, and the owners of answers how often these
// were given. It may be late to see the end of ctx, and does no harm then.
func (s *shortcut) beat(ctx context.Context, well func() bool) {
	tick := time.NewTicker(beating)
	defer tick.Stop()
	for n := 0; ; n++ {
		s.beatIf(ctx, well())
		if n%sweeping == 0 {
			s.path.Sweep()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beatIf is one beat, if the agent is well and ctx has not ended.
func (s *shortcut) beatIf(ctx context.Context, well bool) {
	s.beats.Lock()
	defer s.beats.Unlock()
	if well && ctx.Err() == nil {
		s.path.Heartbeat()
	}
}

// sweep has the hits until now counted. A scrape costs far more than that.
func (s *shortcut) sweep() {
	if s.works() {
		s.path.Sweep()
	}
}

// shortcut puts what the path inside of the kernel counts; without one it is nothing.
func (s scrape) shortcut(of *shortcut) {
	var active, failed float64
	var links, watched int
	results := map[string]uint64{"answered": 0}
	if of.works() {
		active, failed = truth(of.active.Load()), float64(of.failed.Load())
		links, watched = of.path.Links()
		results = of.path.Counters().Results
	}
	s.put(kernelActive, active)
	s.put(kernelLinks, float64(links))
	s.put(kernelWatched, float64(watched))
	s.put(kernelLinkErrors, failed)
	for result, n := range results {
		s.put(kernelQueries, float64(n), result)
	}
}

// well reports whether answers come about as they should: nobody keeps a lock that they
// take, or it waits for as long, and every reader has gone on since the last call.
func (a *agent) well() bool {
	if g := a.current.Load(); g != nil {
		for _, v := range g.views {
			v.IsClusterIP(netip.Addr{})
		}
		for _, p := range g.parts {
			if p.cache != nil {
				p.cache.Stats()
			}
		}
	}
	return a.server.Alive()
}
