package kernel

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMain is a load client's process if the first argument says so.
func TestMain(m *testing.M) { os.Exit(load.Main(m.Run)) }

// sampleReport is a report of two rounds in which the kernel meets all targets, each by half.
func sampleReport() *Report {
	r := &Report{&failover.Report{Report: &harness.Report{
		Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: harness.KernelFlag}, Date: time.Unix(0, 0),
		Servers: podRows(), Workloads: podLoads(), Samples: map[harness.Cell][]harness.Sample{},
	}, Results: map[harness.Cell][]failover.Result{}}}
	for _, s := range r.Servers {
		took, cpu := 60*time.Microsecond, time.Second
		if s.Name == kernelRow {
			took, cpu = 5*time.Microsecond, 5*time.Millisecond
		}
		if harness.Programs[s.Program].Foreign {
			cpu *= 2
		}
		for _, w := range r.Workloads {
			got := harness.Sample{CPU: cpu, Busy: 2 * cpu, Client: cpu, IdleLoad: 0.001}
			got.LoadResult = harness.LoadResult{Sent: 1000, Completed: 1000, Elapsed: time.Second, Rcodes: map[string]uint64{"NOERROR": 1000}}
			if s.Name == kernelRow && w.Rate == 0 {
				got.Completed = 3000
			}
			for range 1000 {
				got.Latencies = append(got.Latencies, took)
			}
			r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}] = []harness.Sample{got, got}
		}
		for _, m := range podFaults() {
			h := failover.Result{Report: &load.Report{LongestSilence: time.Second}}
			h.UDP.Counts = load.Counts{Asked: 1000, Local: 900, Lost: 100}
			if s.Program == "nodens" {
				r.Results[harness.Cell{Server: s.Name, Workload: m.Name}] = []failover.Result{h, h}
			}
		}
	}
	return r
}

// TestTargets holds what the numbers of a report say of each target: all are kept, and each is
// missed when the kernel is slower, the agent busier, the faults worse and the socket dearer.
func TestTargets(t *testing.T) {
	r := sampleReport()
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Met() {
			t.Errorf("%s: %s with %+v", c.What, res.Verdict(), res.Spread)
		}
	}
	for _, w := range r.Workloads {
		list := r.Samples[harness.Cell{Server: kernelRow, Workload: w.Name}]
		for i := range list {
			list[i] = r.Samples[harness.Cell{Server: echoRow, Workload: w.Name}][i]
		}
		for i := range r.Samples[harness.Cell{Server: socketRow, Workload: w.Name}] {
			r.Samples[harness.Cell{Server: socketRow, Workload: w.Name}][i].CPU *= 3
		}
	}
	for _, m := range podFaults() {
		for i := range r.Results[harness.Cell{Server: kernelRow, Workload: m.Name}] {
			bad := &r.Results[harness.Cell{Server: kernelRow, Workload: m.Name}][i]
			bad.Report = &load.Report{LongestSilence: 2 * time.Second, Start: time.Unix(1, 0), End: time.Unix(3, 0)}
			bad.UDP.Counts = load.Counts{Asked: 1000, Lost: 200}
			bad.Gone = time.Unix(1, 0)
			bad.Runs = []load.Run{{Outcome: load.Lost, Count: 1, First: time.Unix(2, 0), Last: time.Unix(2, 0)}}
		}
	}
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Measured || res.Met() {
			t.Errorf("%s: %s with %+v", c.What, res.Verdict(), res.Spread)
		}
	}
	for _, c := range (&Report{&failover.Report{Report: &harness.Report{}}}).Targets() {
		if res := c.Judge(); res.Measured {
			t.Errorf("of an empty report: %s", res.Verdict())
		}
	}
}

// TestPage: the page has all tables.
func TestPage(t *testing.T) {
	r := sampleReport()
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	page := pages[0].Text
	want := []string{"# Benchmarks: answers inside the kernel\n", "\ngo run ./test/bench -kernel -rounds 2 ", harness.TargetTable(r.Targets(), true)}
	for _, w := range r.Workloads {
		want = append(want, "\n## "+w.Name+"\n", r.WorkloadTable(w))
	}
	for _, m := range podFaults() {
		want = append(want, r.FaultTable(m))
	}
	for _, w := range want {
		if w == "" || !strings.Contains(string(page), w) {
			t.Errorf("the page lacks %q:\n%s", w, page)
		}
	}
}

// TestParseClientReport: what the client writes is read, and what it does not write is not.
func TestParseClientReport(t *testing.T) {
	line := "10 2 1 3 60 1000000000 5000 150 2\n"
	times := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 7), math.MaxUint32)
	got, err := parseClientReport([]byte(line + string(times)))
	if err != nil {
		t.Fatal(err)
	}
	want := clientReport{sent: 10, answered: 2, wrong: 1, skipped: 3, length: 60, elapsed: 1e9, clientCPU: 5000, idle: 150, cores: 2, latencies: []time.Duration{7, math.MaxUint32}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(clientReport{})); d != "" {
		t.Errorf("heard (-want +got):\n%s", d)
	}
	if got.busy() != 500*time.Millisecond {
		t.Errorf("of two seconds of two cores one and a half were idle: busy for %v", got.busy())
	}
	if o := got.outcome(40); o.Completed != 3 || o.Lost != 7 || o.Check("NOERROR") == nil {
		t.Errorf("outcome %+v", o)
	}
	for _, text := range []string{"", "10 2 1\n", line + "abc", line + strings.Repeat("abcd", 3)} {
		if _, err := parseClientReport([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

func TestField(t *testing.T) {
	text := []byte("pos:\t0\nprog_id:\t42\nrun_time_ns:\t1234\nrun_cnt:\t5\n")
	for key, want := range map[string]uint64{"prog_id:": 42, "run_time_ns:": 1234} {
		if n, ok := field(text, key); n != want || !ok {
			t.Errorf("%s %d, %v", key, n, ok)
		}
	}
	if n, ok := field(text, "link_id:"); ok {
		t.Errorf("a field that is not there: %d", n)
	}
}

// TestMeasure measures every server, as short as it goes, and injects the faults. Only that it was
// measured is looked at, and that the kernel has answered.
func TestMeasure(t *testing.T) {
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	peer.Build(t, "coredns") // skips under -short
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(100*time.Millisecond, 200*time.Millisecond), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.KernelFlag,
	})
	if errors.Is(err, machine.ErrCores) || errors.Is(err, harness.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	within := map[string]float64{}
	for _, s := range podRows() {
		if !slices.ContainsFunc(r.Servers, func(o harness.Server) bool { return o.Name == s.Name }) {
			left := strings.Join(r.Notes, "\n")
			if harness.Programs[s.Program].Foreign {
				continue
			}
			if s.Name != kernelRow || !strings.Contains(left, "answers in the kernel are not supported") {
				t.Fatalf("%s is left out: %s", s.Name, left)
			}
			t.Skip(left)
		}
		for _, w := range r.Workloads {
			list := r.Samples[harness.Cell{Server: s.Name, Workload: w.Name}]
			if !asks(w, s) {
				continue
			}
			if len(list) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.Name, s.Name, len(list))
			}
			checkPod(t, s, w, list[0])
			within[s.Name] += list[0].KernelShare
		}
	}
	// A busy machine may keep the agent from saying that it is well, but not all of a long time. The
	// agent was measured after the kernel's first answer.
	if soak.Enabled() && within[kernelRow] == 0 {
		t.Error("the kernel has answered nothing")
	}
	for name, share := range within {
		if name != kernelRow && share > 0 {
			t.Errorf("%s: %.2f answered in the kernel", name, share)
		}
	}
	for _, name := range []string{socketRow, kernelRow} {
		for _, m := range podFaults() {
			if list := r.Results[harness.Cell{Server: name, Workload: m.Name}]; len(list) != 1 || list[0].UDP.Local == 0 {
				t.Errorf("%s, %s: %v", name, m.Name, list)
			}
		}
	}
}

// checkPod checks what holds on every machine. The machine's idle time is counted in ticks, which are as long as the short form's
// queries.
func checkPod(t *testing.T, s harness.Server, w harness.Workload, got harness.Sample) {
	t.Helper()
	if got.Completed == 0 || got.Rcodes["NOERROR"] != got.Completed || soak.Enabled() && got.Busy <= 0 || got.Client <= 0 || got.CPU <= 0 && s.Name != kernelRow {
		t.Errorf("%s, %s: nothing measured: %+v", w.Name, s.Name, got.LoadResult)
	}
	if got.Response <= got.Request || len(got.Latencies) != int(got.Completed) || !slices.IsSorted(got.Latencies) {
		t.Errorf("%s, %s: answers of %d bytes to questions of %d, %d times", w.Name, s.Name, got.Response, got.Request, len(got.Latencies))
	}
	if in := got.KernelShare * float64(got.Completed); in > float64(got.Sent) {
		t.Errorf("%s, %s: the kernel answered %.0f of %d", w.Name, s.Name, in, got.Sent)
	}
}
