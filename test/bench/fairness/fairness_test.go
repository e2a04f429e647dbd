package fairness

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
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// answered makes a result of n queries that were answered within the times.
func answered(n uint64, times ...time.Duration) load.Result {
	r := load.Result{Sent: n, Answered: n, Prompt: n, Latencies: times, Elapsed: time.Second}
	r.Rcodes[dns.RcodeSuccess] = n
	return r
}

// sampleReport is a report of two rounds that meets all targets.
func sampleReport() *Report {
	r := newReport(&harness.Report{
		Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: Parts{true, true, true}.Flags()}, Date: time.Unix(0, 0),
		Samples: map[harness.Cell][]harness.Sample{},
	})
	for _, name := range floodRows() {
		for _, c := range floodCases() {
			v := victims{hits: answered(100, time.Millisecond), misses: answered(100, 3*time.Millisecond), flood: 1000, elapsed: time.Second}
			r.floods[harness.Cell{Server: name, Workload: c.name}] = []floodResult{{v, v}, {v, v}}
			r.floodRates[c.name] = 1000
		}
	}
	for i, s := range loadServers() {
		took := float64(4 - i)
		l := loadResult{sent: 1000, busy: took, client: took / 2, agent: took / 2, floorBusy: 0.5, floorClient: 0.5}
		r.loads[harness.Cell{Server: s.Name}] = []loadResult{l, l}
	}
	for _, s := range budgetServers() {
		b := budgetSample{cached: answered(10), stale: answered(10), most: 950, arrived: 950}
		for range askingPods {
			b.pods = append(b.pods, answered(95))
		}
		r.budgets[harness.Cell{Server: s.Name}] = []budgetResult{{b, b}, {b, b}}
	}
	for _, name := range []string{onRow, offRow} {
		for _, l := range shareLoads() {
			s := harness.Sample{LoadResult: harness.LoadResult{Completed: 100, Elapsed: time.Second}, CPU: 100 * time.Microsecond}
			r.Samples[harness.Cell{Server: name, Workload: l.name}] = []harness.Sample{s, s}
		}
	}
	return r
}

// TestTargets: a report in which nobody suffers meets all targets. One bad round of one case misses those that are about every round, and
// two bad rounds those that are about the median.
func TestTargets(t *testing.T) {
	r := sampleReport()
	if list := harness.Missed(r.Targets()); list != nil {
		t.Errorf("missed: %q", list)
	}
	bad := r.floods[harness.Cell{Server: nodensRow, Workload: "hits"}]
	bad[0].flood.hits = answered(99, 2*time.Millisecond)
	bad[0].flood.hits.Sent, bad[0].flood.hits.Lost = 100, 1
	bad[1].flood.hits = answered(100, 2*time.Millisecond)
	bad[1].flood.misses = answered(99, 3*time.Millisecond)
	bad[1].flood.misses.Answered++ // a SERVFAIL
	r.loads[harness.Cell{Server: kernelLimitRow}][0].agent, r.loads[harness.Cell{Server: kernelLimitRow}][1].agent = 1, 1
	r.budgets[harness.Cell{Server: budgetRow}][1].greedy.most = 1001
	r.budgets[harness.Cell{Server: budgetRow}][1].greedy.dropped = 1
	r.budgets[harness.Cell{Server: budgetRow}][0].equal.pods[3] = answered(80)
	r.budgets[harness.Cell{Server: budgetRow}][0].equal.stale.Sent++
	r.Samples[harness.Cell{Server: onRow, Workload: "miss"}][0].CPU = 110 * time.Microsecond
	want := []string{
		"nodens: p99 of hits beside a flood, relative to the control: hits",
		"nodens: victims' queries that failed, in any round: hits",
		"nodens: victims' queries that were lost, in any round: hits",
		"node's CPU time for a flood with the limit in the kernel, relative to the agent: client and agent",
		"queries in the upstream's busiest second: ",
		"queries that the upstream dropped: ",
		"a pod's answers: distance from the mean: ",
		"cached and expired names that failed beside it: ",
		"CPU per miss with a limit and a budget, relative to none: ",
	}
	if d := cmp.Diff(want, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
}

// TestPage: the page has the tables of all parts.
func TestPage(t *testing.T) {
	r := sampleReport()
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	text := string(pages[0].Text)
	want := append([]string{"\ngo run ./test/bench -floods -budgets -shares -rounds 2 "}, r.loadTable(), r.shareTable(), r.equalTable(), r.greedyTable(), r.knownTable())
	for _, c := range floodCases() {
		want = append(want, "\n## A flood of "+c.name+", 1000 a second\n", r.floodTable(c, floodRows()))
	}
	for _, w := range want {
		if w == "" || !strings.Contains(text, w) {
			t.Errorf("the page lacks %q:\n%s", w, text)
		}
	}
	// Without a part its headings are left out.
	empty := newReport(&harness.Report{Date: time.Unix(0, 0)})
	if pages, err = empty.Render(nil); err != nil || strings.Contains(string(pages[0].Text), "\n## A ") {
		t.Errorf("%v, of an empty report:\n%s", err, pages[0].Text)
	}
	if got := empty.Tables(); slices.ContainsFunc(got, func(s string) bool { return s != "" }) {
		t.Errorf("tables of an empty report: %q", got)
	}
}

// TestRange: the pod with the fewest answers decides how far shares are apart.
func TestRange(t *testing.T) {
	s := budgetSample{pods: []load.Result{answered(100), answered(120), answered(80)}}
	if got := s.share(); got != 0.2 {
		t.Errorf("80 to 120 answers: %v from the mean, want 0.2", got)
	}
	s.pods[0].Sent = 200
	if got := s.polite(); got != 0.5 {
		t.Errorf("100 of 200: %v answered, want 0.5", got)
	}
	if got := (budgetSample{pods: make([]load.Result, 2)}).share(); got != 1 {
		t.Errorf("no answers at all: %v, want 1", got)
	}
}

// TestMeasure measures all parts once, as short as it goes. What is looked at is that they were measured, and what holds however
// fast the machine is.
func TestMeasure(t *testing.T) {
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	peer.Build(t, "coredns") // skips under -short
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(50*time.Millisecond, time.Second), Short: !soak.Enabled(), Progress: t.Output(),
	}, Parts{true, true, true})
	if errors.Is(err, machine.ErrCores) || errors.Is(err, harness.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	kernelPath := testbed.KernelPathUsable() == nil
	for _, note := range r.Notes {
		if strings.Contains(note, "failed") || kernelPath && strings.Contains(note, harness.ErrStart.Error()) {
			t.Error(note)
		}
	}
	checkFloods(t, r)
	if list := r.budgets[harness.Cell{Server: budgetRow}]; len(list) != 1 {
		t.Errorf("%d results of a budget", len(list))
	} else if s := list[0].equal; len(s.pods) != askingPods || s.arrived == 0 || s.most == 0 || s.cached.Sent == 0 || s.stale.Sent == 0 {
		t.Errorf("budget: %s", s)
	}
	for _, l := range shareLoads() {
		if v, ok := r.CPURatio(onRow, offRow, l.name); !ok || v.Median <= 0 {
			t.Errorf("CPU per %s: %v", l.name, v)
		}
	}
	if kernelPath {
		for _, s := range loadServers() {
			// The machine's idle time is counted in ticks, which are as long as the short form's flood.
			list := r.loads[harness.Cell{Server: s.Name}]
			if len(list) != 1 || list[0].sent == 0 || soak.Enabled() && list[0].busy <= 0 || list[0].client <= 0 {
				t.Errorf("the node's CPU time for a flood, %s: %+v", s.Name, list)
			}
		}
	}
}

// checkFloods checks what floods of nodens have measured.
func checkFloods(t *testing.T, r *Report) {
	t.Helper()
	rows := []string{nodensRow}
	if testbed.KernelPathUsable() == nil {
		rows = append(rows, limitedRow)
	}
	for _, name := range rows {
		for _, c := range floodCases() {
			list := r.floods[harness.Cell{Server: name, Workload: c.name}]
			if len(list) != 1 {
				t.Errorf("flood of %s, %s: %d results", c.name, name, len(list))
				continue
			}
			for _, v := range []victims{list[0].flood, list[0].control} {
				if v.hits.Sent == 0 || v.misses.Sent == 0 || v.flood == 0 || v.cpu <= 0 || !slices.IsSorted(v.hits.Latencies) || v.hits.Answered == 0 {
					t.Errorf("flood of %s, %s: %s", c.name, name, v)
				}
			}
		}
	}
}
