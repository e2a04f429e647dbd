// These tests use newFailOpen, servedElsewhere, addView and limitList, which are not exported.

package app

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server"
)

// TestFailOpen: what happens to queries without an agent, and why they would be lost; and who gets them
// while the rules are not in place.
func TestFailOpen(t *testing.T) {
	linkLocal, service := []netip.Addr{netip.MustParseAddr("169.254.20.10")}, []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	both := append(linkLocal[:1:1], service...)
	since := time.Unix(1000, 0)
	inPlace := netsetup.Stats{Backend: "nftables", RulesInPlace: true, RulesSince: since, FailOpen: true}
	missing := netsetup.Stats{Backend: "nftables", RulesSince: since}
	for name, c := range map[string]struct {
		stats     netsetup.Stats
		rules     bool
		servers   int
		addrs     []netip.Addr
		want      report.FailOpen
		elsewhere bool
	}{
		"active":                {inPlace, true, 2, both, report.FailOpen{Rules: "nftables", Capable: true, Active: true, Servers: 2}, false},
		"no server, a Service":  {inPlace, true, 0, service, report.FailOpen{Rules: "nftables", Capable: true, Active: true}, false},
		"no server, link-local": {inPlace, true, 0, both, report.FailOpen{Rules: "nftables", Capable: true, Reason: "no server of the cluster DNS is known"}, false},
		"missing, a Service":    {missing, true, 2, both, report.FailOpen{Rules: "nftables", Capable: true, Servers: 2, Reason: "the rules are not in place"}, true},
		"missing, link-local":   {missing, true, 2, linkLocal, report.FailOpen{Rules: "nftables", Capable: true, Servers: 2, Reason: "the rules are not in place"}, false},
		"no match": {
			netsetup.Stats{Backend: "nftables", RulesInPlace: true, NoSocketMatch: true}, true, 1, both,
			report.FailOpen{Rules: "nftables", Servers: 1, Reason: "the kernel can't match packets by socket"}, false,
		},
		"no rules": {netsetup.Stats{}, false, 0, both, report.FailOpen{Reason: "the agent sets up no rules"}, false},
	} {
		c.stats.Diversion = c.servers
		if diff := cmp.Diff(c.want, newFailOpen(c.stats, c.rules, c.addrs)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		var want []report.Serving
		if c.elsewhere {
			want = []report.Serving{{By: "cluster DNS", Since: since.UTC()}}
		}
		if diff := cmp.Diff(want, servedElsewhere(c.stats, c.rules, c.addrs)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestViewReport: views are added up; the gaps name each resource once, and the last of two times.
func TestViewReport(t *testing.T) {
	early, late := time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	sum := &report.View{Synced: true, Objects: make(map[string]int)}
	addView(sum, kubernetes.Stats{Synced: true, Services: 2, Faulty: 1}, false)
	if diff := cmp.Diff(report.Gaps{Unlisted: []string{}, Failing: []string{}}, sum.Gaps); diff != "" || sum.AgeSeconds != 0 {
		t.Errorf("without gaps, age %v: %s", sum.AgeSeconds, diff)
	}
	addView(sum, kubernetes.Stats{Services: 3, LastEvent: time.Now().Add(-time.Minute), Gaps: kubernetes.Gaps{
		Unlisted: []string{"pods", "services"}, Relists: 2, LastRelist: late, Silences: 1, LastSilence: early, LastSilent: time.Minute,
	}}, true)
	addView(sum, kubernetes.Stats{Faulty: 2, LastEvent: time.Now(), Gaps: kubernetes.Gaps{
		Unlisted: []string{"namespaces", "pods"}, Failing: []string{"pods"}, Relists: 1, LastRelist: early,
		SetBacks: 1, LastSetBack: early, Silences: 1, LastSilence: late, LastSilent: time.Hour, Unreadable: 3,
	}}, true)
	want := report.Gaps{
		Unlisted: []string{"namespaces", "pods", "services"}, Failing: []string{"pods"}, Relists: 3, LastRelist: &late,
		SetBacks: 1, LastSetBack: &early, Silences: 2, LastSilence: &report.Silence{End: late, Seconds: 3600}, Unreadable: 3,
	}
	if diff := cmp.Diff(want, sum.Gaps); diff != "" {
		t.Error(diff)
	}
	if sum.Synced || sum.Objects["service"] != 5 || sum.Faulty != 3 || sum.AgeSeconds < 60 {
		t.Errorf("the sum is %+v", sum)
	}
}

// TestViewWithoutEvent: before the first event the age is that since the start, and the problem names the error and what
// to do about it.
func TestViewWithoutEvent(t *testing.T) {
	sum := &report.View{Objects: make(map[string]int)}
	st := kubernetes.Stats{Opened: time.Now().Add(-time.Minute)}
	addView(sum, st, true)
	if text := viewProblem(sum); !sum.NoEvent || sum.AgeSeconds < 60 || sum.AgeSeconds > 3600 || text != nil {
		t.Errorf("age %v, %q", sum.AgeSeconds, text)
	}
	st.Failure = reflector.Failure{Err: errors.New("Unauthorized"), Fix: "give it a token"}
	addView(sum, st, true)
	text := fmt.Sprint(viewProblem(sum))
	if want := regexp.MustCompile(`^\[no sign of life of the API server for 1m\d+s, since the start: Unauthorized; give it a token\]$`); !want.MatchString(text) {
		t.Errorf("the problem is %q", text)
	}
	if text := viewProblem(&report.View{AgeSeconds: 90, Error: "it restarts"}); text != nil {
		t.Errorf("while the last event is recent: %q", text)
	}
	all := make(chan prometheus.Metric, 100)
	collect(all, false, func(s *scrape) { s.views([]kubernetes.Stats{{Opened: st.Opened, LastEvent: time.Now()}, st}) })
	close(all)
	if len(all) < 10 {
		t.Errorf("only %d values", len(all))
	}
	for m := range all {
		if strings.Contains(m.Desc().String(), "nodens_kubernetes_last_event") {
			t.Errorf("metrics have the time of an event: %v", m)
		}
	}
}

// TestLimitList: of many limits of one name the list has the one with the highest share, and none without
// a bound.
func TestLimitList(t *testing.T) {
	var l limitList
	l.add("no bound", "", 7, 0)
	for _, used := range []int{1, 3, 2} {
		l.add("queries", string(rune('a'+used)), used, 4)
	}
	l.add("idle", "b", 0, 9)
	l.add("idle", "a", 0, 9)
	l.addBytes("cache", 5, 10)
	l.addServer("connections", server.Usage{Used: 1, Limit: 2, Addr: netip.MustParseAddrPort("127.0.0.1:53")})
	want := limitList{
		{Name: "queries", Of: "d", Used: 3, Bound: 4, Share: 0.75},
		{Name: "idle", Of: "a", Bound: 9},
		{Name: "cache", Used: 5, Bound: 10, Unit: "bytes", Share: 0.5},
		{Name: "connections", Of: "127.0.0.1:53", Used: 1, Bound: 2, Share: 0.5},
	}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Error(diff)
	}
}
