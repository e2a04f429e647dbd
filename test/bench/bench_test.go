package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestRound runs everything once, as short as it goes. What comes out is not
// looked at for how fast it is: only that it was measured, and that every table
// has its rows.
func TestRound(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(errNoLoad)
	}
	if _, _, err := split(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	r, err := measure(t.Context(), plan{rounds: 1, length: 200 * time.Millisecond, names: 2000, cluster: true, progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := split(); err != nil {
		t.Errorf("after the run: %v", err)
	}
	if len(r.workloads) != len(workloads()) {
		t.Errorf("%d workloads, want %d", len(r.workloads), len(workloads()))
	}
	// Without gcc there is no echo, and a peer may not be installed.
	left := 0
	for _, n := range r.notes {
		if strings.Contains(n, "is left out") {
			left++
		}
		if strings.Contains(n, errStart.Error()) {
			t.Error(n)
		}
	}
	if len(r.servers)+left != len(servers) {
		t.Errorf("%d rows and the notes %q, want a row or a note for each of %d servers", len(r.servers), r.notes, len(servers))
	}
	for _, w := range r.workloads {
		for _, s := range r.servers {
			samples := r.samples[cell{s.name, w.name}]
			if !w.asks(s) {
				if len(samples) > 0 {
					t.Errorf("%s, %s: measured and should not be", w.name, s.name)
				}
				continue
			}
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(samples))
			}
			checkSample(t, s.name, w, samples[0])
		}
	}
	for _, s := range r.servers {
		if len(r.rests[s.name]) != 1 {
			t.Errorf("%s: %d measurements at rest, want 1", s.name, len(r.rests[s.name]))
		}
		h, ok := r.holds[s.name]
		// A note tells of those that a busy machine makes too slow.
		noted := slices.ContainsFunc(r.notes, func(n string) bool { return strings.Contains(n, "memory of "+s.name+" is not") })
		if want := !s.bare && !programs[s.program].each && !noted; ok != want {
			t.Errorf("%s: memory measured: %v, want %v", s.name, ok, want)
		}
		if ok && (h.idle == 0 || h.full < h.idle/2 || h.kept < 0.5) {
			t.Errorf("%s: memory %+v", s.name, h)
		}
	}
	page, err := r.page(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| nodens ", "| CoreDNS ", "\n- coredns: CoreDNS-", "\n- nodens: nodens-", "\n- dnsperf: ", "\n## Service A\n"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// checkSample checks what holds on every machine.
func checkSample(t *testing.T, server string, w workload, s sample) {
	t.Helper()
	name := w.name + ", " + server
	// What a server throws away under a flood is its affair.
	if w.tool != miss && w.tool != flood {
		if err := s.check(dns.RcodeToString[w.rcode]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// dnsdist has an entry for each connection's first flight of the same name.
		if s.misses > nameCount/10 {
			t.Errorf("%s: the upstream was asked %d times, want a warm cache", name, s.misses)
		}
	}
	if s.completed == 0 || s.cpu <= 0 || s.elapsed <= 0 || s.rss == 0 || s.peak == 0 || s.kernel < 0 || s.kernel > 1 {
		t.Errorf("%s: nothing measured: %+v", name, s)
	}
	if s.response < s.request {
		t.Errorf("%s: answers of %d bytes to questions of %d", name, s.response, s.request)
	}
	if paced := w.tool == steady || w.tool == flood; paced != (len(s.latencies)+int(s.blurred) > 0) {
		t.Errorf("%s: %d latencies", name, len(s.latencies))
	}
	if (w.tool == flood) != (s.beside.sent > 0) {
		t.Errorf("%s: a flood of %d", name, s.beside.sent)
	}
}

// TestScale runs the section about a large cluster in a small one, with one scope of
// nodens' and CoreDNS. As in TestRound, only that things were measured is looked at,
// and what holds however fast the machine is.
func TestScale(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(errNoLoad)
	}
	if _, _, err := split(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	only, err := choose("residents|agents|cached A,|headless A/scope node|CoreDNS")
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan{
		rounds: 1, length: 200 * time.Millisecond, only: only, progress: t.Output(),
		scale: cluster{on: true, services: 100},
	}.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.servers) != 2 || len(r.workloads) != 3 || len(r.scale.crowds) != 2 {
		t.Fatalf("%d servers, %d workloads and %d crowds, want 2, 3 and 2", len(r.servers), len(r.workloads), len(r.scale.crowds))
	}
	for i, s := range r.servers {
		if len(r.scale.stays[s.name]) != 1 {
			t.Fatalf("%s: %d stays, want 1", s.name, len(r.scale.stays[s.name]))
		}
		checkStay(t, s, r.scale.stays[s.name][0])
		for _, w := range r.workloads {
			samples := r.samples[cell{s.name, w.name}]
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(samples))
			}
			checkSample(t, s.name, w, samples[0])
		}
		c := r.scale.crowds[i]
		if c.kind != s.name || c.agents != 2 || c.first <= 0 || c.news <= 0 || c.conns != 1 {
			t.Errorf("the crowd of %s: %+v", s.name, c)
		}
		checkWatches(t, s, c.watches)
	}
	file := filepath.Join(t.TempDir(), "page.md")
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{scalePart.begin(), "\n## A cluster of 101 Services\n", r.stayTable(following), r.stayTable(showing), r.crowdTable(), r.fleetTable(), folder + "/scale-memory.svg", scalePart.end()} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// checkStay checks what holds on every machine.
func checkStay(t *testing.T, s server, st stay) {
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
