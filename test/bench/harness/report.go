package harness

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/machine"
)

// Report is what a run found out.
type Report struct {
	Plan       Plan
	Date       time.Time
	Commit     string
	Facts      []machine.Fact
	LoadBefore string
	Notes      []string
	Servers    []Server
	Workloads  []Workload
	Samples    Results[Sample]
}

func (r *Report) Fact(name, value string) {
	r.Facts = append(r.Facts, machine.Fact{Name: name, Value: value})
}

// NoteLoad notes the load of the machine before the measurements and now.
func (r *Report) NoteLoad() {
	r.Fact("load average", r.LoadBefore+" before, "+machine.LoadAverage()+" after")
}

// MaxOtherShare is how much of the server's core others may take. The harness itself and
// the kernel's own threads stay below a hundredth; what takes five is a machine
// that does something else.
const MaxOtherShare = 0.05

// NoteBusyCore notes when the numbers are not worth much.
func (r *Report) NoteBusyCore() {
	var all []float64
	for _, samples := range r.Samples {
		for _, s := range samples {
			all = append(all, s.otherShare())
		}
	}
	if len(all) == 0 {
		return
	}
	if v := figures.SpreadOf(all); v.Median > MaxOtherShare {
		r.Notes = append(r.Notes, fmt.Sprintf("**The machine was not quiet.** In the median measurement other work took %s of the server's core, "+
			"and displaced the servers' data from the CPU's caches, more so for larger programs. "+
			"The costs are too high, and ratios between them show only a direction.", figures.Percent(v.Median)))
	}
}

// Terminal returns all tables of a section as text; Markdown is readable in a terminal.
func Terminal(s Section) string {
	r := s.base()
	var b strings.Builder
	for _, w := range r.Workloads {
		fmt.Fprintf(&b, "%s\n\n%s\n", w.Name, r.WorkloadTable(w))
	}
	for _, t := range s.Tables() {
		if t != "" {
			b.WriteString(t + "\n")
		}
	}
	b.WriteString(TargetTable(s.Targets(), false))
	for _, n := range r.Notes {
		b.WriteString("\n" + n + "\n")
	}
	return b.String()
}

// Section is the result of a run, which becomes one page or several.
type Section interface {
	// base returns what the reports of all sections have.
	base() *Report
	// Tables returns the tables beside those of workloads; empty ones are left out.
	Tables() []string
	Targets() []Target
	Charts() []figures.Chart
	// Render returns the section's pages; plots are the charts' files.
	Render(plots []figures.PlotFile) ([]Page, error)
}

func (r *Report) base() *Report           { return r }
func (r *Report) Charts() []figures.Chart { return nil }

// Command is the line that measures the same again.
func (p Plan) Command() string {
	text := "go run ./test/bench"
	if p.Section != "" {
		text += " " + p.Section
	}
	if p.Before != "" {
		text += " -before " + p.Before
	}
	text += fmt.Sprintf(" -rounds %d -seconds %g", p.Rounds, p.Length.Seconds())
	if !p.Cluster {
		text += " -cluster=false"
	}
	if p.Only.text != "" {
		text += fmt.Sprintf(" -only '%s'", p.Only.text)
	}
	return text + " -out docs/benchmarks"
}

// Commit names the tree that was measured.
func Commit() string {
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
