package counting

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestWatchingTargets: a report in which watching costs little meets all targets. The pod that is followed alone has
// none.
func TestWatchingTargets(t *testing.T) {
	r := &WatchingReport{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Section: harness.WatchingFlag}, Date: time.Unix(0, 0), Samples: map[harness.Cell][]harness.Sample{},
	}, harness.Results[lines]{}, harness.Results[machine.ProcStat]{{Server: afterStart}: {{RSS: 20 << 20, Anonymous: 5 << 20}, {RSS: 21 << 20, Anonymous: 6 << 20}}}}
	for i, row := range []string{unwatchedRow, watchedRow} {
		s := harness.Sample{LoadResult: harness.LoadResult{Sent: 100, Completed: 100, Elapsed: 2 * time.Second}, CPU: time.Duration(100+i) * time.Microsecond}
		for _, w := range watchingWorkloads() {
			r.Samples[harness.Cell{Server: row, Workload: w.Name}] = []harness.Sample{s, s}
			r.lines[harness.Cell{Server: watchedRow, Workload: w.Name}] = []lines{{shown: 8, lost: 6, length: 2 * time.Second}, {shown: 8, lost: 6, length: 2 * time.Second}}
		}
	}
	if list := harness.Missed(r.Targets()); list != nil {
		t.Errorf("missed: %q", list)
	}
	for _, w := range watchingWorkloads()[2:] {
		r.Samples[harness.Cell{Server: watchedRow, Workload: w.Name}][0].CPU = 107 * time.Microsecond
	}
	r.memory[harness.Cell{Server: afterStart}][0].RSS = 40 << 20
	if d := cmp.Diff([]string{"CPU per hit, 1,000 qps, relative to not watched: cached A", "memory after the start: "}, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, row := range []string{"| cached A, 1,000 qps ", "| names of a search path, at saturation ", "10,000 qps of the pod that is followed |                4 |               3 |", "| 30.5 |  21.0–40.0 |                5.5 |"} {
		if !strings.Contains(string(pages[0].Text), row) {
			t.Errorf("the page lacks %q:\n%s", row, pages[0].Text)
		}
	}
}

// TestMeasureWatching measures everything once, as short as it goes. The agent that is watched sends events and lines.
func TestMeasureWatching(t *testing.T) {
	peer.Build(t, "kube-apiserver") // skips under -short
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := MeasureWatching(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 200*time.Millisecond), Names: soak.Choose(200, 2000), Short: !soak.Enabled(), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range watchingWorkloads() {
		for _, row := range []string{watchedRow, unwatchedRow} {
			list := r.Samples[harness.Cell{Server: row, Workload: w.Name}]
			if len(list) != 1 || list[0].Completed == 0 || list[0].CPU <= 0 || list[0].Elapsed <= 0 {
				t.Errorf("%s, %s: %+v", w.Name, row, list)
			}
		}
		if list := r.memory[harness.Cell{Server: afterStart}]; len(list) != 1 || list[0].Anonymous == 0 || list[0].RSS <= list[0].Anonymous {
			t.Errorf("memory after the start: %+v", list)
		}
		if l := r.lines[harness.Cell{Server: watchedRow, Workload: w.Name}]; len(l) != 1 || l[0].shown == 0 {
			t.Errorf("%s: lines %+v", w.Name, l)
		}
	}
}
