package transports

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestTargets: a transport that costs more than CoreDNS's misses its target.
func TestTargets(t *testing.T) {
	r := &Report{Report: &harness.Report{
		Plan: harness.Plan{Rounds: 1, Length: time.Second, Section: harness.TransportsFlag}, Date: time.Unix(0, 0), Servers: servers, Samples: map[harness.Cell][]harness.Sample{},
	}}
	for _, w := range workloads() {
		for i, s := range servers {
			var sample harness.Sample
			sample.CPU, sample.Completed, sample.Elapsed = time.Duration(i+1)*time.Millisecond, 100, time.Second
			if w.scheme == "quic" {
				sample.CPU = 3*time.Millisecond - sample.CPU
			}
			r.Samples[harness.Cell{Server: s.Name, Workload: w.name()}] = []harness.Sample{sample}
		}
	}
	forwarded := func(server string, cpu time.Duration) {
		var sample harness.Sample
		sample.CPU, sample.Completed, sample.Elapsed = cpu, 100, time.Second
		r.Samples[harness.Cell{Server: server, Workload: forwardWorkload}] = []harness.Sample{sample}
	}
	forwarded("nodens", 75*time.Millisecond)
	forwarded(harness.CoreDNS, 100*time.Millisecond)
	missed := "CPU per query, relative to CoreDNS's same transport: "
	if d := cmp.Diff([]string{missed + "quic, 16 in flight", "CPU per miss that is forwarded over TLS, relative to CoreDNS: " + forwardWorkload}, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 || !strings.Contains(string(pages[0].Text), "0.50 (0.50–0.50)") {
		t.Errorf("the page lacks a ratio, %v:\n%v", err, pages)
	}
}

// TestMeasure asks both servers over each transport. What is asserted holds however fast the machine is.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("takes CoreDNS: skipped under -short")
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 500*time.Millisecond), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.TransportsFlag,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		if list := r.Samples[harness.Cell{Server: s.Name, Workload: forwardWorkload}]; len(list) != 1 || list[0].Completed == 0 || list[0].CPU == 0 {
			t.Errorf("%s, %s was not measured: %+v", s.Name, forwardWorkload, list)
		}
	}
	for _, w := range workloads() {
		for _, s := range servers {
			if list := r.Samples[harness.Cell{Server: s.Name, Workload: w.name()}]; len(list) != 1 || list[0].Completed == 0 || list[0].CPU == 0 {
				t.Errorf("%s, %s was not measured: %+v", s.Name, w.name(), list)
			}
		}
	}
	if len(r.Holdings) == 0 {
		t.Log("no control groups: connections are not held")
		return
	}
	if manifest, err := readManifest(); err != nil || len(manifest.environment()) != 1 {
		t.Errorf("the manifest sets no limit for Go's memory: %+v, %v", manifest, err)
	}
	limit, err := manifestMemory()
	if err != nil || len(r.Holdings) != len(list) {
		t.Fatalf("connections were held over %d of %d transports, %v", len(r.Holdings), len(list), err)
	}
	for _, h := range r.Holdings {
		if h.Connections != shortConnections || h.Before.Used == 0 || h.After.Used == 0 || h.After.Used > uint64(limit) || h.After.Kills > 0 {
			t.Errorf("%+v, with a limit of %d bytes", h, limit)
		}
	}
}
