package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/loadgen"
)

// idleSample is what a server does while nobody asks it.
type idleSample struct {
	cpu      time.Duration
	switches uint64
	length   time.Duration
}

// measureIdle measures all servers at once while nobody asks any.
func (b *queriesRun) measureIdle(ctx context.Context) error {
	if !b.only.matchesName("idle") {
		return nil
	}
	before := make([]procStat, len(b.running))
	var err error
	for i, r := range b.running {
		if before[i], err = readProcStat(r.any().Pid()); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := sleep(ctx, b.length); err != nil {
		return err
	}
	for i, r := range b.running {
		length := time.Since(start)
		after, err := readProcStat(r.any().Pid())
		if err != nil {
			return err
		}
		b.out.rests[r.name] = append(b.out.rests[r.name], idleSample{
			cpu: after.cpu - before[i].cpu, length: length,
			switches: after.switches - min(after.switches, before[i].switches),
		})
	}
	return nil
}

// defaultCacheNames is the number of names that are put into an empty cache: what the
// busiest nodes have in use within a TTL, and the number that the limits are for.
const defaultCacheNames = 100000

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

// fillTime is how long a server may take over two times entries names. Those that
// keep up take ten seconds; one that does not is not waited for.
const fillTime = 2 * time.Minute

// measureMemory measures the memory of each server, in a process of its own. It comes
// last, so what fails here is noted and does not cost the rest.
func (b *queriesRun) measureMemory(ctx context.Context) error {
	if !b.only.matchesName("memory") {
		return nil
	}
	for _, s := range b.report.servers {
		if s.saturationOnly || programs[s.program].perSet {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, fillTime)
		h, err := b.memoryOf(limited, s)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(b.progress, "memory of %s: %v\n", s.name, err)
			b.report.notes = append(b.report.notes, fmt.Sprintf("The memory of %s is not measured: %s.", s.name, firstLine(err)))
			continue
		}
		b.out.holds[s.name] = h
		fmt.Fprintf(b.progress, "memory of %s: idle %.1f MiB, with %d names %.1f MiB, %.1f %% kept\n",
			s.name, mebi(h.idle), b.names, mebi(h.full), 100*h.kept)
	}
	return nil
}

// firstLine is an error without what a process wrote.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSuffix(line, ":")
}

// memoryOf measures the memory of one server.
func (b *queriesRun) memoryOf(ctx context.Context, s server) (memorySample, error) {
	r, err := b.start(ctx, s, true)
	if err != nil {
		return memorySample{}, err
	}
	defer r.stop()
	h, err := b.fillCache(ctx, r)
	if err != nil {
		err = r.explain(err)
	}
	return h, err
}

// fillCache asks the server for names twice and reads its memory before and between.
func (b *queriesRun) fillCache(ctx context.Context, r *runningServer) (memorySample, error) {
	// What a start leaves behind is given back in this time, or it is not.
	if err := sleep(ctx, b.length); err != nil {
		return memorySample{}, err
	}
	pid := r.any().Pid()
	idle, err := readProcStat(pid)
	if err != nil {
		return memorySample{}, err
	}
	stream := b.newNamesStream(loadgen.Stream{Window: clients * 4, Count: b.names}, "00000000.full.example.")
	b.fresh += uint32(b.names)
	if err := b.askStream(ctx, r, stream); err != nil {
		return memorySample{}, err
	}
	full, err := readProcStat(pid)
	if err != nil {
		return memorySample{}, err
	}
	asked := b.loop.Asked()
	if err := b.askStream(ctx, r, stream); err != nil {
		return memorySample{}, err
	}
	return memorySample{idle: idle.rss, full: full.rss, kept: 1 - float64(b.loop.Asked()-asked)/float64(b.names)}, nil
}

// askStream asks all of a stream's names.
func (b *queriesRun) askStream(ctx context.Context, r *runningServer, s loadgen.Stream) error {
	to := netip.AddrPortFrom(b.loop.Addr().Addr(), uint16(r.any().port))
	results, err := b.loop.Run(ctx, loadgen.Job{Server: to, Streams: []loadgen.Stream{s}})
	if err != nil {
		return err
	}
	if o := toLoadResult(results[0]); o.failed() > maxUnanswered {
		return fmt.Errorf("of %d names %d got an answer, with the rcodes %v", o.sent, o.completed, o.rcodes)
	}
	return nil
}
