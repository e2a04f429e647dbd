package kubernetes

import (
	"net/netip"

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

// ClientNamespace returns the namespace, as a label in wire form, of the pod of this node
// whose address is client. ok is false if there is no such pod, or if it is not certain
// which one it is. The result must not be changed. It is safe for concurrent use and does
// not allocate.
//
// An address may be reused as soon as its pod is gone, possibly before the API server
// reports either pod. A new pod is seen before it starts, without an address. As long as a
// pod of this node has no address in view, any client could be that pod; and an address
// that two pods claim belongs to neither.
func (z *Zone) ClientNamespace(client netip.Addr) (namespace []byte, ok bool) {
	v := z.view
	at := addrKey(client.As16())
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.index.pendingPods > 0 {
		return nil, false
	}
	p := v.index.onlyPodAt(at)
	if p == nil || !p.onNode || p.hostNetwork || p.terminating || !z.exposesLocked(p.ns) {
		return nil, false
	}
	return p.label, true
}

// hasPod reports whether a pod in namespace ns (a label in wire form) that may have a name
// has the address.
func (v *View) hasPod(a packedAddr, ns []byte, b *Budget) bool {
	at := addrKeyOf(string(a.bytes[:a.size]))
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.index.podIPs[at]
	if !ok {
		return false
	}
	for p := range r.each {
		if !b.spend(1) {
			return false
		}
		if p.named && string(p.label) == string(ns) {
			return true
		}
	}
	return false
}

// ownedByNodePod reports whether the address belongs to exactly one pod, that pod is on
// this node, and all slices of its namespace are in view.
func (x *index) ownedByNodePod(at addrKey) bool {
	p := x.onlyPodAt(at)
	return p != nil && p.onNode && !p.hostNetwork && x.namespaces[p.ns].complete
}

// onlyPodAt returns the pod with that address, nil if there is none or several.
func (x *index) onlyPodAt(at addrKey) *pod { return x.podIPs[at].one }
