package harness

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// marker is a section of the report that a kind of run of its own writes: what is between
// its lines is that run's, all else the others'.
type marker struct{ Flag string }

// The parts.
var (
	ScaleMarker    = marker{"-scale"}
	OutageMarker   = marker{"-outage"}
	FailoverMarker = marker{"-faults"}
	KernelMarker   = marker{"-kernel"}
	AttackMarker   = marker{"-worst"}
)

// Flag is the flag of the section, without its options.
func (p Plan) flag() string {
	flag, _, _ := strings.Cut(p.Section, " ")
	return flag
}

func (p marker) Begin() string { return "<!-- written by go run ./test/bench " + p.Flag + " -->\n" }
func (p marker) End() string   { return "<!-- end of what " + p.Flag + " has written -->\n" }

// cut returns what is before, in and after the part, with its lines; all of it is
// before if there is no such part.
func (p marker) cut(page []byte) (before, section, after []byte) {
	begin := bytes.Index(page, []byte(p.Begin()))
	if begin < 0 {
		return page, nil, nil
	}
	end := bytes.Index(page[begin:], []byte(p.End()))
	if end < 0 {
		return page, nil, nil
	}
	end += begin + len(p.End())
	return page[:begin], page[begin:end], page[end:]
}

// Renew returns the page with the section in place of the old one and everything else as it is.
// The page may be empty.
func Renew(s Section, page []byte, plots []figures.PlotFile) ([]byte, error) {
	text, err := s.Render(plots)
	if err != nil {
		return nil, err
	}
	if p := (marker{s.base().Plan.flag()}); p.Flag != "" {
		return p.put(page, text), nil
	}
	for _, p := range []marker{ScaleMarker, OutageMarker, FailoverMarker, KernelMarker, AttackMarker} {
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

// SectionData is what the text of every part has.
type SectionData struct {
	Begin, End, Date, Commit, Command, Results string
	Notes                                      []string
	Facts                                      []TableEntry
}

// TableEntry is something with a name, what it is, and what was measured of it.
type TableEntry struct{ Name, What, Table string }

// NewSectionData fills a frame with the results of the targets.
func (r *Report) NewSectionData(targets []Target) SectionData {
	p := marker{r.Plan.flag()}
	f := SectionData{
		Begin: p.Begin(), End: p.End(), Date: r.Date.UTC().Format(time.DateOnly), Commit: r.Commit,
		Command: r.Plan.Command(), Results: TargetTable(targets, true), Notes: r.Notes,
	}
	for _, fact := range r.Facts {
		f.Facts = append(f.Facts, TableEntry{Name: fact.Name, What: fact.Value})
	}
	return f
}

// FillTemplate fills in a section's text.
func FillTemplate(text string, data any) ([]byte, error) {
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
