package apiobjects

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestLargeCluster holds that the large cluster is the one that the limits are for.
func TestLargeCluster(t *testing.T) {
	s := LargeCluster(10000)
	want := Shape{Namespaces: 500, ClusterIPServices: 8000, HeadlessServices: 2000, EndpointsPerService: 3, EndpointsPerHeadless: 50, HeadlessTen: true, Nodes: 1, UsedNamespaces: 20, PodsPerNode: 40}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("shape (-want +got):\n%s", d)
	}
	if n := len(s.Services()); n != 10020 {
		t.Errorf("%d Services, want 10,000 and one of ten endpoints for each used namespace", n)
	}
	if n := s.Endpoints(); n != 8000*3+2000*50+20*10 {
		t.Errorf("%d endpoints", n)
	}
}

func TestFleetCluster(t *testing.T) {
	want := Shape{Namespaces: 200, ClusterIPServices: 3200, HeadlessServices: 800, EndpointsPerService: 3, EndpointsPerHeadless: 10, Nodes: 100, UsedNamespaces: 20, PodsPerNode: 20}
	s := FleetCluster(4000, 100)
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("shape (-want +got):\n%s", d)
	}
	used := map[string]int{}
	for n := range s.Nodes {
		for _, ns := range s.Uses(n) {
			used[ns]++
		}
	}
	for ns, n := range used {
		if n != 10 {
			t.Errorf("namespace %s is used by %d nodes, want 10", ns, n)
		}
	}
	if len(used) != s.Namespaces {
		t.Errorf("%d namespaces are used, want all %d", len(used), s.Namespaces)
	}
}

// TestObjects holds that the objects are ones that an API server takes, that no two
// share an address, and that the same shape makes the same ones.
func TestObjects(t *testing.T) {
	s := LargeCluster(200)
	addresses, names := map[string]bool{}, map[string]bool{}
	fresh := func(a string) {
		t.Helper()
		if addresses[a] {
			t.Errorf("the address %s is there twice", a)
		}
		addresses[a] = true
	}
	for _, svc := range s.Services() {
		o, slice := svc.object(), svc.slice()
		if names[o.Name] || len(validation.IsDNS1035Label(o.Name)) > 0 {
			t.Errorf("the name %s is there twice or is no label", o.Name)
		}
		names[o.Name] = true
		if !svc.Headless {
			fresh(o.Spec.ClusterIP)
			if !netip.MustParsePrefix("10.96.0.0/16").Contains(netip.MustParseAddr(o.Spec.ClusterIP)) {
				t.Errorf("%s has the cluster IP %s", o.Name, o.Spec.ClusterIP)
			}
		}
		if _, labelled := slice.Labels[corev1.IsHeadlessService]; labelled != svc.Headless {
			t.Errorf("%s: headless %v, labelled %v", svc.Name, svc.Headless, labelled)
		}
		if slice.Namespace != o.Namespace || slice.Labels[discoveryv1.LabelServiceName] != o.Name {
			t.Errorf("the slice %s/%s is not that of %s/%s", slice.Namespace, slice.Name, o.Namespace, o.Name)
		}
		for i, e := range slice.Endpoints {
			fresh(e.Addresses[0])
			if (e.Hostname != nil) != svc.Headless {
				t.Errorf("%s: an endpoint has the hostname %v", svc.Name, e.Hostname)
			}
			if e.Hostname != nil && svc.Member(i) != *e.Hostname+"."+svc.Host() {
				t.Errorf("endpoint %d of %s is %s", i, svc.Name, svc.Member(i))
			}
			if e.NodeName == nil || e.Zone == nil {
				t.Errorf("%s: an endpoint has no node or no zone", svc.Name)
			}
		}
		for key, value := range o.Labels {
			if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
				t.Errorf("%s=%s: %v", key, value, errs)
			}
		}
	}
	for i := range s.PodsPerNode {
		fresh(s.pod(0, i).Status.PodIP)
		fresh(s.pod(0, i).Status.HostIP + "/" + s.pod(0, i).Name)
	}
	again := s.Services()
	for i, svc := range s.Services() {
		if d := cmp.Diff(svc.slice(), again[i].slice()); d != "" {
			t.Fatalf("made anew, %s is another (-first +second):\n%s", svc.Name, d)
		}
	}
}

// TestPods holds that the node's pods are in the namespaces that it uses, and in all
// of them.
func TestPods(t *testing.T) {
	s := LargeCluster(10000)
	seen := map[string]bool{}
	for i := range s.PodsPerNode {
		p := s.pod(0, i)
		seen[p.Namespace] = true
		if p.Spec.NodeName != Node(0) || len(p.Status.PodIPs) != 1 {
			t.Errorf("pod %s is on %q with %d addresses", p.Name, p.Spec.NodeName, len(p.Status.PodIPs))
		}
	}
	if len(seen) != s.UsedNamespaces {
		t.Errorf("the pods are in %d namespaces, want %d", len(seen), s.UsedNamespaces)
	}
	for _, ns := range s.Uses(0) {
		if !seen[ns] {
			t.Errorf("no pod is in %s", ns)
		}
	}
}

// TestSizes holds that objects are as large as those of real clusters, which are
// some hundred bytes for a Service without what the API server adds and two hundred
// for an endpoint.
func TestSizes(t *testing.T) {
	s := LargeCluster(100)
	for _, svc := range s.Services() {
		if n := svc.object().Size(); n < 500 || n > 2000 {
			t.Errorf("the Service %s has %d bytes", svc.Name, n)
		}
		n := svc.slice().Size()
		if each := (n - 700) / svc.Endpoints; each < 100 || each > 300 {
			t.Errorf("the slice of %s has %d bytes for %d endpoints", svc.Name, n, svc.Endpoints)
		}
	}
	if text := s.Services()[0].object().Annotations[corev1.LastAppliedConfigAnnotation]; !strings.HasPrefix(text, `{"apiVersion"`) {
		t.Errorf("the copy of the first Service is %q", text)
	}
}

func TestSample(t *testing.T) {
	s := LargeCluster(1000)
	headless := func(svc Service) bool { return svc.Headless }
	some := s.Sample(50, headless)
	if len(some) != 50 {
		t.Fatalf("%d Services, want 50", len(some))
	}
	seen := map[string]bool{}
	for _, svc := range some {
		if seen[svc.Name] || !svc.Headless {
			t.Errorf("%s is there twice or is not wanted", svc.Name)
		}
		seen[svc.Name] = true
	}
	if d := cmp.Diff(some, s.Sample(50, headless)); d != "" {
		t.Errorf("another sample the second time:\n%s", d)
	}
	if n := len(s.Sample(1<<20, headless)); n != 202 {
		t.Errorf("all are %d, want 202", n)
	}
}

func TestShown(t *testing.T) {
	answer := func(records ...string) *dns.Msg {
		m := new(dns.Msg)
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
	for _, test := range []struct {
		name   string
		change Change
		answer *dns.Msg
		want   bool
	}{
		{"nothing", Change{Want: "10.0.0.1"}, answer(), false},
		{"the old address", Change{Want: "10.0.0.1"}, answer("a. 5 A 10.0.0.2"), false},
		{"the new address", Change{Want: "10.0.0.1"}, answer("a. 5 A 10.0.0.2", "a. 5 A 10.0.0.1"), true},
		{"the old port", Change{Want: "81"}, answer("a. 5 SRV 0 100 80 b."), false},
		{"the new port", Change{Want: "81"}, answer("a. 5 SRV 0 100 81 b."), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.change.Shown(test.answer); got != test.want {
				t.Errorf("shown: %v, want %v", got, test.want)
			}
		})
	}
}

// TestEachObject: each object comes once, in the numbers that the shape says.
func TestEachObject(t *testing.T) {
	s := LargeCluster(100)
	counts, names := map[string]int{}, map[string]bool{}
	s.EachObject(func(o Object) {
		kind := fmt.Sprintf("%T", o)
		counts[kind]++
		if name := kind + " " + o.GetNamespace() + "/" + o.GetName(); names[name] {
			t.Errorf("%s comes twice", name)
		} else {
			names[name] = true
		}
	})
	want := map[string]int{"*v1.Namespace": 5, "*v1.Service": 101, "*v1.EndpointSlice": 101, "*v1.Pod": 2}
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("objects (-want +got):\n%s", d)
	}
}
