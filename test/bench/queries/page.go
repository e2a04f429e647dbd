package queries

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed pages
var templates embed.FS

// table is a table with its heading.
type table = harness.TableEntry

// rate is a load shape with its tables, which have a column for each kind of query.
type rate struct{ Name, What, CPU, P99 string }

// pageData is what the templates in pages show.
type pageData struct {
	harness.SectionData
	Kinds, TCP, Misses            []table
	Saturated                     string
	Rates                         []rate
	Idle, Memory                  string
	Clients, Outstanding, Queried int
	Names, Entries                int
}

// Render returns the pages of which something was measured, and those that describe the setup
// and the targets; plots are the files of the charts.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	t, err := template.New("pages").ParseFS(templates, "pages/*.tmpl")
	if err != nil {
		return nil, err
	}
	data := r.pageData(plots)
	pages := []struct {
		file     string
		measured bool
	}{
		{"setup-and-method.md", true},
		{"query-targets.md", true},
		{"hits.md", data.Saturated != ""},
		{"low-rates.md", len(data.Rates) > 0},
		{"tcp.md", len(data.TCP) > 0},
		{"misses.md", len(data.Misses) > 0},
		{"memory.md", data.Idle != "" || data.Memory != ""},
	}
	var list []harness.Page
	for _, p := range pages {
		if !p.measured {
			continue
		}
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, p.file+".tmpl", data); err != nil {
			return nil, fmt.Errorf("writing %s: %w", p.file, err)
		}
		list = append(list, harness.NewPage(p.file, b.Bytes()))
	}
	return list, nil
}

// pageData returns the data of the templates.
func (r *Report) pageData(plots []figures.PlotFile) pageData {
	data := pageData{
		SectionData: r.NewSectionData(r.Targets(), plots), Idle: r.idleTable(), Memory: r.memoryTable(),
		Clients: harness.Clients, Outstanding: harness.Outstanding, Queried: harness.NameCount,
		Names: harness.NameCount, Entries: r.Plan.Names,
	}
	data.Saturated = r.comparison("%.2f", harness.Sample.CPUPerQuery, func(w harness.Workload) bool { return w.Tool == harness.SaturateUDP })
	for _, w := range r.Workloads {
		switch {
		case w.Tool == harness.SaturateTCP:
			data.TCP = append(data.TCP, table{Name: w.LoadShape.Name, What: w.LoadShape.What, Table: r.WorkloadTable(w)})
		case w.Name == w.LoadShape.Name:
			data.Misses = append(data.Misses, table{Name: w.LoadShape.Name, What: w.LoadShape.What, Table: r.WorkloadTable(w)})
		default:
			data.addKind(r, w)
		}
	}
	return data
}

// addKind adds the kind of a workload's queries, and the tables of its rate, unless they are there.
func (d *pageData) addKind(r *Report, w harness.Workload) {
	if kind := (table{Name: w.QuerySet.Name, What: w.QuerySet.What}); !slices.Contains(d.Kinds, kind) {
		d.Kinds = append(d.Kinds, kind)
	}
	of := rate{Name: w.LoadShape.Name, What: w.LoadShape.What}
	if w.Tool == harness.SaturateUDP || slices.ContainsFunc(d.Rates, func(o rate) bool { return o.Name == of.Name }) {
		return
	}
	same := func(o harness.Workload) bool { return o.LoadShape.Name == of.Name }
	of.CPU, of.P99 = r.comparison("%.1f", harness.Sample.CPUPerQuery, same), r.comparison("%.0f", harness.Sample.P99, same)
	d.Rates = append(d.Rates, of)
}

// comparison is a table of the medians of a number: a row for each server, and a column for each kind of
// query among the workloads that want accepts.
func (r *Report) comparison(format string, f func(harness.Sample) float64, want func(harness.Workload) bool) string {
	rows := [][]string{{"server"}}
	for _, s := range r.Servers {
		rows = append(rows, []string{s.Name})
	}
	for _, w := range r.Workloads {
		if !want(w) {
			continue
		}
		rows[0] = append(rows[0], w.QuerySet.Name)
		for i, s := range r.Servers {
			rows[i+1] = append(rows[i+1], r.Samples.Median("", format, f).Text(harness.Cell{Server: s.Name, Workload: w.Name}))
		}
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return strings.Join(row[1:], "") == "" })
	return figures.Table(rows)
}
