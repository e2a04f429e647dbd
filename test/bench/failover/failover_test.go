package failover

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMain is a load client's process if the first argument says so.
func TestMain(m *testing.M) { os.Exit(load.Main(m.Run)) }

// sampleReport is a report of two rounds in which only CoreDNS lost queries, and nodens in
// the second round of a hang.
func sampleReport() *Report {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := &Report{&harness.Report{
		Plan: harness.Plan{Rounds: 2, Length: time.Second, Section: harness.FailoverFlag},
		Date: time.Unix(0, 0), Servers: servers(),
	}, map[harness.Cell][]Result{}}
	for _, s := range r.Servers {
		for _, m := range Faults {
			if m.unsupported == s.Program {
				continue
			}
			for n := range 2 {
				h := Result{Report: &load.Report{Start: at(0), End: at(3000)}, began: at(900), Gone: at(1000), spawned: at(2000)}
				h.Runs = []load.Run{{Outcome: load.Local, Count: 100, First: at(0), Last: at(999)}, {Outcome: load.Cluster, Count: 100, First: at(1000), Last: at(2499)}, {Outcome: load.Local, Count: 100, First: at(2500), Last: at(3000)}}
				h.UDP.Counts = load.Counts{Asked: 300, Local: 200, Cluster: 100}
				h.Seconds = []load.Second{{Counts: load.Counts{Asked: 1000}, P99: 2 * time.Millisecond}}
				if s.Program == "coredns" || m.Name == Hung && n == 1 {
					h.Runs[1].Outcome = load.Lost
					h.UDP.Counts = load.Counts{Asked: 300, Local: 200, Lost: 100}
				}
				at := harness.Cell{Server: s.Name, Workload: m.Name}
				r.Results[at] = append(r.Results[at], h)
			}
		}
	}
	return r
}

// TestTargets holds what the numbers of a report say of each target.
func TestTargets(t *testing.T) {
	r := sampleReport()
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Met() {
			t.Errorf("%s: %s with %+v", c.What, res.Verdict(), res.Spread)
		}
	}
	// The worst round counts.
	for _, name := range []string{upgraded, Killed} {
		bad := &r.Results[harness.Cell{Server: "nodens, nftables", Workload: name}][1]
		bad.UDP.Counts = load.Counts{Asked: 300, Lost: 10, Servfail: 10}
		bad.Runs = []load.Run{{Outcome: load.Lost, Count: 10, First: bad.Gone, Last: bad.Gone}}
		bad.Seconds = []load.Second{{Counts: load.Counts{Asked: 1000}, P99: time.Second}}
		bad.spawned, bad.hitChange, bad.tracked = bad.Start, 0.02, 1
	}
	var missed []string
	for _, c := range r.Targets() {
		if res := c.Judge(); !res.Met() {
			missed = append(missed, c.What)
		}
	}
	if len(missed) != len(r.Targets()) {
		t.Errorf("only these are missed: %q", missed)
	}
}

// TestFaultTable: a column that differs between rounds shows the worst one too, and a row
// that can't be measured is missing.
func TestFaultTable(t *testing.T) {
	r := sampleReport()
	const want = `
| server                     | queries |     lost | SERVFAIL | by the cluster DNS | longest without an answer, ms | worst p99, ms |
| -------------------------- | ------: | -------: | -------: | -----------------: | ----------------------------: | ------------: |
| nodens, iptables           |     300 | 50 (100) |        0 |           50 (100) |                             0 |           2.0 |
| nodens, nftables           |     300 | 50 (100) |        0 |           50 (100) |                             0 |           2.0 |
| CoreDNS, NodeLocal's rules |     300 |      100 |        0 |                  0 |                             0 |           2.0 |
`
	for _, m := range Faults {
		text := r.FaultTable(m)
		if m.Name == Hung {
			if d := cmp.Diff(want, "\n"+text); d != "" {
				t.Errorf("table (-want +got):\n%s", d)
			}
		}
		if strings.Contains(text, "CoreDNS") == (m.unsupported != "") {
			t.Errorf("%s:\n%s", m.Name, text)
		}
		if !strings.Contains(r.lossTable(), "| "+m.Name+" ") {
			t.Errorf("no line of %s in\n%s", m.Name, r.lossTable())
		}
	}
}

// TestMeasure injects every fault, once and short. The long form injects each into every server, with
// nodes of their own, a full load and the faults' real times. What is looked at is that it was measured, and
// what holds however fast the machine is.
func TestMeasure(t *testing.T) {
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	peer.Build(t, "coredns") // skips under -short
	r, err := Measure(t.Context(), harness.Plan{
		Rounds: 1, Length: soak.Choose(50*time.Millisecond, 300*time.Millisecond), Short: !soak.Enabled(), Progress: t.Output(), Section: harness.FailoverFlag,
	}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Servers {
		for _, m := range Faults {
			if injects(r.Plan, m, s) {
				checkFault(t, r, s, m)
			}
		}
	}
	if len(r.Servers) != len(servers()) {
		t.Errorf("%d rows, want %d", len(r.Servers), len(servers()))
	}
	for _, c := range r.Targets()[:2] { // those that no clock is needed for
		if res := c.Judge(); !res.Met() {
			t.Errorf("%s: %s", c.What, res.Verdict())
		}
	}
	pages, err := r.Render(nil)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, m := range Faults {
		if !strings.Contains(string(pages[0].Text), "\n- **"+m.Name+"**: ") {
			t.Errorf("the page lacks %q:\n%s", m.Name, pages[0].Text)
		}
	}
}

// checkFault looks at what a fault did to a server.
func checkFault(t *testing.T, r *Report, s harness.Server, m Fault) {
	t.Helper()
	list := r.Results[harness.Cell{Server: s.Name, Workload: m.Name}]
	if len(list) != 1 && m.Name != outOfMemory {
		t.Fatalf("%s, %s: %d results", s.Name, m.Name, len(list))
	}
	for _, h := range list {
		if h.UDP.Asked == 0 || h.UDP.Local == 0 || h.Dropped > 0 {
			t.Errorf("%s, %s: %s", s.Name, m.Name, h)
		}
		if s.Program == "nodens" && (h.LostAfterExit() > 0 || h.tracked > 0) {
			t.Errorf("%s, %s: %.0f lost after the process was gone, %d tracked before", s.Name, m.Name, h.LostAfterExit(), h.tracked)
		}
	}
}
