package harness

import (
	"github.com/google/go-cmp/cmp"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// stubSection is a section with a text.
type stubSection struct {
	*Report
	text string
}

func (s stubSection) Tables() []string  { return nil }
func (s stubSection) Targets() []Target { return nil }

func (s stubSection) Render([]figures.PlotFile) ([]byte, error) {
	m := marker{s.Plan.flag()}
	if m.Flag == "" {
		return []byte("# Page\n\n" + s.text + "\n"), nil
	}
	return []byte(m.Begin() + s.text + "\n" + m.End()), nil
}

func stub(section, text string) stubSection {
	return stubSection{&Report{Plan: Plan{Section: section}}, text}
}

// TestSections: each run replaces its own section and leaves the rest of the page as it is.
func TestSections(t *testing.T) {
	var page []byte
	put := func(s Section) {
		t.Helper()
		var err error
		if page, err = Renew(s, page, nil); err != nil {
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
	for _, m := range []marker{ScaleMarker, OutageMarker, FailoverMarker, KernelMarker, AttackMarker} {
		if strings.Count(before, m.Begin()) != 1 || strings.Count(before, m.End()) != 1 {
			t.Errorf("%s is not there once:\n%s", m.Flag, page)
		}
	}
	// What somebody has written behind a section stays behind it.
	page = append(slices.Clone(page), "\n## Behind it\n"...)
	put(stub("-outage", "third"))
	if text := string(page); !strings.Contains(text, "third") || !strings.HasSuffix(text, "\n## Behind it\n") {
		t.Errorf("a new section in the middle gives\n%s", text)
	}
	if _, text, _ := ScaleMarker.cut([]byte(ScaleMarker.Begin() + "without an end")); text != nil {
		t.Errorf("a section without an end is %q", text)
	}
}
