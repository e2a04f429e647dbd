package main

import (
	"context"
	"fmt"
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
	loadResult
	// latencies are those of the queries at a fixed rate, in ascending order.
	latencies []time.Duration
	// blurred is how many answers have no latency because the load generator did
	// not have its core, and skipped how many queries were not asked for it.
	blurred, skipped uint64
	// floodResult is what became of the flood.
	floodResult loadResult
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
	busy, client          time.Duration
	idleLoad, kernelShare float64
}

// answered is the number of answers that the CPU time was spent on.
func (s sample) answered() float64 { return float64(s.completed + s.floodResult.completed) }

// cpuPerQuery is the CPU time of a query in microseconds.
func (s sample) cpuPerQuery() float64 { return float64(s.cpu.Nanoseconds()) / 1e3 / s.answered() }

// machineCPU is what a pod's query costs all cores in microseconds, the client's share included,
// without what they do anyhow.
func (s sample) machineCPU() float64 {
	return (s.busy.Seconds() - s.idleLoad*s.elapsed.Seconds()) * 1e6 / s.answered()
}

// processCPU is what the CPU clocks of client and server say that a pod's query costs, in
// microseconds: less than whole by interrupts on idle cores, and right on a busy machine too.
func (s sample) processCPU() float64 {
	return float64((s.client + s.cpu).Nanoseconds()) / 1e3 / s.answered()
}

// interval is the time from one answer to the next in microseconds.
func (s sample) interval() float64 { return s.elapsed.Seconds() * 1e6 / s.answered() }

// serverLoad is the part of a core that the server takes, in hundredths.
func (s sample) serverLoad() float64 { return 100 * s.cpu.Seconds() / s.elapsed.Seconds() }

// sleeps is how often the server went to sleep for a query.
func (s sample) sleeps() float64 { return float64(s.switches) / s.answered() }

// otherShare is the part of the core's time that went neither to the server nor to
// waiting: to other processes, or to other virtual machines.
func (s sample) otherShare() float64 {
	// The core's clock has ticks, so the sum may be a little over the time.
	return max(0, 1-(s.cpu+s.idle).Seconds()/s.elapsed.Seconds())
}

// failed is the part of the queries that were lost or got no address.
func (o loadResult) failed() float64 {
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
	text := fmt.Sprintf("%.2f µs, %.2f sleeps", s.cpuPerQuery(), s.sleeps())
	if len(s.latencies) > 0 {
		text += fmt.Sprintf(", p50 %.0f, p99 %.0f, p99.9 %.0f µs", s.p50(), s.p99(), s.latency(0.999))
	} else {
		text += fmt.Sprintf(", %.0f queries/s", float64(s.completed)/s.elapsed.Seconds())
	}
	return text
}

// loadOf is dnsperf's run of a workload.
func (b *Run) loadOf(r *runningServer, w workload, length time.Duration) dnsperf {
	return dnsperf{
		server: r.asked(w).port, file: b.files[w.querySet.name], length: length,
		tcp: w.tool == saturateTCP, edns: w.edns, clients: w.clients, outstanding: w.outstanding,
	}
}

// askAll asks every question of the workload once, so that the answers are in the
// cache whatever pushed them out.
func (b *Run) askAll(ctx context.Context, r *runningServer, w workload) (err error) {
	if w.tool == cacheMisses {
		return nil
	}
	l := b.loadOf(r, w, 0)
	if !l.tcp {
		l.clients, l.outstanding = clients, outstanding
	}
	for range maxAttempts {
		var o loadResult
		if o, err = l.run(ctx, b.loadCores); err != nil {
			return err
		}
		if err = o.check(dns.RcodeToString[w.rcode]); err == nil {
			break
		}
	}
	return err
}

// maxAttempts is how often a measurement is made before its failure ends the run:
// once a machine with other work has thrown packets away, and once more.
const maxAttempts = 3

// sample makes one measurement, again if it fails.
func (b *Run) sample(ctx context.Context, r *runningServer, w workload) (s sample, err error) {
	for range maxAttempts {
		if s, err = b.attempt(ctx, r, w); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

// attempt makes one measurement.
func (b *Run) attempt(ctx context.Context, r *runningServer, w workload) (sample, error) {
	if err := b.askAll(ctx, r, w); err != nil {
		return sample{}, err
	}
	pid := r.asked(w).Pid()
	if err := resetPeak(pid); err != nil {
		return sample{}, err
	}
	idle, err := idleTime(b.serverCores)
	if err != nil {
		return sample{}, err
	}
	before, err := readProcStat(pid)
	if err != nil {
		return sample{}, err
	}
	asked := b.loop.Asked()
	s, err := b.runWorkload(ctx, r, w)
	if err != nil {
		return sample{}, err
	}
	after, err := readProcStat(pid)
	if err != nil {
		return sample{}, err
	}
	idleAfter, err := idleTime(b.serverCores)
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

// runWorkload does what the workload says and returns what became of the queries.
func (b *Run) runWorkload(ctx context.Context, r *runningServer, w workload) (sample, error) {
	var s sample
	var err error
	switch w.tool {
	case saturateUDP, saturateTCP:
		s.loadResult, err = b.loadOf(r, w, b.length).run(ctx, b.loadCores)
	case cacheMisses:
		s, err = b.runStreams(ctx, r, w, b.missStream(loadgen.Stream{Window: window}))
	default:
		s, err = b.runFixedRate(ctx, r, w)
	}
	if err != nil {
		return s, err
	}
	if w.tool == cacheMisses || w.tool == missFlood {
		return s, nil // what is lost is part of the result
	}
	return s, s.check(dns.RcodeToString[w.rcode])
}

// runFixedRate asks at the workload's rate, beside a flood if it says so.
func (b *Run) runFixedRate(ctx context.Context, r *runningServer, w workload) (sample, error) {
	n := nameCount
	if w.tool == missFlood {
		n = hot
	}
	known, err := w.packed(n)
	if err != nil {
		return sample{}, err
	}
	streams := []loadgen.Stream{{Questions: known, Rate: w.rate, Sockets: clients}}
	if w.tool == missFlood {
		streams = append(streams, b.missStream(loadgen.Stream{Rate: floodRate}))
	}
	return b.runStreams(ctx, r, w, streams...)
}

// missStream makes a stream of one that asks for new names of the late upstream's.
func (b *Run) missStream(s loadgen.Stream) loadgen.Stream {
	return b.newNamesStream(s, "00000000."+loadgen.Late)
}

// newNamesStream makes a stream of one that asks for new names like the given one, which
// has eight letters first.
func (b *Run) newNamesStream(s loadgen.Stream, name string) loadgen.Stream {
	msg, err := query(name, dns.TypeA)
	if err != nil {
		panic(err) // the names are constants
	}
	s.Questions, s.Fresh, s.First, s.Sockets = [][]byte{msg}, true, b.fresh, clients
	return s
}

// runStreams runs the streams, the first of which is the sample's outcome.
func (b *Run) runStreams(ctx context.Context, r *runningServer, w workload, streams ...loadgen.Stream) (sample, error) {
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
	s := sample{loadResult: toLoadResult(first), latencies: first.Latencies, blurred: first.Blurred, skipped: first.Skipped}
	if len(results) > 1 {
		s.floodResult = toLoadResult(results[1])
	}
	return s, nil
}

// toLoadResult converts what package pace says into the terms of dnsperf.
func toLoadResult(r loadgen.Result) loadResult {
	o := loadResult{sent: r.Sent, completed: r.Answered, lost: r.Lost, rcodes: map[string]uint64{}, elapsed: r.Elapsed}
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
