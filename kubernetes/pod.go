package kubernetes

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// convertPod converts a Pod to a record. node is the agent's node; shown selects the pods
// that may have names. It returns nil if the namespace can't be a label, or if the pod has
// ended: its addresses may already belong to other pods. The result shares no memory with
// o.
func convertPod(o *corev1.Pod, node string, shown labels.Selector, f *faults) *pod {
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	ns, ok := namespaceKey(o.Namespace)
	if !ok {
		f.add("namespace %q is not a DNS label", o.Namespace)
		return nil
	}
	p := &pod{
		name: objectKey(o.Namespace, o.Name), ns: ns, label: []byte(ns),
		named:  shown == nil || shown.Matches(labels.Set(o.Labels)),
		onNode: node != "" && o.Spec.NodeName == node, hostNetwork: o.Spec.HostNetwork, terminating: o.DeletionTimestamp != nil,
	}
	for _, ip := range o.Status.PodIPs {
		p.addIP(ip.IP, f)
	}
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		p.addIP(o.Status.PodIP, f)
	}
	return p
}

func (p *pod) addIP(text string, f *faults) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		f.add("pod IP %q is not an IP address", text)
		return
	}
	p.ips = append(p.ips, packAddr(a.Unmap()))
}

// pod is what DNS knows of a Pod. It is immutable.
type pod struct {
	name string // namespace/name of the object
	ns   string // the namespace's label in wire form
	ips  []string
	// onNode says that the pod is on the agent's node, hostNetwork that it has the node's
	// addresses, terminating that it is about to lose its own.
	onNode, hostNetwork, terminating bool
	// named says that the pod may have a name (`labels`). Other pods count, too: they may
	// have been given the address.
	named bool
	// label is ns as bytes, for queries.
	label []byte
}

// compare orders the pods of an address by namespace and name.
func (p *pod) compare(q *pod) int {
	if c := strings.Compare(p.ns, q.ns); c != 0 {
		return c
	}
	return strings.Compare(p.name, q.name)
}

// awaitsAddr reports whether p will get an address that is not known yet.
func (p *pod) awaitsAddr() bool {
	return p.onNode && len(p.ips) == 0 && !p.hostNetwork && !p.terminating
}

func (p *pod) same(q *pod) bool {
	return p.ns == q.ns && p.onNode == q.onNode && p.hostNetwork == q.hostNetwork && p.terminating == q.terminating && p.named == q.named && slices.Equal(p.ips, q.ips)
}
