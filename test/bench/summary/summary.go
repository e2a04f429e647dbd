// Package summary makes the generated parts of BENCHMARKS.md from the pages in docs/benchmarks:
// how many targets each page has and which are missed, and the charts that compare several tables.
// It measures nothing.
package summary

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// page is a page with targets, in the order of BENCHMARKS.md.
type page struct{ file, title string }

var pages = []page{
	{"query-targets.md", "CPU, time and memory of queries"},
	{"large-cluster.md", "a cluster of 10,020 Services"},
	{"fleet.md", "fleets of agents"},
	{"upstreams-that-fail.md", "upstreams that fail, and TLS to upstreams"},
	{"agents-that-go-away.md", "agents that are upgraded, die or hang"},
	{"kernel-path.md", "answers inside the kernel"},
	{"program-time.md", "the time of the programs in the kernel"},
	{"attacks.md", "the most expensive queries"},
	{"attribution.md", "counting queries by client"},
	{"watching.md", "an open page and nodens tail"},
	{"policies.md", "policies by name"},
	{"fair-shares.md", "fair shares between pods, and upstream budgets"},
	{"transports.md", "encrypted transports"},
	{"start.md", "starting, stopping, and being idle"},
	{"readers.md", "many readers"},
}

// The header of a table of targets, and a verdict in its last column.
const (
	targetHeader = "at most"
	missed       = "**missed**"
)

// Target is a line of a table of targets.
type Target struct {
	Page, What, Limit, Median, Range, Verdict string
}

// ReadTargets returns the targets of all pages in the folder.
func ReadTargets(dir string) ([]Target, error) {
	var list []Target
	for _, p := range pages {
		text, err := harness.ReadPage(dir, p.file)
		if err != nil {
			return nil, err
		}
		rows := findTable(text, "target", targetHeader)
		if len(rows) == 0 {
			return nil, fmt.Errorf("%s has no table of targets", p.file)
		}
		for _, r := range rows[1:] {
			list = append(list, Target{Page: p.file, What: r[0], Limit: r[1], Median: r[2], Range: r[3], Verdict: r[len(r)-1]})
		}
	}
	return list, nil
}

// Missed returns the targets that are not met.
func Missed(list []Target) []Target {
	return slices.DeleteFunc(slices.Clone(list), func(t Target) bool { return t.Verdict != missed })
}

// PageTable is the table of the pages, with the number of their targets; those are open whose rounds differ too much. Links lead from the
// repository's root to the folder.
func PageTable(list []Target, folder string) string {
	rows := [][]string{{"what", "targets", "met", "open"}}
	for _, p := range pages {
		all, met, open := 0, 0, 0
		for _, t := range list {
			if t.Page != p.file {
				continue
			}
			all++
			switch t.Verdict {
			case "met":
				met++
			case "open":
				open++
			}
		}
		rows = append(rows, []string{fmt.Sprintf("[%s](%s/%s)", p.title, folder, harness.Question(p.file)), strconv.Itoa(all), strconv.Itoa(met), strconv.Itoa(open)})
	}
	return figures.Table(rows)
}

// MissedTable is the table of the targets that are not met.
func MissedTable(list []Target) string {
	rows := [][]string{{"missed target", "at most", "median", "least–most"}}
	for _, t := range Missed(list) {
		rows = append(rows, []string{t.What, t.Limit, t.Median, t.Range})
	}
	return figures.Table(rows)
}

// Charts are the charts that are drawn from the tables of the pages in the folder.
func Charts(dir string) ([]figures.Chart, error) {
	faults, err := lossChart(dir, "agents-that-go-away.md")
	if err != nil {
		return nil, err
	}
	kernel, err := kernelChart(dir, "kernel-path.md")
	if err != nil {
		return nil, err
	}
	return []figures.Chart{faults, kernel}, nil
}

// lossChart draws the table of lost queries: a row for each fault that was applied to every
// server.
func lossChart(dir, page string) (figures.Chart, error) {
	c := figures.Chart{File: "faults.svg", Title: "Queries lost, by fault", Unit: "of 10,000 per second", Whole: true}
	text, err := harness.ReadPage(dir, page)
	if err != nil {
		return c, err
	}
	rows := findTable(text, "queries lost")
	if len(rows) == 0 {
		return c, fmt.Errorf("%s has no table of lost queries", page)
	}
	c.Series = rows[0][1:]
	for _, r := range rows[1:] {
		values, err := spreads(r[1:])
		if err != nil {
			continue // the fault does not apply to one of the servers
		}
		c.Rows = append(c.Rows, figures.ChartRow{Label: strings.Replace(r[0], "five seconds", "5 s", 1), Values: values})
	}
	return c, nil
}

// kernelChart draws the CPU time of a pod's query at the fixed rates.
func kernelChart(dir, page string) (figures.Chart, error) {
	c := figures.Chart{File: "kernel.svg", Title: "CPU of the whole machine per query from a pod", Unit: "µs"}
	text, err := harness.ReadPage(dir, page)
	if err != nil {
		return c, err
	}
	rates := []string{"1,000 qps", "10,000 qps"}
	for _, rate := range rates {
		_, section, _ := strings.Cut(text, "\n### from a pod, "+rate+"\n")
		rows := findTable(section, "server", "CPU µs per query")
		if len(rows) == 0 {
			return c, fmt.Errorf("%s has no table for %s", page, rate)
		}
		c.Series = append(c.Series, rate)
		for i, r := range rows[1:] {
			if len(c.Series) == 1 {
				c.Rows = append(c.Rows, figures.ChartRow{Label: r[0]})
			}
			values, err := spreads(r[1:2])
			if err != nil {
				continue // the value varies
			}
			c.Rows[i].Values = append(c.Rows[i].Values, values...)
		}
	}
	c.Rows = slices.DeleteFunc(c.Rows, func(r figures.ChartRow) bool { return len(r.Values) < len(rates) })
	return c, nil
}

// spreads reads numbers. An error means that one of the cells is no number.
func spreads(cells []string) ([]figures.Spread, error) {
	var list []figures.Spread
	for _, cell := range cells {
		v, err := strconv.ParseFloat(cell, 64)
		if err != nil {
			return nil, err
		}
		list = append(list, figures.SpreadOf([]float64{v}))
	}
	return list, nil
}

// findTable returns the rows of the first table whose header begins with the given cells, the
// header among them and the line below it not; nil if there is none.
func findTable(text string, header ...string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if rows != nil {
				return rows
			}
			continue
		}
		if strings.Trim(line, "|-: ") == "" {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		if rows != nil || len(cells) >= len(header) && slices.Equal(cells[:len(header)], header) {
			rows = append(rows, cells)
		}
	}
	return rows
}
