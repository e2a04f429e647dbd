package queries

import (
	"bytes"
	_ "embed"
	"strings"
	"text/template"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed page.md.tmpl
var pageText string

// Render returns the page as Markdown without the other sections; plots are the files of the
// charts.
func (r *Report) Render(plots []figures.PlotFile) ([]byte, error) {
	t, err := template.New("report").Parse(pageText)
	if err != nil {
		return nil, err
	}
	type table struct{ Name, What, Table string }
	type section struct {
		Name, What string
		Tables     []table
	}
	type line struct{ Name, Value string }
	data := struct {
		Date, Commit, Command string
		Facts                 []line
		Notes                 []string
		Sections              []section
		Others                []table
		Results, Idle, Memory string
		Plots                 []figures.PlotFile
		Deployed, Bare        string
		Clients, Outstanding  int
		Names, Entries        int
	}{
		Date: r.Date.UTC().Format(time.DateOnly), Commit: r.Commit, Command: r.Plan.Command(),
		Notes: r.Notes, Results: harness.TargetTable(r.Targets(), true), Idle: r.idleTable(), Memory: r.memoryTable(), Plots: plots,
		Clients: harness.Clients, Outstanding: harness.Outstanding, Names: harness.NameCount, Entries: r.Plan.Names,
	}
	shown := strings.NewReplacer("@CLUSTER@", harness.KubernetesDirective, "@CACHE@", "")
	data.Deployed, data.Bare = shown.Replace(harness.ConfigText("deployed")), shown.Replace(harness.ConfigText("bare"))
	for _, f := range r.Facts {
		data.Facts = append(data.Facts, line(struct{ Name, Value string }{f.Name, f.Value}))
	}
	for _, w := range r.Workloads {
		t := table{w.LoadShape.Name, w.LoadShape.What, r.WorkloadTable(w)}
		last := len(data.Sections) - 1
		switch {
		case w.Name == w.LoadShape.Name:
			data.Others = append(data.Others, t)
		case last >= 0 && data.Sections[last].Name == w.QuerySet.Name:
			data.Sections[last].Tables = append(data.Sections[last].Tables, t)
		default:
			data.Sections = append(data.Sections, section{w.QuerySet.Name, w.QuerySet.What, []table{t}})
		}
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
