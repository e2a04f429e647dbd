// These tests use clientReport and agent, which are not exported.

package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestClientReport: the rows by pod, workload and namespace, with rates and shares.
func TestClientReport(t *testing.T) {
	var now time.Duration
	table := clients.New(clients.Options{Clock: func() time.Duration { return now }, Stripes: 1})
	web := func(name, ip string) netip.Addr {
		addr := netip.MustParseAddr(ip)
		table.SetPod(addr, clients.Pod{Namespace: "shop", Name: name, UID: name, Workload: clients.Workload{Kind: "Deployment", Name: "web"}})
		return addr
	}
	first, second, unknown := web("web-1", "10.0.0.1"), web("web-2", "10.0.0.2"), netip.MustParseAddr("10.0.0.9")
	for range 6 {
		table.Count(0, first, clients.Query{Rcode: wire.NXDomain, Waste: true, Latency: time.Millisecond})
	}
	table.Count(0, second, clients.Query{Upstream: true, Latency: time.Second})
	table.Count(0, unknown, clients.Query{Rcode: wire.ServFail, Shed: true})
	now = 2 * time.Second

	got := clientReport(table, "pod", "10s")
	head := report.Clients{
		By: "pod", Window: "10s", WindowSeconds: 2, SinceSeconds: 2, Addresses: 3, AddressLimit: 512,
		Total: report.ClientCounts{Queries: 8, NoError: 1, NXDomain: 6, Servfail: 1, Hits: 6, Upstream: 1, Shed: 1, Waste: 6, Slow: 1},
	}
	rows := got.Clients
	if got.Clients = nil; !cmp.Equal(head, *got) {
		t.Error(cmp.Diff(head, *got))
	}
	if len(rows) != 3 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	counts := report.ClientCounts{Queries: 6, NXDomain: 6, Hits: 6, Waste: 6}
	want := report.Client{
		Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: "web-1", Addresses: []string{"10.0.0.1"},
		QueriesPerSecond: 3, Share: 0.75, P50Seconds: rows[0].P50Seconds, P99Seconds: rows[0].P50Seconds, Window: counts, Total: counts,
	}
	if diff := cmp.Diff(want, rows[0]); diff != "" || want.P50Seconds < 0.001 || want.P50Seconds > 0.003 {
		t.Errorf("p50 %v, %s", want.P50Seconds, diff)
	}
	for _, row := range rows[1:] {
		if row.Window.Queries != 1 || row.Share != 0.125 || row.Kind == "unknown" && (row.Addresses[0] != "10.0.0.9" || row.Window.Shed != 1) {
			t.Errorf("a row is %+v", row)
		}
	}
	for by, name := range map[string]string{"workload": "web", "namespace": ""} {
		if row := clientReport(table, by, "1m").Clients[0]; row.Window.Queries != 7 || row.Namespace != "shop" || row.Workload != name || row.Pod != "" || len(row.Addresses) != 0 {
			t.Errorf("by %s: %+v", by, row)
		}
	}
	if empty := clientReport(clients.New(clients.Options{}), "pod", "1h"); empty.Clients == nil || len(empty.Clients) != 0 {
		t.Errorf("without queries: %+v", empty)
	}
}

// TestClients: the admin socket shows who has asked, and refuses what it does not know.
func TestClients(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	socket, silent := filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")
	corefile := ".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n"
	startAgent(t, fmt.Sprintf(corefile, p[0]), func(o *options.Agent) { o.AdminSocket = socket })
	startAgent(t, fmt.Sprintf(corefile, p[1]), func(o *options.Agent) {
		o.AdminSocket, o.ClientMetrics = silent, options.ClientMetricsOff
	})
	for range 3 {
		agenttest.Ask(t, p[0], "a.test.")
	}
	code, text := over(t, socket, "GET", "/clients?window=1h")
	var c report.Clients
	if err := json.Unmarshal([]byte(text), &c); err != nil || code != http.StatusOK || c.SchemaVersion != report.SchemaVersion || c.By != "pod" || c.Total.Queries != 3 {
		t.Fatalf("/clients: %d %v\n%s", code, err, text)
	}
	if len(c.Clients) != 1 || c.Clients[0].Kind != "host" || c.Clients[0].Window.Hits != 3 || c.Clients[0].Share != 1 {
		t.Errorf("the clients are %+v", c.Clients)
	}
	for path, want := range map[string]string{
		"/clients?by=name":   "give one of namespace, pod, workload",
		"/clients?window=1d": "give one of 10s, 1h, 1m",
	} {
		if code, text := over(t, socket, "GET", path); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code, text := over(t, silent, "GET", "/clients"); code != http.StatusConflict || !strings.Contains(text, "--client-metrics=off") {
		t.Errorf("without counting: %d %s", code, text)
	}
}
