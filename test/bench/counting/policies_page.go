package counting

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

const (
	// maxIdlePolicies and maxPolicies limit the CPU time of a hit with --dns-policies, relative to that without: while there is no policy, and
	// while a thousand bind the pods.
	maxIdlePolicies = 1.01
	maxPolicies     = 1.05
)

// Targets returns the section's targets.
func (r *PolicyReport) Targets() (list []harness.Target) {
	for i, c := range comparisons("")[:2] {
		for _, w := range policyWorkloads()[:2] {
			list = append(list, harness.Target{
				What: fmt.Sprintf("CPU per hit of %d names, %s, relative to none", w.Count(), c.name), Limit: []float64{maxIdlePolicies, maxPolicies}[i],
				Of: []harness.TargetValue{r.CPURatioValue("", onRow, offRow, c.cell("", w.Name).Workload)},
			})
		}
	}
	return list
}

// policyCells returns the workloads with these names of all comparisons.
func policyCells(names ...string) (list []string) {
	for _, c := range comparisons("") {
		for _, name := range names {
			list = append(list, c.cell("", name).Workload)
		}
	}
	return list
}

// costTable is the table of CPU times.
func (r *PolicyReport) costTable() string {
	names := append(harness.Names(policyWorkloads()), kernelWorkload.Name)
	return r.CPUTable([4]string{"workload", "without: CPU µs per query", "with", "relative"}, offRow, onRow, policyCells(names...)...)
}

// timesTable is the table of the times of queries at a fixed rate.
func (r *PolicyReport) timesTable() string {
	p50, p99 := r.Samples.Median("p50 µs", "%.1f", harness.Sample.P50), r.Samples.Median("p99 µs", "%.1f", harness.Sample.P99)
	off := harness.Beside(offRow)
	return r.Samples.Table([]string{"workload"}, harness.WorkloadRows(onRow, policyCells(steadyName)...),
		p50.Headed("without: p50 µs").Of(off), p50.Headed("with"), r.added("added", harness.Sample.P50),
		p99.Headed("without: p99 µs").Of(off), p99.Headed("with"), r.added("added", harness.Sample.P99))
}

// added returns a column of the difference of f within a round.
func (r *PolicyReport) added(head string, f func(harness.Sample) float64) harness.Column {
	differences := harness.Results[float64]{}
	for at, on := range r.Samples {
		off := r.Samples[harness.Beside(offRow)(at)]
		for i := range min(len(on), len(off)) {
			differences[at] = append(differences[at], f(on[i])-f(off[i]))
		}
	}
	return differences.MedianRange(head, "%.1f", harness.Plain)
}

// memoryTable is the table of memory.
func (r *PolicyReport) memoryTable() string {
	heap, rss := r.memory.Median("heap in use, MiB", "%.1f", memorySample.heapMebi), r.memory.Median("RSS, MiB", "%.1f", memorySample.rssMebi)
	var rows []harness.Row
	for _, c := range comparisons("")[:2] {
		for _, row := range []string{offRow, onRow} {
			label := c.name
			if row == offRow {
				label = "beside it, without --dns-policies"
			}
			rows = append(rows, harness.Row{Labels: []string{label}, At: c.cell(row, "")})
		}
	}
	return r.memory.Table([]string{"memory"}, rows, heap, rss)
}

// Tables returns the tables that a terminal shows.
func (r *PolicyReport) Tables() []string {
	return []string{r.costTable(), r.timesTable(), r.memoryTable()}
}

//go:embed policies.md.tmpl
var policiesText string

// Render returns the page about the cost of policies.
func (r *PolicyReport) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Costs, Times, Memory string
		Pods, Queried, Names int
		Policies, PerPod     string
	}{
		SectionData: r.NewSectionData(r.Targets(), plots), Costs: r.costTable(), Times: r.timesTable(), Memory: r.memoryTable(),
		Pods: podCount, Queried: nameCount, Names: policyNames, Policies: fmt.Sprint(policyCount), PerPod: fmt.Sprint(policyCount / podCount),
	}
	return harness.OnePage("policies.md", policiesText, data)
}
