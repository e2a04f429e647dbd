package fairness

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// The limits for fair shares.
const (
	// maxP99 limits the victims' p99, relative to the control.
	maxP99 = 1.5
	// maxKernelLoad limits the node's CPU time for a flood with the limit in the kernel, relative to that with the limit in the agent.
	maxKernelLoad = 1.0 / 3
	// maxShare limits how far a pod's answers may be from the mean of all pods.
	maxShare = 0.1
	// maxCost limits the CPU time of a query with a limit and a budget, relative to that without.
	maxCost = 1.02
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	var list []harness.Target
	for _, row := range []string{nodensRow, limitedRow} {
		list = append(list,
			harness.Target{What: row + ": p99 of hits beside a flood, relative to the control", Limit: maxP99, Of: r.floodValues(row, floodResult.hitsP99, false)},
			harness.Target{What: row + ": p99 of misses beside a flood, relative to the control", Limit: maxP99, Of: r.floodValues(row, floodResult.missesP99, false)},
			harness.Target{What: row + ": victims' queries that failed, in any round", Limit: 0, Of: r.floodValues(row, floodResult.failures, true)},
			harness.Target{What: row + ": victims' queries that were lost, in any round", Limit: 0, Of: r.floodValues(row, floodResult.lost, true)},
		)
	}
	budget := func(f func(budgetResult) float64) []harness.TargetValue {
		return []harness.TargetValue{r.budgets.WorstValue("", harness.Cell{Server: budgetRow}, f)}
	}
	list = append(list,
		harness.Target{What: "node's CPU time for a flood with the limit in the kernel, relative to the agent", Limit: maxKernelLoad, Of: []harness.TargetValue{
			{Name: "all cores", Find: func() (figures.Spread, bool) { return r.kernelLoad(loadResult.node) }},
			{Name: "client and agent", Find: func() (figures.Spread, bool) { return r.kernelLoad(loadResult.byClocks) }},
		}},
		harness.Target{What: "queries in the upstream's busiest second", Limit: upstreamBudget, Of: budget(func(b budgetResult) float64 { return float64(max(b.equal.most, b.greedy.most)) })},
		harness.Target{What: "queries that the upstream dropped", Limit: 0, Of: budget(func(b budgetResult) float64 { return float64(b.equal.dropped + b.greedy.dropped) })},
		harness.Target{What: "a pod's answers: distance from the mean", Limit: maxShare, Of: budget(func(b budgetResult) float64 { return b.equal.share() })},
		harness.Target{What: "cached and expired names that failed beside it", Limit: 0, Of: budget(budgetResult.knownFailures)},
	)
	for _, load := range shareLoads() {
		list = append(list, harness.Target{What: "CPU per " + load.name + " with a limit and a budget, relative to none", Limit: maxCost, Of: []harness.TargetValue{r.CPURatioValue("", onRow, offRow, load.name)}})
	}
	return list
}

// floodValues are a server's values in all cases.
func (r *Report) floodValues(row string, f func(floodResult) float64, worst bool) (list []harness.TargetValue) {
	for _, c := range floodCases() {
		value := r.floods.Value
		if worst {
			value = r.floods.WorstValue
		}
		list = append(list, value(c.name, harness.Cell{Server: row, Workload: c.name}, f))
	}
	return list
}

// kernelLoad is the node's CPU time for a packet with the limit in the kernel, relative to that with the limit in the agent. It is not measured
// in rounds in which other work of the machine makes one of the differences negative.
func (r *Report) kernelLoad(f func(loadResult) float64) (figures.Spread, bool) {
	var ratios []float64
	kernel, socket := r.loads[harness.Cell{Server: kernelLimitRow}], r.loads[harness.Cell{Server: socketLimitRow}]
	for i, in := range kernel[:min(len(kernel), len(socket))] {
		if out := f(socket[i]); out > 0 && f(in) > 0 {
			ratios = append(ratios, f(in)/out)
		}
	}
	return figures.SpreadBy(ratios, harness.Plain)
}

// knownFailures is how many queries for cached and expired names failed.
func (b budgetResult) knownFailures() float64 {
	return failures(b.equal.cached) + failures(b.equal.stale) + failures(b.greedy.cached) + failures(b.greedy.stale)
}

// floodTable is the table of a case; empty if it was not measured.
func (r *Report) floodTable(c floodCase, servers []string) string {
	var rows []harness.Row
	for _, name := range servers {
		rows = append(rows, harness.Row{Labels: []string{name}, At: harness.Cell{Server: name, Workload: c.name}})
	}
	f := r.floods
	return f.Table([]string{"server"}, rows,
		f.Median("hits: p50 µs", "%.0f", func(f floodResult) float64 { return micros(f.flood.hits, 0.5) }),
		f.Median("p99 µs", "%.0f", func(f floodResult) float64 { return micros(f.flood.hits, 0.99) }),
		f.MedianRange("relative to control", "%.2f", floodResult.hitsP99),
		f.Median("misses: p50 µs", "%.0f", func(f floodResult) float64 { return micros(f.flood.misses, 0.5) }),
		f.Median("p99 µs", "%.0f", func(f floodResult) float64 { return micros(f.flood.misses, 0.99) }),
		f.MedianRange("relative to control", "%.2f", floodResult.missesP99),
		f.Sum("failed", floodResult.failures), f.Sum("lost", floodResult.lost),
		f.Sum("of", func(f floodResult) float64 { return float64(f.flood.hits.Sent + f.flood.misses.Sent) }),
		f.Median("server's CPU", "%.0f %%", func(f floodResult) float64 { return 100 * f.flood.cpu.Seconds() / f.flood.elapsed.Seconds() }))
}

// floodRows are the names of the rows of floods, in their order.
func floodRows() (list []string) {
	for _, s := range (harness.Plan{Before: "any"}).WithBefore(floodServers()) {
		list = append(list, s.Name)
	}
	return list
}

// floodTables are the tables of all cases as text.
func (r *Report) floodTables() (list []string) {
	for _, c := range floodCases() {
		if t := r.floodTable(c, floodRows()); t != "" {
			list = append(list, fmt.Sprintf("flood of %s, %d a second\n\n%s", c.name, r.floodRates[c.name], t))
		}
	}
	return list
}

// loadTable is the table of the node's CPU time.
func (r *Report) loadTable() string {
	return r.loads.Table([]string{"agent"}, harness.ServerRows(loadServers(), ""),
		r.loads.Median("node's CPU µs per packet", "%.2f", loadResult.node), r.loads.Range("%.2f", loadResult.node),
		r.loads.Median("by the processes' clocks", "%.2f", loadResult.byClocks), r.loads.Median("agent's", "%.2f", loadResult.own),
		r.loads.Median("answered", "%.0f %%", func(l loadResult) float64 { return 100 * l.answers() }))
}

// budgetTables are the tables of the pods that ask alike, of the greedy pod, and of cached and expired names.
func (r *Report) budgetTables() (list []string) {
	for _, t := range []string{r.equalTable(), r.greedyTable(), r.knownTable()} {
		if t != "" {
			list = append(list, t)
		}
	}
	return list
}

// budgetTable is a table of the pods, whose own columns come first, and of what became of their misses.
func (r *Report) budgetTable(head string, of func(budgetResult) budgetSample, own ...harness.Column) string {
	part := func(head string, f func(sent, answered, prompt, failed, lost float64) float64) harness.Column {
		return r.budgets.Median(head, "%.0f %%", func(b budgetResult) float64 {
			sent, answered, prompt, failed, lost := of(b).sums()
			return 100 * f(sent, answered, prompt, failed, lost) / max(sent, 1)
		})
	}
	return r.budgets.Table([]string{head}, harness.ServerRows(budgetServers(), ""), append(own,
		r.budgets.Most("queries in the upstream's busiest second", "%.0f", func(b budgetResult) float64 { return float64(of(b).most) }),
		r.budgets.Median("dropped by the upstream", "%.0f %%", func(b budgetResult) float64 { return 100 * float64(of(b).dropped) / float64(max(of(b).arrived, 1)) }),
		part("answered", func(_, answered, _, _, _ float64) float64 { return answered }),
		part("within a second", func(_, _, prompt, _, _ float64) float64 { return prompt }),
		part("SERVFAIL", func(_, _, _, failed, _ float64) float64 { return failed }),
		part("lost", func(_, _, _, _, lost float64) float64 { return lost }))...)
}

func (r *Report) equalTable() string {
	least := r.budgets.Median("", "%.0f", func(b budgetResult) float64 { least, _, _ := b.equal.range_(); return least })
	most := r.budgets.Median("", "%.0f", func(b budgetResult) float64 { _, most, _ := b.equal.range_(); return most })
	return r.budgetTable("ten pods, 300 misses a second each", func(b budgetResult) budgetSample { return b.equal },
		harness.Column{Head: "answers of a pod, least–most", Text: func(at harness.Cell) string { return least.Text(at) + "–" + most.Text(at) }},
		r.budgets.Median("distance from the mean", "%.0f %%", func(b budgetResult) float64 { return 100 * b.equal.share() }))
}

func (r *Report) greedyTable() string {
	return r.budgetTable("nine pods, 50 misses a second each; one pod, 2,550", func(b budgetResult) budgetSample { return b.greedy },
		r.budgets.Median("answered, the nine pods' least", "%.0f %%", func(b budgetResult) float64 { return 100 * b.greedy.polite() }))
}

func (r *Report) knownTable() string {
	return r.budgets.Table([]string{"beside ten pods"}, harness.ServerRows(budgetServers(), ""),
		r.budgets.Sum("cached names: failed", func(b budgetResult) float64 { return failures(b.equal.cached) }),
		r.budgets.Median("p99 ms", "%.1f", func(b budgetResult) float64 { return latencyText(b.equal.cached) }),
		r.budgets.Sum("expired names: failed", func(b budgetResult) float64 { return failures(b.equal.stale) }),
		r.budgets.Median("p99 ms", "%.1f", func(b budgetResult) float64 { return latencyText(b.equal.stale) }))
}

// shareTable is the table of CPU times.
func (r *Report) shareTable() string {
	var names []string
	for _, l := range shareLoads() {
		names = append(names, l.name)
	}
	return r.CPUTable([4]string{"query", "off: CPU µs", "on", "on relative to off"}, offRow, onRow, names...)
}

// Tables returns all tables as text.
func (r *Report) Tables() []string {
	list := append(r.floodTables(), r.loadTable())
	return append(append(list, r.budgetTables()...), r.shareTable())
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about fair shares.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Floods                          []harness.TableEntry
		Load, Shares                    string
		Budgets                         []string
		Limit                           string
		Victims, Rate, LoadRate, Rounds int
	}{
		SectionData: r.NewSectionData(r.Targets(), plots), Load: r.loadTable(), Shares: r.shareTable(), Budgets: r.budgetTables(),
		Limit: clientLimit, Victims: victimCount, Rate: victimRate, LoadRate: loadShape.Rate, Rounds: min(r.Plan.Rounds, maxRounds),
	}
	for _, c := range floodCases() {
		if t := r.floodTable(c, floodRows()); t != "" {
			data.Floods = append(data.Floods, harness.TableEntry{Name: fmt.Sprintf("A flood of %s, %d a second", c.name, r.floodRates[c.name]), What: c.what, Table: t})
		}
	}
	return harness.OnePage("fair-shares.md", sectionText, data)
}
