package main

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
)

// hit is the first set at saturation.
func hit() workload { return workloads()[0] }

// made is a report of three rounds of one workload, in the second of which the
// machine was slow for both servers.
func made() *queriesReport {
	w := hit()
	r := newQueriesReport(&report{
		plan: plan{rounds: 3, length: time.Second, names: defaultCacheNames, cluster: true},
		date: time.Unix(0, 0), servers: []server{{name: "nodens"}, {name: "CoreDNS"}},
		workloads: []workload{w}, samples: map[cell][]sample{},
	})
	for name, micros := range map[string][]int{"nodens": {2, 8, 3}, "CoreDNS": {10, 20, 10}} {
		for _, m := range micros {
			s := sample{cpu: time.Duration(m) * time.Millisecond, kernel: 0.5, switches: 10, rss: 20 << 20}
			s.idle = 30*time.Millisecond - s.cpu
			s.loadResult = loadResult{sent: 1000, completed: 1000, elapsed: 50 * time.Millisecond, request: 30, response: 46}
			r.samples[cell{name, w.name}] = append(r.samples[cell{name, w.name}], s)
		}
	}
	return r
}

// TestRatio holds that prices are compared within a round: medians on their own
// would say 3 to 10.
func TestRatio(t *testing.T) {
	r := made()
	got, ok := r.ratio(sample.cpuPerQuery, cell{"nodens", hit().name}, cell{"CoreDNS", hit().name})
	want := spread{median: 0.3, least: 0.2, most: 0.4}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(spread{})); !ok || d != "" {
		t.Errorf("ratio %v (-want +got):\n%s", ok, d)
	}
	if _, ok := r.ratio(sample.cpuPerQuery, cell{"nodens", hit().name}, cell{"nobody", hit().name}); ok {
		t.Error("a row that was not measured is compared")
	}
}

func TestJudge(t *testing.T) {
	r := made()
	r.noteBusyCore()
	if len(r.notes) != 1 || !strings.Contains(r.notes[0], "40 %") {
		t.Errorf("with 40 %% of the core gone the notes are %q", r.notes)
	}
	r = made()
	for _, samples := range r.samples {
		for i := range samples {
			samples[i].idle = samples[i].elapsed - samples[i].cpu
		}
	}
	r.noteBusyCore()
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
	if d := cmp.Diff(want, "\n"+r.workloadTable(r.workloads[0])); d != "" {
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
		page, err := r.Render(nil)
		if err != nil {
			t.Fatal(err)
		}
		command := "\ngo run ./test/bench -rounds 3 -seconds 1 -out BENCHMARKS.md\n"
		if !cluster {
			command = strings.Replace(command, "-out", "-cluster=false -out", 1)
		}
		for _, want := range []string{
			command, "1970-01-01", "\n- kernel: Linux 6.1\n", "\n" + r.notes[0] + "\n", "\n## cached A\n\nNames of the",
			targetTable(r.Targets(), true), r.workloadTable(r.workloads[0]),
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
		with := settings{port: 1, metrics: 2, dir: "d", conf: "c", upstream: netip.MustParseAddrPort("127.0.0.1:53"), kubeconfig: "k", largeCache: true}
		for _, text := range append(programs[s.program].args, configText(s.conf)) {
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
func whole() *queriesReport {
	r := made()
	r.servers, r.workloads = servers, workloads()
	clear(r.samples)
	r.rests, r.holds = map[string][]idleSample{}, map[string]memorySample{}
	for _, s := range servers {
		for _, w := range workloads() {
			if w.asks(s) {
				r.samples[cell{s.name, w.name}] = []sample{alike()}
			}
		}
		r.rests[s.name] = []idleSample{{cpu: 3 * time.Millisecond, switches: 8, length: 2 * time.Second}}
		r.holds[s.name] = memorySample{idle: 20 << 20, full: 40 << 20, kept: 1}
	}
	return r
}

func alike() sample {
	s := sample{cpu: 10 * time.Millisecond, before: 1 << 20, peak: 1 << 20, rss: 1 << 20}
	s.loadResult = loadResult{sent: 1000, completed: 1000, elapsed: time.Second, rcodes: map[string]uint64{"NOERROR": 1000}}
	for range 1000 {
		s.latencies = append(s.latencies, 50*time.Microsecond)
	}
	return s
}

// TestClaims breaks each claim on its own, by a little, and keeps it by a little:
// every claim has its cells, its limit stands where it says, and it is about
// nodens.
func TestClaims(t *testing.T) {
	for i, c := range whole().mainTargets() {
		t.Run(c.what, func(t *testing.T) {
			for _, test := range []struct {
				name   string
				factor float64
				met    bool
			}{{"below", 0.99, true}, {"at", 1, !c.below}, {"above", 1.01, false}} {
				r := whole()
				scale(r, c, c.limit*test.factor)
				res := r.mainTargets()[i].judge()
				if !res.measured {
					t.Fatal("not measured with every cell there")
				}
				if test.name != "at" && res.met() != test.met {
					t.Errorf("%s the limit %g: %+v is met: %v", test.name, c.limit, res.spread, res.met())
				}
				at := targetResult{target: c, measured: true, spread: spread{median: c.limit * test.factor}}
				if at.met() != test.met {
					t.Errorf("%s the limit: met %v", test.name, at.met())
				}
			}
			if res := newQueriesReport(&report{}).mainTargets()[i].judge(); res.measured || res.met() || res.verdict() != "not measured" {
				t.Errorf("of an empty report: %s", res.verdict())
			}
		})
	}
}

// scale makes nodens' values the given number of times those of everybody.
func scale(r *queriesReport, c target, by float64) {
	if c.unit != "" {
		size := uint64(by * (1 << 20))
		r.holds["nodens"] = memorySample{idle: size, full: size}
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
	for _, c := range r.mainTargets() {
		if !strings.HasPrefix(c.what, "CPU per answer from the cluster view at saturation") {
			continue
		}
		if res := c.judge(); res.worst != "headless A" || res.spread.median != 3 || res.met() {
			t.Errorf("%s: %s, %+v", c.what, res.worst, res.spread)
		}
	}
}

// TestDraw draws everything, and an empty report.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	r := whole()
	plots, err := draw(r.Charts(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(r.Charts()); len(plots) != want || want != 8 {
		t.Errorf("%d drawings of %d charts, want 8", len(plots), want)
	}
	page, err := r.Render(plots)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plots {
		text, err := os.ReadFile(filepath.Join(dir, p.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(text), ">nodens<") {
			t.Errorf("%s shows nothing:\n%s", p.File, text)
		}
		if !strings.Contains(string(page), "]("+p.File+")") {
			t.Errorf("the page does not show %s", p.File)
		}
	}
	if list := newQueriesReport(&report{}).Charts(); len(list) != 0 {
		t.Errorf("of nothing there are %d charts", len(list))
	}
}

// TestRound runs everything once, as short as it goes. What comes out is not
// looked at for how fast it is: only that it was measured, and that every table
// has its rows.
func TestRound(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(errNoDnsperf)
	}
	if _, _, err := splitCores(); errors.Is(err, errCores) {
		t.Skip(err)
	}
	r, err := measure(t.Context(), plan{rounds: 1, length: 200 * time.Millisecond, names: 2000, cluster: true, progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := splitCores(); err != nil {
		t.Errorf("after the run: %v", err)
	}
	if len(r.workloads) != len(workloads()) {
		t.Errorf("%d workloads, want %d", len(r.workloads), len(workloads()))
	}
	// Without gcc there is no echo, and a peer may not be installed.
	left := 0
	for _, n := range r.notes {
		if strings.Contains(n, "is left out") {
			left++
		}
		if strings.Contains(n, errStart.Error()) {
			t.Error(n)
		}
	}
	if len(r.servers)+left != len(servers) {
		t.Errorf("%d rows and the notes %q, want a row or a note for each of %d servers", len(r.servers), r.notes, len(servers))
	}
	for _, w := range r.workloads {
		for _, s := range r.servers {
			samples := r.samples[cell{s.name, w.name}]
			if !w.asks(s) {
				if len(samples) > 0 {
					t.Errorf("%s, %s: measured and should not be", w.name, s.name)
				}
				continue
			}
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(samples))
			}
			for _, p := range samples[0].Problems(w) {
				t.Errorf("%s, %s: %s", w.name, s.name, p)
			}
		}
	}
	for _, s := range r.servers {
		if len(r.rests[s.name]) != 1 {
			t.Errorf("%s: %d measurements at rest, want 1", s.name, len(r.rests[s.name]))
		}
		h, ok := r.holds[s.name]
		// A note tells of those that a busy machine makes too slow.
		noted := slices.ContainsFunc(r.notes, func(n string) bool { return strings.Contains(n, "memory of "+s.name+" is not") })
		if want := !s.saturationOnly && !programs[s.program].perSet && !noted; ok != want {
			t.Errorf("%s: memory measured: %v, want %v", s.name, ok, want)
		}
		if ok && (h.idle == 0 || h.full < h.idle/2 || h.kept < 0.5) {
			t.Errorf("%s: memory %+v", s.name, h)
		}
	}
	page, err := r.Render(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| nodens ", "| CoreDNS ", "\n- coredns: CoreDNS-", "\n- nodens: nodens-", "\n- dnsperf: ", "\n## Service A\n"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
