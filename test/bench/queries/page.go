package queries

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed pages
var templates embed.FS

// table is a table with its heading.
type table = harness.TableEntry

// section is a kind of query with the tables of its load shapes.
type section struct {
	Name, What string
	Tables     []table
}

// pageData is what the templates in pages show.
type pageData struct {
	harness.SectionData
	Rates                         []section
	Saturated, TCP, Misses        []table
	Idle, Memory                  string
	Deployed, Bare                string
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
		{"hits.md", len(data.Saturated) > 0},
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
	shown := strings.NewReplacer("@CLUSTER@", harness.KubernetesDirective, "@CACHE@", "")
	data.Deployed, data.Bare = shown.Replace(harness.ConfigText("deployed")), shown.Replace(harness.ConfigText("bare"))
	for _, w := range r.Workloads {
		t := table{Name: w.LoadShape.Name, What: w.LoadShape.What, Table: r.WorkloadTable(w)}
		switch {
		case w.Tool == harness.SaturateTCP:
			data.TCP = append(data.TCP, t)
		case w.Name == w.LoadShape.Name:
			data.Misses = append(data.Misses, t)
		case w.Tool == harness.SaturateUDP:
			data.Saturated = append(data.Saturated, table{Name: w.QuerySet.Name, What: w.QuerySet.What, Table: t.Table})
		default:
			data.Rates = addTable(data.Rates, w.QuerySet, t)
		}
	}
	return data
}

// addTable adds a table to the last section, or to a new one if that is about other queries.
func addTable(list []section, q harness.QuerySet, t table) []section {
	if last := len(list) - 1; last >= 0 && list[last].Name == q.Name {
		list[last].Tables = append(list[last].Tables, t)
		return list
	}
	return append(list, section{q.Name, q.What, []table{t}})
}
