package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/loadgen"
)

// rest is what a server does while nobody asks it.
type rest struct {
	cpu      time.Duration
	switches uint64
	length   time.Duration
}

// rest measures all servers at once while nobody asks any.
func (b *bench) rest(ctx context.Context) error {
	if !b.only.named("idle") {
		return nil
	}
	before := make([]reading, len(b.running))
	var err error
	for i, r := range b.running {
		if before[i], err = read(r.any().Pid()); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := pause(ctx, b.length); err != nil {
		return err
	}
	for i, r := range b.running {
		length := time.Since(start)
		after, err := read(r.any().Pid())
		if err != nil {
			return err
		}
		b.report.rests[r.name] = append(b.report.rests[r.name], rest{
			cpu: after.cpu - before[i].cpu, length: length,
			switches: after.switches - min(after.switches, before[i].switches),
		})
	}
	return nil
}

// pause returns after the time, or earlier if the context ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// entries is the number of names that are put into an empty cache: what the
// busiest nodes have in use within a TTL, and the number that the limits are for.
const entries = 100000

// unheard is the part of them that may get no answer: what a hundredth of the
// names takes is not seen in the sum, and a busy machine loses some.
const unheard = 0.01

// hold is a server's memory, in bytes.
type hold struct {
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

// memories measures the memory of each server, in a process of its own. It comes
// last, so what fails here is noted and does not cost the rest.
func (b *bench) memories(ctx context.Context) error {
	if !b.only.named("memory") {
		return nil
	}
	for _, s := range b.report.servers {
		if s.bare || programs[s.program].each {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, fillTime)
		h, err := b.memory(limited, s)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(b.progress, "memory of %s: %v\n", s.name, err)
			b.report.notes = append(b.report.notes, fmt.Sprintf("The memory of %s is not measured: %s.", s.name, firstLine(err)))
			continue
		}
		b.report.holds[s.name] = h
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

// memory measures the memory of one server.
func (b *bench) memory(ctx context.Context, s server) (hold, error) {
	r, err := b.start(ctx, s, true)
	if err != nil {
		return hold{}, err
	}
	defer r.stop()
	h, err := b.fillUp(ctx, r)
	if err != nil {
		err = r.explain(err)
	}
	return h, err
}

// fillUp asks the server for names twice and reads its memory before and between.
func (b *bench) fillUp(ctx context.Context, r *running) (hold, error) {
	// What a start leaves behind is given back in this time, or it is not.
	if err := pause(ctx, b.length); err != nil {
		return hold{}, err
	}
	pid := r.any().Pid()
	idle, err := read(pid)
	if err != nil {
		return hold{}, err
	}
	stream := b.named(loadgen.Stream{Window: clients * 4, Count: b.names}, "00000000.full.example.")
	b.fresh += uint32(b.names)
	if err := b.visit(ctx, r, stream); err != nil {
		return hold{}, err
	}
	full, err := read(pid)
	if err != nil {
		return hold{}, err
	}
	asked := b.loop.Asked()
	if err := b.visit(ctx, r, stream); err != nil {
		return hold{}, err
	}
	return hold{idle: idle.rss, full: full.rss, kept: 1 - float64(b.loop.Asked()-asked)/float64(b.names)}, nil
}

// visit asks all of a stream's names.
func (b *bench) visit(ctx context.Context, r *running, s loadgen.Stream) error {
	to := netip.AddrPortFrom(b.loop.Addr().Addr(), uint16(r.any().port))
	results, err := b.loop.Run(ctx, loadgen.Job{Server: to, Streams: []loadgen.Stream{s}})
	if err != nil {
		return err
	}
	if o := outcomeOf(results[0]); o.failed() > unheard {
		return fmt.Errorf("of %d names %d got an answer, with the rcodes %v", o.sent, o.completed, o.rcodes)
	}
	return nil
}

func mebi(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
