package startup

import (
	_ "embed"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// Report is the result.
type Report struct {
	*harness.Report
	Starts harness.Results[Start]
	Idles  harness.Results[Idle]
}

func newReport(r *harness.Report) *Report {
	return &Report{Report: r, Starts: harness.Results[Start]{}, Idles: harness.Results[Idle]{}}
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
		wakeups.Of = append(wakeups.Of, r.Idles.Value(name, at, Idle.wakeupsPerSecond))
		relative.Of = append(relative.Of, r.ratio(at, harness.Cell{Server: harness.CoreDNS, Workload: name}))
	}
	for _, name := range [][2]string{{scopeNodeView, scopeNode}, {scopeAllView, scopeAll}} {
		saved.Of = append(saved.Of, r.ratio(harness.Cell{Server: nodens, Workload: name[0]}, harness.Cell{Server: nodens, Workload: name[1]}))
	}
	return []harness.Target{wakeups, saved, relative}
}

// ratio is the time to the first answer relative to another row's, within each round.
func (r *Report) ratio(of, to harness.Cell) harness.TargetValue {
	return r.Starts.RatioValue(of.Workload, of, to, Start.answerMillis)
}

// Tables returns the tables of starts and of idle processes.
func (r *Report) Tables() []string { return []string{r.startTable(), r.idleTable()} }

// startTable is the table of starts and stops; empty without any.
func (r *Report) startTable() string {
	ratios := r.Starts.Relative(Start.answerMillis, harness.NodensBeside(harness.CoreDNS))
	return r.Starts.Table([]string{"configuration", "server"}, r.settingRows(),
		r.Starts.Median("first answer ms", "%.1f", Start.answerMillis), r.Starts.Range("%.1f", Start.answerMillis),
		ratios.MedianRange("relative to CoreDNS", "%.2f", harness.Plain),
		r.Starts.Median("CPU ms", "%.1f", Start.cpuMillis), r.Starts.Range("%.1f", Start.cpuMillis),
		r.Starts.Median("stop ms", "%.1f", Start.stopMillis), r.Starts.Range("%.1f", Start.stopMillis))
}

// idleTable is the table of idle processes; empty without any.
func (r *Report) idleTable() string {
	return r.Idles.Table([]string{"configuration", "server"}, r.settingRows(),
		r.Idles.Median("wake-ups per second", "%.1f", Idle.wakeupsPerSecond), r.Idles.Range("%.1f", Idle.wakeupsPerSecond),
		r.Idles.Median("CPU µs per second", "%.0f", Idle.cpuPerSecond), r.Idles.Range("%.0f", Idle.cpuPerSecond),
		r.Idles.Median("resident MiB", "%.1f", Idle.resident))
}

// settingRows has a row for each server with each setting.
func (r *Report) settingRows() (rows []harness.Row) {
	for _, c := range settings {
		for _, s := range r.Servers {
			rows = append(rows, harness.Row{Labels: []string{c.name, s.Name}, At: harness.Cell{Server: s.Name, Workload: c.name}})
		}
	}
	return rows
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
