package daemonset

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// loadCilium renders the overlay cilium. It returns the objects of Kubernetes and Cilium's
// policy.
func loadCilium(t *testing.T) (objects []runtime.Object, policy map[string]any) {
	t.Helper()
	objects = renderOverlay(t, "cilium")
	found, place := findObject[*unstructured.Unstructured](t, objects, "node-local-dns")
	return slices.Delete(objects, place, place+1), found.Object
}

// TestCiliumShares: all objects except the ConfigMap and the DaemonSet are as in nodens.yaml.
func TestCiliumShares(t *testing.T) {
	usual, _ := findObject[*appsv1.DaemonSet](t, loadManifest(t), "")
	objects, _ := loadCilium(t)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	differs := func(o runtime.Object) bool {
		switch o.(type) {
		case *corev1.ConfigMap, *appsv1.DaemonSet:
			return true
		}
		return false
	}
	compareObjects(t, slices.DeleteFunc(loadManifest(t), differs), slices.DeleteFunc(slices.Clone(objects), differs))
	if got, want := set.Spec.Template.Spec.Containers[0].Image, usual.Spec.Template.Spec.Containers[0].Image; got != want {
		t.Errorf("the image is %s, in nodens.yaml %s", got, want)
	}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("the pod mounts the node's %s", v.HostPath.Path)
		}
	}
}

// TestCiliumPolicy: the policy redirects kube-dns to the ports of the agent's pods.
func TestCiliumPolicy(t *testing.T) {
	objects, policy := loadCilium(t)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	c := set.Spec.Template.Spec.Containers[0]
	var ports []any
	for _, p := range c.Ports {
		if p.ContainerPort != 53 {
			t.Errorf("port %s is %d; the Corefile has 53", p.Name, p.ContainerPort)
		}
		ports = append(ports, map[string]any{"name": p.Name, "port": "53", "protocol": string(p.Protocol)})
	}
	selector := map[string]any{"k8s-app": "node-local-dns"}
	want := map[string]any{
		"redirectFrontend": map[string]any{"serviceMatcher": map[string]any{"serviceName": "kube-dns", "namespace": "kube-system"}},
		"redirectBackend":  map[string]any{"localEndpointSelector": map[string]any{"matchLabels": selector}, "toPorts": ports},
	}
	if d := cmp.Diff(want, policy["spec"]); d != "" {
		t.Errorf("the policy (-want +got):\n%s", d)
	}
	if !labels.SelectorFromSet(labels.Set{"k8s-app": "node-local-dns"}).Matches(labels.Set(set.Spec.Template.Labels)) {
		t.Errorf("the policy selects %v, the pods have %v", selector, set.Spec.Template.Labels)
	}
}

// TestCiliumPod: the pod has its own network, and the agent listens there.
func TestCiliumPod(t *testing.T) {
	objects, _ := loadCilium(t)
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	spec := set.Spec.Template.Spec
	c := spec.Containers[0]
	if spec.HostNetwork || len(c.SecurityContext.Capabilities.Add) != 0 || c.SecurityContext.RunAsUser != nil {
		t.Errorf("the pod has the node's network (%v), or unnecessary privileges (%v)", spec.HostNetwork, c.SecurityContext)
	}
	if p := spec.SecurityContext; p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser == 0 {
		t.Errorf("the pod runs as root: %v", p)
	}
	// Without root, only this allows port 53.
	if d := cmp.Diff([]corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "53"}}, spec.SecurityContext.Sysctls); d != "" {
		t.Errorf("settings of the pod's network (-want +got):\n%s", d)
	}
	flags := flagsOf(t, c.Args)
	want := map[string]string{
		"basecorefile": "/etc/coredns/Corefile.base", "upstreamsvc": "kube-dns-upstream", "setupinterface": "false", "netfilter": "none", "page": "127.0.0.1:8353",
	}
	if d := cmp.Diff(want, flags); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
	conf := parse(t, maps.Data["Corefile"], flags)
	for _, b := range conf.Blocks {
		if d := cmp.Diff([]string{"[::]:53"}, stringsOf(b.Listen)); d != "" {
			t.Errorf("zone %s listens at (-want +got):\n%s", b.Zones[0], d)
		}
	}
	b := blockOf(t, conf, "cluster.local")
	for _, p := range []struct {
		addr  string
		probe *corev1.Probe
	}{{b.Health.Addr, c.StartupProbe}, {b.Health.Addr, c.LivenessProbe}, {b.Ready.Addr, c.ReadinessProbe}} {
		if got := ":" + p.probe.HTTPGet.Port.String(); got != p.addr || p.probe.HTTPGet.Host != "" {
			t.Errorf("a probe asks %s%s, the Corefile serves %s on the pod's address", p.probe.HTTPGet.Host, got, p.addr)
		}
	}
	if b.Health.Lameduck == 0 {
		t.Error("lameduck is not set: the old pod stops before Cilium sends queries to the new one")
	}
}
