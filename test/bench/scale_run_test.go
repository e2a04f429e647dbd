package main

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestScale runs the section about a large cluster in a small one, with one scope of
// nodens' and CoreDNS. As in TestRound, only that things were measured is looked at,
// and what holds however fast the machine is.
func TestScale(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(errNoDnsperf)
	}
	if _, _, err := splitCores(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	only, err := parseFilter("residents|agents|cached A,|headless A/scope node|CoreDNS")
	if err != nil {
		t.Fatal(err)
	}
	r, err := measureScale(t.Context(), plan{rounds: 1, length: 200 * time.Millisecond, only: only, progress: t.Output(), section: scaleMarker.flag}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.servers) != 2 || len(r.workloads) != 3 || len(r.fleets) != 2 {
		t.Fatalf("%d servers, %d workloads and %d crowds, want 2, 3 and 2", len(r.servers), len(r.workloads), len(r.fleets))
	}
	for i, s := range r.servers {
		if len(r.runs[s.name]) != 1 {
			t.Fatalf("%s: %d stays, want 1", s.name, len(r.runs[s.name]))
		}
		checkStay(t, s, r.runs[s.name][0])
		for _, w := range r.workloads {
			samples := r.samples[cell{s.name, w.name}]
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(samples))
			}
			for _, p := range samples[0].Problems(w) {
				t.Errorf("%s, %s: %s", w.name, s.name, p)
			}
		}
		c := r.fleets[i]
		if c.kind != s.name || c.agents != 2 || c.firstKiB <= 0 || c.changeKiB <= 0 || c.conns != 1 {
			t.Errorf("the crowd of %s: %+v", s.name, c)
		}
		checkWatches(t, s, c.watches)
	}
	plots, err := draw(r.Charts(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.Render(plots)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{scaleMarker.begin(), "\n## A cluster of 101 Services\n", r.runTable(followColumns), r.runTable(delayColumns), r.fleetTable(), r.fleetCostTable(), plotDir + "/scale-memory.svg", scaleMarker.end()} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// checkStay checks what holds on every machine.
func checkStay(t *testing.T, s server, st clusterRun) {
	t.Helper()
	if st.rss == 0 || st.peak < st.rss || st.sync <= 0 || st.first.Conns == 0 {
		t.Errorf("%s: nothing measured: %+v", s.name, st)
	}
	// A hundred Services are more than a connection's set-up, and fewer than this.
	if n := st.first.Received; n < 20<<10 || n > 10<<20 {
		t.Errorf("%s: %d bytes for the first sync", s.name, n)
	}
	if st.changes == 0 || st.changed.Received == 0 || st.changed.Conns != 0 {
		t.Errorf("%s: %d changes gave %+v", s.name, st.changes, st.changed)
	}
	if len(st.delays) != 120 || len(st.whole) != len(st.delays) || !slices.IsSorted(st.delays) || !slices.IsSorted(st.whole) || st.unseen != 0 {
		t.Errorf("%s: %d delays, %d of changes that were not seen; want 120 and none", s.name, len(st.delays), st.unseen)
	}
	checkWatches(t, s, st.watches)
}

// checkWatches holds CoreDNS to its three and nodens to at least one of each kind.
func checkWatches(t *testing.T, s server, n float64) {
	t.Helper()
	if n < 3 || s.program == "coredns" && n != 3 {
		t.Errorf("%s has %v watches", s.name, n)
	}
}
