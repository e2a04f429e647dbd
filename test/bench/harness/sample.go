package harness

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// Cell names a row of a table: a server under a workload.
type Cell struct{ Server, Workload string }

// Sample is one measurement.
type Sample struct {
	LoadResult
	// Latencies are those of the queries at a fixed rate, in ascending order.
	Latencies []time.Duration
	// blurred is how many answers have no latency because the load generator did
	// not have its core, and skipped how many queries were not asked for it.
	blurred, Skipped uint64
	// floodResult is what became of the flood.
	floodResult LoadResult
	// CPU is the server's CPU time, Kernel the share of it in kernel mode, from 0 to 1.
	CPU    time.Duration
	Kernel float64
	// Idle is how long the server's core had nothing to do.
	Idle time.Duration
	// Switches counts how often the server went to sleep.
	Switches uint64
	// Before is the server's memory in bytes before the queries, RSS after them, and Peak
	// the maximum in between.
	Before, RSS, Peak uint64
	// misses counts the questions that the upstream was asked meanwhile for names
	// that are not late.
	misses uint64

	// For a pod's queries: Busy is the busy time of all cores, IdleLoad the share of one core
	// that is busy without queries, Client the client's CPU time, and KernelShare the share of
	// answers from the kernel, from 0 to 1.
	Busy, Client          time.Duration
	IdleLoad, KernelShare float64
}

// Plus adds a slice of the same measurement.
func (s Sample) Plus(o Sample) Sample {
	s.Sent, s.Completed, s.Lost = s.Sent+o.Sent, s.Completed+o.Completed, s.Lost+o.Lost
	s.Elapsed, s.CPU = s.Elapsed+o.Elapsed, s.CPU+o.CPU
	return s
}

// answered is the number of answers that the CPU time was spent on.
func (s Sample) answered() float64 { return float64(s.Completed + s.floodResult.Completed) }

// CPUPerQuery is the CPU time of a query in microseconds.
func (s Sample) CPUPerQuery() float64 { return float64(s.CPU.Nanoseconds()) / 1e3 / s.answered() }

// MachineCPU is what a pod's query costs all cores in microseconds, the client's share included,
// without what they do anyhow.
func (s Sample) MachineCPU() float64 {
	return (s.Busy.Seconds() - s.IdleLoad*s.Elapsed.Seconds()) * 1e6 / s.answered()
}

// ProcessCPU is what the CPU clocks of client and server say that a pod's query costs, in
// microseconds: less than whole by interrupts on idle cores, and right on a busy machine too.
func (s Sample) ProcessCPU() float64 {
	return float64((s.Client + s.CPU).Nanoseconds()) / 1e3 / s.answered()
}

// Interval is the time from one answer to the next in microseconds.
func (s Sample) Interval() float64 { return s.Elapsed.Seconds() * 1e6 / s.answered() }

// ServerLoad is the part of a core that the server takes, in hundredths.
func (s Sample) ServerLoad() float64 { return 100 * s.CPU.Seconds() / s.Elapsed.Seconds() }

// sleeps is how often the server went to sleep for a query.
func (s Sample) sleeps() float64 { return float64(s.Switches) / s.answered() }

// otherShare is the part of the core's time that went neither to the server nor to
// waiting: to other processes, or to other virtual machines.
func (s Sample) otherShare() float64 {
	// The core's clock has ticks, so the sum may be a little over the time.
	return max(0, 1-(s.CPU+s.Idle).Seconds()/s.Elapsed.Seconds())
}

// Failed is the part of the queries that were lost or got no address.
func (o LoadResult) Failed() float64 {
	return float64(o.Sent-min(o.Sent, o.Rcodes["NOERROR"])) / float64(max(o.Sent, 1))
}

// Growth is the most memory in units of that before.
func (s Sample) Growth() float64 { return float64(s.Peak) / float64(s.Before) }

// latency is the time within which the part of the answers came, in microseconds.
func (s Sample) latency(part float64) float64 {
	return float64(figures.Percentile(s.Latencies, part).Nanoseconds()) / 1e3
}

func (s Sample) P50() float64 { return s.latency(0.5) }
func (s Sample) P99() float64 { return s.latency(0.99) }

func (s Sample) String() string {
	text := fmt.Sprintf("%.2f µs, %.2f sleeps", s.CPUPerQuery(), s.sleeps())
	if len(s.Latencies) > 0 {
		text += fmt.Sprintf(", p50 %.0f, p99 %.0f, p99.9 %.0f µs", s.P50(), s.P99(), s.latency(0.999))
	} else {
		text += fmt.Sprintf(", %.0f queries/s", float64(s.Completed)/s.Elapsed.Seconds())
	}
	return text
}

// LoadOf is dnsperf's run of a workload.
func (b *Run) LoadOf(r *RunningServer, w Workload, length time.Duration) dnsperf {
	l := dnsperf{
		server: r.asked(w).Port, file: b.files[w.QuerySet.Name], length: length, passes: 1,
		tcp: w.Tool == SaturateTCP, edns: w.Edns, clients: w.clients, outstanding: w.Outstanding,
	}
	if b.Short {
		l.timeout = shortPatience
		if length > 0 {
			l.length, l.passes = 0, shortPasses
		}
	}
	return l
}

// AskAll asks every question of the workload until the server answers all of them without asking the
// upstream: the answers are then in the cache, whatever pushed them out. One pass is not always enough:
// kresd repeats questions whose answers take two seconds, and some of the repetitions reach the upstream
// when the clients already have their answers.
func (b *Run) AskAll(ctx context.Context, r *RunningServer, w Workload) error {
	if w.Tool == CacheMisses {
		return nil
	}
	l := b.LoadOf(r, w, 0)
	if !l.tcp {
		l.clients, l.outstanding = Clients, Outstanding
	}
	for range maxPasses {
		asked := b.Loop.Asked()
		if err := b.askOnce(ctx, l, w); err != nil {
			return err
		}
		if b.Loop.Asked() == asked {
			break
		}
	}
	return nil
}

// maxPasses is how often AskAll asks a server that does not keep its answers.
const maxPasses = 10

// askOnce runs l until all answers are what the workload expects.
func (b *Run) askOnce(ctx context.Context, l dnsperf, w Workload) (err error) {
	for range MaxAttempts {
		var o LoadResult
		if o, err = l.Run(ctx, b.LoadCores); err != nil {
			return err
		}
		if err = o.Check(dns.RcodeToString[w.Rcode]); err == nil {
			break
		}
	}
	return err
}

// MaxAttempts is how often a measurement is made before its failure ends the run:
// once a machine with other work has thrown packets away, and once more.
const MaxAttempts = 3

// Sample makes one measurement, again if it fails.
func (b *Run) Sample(ctx context.Context, r *RunningServer, w Workload) (s Sample, err error) {
	for range MaxAttempts {
		if s, err = b.attempt(ctx, r, w); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

// attempt makes one measurement.
func (b *Run) attempt(ctx context.Context, r *RunningServer, w Workload) (Sample, error) {
	if err := b.AskAll(ctx, r, w); err != nil {
		return Sample{}, err
	}
	pid := r.asked(w).PID()
	if err := machine.ResetPeak(pid); err != nil {
		return Sample{}, err
	}
	idle, err := machine.IdleTime(b.ServerCores)
	if err != nil {
		return Sample{}, err
	}
	before, err := machine.ReadProcStat(pid)
	if err != nil {
		return Sample{}, err
	}
	asked := b.Loop.Asked()
	s, err := b.runWorkload(ctx, r, w)
	if err != nil {
		return Sample{}, err
	}
	after, err := machine.ReadProcStat(pid)
	if err != nil {
		return Sample{}, err
	}
	idleAfter, err := machine.IdleTime(b.ServerCores)
	if err != nil {
		return Sample{}, err
	}
	s.CPU, s.Idle = after.CPU-before.CPU, idleAfter-idle
	s.Before, s.RSS, s.Peak = before.RSS, after.RSS, after.Peak
	s.misses = b.Loop.Asked() - asked
	// Threads that ended take their count with them.
	s.Switches = after.Switches - min(after.Switches, before.Switches)
	kernel := after.Kernel - before.Kernel
	if ticks := kernel + after.User - before.User; ticks > 0 {
		s.Kernel = float64(kernel) / float64(ticks)
	}
	return s, nil
}

// runWorkload does what the workload says and returns what became of the queries.
func (b *Run) runWorkload(ctx context.Context, r *RunningServer, w Workload) (Sample, error) {
	var s Sample
	var err error
	switch w.Tool {
	case SaturateUDP, SaturateTCP:
		s.LoadResult, err = b.LoadOf(r, w, b.Length).Run(ctx, b.LoadCores)
	case CacheMisses:
		misses := load.Stream{Rate: w.Rate}
		if w.Rate == 0 {
			misses.Window = window
		}
		s, err = b.runStreams(ctx, r, w, b.missStream(misses))
	default:
		s, err = b.runFixedRate(ctx, r, w)
	}
	if err != nil {
		return s, err
	}
	if w.Tool == CacheMisses || w.Tool == MissFlood {
		return s, nil // what is lost is part of the result
	}
	return s, s.Check(dns.RcodeToString[w.Rcode])
}

// runFixedRate asks at the workload's rate, beside a flood if it says so.
func (b *Run) runFixedRate(ctx context.Context, r *RunningServer, w Workload) (Sample, error) {
	n := w.Count()
	if w.Tool == MissFlood {
		n = b.Number(hot)
	}
	known, err := w.packed(n)
	if err != nil {
		return Sample{}, err
	}
	streams := []load.Stream{{Questions: known, Rate: w.Rate, Sockets: Clients}}
	if w.Tool == FixedRate && w.Rate <= 1000 {
		// Twice as long: of few queries the p99 is one of twenty.
		streams[0].Count = int(2 * float64(w.Rate) * b.Length.Seconds())
	}
	if w.Tool == MissFlood {
		streams = append(streams, b.missStream(load.Stream{Rate: floodRate}))
	}
	return b.runStreams(ctx, r, w, streams...)
}

// missStream makes a stream of one that asks for new names of the late upstream's.
func (b *Run) missStream(s load.Stream) load.Stream {
	return b.NewNamesStream(s, "00000000."+load.Late)
}

// NewNamesStream makes a stream of one that asks for new names like the given one, which
// has eight letters first.
func (b *Run) NewNamesStream(s load.Stream, name string) load.Stream {
	msg, err := query(name, dns.TypeA)
	if err != nil {
		panic(err) // the names are constants
	}
	s.Questions, s.Fresh, s.First, s.Sockets = [][]byte{msg}, true, b.Fresh, Clients
	return s
}

// runStreams runs the streams, the first of which is the sample's outcome.
func (b *Run) runStreams(ctx context.Context, r *RunningServer, w Workload, streams ...load.Stream) (Sample, error) {
	to := netip.AddrPortFrom(b.Loop.Addr().Addr(), uint16(r.asked(w).Port))
	results, err := b.Loop.Run(ctx, b.Job(load.LoopJob{Server: to, Streams: streams}))
	if err != nil {
		return Sample{}, err
	}
	for i, s := range streams {
		if s.Fresh {
			b.Fresh += uint32(results[i].Sent)
		}
	}
	first := results[0]
	slices.Sort(first.Latencies)
	s := Sample{LoadResult: ToLoadResult(first), Latencies: first.Latencies, blurred: first.Blurred, Skipped: first.Skipped}
	if len(results) > 1 {
		s.floodResult = ToLoadResult(results[1])
	}
	return s, nil
}

// ToLoadResult converts what package load says into the terms of dnsperf.
func ToLoadResult(r load.Result) LoadResult {
	o := LoadResult{Sent: r.Sent, Completed: r.Answered, Lost: r.Lost, Rcodes: map[string]uint64{}, Elapsed: r.Elapsed}
	if r.Sent > 0 {
		o.Request = r.RequestBytes / r.Sent
	}
	if r.Answered > 0 {
		o.Response = r.ResponseBytes / r.Answered
	}
	for rcode, n := range r.Rcodes {
		if n > 0 {
			o.Rcodes[dns.RcodeToString[rcode]] = n
		}
	}
	return o
}
