package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
	"time"
)

// part is a section of the report that a kind of run of its own writes: what is between
// its lines is that run's, all else the others'.
type part struct{ flag string }

// The parts.
var (
	scalePart  = part{"-scale"}
	outagePart = part{"-outage"}
	faultPart  = part{"-faults"}
	podPart    = part{"-kernel"}
	worstPart  = part{"-worst"}
)

func (p part) begin() string { return "<!-- written by go run ./test/bench " + p.flag + " -->\n" }
func (p part) end() string   { return "<!-- end of what " + p.flag + " has written -->\n" }

// cut returns what is before, in and after the part, with its lines; all of it is
// before if there is no such part.
func (p part) cut(page []byte) (before, section, after []byte) {
	begin := bytes.Index(page, []byte(p.begin()))
	if begin < 0 {
		return page, nil, nil
	}
	end := bytes.Index(page[begin:], []byte(p.end()))
	if end < 0 {
		return page, nil, nil
	}
	end += begin + len(p.end())
	return page[:begin], page[begin:end], page[end:]
}

// renew returns the page with what this report is about written anew and everything
// else as it is in the old one, which may be empty.
func (r *report) renew(old []byte, plots []plotted) ([]byte, error) {
	switch {
	case r.plan.kernel:
		text, err := r.podSection()
		return podPart.put(old, text), err
	case r.scale != nil:
		text, err := r.section(plots)
		return scalePart.put(old, text), err
	case r.trials != nil:
		text, err := r.outageSection()
		return outagePart.put(old, text), err
	case r.harms != nil:
		text, err := r.faultSection()
		return faultPart.put(old, text), err
	case r.attacks != nil:
		text, err := r.worstSection()
		return worstPart.put(old, text), err
	}
	page, err := r.page(plots)
	for _, p := range []part{scalePart, outagePart, faultPart, podPart, worstPart} {
		if _, section, _ := p.cut(old); section != nil {
			page = bytes.Join([][]byte{page, section}, []byte("\n"))
		}
	}
	return page, err
}

// put returns the page with the part's text in its place, or at the end.
func (p part) put(page, text []byte) []byte {
	before, section, after := p.cut(page)
	if section == nil && len(before) > 0 {
		before = append(bytes.TrimRight(before, "\n"), "\n\n"...)
	}
	return bytes.Join([][]byte{before, text, after}, nil)
}

// frame is what the text of every part has.
type frame struct {
	Begin, End, Date, Commit, Command, Results string
	Notes                                      []string
	Facts                                      []entry
}

// entry is something with a name, what it is, and what was measured of it.
type entry struct{ Name, What, Table string }

// frame is that of p, whose results are the judgements of claims.
func (r *report) frame(p part, claims []claim) frame {
	f := frame{
		Begin: p.begin(), End: p.end(), Date: r.date.UTC().Format(time.DateOnly), Commit: r.commit,
		Command: r.plan.command(), Results: r.results(claims, true), Notes: r.notes,
	}
	for _, fact := range r.facts {
		f.Facts = append(f.Facts, entry{Name: fact.name, What: fact.value})
	}
	return f
}

// render fills a part's text.
func render(text string, data any) ([]byte, error) {
	t, err := template.New("section").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("writing the section: %w", err)
	}
	return b.Bytes(), nil
}

//go:embed section.md.tmpl
var sectionText string

// section is the report about a large cluster as a section of the page.
func (r *report) section(plots []plotted) ([]byte, error) {
	s := r.scale
	data := struct {
		frame
		Plots                      []plotted
		Following, Showing         string
		Crowd, Fleet               string
		Kinds, Questions           []entry
		Shape, Crowds              any
		Total, Endpoints           int
		Changes, Rate, CrowdRate   int
		Nodes, FleetRate           int
		Conf                       string
		CrowdTotal, CrowdEndpoints int
	}{
		frame: r.frame(scalePart, promises()), Plots: plots,
		Following: r.stayTable(following), Showing: r.stayTable(showing), Crowd: r.crowdTable(), Fleet: r.fleetTable(),
		Shape: s.shape, Crowds: s.crowd, Total: len(s.shape.Services()), Endpoints: s.shape.Endpoints(),
		Changes: r.plan.scale.changes(), Rate: changeRate, CrowdRate: crowdRate, Nodes: fleet, FleetRate: fleetRate,
		Conf: conf("scale"), CrowdTotal: len(s.crowd.Services()), CrowdEndpoints: s.crowd.Endpoints(),
	}
	for _, k := range kinds() {
		data.Kinds = append(data.Kinds, entry{Name: k.name, What: k.what})
	}
	for _, w := range r.workloads {
		data.Questions = append(data.Questions, entry{w.questions.name, w.questions.what, r.prices(w)})
	}
	return render(sectionText, data)
}
