package programtime

import (
	_ "embed"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// maxTime limits the time of the programs for a query at saturation, in nanoseconds.
const maxTime = 500

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	w := workloads()[0]
	return []harness.Target{{
		What: "time of the programs per answer, " + w.LoadShape.Name, Limit: maxTime, Unit: "ns",
		Of: []harness.TargetValue{r.Samples.Value("", harness.Cell{Server: row, Workload: w.Name}, nanoseconds)},
	}}
}

// Tables returns the tables that a terminal shows.
func (r *Report) Tables() []string { return []string{r.table()} }

// table has a row for each workload that was measured, with the other commit's time if there is one.
func (r *Report) table() string {
	ns, all := r.Samples.Median("ns per answer", "%.0f", nanoseconds), r.Samples.Range("%.0f", nanoseconds)
	columns := []harness.Column{ns, all}
	if r.Plan.Before != "" {
		before := harness.Beside(harness.BeforeRow)
		ratios := r.Samples.Relative(nanoseconds, before)
		columns = append(columns, ns.Headed("before").Of(before), all.Of(before), ratios.Median("relative to before", "%.2f", harness.Plain), ratios.Range("%.2f", harness.Plain))
	}
	return r.Samples.Table([]string{"workload"}, harness.WorkloadRows(row, harness.Names(workloads())...), append(columns, r.Samples.Median("queries/s", "%.0f", harness.Sample.PerSecond))...)
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about the time of the programs.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Times, Before string
	}{r.NewSectionData(r.Targets(), plots), r.table(), r.Plan.Before}
	return harness.OnePage("program-time.md", sectionText, data)
}
