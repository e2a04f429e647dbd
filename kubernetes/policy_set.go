package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
)

// policySet finds out which DNSPolicies bind which pods of the node, and tells the table. It is safe for concurrent use. A nil
// policySet does nothing.
//
// It keeps the policies of all namespaces, packed: a pod that comes must not wait for the API server. Only those that
// bind a pod of the node are compiled. A change of a policy or of a pod costs one comparison of a selector for each pod or
// policy of its namespace.
//
// A pod in the node's network namespace has no address of its own, and no policy binds it. An address that several pods
// claim belongs to the one that is not terminating; if that is not certain, the policies of all of them bind it.
type policySet struct {
	view     *View
	table    *dnspolicy.Table
	counters *dnspolicy.Counters // may be nil
	egress   *dnspolicy.Egress   // may be nil

	mu         sync.Mutex
	namespaces map[string]*policyNamespace
	claims     map[netip.Addr][]*policyPod
	classes    map[string]*dnspolicy.Class // in use, by the policies that they consist of
	lastID     uint32                      // of a class
	lastSeq    uint64                      // of a record
	filtered   map[*policyRecord]struct{}  // those with sets in the packet filter
	// policiesListed and podsListed say that there was a whole list, restored that there are those of a saved view.
	policiesListed, podsListed, restored bool
	closed                               bool
}

// policyNamespace is what is known of a namespace.
type policyNamespace struct {
	policies map[string]*policyRecord // by name
	pods     map[string]*policyPod    // of the node, by key
	bytes    int                      // of all policies
}

// policyPod is a pod of the node.
type policyPod struct {
	addrs  []netip.Addr
	labels labels.Set
	// bindsAll says that the pod has more labels than are kept, and all policies of its namespace bind it.
	bindsAll    bool
	terminating bool
	policies    []*policyRecord // that bind it, by name
}

const (
	// maxPodLabels bounds the labels that are kept of a pod, in bytes. Tenants choose them.
	maxPodLabels = 64 << 10
	// maxPodPolicies bounds the policies that bind a pod: a query whose reply is not kept takes time in proportion to them.
	maxPodPolicies = 64
)

// newPolicySet returns a policySet that fills table; nil for nil.
func newPolicySet(v *View, table *dnspolicy.Table, counters *dnspolicy.Counters, egress *dnspolicy.Egress) *policySet {
	if table == nil {
		return nil
	}
	table.Mark = v.clientMark
	return &policySet{
		view: v, table: table, counters: counters, egress: egress, lastID: dnspolicy.FirstID - 1, filtered: make(map[*policyRecord]struct{}),
		namespaces: make(map[string]*policyNamespace), claims: make(map[netip.Addr][]*policyPod), classes: make(map[string]*dnspolicy.Class),
	}
}

// Policies returns the table that the view fills, nil for none.
func (v *View) Policies() *dnspolicy.Table {
	if v.policies == nil {
		return nil
	}
	return v.policies.table
}

// knowsPolicies reports whether the policies and the pods have been listed or are those of a saved view, or there is nothing to wait for.
func (v *View) knowsPolicies() bool {
	return v.policies == nil || v.policies.knows() || v.outages.Rejects(dnsPolicies.plural()) || v.outages.Rejects(pods.plural())
}

// knows reports whether policies and pods are known, by the API server or by a saved view.
func (s *policySet) knows() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policiesListed && s.podsListed || s.restored
}

// namespace returns the namespace of that name, and creates it if necessary. s is locked, also below.
func (s *policySet) namespace(name string) *policyNamespace {
	ns := s.namespaces[name]
	if ns == nil {
		ns = &policyNamespace{policies: make(map[string]*policyRecord), pods: make(map[string]*policyPod)}
		s.namespaces[name] = ns
	}
	return ns
}

// put adds a policy, or replaces the one of that name.
func (s *policySet) put(rec *policyRecord, f *faults) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespace(rec.namespace)
	old := ns.policies[rec.name]
	bytes := ns.bytes
	if old != nil {
		bytes -= old.bytes()
	}
	if bytes+rec.bytes() > maxNamespacePolicies {
		f.add("the policies of the namespace have more than %d bytes, so that this one binds all of its pods and allows nothing", maxNamespacePolicies)
		rec.cut()
		rec.selector = labels.Everything()
	}
	if rec.egress && s.egressFull(old, rec.namespace) {
		f.add("it has no egressSet: there are %d in the namespace or %d in the cluster", maxNamespaceEgress, maxEgressPolicies)
		rec.egress = false
	}
	if old != nil && old.same(rec) {
		return
	}
	s.lastSeq++
	rec.seq = s.lastSeq
	ns.bytes = bytes + rec.bytes()
	ns.policies[rec.name] = rec
	delete(s.filtered, old)
	if rec.egress {
		s.filtered[rec] = struct{}{}
	}
	ns.replace(old, rec)
	s.publish()
}

// egressFull reports whether no policy of the namespace besides old, which may be nil, may have sets in the packet filter.
func (s *policySet) egressFull(old *policyRecord, namespace string) bool {
	all, same := 0, 0
	for rec := range s.filtered {
		if rec != old {
			all++
			if rec.namespace == namespace {
				same++
			}
		}
	}
	return all >= maxEgressPolicies || same >= maxNamespaceEgress
}

// drop removes a policy.
func (s *policySet) drop(namespace, name string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[namespace]
	if ns == nil || ns.policies[name] == nil {
		return
	}
	old := ns.policies[name]
	ns.bytes -= old.bytes()
	delete(ns.policies, name)
	delete(s.filtered, old)
	ns.replace(old, nil)
	s.removeIfEmpty(namespace)
	s.publish()
	s.counters.Forget(namespace, name)
}

// replace replaces a policy by another one, of which either may be nil, for the pods that they bind.
func (ns *policyNamespace) replace(old, rec *policyRecord) {
	for _, p := range ns.pods {
		p.release(old)
		p.bind(rec)
	}
}

// bind adds rec, which may be nil, to the policies of p if it selects p.
func (p *policyPod) bind(rec *policyRecord) {
	if rec == nil || !p.isBoundBy(rec) {
		return
	}
	at, _ := slices.BinarySearchFunc(p.policies, rec, (*policyRecord).compare)
	p.policies = slices.Insert(p.policies, at, rec)
	rec.pods++
}

// isBoundBy reports whether rec, of the namespace of p, selects p.
func (p *policyPod) isBoundBy(rec *policyRecord) bool {
	return p.bindsAll || rec.selector.Matches(p.labels)
}

// release removes rec from the policies of p, if it is one of them.
func (p *policyPod) release(rec *policyRecord) {
	if at := slices.Index(p.policies, rec); at >= 0 {
		p.policies = slices.Delete(p.policies, at, at+1)
		if rec.pods--; rec.pods == 0 {
			rec.compiled = nil
		}
	}
}

// compare orders the policies of a pod.
func (rec *policyRecord) compare(other *policyRecord) int {
	return cmp.Or(strings.Compare(rec.namespace, other.namespace), strings.Compare(rec.name, other.name))
}

// putPod adds or replaces the pod o, of which rec is the record. Pods of other nodes are ignored.
func (s *policySet) putPod(o *corev1.Pod, rec *pod) {
	switch {
	case s == nil:
		return
	case !rec.onNode || rec.hostNetwork:
		s.dropPod(o.Namespace, rec.name)
		return
	}
	p := newPolicyPod(o, rec)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replacePod(o.Namespace, rec.name, p)
}

// replacePod makes p the pod with that key.
func (s *policySet) replacePod(namespace, key string, p *policyPod) {
	ns := s.namespace(namespace)
	if old := ns.pods[key]; old != nil && old.same(p) { // most changes of a pod are of its status
		return
	}
	for _, rec := range ns.policies { // before the old pod releases them: what is compiled stays
		p.bind(rec)
	}
	s.unclaim(ns, key)
	ns.pods[key] = p
	for _, a := range p.addrs {
		s.claims[a] = append(s.claims[a], p)
	}
	s.publish()
}

// newPolicyPod returns the pod o, of which rec is the record.
func newPolicyPod(o *corev1.Pod, rec *pod) *policyPod {
	p := &policyPod{addrs: unpackAddrs(rec.ips), terminating: rec.terminating}
	size := 0
	for key, value := range o.Labels {
		size += len(key) + len(value)
	}
	if p.bindsAll = size > maxPodLabels; !p.bindsAll {
		p.labels = maps.Clone(o.Labels)
	}
	return p
}

// same reports whether p and other have the same addresses and labels.
func (p *policyPod) same(other *policyPod) bool {
	return slices.Equal(p.addrs, other.addrs) && maps.Equal(p.labels, other.labels) && p.bindsAll == other.bindsAll && p.terminating == other.terminating
}

// dropPod removes the pod with that key.
func (s *policySet) dropPod(namespace, key string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns := s.namespaces[namespace]; ns != nil && ns.pods[key] != nil {
		s.unclaim(ns, key)
		s.removeIfEmpty(namespace)
		s.publish()
	}
}

// unclaim removes the pod with that key, if there is one, and its claims.
func (s *policySet) unclaim(ns *policyNamespace, key string) {
	p := ns.pods[key]
	if p == nil {
		return
	}
	delete(ns.pods, key)
	for len(p.policies) > 0 {
		p.release(p.policies[0])
	}
	for _, a := range p.addrs {
		if s.claims[a] = slices.DeleteFunc(s.claims[a], func(q *policyPod) bool { return q == p }); len(s.claims[a]) == 0 {
			delete(s.claims, a)
		}
	}
}

func (s *policySet) removeIfEmpty(namespace string) {
	if ns := s.namespaces[namespace]; len(ns.policies) == 0 && len(ns.pods) == 0 {
		delete(s.namespaces, namespace)
	}
}

// setListed records that all policies, or all pods of the node, have been listed once.
func (s *policySet) setListed(r resource) {
	if s == nil || r != dnsPolicies && r != pods {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policiesListed, s.podsListed = s.policiesListed || r == dnsPolicies, s.podsListed || r == pods
	s.publish()
}

// close makes later changes have no effect.
func (s *policySet) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// publish tells the table the classes of all addresses, once all policies and pods are known, or are those of a saved view.
func (s *policySet) publish() {
	known := s.policiesListed && s.podsListed
	if s.closed || !known && !s.restored {
		return
	}
	inUse := make(map[string]*dnspolicy.Class)
	byAddr := make(map[netip.Addr]*dnspolicy.Class, len(s.claims))
	egress := make(map[string][]netip.Addr, len(s.filtered))
	for rec := range s.filtered {
		egress[rec.key()] = nil
	}
	for a, pods := range s.claims {
		list := policiesOf(pods)
		byAddr[a] = s.class(list, inUse)
		for _, rec := range list {
			if rec.egress {
				egress[rec.key()] = append(egress[rec.key()], a)
			}
		}
	}
	for _, addrs := range egress {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	s.classes = inUse
	s.egress.Want(egress, known)
	s.table.Set(byAddr, known, s.view.moveClients)
}

// policiesOf returns the policies that bind an address which these pods claim.
func policiesOf(pods []*policyPod) []*policyRecord {
	var staying []*policyPod
	for _, p := range pods {
		if !p.terminating {
			staying = append(staying, p)
		}
	}
	if len(staying) == 1 {
		pods = staying
	}
	if len(pods) == 1 {
		return pods[0].policies
	}
	var all []*policyRecord
	for _, p := range pods {
		all = append(all, p.policies...)
	}
	slices.SortFunc(all, (*policyRecord).compare)
	return slices.Compact(all)
}

// class returns the class of the clients that these policies bind, nil for none, and adds it to inUse.
func (s *policySet) class(list []*policyRecord, inUse map[string]*dnspolicy.Class) *dnspolicy.Class {
	if len(list) == 0 {
		return nil
	}
	var key []byte
	for _, rec := range list {
		key = append(strconv.AppendUint(key, rec.seq, 36), ' ')
	}
	c := cmp.Or(inUse[string(key)], s.classes[string(key)])
	if c == nil {
		s.lastID++
		c = dnspolicy.NewClass(s.lastID, s.compile(list))
	}
	inUse[string(key)] = c
	return c
}

// compile compiles the policies of a class. In place of too many it returns one that allows nothing, or if they deny nothing either, the
// first of them.
func (s *policySet) compile(list []*policyRecord) (policies []*dnspolicy.Policy) {
	if len(list) > maxPodPolicies {
		if slices.ContainsFunc(list, func(rec *policyRecord) bool { return !rec.audit }) {
			return []*dnspolicy.Policy{{Namespace: list[0].namespace, Name: tooManyPolicies, Counts: s.counters.Of(list[0].namespace, tooManyPolicies)}}
		}
		list = list[:maxPodPolicies]
	}
	for _, rec := range list {
		policies = append(policies, rec.policy(s))
	}
	return policies
}

// draft is [View.DraftPolicy] for a record.
func (s *policySet) draft(rec *policyRecord) map[netip.Addr]*dnspolicy.Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	classes, ns := make(map[netip.Addr]*dnspolicy.Class), s.namespaces[rec.namespace]
	if ns == nil {
		return classes
	}
	drafted := rec.compile()
	for _, p := range ns.pods {
		if !p.isBoundBy(rec) {
			continue
		}
		list := []*dnspolicy.Policy{drafted}
		for _, other := range p.policies {
			if other.name != rec.name {
				list = append(list, other.policy(s))
			}
		}
		for _, addr := range p.addrs {
			classes[addr] = dnspolicy.NewClass(dnspolicy.FirstID, list)
		}
	}
	return classes
}

// tooManyPolicies stands for the policies of a pod that more than maxPodPolicies bind.
const tooManyPolicies = "(more than 64)"

// all returns the namespaces and names of all policies.
func (s *policySet) all() (list [][2]string) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		for _, rec := range ns.policies {
			list = append(list, [2]string{rec.namespace, rec.name})
		}
	}
	return list
}

// PolicyStats are the policies that a view keeps.
type PolicyStats struct {
	// Policies and Names are all of them, with the entries of their lists. Bound are those that bind a pod of the node.
	Policies, Names, Bound int
}

// PolicyStats returns what the view keeps of policies; ok is false if it watches none.
func (v *View) PolicyStats() (st PolicyStats, ok bool) {
	s := v.policies
	if s == nil {
		return PolicyStats{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range s.namespaces {
		st.Policies += len(ns.policies)
		for _, rec := range ns.policies {
			st.Names += rec.size
			if rec.pods > 0 {
				st.Bound++
			}
		}
	}
	return st, true
}

// DraftPolicy returns the classes of the node's pods if text, an object DNSPolicy as YAML or JSON, took the place of the policy of its name, and
// were enforced. Pods that it does not select are left out. The error says what is not valid. The view stays as it is.
func (v *View) DraftPolicy(text []byte) (map[netip.Addr]*dnspolicy.Class, error) {
	o, f := new(dnsPolicy), new(faults)
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		return nil, err
	}
	if o.APIVersion != policiesV1alpha1.String() || o.Kind != "DNSPolicy" || !isObjectName(o.Namespace) || !isObjectName(o.Name) {
		return nil, fmt.Errorf("it has no kind DNSPolicy of %s, or no metadata with a namespace and a name", policiesV1alpha1)
	}
	rec := convertPolicy(o, f)
	if f.n > 0 {
		return nil, errors.New(f.String())
	}
	rec.audit = false
	return v.policies.draft(rec), nil
}
