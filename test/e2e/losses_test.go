package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// TestLossLimits: what breaks each promise, and what is just within it.
func TestLossLimits(t *testing.T) {
	job := load.Job{Zone: "load.test.", Rate: 1000, Streams: 4, OneShots: 20}
	began := time.Unix(1000, 0)
	report := func(c load.Counts) *load.Report {
		c.Asked = c.Local + c.Cluster + c.Servfail + c.Other + c.Lost
		return &load.Report{Start: began, End: began.Add(time.Minute), UDP: load.Stats{Counts: c}}
	}
	for _, c := range []struct {
		name   string
		p      lossLimit
		counts load.Counts
		change func(*load.Report)
		want   string // in the error; empty: none
	}{
		{name: "all is well", p: lossless, counts: load.Counts{Local: 9}},
		{name: "one lost", p: lossless, counts: load.Counts{Local: 9, Lost: 1}, want: "1 are lost over UDP, at most 0 may be"},
		{name: "by the cluster's DNS", p: lossless, counts: load.Counts{Local: 9, Cluster: 1}, want: "1 are answered by the cluster's DNS"},
		{name: "never by the agent", p: lossless, counts: load.Counts{Cluster: 9}, want: "the agent has answered none of 9"},
		{name: "nothing asked", p: lossless, want: "none of 0"},
		{name: "SERVFAIL", p: agentKilled, counts: load.Counts{Local: 9, Servfail: 1}, want: "1 are SERVFAIL or wrong"},
		{name: "wrong", p: agentKilled, counts: load.Counts{Local: 9, Other: 1}, want: "1 are SERVFAIL or wrong"},
		{name: "connections end", p: agentDeleted, counts: load.Counts{Local: 9, Cluster: 9}, change: func(r *load.Report) { r.Stream.Lost, r.OneShot.Lost = 8, 2 }},
		{name: "more end", p: agentDeleted, counts: load.Counts{Local: 9}, change: func(r *load.Report) { r.Stream.Lost = 9 }, want: "9 connections that stay open have ended, at most 8 may be"},
		{name: "short ones end", p: agentDeleted, counts: load.Counts{Local: 9}, change: func(r *load.Report) { r.OneShot.Lost = 3 }, want: "3 connections for one question have ended, at most 2 may be"},
		{name: "starved", p: agentDeleted, counts: load.Counts{Local: 9, Lost: 3}, change: func(r *load.Report) { r.Skipped = 300 }},
		{name: "upgraded when starved", p: lossless, counts: load.Counts{Local: 9, Lost: 1}, change: func(r *load.Report) { r.Skipped = 300 }, want: "1 are lost"},
		{name: "lost in a stop", p: agentDeleted, counts: load.Counts{Local: 9, Lost: 1}, want: "1 are lost over UDP"},
		{name: "dies", p: agentKilled, counts: load.Counts{Local: 9, Cluster: 9, Lost: 100}, change: func(r *load.Report) { r.Stream.Lost, r.OneShot.Lost = 8, 4 }},
		{name: "dies slowly", p: agentKilled, counts: load.Counts{Local: 9, Cluster: 9, Lost: 101}, want: "101 are lost over UDP, at most 100 may be"},
		{name: "the client is slow", p: lossless, counts: load.Counts{Local: 9, Lost: 5}, change: func(r *load.Report) { r.Dropped, r.Backlog = 2, 3 }},
		{name: "the client is slower", p: lossless, counts: load.Counts{Local: 9, Lost: 6}, change: func(r *load.Report) { r.Dropped, r.Backlog = 2, 3 }, want: "6 are lost"},
		{name: "lost while it dies", p: agentKilled, counts: load.Counts{Local: 9, Lost: 1}, change: func(r *load.Report) {
			r.Runs = []load.Run{{Outcome: load.Lost, Count: 1, First: began.Add(time.Second - 1), Last: began.Add(time.Second - 1)}}
		}},
		{name: "lost when it is gone", p: agentKilled, counts: load.Counts{Local: 9, Lost: 1}, change: func(r *load.Report) {
			r.Runs = []load.Run{{Outcome: load.Lost, Count: 1, First: began.Add(time.Second), Last: began.Add(time.Second)}}
		}, want: "1 are lost that were asked when the process was gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := report(c.counts)
			if c.change != nil {
				c.change(r)
			}
			good := report(load.Counts{Local: 1})
			var d podKill
			if c.p == agentKilled {
				d = podKill{began.Add(950 * time.Millisecond), began.Add(time.Second)}
			}
			err := c.p.check(losses{node: "a", podKill: d, jobs: []load.Job{job, job}, reports: []*load.Report{good, r}})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestLossesString: the line of the table.
func TestLossesString(t *testing.T) {
	var a, b load.Report
	a.UDP.Counts, a.LongestSilence = load.Counts{Asked: 10, Local: 7, Cluster: 2, Lost: 1}, 3*time.Millisecond
	a.Skipped = 77
	a.Stream.Counts = load.Counts{Asked: 5, Local: 4, Other: 1}
	b.UDP.Counts, b.LongestSilence = load.Counts{Asked: 4, Local: 3, Servfail: 1}, 12*time.Millisecond
	got := losses{node: "a", reports: []*load.Report{&a, &b}}.String()
	want := "a: 19 asked, 1 lost, 1 SERVFAIL, 1 wrong, 2 by cluster DNS, 77 skipped by the client, longest silence 12 ms"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestJobs: the jobs of the part are possible ones.
func TestJobs(t *testing.T) {
	var h chaosTest
	if a, b := h.outsideJob(), h.outsideJob(); a.Zone == b.Zone {
		t.Errorf("%s is asked for twice", a.Zone)
	}
	h.marked = true
	if j := h.serviceJob(); j.TTL != markTTL || j.Local != j.Cluster {
		t.Errorf("the agent's answers are not told apart: %+v", j)
	}
}

// TestMarkedCorefile: the change keeps everything else.
func TestMarkedCorefile(t *testing.T) {
	const before = "cluster.local:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        ttl 30\n    }\n}\n"
	const want = "cluster.local:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        ttl 60\n    }\n}\n"
	if got, err := (&chaosTest{corefile: before}).markedCorefile(); err != nil || got != want {
		t.Errorf("%v, %s", err, got)
	}
	if got, err := (&chaosTest{corefile: "."}).markedCorefile(); err == nil {
		t.Errorf("a Corefile without `kubernetes` becomes %q", got)
	}
}

// TestLimitedCorefile: the change keeps everything else.
func TestLimitedCorefile(t *testing.T) {
	const before = ".:53 {\n    cache 30\n    forward . __PILLAR__UPSTREAM__SERVERS__\n}\n"
	const want = ".:53 {\n    cache 30\n    client_limit 5\n    forward . __PILLAR__UPSTREAM__SERVERS__ {\n        max_rate 900\n    }\n}\n"
	if got, err := limitedCorefile(before); err != nil || got != want {
		t.Errorf("%v, %s", err, got)
	}
	if got, err := limitedCorefile("."); err == nil {
		t.Errorf("a Corefile without the forward directive becomes %q", got)
	}
}
