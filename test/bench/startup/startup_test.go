package startup

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

// report returns a report of one round in which all rows took equally long.
func report() *Report {
	r := newReport(&harness.Report{
		Plan: harness.Plan{Rounds: 1, Length: time.Second, Section: harness.StartFlag}, Date: time.Unix(0, 0), Servers: servers,
	})
	for _, c := range settings {
		for _, s := range servers {
			at := harness.Cell{Server: s.Name, Workload: c.name}
			r.Starts[at] = []Start{{Answer: 40 * time.Millisecond, CPU: 30 * time.Millisecond, Stop: 5 * time.Millisecond}}
			if c.idle {
				r.Idles[at] = []Idle{{Elapsed: 2 * time.Second, CPU: time.Millisecond, Wakeups: 19, RSS: 16 << 20}}
			}
		}
	}
	return r
}

// TestTargets: each value that exceeds its limit misses its target.
func TestTargets(t *testing.T) {
	r := report()
	const wakeups, saved, relative = "wake-ups of an idle agent: ", "time to the first answer with a saved view, relative to a start without one: ", "time to the first answer, relative to CoreDNS: "
	if d := cmp.Diff([]string{relative + forwardOnly}, harness.Missed(r.Targets())); d != "" {
		t.Errorf("with equal times (-want +got):\n%s", d)
	}
	for at := range r.Starts {
		if at.Server == harness.CoreDNS {
			r.Starts[at][0].Answer *= 2
		}
	}
	if list := harness.Missed(r.Targets()); len(list) > 0 {
		t.Errorf("with a slower CoreDNS: %q", list)
	}
	r.Starts[harness.Cell{Server: nodens, Workload: scopeAllView}][0].Answer++
	r.Starts[harness.Cell{Server: nodens, Workload: scopeNode}][0].Answer *= 2
	r.Idles[harness.Cell{Server: nodens, Workload: scopeNode}][0].Wakeups++
	if d := cmp.Diff([]string{wakeups + scopeNode, saved + scopeAllView, relative + scopeNode}, harness.Missed(r.Targets())); d != "" {
		t.Errorf("missed (-want +got):\n%s", d)
	}
	if list := harness.Missed(newReport(&harness.Report{}).Targets()); len(list) != 3 {
		t.Errorf("without any measurement only %q are missed", list)
	}
}

// TestRender: the page has both tables and the targets.
func TestRender(t *testing.T) {
	r := report()
	r.Starts[harness.Cell{Server: nodens, Workload: forwardOnly}][0].Answer /= 2
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	text := string(pages[0].Text)
	for _, want := range []string{"0.50 (0.50–0.50)", "| wake-ups of an idle agent", "|                 9.5 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "<no value>") {
		t.Errorf("the page lacks a value:\n%s", text)
	}
}

// TestMeasure starts and stops both servers with each setting. What is asserted holds however fast the machine is.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("takes CoreDNS: skipped under -short")
	}
	if _, _, err := machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	}
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(20*time.Millisecond, 500*time.Millisecond), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.StartFlag,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range settings {
		for _, s := range servers {
			if s.Program == "coredns" && !c.coredns {
				continue
			}
			at := harness.Cell{Server: s.Name, Workload: c.name}
			if list := r.Starts[at]; len(list) != 1 || list[0].Answer <= 0 || list[0].CPU <= 0 || list[0].Stop <= r.Plan.Wait(c.lameduck) {
				t.Errorf("%s, %s: %+v", s.Name, c.name, list)
			}
			if list := r.Idles[at]; c.idle && (len(list) != 1 || list[0].Elapsed < r.Plan.Length || list[0].RSS == 0) {
				t.Errorf("%s, %s, idle: %+v", s.Name, c.name, list)
			}
		}
	}
}
