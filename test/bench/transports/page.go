package transports

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// Report is the result.
type Report struct {
	*harness.Report
	// Holdings are in the order of the transports. There are none without control groups.
	Holdings []Holding
}

// maxCost limits the CPU time of a query relative to CoreDNS's same transport.
const maxCost = 1

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	t := harness.Target{What: "CPU per query, relative to CoreDNS's same transport", Limit: maxCost}
	for _, w := range workloads() {
		t.Of = append(t.Of, r.CPURatioValue(w.name(), "nodens", harness.CoreDNS, w.name()))
	}
	return []harness.Target{t, {
		What: "CPU per miss that is forwarded over TLS, relative to CoreDNS", Limit: maxForwardCost,
		Of: []harness.TargetValue{r.CPURatioValue(forwardWorkload, "nodens", harness.CoreDNS, forwardWorkload)},
	}}
}

// Tables returns the table of all workloads.
func (r *Report) Tables() []string { return []string{r.table(), r.forwarded(), r.memory()} }

// memory is the table of all holdings.
func (r *Report) memory() string {
	rows := [][]string{{"transport", "connections", "group MiB before", "with all", "at most", "resident MiB before", "with all", "KiB per connection"}}
	mebi := func(bytes uint64) string { return fmt.Sprintf("%.1f", figures.Mebi(bytes)) }
	for _, h := range r.Holdings {
		rows = append(rows, []string{
			h.Transport, fmt.Sprint(h.Connections), mebi(h.Before.Used), mebi(h.After.Used), mebi(h.After.Peak),
			mebi(h.ResidentBefore), mebi(h.ResidentAfter), fmt.Sprintf("%.1f", h.perConnection()/(1<<10)),
		})
	}
	return figures.Table(rows)
}

func (r *Report) table() string {
	var rows []harness.Row
	for _, w := range workloads() {
		for _, s := range r.Servers {
			rows = append(rows, harness.Row{Labels: []string{w.scheme, w.shape.name, s.Name}, At: harness.Cell{Server: s.Name, Workload: w.name()}})
		}
	}
	return r.Samples.Table([]string{"transport", "load", "server"}, rows, r.columns()...)
}

// forwarded is the table of queries that are forwarded over TLS.
func (r *Report) forwarded() string {
	return r.Samples.Table([]string{"server"}, harness.ServerRows(r.Servers, forwardWorkload), r.columns()...)
}

// columns are those of a workload's rows, behind what it is.
func (r *Report) columns() []harness.Column {
	relative := r.Samples.Relative(harness.Sample.CPUPerQuery, harness.NodensBeside(harness.CoreDNS))
	return []harness.Column{
		r.Samples.Median("CPU µs per query", "%.1f", harness.Sample.CPUPerQuery), r.Samples.Range("%.1f", harness.Sample.CPUPerQuery),
		relative.MedianRange("relative to CoreDNS", "%.2f", harness.Plain), r.Samples.Median("queries/s", "%.0f", harness.Sample.PerSecond),
		r.Samples.Median("resident MiB", "%.1f", func(s harness.Sample) float64 { return figures.Mebi(s.RSS) }),
	}
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about transports.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	limit, err := manifestMemory()
	if err != nil {
		return nil, err
	}
	data := struct {
		harness.SectionData
		Table, Forwarded, Memory string
		Names, Window, Limit     int
	}{r.NewSectionData(r.Targets(), plots), r.table(), r.forwarded(), r.memory(), names, forwardWindow, limit >> 20}
	return harness.OnePage("transports.md", sectionText, data)
}
