// Package programtime measures the section about the time of the programs in the kernel: how long they run
// for a query that they answer, as the kernel measures it. With another commit, its agent runs beside this
// tree's, each in a node of its own with a pod.
//
// A round starts new agents, so that where their programs and tables happen to lie in memory is not the same
// in all rounds. The pods ask in turn, in short slices, so that what disturbs the machine affects both.
package programtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/kernel"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// row is this tree's agent. The other one is harness.BeforeRow.
const row = "nodens"

func rows(p harness.Plan) []harness.Server {
	return p.WithBefore([]harness.Server{{Name: row, Program: "nodens", Conf: "deployed", Flags: []string{"-kernel-path", "on"}}})
}

// workloads are what a pod asks: one name. At saturation all that an answer needs is in the CPU's caches; the
// less often the pod asks, the less of it.
func workloads() (list []harness.Workload) {
	q := harness.QuerySet{Name: "cached A with EDNS", Names: []string{"name-1." + testbed.Zone + "."}, Edns: true, Qtype: dns.TypeA}
	for _, m := range []harness.LoadShape{
		{Name: "at saturation", Tool: harness.FromPod, Outstanding: 32},
		{Name: "10,000 qps", Tool: harness.FromPod, Rate: 10000},
		{Name: "1,000 qps", Tool: harness.FromPod, Rate: 1000},
	} {
		list = append(list, harness.Workload{QuerySet: q, LoadShape: m, Name: "one name from a pod, " + m.Name})
	}
	return list
}

// numSlices is the number of slices of a measurement.
const numSlices = 8

// Report is the section's result. The CPU time of a sample is the programs'.
type Report struct{ *harness.Report }

// run measures the agents.
type run struct {
	*harness.Run
	out   *Report
	nodes []*kernel.PodBench // as many as there are rows
}

// Measure measures the programs. Nothing that it started runs when it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	if err := errors.Join(testbed.Usable(), testbed.KernelPathUsable()); err != nil {
		return nil, err
	}
	b, err := harness.New(p, rows(p))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster, b.OwnClient = false, true
	b.Choose(workloads())
	run := &run{Run: b, out: &Report{b.Report}}
	defer run.close()
	return run.out, b.Steps(ctx, b.Build, run.open, run.rounds)
}

// open makes the nodes.
func (b *run) open(ctx context.Context) error {
	for range b.Report.Servers {
		d, err := kernel.NewPodBench(ctx, failover.NewRun(b.Run, 0), workloads()[0].QuerySet)
		if err != nil {
			return err
		}
		b.nodes = append(b.nodes, d)
	}
	return nil
}

func (b *run) close() {
	for _, d := range b.nodes {
		d.Close()
	}
}

// node returns the node for the agent of a row. In the next round it is another one.
func (b *run) node(at, round int) *kernel.PodBench { return b.nodes[(at+round)%len(b.nodes)] }

// rounds measures everything again and again, while the kernel measures programs.
func (b *run) rounds(ctx context.Context) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("having the kernel measure programs: %w", err)
	}
	defer stats.Close()
	for n := range b.Plan.Rounds {
		if err := b.round(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// round starts the agents, measures all workloads, and stops them.
func (b *run) round(ctx context.Context, n int) error {
	pids := make([]int, len(b.Report.Servers))
	asked := make([]uint64, len(pids))
	for at, s := range b.Report.Servers {
		p, err := b.node(at, n).Start(ctx, s)
		if p != nil {
			defer p.Stop()
		}
		if err != nil {
			return fmt.Errorf("starting %s: %w", s.Name, err)
		}
		pids[at] = p.PID()
	}
	for _, w := range b.Workloads {
		samples, err := b.measure(ctx, w, pids, n)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", w.Name, err)
		}
		for at, s := range b.Report.Servers {
			asked[at] += samples[at].Completed
			b.Add(harness.Cell{Server: s.Name, Workload: w.Name}, n, samples[at], fmt.Sprintf("%.0f ns", nanoseconds(samples[at])))
		}
	}
	return b.checkCounts(asked, n)
}

// measure measures a workload with all agents in turn, each of which is the first one as often as the others.
func (b *run) measure(ctx context.Context, w harness.Workload, pids []int, round int) ([]harness.Sample, error) {
	sums := make([]harness.Sample, len(pids))
	for i := range b.Number(numSlices) {
		for k := range pids {
			at := (i + k + round) % len(pids)
			s, err := b.node(at, round).MeasurePrograms(ctx, pids[at], w.LoadShape, b.Length/numSlices)
			if err != nil {
				return nil, err
			}
			sums[at] = sums[at].Plus(s)
		}
	}
	return sums, nil
}

// minAnswered is the part of the queries that the kernel has to answer. The time of a query that the programs
// pass on is not that of an answer.
const minAnswered = 0.9

// checkCounts returns an error unless the kernel has answered most of the queries of each agent. The short form does
// not ask: on a busy machine an agent may miss a heartbeat.
func (b *run) checkCounts(asked []uint64, round int) error {
	if b.Short {
		return nil
	}
	for at, s := range b.Report.Servers {
		n, err := b.node(at, round).RetryMetrics(`nodens_kernel_path_queries_total{result="answered"}`)
		if err != nil {
			return err
		}
		if n[0] < minAnswered*float64(asked[at]) {
			return fmt.Errorf("%s: of %d queries the kernel has answered %.0f", s.Name, asked[at], n[0])
		}
	}
	return nil
}

// nanoseconds is the time of the programs for a query.
func nanoseconds(s harness.Sample) float64 { return 1e3 * s.CPUPerQuery() }
