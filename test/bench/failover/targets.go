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
			list = append(list, harness.TargetValue{Name: s.Name + ", " + name, Find: func() (figures.Spread, bool) {
				v, ok := r.ResultSpread(f, harness.Cell{Server: s.Name, Workload: name})
				v.Median = v.Most
				return v, ok
			}})
		}
	}
	return list
}

// ResultSpread applies f to the results of a row; false if there is none.
func (r *Report) ResultSpread(f func(Result) float64, at harness.Cell) (figures.Spread, bool) {
	return figures.SpreadBy(r.Results[at], f)
}

// faultColumns are the columns of the tables of faults. Numbers are medians, with the
// greatest behind them where it is another.
var faultColumns = []struct {
	head, format string
	f            func(Result) float64
}{
	{"queries", "%.0f", func(h Result) float64 { return float64(h.All().Asked) }},
	{"lost", "%.0f", Result.Lost},
	{"SERVFAIL", "%.0f", Result.servfails},
	{"by the cluster DNS", "%.0f", Result.clusterAnswers},
	{"longest without an answer, ms", "%.0f", Result.MaxSilence},
	{"worst p99, ms", "%.1f", Result.worstP99},
}

// FaultTable is the table of a fault; empty if it was not measured.
func (r *Report) FaultTable(m Fault) string {
	rows := [][]string{{"server"}}
	for _, c := range faultColumns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.Servers {
		at := harness.Cell{Server: s.Name, Workload: m.Name}
		row := []string{s.Name}
		for _, c := range faultColumns {
			v, ok := r.ResultSpread(c.f, at)
			if !ok {
				break
			}
			text := fmt.Sprintf(c.format, v.Median)
			if most := fmt.Sprintf(c.format, v.Most); most != text && c.head != faultColumns[0].head {
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
	return figures.Table(rows)
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
			if v, ok := r.ResultSpread(Result.Lost, harness.Cell{Server: s.Name, Workload: m.Name}); ok {
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
