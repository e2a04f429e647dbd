package outage

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// sampleReport is a report of two rounds of two servers.
func sampleReport() *Report {
	r := &Report{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: harness.OutageFlag},
		Date: time.Unix(0, 0), Servers: servers()[:2],
	}, map[harness.Cell][]result{}}
	for i, s := range r.Servers {
		for _, o := range outageCases {
			for n := range 2 {
				took := time.Duration(i+n+1) * time.Millisecond
				r.results[harness.Cell{Server: s.Name, Workload: o.name}] = append(r.results[harness.Cell{Server: s.Name, Workload: o.name}], result{
					asked: 100, failed: i, early: []time.Duration{took}, late: []time.Duration{2 * took}, upstream: 1, conns: 3, cpu: took,
				})
			}
		}
	}
	return r
}

// TestTargets holds what the numbers of a report say of each target.
func TestTargets(t *testing.T) {
	r := sampleReport()
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Met() {
			t.Errorf("%s: %s with %+v", c.What, res.Verdict(), res.Spread)
		}
	}
	for i := range r.results[harness.Cell{Server: "nodens", Workload: overTLS}] {
		r.results[harness.Cell{Server: "nodens", Workload: overTLS}][i].cpu = time.Second
	}
	for i := range r.results[harness.Cell{Server: "nodens", Workload: oneFrozen}] {
		bad := &r.results[harness.Cell{Server: "nodens", Workload: oneFrozen}][i]
		bad.failed, bad.early, bad.late = 1, []time.Duration{time.Second}, []time.Duration{time.Second}
	}
	var missed []string
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Met() {
			missed = append(missed, c.What)
		}
	}
	want := []string{
		"queries that failed, one upstream dead or frozen", "p99 of misses in the first five seconds", "p99 of misses later", "CPU per miss over TLS, relative to CoreDNS",
	}
	if d := cmp.Diff(want, missed); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
}

// TestMeasure goes through all outages once, short. What is looked at is that they were
// measured, and what holds however fast the machine is.
func TestMeasure(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(50*time.Millisecond, time.Second), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.OutageFlag,
	}, soak.Choose(300*time.Millisecond, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outageCases {
		for _, s := range r.Servers {
			at := harness.Cell{Server: s.Name, Workload: o.name}
			if want := o.unsupported != s.Program; (len(r.results[at]) == 1) != want {
				t.Fatalf("%s, %s: %d results", s.Name, o.name, len(r.results[at]))
			}
			if len(r.results[at]) == 0 {
				continue
			}
			tr := r.results[at][0]
			if tr.asked == 0 || tr.upstream == 0 || len(tr.early) == 0 || !slices.IsSorted(tr.early) || (o.lateLabel != "") != (len(tr.late) > 0) || (o.name == overTLS) != (tr.cpu > 0) {
				t.Errorf("%s, %s: %s", s.Name, o.name, tr)
			}
		}
		if tr := r.results[harness.Cell{Server: "nodens", Workload: o.name}]; tr[0].failed > 0 {
			t.Errorf("nodens, %s: %s", o.name, tr[0])
		}
	}
	// Beside other tests a reply may be delayed until the agent asks again.
	tr := r.results[harness.Cell{Server: "nodens", Workload: atOnce}][0]
	if most := soak.Choose(tr.asked/4, 1); tr.upstream > uint64(most) {
		t.Errorf("%d clients made %d questions to the upstream for one name, want at most %d", tr.asked, tr.upstream, most)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	if !strings.Contains(string(pages[0].Text), "\n## "+oneFrozen+"\n") {
		t.Errorf("the page lacks an outage:\n%s", pages[0].Text)
	}
}
