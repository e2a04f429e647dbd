//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
)

// tailLines are what an agent answers.
func tailLines() []report.TailLine {
	age := 12.4
	at := time.Date(2026, 11, 22, 21, 30, 0, 123e6, time.UTC)
	head := report.Header{SchemaVersion: 1, Node: "node-1"}
	return []report.TailLine{
		{Header: head, Selected: &report.TailSelection{Addresses: []string{}}},
		{Header: head, Selected: &report.TailSelection{Addresses: []string{"10.0.0.1", "fd00::1"}}},
		{Header: head, Query: &report.TailQuery{
			Time: at, Client: "10.0.0.1:53", Namespace: "shop", Pod: "web-1", Workload: "Deployment/web", Protocol: "udp", Name: "example.org.", Type: "A",
			Rcode: "NOERROR", Zone: ".", Source: "cache", Cache: "hit", CacheAgeSeconds: &age, DurationSeconds: 0.000021,
		}},
		{Header: head, Query: &report.TailQuery{
			Time: at, Client: "10.0.0.9:53", Namespace: "(unknown)", Protocol: "tcp", Name: "nosuch.org.", Type: "AAAA",
			Zone: ".", View: "v", Source: "forward", Cache: "miss", Upstream: "192.0.2.1:53", UpstreamSeconds: 0.25, Hedged: true, HedgeWon: true,
			SearchPath: "waste", DurationSeconds: 0.3, Error: "no reply",
		}},
		{Header: head, Lost: &report.TailLost{Limit: 5, SlowReader: 7}},
		{Header: head, Selected: &report.TailSelection{AllClients: true, Addresses: []string{}}},
	}
}

// TestTail: what the command asks for, and its output.
func TestTail(t *testing.T) {
	var asked string
	socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		for _, l := range tailLines() {
			_ = json.NewEncoder(w).Encode(l)
		}
	})
	code, out, stderr := outcome(t, "tail", "--admin-socket", socket, "--pod", "shop/web-1", "--name", "org", "--rcode", "NOERROR", "--slow", "1ms")
	want := `TIME CLIENT NAME TYPE RCODE SOURCE CACHE AGE UPSTREAM UPTIME DURATION
21:30:00.123 shop/web-1 example.org. A NOERROR cache hit 12s - - 21µs
21:30:00.123 10.0.0.9:53 nosuch.org. AAAA - forward miss - 192.0.2.1:53 250ms 300ms
`
	if squeeze(out) != want || code != 1 || asked != "/tail?name=org&pod=shop%2Fweb-1&rcode=NOERROR&slow=1ms" {
		t.Errorf("%d, asked %s\n%s", code, asked, cmp.Diff(want, squeeze(out)))
	}
	for _, part := range []string{
		"node node-1: no such client now; waiting for one\n", "node node-1: queries from 10.0.0.1, fd00::1\n", "node node-1: queries of all clients\n",
		"not shown: 5 queries beyond 1000 a second, 7 that this command was too slow for\n", "the agent has ended, or has handed over to another one",
	} {
		if !strings.Contains(stderr, part) {
			t.Errorf("%q is not in %q", part, stderr)
		}
	}
	_, out, _ = outcome(t, "tail", "--admin-socket", socket, "--all-clients", "-o", "wide")
	if !strings.Contains(squeeze(out), " 300ms . v - tcp won waste no reply\n") || !strings.Contains(squeeze(out), " 21µs . - Deployment/web udp - - -\n") || asked != "/tail?all=true" {
		t.Errorf("asked %s, wide:\n%s", asked, out)
	}
	_, out, _ = outcome(t, "tail", "--admin-socket", socket, "--namespace", "shop", "-o", "json")
	var l report.TailLine
	if lines := strings.Split(out, "\n"); len(lines) != 7 || json.Unmarshal([]byte(lines[2]), &l) != nil || !cmp.Equal(l, tailLines()[2]) {
		t.Errorf("json:\n%s", out)
	}
}

// TestTailUsage: which clients are watched must be said.
func TestTailUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"give --pod or --namespace, or --all-clients":                {"tail"},
		"--all-clients and a selection of clients; give one of them": {"tail", "--all-clients", "--pod", "a"},
		"give the agent --handover-dir":                              {"tail", "--all-clients", "--admin-socket", t.TempDir() + "/none"},
	} {
		if code, _, stderr := outcome(t, args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %q", args, code, stderr)
		}
	}
}
