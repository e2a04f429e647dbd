package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"text/template"
	"time"
)

// report is what a run found out.
type report struct {
	plan       plan
	date       time.Time
	commit     string
	facts      []fact
	loadBefore string
	notes      []string
	servers    []server
	workloads  []workload
	samples    map[cell][]sample
	rests      map[string][]rest // by server
	holds      map[string]hold   // by server
	// scale is set in the report about a large cluster, which has no rests or holds.
	scale *scaled
	// trials is set in the report about upstreams that fail, which has nothing else.
	trials map[cell][]trial
	// harms is set in the report about agents that go away, which has nothing else, and in
	// that about answers from inside the kernel.
	harms map[cell][]harm
	// attacks is set in the report about the dearest queries, which has nothing else.
	attacks map[cell][]attackSample
}

func (r *report) fact(name, value string) { r.facts = append(r.facts, fact{name, value}) }

// spread is what several measurements of one thing say.
type spread struct{ median, least, most float64 }

// spreadOf makes a spread of at least one value.
func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{median: (v[(n-1)/2] + v[n/2]) / 2, least: v[0], most: v[n-1]}
}

// over applies f to the samples of a row, of which there is at least one.
func (r *report) over(at cell, f func(sample) float64) spread {
	var values []float64
	for _, s := range r.samples[at] {
		values = append(values, f(s))
	}
	return spreadOf(values)
}

// ratio compares two rows within each round; false if one of them was not
// measured.
func (r *report) ratio(f func(sample) float64, of, to cell) (spread, bool) {
	a, b := r.samples[of], r.samples[to]
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, f(a[i])/f(b[i]))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// quiet is how much of the server's core others may take. The harness itself and
// the kernel's own threads stay below a hundredth; what takes five is a machine
// that does something else.
const quiet = 0.05

// judge notes when the numbers are not worth much.
func (r *report) judge() {
	var all []float64
	for _, samples := range r.samples {
		for _, s := range samples {
			all = append(all, s.others())
		}
	}
	if len(all) == 0 {
		return
	}
	if v := spreadOf(all); v.median > quiet {
		r.notes = append(r.notes, fmt.Sprintf("**The machine was not quiet.** In the median measurement %s of the server's core went to others. "+
			"What shares a core with other work loses its caches to it, the larger program more of them: "+
			"these prices are too high, and their ratios only say in which direction they point.", percent(v.median)))
	}
}

// tables are all tables as text for a terminal; Markdown reads well there.
func (r *report) tables() string {
	var b strings.Builder
	for _, w := range r.workloads {
		fmt.Fprintf(&b, "%s\n\n%s\n", w.name, r.prices(w))
	}
	for _, t := range slices.Concat([]string{r.idle(), r.memory()}, r.scaleTables(), r.outageTables(), r.harmTables(), r.worstTables()) {
		if t != "" {
			b.WriteString(t + "\n")
		}
	}
	b.WriteString(r.results(r.claims(), false))
	for _, n := range r.notes {
		b.WriteString("\n" + n + "\n")
	}
	return b.String()
}

//go:embed report.md.tmpl
var pageText string

// page is the whole report as Markdown; plots are the names of the files with the
// drawings, below the page's folder.
func (r *report) page(plots []plotted) ([]byte, error) {
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
		Plots                 []plotted
		Deployed, Bare        string
		Clients, Outstanding  int
		Names, Entries        int
	}{
		Date: r.date.UTC().Format(time.DateOnly), Commit: r.commit, Command: r.plan.command(),
		Notes: r.notes, Results: r.results(r.claims(), true), Idle: r.idle(), Memory: r.memory(), Plots: plots,
		Clients: clients, Outstanding: outstanding, Names: nameCount, Entries: r.plan.names,
	}
	shown := strings.NewReplacer("@CLUSTER@", watching, "@CACHE@", "")
	data.Deployed, data.Bare = shown.Replace(conf("deployed")), shown.Replace(conf("bare"))
	for _, f := range r.facts {
		data.Facts = append(data.Facts, line(struct{ Name, Value string }{f.name, f.value}))
	}
	for _, w := range r.workloads {
		t := table{w.manner.name, w.manner.what, r.prices(w)}
		last := len(data.Sections) - 1
		switch {
		case w.name == w.manner.name:
			data.Others = append(data.Others, t)
		case last >= 0 && data.Sections[last].Name == w.questions.name:
			data.Sections[last].Tables = append(data.Sections[last].Tables, t)
		default:
			data.Sections = append(data.Sections, section{w.questions.name, w.questions.what, []table{t}})
		}
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// command is the line that measures the same again.
func (p plan) command() string {
	text := "go run ./test/bench"
	for _, section := range []struct {
		on   bool
		flag string
	}{{p.scale.on, "-scale"}, {p.failing.on, "-outage"}, {p.faults, "-faults"}, {p.kernel, "-kernel"}, {p.worst, "-worst"}} {
		if section.on {
			text += " " + section.flag
		}
	}
	if p.failing.on && p.failing.silence != usualSilence {
		text += fmt.Sprintf(" -outage-silence %s", p.failing.silence)
	}
	if p.scale.on && p.scale.services != large {
		text += fmt.Sprintf(" -scale-services %d", p.scale.services)
	}
	if p.before != "" {
		text += " -before " + p.before
	}
	text += fmt.Sprintf(" -rounds %d -seconds %g", p.rounds, p.length.Seconds())
	if !p.cluster {
		text += " -cluster=false"
	}
	if p.only.text != "" {
		text += fmt.Sprintf(" -only '%s'", p.only.text)
	}
	return text + " -out BENCHMARKS.md"
}

// commit names the tree that was measured.
func commit() string {
	id, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(id))
	// What is not Go is not measured.
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/*.go", ":/go.mod", ":/go.sum").Output()
	if err != nil || len(changed) > 0 {
		name += " with changes that are not committed"
	}
	return name
}
