package main

import (
	"net/netip"
	"regexp"
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

// hit is the first set at saturation.
func hit() workload { return workloads()[0] }

// made is a report of three rounds of one workload, in the second of which the
// machine was slow for both servers.
func made() *report {
	w := hit()
	r := &report{
		plan: plan{rounds: 3, length: time.Second, names: entries, cluster: true},
		date: time.Unix(0, 0), servers: []server{{name: "nodens"}, {name: "CoreDNS"}},
		workloads: []workload{w}, samples: map[cell][]sample{},
	}
	for name, micros := range map[string][]int{"nodens": {2, 8, 3}, "CoreDNS": {10, 20, 10}} {
		for _, m := range micros {
			s := sample{cpu: time.Duration(m) * time.Millisecond, kernel: 0.5, switches: 10, rss: 20 << 20}
			s.idle = 30*time.Millisecond - s.cpu
			s.outcome = outcome{sent: 1000, completed: 1000, elapsed: 50 * time.Millisecond, request: 30, response: 46}
			r.samples[cell{name, w.name}] = append(r.samples[cell{name, w.name}], s)
		}
	}
	return r
}

// TestRatio holds that prices are compared within a round: medians on their own
// would say 3 to 10.
func TestRatio(t *testing.T) {
	r := made()
	got, ok := r.ratio(sample.price, cell{"nodens", hit().name}, cell{"CoreDNS", hit().name})
	want := spread{median: 0.3, least: 0.2, most: 0.4}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(spread{})); !ok || d != "" {
		t.Errorf("ratio %v (-want +got):\n%s", ok, d)
	}
	if _, ok := r.ratio(sample.price, cell{"nodens", hit().name}, cell{"nobody", hit().name}); ok {
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
		page, err := r.page(nil)
		if err != nil {
			t.Fatal(err)
		}
		command := "\ngo run ./test/bench -rounds 3 -seconds 1 -out BENCHMARKS.md\n"
		if !cluster {
			command = strings.Replace(command, "-out", "-cluster=false -out", 1)
		}
		for _, want := range []string{
			command, "1970-01-01", "\n- kernel: Linux 6.1\n", "\n" + r.notes[0] + "\n", "\n## cached A\n\nNames of the",
			r.results(claims(), true), r.prices(r.workloads[0]),
		} {
			if !strings.Contains(string(page), want) {
				t.Errorf("cluster %v: the page lacks %q:\n%s", cluster, want, page)
			}
		}
	}
}

// TestTables holds the tables that are written by hand against each other: a
// claim about a row that does not exist would be left out without a word.
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
		with := settings{port: 1, metrics: 2, dir: "d", conf: "c", upstream: netip.MustParseAddrPort("127.0.0.1:53"), kubeconfig: "k", large: true}
		for _, text := range append(programs[s.program].args, conf(s.conf)) {
			if left := regexp.MustCompile("@[A-Z]+@").FindString(with.fill(text)); left != "" {
				t.Errorf("row %s: the placeholder %s is left in\n%s", s.name, left, with.fill(text))
			}
		}
	}
	names := map[string]bool{}
	for _, w := range workloads() {
		if names[w.name] {
			t.Errorf("workload %s is there twice", w.name)
		}
		names[w.name] = true
	}
}

// whole is a report with a sample of every cell, in which all servers are alike.
func whole() *report {
	r := made()
	r.servers, r.workloads = servers, workloads()
	clear(r.samples)
	r.rests, r.holds = map[string][]rest{}, map[string]hold{}
	for _, s := range servers {
		for _, w := range workloads() {
			if w.asks(s) {
				r.samples[cell{s.name, w.name}] = []sample{alike()}
			}
		}
		r.rests[s.name] = []rest{{cpu: 3 * time.Millisecond, switches: 8, length: 2 * time.Second}}
		r.holds[s.name] = hold{idle: 20 << 20, full: 40 << 20, kept: 1}
	}
	return r
}

func alike() sample {
	s := sample{cpu: 10 * time.Millisecond, before: 1 << 20, peak: 1 << 20, rss: 1 << 20}
	s.outcome = outcome{sent: 1000, completed: 1000, elapsed: time.Second, rcodes: map[string]uint64{"NOERROR": 1000}}
	for range 1000 {
		s.latencies = append(s.latencies, 50*time.Microsecond)
	}
	return s
}

// TestClaims breaks each claim on its own, by a little, and keeps it by a little:
// every claim has its cells, its limit stands where it says, and it is about
// nodens.
func TestClaims(t *testing.T) {
	for i, c := range claims() {
		t.Run(c.what, func(t *testing.T) {
			for _, test := range []struct {
				name   string
				factor float64
				met    bool
			}{{"below", 0.99, true}, {"at", 1, !c.below}, {"above", 1.01, false}} {
				r := whole()
				scale(r, c, c.limit*test.factor)
				res := claims()[i].judge(r)
				if !res.measured {
					t.Fatal("not measured with every cell there")
				}
				if test.name != "at" && res.met() != test.met {
					t.Errorf("%s the limit %g: %+v is met: %v", test.name, c.limit, res.spread, res.met())
				}
				at := result{claim: c, measured: true, spread: spread{median: c.limit * test.factor}}
				if at.met() != test.met {
					t.Errorf("%s the limit: met %v", test.name, at.met())
				}
			}
			if res := c.judge(&report{}); res.measured || res.met() || res.verdict() != "not measured" {
				t.Errorf("of an empty report: %s", res.verdict())
			}
		})
	}
}

// scale makes nodens' values the given number of times those of everybody.
func scale(r *report, c claim, by float64) {
	if c.unit != "" {
		size := uint64(by * (1 << 20))
		r.holds["nodens"] = hold{idle: size, full: size}
		return
	}
	for at, samples := range r.samples {
		if at.server != "nodens" || at.workload == "before the flood" {
			continue
		}
		s := &samples[0]
		s.cpu = time.Duration(float64(s.cpu) * by)
		s.peak = uint64(float64(s.peak) * by)
		for i := range s.latencies {
			s.latencies[i] = time.Duration(float64(s.latencies[i]) * by)
		}
	}
}

// TestWorst holds that a claim about several workloads is judged by the one that
// is worst for it.
func TestWorst(t *testing.T) {
	r := whole()
	at := cell{"nodens", "headless A, at saturation"}
	r.samples[at][0].cpu *= 3
	for _, c := range claims() {
		if !strings.HasPrefix(c.what, "CPU per answer from the cluster view at saturation") {
			continue
		}
		if res := c.judge(r); res.worst != "headless A" || res.spread.median != 3 || res.met() {
			t.Errorf("%s: %s, %+v", c.what, res.worst, res.spread)
		}
	}
}

func TestPercentile(t *testing.T) {
	var values []time.Duration
	if got := percentile(values, 0.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for i := range 1000 {
		values = append(values, time.Duration(i+1))
	}
	for _, test := range []struct {
		n    int
		part float64
		want time.Duration
	}{
		{1, 0.5, 1}, {1, 0.999, 1}, {2, 0.5, 1}, {2, 0.51, 2}, {3, 0.5, 2}, {100, 0.99, 99}, {100, 0.29, 29},
		{100, 0.999, 100}, {1000, 0.999, 999}, {1000, 0.5, 500}, {1000, 1, 1000}, {1000, 0, 1},
	} {
		if got := percentile(values[:test.n], test.part); got != test.want {
			t.Errorf("%g of %d: %d, want %d", test.part, test.n, got, test.want)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, test := range []struct {
		text              string
		workload, serving string
		want              bool
	}{
		{"", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0/echo|nodens$", "cached A, 1,000 qps", "nodens", true},
		{"cached a, 1,0/echo|nodens$", "cached A, 1,000 qps", "nodens, bare", false},
		{"TCP", "cached A, 1,000 qps", "nodens", false},
		{"/unbound", "misses", "unbound", true},
	} {
		c, err := choose(test.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.named(test.workload) && c.server(server{name: test.serving}); got != test.want {
			t.Errorf("%q chooses %s of %s: %v", test.text, test.workload, test.serving, got)
		}
	}
	for _, text := range []string{"(", "/("} {
		if _, err := choose(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
