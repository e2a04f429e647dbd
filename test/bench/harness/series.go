package harness

import (
	"slices"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// NonEmpty are the charts with a row.
func NonEmpty(list []figures.Chart) []figures.Chart {
	return slices.DeleteFunc(list, func(c figures.Chart) bool { return len(c.Rows) == 0 })
}

// SeriesSource is a workload as a series of a chart.
type SeriesSource struct{ Workload, Label string }

// FillSeries fills the chart with a value of each workload. Workloads that were not
// measured are left out, and so are servers without all of the others.
func (r *Report) FillSeries(c figures.Chart, f func(Sample) float64, marks ...SeriesSource) figures.Chart {
	marks = slices.DeleteFunc(marks, func(m SeriesSource) bool {
		return !slices.ContainsFunc(r.Workloads, func(w Workload) bool { return w.Name == m.Workload })
	})
	for _, m := range marks {
		c.Series = append(c.Series, m.Label)
	}
	for _, s := range r.Servers {
		row := figures.ChartRow{Label: s.Name}
		for _, m := range marks {
			if v, ok := r.Samples.Spread(Cell{s.Name, m.Workload}, f); ok {
				row.Values = append(row.Values, v)
			}
		}
		if len(row.Values) == len(marks) && len(marks) > 0 {
			c.Rows = append(c.Rows, row)
		}
	}
	return c
}

// Percentiles fills the chart with the times of one workload.
func (r *Report) Percentiles(c figures.Chart, m SeriesSource) figures.Chart {
	c.Unit, c.Log, c.Series = "µs", true, []string{"p50", "p99", "p99.9"}
	for _, s := range r.Servers {
		at := Cell{s.Name, m.Workload}
		p50, ok := r.Samples.Spread(at, Sample.P50)
		if !ok {
			continue
		}
		p99, _ := r.Samples.Spread(at, Sample.P99)
		last := r.pooledLatency(at, 0.999)
		c.Rows = append(c.Rows, figures.ChartRow{Label: s.Name, Values: []figures.Spread{p50, p99, {Median: last, Least: last, Most: last}}})
	}
	return c
}
