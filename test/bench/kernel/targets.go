package kernel

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// The limits, as ratios to the C echo unless they say otherwise.
const (
	// maxKernelCPU, maxKernelP50 and maxKernelP99 limit CPU time, p50 and p99 of a query at a
	// fixed rate, maxKernelInterval the time per query at saturation.
	maxKernelCPU, maxKernelP50, maxKernelP99 = 1.0 / 2, 1.0 / 6, 1.0 / 3
	maxKernelInterval                        = 1 / 1.5
	// maxSocketCPU limits the CPU time of a query that the agent itself answers, as a ratio to
	// programs that only echo.
	maxSocketCPU = 1.12
	// maxAgentLoad is the agent's CPU use in percent of a core while the kernel answers
	// 10,000 queries per second.
	maxAgentLoad = 1
	// maxFaultRatio limits the effect of a fault compared with the socket path. Two rows of the
	// same agent differ by as much in -faults.
	maxFaultRatio = 1.25
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	var list []harness.Target
	for _, w := range podLoads() {
		if w.Tool == harness.MissesFromPod {
			list = append(list, r.socketTarget(w, unboundRow, 1), r.socketTarget(w, dnsdistRow, 1))
			continue
		}
		if w.Rate == 0 {
			list = append(list, harness.Target{What: "time per query " + w.LoadShape.Name + ", relative to C echo", Limit: maxKernelInterval, Of: r.ratioToEcho("", harness.Sample.Interval, w)})
			continue
		}
		list = append(list,
			harness.Target{What: "CPU per query, " + w.LoadShape.Name + ", relative to C echo", Limit: maxKernelCPU,
				Of: append(r.ratioToEcho("all cores", harness.Sample.MachineCPU, w), r.ratioToEcho("client and server", harness.Sample.ProcessCPU, w)...)},
			harness.Target{What: "p50, " + w.LoadShape.Name + ", relative to C echo", Limit: maxKernelP50, Of: r.ratioToEcho("", harness.Sample.P50, w)},
			harness.Target{What: "p99, " + w.LoadShape.Name + ", relative to C echo", Limit: maxKernelP99, Of: r.ratioToEcho("", harness.Sample.P99, w)})
		list = append(list, r.socketTarget(w, goEchoRow, maxSocketCPU), r.socketTarget(w, echoRow, maxSocketCPU),
			r.socketTarget(w, unboundRow, 1), r.socketTarget(w, dnsdistRow, 1))
		if w.Rate == 10000 {
			list = append(list, harness.Target{What: "agent's own CPU, " + w.LoadShape.Name, Limit: maxAgentLoad, Below: true, Unit: "% of a core", Of: r.agentLoads(w)})
		}
	}
	list = append(list, harness.Target{What: "queries lost that were sent after the process had ended: " + failover.Killed, Limit: 0, Of: []harness.TargetValue{
		r.Results.WorstValue("", harness.Cell{Server: kernelRow, Workload: failover.Killed}, failover.Result.LostAfterExit),
	}})
	for _, m := range podFaults() {
		list = append(list,
			harness.Target{What: "queries lost by " + m.Name + ", relative to answers from the socket", Limit: maxFaultRatio, Of: r.ratioToSocket(failover.Result.Lost, m)},
			harness.Target{What: "longest time without an answer by " + m.Name + ", relative to answers from the socket", Limit: maxFaultRatio, Of: r.ratioToSocket(failover.Result.MaxSilence, m)})
	}
	return list
}

// socketTarget limits the CPU time of the agent without the kernel path, as a ratio to another server's.
func (r *Report) socketTarget(w harness.Workload, to string, limit float64) harness.Target {
	return harness.Target{
		What: fmt.Sprintf("server's CPU per query without the kernel path, %s, relative to %s", w.Name, to), Limit: limit, Below: limit == 1,
		Of: r.ratio("", harness.Sample.CPUPerQuery, socketRow, to, w),
	}
}

// ratioToEcho is the kernel's value in units of the C echo's in the same round.
func (r *Report) ratioToEcho(name string, f func(harness.Sample) float64, w harness.Workload) []harness.TargetValue {
	return r.ratio(name, f, kernelRow, echoRow, w)
}

// ratio is the value of one server in units of another's in the same round.
func (r *Report) ratio(name string, f func(harness.Sample) float64, server, to string, w harness.Workload) []harness.TargetValue {
	return []harness.TargetValue{r.Samples.RatioValue(name, harness.Cell{Server: server, Workload: w.Name}, harness.Cell{Server: to, Workload: w.Name}, f)}
}

// agentLoads returns the agent's CPU use in percent of a core.
func (r *Report) agentLoads(w harness.Workload) []harness.TargetValue {
	return []harness.TargetValue{r.Samples.Value("", harness.Cell{Server: kernelRow, Workload: w.Name}, harness.Sample.ServerLoad)}
}

// ratioToSocket returns the value with kernel answers divided by the value without. It adds one to
// both, because either may be zero.
func (r *Report) ratioToSocket(f func(failover.Result) float64, m failover.Fault) []harness.TargetValue {
	return []harness.TargetValue{r.Results.RatioValue("", harness.Cell{Server: kernelRow, Workload: m.Name}, harness.Cell{Server: socketRow, Workload: m.Name},
		func(h failover.Result) float64 { return 1 + f(h) })}
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about answers from inside the kernel.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Loads, Faults []harness.TableEntry
	}{SectionData: r.NewSectionData(r.Targets(), plots)}
	for _, w := range r.Workloads {
		data.Loads = append(data.Loads, harness.TableEntry{Name: w.Name, What: w.LoadShape.What, Table: r.WorkloadTable(w)})
	}
	data.Faults = r.FaultEntries(podFaults())
	return harness.OnePage("kernel-path.md", sectionText, data)
}
