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

// sampleReport is a report of two rounds in which attribution costs a hundredth and 1 MiB.
func sampleReport() *Report {
	r := &Report{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Names: 1000, Section: harness.AttributionFlag}, Date: time.Unix(0, 0),
		Samples: map[harness.Cell][]harness.Sample{},
	}, harness.Results[memorySample]{}}
	for i, name := range []string{offRow, onRow} {
		s := harness.Sample{LoadResult: harness.LoadResult{Sent: 100, Completed: 100, Elapsed: time.Second}, CPU: time.Duration(100+i) * time.Microsecond}
		for _, w := range append(workloads(), kernelWorkload) {
			r.Samples[harness.Cell{Server: name, Workload: w.Name}] = []harness.Sample{s, s}
		}
		m := memorySample{heap: uint64(10+i) << 20, rss: uint64(20+i) << 20}
		r.memory[harness.Cell{Server: name}] = []memorySample{m, m}
	}
	return r
}

// TestTargets: a report in which attribution costs little meets all targets. One workload that costs more, or
// more memory, misses its own.
func TestTargets(t *testing.T) {
	r := sampleReport()
	if list := harness.Missed(r.Targets()); list != nil {
		t.Errorf("missed: %q", list)
	}
	r.Samples[harness.Cell{Server: onRow, Workload: workloads()[1].Name}][0].CPU = 107 * time.Microsecond
	r.memory[harness.Cell{Server: onRow}][1].heap = 14 << 20
	want := []string{"CPU per hit, at saturation, relative to off: search path", "more heap with 250 pods and 1000 names: "}
	if d := cmp.Diff(want, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, row := range []string{"| cached A, 1,000 qps ", "| names of a search path, at saturation ", "| inside the kernel, at saturation ", "| heap in use ", "| RSS "} {
		if !strings.Contains(string(pages[0].Text), row) {
			t.Errorf("the page lacks %q:\n%s", row, pages[0].Text)
		}
	}
}

func TestHeapInUse(t *testing.T) {
	n, err := heapInUse("heap profile: 0: 0 [1: 2] @ heap/1048576\n\n# HeapIdle = 5\n# HeapInuse = 1234\n")
	if n != 1234 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := heapInUse("# HeapIdle = 5\n"); err == nil {
		t.Error("no error")
	}
}

// TestTurns: in each round both agents have the same number of slices, and each is the first one in every other round.
func TestTurns(t *testing.T) {
	var first [2]int
	for round := range 4 {
		first[turn(0, round)]++
		var slices [2]int
		for i := range 2 * numSlices {
			slices[turn(i, round)]++
		}
		if slices[0] != slices[1] {
			t.Errorf("round %d: %v slices", round, slices)
		}
	}
	if first[0] != first[1] {
		t.Errorf("first: %v", first)
	}
}

// TestMeasure measures everything once, as short as it goes. Measure itself fails if the agents do not count what their
// rows say.
func TestMeasure(t *testing.T) {
	peer.Build(t, "kube-apiserver") // skips under -short
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 200*time.Millisecond), Names: soak.Choose(200, 2000), Short: !soak.Enabled(), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{onRow, offRow} {
		for _, w := range append(workloads(), kernelWorkload) {
			if w.Name == kernelWorkload.Name && len(r.Notes) > 0 { // not on this machine
				continue
			}
			list := r.Samples[harness.Cell{Server: name, Workload: w.Name}]
			if len(list) != 1 || list[0].Completed == 0 || list[0].CPU <= 0 || list[0].Elapsed <= 0 {
				t.Errorf("%s, %s: %+v", w.Name, name, list)
			}
		}
		if list := r.memory[harness.Cell{Server: name}]; len(list) != 1 || list[0].heap == 0 || list[0].rss < list[0].heap {
			t.Errorf("memory, %s: %+v", name, list)
		}
	}
}
