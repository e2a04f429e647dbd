package queries

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// idleSample is what a server does while nobody asks it.
type idleSample struct {
	cpu      time.Duration
	switches uint64
	length   time.Duration
}

func (s idleSample) cpuPerSecond() float64    { return s.cpu.Seconds() * 1e3 / s.length.Seconds() } // in milliseconds
func (s idleSample) sleepsPerSecond() float64 { return float64(s.switches) / s.length.Seconds() }

// measureIdle measures all servers at once while nobody asks any.
func (b *run) measureIdle(ctx context.Context) error {
	if !b.Only.MatchesName("idle") {
		return nil
	}
	before := make([]machine.ProcStat, len(b.Running))
	var err error
	for i, r := range b.Running {
		if before[i], err = machine.ReadProcStat(r.Any().PID()); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := harness.Sleep(ctx, b.Length); err != nil {
		return err
	}
	for i, r := range b.Running {
		length := time.Since(start)
		after, err := machine.ReadProcStat(r.Any().PID())
		if err != nil {
			return err
		}
		at := harness.Cell{Server: r.Name}
		b.out.idle[at] = append(b.out.idle[at], idleSample{
			cpu: after.CPU - before[i].CPU, length: length,
			switches: after.Switches - min(after.Switches, before[i].Switches),
		})
	}
	return nil
}

// DefaultCacheNames is the number of names that are put into an empty cache: what the
// busiest nodes have in use within a TTL, and the number that the limits are for.
const DefaultCacheNames = harness.ManyNames

// maxUnanswered is the part of them that may get no answer: what a hundredth of the
// names takes is not seen in the sum, and a busy machine loses some.
const maxUnanswered = 0.01

// memorySample is a server's memory, in bytes.
type memorySample struct {
	// idle is that of a server that was started and asked a question, full that
	// after it was asked for entries names.
	idle, full uint64
	// kept is the part of the names that it did not ask the upstream for when it was
	// asked again, from 0 to 1.
	kept float64
}

func (h memorySample) idleMebi() float64 { return figures.Mebi(h.idle) }
func (h memorySample) fullMebi() float64 { return figures.Mebi(h.full) }

// fillTime is how long a server may take over two times entries names. Those that
// keep up take ten seconds; one that does not is not waited for.
const fillTime = 2 * time.Minute

// measureMemory measures the memory of each server, in a process of its own. It comes
// last, so what fails here is noted and does not cost the rest.
func (b *run) measureMemory(ctx context.Context) error {
	if !b.Only.MatchesName("memory") {
		return nil
	}
	for _, s := range b.Report.Servers {
		if s.SaturationOnly || harness.Programs[s.Program].PerSet {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, fillTime)
		h, err := b.memoryOf(limited, s)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(b.Progress, "memory of %s: %v\n", s.Name, err)
			b.Report.Notes = append(b.Report.Notes, fmt.Sprintf("The memory of %s is not measured: %s.", s.Name, firstLine(err)))
			continue
		}
		b.out.memory[harness.Cell{Server: s.Name}] = []memorySample{h}
		fmt.Fprintf(b.Progress, "memory of %s: idle %.1f MiB, with %d names %.1f MiB, %.1f %% kept\n",
			s.Name, figures.Mebi(h.idle), b.Names, figures.Mebi(h.full), 100*h.kept)
	}
	return nil
}

// firstLine is an error without what a process wrote.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSuffix(line, ":")
}

// memoryOf measures the memory of one server.
func (b *run) memoryOf(ctx context.Context, s harness.Server) (memorySample, error) {
	r, err := b.Start(ctx, s, true)
	if err != nil {
		return memorySample{}, err
	}
	defer r.Stop()
	h, err := b.fillCache(ctx, r)
	if err != nil {
		err = r.Explain(err)
	}
	return h, err
}

// fillCache asks the server for names twice and reads its memory before and between.
func (b *run) fillCache(ctx context.Context, r *harness.RunningServer) (memorySample, error) {
	// What a start leaves behind is given back in this time, or it is not.
	if err := harness.Sleep(ctx, b.Length); err != nil {
		return memorySample{}, err
	}
	pid := r.Any().PID()
	idle, err := machine.ReadProcStat(pid)
	if err != nil {
		return memorySample{}, err
	}
	stream := b.NewNamesStream(load.Stream{Window: harness.Clients * 4, Count: b.Names}, "00000000.full.example.")
	b.Fresh += uint32(b.Names)
	if err := b.askStream(ctx, r, stream); err != nil {
		return memorySample{}, err
	}
	full, err := machine.ReadProcStat(pid)
	if err != nil {
		return memorySample{}, err
	}
	asked := b.Loop.Asked()
	if err := b.askStream(ctx, r, stream); err != nil {
		return memorySample{}, err
	}
	return memorySample{idle: idle.RSS, full: full.RSS, kept: 1 - float64(b.Loop.Asked()-asked)/float64(b.Names)}, nil
}

// askStream asks all of a stream's names.
func (b *run) askStream(ctx context.Context, r *harness.RunningServer, s load.Stream) error {
	to := netip.AddrPortFrom(b.Loop.Addr().Addr(), uint16(r.Any().Port))
	results, err := b.Loop.Run(ctx, load.LoopJob{Server: to, Streams: []load.Stream{s}})
	if err != nil {
		return err
	}
	if o := harness.ToLoadResult(results[0]); o.Failed() > maxUnanswered {
		return fmt.Errorf("of %d names %d got an answer, with the rcodes %v", o.Sent, o.Completed, o.Rcodes)
	}
	return nil
}
