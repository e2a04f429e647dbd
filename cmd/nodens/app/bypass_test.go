// These tests use openKernelPath, clusterDNS and nameReport, which are not exported.

package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// openBypass opens a kernel path with --bypass=count, whose program is a fake; err is why there is none.
func openBypass(t *testing.T, table *clients.Table, err error) (*kernelPath, kernelpath.Options) {
	t.Helper()
	var got kernelpath.Options
	opts := &options.Agent{KernelPath: options.KernelPathOn, Bypass: options.BypassCount, BypassDoH: []netip.Addr{netip.MustParseAddr("192.0.2.44")}, ClientMetrics: options.ClientMetricsNamespace}
	if err != nil {
		opts.KernelPath = options.KernelPathAuto
	}
	path, openErr := openKernelPath(opts, slog.New(slog.DiscardHandler), platform{cilium: func() (bool, error) { return false, nil }, open: func(o kernelpath.Options) (program, error) {
		got = o
		return newStage().player("a"), err
	}}, table, nil)
	if openErr != nil {
		t.Fatal(openErr)
	}
	return path, got
}

// TestBypass: what the program reports is shown by pod, server and protocol, but not what pods are to ask, and not what the
// cluster DNS asks.
func TestBypass(t *testing.T) {
	var now time.Duration
	table := clients.New(clients.Options{Clock: func() time.Duration { return now }, Stripes: 1})
	pod, clusterDNS, own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("2001:db8::53")
	table.SetPod(pod, clients.Pod{Namespace: "shop", Name: "web-1", UID: "u", Workload: clients.Workload{Kind: "Deployment", Name: "web"}})
	path, opts := openBypass(t, table, nil)
	path.bypass.isOwn = func(addr netip.Addr) bool { return addr == own }
	path.bypass.clusterDNS = func() []netip.Addr { return []netip.Addr{clusterDNS} }
	if opts.Bypass == nil || len(opts.Bypass.DoH) != 1 {
		t.Fatalf("opened with %+v", opts.Bypass)
	}
	for _, c := range []struct {
		from, to netip.Addr
		port     uint16
		tcp      bool
		n        uint64
	}{{pod, other, 53, false, 30}, {pod, other, 853, true, 10}, {pod, own, 53, true, 500}, {pod, clusterDNS, 53, false, 500}, {clusterDNS, other, 53, false, 500}} {
		opts.Bypass.Reporter.ReportBypass(kernelpath.Bypass{Client: c.from, Server: netip.AddrPortFrom(c.to, c.port), TCP: c.tcp}, c.n)
	}
	if d := cmp.Diff(report.Bypass{Counted: true, Packets: 40}, (&agent{opts: &options.Agent{Bypass: options.BypassCount}, kernelPath: path}).bypassReport()); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	if d := cmp.Diff(byLabel{"udp": 30, "tcp": 0, "tls": 10, "quic": 0}, path.bypass.byProtocol()); d != "" {
		t.Errorf("by protocol (-want +got):\n%s", d)
	}
	now = 2 * time.Second
	client := &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web", Pod: "web-1", Address: "10.0.0.1"}
	want := []report.Name{
		{Name: "[2001:db8::53]:53", Client: client, Cause: "udp", Queries: 30, QueriesPerSecond: 15, Share: 0.75},
		{Name: "[2001:db8::53]:853", Client: client, Cause: "tls", Queries: 10, QueriesPerSecond: 5, Share: 0.25},
	}
	if d := cmp.Diff(want, nameReport(table, "bypass", "10s", maxShownNames).Names); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}

// TestBypassUnseen: status says why nothing is seen where the kernel can't, and without --kernel-path.
func TestBypassUnseen(t *testing.T) {
	count := &options.Agent{Bypass: options.BypassCount}
	for want, err := range map[string]error{
		"answers in the kernel are not supported: the kernel is too old": fmt.Errorf("%w: the kernel is too old", kernelpath.ErrUnsupported), "no memory": errors.New("no memory"),
	} {
		path, _ := openBypass(t, nil, err)
		if got := (&agent{opts: count, kernelPath: path}).bypassReport(); got != (report.Bypass{Reason: want}) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	w := new(testlog.Buffer)
	path, err := openKernelPath(count, slog.New(slog.NewTextHandler(w, nil)), platform{}, nil, nil)
	if path != nil || err != nil || !strings.Contains(w.String(), "--kernel-path=auto") {
		t.Errorf("without --kernel-path: %v, %v, %s", path, err, w)
	}
	if got := (&agent{opts: count}).bypassReport(); got.Counted || !strings.Contains(got.Reason, "--kernel-path=auto") {
		t.Errorf("without --kernel-path: %+v", got)
	}
	if got := (&agent{opts: new(options.Agent)}).bypassReport(); got != (report.Bypass{}) {
		t.Errorf("without the option: %+v", got)
	}
	if options.MaxBypassDoH != kernelpath.MaxDoH {
		t.Errorf("%d DoH servers, the program has room for %d", options.MaxBypassDoH, kernelpath.MaxDoH)
	}
}

// clusterDNSManifest is the Service of the cluster DNS, with one endpoint.
const clusterDNSManifest = `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-a, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["10.244.0.9"], conditions: {ready: true}}]
ports: [{name: dns, port: 5353, protocol: UDP}]
`

// TestOwnServers: the addresses at which the agent answers, and the servers of the cluster DNS. Without the option the admin
// socket says how to count.
func TestOwnServers(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	socket, manifests := filepath.Join(dir, "a.sock"), filepath.Join(dir, "cluster.yaml")
	check.NoError(t, os.WriteFile(manifests, []byte(clusterDNSManifest), 0o600))
	var a *agent
	own := func(addrs ...string) (list []bool) {
		for _, addr := range addrs {
			list = append(list, a.isOwnAddr(netip.MustParseAddr(addr)))
		}
		return list
	}
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n  manifests %s\n }\n}\n", p[0], manifests)
	startChanged(t, corefile, func(x *agent) { a = x }, func(o *options.Agent) { o.AdminSocket = socket })
	check.Equal(t, []bool{true, false, false}, own("127.0.0.1", "127.0.0.2", "192.0.2.53"), "own addresses")
	check.Equal(t, "[10.244.0.9]", fmt.Sprint(a.clusterDNS()), "cluster DNS")
	err := report.Ask(t.Context(), socket, http.MethodGet, "/names", url.Values{"topic": {"bypass"}}, new(report.Names))
	if err == nil || !strings.Contains(err.Error(), "--bypass=count") {
		t.Errorf("without the option: %v", err)
	}
	startChanged(t, fmt.Sprintf(".:%d {\n hosts {\n  192.0.2.1 a.test\n }\n}\n", p[1]), func(x *agent) { a = x })
	a.builder.addrs.refresh()
	check.Equal(t, []bool{true, false}, own("127.0.0.9", "192.0.2.53"), "own addresses of a block for all addresses")
	check.Equal(t, 0, len(a.clusterDNS()), "servers without a view")
}
