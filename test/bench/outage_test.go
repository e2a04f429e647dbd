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
func madeOutages() *report {
	r := &report{
		plan: plan{rounds: 2, length: time.Second, failing: failing{on: true, silence: usualSilence}},
		date: time.Unix(0, 0), servers: outageServers()[:2], trials: map[cell][]trial{},
	}
	for i, s := range r.servers {
		for _, o := range ordeals {
			for n := range 2 {
				took := time.Duration(i+n+1) * time.Millisecond
				r.trials[cell{s.name, o.name}] = append(r.trials[cell{s.name, o.name}], trial{
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
	for _, c := range duties() {
		if res := c.judge(r); !res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	for i := range r.trials[cell{"nodens", overTLS}] {
		r.trials[cell{"nodens", overTLS}][i].cpu = time.Second
	}
	for i := range r.trials[cell{"nodens", oneFrozen}] {
		bad := &r.trials[cell{"nodens", oneFrozen}][i]
		bad.failed, bad.early, bad.late = 1, []time.Duration{time.Second}, []time.Duration{time.Second}
	}
	var missed []string
	for _, c := range duties() {
		if res := c.judge(r); !res.met() {
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

// TestParts holds that the sections of all kinds of runs stand side by side, and each
// run leaves the others' as they are.
func TestParts(t *testing.T) {
	small, large, failed, gone, attacked := made(), madeScale(), madeOutages(), madeFaults(), madeWorst()
	var page []byte
	for _, r := range []*report{small, failed, large, attacked, gone, failed, small, large, gone, attacked} {
		var err error
		if page, err = r.renew(page, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []part{scalePart, outagePart, faultPart, worstPart} {
		if n := strings.Count(string(page), p.begin()); n != 1 {
			t.Errorf("%s stands %d times in\n%s", p.flag, n, page)
		}
	}
	if !strings.Contains(string(page), failed.outageTable(ordeals[0])) {
		t.Errorf("the page lacks the table of %s:\n%s", ordeals[0].name, page)
	}
}

// TestOutages goes through all outages once, short. What is looked at is that they were
// measured, and what holds however fast the machine is.
func TestOutages(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, _, err := split(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	r, err := plan{
		rounds: 1, length: time.Second, progress: t.Output(), failing: failing{on: true, silence: time.Second},
	}.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range ordeals {
		for _, s := range r.servers {
			at := cell{s.name, o.name}
			if want := o.fails != s.program; (len(r.trials[at]) == 1) != want {
				t.Fatalf("%s, %s: %d trials", s.name, o.name, len(r.trials[at]))
			}
			if len(r.trials[at]) == 0 {
				continue
			}
			tr := r.trials[at][0]
			if tr.asked == 0 || tr.upstream == 0 || len(tr.early) == 0 || !slices.IsSorted(tr.early) || (o.after != "") != (len(tr.late) > 0) || (o.name == overTLS) != (tr.cpu > 0) {
				t.Errorf("%s, %s: %s", s.name, o.name, tr)
			}
		}
		if tr := r.trials[cell{"nodens", o.name}]; tr[0].failed > 0 {
			t.Errorf("nodens, %s: %s", o.name, tr[0])
		}
	}
	if n := r.trials[cell{"nodens", atOnce}][0].upstream; n != 1 {
		t.Errorf("%d questions to the upstream for one name, want 1", n)
	}
	text, err := r.renew(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n### "+oneFrozen+"\n") {
		t.Errorf("the section lacks an outage:\n%s", text)
	}
}
