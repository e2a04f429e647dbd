package main

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"
	"time"
)

// marker is a section of the report that a kind of run of its own writes: what is between
// its lines is that run's, all else the others'.
type marker struct{ flag string }

// The parts.
var (
	scaleMarker    = marker{"-scale"}
	outageMarker   = marker{"-outage"}
	failoverMarker = marker{"-faults"}
	kernelMarker   = marker{"-kernel"}
	attackMarker   = marker{"-worst"}
)

// flag is the flag of the section, without its options.
func (p plan) flag() string {
	flag, _, _ := strings.Cut(p.section, " ")
	return flag
}

func (p marker) begin() string { return "<!-- written by go run ./test/bench " + p.flag + " -->\n" }
func (p marker) end() string   { return "<!-- end of what " + p.flag + " has written -->\n" }

// cut returns what is before, in and after the part, with its lines; all of it is
// before if there is no such part.
func (p marker) cut(page []byte) (before, section, after []byte) {
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

// renew returns the page with the section in place of the old one and everything else as it is.
// The page may be empty.
func renew(s section, page []byte, plots []plotFile) ([]byte, error) {
	text, err := s.Render(plots)
	if err != nil {
		return nil, err
	}
	if p := (marker{s.base().plan.flag()}); p.flag != "" {
		return p.put(page, text), nil
	}
	for _, p := range []marker{scaleMarker, outageMarker, failoverMarker, kernelMarker, attackMarker} {
		if _, section, _ := p.cut(page); section != nil {
			text = bytes.Join([][]byte{text, section}, []byte("\n"))
		}
	}
	return text, nil
}

// put returns the page with the part's text in its place, or at the end.
func (p marker) put(page, text []byte) []byte {
	before, section, after := p.cut(page)
	if section == nil && len(before) > 0 {
		before = append(bytes.TrimRight(before, "\n"), "\n\n"...)
	}
	return bytes.Join([][]byte{before, text, after}, nil)
}

// sectionData is what the text of every part has.
type sectionData struct {
	Begin, End, Date, Commit, Command, Results string
	Notes                                      []string
	Facts                                      []tableEntry
}

// tableEntry is something with a name, what it is, and what was measured of it.
type tableEntry struct{ Name, What, Table string }

// newSectionData fills a frame with the results of the targets.
func (r *report) newSectionData(claims []target) sectionData {
	p := marker{r.plan.flag()}
	f := sectionData{
		Begin: p.begin(), End: p.end(), Date: r.date.UTC().Format(time.DateOnly), Commit: r.commit,
		Command: r.plan.command(), Results: targetTable(claims, true), Notes: r.notes,
	}
	for _, fact := range r.facts {
		f.Facts = append(f.Facts, tableEntry{Name: fact.name, What: fact.value})
	}
	return f
}

// fillTemplate fills in a section's text.
func fillTemplate(text string, data any) ([]byte, error) {
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
