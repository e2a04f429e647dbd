package failover

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
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
func (r *Report) Targets() []harness.Target {
	return []harness.Target{
		{What: "queries lost in upgrades", Limit: 0, Of: r.worstOf(Result.Lost, upgraded, upgradedLong)},
		{What: "SERVFAIL in upgrades", Limit: 0, Of: r.worstOf(Result.servfails, upgraded, upgradedLong)},
		{What: "p99 of the worst second of an upgrade", Limit: maxUpgradeP99, Unit: "ms", Of: r.worstOf(Result.worstP99, upgraded, upgradedLong)},
		{What: "change of the cache hit ratio by an upgrade, percentage points", Limit: maxHitPoints, Of: r.worstOf(Result.hitPoints, upgraded, upgradedLong)},
		{What: "queries lost that were sent after the process had ended: kill -9, out of memory, crash", Limit: 0, Of: r.worstOf(Result.LostAfterExit, Killed, outOfMemory, crashed)},
		{What: "time from the start after kill -9 to the first local answer", Limit: maxTimeToAnswer, Unit: "ms", Of: r.worstOf(Result.timeToAnswer, Killed)},
		{What: "tracked connections of port 53 while the agent runs", Limit: 0, Of: r.worstOf(Result.trackedConns, upgraded, Killed, restarted)},
	}
}

// worstOf are the values of nodens' rows under the faults; the worst round counts, not
// the middle one.
func (r *Report) worstOf(f func(Result) float64, names ...string) []harness.TargetValue {
	var list []harness.TargetValue
	for _, s := range servers() {
		if s.Program != "nodens" {
			continue
		}
		for _, name := range names {
			list = append(list, r.Results.WorstValue(s.Name+", "+name, harness.Cell{Server: s.Name, Workload: name}, f))
		}
	}
	return list
}

// FaultTable is the table of a fault; empty if it was not measured. Numbers are medians, with the greatest behind them where it
// is another.
func (r *Report) FaultTable(m Fault) string {
	column := func(head, format string, f func(Result) float64) harness.Column {
		median, most := r.Results.Median(head, format, f), r.Results.Most(head, format, f)
		return harness.Column{Head: head, Text: func(at harness.Cell) string {
			text := median.Text(at)
			if most := most.Text(at); most != text {
				text += " (" + most + ")"
			}
			return text
		}}
	}
	return r.Results.Table([]string{"server"}, harness.ServerRows(r.Servers, m.Name),
		r.Results.Median("queries", "%.0f", func(h Result) float64 { return float64(h.All().Asked) }),
		column("lost", "%.0f", Result.Lost), column("SERVFAIL", "%.0f", Result.servfails), column("by the cluster DNS", "%.0f", Result.clusterAnswers),
		column("longest without an answer, ms", "%.0f", Result.MaxSilence), column("worst p99, ms", "%.1f", Result.worstP99))
}

// Tables are all of them, as text for a terminal.
func (r *Report) Tables() (list []string) {
	for _, m := range Faults {
		if t := r.FaultTable(m); t != "" {
			list = append(list, m.Name+"\n\n"+t)
		}
	}
	return list
}

// lossTable is one table of all faults: how many questions were lost, as a part of them.
func (r *Report) lossTable() string {
	rows := [][]string{{"queries lost"}}
	for _, s := range r.Servers {
		rows[0] = append(rows[0], s.Name)
	}
	for _, m := range Faults {
		row := []string{m.Name}
		for _, s := range r.Servers {
			text := "–"
			if v, ok := r.Results.Spread(harness.Cell{Server: s.Name, Workload: m.Name}, Result.Lost); ok {
				text = fmt.Sprintf("%.0f", v.Median)
			}
			row = append(row, text)
		}
		if strings.Join(row[1:], "") != strings.Repeat("–", len(r.Servers)) {
			rows = append(rows, row)
		}
	}
	return figures.Table(rows)
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about agents that go away.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Overall string
		Faults  []harness.TableEntry
	}{SectionData: r.NewSectionData(r.Targets(), plots), Overall: r.lossTable(), Faults: r.FaultEntries(Faults)}
	return harness.OnePage("agents-that-go-away.md", sectionText, data)
}

// FaultEntries are the tables of those of list that were tried.
func (r *Report) FaultEntries(list []Fault) (tried []harness.TableEntry) {
	for _, m := range list {
		if table := r.FaultTable(m); table != "" {
			tried = append(tried, harness.TableEntry{Name: m.Name, What: m.what, Table: table})
		}
	}
	return tried
}
