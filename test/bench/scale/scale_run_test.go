package scale

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMeasure runs the section about a large cluster in a small one. Only that things were measured
// is looked at, and what holds however fast the machine is.
func TestMeasure(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(harness.ErrNoDnsperf)
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	services := soak.Choose(MinServices, 100)
	length := soak.Choose(100*time.Millisecond, 200*time.Millisecond)
	r, err := Measure(t.Context(), harness.Plan{Rounds: 1, Length: length, Short: !soak.Enabled(), Progress: t.Output(), Section: harness.ScaleFlag}, services)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Servers) != 3 || len(r.Workloads) != 7 || len(r.fleets) != 3 {
		t.Fatalf("%d servers, %d workloads and %d fleets, want 3, 7 and 3", len(r.Servers), len(r.Workloads), len(r.fleets))
	}
	for i, s := range r.Servers {
		if len(r.runs[harness.Cell{Server: s.Name}]) != 1 {
			t.Fatalf("%s: %d stays, want 1", s.Name, len(r.runs[harness.Cell{Server: s.Name}]))
		}
		checkStay(t, s, r.runs[harness.Cell{Server: s.Name}][0], int(3*length.Seconds()*changeRate))
		for _, w := range r.Workloads {
			samples := r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}]
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.Name, s.Name, len(samples))
			}
			for _, p := range samples[0].Problems(w) {
				t.Errorf("%s, %s: %s", w.Name, s.Name, p)
			}
		}
		c := r.fleets[i]
		if c.kind != s.Name || c.agents != 2 || c.firstKiB <= 0 || c.changeKiB <= 0 || c.conns != 1 {
			t.Errorf("the fleet of %s: %+v", s.Name, c)
		}
		checkWatches(t, s, c.watches)
	}
	plots, err := figures.Draw(r.Charts(), filepath.Join(t.TempDir(), "benchmarks"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := r.Render(plots)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	page := pages[0].Text
	for _, want := range []string{fmt.Sprintf("# Benchmarks: a cluster of %d Services\n", services+1), r.followTable(), r.delayTable(), r.fleetTable(), r.fleetCostTable(), figures.PlotDir + "/bench-scale-memory.svg"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// checkStay checks what holds on every machine.
func checkStay(t *testing.T, s harness.Server, st clusterRun, delays int) {
	t.Helper()
	if st.rss == 0 || st.peak < st.rss || st.sync <= 0 || st.first.Conns == 0 {
		t.Errorf("%s: nothing measured: %+v", s.Name, st)
	}
	// Tens of Services are more than a connection's set-up, and fewer than this.
	if n := st.first.Received; n < 20<<10 || n > 10<<20 {
		t.Errorf("%s: %d bytes for the first sync", s.Name, n)
	}
	if st.changes == 0 || st.changed.Received == 0 || st.changed.Conns != 0 {
		t.Errorf("%s: %d changes gave %+v", s.Name, st.changes, st.changed)
	}
	if len(st.delays) != delays || len(st.whole) != len(st.delays) || !slices.IsSorted(st.delays) || !slices.IsSorted(st.whole) || st.unseen != 0 {
		t.Errorf("%s: %d delays, %d of changes that were not seen; want %d and none", s.Name, len(st.delays), st.unseen, delays)
	}
	checkWatches(t, s, st.watches)
}

// checkWatches holds CoreDNS to its three and nodens to at least one of each kind.
func checkWatches(t *testing.T, s harness.Server, n float64) {
	t.Helper()
	if n < 3 || s.Program == "coredns" && n != 3 {
		t.Errorf("%s has %v watches", s.Name, n)
	}
}
