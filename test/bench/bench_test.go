package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

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
	r, err := measure(t.Context(), plan{rounds: 1, length: 200 * time.Millisecond, cluster: true, progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := split(); err != nil {
		t.Errorf("after the run: %v", err)
	}
	if len(r.workloads) != len(workloads) {
		t.Errorf("%d workloads, want %d", len(r.workloads), len(workloads))
	}
	// Without gcc there is no echo; the other rows need nothing but the tree.
	left := 0
	for _, n := range r.notes {
		if strings.Contains(n, "is left out") {
			left++
		}
	}
	if len(r.servers)+left != len(servers) {
		t.Errorf("%d rows and the notes %q, want a row or a note for each of %d servers", len(r.servers), r.notes, len(servers))
	}
	for _, w := range r.workloads {
		for _, s := range r.servers {
			samples := r.samples[cell{s.name, w.name}]
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(samples))
			}
			checkSample(t, w.name+", "+s.name, samples[0])
		}
	}
	page, err := r.page()
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
func checkSample(t *testing.T, name string, s sample) {
	t.Helper()
	if s.completed == 0 || s.completed != s.sent || s.lost != 0 {
		t.Errorf("%s: %d of %d queries answered, %d lost", name, s.completed, s.sent, s.lost)
	}
	if s.misses != 0 {
		t.Errorf("%s: the upstream was asked %d times, want a warm cache", name, s.misses)
	}
	if s.cpu <= 0 || s.elapsed <= 0 || s.rss == 0 || s.kernel < 0 || s.kernel > 1 {
		t.Errorf("%s: nothing measured: %+v", name, s)
	}
	if s.response < s.request {
		t.Errorf("%s: answers of %d bytes to questions of %d", name, s.response, s.request)
	}
}
