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

// TestPolicyTargets: a report in which policies cost little meets all targets, and its page has all tables.
func TestPolicyTargets(t *testing.T) {
	r := &PolicyReport{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Section: harness.PoliciesFlag}, Date: time.Unix(0, 0), Samples: map[harness.Cell][]harness.Sample{},
	}, harness.Results[memorySample]{}}
	for _, c := range comparisons("") {
		for i, row := range []string{offRow, onRow} {
			s := harness.Sample{
				LoadResult: harness.LoadResult{Sent: 1000, Completed: 1000, Elapsed: time.Second}, CPU: time.Duration(1000+10*i) * time.Microsecond,
				Latencies: []time.Duration{time.Duration(10+i) * time.Microsecond, time.Duration(20+3*i) * time.Microsecond},
			}
			for _, w := range append(policyWorkloads(), kernelWorkload) {
				r.Samples[c.cell(row, w.Name)] = []harness.Sample{s, s}
			}
			m := memorySample{heap: uint64(10+i) << 20, rss: uint64(20+i) << 20}
			r.memory[c.cell(row, "")] = []memorySample{m, m}
		}
	}
	if list := harness.Missed(r.Targets()); list != nil {
		t.Errorf("missed: %q", list)
	}
	for _, c := range comparisons("")[:2] {
		for i := range 2 {
			r.Samples[c.cell(onRow, policyWorkloads()[1].Name)][i].CPU = 1040 * time.Microsecond
		}
	}
	if d := cmp.Diff([]string{"CPU per hit of 10000 names, nodens, no policy, relative to none: "}, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, row := range []string{"| CoreDNS, acl with a pod's names: 10,000 names, 1,000 qps ", "| nodens, 1,000 policies: inside the kernel, at saturation ", "1.0 (1.0–1.0)", "3.0 (3.0–3.0)", "| nodens, no policy "} {
		if !strings.Contains(string(pages[0].Text), row) {
			t.Errorf("the page lacks %q:\n%s", row, pages[0].Text)
		}
	}
}

// TestPodACL: CoreDNS gets the names of the policies that bind one pod.
func TestPodACL(t *testing.T) {
	text := podACL()
	if n := strings.Count(text, "allow net"); n != policyCount/podCount {
		t.Errorf("%d rules, want %d", n, policyCount/podCount)
	}
	if names := strings.Count(text, ".other.example") + strings.Count(text, "bench.example"); names < policyCount/podCount*policyNames-1 || !strings.Contains(text, " bench.example ") {
		t.Errorf("%d names:\n%.300s", names, text)
	}
}

// TestMeasurePolicies measures everything once, as short as it goes.
func TestMeasurePolicies(t *testing.T) {
	peer.Build(t, "coredns") // skips under -short
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := MeasurePolicies(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 200*time.Millisecond), Names: soak.Choose(200, 2000), Short: !soak.Enabled(), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range comparisons("") {
		for _, row := range []string{onRow, offRow} {
			for _, w := range policyWorkloads() {
				if !c.measures(w) {
					continue
				}
				list := r.Samples[c.cell(row, w.Name)]
				if len(list) != 1 || list[0].Completed == 0 || list[0].CPU <= 0 || w.Name == steadyName && list[0].P99() <= 0 {
					t.Errorf("%s, %s, %s: %+v", c.name, row, w.Name, list)
				}
			}
			if m := r.memory[c.cell(row, "")]; c.on.Program == "nodens" && (len(m) != 1 || m[0].heap == 0) {
				t.Errorf("%s, %s: memory %v", c.name, row, m)
			}
		}
	}
}
