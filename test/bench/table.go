package main

import (
	"fmt"
	"slices"
	"time"
)

// column is a column of a workload's table.
type column struct {
	head string
	text func(*report, cell) string
}

// medianColumn is a column with the median of a number.
func medianColumn(head, format string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return fmt.Sprintf(format, r.over(at, f).median) }}
}

// shareColumn is a column with the median of a part.
func shareColumn(head string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return percent(r.over(at, f).median) }}
}

// maxColumn is a column with the greatest of all rounds.
func maxColumn(head, format string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return fmt.Sprintf(format, r.over(at, f).most) }}
}

// The columns that several tables have.
var (
	priceColumns = []column{
		medianColumn("CPU µs per query", "%.2f", sample.cpuPerQuery),
		{"least–most", func(r *report, at cell) string {
			v := r.over(at, sample.cpuPerQuery)
			return fmt.Sprintf("%.2f–%.2f", v.least, v.most)
		}},
	}
	kernelColumn = shareColumn("in the kernel", func(s sample) float64 { return s.kernel })
	rateColumn   = medianColumn("queries/s", "%.0f", func(s sample) float64 { return float64(s.completed) / s.elapsed.Seconds() })
	sleepColumn  = medianColumn("sleeps per query", "%.3f", sample.sleeps)
	coreColumns  = []column{
		shareColumn("core busy", func(s sample) float64 { return s.cpu.Seconds() / s.elapsed.Seconds() }),
		shareColumn("by others", sample.otherShare),
	}
	rssColumn      = medianColumn("RSS MiB", "%.0f", func(s sample) float64 { return mebi(s.rss) })
	answerColumn   = medianColumn("answer bytes", "%.0f", func(s sample) float64 { return float64(s.response) })
	missColumn     = maxColumn("misses", "%.0f", func(s sample) float64 { return float64(s.misses) })
	lostColumn     = maxColumn("lost", "%.0f", func(s sample) float64 { return float64(s.lost) })
	failedColumn   = shareColumn("failed", func(s sample) float64 { return s.failed() })
	latencyColumns = []column{
		medianColumn("p50 µs", "%.0f", sample.p50),
		medianColumn("p99 µs", "%.0f", sample.p99),
		{"p99.9 µs", func(r *report, at cell) string { return fmt.Sprintf("%.0f", r.pooledLatency(at, 0.999)) }},
		maxColumn("blurred", "%.0f", func(s sample) float64 { return float64(s.blurred + s.skipped) }),
	}
)

// podColumns are those of what a pod asks.
var podColumns = []column{
	medianColumn("CPU µs per query", "%.1f", sample.machineCPU),
	{"least–most", func(r *report, at cell) string {
		v := r.over(at, sample.machineCPU)
		return fmt.Sprintf("%.1f–%.1f", v.least, v.most)
	}},
	medianColumn("client's", "%.1f", func(s sample) float64 { return float64(s.client.Nanoseconds()) / 1e3 / s.answered() }),
	medianColumn("server's", "%.2f", sample.cpuPerQuery),
	medianColumn("p50 µs", "%.1f", sample.p50),
	medianColumn("p99 µs", "%.1f", sample.p99),
	{"p99.9 µs", func(r *report, at cell) string { return fmt.Sprintf("%.0f", r.pooledLatency(at, 0.999)) }},
	rateColumn,
	medianColumn("server, % of a core", "%.2f", sample.serverLoad),
	shareColumn("answered in the kernel", func(s sample) float64 { return s.kernelShare }),
	lostColumn,
	maxColumn("skipped", "%.0f", func(s sample) float64 { return float64(s.skipped) }),
}

// columns are those of a workload's table.
func (w workload) columns() []column {
	switch w.tool {
	case fromPod:
		return podColumns
	case fixedRate:
		return slices.Concat(priceColumns, []column{sleepColumn}, latencyColumns, coreColumns, []column{lostColumn, missColumn})
	case cacheMisses:
		return slices.Concat(priceColumns, []column{kernelColumn, rateColumn, failedColumn, sleepColumn}, coreColumns, []column{rssColumn})
	case missFlood:
		return slices.Concat(priceColumns, []column{sleepColumn}, latencyColumns, coreColumns, []column{lostColumn, missColumn,
			shareColumn("flood failed", func(s sample) float64 { return s.floodResult.failed() }),
			medianColumn("RSS MiB before", "%.0f", func(s sample) float64 { return mebi(s.before) }),
			medianColumn("at most", "%.0f", func(s sample) float64 { return mebi(s.peak) }),
			medianColumn("after", "%.0f", func(s sample) float64 { return mebi(s.rss) }),
		})
	default:
		return slices.Concat(priceColumns, []column{kernelColumn, rateColumn, sleepColumn}, coreColumns, []column{rssColumn, answerColumn, missColumn})
	}
}

// pooledLatency is the time in microseconds within which the part of all rounds' answers
// came: a single round has too few for the last of a thousand.
func (r *report) pooledLatency(at cell, part float64) float64 {
	var all []time.Duration
	for _, s := range r.samples[at] {
		all = append(all, s.latencies...)
	}
	slices.Sort(all)
	return float64(percentile(all, part).Nanoseconds()) / 1e3
}

// workloadTable is the table of a workload.
func (r *report) workloadTable(w workload) string {
	columns := w.columns()
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		at := cell{s.name, w.name}
		if len(r.samples[at]) == 0 {
			continue
		}
		row := []string{s.name}
		for _, c := range columns {
			row = append(row, c.text(r, at))
		}
		rows = append(rows, row)
	}
	return table(rows)
}
