package startup

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// Report is the result.
type Report struct {
	*harness.Report
	Starts map[harness.Cell][]Start
	Idles  map[harness.Cell][]Idle
}

func newReport(r *harness.Report) *Report {
	return &Report{Report: r, Starts: map[harness.Cell][]Start{}, Idles: map[harness.Cell][]Idle{}}
}

func (s Start) answerMillis() float64 { return figures.Millis(s.Answer) }
func (s Start) cpuMillis() float64    { return figures.Millis(s.CPU) }
func (s Start) stopMillis() float64   { return figures.Millis(s.Stop) }

func (i Idle) wakeupsPerSecond() float64 { return float64(i.Wakeups) / i.Elapsed.Seconds() }
func (i Idle) cpuPerSecond() float64     { return float64(i.CPU.Nanoseconds()) / 1e3 / i.Elapsed.Seconds() }
func (i Idle) resident() float64         { return figures.Mebi(i.RSS) }

const (
	// maxWakeups is the limit of an idle agent's wake-ups per second.
	maxWakeups = 10
	// maxWithView limits the time to the first answer with a saved view relative to a start without one.
	maxWithView = 1
	// maxToCoreDNS limits the time to the first answer relative to CoreDNS's.
	maxToCoreDNS = 1
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	wakeups := harness.Target{What: "wake-ups of an idle agent", Limit: maxWakeups, Below: true, Unit: "per second"}
	saved := harness.Target{What: "time to the first answer with a saved view, relative to a start without one", Limit: maxWithView}
	relative := harness.Target{What: "time to the first answer, relative to CoreDNS", Limit: maxToCoreDNS, Below: true}
	for _, name := range []string{forwardOnly, scopeNode} {
		at := harness.Cell{Server: nodens, Workload: name}
		wakeups.Of = append(wakeups.Of, harness.TargetValue{Name: name, Find: func() (figures.Spread, bool) {
			return figures.SpreadBy(r.Idles[at], Idle.wakeupsPerSecond)
		}})
		relative.Of = append(relative.Of, r.ratio(at, harness.Cell{Server: harness.CoreDNS, Workload: name}))
	}
	for _, name := range [][2]string{{scopeNodeView, scopeNode}, {scopeAllView, scopeAll}} {
		saved.Of = append(saved.Of, r.ratio(harness.Cell{Server: nodens, Workload: name[0]}, harness.Cell{Server: nodens, Workload: name[1]}))
	}
	return []harness.Target{wakeups, saved, relative}
}

// ratio is the time to the first answer relative to another row's, within each round.
func (r *Report) ratio(of, to harness.Cell) harness.TargetValue {
	return harness.TargetValue{Name: of.Workload, Find: func() (figures.Spread, bool) {
		return figures.SpreadOfRatios(r.Starts[of], r.Starts[to], Start.answerMillis)
	}}
}

// Tables returns the tables of starts and of idle processes.
func (r *Report) Tables() []string { return []string{r.startTable(), r.idleTable()} }

// columns returns the cells of a value: its median, and its least and most.
func columns[T any](format string, list []T, f func(T) float64) []string {
	v, ok := figures.SpreadBy(list, f)
	if !ok {
		return []string{"", ""}
	}
	return []string{fmt.Sprintf(format, v.Median), fmt.Sprintf(format+"–"+format, v.Least, v.Most)}
}

// startTable is the table of starts and stops; empty without any.
func (r *Report) startTable() string {
	rows := [][]string{{"configuration", "server", "first answer ms", "least–most", "relative to CoreDNS", "CPU ms", "least–most", "stop ms", "least–most"}}
	for _, c := range settings {
		for _, s := range r.Servers {
			at := harness.Cell{Server: s.Name, Workload: c.name}
			list := r.Starts[at]
			if len(list) == 0 {
				continue
			}
			row := append([]string{c.name, s.Name}, columns("%.1f", list, Start.answerMillis)...)
			relative := ""
			if v, ok := r.ratio(at, harness.Cell{Server: harness.CoreDNS, Workload: c.name}).Find(); ok && s.Program == "nodens" {
				relative = fmt.Sprintf("%.2f (%.2f–%.2f)", v.Median, v.Least, v.Most)
			}
			row = append(row, relative)
			row = append(row, columns("%.1f", list, Start.cpuMillis)...)
			rows = append(rows, append(row, columns("%.1f", list, Start.stopMillis)...))
		}
	}
	return figures.Table(rows)
}

// idleTable is the table of idle processes; empty without any.
func (r *Report) idleTable() string {
	rows := [][]string{{"configuration", "server", "wake-ups per second", "least–most", "CPU µs per second", "least–most", "resident MiB"}}
	for _, c := range settings {
		for _, s := range r.Servers {
			list := r.Idles[harness.Cell{Server: s.Name, Workload: c.name}]
			if len(list) == 0 {
				continue
			}
			row := append([]string{c.name, s.Name}, columns("%.1f", list, Idle.wakeupsPerSecond)...)
			row = append(row, columns("%.0f", list, Idle.cpuPerSecond)...)
			rows = append(rows, append(row, columns("%.1f", list, Idle.resident)[0]))
		}
	}
	return figures.Table(rows)
}

// others is the greatest number of replies before the first answer that were something else.
func (r *Report) others() (n int) {
	for _, list := range r.Starts {
		for _, s := range list {
			n = max(n, s.Others)
		}
	}
	return n
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Starts, Idle       string
		Others             int
		Settle, IdleLength time.Duration
	}{r.NewSectionData(r.Targets(), plots), r.startTable(), r.idleTable(), r.others(), idleSettle, idleLength(r.Plan.Length)}
	return harness.OnePage("start.md", sectionText, data)
}
