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
	one := func(find func() (figures.Spread, bool)) []harness.TargetValue {
		return []harness.TargetValue{{Find: find}}
	}
	budget := func(f func(budgetResult) float64) []harness.TargetValue {
		return one(func() (figures.Spread, bool) { return worstRound(figures.SpreadBy(r.budgets[budgetRow], f)) })
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
		list = append(list, harness.Target{What: "CPU per " + load.name + " with a limit and a budget, relative to none", Limit: maxCost, Of: one(func() (figures.Spread, bool) { return r.CPURatio(sharePair(load.name)) })})
	}
	return list
}

// worstRound makes the worst round the value that counts.
func worstRound(s figures.Spread, ok bool) (figures.Spread, bool) {
	s.Median = s.Most
	return s, ok
}

// floodValues are a server's values in all cases.
func (r *Report) floodValues(row string, f func(floodResult) float64, worst bool) (list []harness.TargetValue) {
	for _, c := range floodCases() {
		list = append(list, harness.TargetValue{Name: c.name, Find: func() (figures.Spread, bool) {
			s, ok := figures.SpreadBy(r.floods[harness.Cell{Server: row, Workload: c.name}], f)
			if worst {
				return worstRound(s, ok)
			}
			return s, ok
		}})
	}
	return list
}

// kernelLoad is the node's CPU time for a packet with the limit in the kernel, relative to that with the limit in the agent. It is not measured
// in rounds in which other work of the machine makes one of the differences negative.
func (r *Report) kernelLoad(f func(loadResult) float64) (figures.Spread, bool) {
	var ratios []float64
	kernel, socket := r.loads[kernelLimitRow], r.loads[socketLimitRow]
	for i, in := range kernel[:min(len(kernel), len(socket))] {
		if out := f(socket[i]); out > 0 && f(in) > 0 {
			ratios = append(ratios, f(in)/out)
		}
	}
	return figures.SpreadBy(ratios, func(v float64) float64 { return v })
}

// knownFailures is how many queries for cached and expired names failed.
func (b budgetResult) knownFailures() float64 {
	return failures(b.equal.cached) + failures(b.equal.stale) + failures(b.greedy.cached) + failures(b.greedy.stale)
}

// sharePair is a load with a limit and a budget, and the same load without.
func sharePair(load string) harness.CellPair {
	return harness.CellPair{Name: load, Of: harness.Cell{Server: onRow, Workload: load}, To: harness.Cell{Server: offRow, Workload: load}}
}

// middle is the median of a value over the rounds as text.
func middle[T any](list []T, format string, f func(T) float64) string {
	s, _ := figures.SpreadBy(list, f)
	return fmt.Sprintf(format, s.Median)
}

// total is the sum of a value over the rounds as text.
func total[T any](list []T, f func(T) float64) string {
	sum := 0.0
	for _, v := range list {
		sum += f(v)
	}
	return fmt.Sprintf("%.0f", sum)
}

// floodTable is the table of a case; empty if it was not measured.
func (r *Report) floodTable(c floodCase, servers []string) string {
	rows := [][]string{{"server", "hits: p50 µs", "p99 µs", "relative to control", "misses: p50 µs", "p99 µs", "relative to control", "failed", "lost", "of", "server's CPU"}}
	for _, name := range servers {
		list := r.floods[harness.Cell{Server: name, Workload: c.name}]
		if len(list) == 0 {
			continue
		}
		ratio := func(f func(floodResult) float64) string {
			s, _ := figures.SpreadBy(list, f)
			return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Least, s.Most)
		}
		rows = append(rows, []string{
			name,
			middle(list, "%.0f", func(f floodResult) float64 { return micros(f.flood.hits, 0.5) }),
			middle(list, "%.0f", func(f floodResult) float64 { return micros(f.flood.hits, 0.99) }), ratio(floodResult.hitsP99),
			middle(list, "%.0f", func(f floodResult) float64 { return micros(f.flood.misses, 0.5) }),
			middle(list, "%.0f", func(f floodResult) float64 { return micros(f.flood.misses, 0.99) }), ratio(floodResult.missesP99),
			total(list, floodResult.failures), total(list, floodResult.lost),
			total(list, func(f floodResult) float64 { return float64(f.flood.hits.Sent + f.flood.misses.Sent) }),
			middle(list, "%.0f %%", func(f floodResult) float64 { return 100 * f.flood.cpu.Seconds() / f.flood.elapsed.Seconds() }),
		})
	}
	return figures.Table(rows)
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
	rows := [][]string{{"agent", "node's CPU µs per packet", "least–most", "by the processes' clocks", "agent's", "answered"}}
	for _, s := range loadServers() {
		list := r.loads[s.Name]
		v, ok := figures.SpreadBy(list, loadResult.node)
		if !ok {
			continue
		}
		rows = append(rows, []string{
			s.Name, fmt.Sprintf("%.2f", v.Median), fmt.Sprintf("%.2f–%.2f", v.Least, v.Most), middle(list, "%.2f", loadResult.byClocks), middle(list, "%.2f", loadResult.own),
			middle(list, "%.0f %%", func(l loadResult) float64 { return 100 * l.answers() }),
		})
	}
	return figures.Table(rows)
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

// missColumns are the columns of what became of the misses.
func missColumns(list []budgetResult, of func(budgetResult) budgetSample) []string {
	part := func(f func(sent, answered, prompt, failed, lost float64) float64) string {
		return middle(list, "%.0f %%", func(b budgetResult) float64 {
			sent, answered, prompt, failed, lost := of(b).sums()
			return 100 * f(sent, answered, prompt, failed, lost) / max(sent, 1)
		})
	}
	most, _ := figures.SpreadBy(list, func(b budgetResult) float64 { return float64(of(b).most) })
	return []string{
		fmt.Sprintf("%.0f", most.Most),
		middle(list, "%.0f %%", func(b budgetResult) float64 { return 100 * float64(of(b).dropped) / float64(max(of(b).arrived, 1)) }),
		part(func(_, answered, _, _, _ float64) float64 { return answered }),
		part(func(_, _, prompt, _, _ float64) float64 { return prompt }),
		part(func(_, _, _, failed, _ float64) float64 { return failed }),
		part(func(_, _, _, _, lost float64) float64 { return lost }),
	}
}

// missHeads are the heads of missColumns.
var missHeads = []string{"queries in the upstream's busiest second", "dropped by the upstream", "answered", "within a second", "SERVFAIL", "lost"}

func (r *Report) equalTable() string {
	rows := [][]string{append([]string{"ten pods, 300 misses a second each", "answers of a pod, least–most", "distance from the mean"}, missHeads...)}
	for _, s := range budgetServers() {
		list := r.budgets[s.Name]
		if len(list) == 0 {
			continue
		}
		pod := func(f func(least, most float64) float64) string {
			return middle(list, "%.0f", func(b budgetResult) float64 {
				least, most, _ := b.equal.range_()
				return f(least, most)
			})
		}
		rows = append(rows, append([]string{
			s.Name, pod(func(least, _ float64) float64 { return least }) + "–" + pod(func(_, most float64) float64 { return most }),
			middle(list, "%.0f %%", func(b budgetResult) float64 { return 100 * b.equal.share() }),
		}, missColumns(list, func(b budgetResult) budgetSample { return b.equal })...))
	}
	return figures.Table(rows)
}

func (r *Report) greedyTable() string {
	rows := [][]string{append([]string{"nine pods, 50 misses a second each; one pod, 2,550", "answered, the nine pods' least"}, missHeads...)}
	for _, s := range budgetServers() {
		list := r.budgets[s.Name]
		if len(list) == 0 {
			continue
		}
		rows = append(rows, append([]string{s.Name, middle(list, "%.0f %%", func(b budgetResult) float64 { return 100 * b.greedy.polite() })},
			missColumns(list, func(b budgetResult) budgetSample { return b.greedy })...))
	}
	return figures.Table(rows)
}

func (r *Report) knownTable() string {
	rows := [][]string{{"beside ten pods", "cached names: failed", "p99 ms", "expired names: failed", "p99 ms"}}
	for _, s := range budgetServers() {
		list := r.budgets[s.Name]
		if len(list) == 0 {
			continue
		}
		rows = append(rows, []string{
			s.Name,
			total(list, func(b budgetResult) float64 { return failures(b.equal.cached) }),
			middle(list, "%.1f", func(b budgetResult) float64 { return latencyText(b.equal.cached) }),
			total(list, func(b budgetResult) float64 { return failures(b.equal.stale) }),
			middle(list, "%.1f", func(b budgetResult) float64 { return latencyText(b.equal.stale) }),
		})
	}
	return figures.Table(rows)
}

// shareTable is the table of CPU times.
func (r *Report) shareTable() string {
	var pairs []harness.CellPair
	for _, load := range shareLoads() {
		pairs = append(pairs, sharePair(load.name))
	}
	return r.CPUTable([]string{"query", "off: CPU µs", "on", "on relative to off", "least–most", "queries/s"}, pairs)
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
