package scale

import (
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
)

// TestWatchDesigns: with more wants, a watch of all namespaces keeps its place, and those of single namespaces stay as they are.
func TestWatchDesigns(t *testing.T) {
	shape := apiobjects.FleetCluster(4*MinServices, 1)
	w := wants{all: shape.Services()}
	first := w.all[len(w.all)-1] // headless
	other := w.all[len(w.all)-2] // in another namespace
	if first.Namespace == other.Namespace || !first.Headless || !other.Headless {
		t.Fatalf("Services %v and %v", first, other)
	}
	w = w.with(first)
	for _, d := range watchDesigns() {
		before, after := d.slices(w), d.slices(w.with(other))
		if len(before) > len(after) {
			t.Errorf("%s: %d watches, then %d", d.name, len(before), len(after))
			continue
		}
		for i, s := range before {
			if s.namespace != after[i].namespace || s.namespace != "" && s != after[i] {
				t.Errorf("%s: the watch %+v became %+v", d.name, s, after[i])
			}
		}
	}
	if got, want := named(w.asked), "kubernetes.io/service-name in ("+first.Name+")"; got != want {
		t.Errorf("selector %q, want %q", got, want)
	}
	if got, want := shardsOf([]string{"a"}), "shardRange(object.metadata.namespace, '0xaf63dc4c8601ec8c', '0xaf63dc4c8601ec8d')"; got != want {
		t.Errorf("shards %q, want %q", got, want)
	}
}

// TestMeasureDesigns measures some ways to watch in a small cluster. They miss no change, also while watches are renewed,
// and get what they select.
func TestMeasureDesigns(t *testing.T) {
	peer.Build(t, "kube-apiserver") // skips under -short
	only, err := harness.ParseFilter("^(" + perNamespace + "|" + askedNames + "|" + harness.CoreDNS + "|lists)$")
	if err != nil {
		t.Fatal(err)
	}
	r, err := MeasureDesigns(t.Context(), harness.Plan{Rounds: 1, Length: 100 * time.Millisecond, Short: true, Only: only, Progress: t.Output(), Section: harness.DesignsFlag}, 4*MinServices)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range watchDesigns() {
		if runs := r.runs[r.all(d.name)]; len(runs) > 0 {
			checkDesign(t, d, runs[0])
		} else if d.name == noSlices || only.MatchesName(d.name) {
			t.Errorf("%s was not measured", d.name)
		}
	}
	for _, f := range listForms() {
		for _, l := range r.lists[harness.Cell{Server: f.name}] {
			if l.kib < 10 || l.took <= 0 {
				t.Errorf("a list, %s: %+v", f.name, l)
			}
		}
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, want := range r.Tables() {
		if want == "" || !strings.Contains(string(pages[0].Text), want) {
			t.Errorf("the page lacks %q:\n%s", want, pages[0].Text)
		}
	}
}

// checkDesign checks what holds on every machine.
func checkDesign(t *testing.T, d watchDesign, r designRun) {
	t.Helper()
	all := d.name == harness.CoreDNS
	switch {
	case r.missed != 0 || r.due == 0 && d.name != noSlices:
		t.Errorf("%s: %d of %d changes missed", d.name, r.missed, r.due)
	case d.name == noSlices && r.own.events != 0, d.name != noSlices && r.own.events <= 0, all && r.own.events != 1:
		t.Errorf("%s: %v events for a change of what is asked for", d.name, r.own.events)
	case all != (r.elsewhere.events == 1), !all && r.elsewhere.events != 0:
		t.Errorf("%s: %v events for a change elsewhere", d.name, r.elsewhere.events)
	}
}
