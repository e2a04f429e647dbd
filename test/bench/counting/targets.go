package counting

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

const (
	// maxCost limits the CPU time of a query with attribution, relative to that without.
	maxCost = 1.02
	// maxMemory limits what attribution adds to the heap, in MiB.
	maxMemory = 2
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	var list []harness.Target
	for _, shape := range []string{"at saturation", "1,000 qps"} {
		list = append(list, harness.Target{What: "CPU per hit, " + shape + ", relative to off", Limit: maxCost, Of: r.ratios(shape)})
	}
	list = append(list, harness.Target{What: "CPU of the programs per hit inside the kernel, relative to off", Limit: maxCost, Of: []harness.TargetValue{
		{Find: func() (figures.Spread, bool) { return r.cost(kernelWorkload) }},
	}})
	return append(list, harness.Target{What: fmt.Sprintf("more heap with %d pods and %d names", podCount, r.Plan.Names), Limit: maxMemory, Unit: "MiB", Of: []harness.TargetValue{{Find: r.moreHeap}}})
}

// ratios are the costs of the workloads of a load shape.
func (r *Report) ratios(shape string) (list []harness.TargetValue) {
	for _, w := range workloads() {
		if w.LoadShape.Name == shape {
			list = append(list, harness.TargetValue{Name: w.QuerySet.Name, Find: func() (figures.Spread, bool) { return r.cost(w) }})
		}
	}
	return list
}

// cost is the CPU time of a query relative to that without attribution.
func (r *Report) cost(w harness.Workload) (figures.Spread, bool) {
	return r.Ratio(harness.Sample.CPUPerQuery, harness.Cell{Server: onRow, Workload: w.Name}, harness.Cell{Server: offRow, Workload: w.Name})
}

// moreHeap is what attribution adds to the heap, in MiB.
func (r *Report) moreHeap() (figures.Spread, bool) {
	return r.more(func(m memorySample) uint64 { return m.heap })
}

// more is what attribution adds to a value, in MiB.
func (r *Report) more(f func(memorySample) uint64) (figures.Spread, bool) {
	on, off := r.memory[onRow], r.memory[offRow]
	var values []float64
	for i := range min(len(on), len(off)) {
		values = append(values, figures.Mebi(f(on[i]))-figures.Mebi(f(off[i])))
	}
	if len(values) == 0 {
		return figures.Spread{}, false
	}
	return figures.SpreadOf(values), true
}

// costTable is the table of CPU times.
func (r *Report) costTable() string {
	rows := [][]string{{"workload", "off: CPU µs per query", "on", "on relative to off", "least–most", "queries/s"}}
	for _, w := range append(workloads(), kernelWorkload) {
		ratio, ok := r.cost(w)
		if !ok {
			continue
		}
		row := []string{w.Name}
		for _, name := range []string{offRow, onRow} {
			row = append(row, fmt.Sprintf("%.2f", r.Over(harness.Cell{Server: name, Workload: w.Name}, harness.Sample.CPUPerQuery).Median))
		}
		rate := r.Over(harness.Cell{Server: onRow, Workload: w.Name}, func(s harness.Sample) float64 { return float64(s.Completed) / s.Elapsed.Seconds() })
		rows = append(rows, append(row, fmt.Sprintf("%.3f", ratio.Median), fmt.Sprintf("%.3f–%.3f", ratio.Least, ratio.Most), fmt.Sprintf("%.0f", rate.Median)))
	}
	return figures.Table(rows)
}

// memoryTable is the table of memory.
func (r *Report) memoryTable() string {
	rows := [][]string{{"memory", "off: MiB", "on", "difference", "least–most"}}
	for _, of := range []struct {
		name string
		f    func(memorySample) uint64
	}{
		{"heap in use", func(m memorySample) uint64 { return m.heap }},
		{"RSS", func(m memorySample) uint64 { return m.rss }},
	} {
		more, ok := r.more(of.f)
		if !ok {
			continue
		}
		row := []string{of.name}
		for _, name := range []string{offRow, onRow} {
			var values []float64
			for _, m := range r.memory[name] {
				values = append(values, figures.Mebi(of.f(m)))
			}
			row = append(row, fmt.Sprintf("%.1f", figures.SpreadOf(values).Median))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.2f", more.Median), fmt.Sprintf("%.2f–%.2f", more.Least, more.Most)))
	}
	return figures.Table(rows)
}

// Tables returns the tables that a terminal shows.
func (r *Report) Tables() []string { return []string{r.costTable(), r.memoryTable()} }

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about the cost of attribution.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Costs, Memory        string
		Pods, Queried, Names int
	}{
		SectionData: r.NewSectionData(r.Targets(), plots), Costs: r.costTable(), Memory: r.memoryTable(),
		Pods: podCount, Queried: nameCount, Names: r.Plan.Names,
	}
	return harness.OnePage("attribution.md", sectionText, data)
}
