package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// madeOutages is a report of two rounds of two servers.
func madeOutages() *outageReport {
	r := &outageReport{&report{
		plan: plan{rounds: 2, length: time.Second, section: outageMarker.flag},
		date: time.Unix(0, 0), servers: outageServers()[:2],
	}, map[cell][]outageResult{}}
	for i, s := range r.servers {
		for _, o := range outageCases {
			for n := range 2 {
				took := time.Duration(i+n+1) * time.Millisecond
				r.results[cell{s.name, o.name}] = append(r.results[cell{s.name, o.name}], outageResult{
					asked: 100, failed: i, early: []time.Duration{took}, late: []time.Duration{2 * took}, upstream: 1, conns: 3, cpu: took,
				})
			}
		}
	}
	return r
}

// TestDuties holds what the numbers of a report say of each claim.
func TestDuties(t *testing.T) {
	r := madeOutages()
	for _, c := range r.Targets() {
		if res := c.judge(); !res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	for i := range r.results[cell{"nodens", overTLS}] {
		r.results[cell{"nodens", overTLS}][i].cpu = time.Second
	}
	for i := range r.results[cell{"nodens", oneFrozen}] {
		bad := &r.results[cell{"nodens", oneFrozen}][i]
		bad.failed, bad.early, bad.late = 1, []time.Duration{time.Second}, []time.Duration{time.Second}
	}
	var missed []string
	for _, c := range r.Targets() {
		if res := c.judge(); !res.met() {
			missed = append(missed, c.what)
		}
	}
	want := []string{
		"questions that failed, one upstream dead or frozen", "p99 of misses in the first five seconds", "p99 of misses after them", "CPU per miss over TLS, CoreDNS's = 1",
	}
	if d := cmp.Diff(want, missed); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
}

// TestOutages goes through all outages once, short. What is looked at is that they were
// measured, and what holds however fast the machine is.
func TestOutages(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, _, err := splitCores(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	r, err := measureOutages(t.Context(), plan{rounds: 1, length: time.Second, progress: t.Output(), section: outageMarker.flag}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outageCases {
		for _, s := range r.servers {
			at := cell{s.name, o.name}
			if want := o.unsupported != s.program; (len(r.results[at]) == 1) != want {
				t.Fatalf("%s, %s: %d trials", s.name, o.name, len(r.results[at]))
			}
			if len(r.results[at]) == 0 {
				continue
			}
			tr := r.results[at][0]
			if tr.asked == 0 || tr.upstream == 0 || len(tr.early) == 0 || !slices.IsSorted(tr.early) || (o.lateLabel != "") != (len(tr.late) > 0) || (o.name == overTLS) != (tr.cpu > 0) {
				t.Errorf("%s, %s: %s", s.name, o.name, tr)
			}
		}
		if tr := r.results[cell{"nodens", o.name}]; tr[0].failed > 0 {
			t.Errorf("nodens, %s: %s", o.name, tr[0])
		}
	}
	if n := r.results[cell{"nodens", atOnce}][0].upstream; n != 1 {
		t.Errorf("%d questions to the upstream for one name, want 1", n)
	}
	text, err := renew(r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n### "+oneFrozen+"\n") {
		t.Errorf("the section lacks an outage:\n%s", text)
	}
}
