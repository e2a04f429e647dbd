package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// What clients may see of an agent that is replaced or dies.
const (
	// lateUpgrade is the p99, in milliseconds, of the worst second of an upgrade.
	lateUpgrade = 20
	// hitPoint is by how many points of a hundred cache hits may differ after it.
	hitPoint = 1
	// soonBack is how many milliseconds after its start an agent answers.
	soonBack = 1000
)

// pledges are what nodens has to show.
func pledges() []claim {
	return []claim{
		{what: "questions lost in upgrades", limit: 0, of: suffered(harm.lost, upgraded, upgradedLong)},
		{what: "SERVFAIL in upgrades", limit: 0, of: suffered(harm.servfail, upgraded, upgradedLong)},
		{what: "p99 of the worst second of an upgrade", limit: lateUpgrade, unit: "ms", of: suffered(harm.late, upgraded, upgradedLong)},
		{what: "difference of cache hits after an upgrade, in points of a hundred", limit: hitPoint, of: suffered(harm.points, upgraded, upgradedLong)},
		{what: "questions lost that were asked after the process was gone, by kill -9, for want of memory, by a crash", limit: 0, of: suffered(harm.unserved, killed, starved, crashed)},
		{what: "time from the start after kill -9 to the first local answer", limit: soonBack, unit: "ms", of: suffered(harm.back, killed)},
		{what: "connections of port 53 that are tracked while the agent runs", limit: 0, of: suffered(harm.traced, upgraded, killed, restarted)},
	}
}

// suffered are the values of nodens' rows under the mishaps; the worst round counts, not
// the middle one.
func suffered(f func(harm) float64, names ...string) []value {
	var list []value
	for _, s := range guarded() {
		if s.program != "nodens" {
			continue
		}
		for _, name := range names {
			list = append(list, value{s.name + ", " + name, func(r *report) (spread, bool) {
				v, ok := r.harmed(f, cell{s.name, name})
				v.median = v.most
				return v, ok
			}})
		}
	}
	return list
}

// harmed applies f to a row's harms; false if there is none.
func (r *report) harmed(f func(harm) float64, at cell) (spread, bool) {
	var values []float64
	for _, h := range r.harms[at] {
		values = append(values, f(h))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// harmColumns are the columns of the tables of mishaps. Numbers are medians, with the
// greatest behind them where it is another.
var harmColumns = []struct {
	head, format string
	f            func(harm) float64
}{
	{"questions", "%.0f", func(h harm) float64 { return float64(h.All().Asked) }},
	{"lost", "%.0f", harm.lost},
	{"SERVFAIL", "%.0f", harm.servfail},
	{"by the cluster's DNS", "%.0f", harm.away},
	{"longest without an answer, ms", "%.0f", harm.silence},
	{"worst p99, ms", "%.1f", harm.late},
}

// harmTable is the table of a mishap; empty if it was not measured.
func (r *report) harmTable(m mishap) string {
	rows := [][]string{{"server"}}
	for _, c := range harmColumns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		at := cell{s.name, m.name}
		row := []string{s.name}
		for _, c := range harmColumns {
			v, ok := r.harmed(c.f, at)
			if !ok {
				break
			}
			text := fmt.Sprintf(c.format, v.median)
			if most := fmt.Sprintf(c.format, v.most); most != text && c.head != harmColumns[0].head {
				text += " (" + most + ")"
			}
			row = append(row, text)
		}
		if len(row) == len(rows[0]) {
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// harmTables are all of them, as text for a terminal.
func (r *report) harmTables() (list []string) {
	for _, m := range mishaps {
		if t := r.harmTable(m); t != "" {
			list = append(list, m.name+"\n\n"+t)
		}
	}
	return list
}

// overall is one table of all mishaps: how many questions were lost, as a part of them.
func (r *report) overall() string {
	rows := [][]string{{"questions lost"}}
	for _, s := range r.servers {
		rows[0] = append(rows[0], s.name)
	}
	for _, m := range mishaps {
		row := []string{m.name}
		for _, s := range r.servers {
			text := "–"
			if v, ok := r.harmed(harm.lost, cell{s.name, m.name}); ok {
				text = fmt.Sprintf("%.0f", v.median)
			}
			row = append(row, text)
		}
		if strings.Join(row[1:], "") != strings.Repeat("–", len(r.servers)) {
			rows = append(rows, row)
		}
	}
	return table(rows)
}

//go:embed fault.md.tmpl
var faultText string

// faultSection is the report about an agent that goes away as a section of the page.
func (r *report) faultSection() ([]byte, error) {
	data := struct {
		frame
		Overall string
		Mishaps []entry
	}{frame: r.frame(faultPart, pledges()), Overall: r.overall(), Mishaps: r.harmEntries(mishaps)}
	return render(faultText, data)
}

// harmEntries are the tables of those of list that were tried.
func (r *report) harmEntries(list []mishap) (tried []entry) {
	for _, m := range list {
		if table := r.harmTable(m); table != "" {
			tried = append(tried, entry{m.name, m.what, table})
		}
	}
	return tried
}
