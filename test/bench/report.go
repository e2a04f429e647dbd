package main

import (
	"fmt"
	"os/exec"
	"strings"
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
}

func (r *report) fact(name, value string) { r.facts = append(r.facts, fact{name, value}) }

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

// maxOtherShare is how much of the server's core others may take. The harness itself and
// the kernel's own threads stay below a hundredth; what takes five is a machine
// that does something else.
const maxOtherShare = 0.05

// noteBusyCore notes when the numbers are not worth much.
func (r *report) noteBusyCore() {
	var all []float64
	for _, samples := range r.samples {
		for _, s := range samples {
			all = append(all, s.otherShare())
		}
	}
	if len(all) == 0 {
		return
	}
	if v := spreadOf(all); v.median > maxOtherShare {
		r.notes = append(r.notes, fmt.Sprintf("**The machine was not quiet.** In the median measurement %s of the server's core went to others. "+
			"What shares a core with other work loses its caches to it, the larger program more of them: "+
			"these prices are too high, and their ratios only say in which direction they point.", percent(v.median)))
	}
}

// terminal returns all tables of a section as text; Markdown is readable in a terminal.
func terminal(s section) string {
	r := s.base()
	var b strings.Builder
	for _, w := range r.workloads {
		fmt.Fprintf(&b, "%s\n\n%s\n", w.name, r.workloadTable(w))
	}
	for _, t := range s.Tables() {
		if t != "" {
			b.WriteString(t + "\n")
		}
	}
	b.WriteString(targetTable(s.Targets(), false))
	for _, n := range r.notes {
		b.WriteString("\n" + n + "\n")
	}
	return b.String()
}

// section is the result of a run, which becomes a part of the page.
type section interface {
	// base returns what the reports of all sections have.
	base() *report
	// Tables returns the tables beside those of workloads; empty ones are left out.
	Tables() []string
	Targets() []target
	Charts() []chart
	// Render returns the section as Markdown; plots are the charts' files.
	Render(plots []plotFile) ([]byte, error)
}

func (r *report) base() *report   { return r }
func (r *report) Charts() []chart { return nil }

// command is the line that measures the same again.
func (p plan) command() string {
	text := "go run ./test/bench"
	if p.section != "" {
		text += " " + p.section
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
