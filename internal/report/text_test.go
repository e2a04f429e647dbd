package report_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
)

// TestTexts: the words that commands and the page share.
func TestTexts(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(then time.Time) string { return now.Sub(then).String() }
	last := &report.HandoverEvent{Time: now.Add(-time.Minute), Event: "resumed", Reason: "slow"}
	rtt := func(seconds float64) string { return time.Duration(seconds * float64(time.Second)).String() }
	asks := report.ExplainedQuestion{Waits: "upstream", Forward: &report.ExplainedForward{Upstreams: []report.ExplainedUpstream{{RTTSeconds: 0.002}}}}
	stopped := report.ExplainedForward{From: ".", Policy: "random", Stopped: true}
	for got, want := range map[string]string{
		(&report.Status{Healthy: true, Ready: true}).State(): "healthy",
		(&report.Status{Ready: true}).State():                "ready, with problems",
		(&report.Status{}).State():                           "not ready",
		(&report.Status{ServedBy: []report.Serving{{By: "agent", Since: now.Add(-time.Second)}}}).Servers(ago): "agent for 1s",
		(&report.Handover{}).Text(ago):                                                                            "none",
		(&report.Handover{Last: last, Comparing: true}).Text(ago):                                                 "resumed 1m0s ago; the other agent gave back: slow; comparing with the predecessor",
		(&report.View{}).Text(false):                                                                              "not synced; empty",
		(&report.View{Objects: map[string]int{}, AgeSeconds: 70, NoEvent: true}).Text(false):                      "not synced; empty; no event in 70 s",
		(&report.View{Synced: true, Objects: map[string]int{"pod": 2, "namespace": 0}, AgeSeconds: 4}).Text(true): "namespaces 0, pods 2; last event 4 s ago",
		(&report.FailOpen{Capable: true, Reason: "why"}).Text():                                                   "capable, but not active: why; without an agent, queries are lost",
		(&report.FailOpen{Reason: "why"}).Text():                                                                  "not capable: why; without an agent, queries are lost",
		(&report.Upstream{Suspect: true}).State():                                                                 "suspect",
		(&report.ExplainedUpstream{Down: true, Suspect: true}).State():                                            "down",
		(&report.ExplainedQuestion{Source: "cache", Alternatives: []string{""}}).AnsweredBy():                     "cache or server",
		(&report.AskedQuestion{}).AnsweredBy():                                                                    "server",
		asks.Cost(rtt):                                                                                            "asks an upstream, about 2ms",
		(&report.ExplainedQuestion{Waits: "view"}).Cost(rtt):                                                      "loads objects from the API server",
		(&report.ExplainedQuestion{}).Cost(rtt):                                                                   "none",
		(&report.ExplainedReply{Rcode: "NOERROR", NoReply: true}).Result():                                        "none",
		(&report.ExplainedReply{}).Result():                                                                       "not known",
		(&report.ExplainedReply{Rcode: "NOERROR"}).ResultTTL():                                                    "NOERROR, no records",
		(&report.Explanation{}).SearchPath():                                                                      "",
		stopped.Text():                                                                                            "., policy random; stopped, because the zone's queries come back from its upstreams",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := (*report.View)(nil).Text(true); got != "none" {
		t.Errorf("no view: %q", got)
	}
	if got := (&report.Upstream{Exchanges: map[string]uint64{"B": 1, "A": 1, "C": 2}}).Rcodes(); !cmp.Equal(got, []string{"C", "A", "B"}) {
		t.Errorf("rcodes: %q", got)
	}
}

// TestKernelTexts: what is said of copies in the kernel, and of a client.
func TestKernelTexts(t *testing.T) {
	left, idle := 12.4, 3.0
	copies := []report.KernelCopy{
		{Rcode: "NXDOMAIN", State: "valid", IdleSeconds: &idle},
		{Flags: []string{"RD", "EDNS"}, Rcode: "NOERROR", State: "valid", TTLSeconds: &left},
		{Flags: []string{"RD"}, Rcode: "NOERROR", State: "outdated", TTLSeconds: &left},
		{Flags: []string{"RD"}, Rcode: "NOERROR", State: "valid", OneNamespace: true},
	}
	texts := []string{
		"copy for queries without flags: NXDOMAIN, until the cluster changes; last given 3 s ago",
		"copy for queries with RD, EDNS: NOERROR, 12 s left; not given yet",
		"copy for queries with RD: NOERROR, outdated; not given yet",
		"copy for queries with RD, from pods of one namespace: NOERROR, until the cluster changes; not given yet",
	}
	for _, c := range []struct {
		kernel report.ExplainedKernel
		want   []string
	}{
		{report.ExplainedKernel{}, []string{"no copy"}},
		{report.ExplainedKernel{Excluded: "why"}, []string{"no copy: why"}},
		{report.ExplainedKernel{Copies: copies}, texts},
		{report.ExplainedKernel{Copies: copies[:1], Excluded: "why"}, []string{texts[0], "no copy: why"}},
	} {
		if diff := cmp.Diff(c.want, c.kernel.Texts()); diff != "" {
			t.Error(diff)
		}
	}
	for want, c := range map[string]report.KernelClient{
		"veth1; the kernel answers":                     {Interface: "veth1", Answering: true, Result: "answered"},
		"an interface that is gone; the kernel answers": {Answering: true, Result: "answered"},
		"veth1; busy": {Interface: "veth1", Answering: true, Result: "busy"},
		"veth1; the agent answers, because other programs or filters are on the interface": {Interface: "veth1", Result: "answered"},
	} {
		if got := c.Text(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
