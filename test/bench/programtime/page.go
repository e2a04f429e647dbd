package programtime

import (
	_ "embed"
	"fmt"

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
		Of: []harness.TargetValue{{Find: func() (figures.Spread, bool) {
			return figures.SpreadBy(r.Samples[harness.Cell{Server: row, Workload: w.Name}], nanoseconds)
		}}},
	}}
}

// Tables returns the tables that a terminal shows.
func (r *Report) Tables() []string { return []string{r.table()} }

// table has a row for each workload that was measured, with the other commit's time if there is one.
func (r *Report) table() string {
	header := []string{"workload", "ns per answer", "least–most"}
	if r.Plan.Before != "" {
		header = append(header, "before", "least–most", "relative to before", "least–most")
	}
	list := [][]string{append(header, "queries/s")}
	for _, w := range workloads() {
		now, before := harness.Cell{Server: row, Workload: w.Name}, harness.Cell{Server: harness.BeforeRow, Workload: w.Name}
		if len(r.Samples[now]) == 0 {
			continue
		}
		line := append([]string{w.Name}, spread("%.0f", r.Over(now, nanoseconds))...)
		if ratio, ok := r.Ratio(nanoseconds, now, before); ok {
			line = append(line, spread("%.0f", r.Over(before, nanoseconds))...)
			line = append(line, spread("%.2f", ratio)...)
		}
		rate := r.Over(now, func(s harness.Sample) float64 { return float64(s.Completed) / s.Elapsed.Seconds() })
		list = append(list, append(line, fmt.Sprintf("%.0f", rate.Median)))
	}
	if len(list) == 1 {
		return ""
	}
	return figures.Table(list)
}

// spread returns the cells of a median and its range.
func spread(format string, s figures.Spread) []string {
	return []string{fmt.Sprintf(format, s.Median), fmt.Sprintf(format+"–"+format, s.Least, s.Most)}
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
