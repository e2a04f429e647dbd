// Internal: feeds a view without an API server.

package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// observedView returns a view of the node n1, and the pods by address as it reports them: as
// NAMESPACE/NAME/UID.
func observedView(t *testing.T) (handlerFixture, map[string]string) {
	t.Helper()
	v := emptyView()
	reported := make(map[string]string)
	v.nodePods = newNodePods(func(a netip.Addr, p NodePod) {
		if reported[a.String()] == podID(p) {
			t.Errorf("%s: %v is reported again", a, p)
		}
		if reported[a.String()] = podID(p); p == (NodePod{}) {
			delete(reported, a.String())
		}
	}, nil)
	f := handlerFixture{v, pods}
	f.setNode("n1")
	return f, reported
}

func podID(p NodePod) string {
	if p == (NodePod{}) {
		return ""
	}
	id := p.Namespace + "/" + p.Name + "/" + p.UID
	if p.HasIPv6 {
		id += "/6"
	}
	return id
}

// terminating returns p as it is after its deletion was requested.
func terminating(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: testClock()}
	return p
}

func withUID(p *corev1.Pod, uid string) *corev1.Pod {
	p.UID = types.UID(uid)
	return p
}

// TestNodePods: an address belongs to the pod that has it for certain.
func TestNodePods(t *testing.T) {
	f, reported := observedView(t)
	check := func(step string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, reported); diff != "" {
			t.Errorf("%s: %s", step, diff)
		}
	}
	f.put(withUID(makePod("a", "first", "10.1.0.1", "fd00::1", "10.1.0.1"), "1"))
	first := map[string]string{"10.1.0.1": "a/first/1/6", "fd00::1": "a/first/1/6"}
	check("both families", first)

	elsewhere := makePod("a", "elsewhere", "10.1.0.9")
	elsewhere.Spec.NodeName = "n2"
	host := makePod("a", "host", "192.0.2.1")
	host.Spec.HostNetwork = true
	f.put(elsewhere)
	f.put(host)
	check("another node's pod, and one in the node's network namespace", first)

	f.put(withUID(makePod("b", "second"), "2"))
	check("a pod waits for an address", first)
	f.put(withUID(terminating(makePod("a", "first", "10.1.0.1", "fd00::1")), "1"))
	check("and the first one terminates", map[string]string{})
	f.put(withUID(makePod("b", "second", "10.1.0.2"), "2"))
	check("it has got another address", map[string]string{"10.1.0.1": "a/first/1/6", "fd00::1": "a/first/1/6", "10.1.0.2": "b/second/2"})
	f.put(withUID(makePod("c", "third", "10.1.0.1"), "3"))
	check("a new pod has the address", map[string]string{"10.1.0.1": "c/third/3", "fd00::1": "a/first/1/6", "10.1.0.2": "b/second/2"})
	f.drop(makePod("a", "first"))
	check("the first pod is gone", map[string]string{"10.1.0.1": "c/third/3", "10.1.0.2": "b/second/2"})
	f.put(withUID(makePod("d", "fourth", "10.1.0.1"), "4"))
	check("two pods claim the address", map[string]string{"10.1.0.2": "b/second/2"})
	ended := makePod("d", "fourth", "10.1.0.1")
	ended.Status.Phase = corev1.PodSucceeded
	f.put(ended)
	check("one has ended", map[string]string{"10.1.0.1": "c/third/3", "10.1.0.2": "b/second/2"})
	f.put(withUID(makePod("c", "third", "10.1.0.3"), "5"))
	check("another pod of the same name", map[string]string{"10.1.0.3": "c/third/5", "10.1.0.2": "b/second/2"})
	moved := makePod("c", "third", "10.2.0.1")
	moved.Spec.NodeName = "n2"
	f.put(moved)
	check("it has moved to another node", map[string]string{"10.1.0.2": "b/second/2"})
	f.list(withUID(makePod("e", "fifth", "10.1.0.5"), "6"))
	check("a list without the others", map[string]string{"10.1.0.5": "e/fifth/6"})
	f.view.nodePods.close()
	f.put(withUID(makePod("e", "late", "10.1.0.6"), "7"))
	check("the view is closed", map[string]string{})
}

// TestPodLabels: a pod is reported with the labels that are asked for, and again when they change.
func TestPodLabels(t *testing.T) {
	var got []string
	n := newNodePods(func(_ netip.Addr, p NodePod) { got = append(got, p.Labels) }, []string{"app", "tier"})
	v := emptyView()
	v.nodePods = n
	f := handlerFixture{v, pods}
	f.setNode("n1")
	for _, labels := range []map[string]string{
		{"app": "web", "other": "x"}, {"app": "web", "other": "y"}, {"tier": "db"}, nil,
	} {
		p := makePod("a", "first", "10.1.0.1")
		p.Labels = labels
		f.put(p)
	}
	if diff := cmp.Diff([]string{"web\x00\x00", "\x00db\x00", "\x00\x00"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestNodePodsRandom: after any changes what is reported is what a new view of the same pods reports.
func TestNodePodsRandom(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f, reported := observedView(t)
		now := make(map[string]*corev1.Pod)
		for step := range 150 {
			p := withUID(makePod("ns", fmt.Sprint(rng.IntN(6))), fmt.Sprint(step))
			for range rng.IntN(3) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("10.1.0.%d", rng.IntN(4))})
			}
			if rng.IntN(3) == 0 {
				terminating(p)
			}
			if rng.IntN(4) == 0 {
				f.drop(p)
				delete(now, p.Name)
			} else {
				f.put(p)
				now[p.Name] = p
			}
			g, want := observedView(t)
			for _, q := range now {
				g.put(q)
			}
			if diff := cmp.Diff(want, reported); diff != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, diff)
			}
		}
	}
}

// TestWorkloadOf: a pod's workload is the controller, and that of a ReplicaSet or a Job where their name
// says it.
func TestWorkloadOf(t *testing.T) {
	for _, tt := range []struct{ kind, name, hash, want string }{
		{"", "", "", "Pod x"},
		{"Node", "n1", "", "Pod x"},
		{"StatefulSet", "db", "", "StatefulSet db"},
		{"DaemonSet", "agent", "", "DaemonSet agent"},
		{"ReplicaSet", "web-7c5ddbdf54", "7c5ddbdf54", "Deployment web"},
		{"ReplicaSet", "web-7c5ddbdf54", "", "ReplicaSet web-7c5ddbdf54"},
		{"ReplicaSet", "web-7c5ddbdf54", "5ddbdf54", "ReplicaSet web-7c5ddbdf54"},
		{"ReplicaSet", "web", "web", "ReplicaSet web"},
		{"ReplicaSet", "-web", "web", "Pod x"},
		{"Job", "backup-29387520", "", "CronJob backup"},
		{"Job", "backup-1700000000", "", "CronJob backup"},
		{"Job", "backup-2", "", "Job backup-2"},
		{"Job", "backup29387520", "", "Job backup29387520"},
		{"Job", "-29387520", "", "Pod x"},
		{"Evil", strings.Repeat("e", 253), "", "Evil " + strings.Repeat("e", 253)},
		{"Evil", strings.Repeat("e", 254), "", "Pod x"},
		{"Evil", strings.Repeat("e", 1_000_000), "", "Pod x"},
		{strings.Repeat("E", 63), "x.y", "", strings.Repeat("E", 63) + " x.y"},
		{strings.Repeat("E", 64), "x", "", "Pod x"},
		{"Evil\x1b[2J", "x", "", "Pod x"},
		{"Evil", "x\ny 1", "", "Pod x"},
		{"Evil", "x/y", "", "Pod x"},
		{"Rollout", "web-7c5ddbdf54", "7c5ddbdf54", "Rollout web-7c5ddbdf54"},
	} {
		p := makePod("a", "x")
		controls := true
		if tt.kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ConfigMap", Name: "other"}, {Kind: tt.kind, Name: tt.name, Controller: &controls}}
		}
		p.Labels = map[string]string{"pod-template-hash": tt.hash}
		if kind, name := workloadOf(p, p.Name); kind+" "+name != tt.want {
			t.Errorf("%s %s: %s %s, want %s", tt.kind, tt.name, kind, name, tt.want)
		}
	}
}

// TestNdotsOf: the last valid option counts, as in resolv.conf.
func TestNdotsOf(t *testing.T) {
	option := func(name string, values ...string) (list []corev1.PodDNSConfigOption) {
		for _, v := range values {
			list = append(list, corev1.PodDNSConfigOption{Name: name, Value: &v})
		}
		return list
	}
	for name, c := range map[string]struct {
		config *corev1.PodDNSConfig
		want   uint8
		ok     bool
	}{
		"no dnsConfig":    {},
		"no options":      {config: &corev1.PodDNSConfig{Searches: []string{"corp.test"}}},
		"another option":  {config: &corev1.PodDNSConfig{Options: option("timeout", "2")}},
		"without a value": {config: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots"}}}},
		"not a number":    {config: &corev1.PodDNSConfig{Options: option("ndots", "two", "-1", "")}},
		"zero":            {config: &corev1.PodDNSConfig{Options: option("ndots", "0")}, ok: true},
		"the last one":    {config: &corev1.PodDNSConfig{Options: option("ndots", "1", "2", "x")}, want: 2, ok: true},
		"too high":        {config: &corev1.PodDNSConfig{Options: option("ndots", "300")}, want: 15, ok: true},
	} {
		if got, ok := ndotsOf(c.config); got != c.want || ok != c.ok {
			t.Errorf("%s: %d, %t; want %d, %t", name, got, ok, c.want, c.ok)
		}
	}
}
