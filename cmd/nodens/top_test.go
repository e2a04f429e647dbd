//go:build linux

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
)

// topReply is what an agent answers.
var topReply = report.Clients{
	Header: report.Header{SchemaVersion: 1, Node: "node-1"}, By: "pod", Window: "1m", WindowSeconds: 50, Addresses: 3, AddressLimit: 512, Refused: 7, More: 2,
	Total: report.ClientCounts{Queries: 1000},
	Clients: []report.Client{
		{
			Kind: "pod", Namespace: "shop", Pod: "web-1", WorkloadKind: "Deployment", Workload: "web", Addresses: []string{"10.0.0.1", "fd00::1"},
			QueriesPerSecond: 16, Share: 0.8, P50Seconds: 0.001024, P99Seconds: 0.262144, Total: report.ClientCounts{Queries: 5000},
			Window: report.ClientCounts{Queries: 800, NXDomain: 400, Waste: 200, Hits: 700, Kernel: 100, Upstream: 100, Slow: 3},
		},
		{Kind: "unknown", Addresses: []string{"10.0.0.9"}, QueriesPerSecond: 4, Share: 0.2, Window: report.ClientCounts{Queries: 200, Servfail: 50, Shed: 50, Hits: 150}},
		{Kind: "host", Addresses: []string{}},
	},
}

// topAgent answers /clients with topReply at the socket whose path it returns.
func topAgent(t *testing.T, asked *string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = r.URL.String()
		reply := topReply
		reply.By = r.URL.Query().Get("by")
		_ = json.NewEncoder(w).Encode(reply)
	})}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return path
}

// TestTop: what the command asks for, and its tables.
func TestTop(t *testing.T) {
	var asked string
	socket := topAgent(t, &asked)
	code, out, stderr := outcome(t, "top", "--admin-socket", socket)
	want := `node node-1: 20.0 queries/s in the last 50 s, from 3 addresses (limit 512); about 7 others are (other)

POD         QPS   SHARE  HIT    KERNEL  NXDOMAIN  WASTE  SERVFAIL  UPSTREAM/s  P50      P99         SHED
shop/web-1  16.0  80.0%  87.5%  12.5%   50.0%     25.0%  0.0%      2.0         ≤1.024ms  ≤262.144ms  0
10.0.0.9    4.0   20.0%  75.0%  0.0%    0.0%      0.0%   25.0%     0.0         -        -           50
(host)      0.0   0.0%   -      -       -         -      -         0.0         -        -           0
and 2 more
`
	if squeeze(out) != squeeze(want) || code != 0 || asked != "/clients?by=pod&window=1m" {
		t.Errorf("%d %q, asked %s\n%s", code, stderr, asked, cmp.Diff(want, out))
	}
	_, out, _ = outcome(t, "top", "--admin-socket", socket, "--by", "workload", "--window", "1h", "--sort", "servfail", "--rows", "1", "-o", "wide")
	lines := strings.Split(squeeze(out), "\n")
	if asked != "/clients?by=workload&window=1h" || len(lines) != 6 || !strings.HasPrefix(lines[3], "10.0.0.9 ") || !strings.HasSuffix(lines[3], " 0 200 0 - 10.0.0.9") || lines[4] != "and 4 more" {
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
	for _, args := range []string{"--by client", "--window 1d", "--sort name", "--rows x", "now"} {
		if code, _, stderr := outcome(t, append([]string{"top"}, strings.Fields(args)...)...); code != 2 {
			t.Errorf("top %s: %d %s", args, code, stderr)
		}
	}
}

// squeeze replaces the spaces between columns by one.
func squeeze(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(append(lines, ""), "\n")
}
