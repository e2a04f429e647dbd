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
		r.cost("", kernelWorkload),
	}})
	return append(list, harness.Target{What: fmt.Sprintf("more heap with %d pods and %d names", podCount, r.Plan.Names), Limit: maxMemory, Unit: "MiB", Of: []harness.TargetValue{{Find: func() (figures.Spread, bool) { return r.more(memorySample.heapMebi) }}}})
}

// ratios are the costs of the workloads of a load shape.
func (r *Report) ratios(shape string) (list []harness.TargetValue) {
	for _, w := range workloads() {
		if w.LoadShape.Name == shape {
			list = append(list, r.cost(w.QuerySet.Name, w))
		}
	}
	return list
}

// cost is the CPU time of a query relative to that without attribution.
func (r *Report) cost(name string, w harness.Workload) harness.TargetValue {
	return r.CPURatioValue(name, onRow, offRow, w.Name)
}

// more is what attribution adds to a value.
func (r *Report) more(f func(memorySample) float64) (figures.Spread, bool) {
	on, off := r.memory[harness.Cell{Server: onRow}], r.memory[harness.Cell{Server: offRow}]
	var values []float64
	for i := range min(len(on), len(off)) {
		values = append(values, f(on[i])-f(off[i]))
	}
	return figures.SpreadBy(values, harness.Plain)
}

// costTable is the table of CPU times.
func (r *Report) costTable() string {
	return r.CPUTable([4]string{"workload", "off: CPU µs per query", "on", "on relative to off"}, offRow, onRow, harness.Names(append(workloads(), kernelWorkload))...)
}

// memoryTable is the table of memory.
func (r *Report) memoryTable() string {
	rows := [][]string{{"memory", "off: MiB", "on", "difference", "least–most"}}
	for _, of := range []struct {
		name string
		f    func(memorySample) float64
	}{{"heap in use", memorySample.heapMebi}, {"RSS", memorySample.rssMebi}} {
		more, ok := r.more(of.f)
		if !ok {
			continue
		}
		mebi := r.memory.Median("", "%.1f", of.f)
		rows = append(rows, []string{
			of.name, mebi.Text(harness.Cell{Server: offRow}), mebi.Text(harness.Cell{Server: onRow}),
			fmt.Sprintf("%.2f", more.Median), fmt.Sprintf("%.2f–%.2f", more.Least, more.Most),
		})
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
