package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/test/bench/pace"
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

// memories measures the memory of each server, in a process of its own.
func (b *bench) memories(ctx context.Context) error {
	if !b.only.named("memory") {
		return nil
	}
	for _, s := range b.report.servers {
		if s.bare || programs[s.program].each {
			continue
		}
		h, err := b.memory(ctx, s)
		if err != nil {
			return fmt.Errorf("measuring the memory of %s: %w", s.name, err)
		}
		b.report.holds[s.name] = h
		fmt.Fprintf(b.progress, "memory of %s: idle %.1f MiB, with %d names %.1f MiB, %.1f %% kept\n",
			s.name, mebi(h.idle), b.names, mebi(h.full), 100*h.kept)
	}
	return nil
}

func (b *bench) memory(ctx context.Context, s server) (hold, error) {
	r, err := b.start(ctx, s, true)
	if err != nil {
		return hold{}, err
	}
	defer r.stop()
	// What a start leaves behind is given back in this time, or it is not.
	if err := pause(ctx, b.length); err != nil {
		return hold{}, err
	}
	idle, err := read(r.any().Pid())
	if err != nil {
		return hold{}, err
	}
	h := hold{idle: idle.rss}
	first := b.fresh
	for range 2 {
		asked := b.loop.Asked()
		b.fresh = first
		stream := b.named(pace.Stream{Window: clients * 4, Count: b.names}, "00000000.full.example.")
		results, err := b.loop.Run(ctx, pace.Job{
			Server:  netip.AddrPortFrom(b.loop.Addr().Addr(), uint16(r.any().port)),
			Streams: []pace.Stream{stream},
		})
		if err != nil {
			return h, err
		}
		b.fresh += uint32(b.names)
		if o := outcomeOf(results[0]); o.failed() > unheard {
			return h, fmt.Errorf("of %d names %d got an answer, with the rcodes %v", o.sent, o.completed, o.rcodes)
		}
		if h.full == 0 {
			full, err := read(r.any().Pid())
			if err != nil {
				return h, err
			}
			h.full = full.rss
			continue
		}
		h.kept = 1 - float64(b.loop.Asked()-asked)/float64(b.names)
	}
	return h, nil
}

func mebi(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
