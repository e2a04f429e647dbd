package queries

import (
	"fmt"
	"slices"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// named is the workload of a name as a series of a chart.
func named(workload, label string) harness.SeriesSource {
	if !slices.ContainsFunc(harness.Workloads(), func(w harness.Workload) bool { return w.Name == workload }) {
		panic("no workload is named " + workload)
	}
	return harness.SeriesSource{Workload: workload, Label: label}
}

// Charts are the drawings of what was measured; one without a row is left out.
func (r *Report) Charts() []figures.Chart {
	first := harness.QuerySets[0]
	at := func(m harness.LoadShape, label string) harness.SeriesSource {
		return harness.SeriesSource{Workload: first.Name + ", " + m.Name, Label: label}
	}
	var kinds []harness.SeriesSource
	for _, q := range harness.QuerySets {
		kinds = append(kinds, harness.SeriesSource{Workload: q.Name + ", " + harness.LoadShapes[0].Name, Label: q.Name})
	}
	list := []figures.Chart{
		r.FillSeries(figures.Chart{File: "rates.svg", Title: "CPU per query, " + first.Name, Unit: "µs"}, harness.Sample.CPUPerQuery,
			at(harness.LoadShapes[0], harness.LoadShapes[0].Name), at(harness.LoadShapes[2], harness.LoadShapes[2].Name), at(harness.LoadShapes[1], harness.LoadShapes[1].Name)),
		r.FillSeries(figures.Chart{File: "answers.svg", Title: "CPU per query at saturation, by what is asked", Unit: "µs"}, harness.Sample.CPUPerQuery, kinds...),
		r.Percentiles(figures.Chart{File: "latency-1000.svg", Title: "Time to the answer at 1,000 queries/s, " + first.Name}, at(harness.LoadShapes[1], "")),
		r.Percentiles(figures.Chart{File: "latency-10000.svg", Title: "Time to the answer at 10,000 queries/s, " + first.Name}, at(harness.LoadShapes[2], "")),
		r.FillSeries(figures.Chart{File: "tcp.svg", Title: "CPU per query over TCP at saturation", Unit: "µs"}, harness.Sample.CPUPerQuery,
			named("TCP", "a dozen in flight"), named("TCP, one in flight", "one in flight")),
		r.FillSeries(figures.Chart{File: "misses.svg", Title: "CPU per query with new names", Unit: "µs"}, harness.Sample.CPUPerQuery,
			named("misses", "at saturation"), named("misses, 2,000 qps", "2,000 queries/s"), named("in the flood", "20,000 queries/s, and hits beside")),
		r.FillSeries(figures.Chart{File: "flood.svg", Title: "p99 of hits", Unit: "µs", Log: true}, harness.Sample.P99,
			named("before the flood", "alone"), named("in the flood", "beside 20,000 misses/s")),
		r.memoryChart(),
	}
	return harness.NonEmpty(list)
}

// memoryChart is the chart of the memory.
func (r *Report) memoryChart() figures.Chart {
	c := figures.Chart{File: "memory.svg", Title: "Memory", Unit: "MiB", Series: []string{"after the start", fmt.Sprintf("with %d names", r.Plan.Names)}}
	for _, s := range r.Servers {
		at := harness.Cell{Server: s.Name}
		if idle, ok := r.memory.Spread(at, memorySample.idleMebi); ok {
			full, _ := r.memory.Spread(at, memorySample.fullMebi)
			c.Rows = append(c.Rows, figures.ChartRow{Label: s.Name, Values: []figures.Spread{idle, full}})
		}
	}
	return c
}
