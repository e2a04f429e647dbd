package fairness

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The rows of the cost of shares.
const (
	onRow  = "on"
	offRow = "off"
)

// unreached is a limit and a budget that nobody reaches, in queries a second.
const unreached = 1_000_000

// shareServers are the agents, that with a limit and a budget first.
func shareServers() []harness.Server {
	s := harness.Server{Program: "nodens", Conf: "budget"}
	on, off := s, s
	on.Name, on.Flags = onRow, []string{"-client-limit", fmt.Sprint(unreached)}
	off.Name = offRow
	return []harness.Server{on, off}
}

// shareSettings are those of a row.
func shareSettings(s harness.Server) harness.Settings {
	if s.Name == onRow {
		return harness.Settings{Budget: fmt.Sprintf("max_rate %d", unreached)}
	}
	return harness.Settings{}
}

// numSlices is the number of slices of a measurement, for each agent.
const numSlices = 8

// sharePods is the number of pods that ask; each has shareWindow queries in flight.
const sharePods, shareWindow = 20, 4

// shareLoad is what the pods ask.
type shareLoad struct {
	name   string
	stream func(d *node) load.Stream
}

func shareLoads() []shareLoad {
	return []shareLoad{
		{"hit", func(*node) load.Stream { return names(load.Stream{}, hotPattern, hotNames) }},
		{"miss", func(d *node) load.Stream { return d.newNames(load.Stream{}, load.Late) }},
	}
}

// measureShares measures pairs of agents, of which one has a limit and a budget.
func (b *run) measureShares(ctx context.Context) error {
	if len(b.shareServers) < 2 {
		return nil // a ratio takes both
	}
	for n := range b.Plan.Rounds {
		if err := b.sharePair(ctx, b.node, n); err != nil {
			return err
		}
	}
	return nil
}

// shareAgent is an agent of a pair.
type shareAgent struct {
	harness.Server
	*peer.Process
	at netip.AddrPort
}

// sharePair measures a new pair. Every other round starts the second agent first.
func (b *run) sharePair(ctx context.Context, d *node, round int) error {
	var pair [2]shareAgent
	for i := range pair {
		at := i ^ round%2
		a := shareAgent{Server: b.shareServers[at], at: []netip.AddrPort{serverAddr, secondAddr}[i]}
		var err error
		if a.Process, err = d.start(ctx, a.Server, a.at, shareSettings(a.Server)); err != nil {
			return err
		}
		defer a.Stop()
		pair[at] = a
	}
	for _, l := range shareLoads() {
		if !b.Only.MatchesName(l.name) {
			continue
		}
		var sums [2]harness.Sample
		for i := range 2 * b.Number(numSlices) {
			at := (i+1)/2%2 ^ round%2
			s, err := b.shareSlice(ctx, d, pair[at], l)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", l.name, pair[at].Name, err)
			}
			sums[at] = sums[at].Plus(s)
		}
		for i, s := range sums {
			b.Add(harness.Cell{Server: pair[i].Name, Workload: l.name}, round, s, fmt.Sprintf("%.3f µs of CPU, %.0f a second", s.CPUPerQuery(), s.PerSecond()))
		}
	}
	return nil
}

// shareSlice has the pods ask one agent at saturation, again if queries are lost.
func (b *run) shareSlice(ctx context.Context, d *node, a shareAgent, l shareLoad) (got harness.Sample, err error) {
	if err := d.fill(ctx, a.Process, a.at, names(load.Stream{}, hotPattern, hotNames)); err != nil {
		return got, err
	}
	for range harness.MaxAttempts {
		s := l.stream(d)
		n := min(sharePods, len(d.pods))
		s.Sockets, s.Window, s.Open = n, shareWindow*n, open(d.pods[:n]...)
		job := b.Job(load.LoopJob{Server: a.at, Streams: []load.Stream{s}})
		if !b.Short {
			job.Length = b.Length / numSlices
		}
		before, err := machine.CPUClock(a.PID())
		if err != nil {
			return got, err
		}
		results, err := d.loop.Run(ctx, job)
		if err != nil {
			return got, err
		}
		after, err := machine.CPUClock(a.PID())
		if err != nil {
			return got, err
		}
		got = harness.Sample{LoadResult: harness.ToLoadResult(results[0]), CPU: after - before}
		if err = got.Check("NOERROR"); err == nil {
			return got, nil
		}
	}
	return got, got.Check("NOERROR")
}
