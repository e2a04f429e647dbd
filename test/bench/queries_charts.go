package main

import (
	"fmt"
)

// Charts are the drawings of what was measured; one without a row is left out.
func (r *queriesReport) Charts() []chart {
	first := querySets[0]
	at := func(m loadShape, label string) seriesSource { return seriesSource{first.name + ", " + m.name, label} }
	var kinds []seriesSource
	for _, q := range querySets {
		kinds = append(kinds, seriesSource{q.name + ", " + loadShapes[0].name, q.name})
	}
	list := []chart{
		r.fillSeries(chart{file: "rates.svg", title: "CPU per query, " + first.name, unit: "µs"}, sample.cpuPerQuery,
			at(loadShapes[0], loadShapes[0].name), at(loadShapes[2], loadShapes[2].name), at(loadShapes[1], loadShapes[1].name)),
		r.fillSeries(chart{file: "answers.svg", title: "CPU per query at saturation, by what is asked", unit: "µs"}, sample.cpuPerQuery, kinds...),
		r.percentiles(chart{file: "latency-1000.svg", title: "Time to the answer at 1,000 queries/s, " + first.name}, at(loadShapes[1], "")),
		r.percentiles(chart{file: "latency-10000.svg", title: "Time to the answer at 10,000 queries/s, " + first.name}, at(loadShapes[2], "")),
		r.fillSeries(chart{file: "tcp.svg", title: "CPU per query over TCP at saturation", unit: "µs"}, sample.cpuPerQuery,
			seriesSource{extraShapes[0].name, "a dozen under way"}, seriesSource{extraShapes[1].name, "one under way"}),
		r.fillSeries(chart{file: "misses.svg", title: "CPU per query with new names", unit: "µs"}, sample.cpuPerQuery,
			seriesSource{extraShapes[2].name, "at saturation"}, seriesSource{extraShapes[4].name, "20,000 queries/s, and hits beside"}),
		r.fillSeries(chart{file: "flood.svg", title: "p99 of hits", unit: "µs", log: true}, sample.p99,
			seriesSource{extraShapes[3].name, "alone"}, seriesSource{extraShapes[4].name, "beside 20,000 misses/s"}),
		r.memoryChart(),
	}
	return nonEmpty(list)
}

// memoryChart is the chart of the memory.
func (r *queriesReport) memoryChart() chart {
	c := chart{file: "memory.svg", title: "Memory", unit: "MiB", series: []string{"after the start", fmt.Sprintf("with %d names", r.plan.names)}}
	for _, s := range r.servers {
		if h, ok := r.holds[s.name]; ok {
			c.rows = append(c.rows, chartRow{s.name, []spread{spreadOf([]float64{mebi(h.idle)}), spreadOf([]float64{mebi(h.full)})}})
		}
	}
	return c
}
