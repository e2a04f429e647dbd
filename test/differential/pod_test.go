package differential

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clients are the addresses that a pod of the agent's node may have and a
// query of the test may come from.
var clients = []string{"127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4", "127.0.1.5", "127.0.1.6"}

// addPod adds a pod with addresses of one or both families. Addresses of
// clients are one pod's at a time; others may be several pods', as those of
// pods that have come to their end are.
func (g *generator) addPod(ns string) *corev1.Pod {
	g.named++
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("p%d", g.named), Labels: g.randomObjectLabels()},
		Spec: corev1.PodSpec{
			NodeName:    node,
			HostNetwork: g.percent(10),
			Containers:  []corev1.Container{{Name: "c", Image: "c"}},
		},
	}
	if g.percent(30) {
		p.Spec.NodeName = "node-2"
	}
	g.setPodStatus(p)
	g.pods = append(g.pods, p)
	return p
}

// setPodStatus gives the pod a new status.
func (g *generator) setPodStatus(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	maps.DeleteFunc(g.clientPods, func(_ string, owner *corev1.Pod) bool { return owner == p })
	four := g.endpointAddr(servicePool, false)
	free := slices.DeleteFunc(slices.Clone(clients), func(c string) bool { return g.clientPods[c] != nil })
	if len(free) > 0 && p.Spec.NodeName == node && !p.Spec.HostNetwork && g.percent(60) {
		four = g.pick(free)
		g.clientPods[four] = p
	} else if g.percent(20) {
		p.Status.Phase = []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending}[g.IntN(3)]
	}
	ips := [][]string{{four}, {four, g.endpointAddr(servicePool, true)}, {g.endpointAddr(servicePool, true), four}}
	// A pod of this node without an address would keep every other pod from
	// being known by its own.
	if p.Spec.NodeName != node {
		ips = append(ips, nil)
	}
	if g.clientPods[four] == nil {
		ips = append(ips, []string{g.endpointAddr(servicePool, true)})
	}
	for i, ip := range ips[g.IntN(len(ips))] {
		if i == 0 {
			p.Status.PodIP = ip
		}
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
}

// addImport adds a service of other clusters and its slices.
func (g *generator) addImport(ns string) {
	o := newImport(ns, unique(g, g.imports, ns, g.pick(randomLabels)), importSpec{})
	of := g.servicePorts()
	g.fillImportSpec(o, of)
	g.imports = append(g.imports, o)
	for i := range g.IntN(4) {
		p := importPool
		if g.percent(10) {
			p = servicePool
		}
		s := g.addSlice(ns, o.Name, fmt.Sprintf("mc%d", i), of, g.percent(30), p)
		if p == importPool {
			delete(s.Labels, serviceName)
		}
		s.Labels[importName] = o.Name
		// Without a cluster CoreDNS sends nothing to SRV queries: it makes a
		// target with an empty label.
		s.Labels[importCluster] = g.pick(randomClusters)
	}
}

// The labels of slices.
const (
	serviceName   = "kubernetes.io/service-name"
	importName    = "multicluster.kubernetes.io/service-name"
	importCluster = "multicluster.kubernetes.io/source-cluster"
)

var randomClusters = []string{"east", "west", "a", "svc"}

// fillImportSpec makes up what the import is.
func (g *generator) fillImportSpec(o *serviceImport, of []corev1.ServicePort) {
	o.Spec = importSpec{Type: "Headless"}
	if g.percent(60) {
		o.Spec.Type = "ClusterSetIP"
		o.Spec.IPs = [][]string{{"10.97.0.1"}, {"fd00:10:97::1"}, {"10.97.0.2", "fd00:10:97::2"}, nil}[g.IntN(4)]
	}
	for _, p := range of {
		o.Spec.Ports = append(o.Spec.Ports, importPort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
	}
}
