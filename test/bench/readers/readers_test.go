package readers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
)

const output = `goos: linux
BenchmarkHotName/path         	 100	 400 ns/op	 0 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkHotName/path-2       	 100	 300.5 ns/op	 0.00002 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkHotName/path-16      	 100	 300 ns/op	 0.00002 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkHotName/kept         	 100	 100 ns/op	 0 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkHotName/kept-2       	 100	 310 ns/op	 0 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkHotName/kept-16      	 100	 150 ns/op	 0 lock-waits/op	 1 B/op	 0 allocs/op
BenchmarkSpread/hash          	 1	 5 ns/op	 4.2 busiest/mean
BenchmarkSpread/random        	 1	 5 ns/op	 1.3 busiest/mean
PASS
`

// TestReport: the values of the benchmarks are in the tables, and what is too much misses its target.
func TestReport(t *testing.T) {
	r := newReport(&harness.Report{Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: harness.ReadersFlag}, Date: time.Unix(0, 0)})
	for range 2 {
		if err := r.add([]byte(output)); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string][]float64{}
	for unit, of := range r.values {
		if list := of[hot("path", "-2")]; list != nil {
			got[unit] = list
		}
	}
	if d := cmp.Diff(map[string][]float64{"ns/op": {300.5, 300.5}, "lock-waits/op": {0.00002, 0.00002}, "B/op": {1, 1}, "allocs/op": {0, 0}}, got); d != "" {
		t.Errorf("values (-want +got):\n%s", d)
	}
	want := []string{
		"time of a hit from a kept reply, relative to the query path: 2 readers",
		"packets of the busiest of 16 sockets, relative to the mean: spread at random",
	}
	if d := cmp.Diff(want, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, cell := range []string{"0.25 (0.25–0.25)", "20.0 (20.0–20.0)", " 4.20 "} {
		if !strings.Contains(string(pages[0].Text), cell) {
			t.Errorf("the page has no %q:\n%s", cell, pages[0].Text)
		}
	}
	if err := r.add([]byte("BenchmarkX 1 x ns/op")); err == nil {
		t.Error("a value that is no number is accepted")
	}
}

// TestMeasure runs the benchmarks.
func TestMeasure(t *testing.T) {
	r, err := Measure(t.Context(), harness.Plan{Rounds: 1, Length: time.Millisecond, Progress: t.Output(), Section: harness.ReadersFlag})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range suffixes {
		for _, way := range []string{"path", "kept"} {
			if v, ok := r.results(took).Spread(hot(way, s.suffix), harness.Plain); !ok || v.Median <= 0 {
				t.Errorf("%s with %d readers was not measured: %+v", way, s.readers, v)
			}
		}
	}
	if v, ok := r.results(uneven).Spread(spread("random"), harness.Plain); !ok || v.Median < 1 {
		t.Errorf("the load of sockets was not measured: %+v", v)
	}
}
