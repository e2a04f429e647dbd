package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/server"
	"github.com/nodens-dns/nodens/cmd/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/netsetup"
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
		o.kernelOrder = kernelpath.Order{}
	case s == "first":
		o.kernelOrder = kernelpath.Order{First: true}
	case where == "before" && name != "":
		o.kernelOrder = kernelpath.Order{Before: name}
	case where == "after" && name != "":
		o.kernelOrder = kernelpath.Order{After: name}
	default:
		return errors.New("give last, first, before:NAME or after:NAME, with the name of a program in the kernel, such as before:cil_from_container")
	}
	return nil
}

const (
	// beating is between two looks at whether the agent is well. Four fit into the time
	// that answers are given without: three may be late on a busy node. With half of it
	// an idle agent would wake twice as often for nothing; with twice as much, one late
	// look takes the answers away.
	beating = kernelpath.Lapse / 4
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

// program is [kernelpath.Path], or a test's in its place.
type program interface {
	server.Kernel
	Attach(ifindex int) error
	Detach(ifindex int)
	Links() int
	Beat()
	Sweep()
	Counters() kernelpath.Counters
	Close() error
}

// shortcut is the agent's path inside of the kernel: on which links it is, and that it
// goes on only as long as the agent is well. What it answers is the server's affair. A nil
// shortcut is that of an agent without one, and does nothing.
type shortcut struct {
	log  *slog.Logger
	path program // nil: the kernel can't, and -kernel-path=auto
	// follow is [netsetup.FollowPodLinks].
	follow func(ctx context.Context, seen, gone func(netsetup.PodLink)) error
	active atomic.Bool
	failed atomic.Uint64 // links that could not be attached to
}

// openPath is [kernelpath.Open].
func openPath(opts kernelpath.Options) (program, error) { return kernelpath.Open(opts) }

// openShortcut loads the program by open, as -kernel-path says; it answers nothing yet.
// The error is one of on: auto goes on without it.
func openShortcut(opts *options, log *slog.Logger, open func(kernelpath.Options) (program, error)) (*shortcut, error) {
	if opts.kernelPath == kernelOff {
		return nil, nil
	}
	s := &shortcut{log: log.With("part", "kernelpath"), follow: netsetup.FollowPodLinks}
	path, err := open(kernelpath.Options{Log: s.log, Order: opts.kernelOrder})
	switch {
	case err == nil:
		s.path = path
	case opts.kernelPath == kernelOn:
		return nil, fmt.Errorf("-kernel-path=on: %w; auto serves without it", err)
	case errors.Is(err, kernelpath.ErrUnsupported):
		s.log.Info("every query comes to the agent, as -kernel-path=auto can't be had here", "why", err)
	default:
		s.log.Warn("every query comes to the agent, as -kernel-path=auto has failed", "err", err)
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

// close ends it for good.
func (s *shortcut) close() {
	if s.works() {
		_ = s.path.Close()
	}
}

// run has queries answered inside of the kernel until ctx ends, for as long as well says
// so, which is asked twice a second and may wait. When it returns no link has the program:
// every query comes to the agent.
func (s *shortcut) run(ctx context.Context, well func() bool) {
	if !s.works() {
		return
	}
	go s.beat(ctx, well) // nobody waits for it, as it may wait for ever
	for ctx.Err() == nil {
		err := s.attach(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Error("every query comes to the agent, as the pods' links can't be followed", "again", refollow, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(refollow):
		}
	}
}

// attach has the program on all links of pods, until ctx ends or they can't be followed.
func (s *shortcut) attach(ctx context.Context) error {
	on := make(map[int]bool) // false: it could not be
	s.active.Store(true)
	defer func() {
		s.active.Store(false)
		for index := range on {
			s.path.Detach(index)
		}
	}()
	return s.follow(ctx, func(l netsetup.PodLink) {
		err := s.path.Attach(l.Index)
		if _, told := on[l.Index]; err != nil && !told {
			s.failed.Add(1)
			s.log.Warn("the queries of a pod all come to the agent, as its link does not take the program", "link", l.Name, "err", err)
		}
		on[l.Index] = err == nil
	}, func(l netsetup.PodLink) {
		s.path.Detach(l.Index)
		delete(on, l.Index)
	})
}

// beat tells the program that the agent is well, and the owners of answers how often these
// were given. It may be late to see the end of ctx, and does no harm then.
func (s *shortcut) beat(ctx context.Context, well func() bool) {
	tick := time.NewTicker(beating)
	defer tick.Stop()
	for n := 0; ; n++ {
		if well() && ctx.Err() == nil {
			s.path.Beat()
		}
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

// sweep has the hits until now counted. A scrape costs far more than that.
func (s *shortcut) sweep() {
	if s.works() {
		s.path.Sweep()
	}
}

// shortcut puts what the path inside of the kernel counts; without one there are no such
// metrics.
func (s scrape) shortcut(of *shortcut) {
	if of == nil {
		return
	}
	s.put(kernelActive, truth(of.active.Load()))
	if of.path == nil {
		return
	}
	for result, n := range of.path.Counters().Results {
		s.put(kernelQueries, float64(n), result)
	}
	s.put(kernelLinks, float64(of.path.Links()))
	s.put(kernelLinkErrors, float64(of.failed.Load()))
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
