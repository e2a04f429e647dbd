package counting

import (
	_ "embed"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
)

// Targets returns the section's targets.
func (r *WatchingReport) Targets() (list []harness.Target) {
	for _, shape := range []string{"at saturation", "1,000 qps"} {
		list = append(list, harness.Target{What: "CPU per hit, " + shape + ", relative to not watched", Limit: maxCost, Of: r.ratios(shape)})
	}
	return append(list, harness.Target{What: "memory " + afterStart, Limit: maxStartMemory, Unit: "MiB", Of: []harness.TargetValue{
		r.memory.Value("", harness.Cell{Server: afterStart}, rss),
	}})
}

// maxStartMemory limits the memory of an agent after its start, in MiB.
const maxStartMemory = 25

func rss(s machine.ProcStat) float64       { return figures.Mebi(s.RSS) }
func anonymous(s machine.ProcStat) float64 { return figures.Mebi(s.Anonymous) }

// memoryTable is the table of memory.
func (r *WatchingReport) memoryTable() string {
	var rows []harness.Row
	for _, when := range []string{afterStart, watchedAtEnd, otherAtEnd} {
		rows = append(rows, harness.Row{Labels: []string{when}, At: harness.Cell{Server: when}})
	}
	return r.memory.Table([]string{"memory"}, rows, r.memory.Median("MiB", "%.1f", rss), r.memory.Range("%.1f", rss), r.memory.Median("of which anonymous", "%.1f", anonymous))
}

// ratios are the costs of the workloads of a load shape.
func (r *WatchingReport) ratios(shape string) (list []harness.TargetValue) {
	for _, w := range watchingWorkloads() {
		if w.LoadShape.Name == shape {
			list = append(list, r.CPURatioValue(w.QuerySet.Name, watchedRow, unwatchedRow, w.Name))
		}
	}
	return list
}

// table is the table of CPU times.
func (r *WatchingReport) table() string {
	return r.CPUTable([4]string{"workload", "not watched: CPU µs per query", "watched", "relative"}, unwatchedRow, watchedRow, harness.Names(watchingWorkloads())...)
}

// linesTable is the table of what the tail has shown.
func (r *WatchingReport) linesTable() string {
	return r.lines.Table([]string{"workload"}, harness.WorkloadRows(watchedRow, harness.Names(watchingWorkloads())...),
		r.lines.Median("shown per second", "%.0f", lines.shownPerSecond), r.lines.Median("lost per second", "%.0f", lines.lostPerSecond))
}

// Tables returns the tables that a terminal shows.
func (r *WatchingReport) Tables() []string {
	return []string{r.table(), r.linesTable(), r.memoryTable()}
}

//go:embed watching.md.tmpl
var watchingText string

// Render returns the page about the cost of watching.
func (r *WatchingReport) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Costs, Lines, Memory string
		Pods, Queried        int
	}{
		SectionData: r.NewSectionData(r.Targets(), plots), Costs: r.table(), Lines: r.linesTable(), Memory: r.memoryTable(),
		Pods: podCount, Queried: nameCount,
	}
	return harness.OnePage("watching.md", watchingText, data)
}
