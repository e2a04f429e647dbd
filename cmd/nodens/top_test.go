//go:build linux

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// topReply is what an agent answers.
var topReply = report.Clients{
	Header: report.Header{SchemaVersion: 1, Node: "node-1"}, By: "pod", Window: "1m", WindowSeconds: 50, Addresses: 3, AddressLimit: 512, Refused: 7, More: 2,
	Total: report.ClientCounts{Queries: 1000},
	Clients: []report.Client{
		{
			Kind: "pod", Namespace: "shop", Pod: "web-1", WorkloadKind: "Deployment", Workload: "web", Addresses: []string{"10.0.0.1", "fd00::1"},
			QueriesPerSecond: 16, Share: 0.8, P50Seconds: 0.001024, P99Seconds: 0.262144, Total: report.ClientCounts{Queries: 5000},
			Window:  report.ClientCounts{Queries: 800, NXDomain: 400, Waste: 200, Hits: 700, Kernel: 100, Upstream: 100, Slow: 3},
			TopName: &report.TopName{Name: "db.shop.svc.cluster.local.", Share: 0.4},
		},
		{Kind: "unknown", Addresses: []string{"10.0.0.9"}, QueriesPerSecond: 4, Share: 0.2, Window: report.ClientCounts{Queries: 200, Servfail: 50, Shed: 50, Hits: 150}},
		{Kind: "host", Addresses: []string{}},
	},
}

// topAgent answers with what reply makes of a request, at the socket whose path it returns.
func topAgent(t *testing.T, asked *string, reply func(url.Values) any) string {
	t.Helper()
	return topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		*asked = r.URL.String()
		_ = json.NewEncoder(w).Encode(reply(r.URL.Query()))
	})
}

// topAgentFunc serves at the socket whose path it returns.
func topAgentFunc(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveAdmin(t, path, serve)
	return path
}

// serveAdmin serves at an agent's socket until the test ends, or stop is called.
func serveAdmin(t *testing.T, path string, serve http.HandlerFunc) (stop func()) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	check.NoError(t, err)
	s := &http.Server{Handler: serve}
	go func() { _ = s.Serve(ln) }()
	stop = func() { _ = s.Close() }
	t.Cleanup(stop)
	return stop
}

// TestTop: what the command asks for, and its tables.
func TestTop(t *testing.T) {
	var asked string
	socket := topAgent(t, &asked, func(values url.Values) any {
		reply := topReply
		reply.By = values.Get("by")
		return reply
	})
	code, out, stderr := outcome(t, "top", "--admin-socket", socket)
	want := `node node-1: 20.0 queries/s in the last 50 s, from 3 addresses (limit 512); about 7 others are (other)

POD         QPS   SHARE  HIT    KERNEL  NXDOMAIN  WASTE  SERVFAIL  UPSTREAM/s  P50      P99         SHED  TOP-NAME
shop/web-1  16.0  80.0%  87.5%  12.5%   50.0%     25.0%  0.0%      2.0         ≤1.024ms  ≤262.144ms  0  db.shop.svc.cluster.local. 40.0%
10.0.0.9    4.0   20.0%  75.0%  0.0%    0.0%      0.0%   25.0%     0.0         -        -           50  -
(host)      0.0   0.0%   -      -       -         -      -         0.0         -        -           0  -
and 2 more
`
	if squeeze(out) != squeeze(want) || code != 0 || asked != "/clients?by=pod&window=1m" {
		t.Errorf("%d %q, asked %s\n%s", code, stderr, asked, cmp.Diff(want, out))
	}
	_, out, _ = outcome(t, "top", "--admin-socket", socket, "--by", "workload", "--window", "1h", "--sort", "servfail", "--rows", "1", "-o", "wide")
	lines := strings.Split(squeeze(out), "\n")
	if asked != "/clients?by=workload&window=1h" || len(lines) != 6 || !strings.HasPrefix(lines[3], "10.0.0.9 ") || !strings.HasSuffix(lines[3], " - 0 200 0 - 10.0.0.9") || lines[4] != "and 4 more" {
		t.Errorf("asked %s\n%s", asked, out)
	}
	var got report.Clients
	if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--sort", "shed", "-o", "json"); json.Unmarshal([]byte(out), &got) != nil || len(got.Clients) != 3 || got.Clients[0].Kind != "unknown" {
		t.Errorf("as JSON:\n%s", out)
	}
	for by, want := range map[string]string{"namespace": "shop ", "workload": "shop/web "} {
		if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--by", by); !strings.Contains(out, "\n"+want) {
			t.Errorf("by %s:\n%s", by, out)
		}
	}
}

// TestTopOptional: the columns for limited queries, and for truncated replies to clients that never ask over TCP, are there if a
// client has any. Rows can be sorted by limited queries.
func TestTopOptional(t *testing.T) {
	var asked string
	reply := topReply
	reply.Total.Limited = 60
	reply.Clients = slices.Clone(reply.Clients)
	reply.Clients[1].Window.Limited, reply.Clients[1].Unfollowed = 60, 70
	socket := topAgent(t, &asked, func(url.Values) any { return reply })
	code, out, stderr := outcome(t, "top", "--admin-socket", socket, "--sort", "limited", "--rows", "1")
	const want = "\nPOD QPS SHARE HIT KERNEL NXDOMAIN WASTE SERVFAIL UPSTREAM/s P50 P99 SHED LIMITED NO-TCP TOP-NAME\n10.0.0.9 4.0 20.0% 75.0% 0.0% 0.0% 0.0% 25.0% 0.0 - - 50 60 70 -\nand 4 more\n"
	if code != 0 || !strings.HasSuffix(squeeze(out), want) {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
}

// TestTopBypass: what the command asks for, and a row for each pod, server and protocol; of a cluster, too.
func TestTopBypass(t *testing.T) {
	var asked string
	names := report.Names{
		Header: report.Header{SchemaVersion: 1, Node: "node-1"}, Topic: "bypass", Window: "1m", WindowSeconds: 50, Queries: 600,
		Names: []report.Name{
			{Name: "192.0.2.53:53", Cause: "udp", Queries: 500, QueriesPerSecond: 10, Share: 0.83, Client: &report.NameClient{Kind: "pod", Namespace: "shop", Pod: "web-1", Address: "10.0.0.1"}},
			{Name: "[2001:db8::53]:853", Cause: "tls", Queries: 100, QueriesPerSecond: 2, Share: 0.17, Client: &report.NameClient{Kind: "unknown", Address: "10.0.0.9"}},
		},
	}
	socket := topAgent(t, &asked, func(url.Values) any { return names })
	code, out, stderr := outcome(t, "top", "--by", "bypass", "--admin-socket", socket)
	want := `node node-1: 600 queries of pods to other DNS servers in the last 50 s

POD PROTOCOL QPS SHARE QUERIES ERROR SERVER
shop/web-1 udp 10.0 83.0% 500 ≤0 192.0.2.53:53
10.0.0.9 tls 2.0 17.0% 100 ≤0 [2001:db8::53]:853
`
	if d := cmp.Diff(want, squeeze(out)); code != 0 || d != "" || asked != "/names?topic=bypass&window=1m" {
		t.Errorf("%d %s, asked %s (-want +got)\n%s", code, stderr, asked, d)
	}
	for _, args := range []string{"--topic slow", "--sort p99"} {
		if code, _, stderr := outcome(t, append(strings.Fields("top --by bypass --admin-socket "+socket), strings.Fields(args)...)...); code != 2 || !strings.Contains(stderr, "does not go with --by bypass") {
			t.Errorf("%s: %d %s", args, code, stderr)
		}
	}
}

// TestTopDenied: the names that policies deny, with the pods that ask for them.
func TestTopDenied(t *testing.T) {
	var asked string
	socket := topAgent(t, &asked, func(url.Values) any {
		return report.Names{
			Header: report.Header{SchemaVersion: 1, Node: "node-1"}, Topic: "denied", Window: "1m", WindowSeconds: 50, Queries: 10,
			Names: []report.Name{{Name: "evil.test.", Queries: 10, QueriesPerSecond: 0.2, Share: 1, Client: &report.NameClient{Kind: "pod", Namespace: "shop", Pod: "web-1", Address: "10.0.0.1"}}},
		}
	})
	code, out, stderr := outcome(t, "top", "--by", "denied", "--admin-socket", socket)
	want := `node node-1: 10 queries that DNSPolicies and rpz deny, without names that only a search path makes in the last 50 s

POD QPS SHARE QUERIES ERROR NAME
shop/web-1 0.2 100.0% 10 ≤0 evil.test.
`
	if d := cmp.Diff(want, squeeze(out)); code != 0 || d != "" || asked != "/names?topic=denied&window=1m" {
		t.Errorf("%d %s, asked %s (-want +got)\n%s", code, stderr, asked, d)
	}
}

// TestTopNames: the names of each topic, with their bounds.
func TestTopNames(t *testing.T) {
	var asked string
	socket := topAgent(t, &asked, func(values url.Values) any {
		n := report.Names{
			Header: report.Header{SchemaVersion: 1, Node: "node-1"}, Topic: values.Get("topic"), Window: "1m", WindowSeconds: 50, Queries: 1000, More: 3,
			Names: []report.Name{{Name: "example.com.", Queries: 500, Error: 20, QueriesPerSecond: 10, Share: 0.5}, {Name: ".", Queries: 10, QueriesPerSecond: 0.2, Share: 0.01}},
		}
		switch n.Topic {
		case "client":
			n.KernelSample, n.Names[0].Deviation = 64, 358
			n.Names[0].Client = &report.NameClient{Kind: "pod", Namespace: "shop", Pod: "web-1", Address: "10.0.0.1"}
			n.Names[1].Client = &report.NameClient{Kind: "unknown", Address: "10.0.0.9"}
		case "failing", "slow":
			n.Names[0].Cause, n.Names[1].Cause = "upstream", "queue"
		}
		if n.Topic == "queries" {
			n.Floor = 8
		}
		return n
	})
	for topic, want := range map[string]string{
		"queries": `queries in the last 50 s; names without a row: at most 8 each

QPS SHARE QUERIES ERROR NAME
10.0 50.0% 500 ≤20 example.com.
0.2 1.0% 10 ≤0 .
`,
		"client": `queries in the last 50 s; of the answers from the kernel, 1 in 64 is sampled

POD QPS SHARE QUERIES ERROR NAME
shop/web-1 10.0 50.0% 500 ≤20 ±358 example.com.
10.0.0.9 0.2 1.0% 10 ≤0 .
`,
		"waste": `NXDOMAIN for names that only a search path makes in the last 50 s

QPS SHARE QUERIES ERROR NAME
10.0 50.0% 500 ≤20 *.example.com.
0.2 1.0% 10 ≤0 *.
`,
		"failing": `queries with SERVFAIL in the last 50 s

CAUSE QPS SHARE QUERIES ERROR NAME
upstream 10.0 50.0% 500 ≤20 example.com.
queue 0.2 1.0% 10 ≤0 .
`,
		"slow": `slow queries in the last 50 s

CAUSE QPS SHARE QUERIES ERROR NAME
upstream 10.0 50.0% 500 ≤20 example.com.
queue 0.2 1.0% 10 ≤0 .
`,
	} {
		code, out, stderr := outcome(t, "top", "--admin-socket", socket, "--by", "name", "--topic", topic, "--window", "10s")
		if want = squeeze("node node-1: 1000 " + want + "and 3 more\n"); squeeze(out) != want || code != 0 || asked != "/names?topic="+topic+"&window=10s" {
			t.Errorf("%s: %d %q, asked %s\n%s", topic, code, stderr, asked, cmp.Diff(want, squeeze(out)))
		}
	}
	if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--by", "name", "--rows", "1"); !strings.HasSuffix(out, "and 4 more\n") || asked != "/names?topic=queries&window=1m" {
		t.Errorf("one row, asked %s:\n%s", asked, out)
	}
	if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--by", "name", "--topic", "client", "-o", "wide"); !strings.Contains(squeeze(out), "≤20 ±358 example.com. 10.0.0.1\n") {
		t.Errorf("wide:\n%s", out)
	}
	var got report.Names
	if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--by", "name", "-o", "json"); json.Unmarshal([]byte(out), &got) != nil || len(got.Names) != 2 || got.Floor != 8 {
		t.Errorf("as JSON:\n%s", out)
	}
}

// TestTopUpstreams: each server is in the table once, in the order of --sort.
func TestTopUpstreams(t *testing.T) {
	recent := report.Exchanges{Seconds: 70, PerSecond: 30, ServfailShare: 0.01, UnansweredShare: 0.25, P50Seconds: 0.0005, P99Seconds: 0.008}
	busy := report.Upstream{To: "10.0.0.1:53", RTTSeconds: 0.0004, Recent: recent, Exchanges: map[string]uint64{"NOERROR": 4}, Hedges: 3}
	suspect := busy
	suspect.Suspect = true
	failing := report.Upstream{To: "10.0.0.2:53", Down: true, Recent: report.Exchanges{Seconds: 70, PerSecond: 10, ServfailShare: 0.5}}
	var asked string
	socket := topAgent(t, &asked, func(url.Values) any {
		return report.Upstreams{Header: report.Header{Node: "node-1"}, More: 2, Forwards: []report.Forward{
			{From: ".", Upstreams: []report.Upstream{failing, busy}}, {From: "example.org.", Upstreams: []report.Upstream{suspect}},
		}}
	})
	const busyRow, failingRow = "10.0.0.1:53 30.0 75.0% 1.0% 25.0% ≤500µs ≤8ms 0.4ms suspect\n", "10.0.0.2:53 10.0 25.0% 50.0% 0.0% - - - down\n"
	for sort, rows := range map[string]string{"queries": busyRow + failingRow, "p99": busyRow + failingRow, "servfail": failingRow + busyRow} {
		code, out, stderr := outcome(t, "top", "--admin-socket", socket, "--by", "upstream", "--sort", sort)
		want := squeeze("node node-1: 40.0 exchanges/s in the last 70 s, with 2 upstreams\n\nUPSTREAM QPS SHARE SERVFAIL UNANSWERED P50 P99 RTT STATE\n" + rows + "without 2 more forward directives\n")
		if squeeze(out) != want || code != 0 || asked != "/upstreams" {
			t.Errorf("--sort %s: %d %q, asked %s\n%s", sort, code, stderr, asked, cmp.Diff(want, squeeze(out)))
		}
	}
	suspect.Budget = &report.Budget{LimitPerSecond: 900, UsedShare: 0.5, Waiting: 3, Waited: 40, Expired: 2, GivenUp: 1}
	busy.Budget = suspect.Budget
	for command, want := range map[string]string{
		"top --by upstream --rows 2": "UPSTREAM QPS SHARE SERVFAIL UNANSWERED P50 P99 RTT STATE BUDGET USED WAITING\n" +
			strings.TrimSpace(busyRow) + " 900/s 50.0% 3\n" + strings.TrimSpace(failingRow) + " - - -\n",
		"top --by upstream -o wide": " suspect NOERROR=8 0 0 0 6 0 0 900/s 50.0% 3 40 2 1\n", // sums of both directives
		"upstreams":                 "RTT BUDGET USED WAITING\n10.0.0.2:53 . down 10.0 50.0% 0.0% - - - - - -\n",
		"upstreams -o wide":         " NOERROR=4 0 0 0 3 0 0 900/s 50.0% 3 40 2 1\n",
	} {
		if _, out, _ := outcome(t, append(strings.Fields(command), "--admin-socket", socket)...); !strings.Contains(squeeze(out), squeeze(want)) {
			t.Errorf("%s:\n%s", command, cmp.Diff(want, squeeze(out)))
		}
	}
	if _, out, _ := outcome(t, "top", "--admin-socket", socket, "--by", "upstream", "--rows", "1"); !strings.Contains(out, "and 1 more\n") {
		t.Errorf("one row:\n%s", out)
	}
}

// TestTopOff: what an agent that does not count clients says.
func TestTopOff(t *testing.T) {
	path := topAgentFunc(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "run the agent without --client-metrics=off", http.StatusConflict)
	})
	for _, by := range []string{"pod", "name"} {
		if code, _, stderr := outcome(t, "top", "--admin-socket", path, "--by", by); code != 1 || !strings.Contains(stderr, "--client-metrics=off") {
			t.Errorf("by %s: %d %s", by, code, stderr)
		}
	}
}

// TestTopUsage: invalid values, and flags that don't go together, are errors that say what to give.
func TestTopUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--by client":                  "pod, workload, namespace, name, domain, upstream, bypass or denied",
		"--window 1d":                  "10s, 1m or 1h",
		"--sort name":                  "queries, nxdomain",
		"--by name --topic name":       "queries, client, waste, failing or slow",
		"--rows x":                     "--rows",
		"now":                          "now",
		"--interval 10ms":              "--interval 10ms is too short; give 1s or more",
		"--topic waste":                "--topic does not go with --by pod; give --by name",
		"--by name --sort nxdomain":    "--sort nxdomain does not go with --by name; give queries",
		"--by upstream --sort waste":   "--sort waste does not go with --by upstream; give p99, queries, servfail",
		"--by upstream --window 10s":   "--window does not go with --by upstream",
		"--by upstream --topic client": "--topic does not go with --by upstream",
	} {
		if code, _, stderr := outcome(t, append([]string{"top"}, strings.Fields(args)...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("top %s: %d %s, want %q", args, code, stderr, want)
		}
	}
}

// squeeze replaces the spaces between columns, whose width depends on all rows, by one.
func squeeze(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(append(lines, ""), "\n")
}
