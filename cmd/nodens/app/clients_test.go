// These tests use attribution and kernelPath, which are not exported.

package app

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/testlog"
)

// loopbackPod is a pod of the node n1 with the address of the test's clients, and a Service.
const loopbackPod = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1]}}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-7c5ddbdf54-x2x4z
  namespace: shop
  uid: u1
  labels: {pod-template-hash: 7c5ddbdf54}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-7c5ddbdf54, uid: r1, controller: true}]
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.0.0.1}]}
`

// TestClientMetrics: the metrics have a pod's queries by its namespace or workload, or not at all.
func TestClientMetrics(t *testing.T) {
	for mode, want := range map[options.ClientMetrics]string{
		options.ClientMetricsOff:       "",
		options.ClientMetricsNamespace: `namespace="shop",%sworkload=""`,
		options.ClientMetricsWorkload:  `namespace="shop",%sworkload="Deployment/web"`,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			p := peer.Ports(t, 2)
			file := filepath.Join(t.TempDir(), "objects.yaml")
			agenttest.WriteFile(t, file, loopbackPod)
			startAgent(t, fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n manifests %s\n }\n prometheus 127.0.0.1:%d\n}\n", p[0], file, p[1]),
				func(o *options.Agent) { o.ClientMetrics, o.NodeName = mode, "n1" })
			agenttest.Ask(t, p[0], "web.shop.svc.cluster.local.")
			agenttest.Ask(t, p[0], "www.example.com.svc.cluster.local.")
			_, text := agenttest.Get(t, p[1], "/metrics")
			if want == "" {
				if strings.Contains(text, "nodens_client_") {
					t.Errorf("there are metrics by client:\n%s", text)
				}
				return
			}
			if line := "nodens_client_slow_total{" + fmt.Sprintf(want, "") + "}"; !strings.Contains(text, line) {
				t.Errorf("the metrics have no %s", line)
			}
			for name, n := range map[string]int{
				"queries_total{" + fmt.Sprintf(want, `result="noerror",`):  1,
				"queries_total{" + fmt.Sprintf(want, `result="nxdomain",`): 1,
				"queries_total{" + fmt.Sprintf(want, `result="servfail",`): 0,
				"search_waste_total{" + fmt.Sprintf(want, ""):              1,
				"upstream_queries_total{" + fmt.Sprintf(want, ""):          0,
				`limited_total{namespace="shop",reason="places"`:           0,
			} {
				if line := fmt.Sprintf("nodens_client_%s} %d\n", name, n); !strings.Contains(text, line) {
					t.Errorf("the metrics have no %s%s", line, text)
				}
			}
		})
	}
}

// TestClientsWithoutPods: without a view the queries of the node are its own.
func TestClientsWithoutPods(t *testing.T) {
	p := peer.Ports(t, 2)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n whoami\n prometheus 127.0.0.1:%d\n}\n", p[0], p[1]))
	agenttest.Ask(t, p[0], "example.org.")
	agenttest.ExpectMetrics(t, p[1], `nodens_client_queries_total{namespace="(host)",result="noerror",workload=""} 1`)
}

// nodePod returns a pod of the node.
func nodePod(name string) kubernetes.NodePod {
	return kubernetes.NodePod{Namespace: "ns", Name: name, UID: name, WorkloadKind: "Pod", WorkloadName: name}
}

// counted returns the number of queries of each pod and each unknown address.
func counted(table *clients.Table) map[string]uint64 {
	all := make(map[string]uint64)
	for _, c := range table.Report(clients.Pods, clients.Minute).Clients {
		name := c.Pod.Name
		if name == "" {
			name = c.Addrs[0].String()
		}
		all[name] += c.Total.Queries()
	}
	return all
}

// TestAttributionOfViews: an address belongs to the pod on which all views agree that know one.
func TestAttributionOfViews(t *testing.T) {
	table := clients.New(clients.Options{})
	x := newAttribution(table, nil)
	first, second := x.observer(nil), x.observer(nil)
	addr := netip.MustParseAddr("10.1.0.1")
	for _, step := range []struct {
		tell func()
		want string
	}{
		{func() { first(addr, nodePod("a")) }, "a"},
		{func() { second(addr, nodePod("a")) }, "a"},
		{func() { first(addr, kubernetes.NodePod{}) }, "a"}, // the view is closed
		{func() { first(addr, nodePod("b")) }, "10.1.0.1"},
		{func() { second(addr, kubernetes.NodePod{}) }, "b"},
		{func() { first(addr, kubernetes.NodePod{}) }, "10.1.0.1"},
	} {
		before := counted(table)
		step.tell()
		table.Count(0, addr, clients.Query{})
		before[step.want]++
		if diff := cmp.Diff(before, counted(table)); diff != "" {
			t.Error(diff)
		}
	}
	if len(x.pods) > 0 {
		t.Errorf("%v is left", x.pods)
	}
}

// TestPodRanges: an IPv6 address is a client of its own while a view knows its pod, or a podCIDR that
// contains it.
func TestPodRanges(t *testing.T) {
	x := newAttribution(clients.New(clients.Options{}), nil)
	x.ranges = new(podrange.Ranges)
	first, second := x.observer(nil), x.observer(nil)
	firstCIDRs, secondCIDRs := x.podCIDRsObserver(), x.podCIDRsObserver()
	cidrs := []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}
	addr := netip.MustParseAddr("2001:db8::1")
	for i, step := range []struct {
		tell func()
		own  bool
	}{
		{func() { first(addr, nodePod("a")) }, true},
		{func() { second(addr, nodePod("b")) }, true},
		{func() { first(addr, kubernetes.NodePod{}) }, true},
		{func() { second(addr, kubernetes.NodePod{}) }, false},
		{func() { firstCIDRs(cidrs) }, true},
		{func() { secondCIDRs(cidrs) }, true},
		{func() { firstCIDRs(nil) }, true},
		{func() { secondCIDRs(nil) }, false},
	} {
		step.tell()
		if got := x.ranges.Client(addr); (got == addr) != step.own {
			t.Errorf("step %d: the client is %s", i, got)
		}
	}
}

// TestIPv4OnlyPods: an address is of a pod without an IPv6 address while all views that know its pod say so.
func TestIPv4OnlyPods(t *testing.T) {
	x := newAttribution(clients.New(clients.Options{}), nil)
	x.ranges = new(podrange.Ranges)
	first, second := x.observer(nil), x.observer(nil)
	addr := netip.MustParseAddr("10.1.0.1")
	four, both := nodePod("a"), nodePod("a")
	both.HasIPv6 = true
	for i, step := range []struct {
		tell func()
		want bool
	}{
		{func() { first(addr, four) }, true},
		{func() { second(addr, four) }, true},
		{func() { second(addr, both) }, false},
		{func() { first(addr, kubernetes.NodePod{}) }, false},
		{func() { second(addr, nodePod("b")) }, true},
		{func() { first(addr, four) }, false}, // the views don't agree on the pod
		{func() { second(addr, kubernetes.NodePod{}) }, true},
		{func() { first(addr, kubernetes.NodePod{}) }, false},
	} {
		step.tell()
		if got := x.ranges.IPv4Only(addr); got != step.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
	first(addr, four)
	first(netip.MustParseAddr("10.1.0.2"), nodePod("b"))
	mixed := nodePod("b")
	mixed.UID, mixed.HasIPv6 = "another", true
	first(netip.MustParseAddr("10.1.0.3"), mixed)
	got := make(map[string]bool)
	for p, traits := range x.podTraits(func(p clients.Pod) clients.Pod { return clients.Pod{Name: p.Name} }) {
		got[p.Name] = traits.ipv4Only
	}
	if diff := cmp.Diff(map[string]bool{"a": true, "b": false}, got); diff != "" {
		t.Errorf("rows without IPv6 (-want +got):\n%s", diff)
	}
}

// TestPodLabel: labels belong to the pod that has the address, by each view with its own list.
func TestPodLabel(t *testing.T) {
	x := newAttribution(clients.New(clients.Options{}), nil)
	addr := netip.MustParseAddr("10.1.0.1")
	web := nodePod("a")
	web.Labels = "web\x00\x00"
	x.observer([]string{"app", "tier"})(addr, web)
	for _, c := range []struct{ uid, key, want string }{{web.UID, "app", "web"}, {web.UID, "tier", ""}, {web.UID, "none", ""}, {"another", "app", ""}} {
		if got := x.label(addr, c.uid, c.key); got != c.want {
			t.Errorf("%v is %q", c, got)
		}
	}
	if got := x.label(netip.MustParseAddr("10.1.0.2"), web.UID, "app"); got != "" {
		t.Errorf("another address has %q", got)
	}
}

// TestAttributionOff: without a table nothing is observed.
func TestAttributionOff(t *testing.T) {
	for _, x := range []*attribution{nil, newAttribution(nil, nil)} {
		if x.observer(nil) != nil || x.podCIDRsObserver() != nil || x.counted() != nil {
			t.Error("pods are observed")
		}
	}
	new(kernelPath).endClients(1)
}

// TestKernelAnswersOfPod: what the kernel has answered belongs to the pod that had the address, also
// if that is only read after the watch, or the end of the pod's interface, says that it has lost it.
func TestKernelAnswersOfPod(t *testing.T) {
	table := clients.New(clients.Options{})
	addr := netip.MustParseAddr("10.1.0.1")
	p := newStage(1).player("a")
	p.clients = map[int][]netip.Addr{1: {addr}}
	table.SetKernelSample(kernelpath.SampleWeight)
	p.report = func(a netip.Addr) {
		kernelCounts{table: table}.ReportClient(a, kernelpath.ClientAnswers{NoError: 2, NXDomain: 2, Waste: 1})
		kernelCounts{table: table}.ReportSample(a, []byte("\x03www\x04test\x00"), false)
	}
	s := p.newKernelPath(new(testlog.Buffer))
	s.clients = table
	tell := newAttribution(table, s).observer(nil)
	tell(addr, nodePod("a"))
	tell(addr, nodePod("b"))
	s.endClients(1)
	s.reportClient(addr)
	s.endClients(2)
	want := map[string]uint64{"10.1.0.1": 8, "a": 4, "b": 4}
	if diff := cmp.Diff(want, counted(table)); diff != "" {
		t.Error(diff)
	}
	for _, c := range table.Report(clients.Pods, clients.Minute).Clients {
		if n := c.Total; n.Kernel != n.Queries() || n.NXDomain != n.Queries()/2 || n.Waste != n.Queries()/4 {
			t.Errorf("%s: %+v", c.Pod.Name, n)
		}
	}
	sampled := make(map[string]uint64)
	for _, n := range table.Names(clients.TopClientNames, clients.Minute, 9).Names {
		sampled[n.Kind.String()+n.Pod.Name] += n.Count
	}
	if diff := cmp.Diff(map[string]uint64{"(unknown)": 128, "a": 64, "b": 64}, sampled); diff != "" {
		t.Errorf("names: %s", diff)
	}
}

// ClientsOf returns the addresses that a test has set.
func (p *player) ClientsOf(index int) []netip.Addr { return p.clients[index] }

// ReportClient reports what a test has set.
func (p *player) ReportClient(addr netip.Addr) {
	if p.report != nil {
		p.report(addr)
	}
}
