package queries

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

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// cachedAtSaturation is the first set at saturation.
func cachedAtSaturation() harness.Workload { return harness.Workloads()[0] }

// sampleReport is a report of three rounds of one workload, in the second of which the
// machine was slow for both servers.
func sampleReport() *Report {
	w := cachedAtSaturation()
	r := newQueriesReport(&harness.Report{
		Plan: harness.Plan{Rounds: 3, Length: time.Second, Names: DefaultCacheNames, Cluster: true},
		Date: time.Unix(0, 0), Servers: []harness.Server{{Name: "nodens"}, {Name: "CoreDNS"}},
		Workloads: []harness.Workload{w}, Samples: map[harness.Cell][]harness.Sample{},
	})
	for name, micros := range map[string][]int{"nodens": {2, 8, 3}, "CoreDNS": {10, 20, 10}} {
		for _, m := range micros {
			s := harness.Sample{CPU: time.Duration(m) * time.Millisecond, Kernel: 0.5, Switches: 10, RSS: 20 << 20}
			s.Idle = 30*time.Millisecond - s.CPU
			s.LoadResult = harness.LoadResult{Sent: 1000, Completed: 1000, Elapsed: 50 * time.Millisecond, Request: 30, Response: 46}
			r.Samples[harness.Cell{Server: name, Workload: w.Name}] = append(r.Samples[harness.Cell{Server: name, Workload: w.Name}], s)
		}
	}
	return r
}

// TestRatio holds that prices are compared within a round: medians on their own
// would say 3 to 10.
func TestRatio(t *testing.T) {
	r := sampleReport()
	got, ok := r.CPURatio("nodens", "CoreDNS", cachedAtSaturation().Name)
	want := figures.Spread{Median: 0.3, Least: 0.2, Most: 0.4}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(figures.Spread{})); !ok || d != "" {
		t.Errorf("ratio %v (-want +got):\n%s", ok, d)
	}
	if _, ok := r.CPURatio("nodens", "nobody", cachedAtSaturation().Name); ok {
		t.Error("a row that was not measured is compared")
	}
}

func TestNoteBusyCore(t *testing.T) {
	r := sampleReport()
	r.NoteBusyCore()
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "40 %") {
		t.Errorf("with 40 %% of the core gone the notes are %q", r.Notes)
	}
	r = sampleReport()
	for _, samples := range r.Samples {
		for i := range samples {
			samples[i].Idle = samples[i].Elapsed - samples[i].CPU
		}
	}
	r.NoteBusyCore()
	if len(r.Notes) != 0 {
		t.Errorf("on a quiet machine the notes are %q", r.Notes)
	}
}

func TestWorkloadTable(t *testing.T) {
	const want = `
| server  | CPU µs per query |  least–most | in the kernel | queries/s | RSS MiB |
| ------- | ---------------: | ----------: | ------------: | --------: | ------: |
| nodens  |             3.00 |   2.00–8.00 |          50 % |     20000 |      20 |
| CoreDNS |            10.00 | 10.00–20.00 |          50 % |     20000 |      20 |
`
	r := sampleReport()
	if d := cmp.Diff(want, "\n"+r.WorkloadTable(r.Workloads[0])); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

// pages returns the text of all pages.
func pages(t *testing.T, r *Report, plots []figures.PlotFile) string {
	t.Helper()
	list, err := r.Render(plots)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, p := range list {
		text.Write(p.Text)
	}
	return text.String()
}

// TestPages holds that the pages carry what it takes to run the measurement again.
func TestPages(t *testing.T) {
	r := sampleReport()
	r.Fact("kernel", "Linux 6.1")
	r.Notes = []string{"The row C echo is left out: gcc: not installed."}
	for _, cluster := range []bool{true, false} {
		r.Plan.Cluster = cluster
		page := pages(t, r, nil)
		command := "\ngo run ./test/bench -rounds 3 -seconds 1 -out docs/benchmarks\n"
		if !cluster {
			command = strings.Replace(command, "-out", "-cluster=false -out", 1)
		}
		for _, want := range []string{
			command, "1970-01-01", "\n- kernel: Linux 6.1\n", "\n" + r.Notes[0] + "\n", "\n- cached A: Names of an",
			harness.TargetTable(r.Targets(), true),
		} {
			if !strings.Contains(page, want) {
				t.Errorf("cluster %v: the page lacks %q:\n%s", cluster, want, page)
			}
		}
		if strings.Contains(page, "![](") {
			t.Errorf("cluster %v: the page shows a drawing that is not there:\n%s", cluster, page)
		}
	}
}

// TestTables holds the tables that are written by hand against each other: a
// claim about a row that does not exist would be left out without a word.
func TestTables(t *testing.T) {
	rows := map[string]bool{}
	for _, s := range servers {
		if _, ok := harness.Programs[s.Program]; !ok {
			t.Errorf("row %s: no program %s", s.Name, s.Program)
		}
		if rows[s.Name] {
			t.Errorf("row %s is there twice", s.Name)
		}
		rows[s.Name] = true
		with := harness.Settings{Port: 1, Metrics: 2, Dir: "d", Conf: "c", Upstream: netip.MustParseAddrPort("127.0.0.1:53"), Kubeconfig: "k", LargeCache: true}
		for _, text := range append(harness.Programs[s.Program].Args, harness.ConfigText(s.Conf)) {
			if left := regexp.MustCompile("@[A-Z]+@").FindString(with.Fill(text)); left != "" {
				t.Errorf("row %s: the placeholder %s is left in\n%s", s.Name, left, with.Fill(text))
			}
		}
	}
	names := map[string]bool{}
	for _, w := range harness.Workloads() {
		if names[w.Name] {
			t.Errorf("workload %s is there twice", w.Name)
		}
		names[w.Name] = true
	}
}

// fullReport is a report with a sample of every cell, in which all servers are alike.
func fullReport() *Report {
	r := sampleReport()
	r.Servers, r.Workloads = servers, harness.Workloads()
	clear(r.Samples)
	r.idle, r.memory = harness.Results[idleSample]{}, harness.Results[memorySample]{}
	for _, s := range servers {
		for _, w := range harness.Workloads() {
			if w.Asks(s) {
				r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}] = []harness.Sample{equalSample()}
			}
		}
		r.idle[harness.Cell{Server: s.Name}] = []idleSample{{cpu: 3 * time.Millisecond, switches: 8, length: 2 * time.Second}}
		r.memory[harness.Cell{Server: s.Name}] = []memorySample{{idle: 20 << 20, full: 40 << 20, kept: 1}}
	}
	return r
}

func equalSample() harness.Sample {
	s := harness.Sample{CPU: 10 * time.Millisecond, Before: 1 << 20, Peak: 1 << 20, RSS: 1 << 20}
	s.LoadResult = harness.LoadResult{Sent: 1000, Completed: 1000, Elapsed: time.Second, Rcodes: map[string]uint64{"NOERROR": 1000}}
	for range 1000 {
		s.Latencies = append(s.Latencies, 50*time.Microsecond)
	}
	return s
}

// TestTargets breaks each claim on its own, by a little, and keeps it by a little:
// every claim has its cells, its limit stands where it says, and it is about
// nodens.
func TestTargets(t *testing.T) {
	for i, c := range fullReport().mainTargets() {
		t.Run(c.What, func(t *testing.T) {
			for _, test := range []struct {
				name   string
				factor float64
				met    bool
			}{{"below", 0.99, true}, {"at", 1, !c.Below}, {"above", 1.01, false}} {
				r := fullReport()
				scale(r, c, c.Limit*test.factor)
				res := r.mainTargets()[i].Judge()
				if !res.Measured {
					t.Fatal("not measured with every cell there")
				}
				if test.name != "at" && res.Met() != test.met {
					t.Errorf("%s the limit %g: %+v is met: %v", test.name, c.Limit, res.Spread, res.Met())
				}
				at := harness.TargetResult{Target: c, Measured: true, Spread: figures.Spread{Median: c.Limit * test.factor}}
				if at.Met() != test.met {
					t.Errorf("%s the limit: met %v", test.name, at.Met())
				}
			}
			if res := newQueriesReport(&harness.Report{}).mainTargets()[i].Judge(); res.Measured || res.Met() || res.Verdict() != "not measured" {
				t.Errorf("of an empty report: %s", res.Verdict())
			}
		})
	}
}

// scale makes nodens' values the given number of times those of everybody.
func scale(r *Report, c harness.Target, by float64) {
	if c.Unit != "" {
		size := uint64(by * (1 << 20))
		r.memory[harness.Cell{Server: "nodens"}] = []memorySample{{idle: size, full: size}}
		return
	}
	for at, samples := range r.Samples {
		if at.Server != "nodens" || at.Workload == "before the flood" {
			continue
		}
		s := &samples[0]
		s.CPU = time.Duration(float64(s.CPU) * by)
		s.Peak = uint64(float64(s.Peak) * by)
		for i := range s.Latencies {
			s.Latencies[i] = time.Duration(float64(s.Latencies[i]) * by)
		}
	}
}

// TestWorstWorkloadCounts holds that a claim about several workloads is judged by the one that
// is worst for it.
func TestWorstWorkloadCounts(t *testing.T) {
	r := fullReport()
	at := harness.Cell{Server: "nodens", Workload: "headless A, at saturation"}
	r.Samples[at][0].CPU *= 3
	for _, c := range r.mainTargets() {
		if !strings.HasPrefix(c.What, "CPU per answer from the cluster view at saturation") {
			continue
		}
		if res := c.Judge(); res.Worst != "headless A" || res.Spread.Median != 3 || res.Met() {
			t.Errorf("%s: %s, %+v", c.What, res.Worst, res.Spread)
		}
	}
}

// TestDraw draws everything, and an empty report.
func TestDraw(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "benchmarks")
	r := fullReport()
	plots, err := figures.Draw(r.Charts(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(r.Charts()); len(plots) != want || want != 8 {
		t.Errorf("%d drawings of %d charts, want 8", len(plots), want)
	}
	page := pages(t, r, plots)
	for _, p := range plots {
		text, err := os.ReadFile(filepath.Join(dir, p.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(text), ">nodens<") {
			t.Errorf("%s shows nothing:\n%s", p.File, text)
		}
		if !strings.Contains(page, "]("+p.File+")") {
			t.Errorf("the page does not show %s", p.File)
		}
	}
	if list := newQueriesReport(&harness.Report{}).Charts(); len(list) != 0 {
		t.Errorf("of nothing there are %d charts", len(list))
	}
}

// TestMeasure runs everything once, as short as it goes. What comes out is not
// looked at for how fast it is: only that it was measured, and that every table
// has its rows.
func TestMeasure(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(harness.ErrNoDnsperf)
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 200*time.Millisecond), Names: soak.Choose(200, 2000), Short: !soak.Enabled(), Cluster: true, Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := machine.SplitCores(); err != nil {
		t.Errorf("after the run: %v", err)
	}
	if len(r.Workloads) != len(harness.Workloads()) {
		t.Errorf("%d workloads, want %d", len(r.Workloads), len(harness.Workloads()))
	}
	// Without gcc there is no echo, and a peer may not be installed.
	left := 0
	for _, n := range r.Notes {
		if strings.Contains(n, "is left out") {
			left++
		}
		if strings.Contains(n, harness.ErrStart.Error()) {
			t.Error(n)
		}
	}
	if len(r.Servers)+left != len(servers) {
		t.Errorf("%d rows and the notes %q, want a row or a note for each of %d servers", len(r.Servers), r.Notes, len(servers))
	}
	for _, w := range r.Workloads {
		for _, s := range r.Servers {
			samples := r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}]
			if !w.Asks(s) {
				if len(samples) > 0 {
					t.Errorf("%s, %s: measured and should not be", w.Name, s.Name)
				}
				continue
			}
			if len(samples) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.Name, s.Name, len(samples))
			}
			for _, p := range samples[0].Problems(w) {
				// On a busy machine other servers ask again, for answers that they already have.
				if s.Program != "nodens" && strings.Contains(p, "want a warm cache") {
					t.Logf("%s, %s: %s", w.Name, s.Name, p)
					continue
				}
				t.Errorf("%s, %s: %s", w.Name, s.Name, p)
			}
		}
	}
	for _, s := range r.Servers {
		if len(r.idle[harness.Cell{Server: s.Name}]) != 1 {
			t.Errorf("%s: %d measurements at rest, want 1", s.Name, len(r.idle[harness.Cell{Server: s.Name}]))
		}
		list, ok := r.memory[harness.Cell{Server: s.Name}]
		// A note tells of those that a busy machine makes too slow.
		noted := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "memory of "+s.Name+" is not") })
		if want := !s.SaturationOnly && !harness.Programs[s.Program].PerSet && !noted; ok != want {
			t.Errorf("%s: memory measured: %v, want %v", s.Name, ok, want)
		}
		for _, h := range list {
			if h.idle == 0 || h.full < h.idle/2 || h.kept < 0.5 {
				t.Errorf("%s: memory %+v", s.Name, h)
			}
		}
	}
	page := pages(t, r, nil)
	for _, want := range []string{"| nodens ", "| CoreDNS ", "\n- coredns: CoreDNS-", "\n- nodens: nodens-", "\n- dnsperf: ", "| Service A "} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// TestMeasureBefore measures an earlier agent beside this tree's. It is the one that test/compat
// builds, too.
func TestMeasureBefore(t *testing.T) {
	if testing.Short() {
		t.Skip("building an earlier agent takes minutes: skipped under -short")
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(harness.ErrNoDnsperf)
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "compat", "testdata", "base"))
	if err != nil {
		t.Fatal(err)
	}
	base := strings.TrimSpace(string(text))
	peer.Earlier(t, base) // skips in a shallow clone
	only, err := harness.ParseFilter("^(100,000 )?cached A, at saturation/^nodens(, before)?$")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Measure(t.Context(), harness.Plan{Rounds: 1, Length: 20 * time.Millisecond, Short: true, Before: base, Only: only, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	measured := 0
	for _, c := range r.beforeTargets() {
		if c.Judge().Measured {
			measured++
		}
	}
	if len(r.Servers) != 2 || len(r.Workloads) != 2 || measured != 2 {
		t.Errorf("%d servers, %d workloads and %d comparisons, want 2 of each", len(r.Servers), len(r.Workloads), measured)
	}
	if page := pages(t, r, nil); !strings.Contains(page, "| "+harness.BeforeRow+" ") {
		t.Errorf("the pages lack the earlier agent:\n%s", page)
	}
}
