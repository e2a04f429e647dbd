package main

import (
	"fmt"
	"slices"
)

// charts are the drawings of what was measured; one without a row is left out.
func (r *report) charts() []chart {
	first := sets[0]
	at := func(m manner, label string) mark { return mark{first.name + ", " + m.name, label} }
	var kinds []mark
	for _, q := range sets {
		kinds = append(kinds, mark{q.name + ", " + paced[0].name, q.name})
	}
	list := []chart{
		r.marks(chart{file: "rates.svg", title: "CPU per query, " + first.name, unit: "µs"}, sample.price,
			at(paced[0], paced[0].name), at(paced[2], paced[2].name), at(paced[1], paced[1].name)),
		r.marks(chart{file: "answers.svg", title: "CPU per query at saturation, by what is asked", unit: "µs"}, sample.price, kinds...),
		r.percentiles(chart{file: "latency-1000.svg", title: "Time to the answer at 1,000 queries/s, " + first.name}, at(paced[1], "")),
		r.percentiles(chart{file: "latency-10000.svg", title: "Time to the answer at 10,000 queries/s, " + first.name}, at(paced[2], "")),
		r.marks(chart{file: "tcp.svg", title: "CPU per query over TCP at saturation", unit: "µs"}, sample.price,
			mark{others[0].name, "a dozen under way"}, mark{others[1].name, "one under way"}),
		r.marks(chart{file: "misses.svg", title: "CPU per query with new names", unit: "µs"}, sample.price,
			mark{others[2].name, "at saturation"}, mark{others[4].name, "20,000 queries/s, and hits beside"}),
		r.marks(chart{file: "flood.svg", title: "p99 of hits", unit: "µs", log: true}, sample.p99,
			mark{others[3].name, "alone"}, mark{others[4].name, "beside 20,000 misses/s"}),
		r.footprint(),
	}
	return drawn(list)
}

// drawn are the charts with a row.
func drawn(list []chart) []chart {
	return slices.DeleteFunc(list, func(c chart) bool { return len(c.rows) == 0 })
}

// mark is a workload as a series of a chart.
type mark struct{ workload, label string }

// marks fills the chart with a value of each workload. Workloads that were not
// measured are left out, and so are servers without all of the others.
func (r *report) marks(c chart, f func(sample) float64, marks ...mark) chart {
	marks = slices.DeleteFunc(marks, func(m mark) bool {
		return !slices.ContainsFunc(r.workloads, func(w workload) bool { return w.name == m.workload })
	})
	for _, m := range marks {
		c.series = append(c.series, m.label)
	}
	for _, s := range r.servers {
		row := bar{label: s.name}
		for _, m := range marks {
			if at := (cell{s.name, m.workload}); len(r.samples[at]) > 0 {
				row.values = append(row.values, r.over(at, f))
			}
		}
		if len(row.values) == len(marks) && len(marks) > 0 {
			c.rows = append(c.rows, row)
		}
	}
	return c
}

// percentiles fills the chart with the times of one workload.
func (r *report) percentiles(c chart, m mark) chart {
	c.unit, c.log, c.series = "µs", true, []string{"p50", "p99", "p99.9"}
	for _, s := range r.servers {
		at := cell{s.name, m.workload}
		if len(r.samples[at]) == 0 {
			continue
		}
		last := r.pooled(at, 0.999)
		c.rows = append(c.rows, bar{s.name, []spread{r.over(at, sample.p50), r.over(at, sample.p99), {last, last, last}}})
	}
	return c
}

// footprint is the chart of the memory.
func (r *report) footprint() chart {
	c := chart{file: "memory.svg", title: "Memory", unit: "MiB", series: []string{"after the start", fmt.Sprintf("with %d names", r.plan.names)}}
	for _, s := range r.servers {
		if h, ok := r.holds[s.name]; ok {
			c.rows = append(c.rows, bar{s.name, []spread{spreadOf([]float64{mebi(h.idle)}), spreadOf([]float64{mebi(h.full)})}})
		}
	}
	return c
}
