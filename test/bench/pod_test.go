package main

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	client "github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// madePod is a report of two rounds in which the kernel keeps all claims, each by half.
func madePod() *podReport {
	r := &podReport{&faultReport{&report{
		plan: plan{rounds: 2, length: time.Second, section: kernelMarker.flag}, date: time.Unix(0, 0),
		servers: podRows(), workloads: podLoads(), samples: map[cell][]sample{},
	}, map[cell][]faultResult{}}}
	for _, s := range r.servers {
		took, cpu := 60*time.Microsecond, time.Second
		if s.name == kernelRow {
			took, cpu = 5*time.Microsecond, 5*time.Millisecond
		}
		for _, w := range r.workloads {
			got := sample{cpu: cpu, busy: 2 * cpu, client: cpu, idleLoad: 0.001}
			got.loadResult = loadResult{sent: 1000, completed: 1000, elapsed: time.Second, rcodes: map[string]uint64{"NOERROR": 1000}}
			if s.name == kernelRow && w.rate == 0 {
				got.completed = 3000
			}
			for range 1000 {
				got.latencies = append(got.latencies, took)
			}
			r.samples[cell{s.name, w.name}] = []sample{got, got}
		}
		for _, m := range podFaults() {
			h := faultResult{Report: &client.Report{Silence: time.Second}}
			h.UDP.Counts = client.Counts{Asked: 1000, Local: 900, Lost: 100}
			if s.program == "nodens" {
				r.results[cell{s.name, m.name}] = []faultResult{h, h}
			}
		}
	}
	return r
}

// TestVows holds what the numbers of a report say of each claim: all are kept, and each is
// missed when the kernel is slower, the agent busier and the mishaps worse.
func TestVows(t *testing.T) {
	r := madePod()
	for _, c := range r.Targets() {
		if res := c.judge(); !res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	for _, w := range r.workloads {
		list := r.samples[cell{kernelRow, w.name}]
		for i := range list {
			list[i] = r.samples[cell{echoRow, w.name}][i]
		}
	}
	for _, m := range podFaults() {
		for i := range r.results[cell{kernelRow, m.name}] {
			bad := &r.results[cell{kernelRow, m.name}][i]
			bad.Report = &client.Report{Silence: 2 * time.Second, Began: time.Unix(1, 0), Ended: time.Unix(3, 0)}
			bad.UDP.Counts = client.Counts{Asked: 1000, Lost: 200}
			bad.gone = time.Unix(1, 0)
			bad.Runs = []client.Run{{Outcome: client.Lost, Count: 1, First: time.Unix(2, 0), Last: time.Unix(2, 0)}}
		}
	}
	for _, c := range r.Targets() {
		if res := c.judge(); !res.measured || res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	for _, c := range (&podReport{&faultReport{report: &report{}}}).Targets() {
		if res := c.judge(); res.measured {
			t.Errorf("of an empty report: %s", res.verdict())
		}
	}
}

// TestPodSection: the section has the tables, takes its own place and leaves the others'.
func TestPodSection(t *testing.T) {
	r := madePod()
	other := failoverMarker.begin() + "of others\n" + failoverMarker.end()
	page, err := renew(r, []byte("# Page\n\n"+other), nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := renew(r, page, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(page), string(again)); d != "" {
		t.Errorf("written again (-first +second):\n%s", d)
	}
	want := []string{"# Page\n", other, kernelMarker.begin(), kernelMarker.end(), "\n## Answers from inside the kernel\n", "\ngo run ./test/bench -kernel -rounds 2 ", targetTable(r.Targets(), true)}
	for _, w := range r.workloads {
		want = append(want, "\n### "+w.name+"\n", r.workloadTable(w))
	}
	for _, m := range podFaults() {
		want = append(want, r.faultTable(m))
	}
	for _, w := range want {
		if w == "" || !strings.Contains(string(page), w) {
			t.Errorf("the page lacks %q:\n%s", w, page)
		}
	}
}

// TestHear: what the client writes is read, and what it does not write is not.
func TestHear(t *testing.T) {
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
	if o := got.outcome(40); o.completed != 3 || o.lost != 7 || o.check("NOERROR") == nil {
		t.Errorf("outcome %+v", o)
	}
	for _, text := range []string{"", "10 2 1\n", line + "abc", line + strings.Repeat("abcd", 3)} {
		if _, err := parseClientReport([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// TestPod measures nodens with and without answers from inside the kernel and the C echo, as
// short as it goes, and kills one. Only that it was measured is looked at, and that the
// kernel has answered.
func TestPod(t *testing.T) {
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	peer.Build(t, "nodens") // skips under -short
	only, err := parseFilter("from a pod|^" + killed + "$/nodens|echo")
	if err != nil {
		t.Fatal(err)
	}
	r, err := measurePod(t.Context(), plan{rounds: 1, length: 200 * time.Millisecond, only: only, progress: t.Output(), section: kernelMarker.flag})
	if errors.Is(err, errCores) || errors.Is(err, errAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	within := map[string]float64{}
	for _, s := range podRows()[:3] {
		if !slices.ContainsFunc(r.servers, func(o server) bool { return o.name == s.name }) {
			left := strings.Join(r.notes, "\n")
			if s.name != kernelRow || !strings.Contains(left, "answers in the kernel are not supported") {
				t.Fatalf("%s is left out: %s", s.name, left)
			}
			t.Skip(left)
		}
		for _, w := range r.workloads {
			list := r.samples[cell{s.name, w.name}]
			if len(list) != 1 {
				t.Fatalf("%s, %s: %d samples, want 1", w.name, s.name, len(list))
			}
			checkPod(t, s, w, list[0])
			within[s.name] += list[0].kernelShare
		}
	}
	// A busy machine may keep the agent from saying that it is well, but not all the time.
	if within[kernelRow] == 0 || within[socketRow] > 0 || within[echoRow] > 0 {
		t.Errorf("answered in the kernel: %v, want some of one row", within)
	}
	for _, name := range []string{socketRow, kernelRow} {
		if list := r.results[cell{name, killed}]; len(list) != 1 || list[0].UDP.Local == 0 {
			t.Errorf("%s, %s: %v", name, killed, list)
		}
	}
}

// checkPod checks what holds on every machine.
func checkPod(t *testing.T, s server, w workload, got sample) {
	t.Helper()
	if got.completed == 0 || got.rcodes["NOERROR"] != got.completed || got.busy <= 0 || got.client <= 0 || got.cpu <= 0 && s.name != kernelRow {
		t.Errorf("%s, %s: nothing measured: %+v", w.name, s.name, got.loadResult)
	}
	if got.response <= got.request || len(got.latencies) != int(got.completed) || !slices.IsSorted(got.latencies) {
		t.Errorf("%s, %s: answers of %d bytes to questions of %d, %d times", w.name, s.name, got.response, got.request, len(got.latencies))
	}
	if in := got.kernelShare * float64(got.completed); in > float64(got.sent) {
		t.Errorf("%s, %s: the kernel answered %.0f of %d", w.name, s.name, in, got.sent)
	}
}
