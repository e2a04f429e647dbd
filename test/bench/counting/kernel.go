package counting

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/kernel"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// kernelWorkload is what a pod asks, which the kernel answers. The CPU time is the programs'.
var kernelWorkload = harness.Workload{
	QuerySet:  harness.QuerySet{Name: "one name from a pod", Names: []string{"name-1." + testbed.Zone + "."}, Edns: true, Qtype: dns.TypeA},
	LoadShape: harness.LoadShape{Name: "at saturation", Tool: harness.FromPod, Outstanding: 32},
	Name:      "inside the kernel, at saturation",
}

// kernelRows are the agents with the kernel path.
func kernelRows() []harness.Server {
	list := rows()
	for i := range list {
		list[i].Conf, list[i].Flags = "deployed", append(list[i].Flags, "-kernel-path", "on")
	}
	return list
}

// kernelPair is two nodes with a pod each.
type kernelPair [2]*kernel.PodBench

// of returns the node for the agent of a row. In every other round it is the other one.
func (k *kernelPair) of(at, round int) *kernel.PodBench { return k[at^round%2] }

// openKernel makes the nodes. It returns nil, and notes why, if this machine cannot answer inside the kernel.
func (b *run) openKernel(ctx context.Context) (*kernelPair, error) {
	if !b.Only.Workload(kernelWorkload) {
		return nil, nil
	}
	if err := errors.Join(testbed.Usable(), testbed.KernelPathUsable()); err != nil {
		b.Report.Notes = append(b.Report.Notes, fmt.Sprintf("Answers inside the kernel are not measured: %v.", err))
		return nil, nil
	}
	k := new(kernelPair)
	for i := range k {
		var err error
		if k[i], err = kernel.NewPodBench(ctx, failover.NewRun(b.Run, 0), kernelWorkload.QuerySet); err != nil {
			k.close()
			return nil, err
		}
	}
	return k, nil
}

func (k *kernelPair) close() {
	for _, d := range k {
		if d != nil {
			d.Close()
		}
	}
}

// measureKernel measures a new pair of agents.
func (b *run) measureKernel(ctx context.Context, k *kernelPair, round int) error {
	servers := [2]harness.Server(kernelRows())
	sums, err := b.measurePrograms(ctx, k, round, servers)
	if err != nil {
		return err
	}
	for at, s := range servers {
		b.add(s.Name, kernelWorkload, round, sums[at])
	}
	return nil
}

// measurePrograms measures the programs of a new pair of agents in turn, in short slices.
func (b *run) measurePrograms(ctx context.Context, k *kernelPair, round int, servers [2]harness.Server) (sums [2]harness.Sample, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return sums, fmt.Errorf("having the kernel measure programs: %w", err)
	}
	defer stats.Close()
	var pids [2]int
	for i, s := range servers {
		p, err := k.of(i, round).Start(ctx, s)
		if p != nil {
			defer p.Stop()
		}
		if err != nil {
			return sums, err
		}
		pids[i] = p.PID()
	}
	for i := range 2 * b.Number(numSlices) {
		at := turn(i, round)
		s, err := k.of(at, round).MeasurePrograms(ctx, pids[at], kernelWorkload.LoadShape, b.Length/numSlices)
		if err != nil {
			return sums, err
		}
		sums[at] = sums[at].Plus(s)
	}
	return sums, k.checkCounts(sums, round, servers)
}

// checkCounts returns an error unless the kernel has answered most of the queries of both, and agents with attribution
// have counted their own.
func (k *kernelPair) checkCounts(sums [2]harness.Sample, round int, servers [2]harness.Server) error {
	for at := range k {
		n, err := k.of(at, round).RetryMetrics(`nodens_kernel_path_queries_total{result="answered"}`, "nodens_client_queries_total{")
		if err != nil {
			return err
		}
		asked, isOff := float64(sums[at].Completed), slices.Contains(servers[at].Flags, "-client-metrics")
		if inside, counted := n[0], n[1]; inside < 0.9*asked || !isOff && counted < asked || isOff && counted > 0 {
			return fmt.Errorf("of %.0f queries the kernel has answered %.0f, and %.0f are counted by client", asked, inside, counted)
		}
	}
	return nil
}
