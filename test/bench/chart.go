package main

import (
	"slices"
)

// nonEmpty are the charts with a row.
func nonEmpty(list []chart) []chart {
	return slices.DeleteFunc(list, func(c chart) bool { return len(c.rows) == 0 })
}

// seriesSource is a workload as a series of a chart.
type seriesSource struct{ workload, label string }

// fillSeries fills the chart with a value of each workload. Workloads that were not
// measured are left out, and so are servers without all of the others.
func (r *report) fillSeries(c chart, f func(sample) float64, marks ...seriesSource) chart {
	marks = slices.DeleteFunc(marks, func(m seriesSource) bool {
		return !slices.ContainsFunc(r.workloads, func(w workload) bool { return w.name == m.workload })
	})
	for _, m := range marks {
		c.series = append(c.series, m.label)
	}
	for _, s := range r.servers {
		row := chartRow{label: s.name}
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
func (r *report) percentiles(c chart, m seriesSource) chart {
	c.unit, c.log, c.series = "µs", true, []string{"p50", "p99", "p99.9"}
	for _, s := range r.servers {
		at := cell{s.name, m.workload}
		if len(r.samples[at]) == 0 {
			continue
		}
		last := r.pooledLatency(at, 0.999)
		c.rows = append(c.rows, chartRow{s.name, []spread{r.over(at, sample.p50), r.over(at, sample.p99), {last, last, last}}})
	}
	return c
}
