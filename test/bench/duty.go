package main

import (
	_ "embed"
	"fmt"
)

// What may be seen of upstreams that fail.
const (
	// soonMissed and laterMissed are milliseconds for names that are not in the cache, in
	// the first seconds of an outage and after.
	soonMissed, laterMissed = 50, 10
	// soonStale and laterStale are milliseconds for names that have expired, asked for
	// the first time in an outage and after.
	soonStale, laterStale = 2000, 5
	// mostConns is how many connections over TLS may be open.
	mostConns = 4
)

// duties are what nodens has to show when upstreams fail.
func duties() []claim {
	return []claim{
		{what: "questions that failed, one upstream dead or frozen", limit: 0, of: endured(trial.wrong, oneDead, oneFrozen)},
		{what: "p99 of misses in the first five seconds", limit: soonMissed, below: true, unit: "ms", of: endured(trial.soon, oneDead, oneFrozen)},
		{what: "p99 of misses after them", limit: laterMissed, below: true, unit: "ms", of: endured(trial.after, oneDead, oneFrozen)},
		{what: "questions that failed, all upstreams silent", limit: 0, of: endured(trial.wrong, allSilent)},
		{what: "p99 of the first answer of a name that has expired", limit: soonStale, below: true, unit: "ms", of: endured(trial.soon, allSilent)},
		{what: "p99 of those after it", limit: laterStale, below: true, unit: "ms", of: endured(trial.after, allSilent)},
		{what: "upstream questions for a thousand misses of one name", limit: 1, of: endured(func(t trial) float64 { return float64(t.upstream) }, atOnce)},
		{what: "questions that failed, of those thousand", limit: 0, of: endured(trial.wrong, atOnce)},
		{what: "CPU per miss over TLS, CoreDNS's = 1", limit: 1, below: true, of: []value{{"", func(r *report) (spread, bool) {
			return r.beside(trial.price, overTLS, peerRow)
		}}}},
		{what: "connections over TLS", limit: mostConns, of: endured(func(t trial) float64 { return float64(t.conns) }, overTLS)},
		{what: "questions that failed over TLS", limit: 0, of: endured(trial.wrong, overTLS)},
		{what: "questions lost while the configuration changes", limit: 0, of: endured(trial.wrong, reloading)},
	}
}

// endured are nodens' values in the ordeals.
func endured(f func(trial) float64, names ...string) []value {
	var list []value
	for _, name := range names {
		list = append(list, value{name, func(r *report) (spread, bool) { return r.tried(f, cell{"nodens", name}) }})
	}
	return list
}

// tried applies f to the trials of a row; false if there is none.
func (r *report) tried(f func(trial) float64, at cell) (spread, bool) {
	var values []float64
	for _, t := range r.trials[at] {
		values = append(values, f(t))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// beside is nodens' value in units of another server's in the same round.
func (r *report) beside(f func(trial) float64, name, to string) (spread, bool) {
	a, b := r.trials[cell{"nodens", name}], r.trials[cell{to, name}]
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, f(a[i])/f(b[i]))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// outageTable is the table of an ordeal; empty if it was not measured.
func (r *report) outageTable(o ordeal) string {
	type column struct {
		head string
		text func(cell) string
	}
	middle := func(head, format string, f func(trial) float64) column {
		return column{head, func(at cell) string {
			v, _ := r.tried(f, at)
			return fmt.Sprintf(format, v.median)
		}}
	}
	sum := func(head string, f func(trial) float64) column {
		return column{head, func(at cell) string {
			total := 0.0
			for _, t := range r.trials[at] {
				total += f(t)
			}
			return fmt.Sprintf("%.0f", total)
		}}
	}
	columns := []column{sum("questions", func(t trial) float64 { return float64(t.asked) }), sum("failed", trial.wrong)}
	if o.soon != "" {
		columns = append(columns, middle("p50 ms, "+o.soon, "%.1f", func(t trial) float64 { return millis(percentile(t.early, 0.5)) }), middle("p99 ms, "+o.soon, "%.1f", trial.soon))
	}
	if o.after != "" {
		columns = append(columns, middle("p99 ms, "+o.after, "%.1f", trial.after))
	}
	columns = append(columns, column{"most ms", func(at cell) string {
		v, _ := r.tried(trial.worst, at)
		return fmt.Sprintf("%.1f", v.most)
	}}, middle("upstream questions", "%.0f", func(t trial) float64 { return float64(t.upstream) }))
	if o.name == overTLS {
		columns = append(columns, middle("connections", "%.0f", func(t trial) float64 { return float64(t.conns) }), middle("CPU µs per question", "%.1f", trial.price))
	}
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		at := cell{s.name, o.name}
		if len(r.trials[at]) == 0 {
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

// outageTables are all of them, as text for a terminal.
func (r *report) outageTables() (list []string) {
	for _, o := range ordeals {
		if t := r.outageTable(o); t != "" {
			list = append(list, o.name+"\n\n"+t)
		}
	}
	return list
}

//go:embed outage.md.tmpl
var outageText string

// outageSection is the report about upstreams that fail as a section of the page.
func (r *report) outageSection() ([]byte, error) {
	data := struct {
		frame
		Corefile, Unbound string
		Ordeals           []entry
	}{frame: r.frame(outagePart, duties()), Corefile: conf("outage"), Unbound: conf("outage-unbound")}
	for _, o := range ordeals {
		if table := r.outageTable(o); table != "" {
			data.Ordeals = append(data.Ordeals, entry{o.name, o.what, table})
		}
	}
	return render(outageText, data)
}
