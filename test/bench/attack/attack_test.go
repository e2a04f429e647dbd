package attack

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/soak"
	"github.com/nodens-dns/nodens/test/worst"
)

// sampleReport is a report of two rounds in which attacks make no difference.
func sampleReport() *Report {
	r := &Report{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: harness.AttackFlag}, Date: time.Unix(0, 0), Servers: servers,
	}, map[harness.Cell][]result{}}
	for _, c := range worst.Cases() {
		v := victimResult{Result: load.Result{Sent: 2, Answered: 2, Latencies: []time.Duration{time.Millisecond, 2 * time.Millisecond}}}
		v.Rcodes[dns.RcodeSuccess] = 2
		a := result{attack: v, control: v}
		if len(c.Queries) > 0 {
			a.attack.attacked, a.attack.cpu = 100, time.Millisecond
		}
		r.results[harness.Cell{Server: "nodens", Workload: c.Name}] = []result{a, a}
	}
	return r
}

// TestTargets holds what the numbers of a report say of each target: all are met, and
// each is missed by a victim that waits or gets no answer.
func TestTargets(t *testing.T) {
	r := sampleReport()
	if list := harness.Missed(r.Targets()); list != nil {
		t.Errorf("missed: %q", list)
	}
	if pages, err := r.Render(nil); err != nil || len(pages) != 1 || !strings.Contains(string(pages[0].Text), "| aliases ") {
		t.Errorf("the page lacks a case, %v:\n%v", err, pages)
	}
	late := r.results[harness.Cell{Server: "nodens", Workload: "aliases"}]
	for i := range late {
		late[i].attack.Latencies = []time.Duration{time.Millisecond, 3 * time.Millisecond}
	}
	silent := r.results[harness.Cell{Server: "nodens", Workload: "access list"}]
	for i := range silent {
		silent[i].attack = victimResult{Result: load.Result{Sent: 2, Lost: 2}}
	}
	want := []string{
		"p99 of a victim, cases by tenants, relative to the control: aliases",
		"p50 of a victim, the other cases, relative to the control: access list",
		"p99 of a victim, the other cases, relative to the control: access list",
		"queries that a victim lost, the other cases: access list",
	}
	if d := cmp.Diff(want, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
}

// TestMeasure goes through all cases once, short. What is asserted holds however fast the
// machine is: everything was measured, and the victim lost nothing.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a C compiler and half a minute")
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(50*time.Millisecond, 500*time.Millisecond), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.AttackFlag,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range worst.Cases() {
		list := r.results[harness.Cell{Server: "nodens", Workload: c.Name}]
		if len(list) != 1 {
			t.Fatalf("%s: %d samples", c.Name, len(list))
		}
		a := list[0]
		if a.attack.Sent == 0 || a.control.Sent == 0 || !slices.IsSorted(a.attack.Latencies) || (a.attack.attacked > 0) != (len(c.Queries) > 0 && c.Streams == 0) {
			t.Errorf("%s was not measured: %s", c.Name, a)
		}
		if a.lost() > 0 {
			t.Errorf("%s: %s", c.Name, a)
		}
	}
}
