package main

import (
	_ "embed"
	"fmt"
)

// What may be seen of upstreams that fail.
const (
	// maxEarlyMiss and laterMissed are milliseconds for names that are not in the cache, in
	// the first seconds of an outage and after.
	maxEarlyMiss, maxLateMiss = 50, 10
	// maxFirstStale and laterStale are milliseconds for names that have expired, asked for
	// the first time in an outage and after.
	maxFirstStale, maxLaterStale = 2000, 5
	// mostConns is how many connections over TLS may be open.
	mostConns = 4
)

// Targets are what nodens has to show when upstreams fail.
func (r *outageReport) Targets() []target {
	return []target{
		{what: "questions that failed, one upstream dead or frozen", limit: 0, of: r.valuesOf(outageResult.failures, oneDead, oneFrozen)},
		{what: "p99 of misses in the first five seconds", limit: maxEarlyMiss, below: true, unit: "ms", of: r.valuesOf(outageResult.p99Early, oneDead, oneFrozen)},
		{what: "p99 of misses after them", limit: maxLateMiss, below: true, unit: "ms", of: r.valuesOf(outageResult.p99Late, oneDead, oneFrozen)},
		{what: "questions that failed, all upstreams silent", limit: 0, of: r.valuesOf(outageResult.failures, allSilent)},
		{what: "p99 of the first answer of a name that has expired", limit: maxFirstStale, below: true, unit: "ms", of: r.valuesOf(outageResult.p99Early, allSilent)},
		{what: "p99 of those after it", limit: maxLaterStale, below: true, unit: "ms", of: r.valuesOf(outageResult.p99Late, allSilent)},
		{what: "upstream questions for a thousand misses of one name", limit: 1, of: r.valuesOf(func(t outageResult) float64 { return float64(t.upstream) }, atOnce)},
		{what: "questions that failed, of those thousand", limit: 0, of: r.valuesOf(outageResult.failures, atOnce)},
		{what: "CPU per miss over TLS, CoreDNS's = 1", limit: 1, below: true, of: []targetValue{{"", func() (spread, bool) {
			return r.ratioTo(outageResult.cpuPerQuery, overTLS, coreDNS)
		}}}},
		{what: "connections over TLS", limit: mostConns, of: r.valuesOf(func(t outageResult) float64 { return float64(t.conns) }, overTLS)},
		{what: "questions that failed over TLS", limit: 0, of: r.valuesOf(outageResult.failures, overTLS)},
		{what: "questions lost while the configuration changes", limit: 0, of: r.valuesOf(outageResult.failures, reloading)},
	}
}

// valuesOf are nodens' values in the ordeals.
func (r *outageReport) valuesOf(f func(outageResult) float64, names ...string) []targetValue {
	var list []targetValue
	for _, name := range names {
		list = append(list, targetValue{name, func() (spread, bool) { return r.resultSpread(f, cell{"nodens", name}) }})
	}
	return list
}

// resultSpread applies f to the trials of a row; false if there is none.
func (r *outageReport) resultSpread(f func(outageResult) float64, at cell) (spread, bool) {
	var values []float64
	for _, t := range r.results[at] {
		values = append(values, f(t))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// ratioTo is nodens' value in units of another server's in the same round.
func (r *outageReport) ratioTo(f func(outageResult) float64, name, to string) (spread, bool) {
	a, b := r.results[cell{"nodens", name}], r.results[cell{to, name}]
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, f(a[i])/f(b[i]))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// caseTable is the table of an ordeal; empty if it was not measured.
func (r *outageReport) caseTable(o outageCase) string {
	type column struct {
		head string
		text func(cell) string
	}
	middle := func(head, format string, f func(outageResult) float64) column {
		return column{head, func(at cell) string {
			v, _ := r.resultSpread(f, at)
			return fmt.Sprintf(format, v.median)
		}}
	}
	sum := func(head string, f func(outageResult) float64) column {
		return column{head, func(at cell) string {
			total := 0.0
			for _, t := range r.results[at] {
				total += f(t)
			}
			return fmt.Sprintf("%.0f", total)
		}}
	}
	columns := []column{sum("questions", func(t outageResult) float64 { return float64(t.asked) }), sum("failed", outageResult.failures)}
	if o.earlyLabel != "" {
		columns = append(columns, middle("p50 ms, "+o.earlyLabel, "%.1f", func(t outageResult) float64 { return millis(percentile(t.early, 0.5)) }), middle("p99 ms, "+o.earlyLabel, "%.1f", outageResult.p99Early))
	}
	if o.lateLabel != "" {
		columns = append(columns, middle("p99 ms, "+o.lateLabel, "%.1f", outageResult.p99Late))
	}
	columns = append(columns, column{"most ms", func(at cell) string {
		v, _ := r.resultSpread(outageResult.maxLatency, at)
		return fmt.Sprintf("%.1f", v.most)
	}}, middle("upstream questions", "%.0f", func(t outageResult) float64 { return float64(t.upstream) }))
	if o.name == overTLS {
		columns = append(columns, middle("connections", "%.0f", func(t outageResult) float64 { return float64(t.conns) }), middle("CPU µs per question", "%.1f", outageResult.cpuPerQuery))
	}
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		at := cell{s.name, o.name}
		if len(r.results[at]) == 0 {
			continue
		}
		row := []string{s.name}
		for _, c := range columns {
			row = append(row, c.text(at))
		}
		rows = append(rows, row)
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// Tables are all of them, as text for a terminal.
func (r *outageReport) Tables() (list []string) {
	for _, o := range outageCases {
		if t := r.caseTable(o); t != "" {
			list = append(list, o.name+"\n\n"+t)
		}
	}
	return list
}

//go:embed outage.md.tmpl
var outageText string

// Render returns the report about upstreams that fail as a section of the page.
func (r *outageReport) Render([]plotFile) ([]byte, error) {
	data := struct {
		sectionData
		Corefile, Unbound string
		Ordeals           []tableEntry
	}{sectionData: r.newSectionData(r.Targets()), Corefile: configText("outage"), Unbound: configText("outage-unbound")}
	for _, o := range outageCases {
		if table := r.caseTable(o); table != "" {
			data.Ordeals = append(data.Ordeals, tableEntry{o.name, o.what, table})
		}
	}
	return fillTemplate(outageText, data)
}
