// Package kernel measures the section about answers from inside the kernel. A pod in a network
// namespace asks one server at a time, nodens with and without kernel answers among them. The price
// of a query is what the whole machine pays, the client's share included.
package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// The rows of the section about answers from inside the kernel that targets are about.
const (
	socketRow = "nodens, socket"
	kernelRow = "nodens, kernel path"
	echoRow   = "C echo"
	goEchoRow = "Go echo"

	unboundRow = "unbound"
	dnsdistRow = "dnsdist"
)

// podRows are the servers that a pod asks. The first tells how long an answer is.
func podRows() []harness.Server {
	return []harness.Server{
		{Name: socketRow, Program: "nodens", Conf: "deployed"},
		{Name: kernelRow, Program: "nodens", Conf: "deployed", Flags: []string{"-kernel-path", "on"}},
		{Name: echoRow, Program: "echo"},
		{Name: goEchoRow, Program: "goecho"},
		{Name: "CoreDNS", Program: "coredns", Conf: "deployed"},
		{Name: unboundRow, Program: "unbound", Conf: "unbound"},
		{Name: dnsdistRow, Program: "dnsdist", Conf: "dnsdist"},
	}
}

// inFlight is how many queries are under way at saturation: as many as keep the core of a
// server at its socket busy while the client's core sleeps and wakes, and few enough that
// no buffer overflows.
const inFlight = 32

// podLoads are what a pod asks: one cached name, as most of a node's queries are for few, and new names.
func podLoads() (list []harness.Workload) {
	q := harness.QuerySet{Name: "cached A with EDNS", Names: []string{"name-1." + testbed.Zone + "."}, Edns: true, Qtype: dns.TypeA}
	for _, m := range []harness.LoadShape{
		{Name: "1,000 qps", Tool: harness.FromPod, Rate: 1000, What: "A query every millisecond."},
		{Name: "10,000 qps", Tool: harness.FromPod, Rate: 10000, What: "A query every 100 µs."},
		{Name: "at saturation", Tool: harness.FromPod, Outstanding: inFlight, What: fmt.Sprintf("As fast as one client goes on one core, with %d queries under way.", inFlight)},
	} {
		list = append(list, harness.Workload{QuerySet: q, LoadShape: m, Name: "from a pod, " + m.Name})
	}
	return append(list, harness.Workload{QuerySet: q, Name: "misses from a pod, 2,000 qps", LoadShape: harness.LoadShape{
		Name: "2,000 qps", Tool: harness.MissesFromPod, Rate: 2000, What: "A new name every 500 µs; the upstream, in a third namespace, answers at once.",
	}})
}

// asks says whether the server gets the workload: an echo has no upstream.
func asks(w harness.Workload, s harness.Server) bool {
	return w.Tool != harness.MissesFromPod || !harness.Programs[s.Program].PerSet
}

// podFaults are the faults that are injected into nodens with and without the kernel's help.
func podFaults() (list []failover.Fault) {
	for _, m := range failover.Faults {
		if m.Name == failover.Killed || m.Name == failover.Hung {
			list = append(list, m)
		}
	}
	return list
}

// maxFaultRounds bounds the time that faults take; more than three say little more of them.
const maxFaultRounds = 3

// run measures the queries of a pod.
type run struct {
	*failover.Run
	out *Report
}

// Report is its result.
type Report struct{ *failover.Report }

// Measure measures what a query of a pod costs the machine. Nothing that it started runs
// when it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := harness.New(p, p.WithBefore(podRows()))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster = false
	b.OwnClient = true
	faults := failover.NewRun(b, failover.UpgradesInARow)
	run := &run{faults, &Report{faults.Out}}
	b.Choose(podLoads())
	b.Report.Workloads = b.Workloads
	if err := b.Steps(ctx, b.Build, run.measurePod, run.measurePodFaults); err != nil {
		return nil, err
	}
	run.out.noteBusy()
	return run.out, nil
}

// PodBench is a pod and a node with one server at a time, and the client in the pod.
type PodBench struct {
	*failover.Run
	lab      *testbed.Network
	set      harness.QuerySet
	client   string
	question []byte
}

// measurePod has the pod ask every server in turn, again and again.
func (b *run) measurePod(ctx context.Context) error {
	if len(b.Workloads) == 0 {
		return nil
	}
	d, err := NewPodBench(ctx, b.Run, b.Workloads[0].QuerySet)
	if err != nil {
		return err
	}
	defer d.Close()
	for n := range b.Plan.Rounds {
		for _, s := range slices.Clone(b.Report.Servers) {
			if err := d.measureServer(ctx, s, n); err != nil {
				return fmt.Errorf("measuring %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// NewPodBench makes a PodBench without a server, whose client asks for the last name of a
// set. The caller closes it.
func NewPodBench(ctx context.Context, b *failover.Run, set harness.QuerySet) (*PodBench, error) {
	d := &PodBench{Run: b, set: set}
	var err error
	if d.client, err = harness.CompileC("ask", askSource)(ctx, b.Dir); err != nil {
		return nil, err
	}
	if d.question, err = set.Last(); err != nil {
		return nil, err
	}
	nodens, err := b.Nodens(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.Dir, "bed-")
	if err != nil {
		return nil, err
	}
	if d.lab, err = testbed.New(dir, nodens); err == nil {
		// No rules but the address: what they cost is none of the kernel path's merit.
		err = d.lab.SetNodeLocalInterface(true, testbed.Local4)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close removes the namespaces.
func (d *PodBench) Close() {
	if d.lab != nil {
		d.lab.Close()
	}
}

// Metrics returns the sums of the series of the node's server that begin with the prefixes.
func (d *PodBench) Metrics(prefixes ...string) ([]float64, error) {
	m, err := d.lab.Metrics()
	sums := make([]float64, len(prefixes))
	for series, v := range m {
		for i, prefix := range prefixes {
			if strings.HasPrefix(series, prefix) {
				sums[i] += v
			}
		}
	}
	return sums, err
}

// RetryMetrics is [PodBench.Metrics], again if it fails: on a busy machine one request may take too long.
func (d *PodBench) RetryMetrics(prefixes ...string) (n []float64, err error) {
	for range harness.MaxAttempts {
		if n, err = d.Metrics(prefixes...); err == nil {
			break
		}
	}
	return n, err
}

// Ask has the client ask, and returns what became of the queries.
func (d *PodBench) Ask(ctx context.Context, m harness.LoadShape, length time.Duration) (harness.LoadResult, error) {
	h, err := d.ask(ctx, m, length)
	return h.outcome(len(d.question)), err
}

// AskBusy has the client ask, and returns what became of the queries, with the CPU times of the client and of all cores.
func (d *PodBench) AskBusy(ctx context.Context, m harness.LoadShape, length time.Duration) (harness.Sample, error) {
	h, err := d.ask(ctx, m, length)
	return harness.Sample{LoadResult: h.outcome(len(d.question)), Busy: h.busy(), Client: time.Duration(h.clientCPU)}, err
}

// Network returns the namespaces of the pod and the node.
func (d *PodBench) Network() *testbed.Network { return d.lab }

// measureServer starts the server, measures it and stops it. One that does not start is no row.
func (d *PodBench) measureServer(ctx context.Context, s harness.Server, round int) error {
	p, err := d.Start(ctx, s)
	if p != nil {
		defer p.Stop()
	}
	if err != nil {
		if ctx.Err() != nil || !harness.Programs[s.Program].Foreign && s.Flags == nil {
			return err
		}
		d.Omit(s, fmt.Errorf("%w: %s", harness.ErrStart, lastLine(err)))
		d.Report.Servers = slices.DeleteFunc(d.Report.Servers, func(o harness.Server) bool { return o.Name == s.Name })
		return nil
	}
	still, err := d.ask(ctx, harness.LoadShape{}, 2*d.Length)
	if err != nil {
		return err
	}
	for _, w := range d.Workloads {
		if !asks(w, s) {
			continue
		}
		sample, err := d.sample(ctx, s, w, p)
		if err != nil {
			return err
		}
		sample.IdleLoad = still.busy().Seconds() / time.Duration(still.elapsed).Seconds()
		d.Add(harness.Cell{Server: s.Name, Workload: w.Name}, round, sample, fmt.Sprintf("%.2f µs of the machine, %s", sample.MachineCPU(), sample))
	}
	return nil
}

// lastLine is the end of what a process wrote, as an error has it.
func lastLine(err error) string {
	text := strings.TrimSpace(err.Error())
	return strings.TrimSuffix(text[strings.LastIndexByte(text, '\n')+1:], ".")
}

// Start starts the server in the node, and waits until it answers, in the kernel if that is
// what it is to do. The process may be anything that was started if there is an error.
func (d *PodBench) Start(ctx context.Context, s harness.Server) (*peer.Process, error) {
	_, command, err := d.WriteConfig(s, harness.Settings{
		Listen: testbed.Local4, Port: 53, Metrics: 9253, Ready: 8181, Pprof: 6060, Scope: s.Scope, Length: d.Lengths[d.set.Name],
		Upstream: netip.MustParseAddrPort(testbed.UpstreamIP + ":" + testbed.UpstreamPort),
	})
	if err != nil {
		return nil, err
	}
	p, err := d.lab.Spawn(d.lab.Node, nil, command...)
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, s.Name+" to answer", func(ctx context.Context) error {
		h, err := d.ask(ctx, harness.LoadShape{Rate: 1000}, 20*time.Millisecond)
		switch {
		case err != nil:
			return err
		case h.answered == 0:
			return fmt.Errorf("of %d queries none is answered", h.sent)
		case d.Lengths[d.set.Name] == 0:
			d.Lengths[d.set.Name] = int(h.length)
		}
		if !slices.Contains(s.Flags, "-kernel-path") {
			return nil
		}
		n, err := d.kernelAnswers()
		if err == nil && n == 0 {
			err = fmt.Errorf("of %d answers none is the kernel's", h.answered)
		}
		return err
	})
}

// kernelAnswers is how many queries the node's server says the kernel has answered.
func (d *PodBench) kernelAnswers() (float64, error) {
	m, err := d.lab.Metrics()
	return m[`nodens_kernel_path_queries_total{result="answered"}`], err
}

// sample makes one measurement, again if too much was lost. The last one stands, since the
// table says what was lost in it, unless all was.
func (d *PodBench) sample(ctx context.Context, s harness.Server, w harness.Workload, p *peer.Process) (got harness.Sample, err error) {
	for range harness.MaxAttempts {
		if got, err = d.attempt(ctx, s, w, p); err != nil || got.Check(dns.RcodeToString[dns.RcodeSuccess]) == nil {
			return got, err
		}
	}
	if got.Completed == 0 {
		return got, fmt.Errorf("%s: of %d queries none was answered", w.Name, got.Sent)
	}
	return got, nil
}

// attempt makes one measurement.
func (d *PodBench) attempt(ctx context.Context, s harness.Server, w harness.Workload, p *peer.Process) (got harness.Sample, err error) {
	length := d.Length
	if w.Rate > 0 && w.Rate <= 1000 {
		length *= 2 // of few queries the ticks of /proc/stat are a larger part
	}
	var answered, after float64
	if s.Flags != nil {
		if answered, err = d.kernelAnswers(); err != nil {
			return got, err
		}
	}
	before, err := machine.CPUClock(p.PID())
	if err != nil {
		return got, err
	}
	h, err := d.ask(ctx, w.LoadShape, length)
	if err != nil {
		return got, err
	}
	spent, err := machine.CPUClock(p.PID())
	if err != nil {
		return got, err
	}
	if s.Flags != nil {
		if after, err = d.kernelAnswers(); err != nil {
			return got, err
		}
	}
	slices.Sort(h.latencies)
	got = harness.Sample{
		LoadResult: h.outcome(len(d.question)), Latencies: h.latencies, Skipped: h.skipped,
		CPU: spent - before, Busy: h.busy(), Client: time.Duration(h.clientCPU),
	}
	got.KernelShare = (after - answered) / max(1, float64(got.Completed))
	return got, nil
}

// measurePodFaults injects faults into nodens with and without the kernel's help.
func (b *run) measurePodFaults(ctx context.Context) error {
	rows := slices.DeleteFunc(slices.Clone(b.Report.Servers), func(s harness.Server) bool { return s.Program != "nodens" || s.Name == harness.BeforeRow })
	return b.MeasureFaults(ctx, podFaults(), rows, min(b.Plan.Rounds, maxFaultRounds))
}

// noteBusy notes when the machine had much else to do.
func (r *Report) noteBusy() {
	var all []float64
	for _, list := range r.Samples {
		for _, s := range list {
			all = append(all, s.IdleLoad)
		}
	}
	if len(all) == 0 {
		return
	}
	if v := figures.SpreadOf(all); v.Median > harness.MaxOtherShare {
		r.Notes = append(r.Notes, fmt.Sprintf("**The machine was not quiet.** While no pod asked, its cores were busy for %s of one core's time, in the median. "+
			"That is subtracted, but who shares a core waits for it: times are too long, and ratios only say in which direction they point.", figures.Percent(v.Median)))
	}
}
