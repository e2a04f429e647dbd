package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// The rows of the section about answers from inside the kernel that claims are about.
const (
	socketRow = "nodens, by its socket"
	kernelRow = "nodens, in the kernel"
	echoRow   = "C echo"
)

// podRows are the servers that a pod asks. The first tells how long an answer is.
func podRows() []server {
	return []server{
		{name: socketRow, program: "nodens", conf: "deployed"},
		{name: kernelRow, program: "nodens", conf: "deployed", flags: []string{"-kernel-path", "on"}},
		{name: echoRow, program: "echo"},
		{name: "CoreDNS", program: "coredns", conf: "deployed"},
		{name: "unbound", program: "unbound", conf: "unbound"},
	}
}

// inFlight is how many queries are under way at saturation: as many as keep the core of a
// server at its socket busy while the client's core sleeps and wakes, and few enough that
// no buffer overflows.
const inFlight = 32

// podLoads are what a pod asks: one cached name, as most of a node's queries are for few.
func podLoads() (list []workload) {
	q := querySet{name: "cached A with EDNS", names: []string{"name-1." + testbed.Zone + "."}, edns: true, qtype: dns.TypeA}
	for _, m := range []loadShape{
		{name: "1,000 qps", tool: fromPod, rate: 1000, what: "A query every millisecond."},
		{name: "10,000 qps", tool: fromPod, rate: 10000, what: "A query every 100 µs."},
		{name: "at saturation", tool: fromPod, outstanding: inFlight, what: fmt.Sprintf("As fast as one client goes on one core, with %d queries under way.", inFlight)},
	} {
		list = append(list, workload{q, m, "from a pod, " + m.name})
	}
	return list
}

// podFaults are what befalls nodens with and without the kernel's help.
func podFaults() (list []fault) {
	for _, m := range faults {
		if m.name == killed || m.name == hung {
			list = append(list, m)
		}
	}
	return list
}

// maxFaultRounds bounds the time that mishaps take; more than three say little more of them.
const maxFaultRounds = 3

// podRun measures the queries of a pod.
type podRun struct {
	*faultRun
	out *podReport
}

// podReport is its result.
type podReport struct{ *faultReport }

// measurePod measures what a query of a pod costs the machine. Nothing that it started runs
// when it returns.
func measurePod(ctx context.Context, p plan) (*podReport, error) {
	if err := testbed.Usable(); err != nil {
		return nil, err
	}
	b, err := New(p, podRows())
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.cluster = false
	b.ownClient = true
	faults := newFaultRun(b, upgradesInARow)
	run := &podRun{faults, &podReport{faults.out}}
	for _, w := range podLoads() {
		if p.only.workload(w) {
			b.workloads = append(b.workloads, w)
		}
	}
	b.report.workloads = b.workloads
	for _, step := range []func(context.Context) error{b.build, run.measurePod, run.measurePodFaults} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	run.out.noteBusy()
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return run.out, nil
}

// podBench is a pod and a node with one server at a time, and the client in the pod.
type podBench struct {
	*podRun
	lab      *testbed.Lab
	client   string
	question []byte
}

// measurePod has the pod ask every server in turn, again and again.
func (b *podRun) measurePod(ctx context.Context) error {
	if len(b.workloads) == 0 {
		return nil
	}
	d, err := b.newPodBench(ctx)
	if d != nil {
		defer d.lab.Close()
	}
	if err != nil {
		return err
	}
	for n := range b.plan.rounds {
		for _, s := range slices.Clone(b.report.servers) {
			if err := d.measureServer(ctx, s, n); err != nil {
				return fmt.Errorf("measuring %s: %w", s.name, err)
			}
		}
	}
	return nil
}

// newPodBench makes a bed without a server. The caller closes its lab unless there is none.
func (b *podRun) newPodBench(ctx context.Context) (*podBench, error) {
	d := &podBench{podRun: b}
	var err error
	if d.client, err = compileC("ask", askSource)(ctx, b.dir); err != nil {
		return nil, err
	}
	if d.question, err = b.workloads[0].last(); err != nil {
		return nil, err
	}
	nodens, err := peer.Binary(ctx, "nodens", b.dir)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "bed-")
	if err != nil {
		return nil, err
	}
	if d.lab, err = testbed.New(dir, nodens); err != nil {
		return d, err
	}
	// No rules but the address: what they cost is none of the kernel path's merit.
	return d, d.lab.SetNodeLocalInterface(true, testbed.Local4)
}

// measureServer starts the server, measures it and stops it. One that does not start is no row.
func (d *podBench) measureServer(ctx context.Context, s server, round int) error {
	p, err := d.startServer(ctx, s)
	if p != nil {
		defer p.Stop()
	}
	if err != nil {
		if ctx.Err() != nil || !programs[s.program].foreign && s.flags == nil {
			return err
		}
		d.omit(s, fmt.Errorf("%w: %s", errStart, lastLine(err)))
		d.report.servers = slices.DeleteFunc(d.report.servers, func(o server) bool { return o.name == s.name })
		return nil
	}
	still, err := d.ask(ctx, loadShape{}, 2*d.length)
	if err != nil {
		return err
	}
	for _, w := range d.workloads {
		sample, err := d.sample(ctx, s, w, p)
		if err != nil {
			return err
		}
		sample.idleLoad = still.busy().Seconds() / time.Duration(still.elapsed).Seconds()
		at := cell{s.name, w.name}
		d.report.samples[at] = append(d.report.samples[at], sample)
		fmt.Fprintf(d.progress, "round %d of %d, %s, %s: %.2f µs of the machine, %s\n", round+1, d.plan.rounds, w.name, s.name, sample.machineCPU(), sample)
	}
	return nil
}

// lastLine is the end of what a process wrote, as an error has it.
func lastLine(err error) string {
	text := strings.TrimSpace(err.Error())
	return strings.TrimSuffix(text[strings.LastIndexByte(text, '\n')+1:], ".")
}

// startServer starts the server in the node, and waits until it answers, in the kernel if that is
// what it is to do. The process may be anything that was started if there is an error.
func (d *podBench) startServer(ctx context.Context, s server) (*peer.Process, error) {
	w := d.workloads[0]
	_, command, err := d.writeConfig(s, settings{
		listen: testbed.Local4, port: 53, metrics: 9253, ready: 8181, length: d.lengths[w.querySet.name],
		upstream: netip.MustParseAddrPort(testbed.UpstreamIP + ":" + testbed.UpstreamPort),
	})
	if err != nil {
		return nil, err
	}
	p, err := d.lab.Spawn(d.lab.Node, nil, command...)
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, s.name+" to answer", func(ctx context.Context) error {
		h, err := d.ask(ctx, loadShape{rate: 1000}, 20*time.Millisecond)
		switch {
		case err != nil:
			return err
		case h.answered == 0:
			return fmt.Errorf("of %d queries none is answered", h.sent)
		case d.lengths[w.querySet.name] == 0:
			d.lengths[w.querySet.name] = int(h.length)
		}
		if s.flags == nil {
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
func (d *podBench) kernelAnswers() (float64, error) {
	sums, err := d.lab.Sums(`nodens_kernel_path_queries_total{result="answered"}`)
	if err != nil {
		return 0, err
	}
	return sums[0], nil
}

// sample makes one measurement, again if too much was lost. The last one stands, since the
// table says what was lost in it, unless all was.
func (d *podBench) sample(ctx context.Context, s server, w workload, p *peer.Process) (got sample, err error) {
	for range maxAttempts {
		if got, err = d.attempt(ctx, s, w, p); err != nil || got.check(dns.RcodeToString[dns.RcodeSuccess]) == nil {
			return got, err
		}
	}
	if got.completed == 0 {
		return got, fmt.Errorf("%s: of %d queries none was answered", w.name, got.sent)
	}
	return got, nil
}

// attempt makes one measurement.
func (d *podBench) attempt(ctx context.Context, s server, w workload, p *peer.Process) (got sample, err error) {
	length := d.length
	if w.rate > 0 && w.rate <= 1000 {
		length *= 2 // of few queries the ticks of /proc/stat are a larger part
	}
	var answered, after float64
	if s.flags != nil {
		if answered, err = d.kernelAnswers(); err != nil {
			return got, err
		}
	}
	before, err := cpuClock(p.Pid())
	if err != nil {
		return got, err
	}
	h, err := d.ask(ctx, w.loadShape, length)
	if err != nil {
		return got, err
	}
	spent, err := cpuClock(p.Pid())
	if err != nil {
		return got, err
	}
	if s.flags != nil {
		if after, err = d.kernelAnswers(); err != nil {
			return got, err
		}
	}
	slices.Sort(h.latencies)
	got = sample{
		loadResult: h.outcome(len(d.question)), latencies: h.latencies, skipped: h.skipped,
		cpu: spent - before, busy: h.busy(), client: time.Duration(h.clientCPU),
	}
	got.kernelShare = (after - answered) / max(1, float64(got.completed))
	return got, nil
}

// measurePodFaults has mishaps befall nodens with and without the kernel's help.
func (b *podRun) measurePodFaults(ctx context.Context) error {
	rows := slices.DeleteFunc(slices.Clone(b.report.servers), func(s server) bool { return s.program != "nodens" })
	return b.measureFaultsOf(ctx, podFaults(), rows, min(b.plan.rounds, maxFaultRounds))
}

// noteBusy notes when the machine had much else to do.
func (r *podReport) noteBusy() {
	var all []float64
	for _, list := range r.samples {
		for _, s := range list {
			all = append(all, s.idleLoad)
		}
	}
	if len(all) == 0 {
		return
	}
	if v := spreadOf(all); v.median > maxOtherShare {
		r.notes = append(r.notes, fmt.Sprintf("**The machine was not quiet.** While no pod asked, its cores were busy for %s of one core's time, in the median. "+
			"That is subtracted, but who shares a core waits for it: times are too long, and ratios only say in which direction they point.", percent(v.median)))
	}
}
