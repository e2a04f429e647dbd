package kubernetes

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// NodePod is a pod of the agent's node. The zero value is none.
type NodePod struct {
	Namespace, Name, UID string
	// WorkloadKind and WorkloadName are the pod's controller, such as Deployment and web. Without one
	// they are Pod and the pod's name.
	WorkloadKind, WorkloadName string
	// Ndots is the option in the pod's dnsConfig, at most 15; HasNdots says that there is one.
	Ndots    uint8
	HasNdots bool
	// HasIPv6 says that one of the pod's addresses is an IPv6 address.
	HasIPv6 bool
	// Labels are the values of [Options.PodLabels] in their order, each with a zero byte behind it. Labels
	// that the pod does not have are empty.
	Labels string
}

// nodePods reports which pod of the node has which address. It is safe for concurrent use. A nil
// nodePods reports nothing.
//
// A pod in the node's network namespace has no address of its own. An address that two pods claim
// belongs to the one that is not terminating; if that is not certain it belongs to none. It
// belongs to no terminating pod either while another pod waits for an address: that may be
// this one, and the API server may be late to say so.
type nodePods struct {
	observe func(netip.Addr, NodePod)
	labels  []string // see [Options.PodLabels]

	mu      sync.Mutex
	pods    map[string]*nodePod // by namespace/name
	claims  map[netip.Addr][]*nodePod
	owners  map[netip.Addr]NodePod // as reported
	pending int                    // pods that wait for an address
	closed  bool
}

// nodePod is one pod of the node.
type nodePod struct {
	NodePod
	addrs       []netip.Addr
	terminating bool
	pending     bool
}

// newNodePods returns a nodePods that calls observe with these labels; nil for nil.
func newNodePods(observe func(netip.Addr, NodePod), labels []string) *nodePods {
	if observe == nil {
		return nil
	}
	return &nodePods{
		observe: observe, labels: labels, pods: make(map[string]*nodePod), claims: make(map[netip.Addr][]*nodePod), owners: make(map[netip.Addr]NodePod),
	}
}

// put adds or replaces the pod o, of which rec is the record. Pods of other nodes are ignored.
func (n *nodePods) put(o *corev1.Pod, rec *pod) {
	if n == nil {
		return
	}
	if !rec.onNode || rec.hostNetwork {
		n.drop(rec.name)
		return
	}
	p := newNodePod(rec)
	if !isObjectName(p.Name) { // not from an API server
		n.drop(rec.name)
		return
	}
	if isUID(string(o.UID)) {
		p.UID = strings.Clone(string(o.UID))
	}
	p.WorkloadKind, p.WorkloadName = workloadOf(o, p.Name)
	p.Ndots, p.HasNdots = ndotsOf(o.Spec.DNSConfig)
	p.Labels = n.reportedLabels(o)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replace(rec.name, p)
}

// newNodePod returns what rec says of a pod.
func newNodePod(rec *pod) *nodePod {
	p := &nodePod{terminating: rec.terminating, pending: rec.awaitsAddr(), addrs: unpackAddrs(rec.ips)}
	p.Namespace, p.Name, _ = strings.Cut(rec.name, "/")
	p.HasIPv6 = slices.ContainsFunc(p.addrs, netip.Addr.Is6)
	return p
}

// saved returns the pods by their keys, for the file of a view.
func (n *nodePods) saved() map[string]*savedNodePod {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make(map[string]*savedNodePod, len(n.pods))
	for key, p := range n.pods {
		list[key] = &savedNodePod{
			UID: p.UID, WorkloadKind: p.WorkloadKind, WorkloadName: p.WorkloadName, Ndots: p.Ndots, HasNdots: p.HasNdots, Labels: p.Labels,
		}
	}
	return list
}

// restore adds the pod of a saved view.
func (n *nodePods) restore(rec *pod, saved *savedNodePod) {
	if n == nil || saved == nil {
		return
	}
	p := newNodePod(rec)
	p.UID, p.WorkloadKind, p.WorkloadName = saved.UID, saved.WorkloadKind, saved.WorkloadName
	p.Ndots, p.HasNdots, p.Labels = saved.Ndots, saved.HasNdots, saved.Labels
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replace(rec.name, p)
}

// reportedLabels returns the values of the pod o's labels in the form of [NodePod.Labels].
func (n *nodePods) reportedLabels(o *corev1.Pod) (values string) {
	for _, key := range n.labels {
		value := o.Labels[key]
		if len(value) > validation.LabelValueMaxLength || strings.Contains(value, "\x00") {
			value = "" // not from an API server
		}
		values += value + "\x00"
	}
	return values
}

// drop removes the pod with that key.
func (n *nodePods) drop(key string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replace(key, nil)
}

// close removes all pods, and ignores later ones.
func (n *nodePods) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.pods {
		n.replace(key, nil)
	}
	n.closed = true
}

// replace makes p, or nothing if it is nil, the pod with that key, and reports what changes.
func (n *nodePods) replace(key string, p *nodePod) {
	if n.closed {
		return
	}
	old, pending := n.pods[key], n.pending
	var changed []netip.Addr
	if old != nil {
		delete(n.pods, key)
		n.unclaim(old)
		changed = old.addrs
	}
	if p != nil {
		n.pods[key] = p
		n.claim(p)
		changed = append(changed[:len(changed):len(changed)], p.addrs...)
	}
	for _, a := range changed {
		n.report(a)
	}
	if (pending > 0) != (n.pending > 0) {
		for a := range n.claims {
			n.report(a)
		}
	}
}

func (n *nodePods) claim(p *nodePod) {
	for _, a := range p.addrs {
		n.claims[a] = append(n.claims[a], p)
	}
	if p.pending {
		n.pending++
	}
}

func (n *nodePods) unclaim(p *nodePod) {
	for _, a := range p.addrs {
		var others []*nodePod
		for _, q := range n.claims[a] {
			if q != p {
				others = append(others, q)
			}
		}
		if n.claims[a] = others; len(others) == 0 {
			delete(n.claims, a)
		}
	}
	if p.pending {
		n.pending--
	}
}

// report reports the owner of the address if it has changed.
func (n *nodePods) report(a netip.Addr) {
	var owner NodePod
	if p := n.ownerOf(a); p != nil {
		owner = p.NodePod
	}
	if owner == n.owners[a] {
		return
	}
	if owner == (NodePod{}) {
		delete(n.owners, a)
	} else {
		n.owners[a] = owner
	}
	n.observe(a, owner)
}

// ownerOf returns the pod that has the address; nil if there is none, or if that is not certain.
func (n *nodePods) ownerOf(a netip.Addr) *nodePod {
	var staying, terminating []*nodePod
	for _, p := range n.claims[a] {
		if p.terminating {
			terminating = append(terminating, p)
		} else {
			staying = append(staying, p)
		}
	}
	switch {
	case len(staying) == 1:
		return staying[0]
	case len(staying) == 0 && len(terminating) == 1 && n.pending == 0:
		return terminating[0]
	}
	return nil
}

// highestNdots is the highest value of ndots that resolvers use (resolv.conf(5)).
const highestNdots = 15

// ndotsOf returns the option ndots of c, which may be nil: the last valid one, as in resolv.conf.
func ndotsOf(c *corev1.PodDNSConfig) (ndots uint8, ok bool) {
	if c == nil {
		return 0, false
	}
	for _, o := range c.Options {
		if o.Name != "ndots" || o.Value == nil {
			continue
		}
		if n, err := strconv.ParseUint(*o.Value, 10, 16); err == nil {
			ndots, ok = uint8(min(n, highestNdots)), true
		}
	}
	return ndots, ok
}

// minCronJobDigits is the length of the number that a CronJob appends to the names of its Jobs: the
// minutes since the epoch.
const minCronJobDigits = 8

// workloadOf returns the controller of the pod o, called name. A Deployment appends the
// pod-template-hash to the names of its ReplicaSets, and a CronJob the time to those of its Jobs;
// both are taken for the controller of what they control. A controller whose kind or name no object can have counts
// as none: the API server checks neither, so both may have a megabyte and any character. The result shares no
// memory with o.
func workloadOf(o *corev1.Pod, name string) (kind, workload string) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind == "Node" || !isKind(ref.Kind) || !isObjectName(ref.Name) { // Node: a static pod
		return "Pod", name
	}
	kind, workload = ref.Kind, ref.Name
	switch kind {
	case "ReplicaSet":
		if base, ok := cutHash(workload, o.Labels["pod-template-hash"]); ok {
			kind, workload = "Deployment", base
		}
	case "Job":
		if base, ok := cutTime(workload); ok {
			kind, workload = "CronJob", base
		}
	}
	return strings.Clone(kind), strings.Clone(workload)
}

// cutHash returns the name of the Deployment of a ReplicaSet with that name and pod-template-hash.
func cutHash(name, hash string) (deployment string, ok bool) {
	deployment, ok = strings.CutSuffix(name, "-"+hash)
	return deployment, ok && hash != "" && deployment != ""
}

// cutTime returns the name of the CronJob of a Job with that name.
func cutTime(name string) (cronJob string, ok bool) {
	base := strings.TrimRight(name, "0123456789")
	cronJob, ok = strings.CutSuffix(base, "-")
	return cronJob, ok && cronJob != "" && len(name)-len(base) >= minCronJobDigits
}

// What the API server itself checks of an object is as long as it says. What an object says of others, such as an
// owner reference, it does not check: these functions decide what of that is a name. Names that pass have no
// character that needs an escape in a metric, a log or a terminal.

// isObjectName reports whether objects may have that name: a DNS subdomain (RFC 1123, section 2.1), 253 bytes at most.
func isObjectName(name string) bool {
	return len(name) <= validation.DNS1123SubdomainMaxLength && len(validation.IsDNS1123Subdomain(name)) == 0
}

// isKind reports whether a kind of objects may have that name, such as ReplicaSet: in lower case, a label of RFC 1035, 63
// bytes at most.
func isKind(name string) bool {
	return len(name) <= validation.DNS1035LabelMaxLength && len(validation.IsDNS1035Label(strings.ToLower(name))) == 0
}

// isUID reports whether the API server may have given an object that UID: a UUID (RFC 9562, section 4), or the like.
func isUID(uid string) bool {
	return len(uid) <= validation.DNS1123LabelMaxLength && len(validation.IsDNS1123Label(strings.ToLower(uid))) == 0
}

// ClientMetricsAnnotation is the annotation of a Namespace that chooses the metrics of its pods' queries.
// This package only reports its value.
const ClientMetricsAnnotation = "nodens.dev/client-metrics"

// maxAnnotation bounds a value, in bytes. Tenants choose it, and no valid one is as long.
const maxAnnotation = 64

// annotations reports the values of ClientMetricsAnnotation. It keeps the first 64 bytes of those that
// are not empty. It is safe for concurrent use. A nil annotations reports nothing.
type annotations struct {
	observe func(namespace, value string)

	mu     sync.Mutex
	values map[string]string // by namespace
	closed bool
}

// newAnnotations returns an annotations that calls observe; nil for nil.
func newAnnotations(observe func(namespace, value string)) *annotations {
	if observe == nil {
		return nil
	}
	return &annotations{observe: observe, values: make(map[string]string)}
}

// put records the value of a namespace, "" for none, and reports it if it is another one.
func (a *annotations) put(namespace, value string) {
	if a == nil {
		return
	}
	value = strings.ToValidUTF8(value[:min(len(value), maxAnnotation)], "")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.values[namespace] == value {
		return
	}
	namespace, value = strings.Clone(namespace), strings.Clone(value)
	if value == "" {
		delete(a.values, namespace)
	} else {
		a.values[namespace] = value
	}
	a.observe(namespace, value)
}

// get returns the value of a namespace, "" for none.
func (a *annotations) get(namespace string) string {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.values[namespace]
}

// close reports that no namespace has a value any more, and ignores later ones.
func (a *annotations) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for namespace := range a.values {
		a.observe(namespace, "")
	}
	clear(a.values)
}
