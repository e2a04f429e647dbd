// These tests use nameReport, which is not exported.

package app

import (
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

// TestNameReport: the rows of each topic, with rates, shares, clients and causes.
func TestNameReport(t *testing.T) {
	var now time.Duration
	table := clients.New(clients.Options{Clock: func() time.Duration { return now }, Stripes: 1})
	addr := netip.MustParseAddr("10.0.0.1")
	table.SetPod(addr, clients.Pod{Namespace: "shop", Name: "web-1", UID: "u", Workload: clients.Workload{Kind: "Deployment", Name: "web"}})
	for i := range 4 {
		q := clients.Query{Name: []byte("\x03www\x04test\x00")}
		if i == 0 {
			q = clients.Query{Name: q.Name, Rcode: wire.ServFail, Shed: true, Cause: clients.QueueCause}
		}
		table.Count(0, addr, q)
	}
	now = 2 * time.Second
	for topic, want := range map[string]report.Name{
		"queries": {Queries: 4, QueriesPerSecond: 2},
		"client": {Queries: 4, QueriesPerSecond: 2, Client: &report.NameClient{
			Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: "web-1", Address: "10.0.0.1",
		}},
		"failing": {Queries: 1, QueriesPerSecond: 0.5, Cause: "queue"},
	} {
		want.Name, want.Share = "www.test.", 1
		all := report.Names{Topic: topic, Window: "10s", WindowSeconds: 2, Queries: want.Queries, MaxWeight: 1, Names: []report.Name{want}}
		if diff := cmp.Diff(&all, nameReport(table, topic, "10s", maxShownNames)); diff != "" {
			t.Errorf("%s: %s", topic, diff)
		}
	}
	table.SetKernelSample(64)
	if r := nameReport(table, "client", "10s", maxShownNames); r.KernelSample != 64 {
		t.Errorf("%d answers of the kernel for each sample", r.KernelSample)
	}
	table.SampleKernel(addr, []byte("\x03www\x04test\x00"), false)
	if r := nameReport(table, "queries", "10s", maxShownNames); r.MaxWeight != 64 || r.Names[0].Queries != 68 || r.Names[0].Deviation != 132 { // twice the root of 68·64
		t.Errorf("with a sample: %+v", r)
	}
	if empty := nameReport(table, "waste", "1h", maxShownNames); empty.Names == nil || len(empty.Names) != 0 {
		t.Errorf("waste: %+v", empty)
	}
	for i := range maxShownNames + 10 {
		table.Count(0, addr, clients.Query{Now: now, Name: fmt.Appendf(nil, "\x05%05d\x00", i)})
	}
	now += 5 * time.Second
	for i := range 100 {
		table.Count(0, addr, clients.Query{Now: now, Name: fmt.Appendf(nil, "\x05a%04d\x00", i)})
	}
	if many := nameReport(table, "queries", "1m", maxShownNames); len(many.Names) != maxShownNames || many.More == 0 || many.Floor == 0 {
		t.Errorf("%d names, %d more, floor %d", len(many.Names), many.More, many.Floor)
	}
}

// TestClientsAndNames: the admin socket shows who has asked, and for what, and refuses what it does not know.
func TestClientsAndNames(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	socket, silent := filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")
	corefile := ".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test\n }\n}\n"
	startAgent(t, fmt.Sprintf(corefile, p[0]), func(o *options.Agent) { o.AdminSocket, o.NodeName = socket, "node-1" })
	startAgent(t, fmt.Sprintf(corefile, p[1]), func(o *options.Agent) {
		o.AdminSocket, o.ClientMetrics = silent, options.ClientMetricsOff
	})
	for range 3 {
		agenttest.Ask(t, p[0], "a.test.")
	}
	for target, kind := range map[string]string{"/names": "", "/names?topic=client&window=1h": "host"} {
		n := shown[report.Names](t, socket, target)
		if n.SchemaVersion != report.SchemaVersion || n.Node != "node-1" || n.Queries != 3 {
			t.Fatalf("%s: %+v", target, n)
		}
		if len(n.Names) != 1 || n.Names[0].Name != "a.test." || n.Names[0].Queries != 3 || (n.Names[0].Client == nil) != (kind == "") || kind != "" && n.Names[0].Client.Kind != kind {
			t.Errorf("%s: %+v", target, n)
		}
	}
	c := shown[report.Clients](t, socket, "/clients?window=1h")
	if c.SchemaVersion != report.SchemaVersion || c.By != "pod" || c.Total.Queries != 3 || len(c.Clients) != 1 {
		t.Fatalf("/clients: %+v", c)
	}
	if row := c.Clients[0]; row.Kind != "host" || row.Window.Hits != 3 || row.Share != 1 || row.TopName == nil || row.TopName.Name != "a.test." {
		t.Errorf("the client is %+v", row)
	}
	for target, want := range map[string]string{
		"/clients?by=name":   "give one of namespace, pod, workload",
		"/clients?window=1d": "give one of 10s, 1h, 1m",
		"/names?topic=name":  "give one of bypass, client, denied, failing, queries, slow, waste",
		"/names?window=1d":   "give one of 10s, 1h, 1m",
	} {
		if code, text := over(t, socket, "GET", target); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", target, code, text)
		}
	}
	for _, target := range []string{"/clients", "/names"} {
		if code, text := over(t, silent, "GET", target); code != http.StatusConflict || !strings.Contains(text, "--client-metrics=off") {
			t.Errorf("%s without counting: %d %s", target, code, text)
		}
	}
}
