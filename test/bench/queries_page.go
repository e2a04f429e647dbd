package main

import (
	"bytes"
	_ "embed"
	"strings"
	"text/template"
	"time"
)

//go:embed report.md.tmpl
var pageText string

// Render returns the page as Markdown without the other sections; plots are the files of the
// charts.
func (r *queriesReport) Render(plots []plotFile) ([]byte, error) {
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
		Plots                 []plotFile
		Deployed, Bare        string
		Clients, Outstanding  int
		Names, Entries        int
	}{
		Date: r.date.UTC().Format(time.DateOnly), Commit: r.commit, Command: r.plan.command(),
		Notes: r.notes, Results: targetTable(r.Targets(), true), Idle: r.idleTable(), Memory: r.memoryTable(), Plots: plots,
		Clients: clients, Outstanding: outstanding, Names: nameCount, Entries: r.plan.names,
	}
	shown := strings.NewReplacer("@CLUSTER@", kubernetesDirective, "@CACHE@", "")
	data.Deployed, data.Bare = shown.Replace(configText("deployed")), shown.Replace(configText("bare"))
	for _, f := range r.facts {
		data.Facts = append(data.Facts, line(struct{ Name, Value string }{f.name, f.value}))
	}
	for _, w := range r.workloads {
		t := table{w.loadShape.name, w.loadShape.what, r.workloadTable(w)}
		last := len(data.Sections) - 1
		switch {
		case w.name == w.loadShape.name:
			data.Others = append(data.Others, t)
		case last >= 0 && data.Sections[last].Name == w.querySet.name:
			data.Sections[last].Tables = append(data.Sections[last].Tables, t)
		default:
			data.Sections = append(data.Sections, section{w.querySet.name, w.querySet.what, []table{t}})
		}
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
