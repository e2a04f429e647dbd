package main

import (
	"github.com/google/go-cmp/cmp"
	"slices"
	"strings"
	"testing"
)

// stubSection is a section with a text.
type stubSection struct {
	*report
	text string
}

func (s stubSection) Tables() []string  { return nil }
func (s stubSection) Targets() []target { return nil }

func (s stubSection) Render([]plotFile) ([]byte, error) {
	m := marker{s.plan.flag()}
	if m.flag == "" {
		return []byte("# Page\n\n" + s.text + "\n"), nil
	}
	return []byte(m.begin() + s.text + "\n" + m.end()), nil
}

func stub(section, text string) stubSection {
	return stubSection{&report{plan: plan{section: section}}, text}
}

// TestSections: each run replaces its own section and leaves the rest of the page as it is.
func TestSections(t *testing.T) {
	var page []byte
	put := func(s section) {
		t.Helper()
		var err error
		if page, err = renew(s, page, nil); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{"", "-outage", "-scale -scale-services 200", "-worst", "-kernel", "-faults"}
	for _, round := range []string{"first", "second", "second"} {
		for _, flag := range flags {
			put(stub(flag, round+flag))
		}
	}
	before := string(page)
	put(stub("", "second"))
	if d := cmp.Diff(before, string(page)); d != "" {
		t.Errorf("written again with the same text (-first +second):\n%s", d)
	}
	if strings.Contains(before, "first") || strings.Count(before, "# Page") != 1 {
		t.Errorf("old text in\n%s", page)
	}
	for _, m := range []marker{scaleMarker, outageMarker, failoverMarker, kernelMarker, attackMarker} {
		if strings.Count(before, m.begin()) != 1 || strings.Count(before, m.end()) != 1 {
			t.Errorf("%s is not there once:\n%s", m.flag, page)
		}
	}
	// What somebody has written behind a section stays behind it.
	page = append(slices.Clone(page), "\n## Behind it\n"...)
	put(stub("-outage", "third"))
	if text := string(page); !strings.Contains(text, "third") || !strings.HasSuffix(text, "\n## Behind it\n") {
		t.Errorf("a new section in the middle gives\n%s", text)
	}
	if _, text, _ := scaleMarker.cut([]byte(scaleMarker.begin() + "without an end")); text != nil {
		t.Errorf("a section without an end is %q", text)
	}
}
