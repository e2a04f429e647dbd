package kubernetes

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
)

// addrKey is a key of the reverse indexes: IPv4 in its mapped form, so that one
// pointer-free map holds both families.
type addrKey [16]byte

func addrKeyOf(packed string) addrKey {
	if len(packed) == 4 {
		return addrKey{10: 0xFF, 11: 0xFF, 12: packed[0], 13: packed[1], 14: packed[2], 15: packed[3]}
	}
	return addrKey([]byte(packed))
}

// namespace is what the view knows of one namespace: its object, and things in it.
// Names in a namespace whose own object has not come yet are known all the same.
// Its plain fields belong to who holds the view's lock.
type namespace struct {
	label       string // in wire form
	hasObject   bool
	objectCount int // services, slices and pods
	sourceCount int // of its slices
	nodePods    int // of this node, and not ended
	// headlessCount counts the services whose answers are made of slices, bare those of
	// them without a selector, untold the others of which no slice has the label of
	// headless services' slices.
	headlessCount, selectorless, unlabelled int
	// complete says that all of its slices are in view.
	complete bool
	// lastUsed is the last epoch in which an answer was made of its slices, or would
	// have been; gap says that one was for a service with a cluster IP, whose slices
	// don't have the label either.
	lastUsed        atomic.Uint32
	needsUnlabelled atomic.Bool
}

// index is the zone's data. Its methods are called with the view's lock held for
// writing; all they take and publish is immutable.
type index struct {
	services   map[string]*service   // by serviceKey
	namespaces map[string]*namespace // by label in wire form
	slices     map[string]*slice     // by namespace/name
	pods       map[string]*pod       // by namespace/name
	// clusterIPs holds service keys, endpoints the slices an address is in.
	clusterIPs map[addrKey]refSet[string]
	endpoints  map[addrKey]refSet[*slice]
	podIPs     map[addrKey]refSet[*pod]
	level      level // how much of the slices is in view
	sources    []*sliceSource
	// pendingPods counts the pods of this node that have no address yet.
	pendingPods int
	// externalAddrs holds the keys of the services reached there from outside.
	externalAddrs map[addrKey]refSet[string]
	// nearestOnly says that the bare names of headless services give only the nearest
	// endpoints where the service or its slices ask for that.
	nearestOnly bool
	// endpointWaiters holds, by service key, what is closed when the service changes.
	endpointWaiters map[string]chan struct{}
	// epochs are moved with every change of what queries see: the group of a service
	// for what is made of that service alone, see [Zone.Mark]. seed is of its hash.
	epochs *epoch.Table
	seed   maphash.Seed
}

func newIndex(epochs *epoch.Table) index {
	return index{
		epochs: epochs, seed: maphash.MakeSeed(),
		services:        map[string]*service{},
		namespaces:      map[string]*namespace{},
		slices:          map[string]*slice{},
		pods:            map[string]*pod{},
		clusterIPs:      map[addrKey]refSet[string]{},
		endpoints:       map[addrKey]refSet[*slice]{},
		podIPs:          map[addrKey]refSet[*pod]{},
		externalAddrs:   map[addrKey]refSet[string]{},
		endpointWaiters: map[string]chan struct{}{},
	}
}

// putService sets what the Service itself says; the slices stay. It reports
// whether DNS can see the difference.
func (x *index) putService(key string, s service) bool {
	old := x.services[key]
	if old != nil {
		s.slices = old.slices
		if old.same(&s) {
			return false
		}
	}
	ns := x.ensureNamespace(namespaceOf(key))
	if old == nil || old.kind == orphan {
		ns.objectCount++
	} else {
		x.unlinkService(key, old)
	}
	s.ns = ns
	x.linkExternals(key, &s)
	if s.kind == clusterIP {
		for ip := range s.each {
			addRef(x.clusterIPs, addrKeyOf(ip), key, strings.Compare)
		}
	}
	x.publish(key, &s)
	return true
}

// dropService forgets the Service; slices that name it stay, for when it comes
// back.
func (x *index) dropService(key string) bool {
	old := x.services[key]
	if old == nil || old.kind == orphan {
		return false
	}
	x.unlinkService(key, old)
	x.publish(key, &service{slices: old.slices, ns: old.ns})
	x.removeObject(old.ns)
	return true
}

// countService notes that n more services like s, which may be nil, are in ns.
func (ns *namespace) countService(s *service, n int) {
	switch {
	case s == nil || s.kind != headless:
		return
	case !s.selects:
		ns.selectorless += n
	case !s.hasLabelledSlice():
		ns.unlabelled += n
	}
	ns.headlessCount += n
}

// hasLabelledSlice reports whether a slice of s has the label.
func (s *service) hasLabelledSlice() bool {
	return slices.ContainsFunc(s.slices, func(sl *slice) bool { return sl.labelled })
}

func (x *index) unlinkService(key string, s *service) {
	x.unlinkExternals(key, s)
	if s.kind != clusterIP {
		return
	}
	for ip := range s.each {
		dropRef(x.clusterIPs, addrKeyOf(ip), key, strings.Compare)
	}
}

// each goes over the addresses of the bare name, packed.
func (s *service) each(yield func(string) bool) { addrSet{s.v4, s.v6}.each(yield) }

// putSlice adds s or sets it in place of the slice of its name.
func (x *index) putSlice(s *slice) bool {
	old := x.slices[s.name]
	if old != nil {
		if old.same(s) {
			old.version = s.version // which no query reads
			return false
		}
	} else {
		x.ensureNamespace(namespaceOf(s.key)).objectCount++
	}
	s.indexHosts()
	// The new endpoints come before the old ones go: at an address in both s takes the
	// place of old.
	for addr := range s.each {
		addRef(x.endpoints, addrKeyOf(addr), s, (*slice).compare)
	}
	x.slices[s.name] = s
	if old != nil {
		x.unlinkSlice(old)
		if old.key != s.key {
			x.replaceSlice(old.key, old, nil)
			old = nil
		}
	}
	x.replaceSlice(s.key, old, s)
	return true
}

func (x *index) dropSlice(name string) bool {
	old := x.slices[name]
	if old == nil {
		return false
	}
	delete(x.slices, name)
	x.unlinkSlice(old)
	x.replaceSlice(old.key, old, nil)
	x.removeObject(x.namespaces[namespaceOf(old.key)])
	return true
}

func (x *index) unlinkSlice(s *slice) {
	for addr := range s.each {
		dropRef(x.endpoints, addrKeyOf(addr), s, (*slice).compare)
	}
}

// replaceSlice publishes the service of key with del (nil: none) taken out of
// its slices and add (nil: none) put in.
func (x *index) replaceSlice(key string, del, add *slice) {
	var s service
	if old := x.services[key]; old != nil {
		s = *old
	}
	list := make([]*slice, 0, len(s.slices)+1)
	for _, sl := range s.slices {
		if sl != del {
			list = append(list, sl)
		}
	}
	if add != nil {
		at, _ := slices.BinarySearchFunc(list, add, func(a, b *slice) int { return strings.Compare(a.name, b.name) })
		list = slices.Insert(list, at, add)
	}
	s.slices = slices.Clip(list)
	x.publish(key, &s)
}

// publish completes s and makes it what queries for key find.
func (x *index) publish(key string, s *service) {
	defer x.broadcast(key)
	x.bumpService(key)
	old := x.services[key]
	if old != nil {
		old.ns.countService(old, -1)
	}
	if s.kind == orphan && len(s.slices) == 0 {
		delete(x.services, key)
		return
	}
	if s.ns == nil {
		s.ns = x.ensureNamespace(namespaceOf(key))
	}
	s.ns.countService(s, 1)
	s.complete = x.isComplete(s)
	s.ready = slices.ContainsFunc(s.slices, func(sl *slice) bool { return sl.addrs != "" })
	if s.kind == headless {
		s.updateHeadlessAddrs(old, x.nearestOnly)
	}
	x.services[key] = s
}

// putPod adds p or sets it in place of the pod of its name.
func (x *index) putPod(p *pod) bool {
	old := x.pods[p.name]
	if old != nil && old.same(p) {
		return false
	}
	x.epochs.BumpAny()
	ns := x.ensureNamespace(p.ns)
	ns.objectCount++
	if p.onNode {
		ns.nodePods++
	}
	x.dropPod(p.name)
	x.pods[p.name] = p
	if p.awaitsAddr() {
		x.pendingPods++
	}
	for _, ip := range p.ips {
		addRef(x.podIPs, addrKeyOf(ip), p, (*pod).compare)
	}
	return true
}

func (x *index) dropPod(name string) bool {
	old := x.pods[name]
	if old == nil {
		return false
	}
	x.epochs.BumpAny()
	delete(x.pods, name)
	if old.awaitsAddr() {
		x.pendingPods--
	}
	for _, ip := range old.ips {
		dropRef(x.podIPs, addrKeyOf(ip), old, (*pod).compare)
	}
	ns := x.namespaces[old.ns]
	if old.onNode {
		ns.nodePods--
	}
	x.removeObject(ns)
	return true
}

func (x *index) putNamespace(key string) bool {
	ns := x.ensureNamespace(key)
	if ns.hasObject {
		return false
	}
	x.epochs.BumpAny()
	ns.hasObject = true
	return ns.objectCount == 0
}

func (x *index) dropNamespace(key string) bool {
	ns := x.namespaces[key]
	if ns == nil || !ns.hasObject {
		return false
	}
	x.bumpNamespace(ns)
	ns.hasObject = false
	x.removeIfUnused(ns)
	return ns.objectCount == 0
}

// ensureNamespace is the namespace of that label, a new one if there is none.
func (x *index) ensureNamespace(label string) *namespace {
	ns := x.namespaces[label]
	if ns == nil {
		label = strings.Clone(label) // it is a part of a service's key, which may go first
		ns = &namespace{label: label}
		x.namespaces[label] = ns
	}
	return ns
}

func (x *index) removeObject(ns *namespace) {
	ns.objectCount--
	x.removeIfUnused(ns)
}

// exists reports whether there is something in ns, if not ns itself.
func (ns *namespace) exists() bool { return ns != nil && (ns.hasObject || ns.objectCount > 0) }

// removeIfUnused takes ns out if nothing needs it.
func (x *index) removeIfUnused(ns *namespace) {
	if !ns.exists() && ns.sourceCount == 0 {
		delete(x.namespaces, ns.label)
	}
}
