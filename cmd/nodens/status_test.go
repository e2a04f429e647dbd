//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// adminOf starts an agent with the admin socket in its hand-over directory, whose path it returns.
func adminOf(t *testing.T, corefile string) (*agenttest.Agent, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "handover")
	return startAgent(t, corefile, "-handover-dir", dir), dir
}

// TestStatusCommand: the formats of the status, and its exit code before and after an invalid
// configuration.
func TestStatusCommand(t *testing.T) {
	p := peer.Ports(t, 2)
	good := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . 127.0.0.1:%d\n}\n", p[0], p[1])
	a, dir := adminOf(t, good)
	for format, wants := range map[string][]string{
		"table": {"agent          healthy, version", "hand-over      none", "upstreams      1; 0 down", "kernel path    off", "fail-open      not capable: the agent sets up no rules", "serving        agent for "},
		"wide":  {"hash           ", "limit          waiting queries: 0 of 4096 (0%)", "limit          cache: 0.0 MiB of 32.0 MiB (0%)"},
	} {
		code, out, stderr := outcome(t, "status", "--handover-dir", dir, "-o", format)
		for _, want := range wants {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("-o %s: %d, no %q in\n%s%s", format, code, want, out, stderr)
			}
		}
	}
	var asJSON, asYAML report.Status
	_, out, _ := outcome(t, "status", "--admin-socket", filepath.Join(dir, "admin.sock"), "-o", "json")
	if err := json.Unmarshal([]byte(out), &asJSON); err != nil || asJSON.SchemaVersion != 1 || !asJSON.Healthy || asJSON.Config.Path != a.Conf {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
	_, out, _ = outcome(t, "status", "--handover-dir", dir, "-o", "yaml")
	if err := yaml.Unmarshal([]byte(out), &asYAML); err != nil || asYAML.Instance != asJSON.Instance || asYAML.Config.Hash != asJSON.Config.Hash {
		t.Errorf("as YAML: %v\n%s", err, out)
	}

	a.Reload("nonsense {", "the old configuration stays")
	code, out, stderr := outcome(t, "status", "--handover-dir", dir)
	hasTexts(t, out, "The configuration in the files is invalid, and the one before stays in force.\n  nodens check --conf "+a.Conf+"\n", "agent          ready, with problems", "problem        the configuration in the files is invalid: ")
	if n := strings.Count(out+stderr, "the file ends inside a block"); code != 1 || n != 1 || !strings.Contains(stderr, "problems of the agent: 1") {
		t.Errorf("with an invalid configuration the exit code is %d, and what is wrong is said %d times:\n%s%s", code, n, out, stderr)
	}
	a.Reload(good, "reload: the files are valid again, and hold the configuration in force")
}

// TestUpstreamsCommand: a line for each server of each forward directive.
func TestUpstreamsCommand(t *testing.T) {
	p := peer.Ports(t, 3)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[1]))
	_, dir := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n forward . 127.0.0.1:%d\n}\norg:%[1]d {\n bind 127.0.0.1\n forward . 127.0.0.1:%[3]d\n}\n", p[0], p[1], p[2]))
	agenttest.Expect(t, p[0], "a.test.", "192.0.2.1")
	code, out, stderr := outcome(t, "upstreams", "--handover-dir", dir)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "UPSTREAM ") || strings.Contains(lines[0], "ZONES") || !strings.Contains(lines[1], fmt.Sprintf("127.0.0.1:%d ", p[1])) {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	if _, out, _ := outcome(t, "upstreams", "--handover-dir", dir, "-o", "wide"); !strings.Contains(out, "ZONES") || !strings.Contains(out, "NOERROR=1") {
		t.Errorf("wide:\n%s", out)
	}
	var u report.Upstreams
	if _, out, _ := outcome(t, "upstreams", "--handover-dir", dir, "-o", "json"); json.Unmarshal([]byte(out), &u) != nil || len(u.Forwards) != 2 || u.Forwards[0].Upstreams[0].Exchanges["NOERROR"] != 1 {
		t.Errorf("as JSON:\n%s", out)
	}
	_, none := adminOf(t, fmt.Sprintf("test:%d {\n bind 127.0.0.1\n hosts\n}\n", peer.Ports(t, 1)[0]))
	if _, out, _ := outcome(t, "upstreams", "--handover-dir", none); out != "no forward directives\n" {
		t.Errorf("without forward:\n%s", out)
	}
}

// TestNoAgent: what the commands say if no agent answers, or one that does not know the request.
func TestNoAgent(t *testing.T) {
	dir := t.TempDir()
	old := topAgentFunc(t, http.NotFound)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"status --handover-dir " + dir, 1, "give the agent --handover-dir " + dir + " or --admin-socket " + dir + "/admin.sock"},
		{"status --handover-dir " + dir, 1, "while no agent answers, the cluster DNS serves the node if fail-open was active"},
		{"upstreams --admin-socket " + dir + "/none", 1, "give the agent --handover-dir " + dir + " or --admin-socket " + dir + "/none"},
		{"status --admin-socket " + old, 1, "earlier version"},
		{"status now", 2, "unexpected argument"},
		{"status -o xml", 2, "give table, wide, json or yaml"},
		{"upstreams -o text", 2, "give table, wide, json or yaml"},
	} {
		if code, out, stderr := outcome(t, strings.Fields(c.args)...); code != c.code || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %q %q, want %d %q", c.args, code, out, stderr, c.code, c.want)
		}
	}
}

// TestPrintBypass: whether packets to other servers are counted, or why not.
func TestPrintBypass(t *testing.T) {
	for want, b := range map[string]report.Bypass{
		"": {},
		"bypass: 7 packets of pods to other DNS servers": {Counted: true, Packets: 7},
		"bypass: not seen: no tcx":                       {Reason: "no tcx"},
	} {
		got := ""
		printBypass(func(name, format string, args ...any) { got = name + ": " + fmt.Sprintf(format, args...) }, &b)
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPrintStatus: the text of states that an agent of a test does not reach.
func TestPrintStatus(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	relisted := now.Add(-10 * time.Minute)
	s := &report.Status{
		Version: "0.1.0", Started: now.Add(-50 * time.Hour), ServingSince: now.Add(-90 * time.Minute), Problems: []report.Problem{{Text: "one", Remedy: "do one"}, {Text: "two", Remedy: "do two"}},
		Header:   report.Header{Node: "node-1", Instance: "0a"},
		Config:   report.Config{Path: "Corefile", Loaded: now.Add(-61 * time.Second), LastRejected: &report.Rejection{Time: now.Add(-time.Hour), Error: "bad"}},
		Handover: report.Handover{Comparing: true, Last: &report.HandoverEvent{Time: now.Add(-5 * time.Second), Event: "resumed", Reason: "slow"}},
		ServedBy: []report.Serving{
			{By: report.ServedByAgent, Since: now.Add(-90 * time.Minute)}, {By: report.ServedByKernel, Since: now.Add(-89 * time.Minute)},
			{By: report.ServedByClusterDNS, Since: now.Add(-30 * time.Second)},
		},
		View: &report.View{Objects: map[string]int{"service": 4, "pod": 0}, AgeSeconds: 12, Error: "no route", Fix: "find one", Faulty: 1, Gaps: report.Gaps{
			Unlisted: []string{"namespaces"}, Failing: []string{"namespaces", "pods"}, Relists: 3, LastRelist: &relisted, SetBacks: 1, LastSetBack: &relisted,
			Silences: 2, LastSilence: &report.Silence{End: now.Add(-time.Hour), Seconds: 300}, Unreadable: 1,
		}},
		Limits: []report.Limit{
			{Name: "TCP connections", Of: "169.254.20.10:53", Used: 1024, Bound: 1024, Share: 1},
			{Name: "cache", Unit: "bytes", Used: 30 << 20, Bound: 32 << 20, Share: 0.9375},
			{Name: "waiting queries", Used: 40, Bound: 4096, Share: 40.0 / 4096},
		},
		FairShares: sampleShares(),
		Rates:      report.Rates{Seconds: 61, QueriesPerSecond: 1234.56, ServfailShare: 0.0001, P50Seconds: 0.00025, P99Seconds: 0.002, HitRatio: 0.987, KernelShare: 0.5},
		Upstreams:  report.Counts{Total: 3, Down: 1, Suspect: 1},
		FailOpen:   report.FailOpen{Rules: "nftables", Capable: true, Active: true, Servers: 2},
		KernelPath: report.KernelPath{Active: true, Answering: 30, Watched: 1},
	}
	for i := range 7 {
		s.Faults = append(s.Faults, report.Fault{Time: now, Level: "warn", Message: fmt.Sprint("fault ", i), Fields: "k=v"})
	}
	var b strings.Builder
	check.NoError(t, printStatus(&b, s, now, false))
	want := `agent          not ready, version 0.1.0, instance 0a
node           node-1
serving        agent for 1h30m, kernel for 1h29m, cluster DNS for 30s; started 2d2h ago
problem        one; do one
problem        two; do two
hand-over      resumed 5s ago; the other agent gave back: slow; comparing with the predecessor
configuration  Corefile, in force for 1m1s
last rejected  1h0m ago: bad
view           not synced; services 4; last event 12 s ago; 1 objects that DNS can't show
gaps           requests for namespaces, pods fail: no route (find one); no list yet of namespaces; listed again 3 times, last 10m0s ago; resourceVersions of the API server set back 1 times, last 10m0s ago; API server silent 2 times, last for 300 s until 1h0m ago; 1 unreadable objects
queries        1234.6/s in the last 61 s; SERVFAIL <0.1%, hits 98.7%, in the kernel 50.0%
latency        p50 ≤250µs, p99 ≤2ms
upstreams      3; 1 down, 1 suspect
fail-open      active (nftables); 2 servers of the cluster DNS
kernel path    active; answers on 30 pod interfaces, observes 1
limit          TCP connections: 1024 of 1024 (100%), at 169.254.20.10:53
limit          cache: 30.0 MiB of 32.0 MiB (94%)
limited        shop/web-1: 1203 in the last 50 s (client_limit 1200, places 3)
limited        10.0.0.9: 7 in the last 50 s (socket 7)
limited        (host): 6 in the last 50 s (places 6)
limited        and 9 more clients
budget         10.40.0.11:53: 96% of 900/s; 12 queries wait, most of shop/web-1 (12 waiting)
budget         10.40.0.12:53: auto, no limit found yet
shed next      shop/web-1 (3000 waiting), 10.0.0.9 (8 waiting)

Last warnings and errors:
  2026-03-04T12:00:00Z warn  fault 2 k=v
  2026-03-04T12:00:00Z warn  fault 3 k=v
  2026-03-04T12:00:00Z warn  fault 4 k=v
  2026-03-04T12:00:00Z warn  fault 5 k=v
  2026-03-04T12:00:00Z warn  fault 6 k=v
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	s.View.Gaps = report.Gaps{}
	b.Reset()
	check.NoError(t, printStatus(&b, s, now, true))
	for _, want := range []string{"limited        shop/web-2: 5 in the last 50 s (budget 5)\nlimited        and 8 more clients\n", "gaps           none\n", "limit          waiting queries: 40 of 4096 (1%)\n"} {
		if !strings.Contains(b.String(), want) || strings.Count(b.String(), "fault ") != 7 {
			t.Errorf("wide: no %q in\n%s", want, b.String())
		}
	}
}

// sampleShares are limited clients, budgets, and waiting clients.
func sampleShares() report.FairShares {
	pod := func(name string) report.NameClient {
		return report.NameClient{Kind: "pod", Namespace: "shop", Pod: name, Address: "10.0.0.1"}
	}
	unknown := report.NameClient{Kind: "unknown", Address: "10.0.0.9"}
	return report.FairShares{
		Seconds: 50, MoreLimited: 8,
		Limited: []report.LimitedClient{
			{NameClient: pod("web-1"), Limited: 1203, Reasons: map[string]uint64{"places": 3, "client_limit": 1200}},
			{NameClient: unknown, Limited: 7, Reasons: map[string]uint64{"socket": 7}},
			{NameClient: report.NameClient{Kind: "host"}, Limited: 6, Reasons: map[string]uint64{"places": 6}},
			{NameClient: pod("web-2"), Limited: 5, Reasons: map[string]uint64{"budget": 5}},
		},
		Waiting: []report.WaitingClient{{NameClient: pod("web-1"), Waiting: 3000}, {NameClient: unknown, Waiting: 8}},
		Budgets: []report.UpstreamBudget{
			{To: "10.40.0.11:53", Budget: report.Budget{LimitPerSecond: 900, UsedShare: 0.96, Waiting: 12, Clients: []report.WaitingClient{{NameClient: pod("web-1"), Waiting: 12}}}},
			{To: "10.40.0.12:53", Budget: report.Budget{Auto: true}},
		},
	}
}

// TestAdminSocketFlags: which socket an agent opens, and which one the commands ask.
func TestAdminSocketFlags(t *testing.T) {
	for _, c := range []struct {
		args, path string
		optional   bool
	}{
		{"", "", false},
		{"-handover-dir /h", "/h/admin.sock", true},
		{"-handover-dir /h -admin-socket /s", "/s", false},
		{"-handover-dir /h -admin-socket=", "", false},
		{"-admin-socket /s", "/s", false},
	} {
		f, err := parseFlags(strings.Fields(c.args))
		if err != nil || f.AdminSocket != c.path || f.AdminSocketOptional != c.optional {
			t.Errorf("%q: %q, optional %v, %v", c.args, f.AdminSocket, f.AdminSocketOptional, err)
		}
	}
	for want, s := range map[string]adminSocket{
		"/s":            {path: "/s", handoverDir: "/h"},
		"/h/admin.sock": {handoverDir: "/h"},
	} {
		if got := s.find(); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
	}
	if _, err := os.Lstat(manifestSocket); err != nil {
		want := manifestSocket
		if _, err := os.Lstat(runSocket); err == nil {
			want = runSocket
		}
		if got := new(adminSocket).find(); got != want {
			t.Errorf("without flags: %s, want %s", got, want)
		}
	}
}
