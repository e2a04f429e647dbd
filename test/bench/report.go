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
	"unicode/utf8"
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

// over applies f to the samples of a row.
func (r *report) over(at cell, f func(sample) float64) spread {
	var values []float64
	for _, s := range r.samples[at] {
		values = append(values, f(s))
	}
	return spreadOf(values)
}

// ratio compares the prices of two rows within each round; false if one of them
// was not measured.
func (r *report) ratio(of, to cell) (spread, bool) {
	a, b := r.samples[of], r.samples[to]
	var values []float64
	for i := range min(len(a), len(b)) {
		values = append(values, a[i].price()/b[i].price())
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
	if v := spreadOf(all); v.median > quiet {
		r.notes = append(r.notes, fmt.Sprintf("**The machine was not quiet.** In the median measurement %s of the server's core went to others. "+
			"What shares a core with other work loses its caches to it, the larger program more of them: "+
			"these prices are too high, and their ratios only say in which direction they point.", percent(v.median)))
	}
}

// prices is the table of a workload.
func (r *report) prices(w workload) string {
	rows := [][]string{{"server", "CPU µs per query", "least–most", "in the kernel", "queries/s", "sleeps per query", "core busy", "by others", "RSS MiB", "answer bytes", "misses"}}
	for _, s := range r.servers {
		at := cell{s.name, w.name}
		price := r.over(at, sample.price)
		get := func(f func(sample) float64) float64 { return r.over(at, f).median }
		rows = append(rows, []string{
			s.name,
			fmt.Sprintf("%.2f", price.median),
			fmt.Sprintf("%.2f–%.2f", price.least, price.most),
			percent(get(func(s sample) float64 { return s.kernel })),
			fmt.Sprintf("%.0f", get(func(s sample) float64 { return float64(s.completed) / s.elapsed.Seconds() })),
			fmt.Sprintf("%.3f", get(func(s sample) float64 { return float64(s.switches) / float64(s.completed) })),
			percent(get(func(s sample) float64 { return s.cpu.Seconds() / s.elapsed.Seconds() })),
			percent(get(sample.others)),
			fmt.Sprintf("%.0f", get(func(s sample) float64 { return float64(s.rss) / (1 << 20) })),
			fmt.Sprintf("%.0f", get(func(s sample) float64 { return float64(s.response) })),
			fmt.Sprintf("%.0f", r.over(at, func(s sample) float64 { return float64(s.misses) }).most),
		})
	}
	return table(rows)
}

// comparisons is the table of ratios.
func (r *report) comparisons() string {
	rows := [][]string{{"workload", "CPU per query of", "in units of", "median ratio", "least–most"}}
	for _, w := range r.workloads {
		for _, c := range ratios {
			if v, ok := r.ratio(cell{c.of, w.name}, cell{c.to, w.name}); ok {
				rows = append(rows, []string{w.name, c.of, c.to,
					fmt.Sprintf("%.2f", v.median), fmt.Sprintf("%.2f–%.2f", v.least, v.most)})
			}
		}
	}
	return table(rows)
}

// tables are all tables as text for a terminal; Markdown reads well there.
func (r *report) tables() string {
	var b strings.Builder
	for _, w := range r.workloads {
		fmt.Fprintf(&b, "%s\n\n%s\n", w.name, r.prices(w))
	}
	b.WriteString(r.comparisons())
	for _, n := range r.notes {
		b.WriteString("\n" + n + "\n")
	}
	return b.String()
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// table writes rows, the first of which is the header, as a Markdown table with
// its columns aligned: the text to the left, the numbers to the right.
func table(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	rule := make([]string, len(widths))
	numeric := make([]bool, len(widths))
	for i, width := range widths {
		numeric[i] = len(rows) > 1 && isNumber(rows[1][i])
		rule[i] = strings.Repeat("-", width)
		if numeric[i] {
			rule[i] = rule[i][:max(width-1, 0)] + ":"
		}
	}
	var b strings.Builder
	for _, row := range slices.Insert(slices.Clone(rows), 1, rule) {
		for i, text := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if numeric[i] {
				text, gap = gap+text, ""
			}
			b.WriteString("| " + text + gap + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

func isNumber(text string) bool { return text != "" && text[0] >= '0' && text[0] <= '9' }

//go:embed report.md.tmpl
var pageText string

// page is the whole report as Markdown.
func (r *report) page() ([]byte, error) {
	t, err := template.New("report").Parse(pageText)
	if err != nil {
		return nil, err
	}
	type section struct{ Name, What, Table string }
	type line struct{ Name, Value string }
	data := struct {
		Date, Commit, Command string
		Facts                 []line
		Notes                 []string
		Sections              []section
		Comparisons           string
		Deployed, Bare        string
		Clients, Outstanding  int
		Names                 int
	}{
		Date: r.date.UTC().Format(time.DateOnly), Commit: r.commit,
		Command: fmt.Sprintf("go run ./test/bench -rounds %d -seconds %g -out BENCHMARKS.md", r.plan.rounds, r.plan.length.Seconds()),
		Notes:   r.notes, Comparisons: r.comparisons(),
		Deployed: deployed, Bare: bare,
		Clients: clients, Outstanding: outstanding, Names: nameCount,
	}
	if !r.plan.cluster {
		data.Command = strings.Replace(data.Command, " -out", " -cluster=false -out", 1)
	}
	shown := strings.NewReplacer("@CLUSTER@", watching)
	data.Deployed, data.Bare = shown.Replace(deployed), shown.Replace(bare)
	for _, f := range r.facts {
		data.Facts = append(data.Facts, line(struct{ Name, Value string }{f.name, f.value}))
	}
	for _, w := range r.workloads {
		data.Sections = append(data.Sections, section{w.name, w.what, r.prices(w)})
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
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
