package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// Files of a page, relative to its directory.
const (
	pageFile   = "soak.md"
	recordFile = "soak.json"
	imagePath  = figures.PlotDir + "/soak-%s.svg"
)

//go:embed page.md.tmpl
var pageTemplate string

// page is a record with what the page has of it.
type page struct{ record }

// readRecord reads the record in the directory.
func readRecord(dir string) (rec record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	return rec, json.Unmarshal(text, &rec)
}

// files returns the page and its drawings by their paths relative to the page's directory.
func (p page) files() (map[string][]byte, error) {
	t, err := template.New(pageFile).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := t.Execute(&text, p); err != nil {
		return nil, err
	}
	files := map[string][]byte{pageFile: []byte(text.String()), p.Image("queries"): p.queries().SVG()}
	for _, q := range p.Quantities() {
		files[p.Image(q.File)] = q.lines().SVG()
	}
	return files, nil
}

// write writes the page and its drawings.
func (p page) write(dir string) error {
	files, err := p.files()
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writePage writes the record, the page and the drawings, if the plan names a directory.
func (r *run) writePage() error {
	if r.plan.out == "" {
		return nil
	}
	return errors.Join(r.keep(), page{r.snapshot()}.write(r.plan.out))
}

// Image is the path of a drawing.
func (page) Image(name string) string { return fmt.Sprintf(imagePath, name) }

// Length is the length of the run.
func (p page) Length() string { return p.Took.Round(time.Second).String() }

// Complete is the number of complete rounds. The first record of a round is older than all of them.
func (p page) Complete() int { return max(0, len(p.Rounds)-1) }

// Verdict says whether anything was wrong.
func (p page) Verdict() string {
	if len(p.Faults) == 0 {
		return "Nothing grew, and no query was lost or answered wrongly."
	}
	return "**The run failed:** " + strings.Join(p.Faults, "; ")
}

// EventTable has what happened to the agents.
func (p page) EventTable() string {
	rows := [][]string{{"event", "times"}}
	for _, e := range p.Events {
		rows = append(rows, []string{e.What, strconv.Itoa(e.N)})
	}
	return figures.Table(rows)
}

// PhaseTable has what became of the queries.
func (p page) PhaseTable() string {
	rows := [][]string{{"phase", "asked", "lost", "wrong", "SERVFAIL", "repeated"}}
	sum := phaseRecord{Name: "all"}
	add := func(r phaseRecord) {
		row := []string{r.Name}
		for _, n := range []int{r.Asked, r.Lost, r.Wrong, r.ServFail, r.Repeated} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	for _, r := range p.Phases {
		add(r)
		sum.add(r)
	}
	add(sum)
	return figures.Table(rows)
}

func (s *phaseRecord) add(r phaseRecord) {
	s.Asked += r.Asked
	s.Lost += r.Lost
	s.Wrong += r.Wrong
	s.ServFail += r.ServFail
	s.Repeated += r.Repeated
}

// minutes are the ends of the rounds.
func (p page) minutes() (list []float64) {
	for _, r := range p.Rounds {
		list = append(list, r.End.Minutes())
	}
	return list
}

const timeTitle = "minutes since the start"

// queries draws what became of the queries since the start.
func (p page) queries() figures.Lines {
	asked := figures.Line{Label: "asked"}
	bad := figures.Line{Label: "lost or wrong"}
	for _, r := range p.Rounds {
		asked.Values = append(asked.Values, float64(r.Queries.Asked)/1000)
		bad.Values = append(bad.Values, float64(r.Queries.Lost+r.Queries.Wrong)/1000)
	}
	return figures.Lines{Title: "Queries since the start", Unit: "thousands", XTitle: timeTitle, X: p.minutes(), Series: []figures.Line{asked, bad}}
}

// quantityPart is the part of the page about one quantity.
type quantityPart struct {
	quantity
	page
}

// Quantities are the parts of the page about what must stay flat.
func (p page) Quantities() (list []quantityPart) {
	for _, q := range quantities {
		if q.File != "" {
			list = append(list, quantityPart{q, p})
		}
	}
	return list
}

func (q quantityPart) lines() figures.Lines {
	l := figures.Lines{Title: q.Title, Unit: q.unit, XTitle: timeTitle, X: q.minutes()}
	for _, a := range q.Agents {
		l.Series = append(l.Series, figures.Line{Label: a.Name, Values: a.Values[q.name]})
	}
	return l
}
