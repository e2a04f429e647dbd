package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// The flags of the sections. The main part has none.
const (
	ScaleFlag       = "-scale"
	FleetFlag       = "-fleet"
	DesignsFlag     = "-designs"
	OutageFlag      = "-outage"
	FailoverFlag    = "-faults"
	KernelFlag      = "-kernel"
	ProgramFlag     = "-program"
	AttackFlag      = "-worst"
	AttributionFlag = "-attribution"
	WatchingFlag    = "-watching"
	PoliciesFlag    = "-policies"
	FloodsFlag      = "-floods"
	BudgetsFlag     = "-budgets"
	SharesFlag      = "-shares"
	TransportsFlag  = "-transports"
	StartFlag       = "-start"
	ReadersFlag     = "-hotname"
	UpstreamsFlag   = "-upstreams"
)

// Page is a page of a section, or a part of a page about a question: see [Question].
type Page struct {
	// File is its name, without a folder.
	File string
	// Text is Markdown.
	Text []byte
}

// Write writes the pages to the folder, and the drawings to [figures.PlotDir] as seen from
// there. Pages and parts of other sections stay as they are.
func Write(s Section, dir string) error {
	plots, err := figures.Draw(s.Charts(), dir)
	if err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	pages, err := s.Render(plots)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range pages {
		if err := writePage(dir, p); err != nil {
			return err
		}
	}
	return nil
}

// SectionData is what the templates of all pages have in common.
type SectionData struct {
	Date, Commit, Command, Results string
	Notes                          []string
	Facts, Machine                 []TableEntry                // Machine are the facts about the machine alone
	Plots                          map[string]figures.PlotFile // by the chart's file
}

// TableEntry is something with a name, what it is, and what was measured of it.
type TableEntry struct{ Name, What, Table string }

// NewSectionData returns the common data of a section with these targets and drawings.
func (r *Report) NewSectionData(targets []Target, plots []figures.PlotFile) SectionData {
	f := SectionData{
		Date: r.Date.UTC().Format(time.DateOnly), Commit: r.Commit,
		Command: r.Plan.Command(), Results: TargetTable(targets, true), Notes: r.Notes,
		Plots: map[string]figures.PlotFile{},
	}
	for _, p := range plots {
		f.Plots[filepath.Base(p.File)] = p
	}
	for _, fact := range r.Facts {
		entry := TableEntry{Name: fact.Name, What: fact.Value}
		f.Facts = append(f.Facts, entry)
		if entry.Name == "CPU" || entry.Name == "kernel" {
			f.Machine = append(f.Machine, entry)
		}
	}
	return f
}

// NewPage returns a page that ends with one line break.
func NewPage(file string, text []byte) Page {
	return Page{File: file, Text: append(bytes.TrimRight(text, "\n"), '\n')}
}

// FillTemplate makes a page of a template.
func FillTemplate(file, text string, data any) (Page, error) {
	t, err := template.New(file).Parse(text)
	if err != nil {
		return Page{}, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return Page{}, fmt.Errorf("writing %s: %w", file, err)
	}
	return NewPage(file, b.Bytes()), nil
}

// OnePage makes the only page of a section.
func OnePage(file, text string, data any) ([]Page, error) {
	p, err := FillTemplate(file, text, data)
	if err != nil {
		return nil, err
	}
	return []Page{p}, nil
}
