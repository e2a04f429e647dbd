package kubernetes

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
)

// addrKey is the key of the indexes by address: IPv4 in its mapped form, so that a map
// without pointers holds both families.
type addrKey [16]byte

func addrKeyOf(packed string) addrKey {
	if len(packed) == 4 {
		return addrKey{10: 0xFF, 11: 0xFF, 12: packed[0], 13: packed[1], 14: packed[2], 15: packed[3]}
	}
	return addrKey([]byte(packed))
}

// namespace is what the view knows of one namespace: whether its object exists, and what is
// in it. Objects may arrive before their Namespace. The view's lock guards the plain
// fields.
type namespace struct {
	label       string // in wire form
	hasObject   bool
	objectCount int // services, slices and pods
	sourceCount int // sources of its slices
	nodePods    int // pods of this node that have not ended
	// sliceBytes is the cost of its slices, serviceBytes the memory of the lists of its
	// services.
	sliceBytes, serviceBytes int
	// headlessCount is the number of headless services, selectorless of those without a
	// selector, and unlabelled of the others none of whose slices has the headless label.
	headlessCount, selectorless, unlabelled int
	// complete says that all of its slices are in view.
	complete bool
	// lastUsed is the last tick in which a query needed its slices. needsUnlabelled says that
	// one was about a service with a cluster IP, whose slices don't have the headless label.
	lastUsed        atomic.Uint32
	needsUnlabelled atomic.Bool
	// reverseUsed is the last tick in which a query needed the reverse name of a pod of this node that is in it.
	reverseUsed atomic.Uint32
}

// index holds the records that answers are made of. Its methods need the view's lock, held
// for writing unless they say otherwise. All values that it publishes are immutable.
type index struct {
	services   map[string]*service   // by serviceKey
	namespaces map[string]*namespace // by label in wire form
	slices     map[string]*slice     // by namespace/name
	pods       map[string]*pod       // by namespace/name
	// clusterIPs maps to service keys, endpoints to the slices that contain the address.
	clusterIPs map[addrKey]refSet[string]
	endpoints  map[addrKey]refSet[*sliceRef]
	podIPs     map[addrKey]refSet[*pod]
	level      level // how much of the slices is in view
	sources    []*sliceSource
	headless   map[string]*namespace // by the keys of headless services
	restored   serviceSet            // Services whose slices are in view from a saved view, until sources have them
	// serviceCount counts the services but orphans, endpointCount the addresses of the slices.
	serviceCount, endpointCount int
	// pendingPods counts the pods of this node that have no address yet and have not waited
	// for one for longer than [maxAddrWait]. addrWaits has all that wait, by namespace/name.
	pendingPods int
	addrWaits   map[string]*addrWait
	// clients is bumped when the owner of a client's address, or its namespace, changes.
	clients *clientEpoch
	// externalAddrs maps to the keys of the services that are externally reachable there.
	externalAddrs map[addrKey]refSet[string]
	// nearestOnly limits the addresses of headless services to the nearest endpoints, if the
	// service or its slices ask for that.
	nearestOnly bool
	// endpointWaiters are closed when the service with that key changes.
	endpointWaiters map[string]chan struct{}
	// epochs are bumped with every visible change; answers made from one service alone depend
	// on that service's group, see [Zone.Mark]. seed is the seed of the group's hash.
	epochs *epoch.Table
	seed   maphash.Seed
}

func newIndex(epochs *epoch.Table) index {
	return index{
		epochs: epochs, clients: new(clientEpoch), seed: maphash.MakeSeed(),
		services:        map[string]*service{},
		namespaces:      map[string]*namespace{},
		slices:          map[string]*slice{},
		pods:            map[string]*pod{},
		addrWaits:       map[string]*addrWait{},
		clusterIPs:      map[addrKey]refSet[string]{},
		endpoints:       map[addrKey]refSet[*sliceRef]{},
		podIPs:          map[addrKey]refSet[*pod]{},
		externalAddrs:   map[addrKey]refSet[string]{},
		endpointWaiters: map[string]chan struct{}{},
		headless:        map[string]*namespace{},
		restored:        serviceSet{},
	}
}

// putService sets the fields of a Service; its slices stay. It reports whether DNS answers
// change.
func (x *index) putService(key string, s service) bool {
	old := x.services[key]
	if old != nil {
		s.serviceSlices = old.serviceSlices
		if old.same(&s) {
			return false
		}
	}
	ns := x.ensureNamespace(namespaceOf(key))
	if old == nil || old.kind == orphan {
		ns.objectCount++
	} else {
		dropRefs(x.clusterIPs, old.eachClusterIP, key, strings.Compare)
	}
	s.ns = ns
	ns.serviceBytes += s.listBytes() - old.listBytes()
	if old == nil || old.external4 != s.external4 || old.external6 != s.external6 {
		if old != nil {
			dropRefs(x.externalAddrs, old.eachExternal, key, strings.Compare)
		}
		addRefs(x.externalAddrs, s.eachExternal, key, strings.Compare)
	}
	addRefs(x.clusterIPs, s.eachClusterIP, key, strings.Compare)
	x.publish(key, &s)
	return true
}

// dropService removes the Service. Slices that belong to it stay until it comes back.
func (x *index) dropService(key string) bool {
	old := x.services[key]
	if old == nil || old.kind == orphan {
		return false
	}
	dropRefs(x.clusterIPs, old.eachClusterIP, key, strings.Compare)
	dropRefs(x.externalAddrs, old.eachExternal, key, strings.Compare)
	old.ns.serviceBytes -= old.listBytes()
	x.publish(key, &service{serviceSlices: old.serviceSlices, ns: old.ns})
	x.removeObject(old.ns)
	return true
}

// countService adds n to the counters that s, which may be nil, belongs to.
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

// putSlice adds s or replaces the slice of that name. It withholds s if its namespace would
// have more than [maxNamespaceSlices]. It reports whether DNS answers change.
func (x *index) putSlice(s *slice) bool {
	old := x.slices[s.name]
	ns := x.ensureNamespace(namespaceOf(s.key))
	used := ns.sliceBytes
	if old != nil {
		used -= old.cost()
	}
	if !s.withheld && used+s.cost() > maxNamespaceSlices {
		s.withhold()
	}
	if old != nil {
		if old.same(s) {
			old.version = s.version // not read by queries
			return false
		}
	} else {
		ns.objectCount++
	}
	ns.sliceBytes = used + s.cost()
	s.indexHosts()
	x.linkSlice(s, old)
	x.slices[s.name] = s
	x.endpointCount += s.len()
	if old != nil {
		x.endpointCount -= old.len()
	}
	if old != nil && old.key != s.key {
		x.replaceSlice(old.key, old, nil)
		old = nil
	}
	x.replaceSlice(s.key, old, s)
	return true
}

func (x *index) dropSlice(name string) bool {
	old := x.slices[name]
	if old == nil {
		return false
	}
	ns := x.namespaces[namespaceOf(old.key)]
	delete(x.slices, name)
	ns.sliceBytes -= old.cost()
	x.endpointCount -= old.len()
	dropRefs(x.endpoints, old.each, old.ref, (*sliceRef).compare)
	x.replaceSlice(old.key, old, nil)
	x.removeObject(ns)
	return true
}

// linkSlice enters s under its addresses, in place of old, which may be nil.
func (x *index) linkSlice(s, old *slice) {
	if old != nil && (old.key != s.key || old.size != s.size) {
		dropRefs(x.endpoints, old.each, old.ref, (*sliceRef).compare)
		old = nil
	}
	if old == nil {
		s.ref = &sliceRef{s}
		addRefs(x.endpoints, s.each, s.ref, (*sliceRef).compare)
		return
	}
	s.ref = old.ref
	s.ref.current = s
	if s.addrs == old.addrs {
		return
	}
	dropRefs(x.endpoints, old.missingIn(s), s.ref, (*sliceRef).compare)
	addRefs(x.endpoints, s.missingIn(old), s.ref, (*sliceRef).compare)
}

// replaceSlice publishes the service of key without the slice del and with add; both may be
// nil.
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
	if del != nil && del.withheld {
		s.withheld--
	}
	switch {
	case add == nil:
	case add.withheld:
		s.withheld++
	default:
		at, _ := slices.BinarySearchFunc(list, add, func(a, b *slice) int { return strings.Compare(a.name, b.name) })
		list = slices.Insert(list, at, add)
	}
	s.slices = slices.Clip(list)
	x.publish(key, &s)
}

// publish completes s and makes it the value that queries for key find.
func (x *index) publish(key string, s *service) {
	defer x.broadcast(key)
	x.bumpService(key)
	old := x.services[key]
	if old != nil {
		old.ns.countService(old, -1)
	}
	if old != nil && old.kind != orphan {
		x.serviceCount--
	}
	if s.kind != orphan {
		x.serviceCount++
	}
	if s.kind == orphan && len(s.slices) == 0 && s.withheld == 0 {
		delete(x.services, key)
		delete(x.headless, key)
		return
	}
	if s.ns == nil {
		s.ns = x.ensureNamespace(namespaceOf(key))
	}
	x.noteService(key, s)
	s.ns.countService(s, 1)
	s.complete = x.isComplete(key, s)
	s.ready = s.isReady()
	if s.kind == headless {
		s.updateHeadlessAddrs(old, x.nearestOnly)
	}
	x.services[key] = s
}

// noteService keeps the use and the list of headless services.
func (x *index) noteService(key string, s *service) {
	if s.used == nil {
		s.used = &serviceUse{key: key}
	}
	if s.kind == headless {
		x.headless[key] = s.ns
	} else {
		delete(x.headless, key)
	}
}

// isReady reports whether a slice has a ready endpoint.
func (s *serviceSlices) isReady() bool {
	return slices.ContainsFunc(s.slices, func(sl *slice) bool { return sl.addrs != "" })
}

// putPod adds p or replaces the pod of that name.
func (x *index) putPod(p *pod) bool {
	old := x.pods[p.name]
	if old != nil && old.same(p) {
		return false
	}
	x.epochs.BumpAny()
	if x.mayOwnClient(p) {
		x.clients.bump()
	}
	ns := x.ensureNamespace(p.ns)
	ns.objectCount++
	if p.onNode {
		ns.nodePods++
	}
	wait := x.addrWaits[p.name]
	x.dropPod(p.name)
	x.pods[p.name] = p
	if p.awaitsAddr() {
		x.awaitAddr(p.name, wait)
	}
	addRefs(x.podIPs, slices.Values(p.ips), p, (*pod).compare)
	return true
}

func (x *index) dropPod(name string) bool {
	old := x.pods[name]
	if old == nil {
		return false
	}
	x.epochs.BumpAny()
	if x.mayOwnClient(old) {
		x.clients.bump()
	}
	delete(x.pods, name)
	if w := x.addrWaits[name]; w != nil {
		delete(x.addrWaits, name)
		if !w.over {
			x.pendingPods--
		}
	}
	dropRefs(x.podIPs, slices.Values(old.ips), old, (*pod).compare)
	ns := x.namespaces[old.ns]
	if old.onNode {
		ns.nodePods--
	}
	x.removeObject(ns)
	return true
}

// mayOwnClient reports whether p, which comes or goes, is on this node, or claims an address that another pod has.
func (x *index) mayOwnClient(p *pod) bool {
	return p.onNode || slices.ContainsFunc(p.ips, func(ip string) bool {
		owners, ok := x.podIPs[addrKeyOf(ip)]
		return ok && owners.one != p
	})
}

func (x *index) putNamespace(key string) bool {
	ns := x.ensureNamespace(key)
	if ns.hasObject {
		return false
	}
	x.epochs.BumpAny()
	x.clients.bump()
	ns.hasObject = true
	return true // with `namespace_labels` its services appear
}

func (x *index) dropNamespace(key string) bool {
	ns := x.namespaces[key]
	if ns == nil || !ns.hasObject {
		return false
	}
	if ns.objectCount > 0 { // with `namespace_labels` its services' names disappear, too
		x.epochs.BumpAll()
	} else {
		x.epochs.BumpAny()
	}
	x.clients.bump()
	ns.hasObject = false
	x.removeIfUnused(ns)
	return true
}

// ensureNamespace returns the namespace with that label and creates it if necessary.
func (x *index) ensureNamespace(label string) *namespace {
	ns := x.namespaces[label]
	if ns == nil {
		label = strings.Clone(label) // it is part of a service's key, which may be freed first
		ns = &namespace{label: label}
		x.namespaces[label] = ns
	}
	return ns
}

func (x *index) removeObject(ns *namespace) {
	ns.objectCount--
	x.removeIfUnused(ns)
}

// exists reports whether ns or anything in it exists. It is false for nil.
func (ns *namespace) exists() bool { return ns != nil && (ns.hasObject || ns.objectCount > 0) }

// removeIfUnused removes ns if nothing needs it.
func (x *index) removeIfUnused(ns *namespace) {
	if !ns.exists() && ns.sourceCount == 0 {
		delete(x.namespaces, ns.label)
	}
}

// bumpService invalidates the copies of answers made from the service of key, and those
// that depend on the whole view. It precedes the change.
func (x *index) bumpService(key string) {
	if x.epochs != nil {
		x.epochs.Bump(x.serviceGroup([]byte(key)))
	}
}

// broadcast closes the channel of those who wait for a change of the service's endpoints.
func (x *index) broadcast(key string) {
	if c := x.endpointWaiters[key]; c != nil {
		close(c)
		delete(x.endpointWaiters, key)
	}
}

// recompute publishes the services for which isComplete has changed.
func (x *index) recompute() {
	for key, old := range x.services {
		if old.kind != orphan && x.isComplete(key, old) != old.complete {
			s := *old
			x.publish(key, &s)
		}
	}
}

// closeSource makes the index ignore src from now on.
func (x *index) closeSource(src *sliceSource) {
	x.epochs.BumpAny() // reverse names depend on what is complete
	x.raiseFloors(src)
	src.closed = true
	x.sources = slices.DeleteFunc(x.sources, func(have *sliceSource) bool { return have == src })
	if src.ns != nil {
		src.ns.complete = false
		src.ns.sourceCount--
		x.removeIfUnused(src.ns)
	}
}

// raiseFloors raises the floor of the sources that go on from src, which may have got further since.
func (x *index) raiseFloors(src *sliceSource) {
	if src.outdated || src.follower.reflector == nil {
		return
	}
	version := src.follower.reflector.Position().Version // not src.version: an event of that may not be in the index yet
	for _, other := range x.sources {
		for key := range src.names {
			if floor, ok := other.floor[key]; ok && other != src {
				other.floor[key] = max(floor, version)
			}
		}
	}
}
