package main

import (
	"errors"
	"os/exec"
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
