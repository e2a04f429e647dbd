package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	client "github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// TestMain is a load client's process if the first argument says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "load" {
		if err := client.Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// madeFaults is a report of two rounds in which only CoreDNS came to harm, and nodens in
// the second round of a hang.
func madeFaults() *faultReport {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := &faultReport{&report{
		plan: plan{rounds: 2, length: time.Second, section: failoverMarker.flag},
		date: time.Unix(0, 0), servers: faultServers(),
	}, map[cell][]faultResult{}}
	for _, s := range r.servers {
		for _, m := range faults {
			if m.unsupported == s.program {
				continue
			}
			for n := range 2 {
				h := faultResult{Report: &client.Report{Began: at(0), Ended: at(3000)}, began: at(900), gone: at(1000), spawned: at(2000)}
				h.Runs = []client.Run{{Fate: client.Local, Count: 100, First: at(0), Last: at(999)}, {Fate: client.Cluster, Count: 100, First: at(1000), Last: at(2499)}, {Fate: client.Local, Count: 100, First: at(2500), Last: at(3000)}}
				h.UDP.Counts = client.Counts{Asked: 300, Local: 200, Cluster: 100}
				h.Seconds = []client.Second{{Counts: client.Counts{Asked: 1000}, P99: 2 * time.Millisecond}}
				if s.program == "coredns" || m.name == hung && n == 1 {
					h.Runs[1].Fate = client.Lost
					h.UDP.Counts = client.Counts{Asked: 300, Local: 200, Lost: 100}
				}
				at := cell{s.name, m.name}
				r.results[at] = append(r.results[at], h)
			}
		}
	}
	return r
}

// TestPledges holds what the numbers of a report say of each claim.
func TestPledges(t *testing.T) {
	r := madeFaults()
	for _, c := range r.Targets() {
		if res := c.judge(); !res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	// The worst round counts.
	for _, name := range []string{upgraded, killed} {
		bad := &r.results[cell{"nodens, nftables", name}][1]
		bad.UDP.Counts = client.Counts{Asked: 300, Lost: 10, Servfail: 10}
		bad.Runs = []client.Run{{Outcome: client.Lost, Count: 10, First: bad.gone, Last: bad.gone}}
		bad.Seconds = []client.Second{{Counts: client.Counts{Asked: 1000}, P99: time.Second}}
		bad.spawned, bad.hitChange, bad.tracked = bad.Began, 0.02, 1
	}
	var missed []string
	for _, c := range r.Targets() {
		if res := c.judge(); !res.met() {
			missed = append(missed, c.what)
		}
	}
	if len(missed) != len(r.Targets()) {
		t.Errorf("only these are missed: %q", missed)
	}
}

// TestFaultTable: a column that differs between rounds shows the worst one too, and a row
// that can't be measured is missing.
func TestFaultTable(t *testing.T) {
	r := madeFaults()
	const want = `
| server                     | questions |     lost | SERVFAIL | by the cluster's DNS | longest without an answer, ms | worst p99, ms |
| -------------------------- | --------: | -------: | -------: | -------------------: | ----------------------------: | ------------: |
| nodens, iptables           |       300 | 50 (100) |        0 |             50 (100) |                             0 |           2.0 |
| nodens, nftables           |       300 | 50 (100) |        0 |             50 (100) |                             0 |           2.0 |
| CoreDNS, NodeLocal's rules |       300 |      100 |        0 |                    0 |                             0 |           2.0 |
`
	for _, m := range faults {
		text := r.faultTable(m)
		if m.name == hung {
			if d := cmp.Diff(want, "\n"+text); d != "" {
				t.Errorf("table (-want +got):\n%s", d)
			}
		}
		if strings.Contains(text, "CoreDNS") == (m.unsupported != "") {
			t.Errorf("%s:\n%s", m.name, text)
		}
		if !strings.Contains(r.lossTable(), "| "+m.name+" ") {
			t.Errorf("no line of %s in\n%s", m.name, r.lossTable())
		}
	}
}

// TestFaults has every mishap befall one of the servers, each of them at least one, once and
// short. What is looked at is that it was measured, and what holds however fast the machine
// is.
func TestFaults(t *testing.T) {
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	peer.Build(t, "coredns") // skips under -short
	left := len(faults)
	for _, only := range []string{
		"^(" + strings.Join([]string{upgraded, killed, hung, rulesFlushed}, "|") + ")$/nodens, iptables",
		"^(" + strings.Join([]string{upgradedLong, restarted, outOfMemory, crashed, dirFull, cacheCorrupted, interfaceDeleted}, "|") + ")$/nodens, nftables",
		"^" + killed + "$/CoreDNS",
	} {
		t.Run(only, func(t *testing.T) {
			chosen, err := parseFilter(only)
			if err != nil {
				t.Fatal(err)
			}
			r, err := measureFaults(t.Context(), plan{rounds: 1, length: 300 * time.Millisecond, progress: t.Output(), only: chosen, section: failoverMarker.flag}, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range faults {
				if chosen.matchesName(m.name) {
					left--
					sound(t, r, r.servers[0], m)
				}
			}
			for _, c := range r.Targets()[:2] { // those that no clock is needed for
				if res := c.judge(); res.measured && !res.met() {
					t.Errorf("%s: %s", c.what, res.verdict())
				}
			}
			text, err := renew(r, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "\n## Agents that go away\n") {
				t.Errorf("no section:\n%s", text)
			}
		})
	}
	if left != -1 { // the last one is for two servers
		t.Errorf("%d mishaps did not befall anybody", left+1)
	}
}

// sound looks at what a mishap did to a server.
func sound(t *testing.T, r *faultReport, s server, m fault) {
	t.Helper()
	list := r.results[cell{s.name, m.name}]
	if len(list) != 1 && m.name != outOfMemory {
		t.Fatalf("%s, %s: %d harms", s.name, m.name, len(list))
	}
	for _, h := range list {
		if h.UDP.Asked == 0 || h.UDP.Local == 0 || h.Dropped > 0 {
			t.Errorf("%s, %s: %s", s.name, m.name, h)
		}
		if s.program == "nodens" && (h.lostAfterExit() > 0 || h.tracked > 0) {
			t.Errorf("%s, %s: %.0f lost after the process was gone, %d tracked before", s.name, m.name, h.lostAfterExit(), h.tracked)
		}
	}
}
