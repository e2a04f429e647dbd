package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/hostile/broken"
)

// plan is what a run does.
type plan struct {
	packets    int
	warmUp     int // how many of them come before the first look, at least; see leastWarmUp
	seed       uint64
	idle, slow int
	dir        string // for the agent's files
	progress   io.Writer
}

const (
	// flooders is the number of sockets that broken packets come from: enough for
	// the kernel to spread them over the agent's sockets.
	flooders = 4
	// brokenFrameConns is the number of clients with broken frames, asking that of the
	// clients that ask for names with broken replies: a few at once are enough for
	// them to meet in the agent.
	brokenFrameConns  = 2
	freshQueryClients = 8
	// warmUpShare is the share of the packets that come before the first look, one in so
	// many, and leastWarmUp the fewest of a long run: by then the caches are full and each
	// buffer has been used by the longest packet.
	warmUpShare = 10
	leastWarmUp = 100_000
)

// growth is the memory that an agent may have more at its peak in the flood than at
// its peak in the warm-up: peaks differ by up to ten MiB with the number of queries
// that happen to wait at once and the moments of garbage collection. Two bytes lost
// for each of ten million packets would be more.
const growth = 16 << 20

// maxLockout: at most one in so many of the connections that ask may be closed unheard.
// In the moment when thousands of idle ones open, one whose query has not come yet
// may be the one that is silent for longest.
const maxLockout = 50

// report is what a run has found.
type report struct {
	plan
	accounting
	start, warm, end agentState
	upstream         *upstream
	mutations        map[string]uint64
	took             time.Duration
}

// run starts the agent and does what the plan says. The error is about the run; what
// is wrong with the agent is in the report.
func (p plan) run(ctx context.Context) (*report, error) {
	r := &report{plan: p, mutations: map[string]uint64{}}
	var err error
	if r.upstream, err = startUpstream(p.seed); err != nil {
		return nil, err
	}
	defer r.upstream.Close()
	a, err := startAgent(ctx, p.dir, r.upstream.Addr())
	if err != nil {
		return nil, err
	}
	defer a.Stop()
	began := time.Now()
	if r.start, err = a.readState(ctx); err != nil {
		return nil, err
	}
	warm := max(p.packets/warmUpShare, min(p.packets, p.warmUp))
	if r.warm, err = r.phase(ctx, a, 0, warm); err != nil {
		return nil, err
	}
	if r.end, err = r.phase(ctx, a, 1, p.packets-warm); err != nil {
		return nil, err
	}
	r.took = time.Since(began)
	select {
	case <-a.Done():
		r.fault("the agent ended")
	default:
	}
	r.judge()
	return r, nil
}

// phase sends n broken packets with all that is to go on beside them, and gives the
// agent's state when everything is over.
func (r *report) phase(ctx context.Context, a *agent, number uint64, n int) (agentState, error) {
	queries, err := corpus()
	if err != nil {
		return agentState{}, err
	}
	beside, stop := context.WithCancel(ctx)
	defer stop()
	var rest, flood sync.WaitGroup
	mutatorOf := func(i int) *broken.Mutator { return broken.New(r.seed, number<<16|uint64(i), queries) }
	rest.Go(func() { openIdleConns(beside, a, &r.accounting, r.idle) })
	rest.Go(func() { openSlowConns(beside, a, &r.accounting, r.slow) })
	for i := range brokenFrameConns {
		rest.Go(func() { sendBrokenFrames(beside, a, &r.accounting, mutatorOf(100+i)) })
	}
	for i := range freshQueryClients {
		rest.Go(func() { sendProbes(beside, a, &r.accounting, mutatorOf(200+i)) })
	}
	var used sync.Mutex
	names := broken.Names()
	for i := range flooders {
		f, err := newFlooder(a, mutatorOf(i), &r.accounting)
		if err != nil {
			return agentState{}, err
		}
		flood.Go(func() {
			share := n / flooders
			if i == 0 {
				share += n % flooders
			}
			f.flood(share)
			used.Lock()
			defer used.Unlock()
			for i, n := range f.Used {
				r.mutations[names[i]] += n
			}
		})
	}
	r.follow(beside, a)
	flood.Wait()
	// A short flood may be over before all connections have been open once.
	err = a.Await(ctx, "the idle connections", func(context.Context) error {
		if n := r.silent.Load(); n < uint64(r.idle) {
			return fmt.Errorf("%d of %d have been open", n, r.idle)
		}
		return nil
	})
	if err != nil {
		return agentState{}, err
	}
	stop()
	rest.Wait()
	return a.awaitSettled(ctx, r.start)
}

// follow says now and then how far the flood is.
func (r *report) follow(ctx context.Context, a *agent) {
	if r.progress == nil {
		return
	}
	go func() {
		for pause(ctx, 10*time.Second) {
			if s, err := a.readState(ctx); err == nil {
				fmt.Fprintf(r.progress, "%d packets, %d well-formed, %d faults; the agent: %.1f MiB, %d files, %d goroutines, %d drops\n",
					r.sent.Load(), r.asked.Load(), r.faultCount(), mebi(s.rss), s.files, s.goroutines, s.drops)
			}
		}
	}()
}

// enoughForAll is how many packets use every mutation.
const enoughForAll = 50_000

// cacheEvictions is the agent's counter of connections closed to make room for new ones.
const cacheEvictions = "nodens_dns_connections_evicted_total"

func mebi(b uint64) float64 { return float64(b) / (1 << 20) }

// judge adds to the faults what the numbers say.
func (r *report) judge() {
	if n := r.end.counted["coredns_panics_total"]; n > 0 {
		r.fault("%v queries panicked", n)
	}
	if r.end.peak > r.warm.peak+growth {
		r.fault("the agent had %.1f MiB at its peak, in the warm-up %.1f", mebi(r.end.peak), mebi(r.warm.peak))
	}
	if n := r.upstream.strange.Load(); n > 0 {
		r.fault("the upstream got %d queries that no forwarder should send", n)
	}
	if again, drops := r.again.Load(), r.end.drops; again > drops {
		r.fault("%d well-formed queries were lost, but only %d packets dropped", again, drops)
	}
	// Each packet that reaches the agent is counted there, or answered with a bare
	// header, or must have no answer.
	sent := r.sent.Load() + r.asked.Load() + r.extra.Load()
	read := uint64(r.end.udp) + r.bare.Load() + r.muteSent.Load()
	if read+r.end.drops < sent {
		r.fault("%d packets were sent, %d read and %d dropped", sent, read, r.end.drops)
	}
	if n, of := r.refused.Load(), r.askedTCP.Load()+r.frames.Load(); n*maxLockout > of {
		r.fault("of %d TCP connections of clients that behave %d were closed without an answer", of, n)
	}
	for _, name := range broken.Names() {
		if r.mutations[name] == 0 && r.packets >= enoughForAll {
			r.fault("no packet was broken by %q", name)
		}
	}
}

// verdict is an error if anything is wrong.
func (r *report) verdict() error {
	if n := r.faultCount(); n > 0 {
		return fmt.Errorf("%d faults with seed %d:\n%s", n, r.seed, strings.Join(r.faults, "\n"))
	}
	return nil
}

// String is the report as text.
func (r *report) String() string {
	var b strings.Builder
	line := func(what string, format string, args ...any) {
		fmt.Fprintf(&b, "%-46s", what)
		fmt.Fprintf(&b, format+"\n", args...)
	}
	sent := r.sent.Load() + r.asked.Load() + r.extra.Load()
	line("broken packets sent, seed "+fmt.Sprint(r.seed), "%d in %s", r.sent.Load(), r.took.Round(time.Second))
	line("read by the agent", "%d of %d with the well-formed; %d dropped", sent-r.end.drops, sent, r.end.drops)
	line("counted there, bare replies and mute ones", "%d", uint64(r.end.udp)+r.bare.Load()+r.muteSent.Load())
	line("answered", "%d, %d of them with a header only", r.replies.Load(), r.bare.Load())
	line("must have no answer, and had none", "%d", r.muteSent.Load())
	line("well-formed queries over UDP, all answered", "%d, sent once more: %d", r.asked.Load(), r.again.Load())
	line("well-formed queries over TCP, all answered", "%d, turned away: %d", r.askedTCP.Load(), r.refused.Load())
	line("queries whose replies were broken", "%d, SERVFAIL: %d", r.probed.Load(), r.servfail.Load())
	line("the upstream was asked", "%d, broke %d replies, sent no other to %d", r.upstream.Count(), r.upstream.broken.Load(), r.upstream.silent.Load())
	line("connections", "idle %d, a byte a second %d, broken frames %d", r.silent.Load(), r.slowly.Load(), r.frames.Load())
	line("the agent's counters: panics, shed", "%v, %v", r.end.counted["coredns_panics_total"], r.end.counted["nodens_dns_shed_total"])
	line("  connections refused, evicted, cut", "%v, %v, %v", r.end.counted["nodens_dns_connections_refused_total"],
		r.end.counted[cacheEvictions], r.end.counted["nodens_dns_connections_aborted_total"])
	for _, s := range []struct {
		when string
		agentState
	}{{"start", r.start}, {"warm-up", r.warm}, {"flood", r.end}} {
		line("after the "+s.when, "%.1f MiB, at most %.1f, %d files, %d goroutines", mebi(s.rss), mebi(s.peak), s.files, s.goroutines)
	}
	return b.String()
}
