// These tests use clientLevels, which is not exported.

package app

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/testlog"
)

// shopNamespace returns the Namespace shop with the annotation.
func shopNamespace(value string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if value != "" {
		n.Annotations = map[string]string{"nodens.dev/client-metrics": value}
	}
	return n
}

// TestNamespaceAnnotation: the annotation of a Namespace widens, narrows and silences the metrics of its
// pods; a bad value is logged once, and the flag applies.
func TestNamespaceAnnotation(t *testing.T) {
	api := fakeapi.Start(t)
	isController := true
	api.Put(shopNamespace("workload"))
	api.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u", OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web", Controller: &isController}}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}},
	})
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}}})
	p := peer.Ports(t, 1)
	var table *clients.Table
	r := startChanged(t, fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n endpoint %s\n }\n}\n", p[0], api.URL),
		func(a *agent) { table = a.builder.clients.counted() },
		func(o *options.Agent) { o.ClientMetrics, o.NodeName = options.ClientMetricsNamespace, "n1" })
	// series returns the number of queries by the labels of the series. Scrapes may share an older text.
	series := func() map[string]int {
		all := make(map[string]int)
		for _, x := range table.Series() {
			all[fmt.Sprintf("%q %q}", x.Namespace, workloadLabel(x.Workload))] += int(x.Counts.NoError)
		}
		return all
	}
	// asked asks a query, and reports whether the series of that name has counted it. A query before the change
	// has arrived counts elsewhere.
	asked := func(name string) func() bool {
		return func() bool {
			before := series()[name]
			agenttest.Ask(t, p[0], "web.shop.svc.cluster.local.")
			return series()[name] == before+1
		}
	}
	const own, workload, other = `"shop" ""}`, `"shop" "StatefulSet/web"}`, `"(other)" ""}`
	poll.Until(t, "a series of the workload", asked(workload))
	sum := func() (n int) {
		for _, x := range series() {
			n += x
		}
		return n
	}
	for _, step := range []struct{ value, want string }{
		{"off", other}, {"namespace", own}, {"workload", workload}, {"", own}, {"workload", workload}, {"Off", own}, {"off", other},
	} {
		api.Put(shopNamespace(step.value))
		poll.Until(t, fmt.Sprintf("the series %s with %q", step.want, step.value), asked(step.want))
		before := sum()
		agenttest.Ask(t, p[0], "web.shop.svc.cluster.local.")
		if after := sum(); after != before+1 {
			t.Errorf("with %q a query adds %d to the series", step.value, after-before)
		}
	}
	const bad = "set it to off, namespace or workload"
	poll.Until(t, "the line about the bad value", func() bool { return strings.Contains(r.Log.String(), bad) }) // it is written later
	for _, want := range []string{"namespace=shop", "value=Off", "annotation=nodens.dev/client-metrics", bad} {
		if log := r.Log.String(); strings.Count(log, want) != 1 {
			t.Errorf("the log has not %q once:\n%s", want, log)
		}
	}
}

// TestClientLevels: of several views that have a value the newest counts; a bad value is logged once.
func TestClientLevels(t *testing.T) {
	log := new(testlog.Buffer)
	table := clients.New(clients.Options{})
	pod := clients.Pod{Namespace: "a", Name: "p", UID: "p", Workload: clients.Workload{Kind: "Pod", Name: "p"}}
	addr := netip.MustParseAddr("10.1.0.1")
	table.SetPod(addr, pod)
	x := newClientLevels(table, slog.New(slog.NewTextHandler(log, nil)))
	first, second := x.observer(), x.observer()
	for i, step := range []struct {
		tell func()
		want string // the series that counts
	}{
		{func() {}, "a "},
		{func() { first("a", "workload") }, "a p"},
		{func() { second("a", "workload") }, "a p"},
		{func() { first("a", "") }, "a p"}, // the view is closed
		{func() { first("a", "off") }, "a p"},
		{func() { second("a", "") }, "(other) "},
		{func() { second("a", "bad") }, "a "},
		{func() { first("a", "bad") }, "a "},
		{func() { first("b", "bad") }, "a "},
		{func() { first("a", ""); first("b", ""); second("a", "") }, "a "},
	} {
		step.tell()
		before := make(map[string]uint64)
		for _, s := range table.Series() {
			before[s.Namespace+" "+s.Workload.Name] = s.Counts.Queries()
		}
		before[step.want]++
		table.Count(0, addr, clients.Query{})
		after := make(map[string]uint64)
		for _, s := range table.Series() {
			after[s.Namespace+" "+s.Workload.Name] = s.Counts.Queries()
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	if len(x.values) > 0 {
		t.Errorf("%v is left", x.values)
	}
	if newClientLevels(nil, nil).observer() != nil {
		t.Error("Namespaces are observed without a table")
	}
}
