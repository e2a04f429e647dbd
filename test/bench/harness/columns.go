package harness

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// column is a column of a workload's table.
type column struct {
	head string
	text func(*Report, Cell) string
}

// medianColumn is a column with the median of a number.
func medianColumn(head, format string, f func(Sample) float64) column {
	return column{head, func(r *Report, at Cell) string { return fmt.Sprintf(format, r.Over(at, f).Median) }}
}

// shareColumn is a column with the median of a part.
func shareColumn(head string, f func(Sample) float64) column {
	return column{head, func(r *Report, at Cell) string { return figures.Percent(r.Over(at, f).Median) }}
}

// maxColumn is a column with the greatest of all rounds.
func maxColumn(head, format string, f func(Sample) float64) column {
	return column{head, func(r *Report, at Cell) string { return fmt.Sprintf(format, r.Over(at, f).Most) }}
}

// The columns that several tables have.
var (
	priceColumns = []column{
		medianColumn("CPU µs per query", "%.2f", Sample.CPUPerQuery),
		{"least–most", func(r *Report, at Cell) string {
			v := r.Over(at, Sample.CPUPerQuery)
			return fmt.Sprintf("%.2f–%.2f", v.Least, v.Most)
		}},
	}
	kernelColumn   = shareColumn("in the kernel", func(s Sample) float64 { return s.Kernel })
	rateColumn     = medianColumn("queries/s", "%.0f", func(s Sample) float64 { return float64(s.Completed) / s.Elapsed.Seconds() })
	rssColumn      = medianColumn("RSS MiB", "%.0f", func(s Sample) float64 { return figures.Mebi(s.RSS) })
	lostColumn     = maxColumn("lost", "%.0f", func(s Sample) float64 { return float64(s.Lost) })
	failedColumn   = shareColumn("failed", func(s Sample) float64 { return s.Failed() })
	latencyColumns = []column{medianColumn("p50 µs", "%.0f", Sample.P50), medianColumn("p99 µs", "%.0f", Sample.P99)}
)

// podColumns are those of what a pod asks.
var podColumns = []column{
	medianColumn("CPU µs per query", "%.1f", Sample.MachineCPU),
	{"least–most", func(r *Report, at Cell) string {
		v := r.Over(at, Sample.MachineCPU)
		return fmt.Sprintf("%.1f–%.1f", v.Least, v.Most)
	}},
	medianColumn("client's", "%.1f", func(s Sample) float64 { return float64(s.Client.Nanoseconds()) / 1e3 / s.answered() }),
	medianColumn("server's", "%.2f", Sample.CPUPerQuery),
	medianColumn("p50 µs", "%.1f", Sample.P50),
	medianColumn("p99 µs", "%.1f", Sample.P99),
	shareColumn("answered in the kernel", func(s Sample) float64 { return s.KernelShare }),
	lostColumn,
}

// columns are those of a workload's table.
func (w Workload) columns() []column {
	switch w.Tool {
	case FromPod:
		return podColumns
	case FixedRate:
		return slices.Concat(priceColumns, latencyColumns, []column{lostColumn})
	case CacheMisses:
		return slices.Concat(priceColumns, []column{rateColumn, failedColumn, rssColumn})
	case MissFlood:
		return slices.Concat(priceColumns, latencyColumns, []column{
			lostColumn,
			shareColumn("flood failed", func(s Sample) float64 { return s.floodResult.Failed() }),
			medianColumn("RSS MiB before", "%.0f", func(s Sample) float64 { return figures.Mebi(s.Before) }),
			medianColumn("at most", "%.0f", func(s Sample) float64 { return figures.Mebi(s.Peak) }),
		})
	default:
		return slices.Concat(priceColumns, []column{kernelColumn, rateColumn, rssColumn})
	}
}

// pooledLatency is the time in microseconds within which the part of all rounds' answers
// came: a single round has too few for the last of a thousand.
func (r *Report) pooledLatency(at Cell, part float64) float64 {
	var all []time.Duration
	for _, s := range r.Samples[at] {
		all = append(all, s.Latencies...)
	}
	slices.Sort(all)
	return float64(figures.Percentile(all, part).Nanoseconds()) / 1e3
}

// WorkloadTable is the table of a workload.
func (r *Report) WorkloadTable(w Workload) string {
	columns := w.columns()
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.Servers {
		at := Cell{s.Name, w.Name}
		if len(r.Samples[at]) == 0 {
			continue
		}
		row := []string{s.Name}
		for _, c := range columns {
			row = append(row, c.text(r, at))
		}
		rows = append(rows, row)
	}
	return figures.Table(rows)
}
