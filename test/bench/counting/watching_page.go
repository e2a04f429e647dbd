package counting

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
)

// Targets returns the section's targets.
func (r *WatchingReport) Targets() (list []harness.Target) {
	for _, shape := range []string{"at saturation", "1,000 qps"} {
		list = append(list, harness.Target{What: "CPU per hit, " + shape + ", relative to not watched", Limit: maxCost, Of: r.ratios(shape)})
	}
	return append(list, harness.Target{What: "memory " + afterStart, Limit: maxStartMemory, Unit: "MiB", Of: []harness.TargetValue{{Find: func() (figures.Spread, bool) {
		return r.memoryOf(afterStart, rss)
	}}}})
}

// maxStartMemory limits the memory of an agent after its start, in MiB.
const maxStartMemory = 25

func rss(s machine.ProcStat) uint64       { return s.RSS }
func anonymous(s machine.ProcStat) uint64 { return s.Anonymous }

// memoryOf is the memory at some time, in MiB.
func (r *WatchingReport) memoryOf(when string, of func(machine.ProcStat) uint64) (figures.Spread, bool) {
	var values []float64
	for _, s := range r.memory[when] {
		values = append(values, figures.Mebi(of(s)))
	}
	if len(values) == 0 {
		return figures.Spread{}, false
	}
	return figures.SpreadOf(values), true
}

// memoryTable is the table of memory.
func (r *WatchingReport) memoryTable() string {
	rows := [][]string{{"memory", "MiB", "least–most", "of which anonymous"}}
	for _, when := range []string{afterStart, watchedAtEnd, otherAtEnd} {
		if all, ok := r.memoryOf(when, rss); ok {
			own, _ := r.memoryOf(when, anonymous)
			rows = append(rows, []string{when, fmt.Sprintf("%.1f", all.Median), fmt.Sprintf("%.1f–%.1f", all.Least, all.Most), fmt.Sprintf("%.1f", own.Median)})
		}
	}
	return figures.Table(rows)
}

// ratios are the costs of the workloads of a load shape.
func (r *WatchingReport) ratios(shape string) (list []harness.TargetValue) {
	for _, w := range watchingWorkloads() {
		if w.LoadShape.Name == shape {
			list = append(list, harness.TargetValue{Name: w.QuerySet.Name, Find: func() (figures.Spread, bool) { return r.CPURatio(watchingPair(w)) }})
		}
	}
	return list
}

// watchingPair is a workload of the watched agent and of the other one.
func watchingPair(w harness.Workload) harness.CellPair {
	return harness.CellPair{Name: w.Name, Of: harness.Cell{Server: watchedRow, Workload: w.Name}, To: harness.Cell{Server: unwatchedRow, Workload: w.Name}}
}

// table is the table of CPU times.
func (r *WatchingReport) table() string {
	var pairs []harness.CellPair
	for _, w := range watchingWorkloads() {
		pairs = append(pairs, watchingPair(w))
	}
	return r.CPUTable([]string{"workload", "not watched: CPU µs per query", "watched", "relative", "least–most", "queries/s"}, pairs)
}

// linesTable is the table of what the tail has shown.
func (r *WatchingReport) linesTable() string {
	rows := [][]string{{"workload", "shown per second", "lost per second"}}
	for _, w := range watchingWorkloads() {
		samples := r.Samples[harness.Cell{Server: watchedRow, Workload: w.Name}]
		var shown, lost []float64
		for i, l := range r.lines[w.Name] {
			length := samples[i].Elapsed.Seconds()
			shown = append(shown, float64(l.shown)/length)
			lost = append(lost, float64(l.lost)/length)
		}
		if len(shown) > 0 {
			rows = append(rows, []string{w.Name, fmt.Sprintf("%.0f", figures.SpreadOf(shown).Median), fmt.Sprintf("%.0f", figures.SpreadOf(lost).Median)})
		}
	}
	return figures.Table(rows)
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
