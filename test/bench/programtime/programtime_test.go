package programtime

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// sampleReport has two rounds of both agents: this tree's programs run for 200 and for 300 ns, the other commit's
// for 400.
func sampleReport() *Report {
	r := &harness.Report{Plan: harness.Plan{Before: "abc", Rounds: 2, Section: harness.ProgramFlag}, Samples: map[harness.Cell][]harness.Sample{}}
	add := func(name string, w harness.Workload, ns time.Duration) {
		s := harness.Sample{CPU: 1000 * ns}
		s.Completed, s.Elapsed = 1000, time.Second
		at := harness.Cell{Server: name, Workload: w.Name}
		r.Samples[at] = append(r.Samples[at], s)
	}
	for _, w := range workloads() {
		for _, ns := range []time.Duration{200, 300} {
			add(row, w, ns)
			add(harness.BeforeRow, w, 400)
		}
	}
	return &Report{r}
}

// TestPage: the page has the target, and a line for each workload with both agents and their ratio.
func TestPage(t *testing.T) {
	r := sampleReport()
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 || pages[0].File != "program-time.md" {
		t.Fatalf("%v, %v", pages, err)
	}
	text := strings.Join(strings.Fields(string(pages[0].Text)), " ")
	for _, w := range workloads() {
		if line := "| " + w.Name + " | 250 | 200–300 | 400 | 400–400 | 0.62 | 0.50–0.75 | 1000 |"; !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, pages[0].Text)
		}
	}
	if c := r.Targets()[0].Judge(); !c.Met() || c.Spread.Median != 250 || !strings.Contains(text, "-program -before abc") {
		t.Errorf("%s: %+v in\n%s", c.Verdict(), c.Spread, pages[0].Text)
	}
	r.Plan.Before = ""
	r.Samples = map[harness.Cell][]harness.Sample{{Server: row, Workload: workloads()[0].Name}: {{LoadResult: harness.LoadResult{Completed: 1000, Elapsed: time.Second}, CPU: 600 * time.Microsecond}}}
	if got := strings.Join(strings.Fields(r.table()), " "); !strings.Contains(got, "at saturation | 600 | 600–600 | 1000 |") || strings.Contains(got, "before") {
		t.Errorf("without another commit:\n%s", got)
	}
	if r.Targets()[0].Judge().Met() {
		t.Error("600 ns are within the limit")
	}
}

// TestMeasure measures this tree's agent, as short as it goes. Only that there were answers, and that the
// programs took time, is looked at.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts an agent: skipped under -short")
	}
	if err := errors.Join(testbed.Usable(), testbed.KernelPathUsable()); err != nil {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{Rounds: 1, Length: 800 * time.Millisecond, Short: true, Progress: t.Output(), Section: harness.ProgramFlag})
	if errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads() {
		list := r.Samples[harness.Cell{Server: row, Workload: w.Name}]
		if len(list) != 1 || list[0].Completed == 0 || list[0].CPU <= 0 {
			t.Errorf("%s: %+v", w.Name, list)
		}
	}
}
