package kubernetes

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// maxPodIPs bounds the addresses that are read of a pod. Kubernetes has one of each family.
const maxPodIPs = 16

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
	for _, ip := range atMost(o.Status.PodIPs, maxPodIPs, "pod IPs", f) {
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

// maxAddrWait bounds the time for which a pod without an address makes the clients of its
// node uncertain. Most have one after seconds; one whose volume can't be mounted never has
// one, and tenants can make such pods.
const maxAddrWait = 30 * time.Second

// addrWait is the wait of a pod for its address. The view's lock guards it.
type addrWait struct {
	limited bool // a timer runs, or has run
	over    bool // for longer than maxAddrWait
}

// awaitAddr records that the pod of that name awaits its address. w is its wait so far, nil
// for none.
func (x *index) awaitAddr(name string, w *addrWait) {
	if w == nil {
		w = new(addrWait)
	}
	x.addrWaits[name] = w
	if !w.over {
		x.pendingPods++
	}
}

// endAddrWait makes w, if it has not ended, not count any more.
func (x *index) endAddrWait(name string, w *addrWait) {
	if x.addrWaits[name] != w {
		return
	}
	x.epochs.BumpAny()
	x.clients.bump()
	w.over = true
	x.pendingPods--
}

// limitAddrWait makes the wait of the pod of that name for an address end in time.
func (v *View) limitAddrWait(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.index.addrWaits[name]
	if w == nil || w.limited {
		return
	}
	w.limited = true
	time.AfterFunc(maxAddrWait, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !v.ended {
			v.index.endAddrWait(name, w)
		}
	})
}

// endAddrWaits makes timers of waits do nothing from now on: what they change is about to be
// released.
func (v *View) endAddrWaits() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
}

func (p *pod) same(q *pod) bool {
	return p.ns == q.ns && p.onNode == q.onNode && p.hostNetwork == q.hostNetwork && p.terminating == q.terminating && p.named == q.named && slices.Equal(p.ips, q.ips)
}
