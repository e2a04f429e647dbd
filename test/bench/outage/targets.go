package outage

import (
	_ "embed"

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
		{What: "upstream queries for a thousand misses of one name", Limit: 1, Of: r.valuesOf(result.upstreamQueries, atOnce)},
		{What: "queries that failed, of these thousand", Limit: 0, Of: r.valuesOf(result.failures, atOnce)},
		{What: "CPU per miss over TLS, relative to CoreDNS", Limit: 1, Below: true, Of: []harness.TargetValue{
			r.results.RatioValue("", harness.Cell{Server: "nodens", Workload: overTLS}, harness.Cell{Server: harness.CoreDNS, Workload: overTLS}, result.cpuPerQuery),
		}},
		{What: "connections over TLS", Limit: mostConns, Of: r.valuesOf(result.connections, overTLS)},
		{What: "queries that failed over TLS", Limit: 0, Of: r.valuesOf(result.failures, overTLS)},
		{What: "queries lost while the configuration changes", Limit: 0, Of: r.valuesOf(result.failures, reloading)},
	}
}

// valuesOf returns nodens' values in the outages.
func (r *Report) valuesOf(f func(result) float64, names ...string) []harness.TargetValue {
	var list []harness.TargetValue
	for _, name := range names {
		list = append(list, r.results.Value(name, harness.Cell{Server: "nodens", Workload: name}, f))
	}
	return list
}

// caseTable returns the table of an outage, or an empty string if it was not measured.
func (r *Report) caseTable(o testCase) string {
	columns := []harness.Column{r.results.Sum("queries", func(t result) float64 { return float64(t.asked) }), r.results.Sum("failed", result.failures)}
	if o.earlyLabel != "" {
		columns = append(columns,
			r.results.Median("p50 ms, "+o.earlyLabel, "%.1f", func(t result) float64 { return figures.Millis(figures.Percentile(t.early, 0.5)) }),
			r.results.Median("p99 ms, "+o.earlyLabel, "%.1f", result.p99Early))
	}
	if o.lateLabel != "" {
		columns = append(columns, r.results.Median("p99 ms, "+o.lateLabel, "%.1f", result.p99Late))
	}
	columns = append(columns, r.results.Most("most ms", "%.1f", result.maxLatency),
		r.results.Median("upstream queries", "%.0f", result.upstreamQueries))
	if o.name == overTLS {
		columns = append(columns, r.results.Median("connections", "%.0f", result.connections), r.results.Median("CPU µs per query", "%.1f", result.cpuPerQuery))
	}
	return r.results.Table([]string{"server"}, harness.ServerRows(r.Servers, o.name), columns...)
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
