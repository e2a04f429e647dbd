package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		want   spread
	}{
		{"one", []float64{3}, spread{3, 3, 3}},
		{"odd, one far off", []float64{9, 1, 2}, spread{2, 1, 9}},
		{"even", []float64{4, 1, 3, 2}, spread{2.5, 1, 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if d := cmp.Diff(test.want, spreadOf(test.values), cmp.AllowUnexported(spread{})); d != "" {
				t.Errorf("spread (-want +got):\n%s", d)
			}
		})
	}
}

// made is a report of three rounds of one workload, in the second of which the
// machine was slow for both servers.
func made() *report {
	w := workload{name: "hit", what: "Everything is there."}
	r := &report{
		plan: plan{rounds: 3, length: time.Second, cluster: true},
		date: time.Unix(0, 0), servers: []server{{name: "nodens"}, {name: "CoreDNS"}},
		workloads: []workload{w}, samples: map[cell][]sample{},
	}
	for name, micros := range map[string][]int{"nodens": {2, 8, 3}, "CoreDNS": {10, 20, 10}} {
		for _, m := range micros {
			s := sample{cpu: time.Duration(m) * time.Millisecond, kernel: 0.5, switches: 10, rss: 20 << 20}
			s.idle = 30*time.Millisecond - s.cpu
			s.outcome = outcome{sent: 1000, completed: 1000, elapsed: 50 * time.Millisecond, request: 30, response: 46}
			r.samples[cell{name, "hit"}] = append(r.samples[cell{name, "hit"}], s)
		}
	}
	return r
}

// TestRatio holds that prices are compared within a round: medians on their own
// would say 3 to 10.
func TestRatio(t *testing.T) {
	r := made()
	got, ok := r.ratio(cell{"nodens", "hit"}, cell{"CoreDNS", "hit"})
	want := spread{median: 0.3, least: 0.2, most: 0.4}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(spread{})); !ok || d != "" {
		t.Errorf("ratio %v (-want +got):\n%s", ok, d)
	}
	if _, ok := r.ratio(cell{"nodens", "hit"}, cell{"nobody", "hit"}); ok {
		t.Error("a row that was not measured is compared")
	}
}

func TestJudge(t *testing.T) {
	r := made()
	r.judge()
	if len(r.notes) != 1 || !strings.Contains(r.notes[0], "40 %") {
		t.Errorf("with 40 %% of the core gone the notes are %q", r.notes)
	}
	r = made()
	for _, samples := range r.samples {
		for i := range samples {
			samples[i].idle = samples[i].elapsed - samples[i].cpu
		}
	}
	r.judge()
	if len(r.notes) != 0 {
		t.Errorf("on a quiet machine the notes are %q", r.notes)
	}
}

func TestPrices(t *testing.T) {
	const want = `
| server  | CPU µs per query |  least–most | in the kernel | queries/s | sleeps per query | core busy | by others | RSS MiB | answer bytes | misses |
| ------- | ---------------: | ----------: | ------------: | --------: | ---------------: | --------: | --------: | ------: | -----------: | -----: |
| nodens  |             3.00 |   2.00–8.00 |          50 % |     20000 |            0.010 |       6 % |      40 % |      20 |           46 |      0 |
| CoreDNS |            10.00 | 10.00–20.00 |          50 % |     20000 |            0.010 |      20 % |      40 % |      20 |           46 |      0 |
`
	r := made()
	if d := cmp.Diff(want, "\n"+r.prices(r.workloads[0])); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

// TestPage holds that the page carries what it takes to run it again.
func TestPage(t *testing.T) {
	r := made()
	r.fact("kernel", "Linux 6.1")
	r.notes = []string{"The row C echo is left out: gcc: not installed."}
	for _, cluster := range []bool{true, false} {
		r.plan.cluster = cluster
		page, err := r.page()
		if err != nil {
			t.Fatal(err)
		}
		command := "\ngo run ./test/bench -rounds 3 -seconds 1 -out BENCHMARKS.md\n"
		if !cluster {
			command = strings.Replace(command, "-out", "-cluster=false -out", 1)
		}
		for _, want := range []string{
			command, "1970-01-01", "\n- kernel: Linux 6.1\n", "\n" + r.notes[0] + "\n", "\n## hit\n\nEverything is there.\n",
			r.comparisons(), r.prices(r.workloads[0]),
		} {
			if !strings.Contains(string(page), want) {
				t.Errorf("cluster %v: the page lacks %q:\n%s", cluster, want, page)
			}
		}
	}
}

// TestTables holds the tables that are written by hand against each other: a
// ratio of a row that does not exist would be left out without a word.
func TestTables(t *testing.T) {
	rows := map[string]bool{}
	for _, s := range servers {
		if _, ok := programs[s.program]; !ok {
			t.Errorf("row %s: no program %s", s.name, s.program)
		}
		if rows[s.name] {
			t.Errorf("row %s is there twice", s.name)
		}
		rows[s.name] = true
		text := settings{port: 1, metrics: 2, conf: "c", upstream: "u", kubeconfig: "k"}.fill(s.conf)
		if strings.Contains(text, "@") {
			t.Errorf("row %s: a placeholder is left in\n%s", s.name, text)
		}
	}
	for _, c := range ratios {
		if !rows[c.of] || !rows[c.to] {
			t.Errorf("no rows for the ratio of %s to %s", c.of, c.to)
		}
	}
}
