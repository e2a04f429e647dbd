// These tests use clientReport and agent, which are not exported.

package app

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
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
