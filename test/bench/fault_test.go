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
func madeFaults() *report {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := &report{
		plan: plan{rounds: 2, length: time.Second, faults: true},
		date: time.Unix(0, 0), servers: guarded(), harms: map[cell][]harm{},
	}
	for _, s := range r.servers {
		for _, m := range mishaps {
			if m.fails == s.program {
				continue
			}
			for n := range 2 {
				h := harm{Report: &client.Report{Start: at(0), End: at(3000)}, from: at(900), gone: at(1000), spawned: at(2000)}
				h.Runs = []client.Run{{Outcome: client.Local, Count: 100, First: at(0), Last: at(999)}, {Outcome: client.Cluster, Count: 100, First: at(1000), Last: at(2499)}, {Outcome: client.Local, Count: 100, First: at(2500), Last: at(3000)}}
				h.UDP.Counts = client.Counts{Asked: 300, Local: 200, Cluster: 100}
				h.Seconds = []client.Second{{Counts: client.Counts{Asked: 1000}, P99: 2 * time.Millisecond}}
				if s.program == "coredns" || m.name == halted && n == 1 {
					h.Runs[1].Outcome = client.Lost
					h.UDP.Counts = client.Counts{Asked: 300, Local: 200, Lost: 100}
				}
				at := cell{s.name, m.name}
				r.harms[at] = append(r.harms[at], h)
			}
		}
	}
	return r
}

// TestPledges holds what the numbers of a report say of each claim.
func TestPledges(t *testing.T) {
	r := madeFaults()
	for _, c := range pledges() {
		if res := c.judge(r); !res.met() {
			t.Errorf("%s: %s with %+v", c.what, res.verdict(), res.spread)
		}
	}
	// The worst round counts.
	for _, name := range []string{upgraded, killed} {
		bad := &r.harms[cell{"nodens, nftables", name}][1]
		bad.UDP.Counts = client.Counts{Asked: 300, Lost: 10, Servfail: 10}
		bad.Runs = []client.Run{{Outcome: client.Lost, Count: 10, First: bad.gone, Last: bad.gone}}
		bad.Seconds = []client.Second{{Counts: client.Counts{Asked: 1000}, P99: time.Second}}
		bad.spawned, bad.hits, bad.tracked = bad.Start, 0.02, 1
	}
	var missed []string
	for _, c := range pledges() {
		if res := c.judge(r); !res.met() {
			missed = append(missed, c.what)
		}
	}
	if len(missed) != len(pledges()) {
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
	for _, m := range mishaps {
		text := r.harmTable(m)
		if m.name == halted {
			if d := cmp.Diff(want, "\n"+text); d != "" {
				t.Errorf("table (-want +got):\n%s", d)
			}
		}
		if strings.Contains(text, "CoreDNS") == (m.fails != "") {
			t.Errorf("%s:\n%s", m.name, text)
		}
		if !strings.Contains(r.overall(), "| "+m.name+" ") {
			t.Errorf("no line of %s in\n%s", m.name, r.overall())
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
	left := len(mishaps)
	for _, only := range []string{
		"^(" + strings.Join([]string{upgraded, killed, halted, flushed}, "|") + ")$/nodens, iptables",
		"^(" + strings.Join([]string{upgradedLong, restarted, starved, crashed, filled, spoilt, unlinked}, "|") + ")$/nodens, nftables",
		"^" + killed + "$/CoreDNS",
	} {
		t.Run(only, func(t *testing.T) {
			chosen, err := choose(only)
			if err != nil {
				t.Fatal(err)
			}
			r, err := plan{rounds: 1, length: 300 * time.Millisecond, progress: t.Output(), faults: true, upgrades: 2, only: chosen}.measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range mishaps {
				if chosen.named(m.name) {
					left--
					sound(t, r, r.servers[0], m)
				}
			}
			for _, c := range pledges()[:2] { // those that no clock is needed for
				if res := c.judge(r); res.measured && !res.met() {
					t.Errorf("%s: %s", c.what, res.verdict())
				}
			}
			text, err := r.renew(nil, nil)
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
func sound(t *testing.T, r *report, s server, m mishap) {
	t.Helper()
	list := r.harms[cell{s.name, m.name}]
	if len(list) != 1 && m.name != starved {
		t.Fatalf("%s, %s: %d harms", s.name, m.name, len(list))
	}
	for _, h := range list {
		if h.UDP.Asked == 0 || h.UDP.Local == 0 || h.Dropped > 0 {
			t.Errorf("%s, %s: %s", s.name, m.name, h)
		}
		if s.program == "nodens" && (h.unserved() > 0 || h.tracked > 0) {
			t.Errorf("%s, %s: %.0f lost after the process was gone, %d tracked before", s.name, m.name, h.unserved(), h.tracked)
		}
	}
}
