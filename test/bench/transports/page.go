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
		t.Of = append(t.Of, harness.TargetValue{Name: w.name(), Find: func() (figures.Spread, bool) { return r.cost(w) }})
	}
	forwarded := harness.Target{What: "CPU per miss that is forwarded over TLS, relative to CoreDNS", Limit: maxForwardCost}
	forwarded.Of = append(forwarded.Of, harness.TargetValue{Name: forwardWorkload, Find: func() (figures.Spread, bool) { return r.costOf(forwardWorkload) }})
	return []harness.Target{t, forwarded}
}

// cost is the CPU time of a query relative to CoreDNS's, within each round.
func (r *Report) cost(w workload) (figures.Spread, bool) { return r.costOf(w.name()) }

func (r *Report) costOf(workload string) (figures.Spread, bool) {
	return r.Ratio(harness.Sample.CPUPerQuery, harness.Cell{Server: "nodens", Workload: workload}, harness.Cell{Server: harness.CoreDNS, Workload: workload})
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
	return tableOf(rows)
}

// columns are those of a workload's rows, behind what it is.
var columns = []string{"server", "CPU µs per query", "least–most", "relative to CoreDNS", "queries/s", "resident MiB"}

func (r *Report) table() string {
	rows := [][]string{append([]string{"transport", "load"}, columns...)}
	for _, w := range workloads() {
		for _, row := range r.rows(w.name()) {
			rows = append(rows, append([]string{w.scheme, w.shape.name}, row...))
		}
	}
	return tableOf(rows)
}

// forwarded is the table of queries that are forwarded over TLS.
func (r *Report) forwarded() string {
	return tableOf(append([][]string{columns}, r.rows(forwardWorkload)...))
}

// tableOf returns a table of rows, the first of which is the head; "" without others.
func tableOf(rows [][]string) string {
	if len(rows) == 1 {
		return ""
	}
	return figures.Table(rows)
}

// rows are those of a workload, one for each server that was measured.
func (r *Report) rows(workload string) (rows [][]string) {
	for _, s := range r.Servers {
		at := harness.Cell{Server: s.Name, Workload: workload}
		if len(r.Samples[at]) == 0 {
			continue
		}
		cpu, relative := r.Over(at, harness.Sample.CPUPerQuery), ""
		if ratio, ok := r.costOf(workload); ok && s.Name == "nodens" {
			relative = fmt.Sprintf("%.2f (%.2f–%.2f)", ratio.Median, ratio.Least, ratio.Most)
		}
		rows = append(rows, []string{
			s.Name, fmt.Sprintf("%.1f", cpu.Median), fmt.Sprintf("%.1f–%.1f", cpu.Least, cpu.Most), relative,
			fmt.Sprintf("%.0f", r.Over(at, perSecond).Median),
			fmt.Sprintf("%.1f", r.Over(at, func(s harness.Sample) float64 { return figures.Mebi(s.RSS) }).Median),
		})
	}
	return rows
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
