package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// column is a column of a workload's table.
type column struct {
	head string
	text func(*report, cell) string
}

// middle is a column with the median of a number.
func middle(head, format string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return fmt.Sprintf(format, r.over(at, f).median) }}
}

// share is a column with the median of a part.
func share(head string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return percent(r.over(at, f).median) }}
}

// highest is a column with the greatest of all rounds.
func highest(head, format string, f func(sample) float64) column {
	return column{head, func(r *report, at cell) string { return fmt.Sprintf(format, r.over(at, f).most) }}
}

// The columns that several tables have.
var (
	price = []column{
		middle("CPU µs per query", "%.2f", sample.price),
		{"least–most", func(r *report, at cell) string {
			v := r.over(at, sample.price)
			return fmt.Sprintf("%.2f–%.2f", v.least, v.most)
		}},
	}
	kernelPart = share("in the kernel", func(s sample) float64 { return s.kernel })
	speed      = middle("queries/s", "%.0f", func(s sample) float64 { return float64(s.completed) / s.elapsed.Seconds() })
	sleeping   = middle("sleeps per query", "%.3f", sample.sleeps)
	core       = []column{
		share("core busy", func(s sample) float64 { return s.cpu.Seconds() / s.elapsed.Seconds() }),
		share("by others", sample.others),
	}
	rss     = middle("RSS MiB", "%.0f", func(s sample) float64 { return mebi(s.rss) })
	bytesOf = middle("answer bytes", "%.0f", func(s sample) float64 { return float64(s.response) })
	misses  = highest("misses", "%.0f", func(s sample) float64 { return float64(s.misses) })
	lost    = highest("lost", "%.0f", func(s sample) float64 { return float64(s.lost) })
	failed  = share("failed", func(s sample) float64 { return s.failed() })
	times   = []column{
		middle("p50 µs", "%.0f", sample.p50),
		middle("p99 µs", "%.0f", sample.p99),
		{"p99.9 µs", func(r *report, at cell) string { return fmt.Sprintf("%.0f", r.pooled(at, 0.999)) }},
		highest("blurred", "%.0f", func(s sample) float64 { return float64(s.blurred + s.skipped) }),
	}
)

// podColumns are those of what a pod asks.
var podColumns = []column{
	middle("CPU µs per query", "%.1f", sample.whole),
	{"least–most", func(r *report, at cell) string {
		v := r.over(at, sample.whole)
		return fmt.Sprintf("%.1f–%.1f", v.least, v.most)
	}},
	middle("client's", "%.1f", func(s sample) float64 { return float64(s.client.Nanoseconds()) / 1e3 / s.answered() }),
	middle("server's", "%.2f", sample.price),
	middle("p50 µs", "%.1f", sample.p50),
	middle("p99 µs", "%.1f", sample.p99),
	{"p99.9 µs", func(r *report, at cell) string { return fmt.Sprintf("%.0f", r.pooled(at, 0.999)) }},
	speed,
	middle("server, % of a core", "%.2f", sample.burden),
	share("answered in the kernel", func(s sample) float64 { return s.within }),
	lost,
	highest("skipped", "%.0f", func(s sample) float64 { return float64(s.skipped) }),
}

// columns are those of a workload's table.
func (w workload) columns() []column {
	switch w.tool {
	case across:
		return podColumns
	case steady:
		return slices.Concat(price, []column{sleeping}, times, core, []column{lost, misses})
	case miss:
		return slices.Concat(price, []column{kernelPart, speed, failed, sleeping}, core, []column{rss})
	case flood:
		return slices.Concat(price, []column{sleeping}, times, core, []column{lost, misses,
			share("flood failed", func(s sample) float64 { return s.beside.failed() }),
			middle("RSS MiB before", "%.0f", func(s sample) float64 { return mebi(s.before) }),
			middle("at most", "%.0f", func(s sample) float64 { return mebi(s.peak) }),
			middle("after", "%.0f", func(s sample) float64 { return mebi(s.rss) }),
		})
	default:
		return slices.Concat(price, []column{kernelPart, speed, sleeping}, core, []column{rss, bytesOf, misses})
	}
}

// pooled is the time in microseconds within which the part of all rounds' answers
// came: a single round has too few for the last of a thousand.
func (r *report) pooled(at cell, part float64) float64 {
	var all []time.Duration
	for _, s := range r.samples[at] {
		all = append(all, s.latencies...)
	}
	slices.Sort(all)
	return float64(percentile(all, part).Nanoseconds()) / 1e3
}

// prices is the table of a workload.
func (r *report) prices(w workload) string {
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

// claims are what this report is to show.
func (r *report) claims() []claim {
	if r.plan.kernel {
		return vows()
	}
	if r.scale != nil {
		return promises()
	}
	if r.trials != nil {
		return duties()
	}
	if r.harms != nil {
		return pledges()
	}
	if r.attacks != nil {
		return worstClaims()
	}
	if r.plan.before != "" {
		return append(beforeClaims(), claims()...)
	}
	return claims()
}

// results is the table of claims, without those that were not measured unless
// all are asked for.
func (r *report) results(claims []claim, all bool) string {
	rows := [][]string{{"what", "at most", "median", "least–most", "of", ""}}
	for _, c := range claims {
		res := c.judge(r)
		if !res.measured && !all {
			continue
		}
		limit := fmt.Sprintf("%.4g", c.limit)
		if c.below {
			limit = "below " + limit
		}
		row := []string{c.what, strings.TrimSpace(limit + " " + c.unit), "", "", res.worst, res.verdict()}
		if res.measured {
			row[2] = fmt.Sprintf("%.2f", res.spread.median)
			row[3] = fmt.Sprintf("%.2f–%.2f", res.spread.least, res.spread.most)
		}
		rows = append(rows, row)
	}
	return table(rows)
}

// idle is the table of what servers do while nobody asks; empty if that was not
// measured.
func (r *report) idle() string {
	rows := [][]string{{"server", "CPU ms per second", "least–most", "sleeps per second"}}
	for _, s := range r.servers {
		var cpu, sleeps []float64
		for _, n := range r.rests[s.name] {
			cpu = append(cpu, n.cpu.Seconds()*1e3/n.length.Seconds())
			sleeps = append(sleeps, float64(n.switches)/n.length.Seconds())
		}
		if len(cpu) == 0 {
			continue
		}
		v := spreadOf(cpu)
		rows = append(rows, []string{s.name, fmt.Sprintf("%.3f", v.median), fmt.Sprintf("%.3f–%.3f", v.least, v.most),
			fmt.Sprintf("%.1f", spreadOf(sleeps).median)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// memory is the table of RSS; empty if it was not measured.
func (r *report) memory() string {
	rows := [][]string{{"server", "MiB after the start", fmt.Sprintf("with %d names", r.plan.names), "bytes per name", "kept"}}
	for _, s := range r.servers {
		h, ok := r.holds[s.name]
		if !ok {
			continue
		}
		rows = append(rows, []string{s.name, fmt.Sprintf("%.1f", mebi(h.idle)), fmt.Sprintf("%.1f", mebi(h.full)),
			fmt.Sprintf("%.0f", (float64(h.full)-float64(h.idle))/float64(r.plan.names)), fmt.Sprintf("%.1f %%", 100*h.kept)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// table writes rows, the first of which is the header, as a Markdown table with
// its columns aligned: the text to the left, the numbers to the right.
func table(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	rule := make([]string, len(widths))
	numeric := make([]bool, len(widths))
	for i, width := range widths {
		numeric[i] = len(rows) > 1 && isNumber(rows[1][i])
		rule[i] = strings.Repeat("-", max(width, 1))
		if numeric[i] {
			rule[i] = rule[i][:max(width-1, 0)] + ":"
		}
	}
	var b strings.Builder
	for _, row := range slices.Insert(slices.Clone(rows), 1, rule) {
		for i, text := range row {
			gap := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(text)))
			if numeric[i] {
				text, gap = gap+text, ""
			}
			b.WriteString("| " + text + gap + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

func isNumber(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return text != "" && text[0] >= '0' && text[0] <= '9'
}
