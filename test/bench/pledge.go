package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// What clients may see of an agent that is replaced or dies.
const (
	// maxUpgradeP99 is the p99, in milliseconds, of the worst second of an upgrade.
	maxUpgradeP99 = 20
	// maxHitPoints is by how many points of a hundred cache hits may differ after it.
	maxHitPoints = 1
	// maxTimeToAnswer is how many milliseconds after its start an agent answers.
	maxTimeToAnswer = 1000
)

// Targets are what nodens has to show.
func (r *faultReport) Targets() []target {
	return []target{
		{what: "questions lost in upgrades", limit: 0, of: r.worstOf(faultResult.lost, upgraded, upgradedLong)},
		{what: "SERVFAIL in upgrades", limit: 0, of: r.worstOf(faultResult.servfails, upgraded, upgradedLong)},
		{what: "p99 of the worst second of an upgrade", limit: maxUpgradeP99, unit: "ms", of: r.worstOf(faultResult.worstP99, upgraded, upgradedLong)},
		{what: "difference of cache hits after an upgrade, in points of a hundred", limit: maxHitPoints, of: r.worstOf(faultResult.hitPoints, upgraded, upgradedLong)},
		{what: "questions lost that were asked after the process was gone, by kill -9, for want of memory, by a crash", limit: 0, of: r.worstOf(faultResult.lostAfterExit, killed, outOfMemory, crashed)},
		{what: "time from the start after kill -9 to the first local answer", limit: maxTimeToAnswer, unit: "ms", of: r.worstOf(faultResult.timeToAnswer, killed)},
		{what: "connections of port 53 that are tracked while the agent runs", limit: 0, of: r.worstOf(faultResult.trackedConns, upgraded, killed, restarted)},
	}
}

// worstOf are the values of nodens' rows under the mishaps; the worst round counts, not
// the middle one.
func (r *faultReport) worstOf(f func(faultResult) float64, names ...string) []targetValue {
	var list []targetValue
	for _, s := range faultServers() {
		if s.program != "nodens" {
			continue
		}
		for _, name := range names {
			list = append(list, targetValue{s.name + ", " + name, func() (spread, bool) {
				v, ok := r.resultSpread(f, cell{s.name, name})
				v.median = v.most
				return v, ok
			}})
		}
	}
	return list
}

// resultSpread applies f to a row's harms; false if there is none.
func (r *faultReport) resultSpread(f func(faultResult) float64, at cell) (spread, bool) {
	var values []float64
	for _, h := range r.results[at] {
		values = append(values, f(h))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// faultColumns are the columns of the tables of mishaps. Numbers are medians, with the
// greatest behind them where it is another.
var faultColumns = []struct {
	head, format string
	f            func(faultResult) float64
}{
	{"questions", "%.0f", func(h faultResult) float64 { return float64(h.All().Asked) }},
	{"lost", "%.0f", faultResult.lost},
	{"SERVFAIL", "%.0f", faultResult.servfails},
	{"by the cluster's DNS", "%.0f", faultResult.clusterAnswers},
	{"longest without an answer, ms", "%.0f", faultResult.silence},
	{"worst p99, ms", "%.1f", faultResult.worstP99},
}

// faultTable is the table of a mishap; empty if it was not measured.
func (r *faultReport) faultTable(m fault) string {
	rows := [][]string{{"server"}}
	for _, c := range faultColumns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		at := cell{s.name, m.name}
		row := []string{s.name}
		for _, c := range faultColumns {
			v, ok := r.resultSpread(c.f, at)
			if !ok {
				break
			}
			text := fmt.Sprintf(c.format, v.median)
			if most := fmt.Sprintf(c.format, v.most); most != text && c.head != faultColumns[0].head {
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

// Tables are all of them, as text for a terminal.
func (r *faultReport) Tables() (list []string) {
	for _, m := range faults {
		if t := r.faultTable(m); t != "" {
			list = append(list, m.name+"\n\n"+t)
		}
	}
	return list
}

// lossTable is one table of all mishaps: how many questions were lost, as a part of them.
func (r *faultReport) lossTable() string {
	rows := [][]string{{"questions lost"}}
	for _, s := range r.servers {
		rows[0] = append(rows[0], s.name)
	}
	for _, m := range faults {
		row := []string{m.name}
		for _, s := range r.servers {
			text := "–"
			if v, ok := r.resultSpread(faultResult.lost, cell{s.name, m.name}); ok {
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

// Render returns the report about an agent that goes away as a section of the page.
func (r *faultReport) Render([]plotFile) ([]byte, error) {
	data := struct {
		sectionData
		Overall string
		Mishaps []tableEntry
	}{sectionData: r.newSectionData(r.Targets()), Overall: r.lossTable(), Mishaps: r.faultEntries(faults)}
	return fillTemplate(faultText, data)
}

// faultEntries are the tables of those of list that were tried.
func (r *faultReport) faultEntries(list []fault) (tried []tableEntry) {
	for _, m := range list {
		if table := r.faultTable(m); table != "" {
			tried = append(tried, tableEntry{m.name, m.what, table})
		}
	}
	return tried
}
