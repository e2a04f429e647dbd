package main

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/loadgen"
)

// cell names a row of a table: a server under a workload.
type cell struct{ server, workload string }

// sample is one measurement.
type sample struct {
	outcome
	// latencies are those of the queries at a fixed rate, in ascending order.
	latencies []time.Duration
	// blurred is how many answers have no latency because the load generator did
	// not have its core, and skipped how many queries were not asked for it.
	blurred, skipped uint64
	// beside is what became of the flood.
	beside outcome
	// cpu is the server's time and kernel the part of it that the kernel's work
	// takes, from 0 to 1.
	cpu    time.Duration
	kernel float64
	// idle is how long the server's core had nothing to do.
	idle time.Duration
	// switches counts how often the server went to sleep.
	switches uint64
	// before is the server's memory before it was asked, rss afterwards, and peak
	// the most of it in between, in bytes.
	before, rss, peak uint64
	// misses counts the questions that the upstream was asked meanwhile for names
	// that are not late.
	misses uint64

	// Of a pod's queries: busy is the time of all cores, usual the part of one core's
	// that they are busy while nobody asks, client the time of the client, and within
	// the part of the answers that the kernel gave, from 0 to 1.
	busy, client  time.Duration
	usual, within float64
}

// answered is the number of answers that the CPU time was spent on.
func (s sample) answered() float64 { return float64(s.completed + s.beside.completed) }

// price is the CPU time of a query in microseconds.
func (s sample) price() float64 { return float64(s.cpu.Nanoseconds()) / 1e3 / s.answered() }

// whole is what a pod's query costs all cores in microseconds, the client's share included,
// without what they do anyhow.
func (s sample) whole() float64 {
	return (s.busy.Seconds() - s.usual*s.elapsed.Seconds()) * 1e6 / s.answered()
}

// together is what the CPU clocks of client and server say that a pod's query costs, in
// microseconds: less than whole by interrupts on idle cores, and right on a busy machine too.
func (s sample) together() float64 {
	return float64((s.client + s.cpu).Nanoseconds()) / 1e3 / s.answered()
}

// interval is the time from one answer to the next in microseconds.
func (s sample) interval() float64 { return s.elapsed.Seconds() * 1e6 / s.answered() }

// burden is the part of a core that the server takes, in hundredths.
func (s sample) burden() float64 { return 100 * s.cpu.Seconds() / s.elapsed.Seconds() }

// sleeps is how often the server went to sleep for a query.
func (s sample) sleeps() float64 { return float64(s.switches) / s.answered() }

// others is the part of the core's time that went neither to the server nor to
// waiting: to other processes, or to other virtual machines.
func (s sample) others() float64 {
	// The core's clock has ticks, so the sum may be a little over the time.
	return max(0, 1-(s.cpu+s.idle).Seconds()/s.elapsed.Seconds())
}

// failed is the part of the queries that were lost or got no address.
func (o outcome) failed() float64 {
	return float64(o.sent-min(o.sent, o.rcodes["NOERROR"])) / float64(max(o.sent, 1))
}

// growth is the most memory in units of that before.
func (s sample) growth() float64 { return float64(s.peak) / float64(s.before) }

// latency is the time within which the part of the answers came, in microseconds.
func (s sample) latency(part float64) float64 {
	return float64(percentile(s.latencies, part).Nanoseconds()) / 1e3
}

func (s sample) p50() float64 { return s.latency(0.5) }
func (s sample) p99() float64 { return s.latency(0.99) }

func (s sample) String() string {
	text := fmt.Sprintf("%.2f µs, %.2f sleeps", s.price(), s.sleeps())
	if len(s.latencies) > 0 {
		text += fmt.Sprintf(", p50 %.0f, p99 %.0f, p99.9 %.0f µs", s.p50(), s.p99(), s.latency(0.999))
	} else {
		text += fmt.Sprintf(", %.0f queries/s", float64(s.completed)/s.elapsed.Seconds())
	}
	return text
}

// percentile is the least of the ascending values that the part of them, from 0 to
// 1, does not exceed (the nearest rank); 0 of none.
func percentile(sorted []time.Duration, part float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	// A product such as 0.29 × 100 is a little less or more than 29.
	rank := int(math.Ceil(part*float64(n)-1e-9)) - 1
	return sorted[min(max(rank, 0), n-1)]
}

// loadOf is dnsperf's run of a workload.
func (b *bench) loadOf(r *running, w workload, length time.Duration) load {
	return load{
		server: r.asked(w).port, file: b.files[w.questions.name], length: length,
		tcp: w.tool == stream, edns: w.edns, clients: w.clients, outstanding: w.outstanding,
	}
}

// fill asks every question of the workload once, so that the answers are in the
// cache whatever pushed them out.
func (b *bench) fill(ctx context.Context, r *running, w workload) (err error) {
	if w.tool == miss {
		return nil
	}
	l := b.loadOf(r, w, 0)
	if !l.tcp {
		l.clients, l.outstanding = clients, outstanding
	}
	for range attempts {
		var o outcome
		if o, err = l.run(ctx, b.load); err != nil {
			return err
		}
		if err = o.check(dns.RcodeToString[w.rcode]); err == nil {
			break
		}
	}
	return err
}

// attempts is how often a measurement is made before its failure ends the run:
// once a machine with other work has thrown packets away, and once more.
const attempts = 3

// sample makes one measurement, again if it fails.
func (b *bench) sample(ctx context.Context, r *running, w workload) (s sample, err error) {
	for range attempts {
		if s, err = b.attempt(ctx, r, w); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

// attempt makes one measurement.
func (b *bench) attempt(ctx context.Context, r *running, w workload) (sample, error) {
	if err := b.fill(ctx, r, w); err != nil {
		return sample{}, err
	}
	pid := r.asked(w).Pid()
	if err := resetPeak(pid); err != nil {
		return sample{}, err
	}
	idle, err := idleTime(b.server)
	if err != nil {
		return sample{}, err
	}
	before, err := read(pid)
	if err != nil {
		return sample{}, err
	}
	asked := b.loop.Asked()
	s, err := b.ask(ctx, r, w)
	if err != nil {
		return sample{}, err
	}
	after, err := read(pid)
	if err != nil {
		return sample{}, err
	}
	idleAfter, err := idleTime(b.server)
	if err != nil {
		return sample{}, err
	}
	s.cpu, s.idle = after.cpu-before.cpu, idleAfter-idle
	s.before, s.rss, s.peak = before.rss, after.rss, after.peak
	s.misses = b.loop.Asked() - asked
	// Threads that ended take their count with them.
	s.switches = after.switches - min(after.switches, before.switches)
	kernel := after.kernel - before.kernel
	if ticks := kernel + after.user - before.user; ticks > 0 {
		s.kernel = float64(kernel) / float64(ticks)
	}
	return s, nil
}

// ask does what the workload says and returns what became of the queries.
func (b *bench) ask(ctx context.Context, r *running, w workload) (sample, error) {
	var s sample
	var err error
	switch w.tool {
	case saturate, stream:
		s.outcome, err = b.loadOf(r, w, b.length).run(ctx, b.load)
	case miss:
		s, err = b.pace(ctx, r, w, b.unknown(loadgen.Stream{Window: window}))
	default:
		s, err = b.steady(ctx, r, w)
	}
	if err != nil {
		return s, err
	}
	if w.tool == miss || w.tool == flood {
		return s, nil // what is lost is part of the result
	}
	return s, s.check(dns.RcodeToString[w.rcode])
}

// steady asks at the workload's rate, beside a flood if it says so.
func (b *bench) steady(ctx context.Context, r *running, w workload) (sample, error) {
	n := nameCount
	if w.tool == flood {
		n = hot
	}
	known, err := w.packed(n)
	if err != nil {
		return sample{}, err
	}
	streams := []loadgen.Stream{{Questions: known, Rate: w.rate, Sockets: clients}}
	if w.tool == flood {
		streams = append(streams, b.unknown(loadgen.Stream{Rate: floodRate}))
	}
	return b.pace(ctx, r, w, streams...)
}

// unknown makes a stream of one that asks for new names of the late upstream's.
func (b *bench) unknown(s loadgen.Stream) loadgen.Stream { return b.named(s, "00000000."+loadgen.Late) }

// named makes a stream of one that asks for new names like the given one, which
// has eight letters first.
func (b *bench) named(s loadgen.Stream, name string) loadgen.Stream {
	msg, err := query(name, dns.TypeA)
	if err != nil {
		panic(err) // the names are constants
	}
	s.Questions, s.Fresh, s.First, s.Sockets = [][]byte{msg}, true, b.fresh, clients
	return s
}

// pace runs the streams, the first of which is the sample's outcome.
func (b *bench) pace(ctx context.Context, r *running, w workload, streams ...loadgen.Stream) (sample, error) {
	to := netip.AddrPortFrom(b.loop.Addr().Addr(), uint16(r.asked(w).port))
	results, err := b.loop.Run(ctx, loadgen.Job{Server: to, Length: b.length, Streams: streams})
	if err != nil {
		return sample{}, err
	}
	for i, s := range streams {
		if s.Fresh {
			b.fresh += uint32(results[i].Sent)
		}
	}
	first := results[0]
	slices.Sort(first.Latencies)
	s := sample{outcome: outcomeOf(first), latencies: first.Latencies, blurred: first.Blurred, skipped: first.Skipped}
	if len(results) > 1 {
		s.beside = outcomeOf(results[1])
	}
	return s, nil
}

// outcomeOf converts what package pace says into the terms of dnsperf.
func outcomeOf(r loadgen.Result) outcome {
	o := outcome{sent: r.Sent, completed: r.Answered, lost: r.Lost, rcodes: map[string]uint64{}, elapsed: r.Elapsed}
	if r.Sent > 0 {
		o.request = r.RequestBytes / r.Sent
	}
	if r.Answered > 0 {
		o.response = r.ResponseBytes / r.Answered
	}
	for rcode, n := range r.Rcodes {
		if n > 0 {
			o.rcodes[dns.RcodeToString[rcode]] = n
		}
	}
	return o
}
