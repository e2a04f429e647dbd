package outage

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// The limits for upstreams that fail.
const (
	// maxEarlyMiss and maxLateMiss are milliseconds for names that are not in the cache, in
	// the first seconds of an outage and after.
	maxEarlyMiss, maxLateMiss = 50, 10
	// maxFirstStale and maxLaterStale are milliseconds for expired names, for the first query
	// in an outage and for later ones.
	maxFirstStale, maxLaterStale = 2000, 5
	// mostConns is how many connections over TLS may be open.
	mostConns = 4
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	return []harness.Target{
		{What: "queries that failed, one upstream dead or frozen", Limit: 0, Of: r.valuesOf(result.failures, oneDead, oneFrozen)},
		{What: "p99 of misses in the first five seconds", Limit: maxEarlyMiss, Below: true, Unit: "ms", Of: r.valuesOf(result.p99Early, oneDead, oneFrozen)},
		{What: "p99 of misses later", Limit: maxLateMiss, Below: true, Unit: "ms", Of: r.valuesOf(result.p99Late, oneDead, oneFrozen)},
		{What: "queries that failed, all upstreams silent", Limit: 0, Of: r.valuesOf(result.failures, allSilent)},
		{What: "p99 of the first answer of a name that has expired", Limit: maxFirstStale, Below: true, Unit: "ms", Of: r.valuesOf(result.p99Early, allSilent)},
		{What: "p99 of later answers", Limit: maxLaterStale, Below: true, Unit: "ms", Of: r.valuesOf(result.p99Late, allSilent)},
		{What: "upstream queries for a thousand misses of one name", Limit: 1, Of: r.valuesOf(func(t result) float64 { return float64(t.upstream) }, atOnce)},
		{What: "queries that failed, of these thousand", Limit: 0, Of: r.valuesOf(result.failures, atOnce)},
		{What: "CPU per miss over TLS, relative to CoreDNS", Limit: 1, Below: true, Of: []harness.TargetValue{{Name: "", Find: func() (figures.Spread, bool) {
			return r.ratioTo(result.cpuPerQuery, overTLS, harness.CoreDNS)
		}}}},
		{What: "connections over TLS", Limit: mostConns, Of: r.valuesOf(func(t result) float64 { return float64(t.conns) }, overTLS)},
		{What: "queries that failed over TLS", Limit: 0, Of: r.valuesOf(result.failures, overTLS)},
		{What: "queries lost while the configuration changes", Limit: 0, Of: r.valuesOf(result.failures, reloading)},
	}
}

// valuesOf returns nodens' values in the outages.
func (r *Report) valuesOf(f func(result) float64, names ...string) []harness.TargetValue {
	var list []harness.TargetValue
	for _, name := range names {
		list = append(list, harness.TargetValue{Name: name, Find: func() (figures.Spread, bool) {
			return r.resultSpread(f, harness.Cell{Server: "nodens", Workload: name})
		}})
	}
	return list
}

// resultSpread applies f to the results of a row; false if there is none.
func (r *Report) resultSpread(f func(result) float64, at harness.Cell) (figures.Spread, bool) {
	return figures.SpreadBy(r.results[at], f)
}

// ratioTo is nodens' value in units of another server's in the same round.
func (r *Report) ratioTo(f func(result) float64, name, to string) (figures.Spread, bool) {
	return figures.SpreadOfRatios(r.results[harness.Cell{Server: "nodens", Workload: name}], r.results[harness.Cell{Server: to, Workload: name}], f)
}

// caseTable returns the table of an outage, or an empty string if it was not measured.
func (r *Report) caseTable(o testCase) string {
	type column struct {
		head string
		text func(harness.Cell) string
	}
	middle := func(head, format string, f func(result) float64) column {
		return column{head, func(at harness.Cell) string {
			v, _ := r.resultSpread(f, at)
			return fmt.Sprintf(format, v.Median)
		}}
	}
	sum := func(head string, f func(result) float64) column {
		return column{head, func(at harness.Cell) string {
			total := 0.0
			for _, t := range r.results[at] {
				total += f(t)
			}
			return fmt.Sprintf("%.0f", total)
		}}
	}
	columns := []column{sum("queries", func(t result) float64 { return float64(t.asked) }), sum("failed", result.failures)}
	if o.earlyLabel != "" {
		columns = append(columns, middle("p50 ms, "+o.earlyLabel, "%.1f", func(t result) float64 { return figures.Millis(figures.Percentile(t.early, 0.5)) }), middle("p99 ms, "+o.earlyLabel, "%.1f", result.p99Early))
	}
	if o.lateLabel != "" {
		columns = append(columns, middle("p99 ms, "+o.lateLabel, "%.1f", result.p99Late))
	}
	columns = append(columns, column{"most ms", func(at harness.Cell) string {
		v, _ := r.resultSpread(result.maxLatency, at)
		return fmt.Sprintf("%.1f", v.Most)
	}}, middle("upstream queries", "%.0f", func(t result) float64 { return float64(t.upstream) }))
	if o.name == overTLS {
		columns = append(columns, middle("connections", "%.0f", func(t result) float64 { return float64(t.conns) }), middle("CPU µs per query", "%.1f", result.cpuPerQuery))
	}
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.Servers {
		at := harness.Cell{Server: s.Name, Workload: o.name}
		if len(r.results[at]) == 0 {
			continue
		}
		row := []string{s.Name}
		for _, c := range columns {
			row = append(row, c.text(at))
		}
		rows = append(rows, row)
	}
	if len(rows) == 1 {
		return ""
	}
	return figures.Table(rows)
}

// Tables are all of them, as text for a terminal.
func (r *Report) Tables() (list []string) {
	for _, o := range outageCases {
		if t := r.caseTable(o); t != "" {
			list = append(list, o.name+"\n\n"+t)
		}
	}
	return list
}

//go:embed section.md.tmpl
var outageText string

// Render returns the page about upstreams that fail.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Outages []harness.TableEntry
	}{SectionData: r.NewSectionData(r.Targets(), plots)}
	for _, o := range outageCases {
		if table := r.caseTable(o); table != "" {
			data.Outages = append(data.Outages, harness.TableEntry{Name: o.name, What: o.what, Table: table})
		}
	}
	return harness.OnePage("upstreams-that-fail.md", outageText, data)
}
