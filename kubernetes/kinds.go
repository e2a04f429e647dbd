package kubernetes

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// resource is a kind of object that a view watches: the index of its [kind] in the table.
type resource uint8

const (
	services resource = iota
	endpointSlices
	namespaces
	pods
	serviceImports
	importSlices
	dnsPolicies
	numResources
)

// kind is what a view does with the objects of one resource.
type kind struct {
	version schema.GroupVersion
	plural  string // in paths and RBAC rules
	// object returns a new object. Of those with metadataOnly, the API server sends only the metadata.
	object       func() runtime.Object
	metadataOnly bool
	// unstreamed says that all objects are listed by a request of their own: in a large cluster the reply has a seventh of the bytes of a
	// streamed list, being compressed as a whole.
	unstreamed bool
	// inManifest is the kind of the objects in manifests; "" is none.
	inManifest string
	// put adds or replaces an object, which the handler has just received if live is set.
	put func(h *handler, o runtime.Object, live bool, f *faults)
	// drop removes an object that was deleted at that version.
	drop func(h *handler, ns, name string, version uint64)
	// names returns the namespace and name of each object in the index that src covers. anyCase says that they are in lower case,
	// whatever the object's are.
	names   func(x *index, src *sliceSource) [][2]string
	anyCase bool
}

// kinds is the table of what a view watches.
var kinds = [numResources]kind{
	services: {
		version: corev1.SchemeGroupVersion, plural: "services", inManifest: "Service", object: func() runtime.Object { return new(corev1.Service) }, unstreamed: true,
		put: (*handler).putService, drop: (*handler).dropService, names: (*index).serviceNames, anyCase: true,
	},
	endpointSlices: {
		version: discoveryv1.SchemeGroupVersion, plural: "endpointslices", inManifest: "EndpointSlice", object: func() runtime.Object { return new(discoveryv1.EndpointSlice) },
		put: (*handler).putSlice, drop: (*handler).dropSlice, names: (*index).sliceNames,
	},
	namespaces: {
		version: corev1.SchemeGroupVersion, plural: "namespaces", inManifest: "Namespace", object: func() runtime.Object { return new(corev1.Namespace) }, metadataOnly: true,
		put: (*handler).putNamespace, drop: (*handler).dropNamespace, names: (*index).namespaceNames, anyCase: true,
	},
	pods: {
		version: corev1.SchemeGroupVersion, plural: "pods", inManifest: "Pod", object: func() runtime.Object { return new(corev1.Pod) },
		put: (*handler).putPod, drop: (*handler).dropPod, names: (*index).podNames,
	},
	serviceImports: {
		version: multiclusterV1alpha1, plural: "serviceimports", object: func() runtime.Object { return new(serviceImport) },
		put: (*handler).putImport, drop: (*handler).dropService, names: (*index).serviceNames, anyCase: true,
	},
	importSlices: {
		version: discoveryv1.SchemeGroupVersion, plural: "endpointslices", object: func() runtime.Object { return new(discoveryv1.EndpointSlice) },
		put: (*handler).putImportSlice, drop: (*handler).dropSlice, names: (*index).sliceNames,
	},
	dnsPolicies: { // in no index, see policySet
		version: policiesV1alpha1, plural: "dnspolicies", inManifest: "DNSPolicy", object: func() runtime.Object { return new(dnsPolicy) }, unstreamed: true,
		put: (*handler).putPolicy, drop: (*handler).dropPolicy,
	},
}

func (r resource) plural() string { return kinds[r].plural }

// forImports reports whether the records are in the index of ServiceImports.
func (r resource) forImports() bool { return r == serviceImports || r == importSlices }

func (h *handler) putService(o runtime.Object, _ bool, f *faults) {
	key, rec, ok := convertService(o.(*corev1.Service), h.view.external, f)
	if !ok {
		return
	}
	h.change(func(x *index) bool {
		x.fit(key, &rec, f)
		return x.putService(key, rec)
	})
	if rec.kind == headless && h.listed { // the end of the first list requests it once
		h.view.requestReconcile() // it may be in use
	}
}

func (h *handler) putImport(o runtime.Object, _ bool, f *faults) {
	key, rec, ok := convertImport(o.(*serviceImport), f)
	if ok {
		h.change(func(x *index) bool {
			x.fit(key, &rec, f)
			return x.putService(key, rec)
		})
	}
}

// dropService removes a Service or a ServiceImport.
func (h *handler) dropService(ns, name string, _ uint64) {
	key, ok := serviceKey(name, ns)
	h.change(func(x *index) bool { return ok && x.dropService(key) })
}

func (h *handler) putSlice(obj runtime.Object, live bool, f *faults) {
	o := obj.(*discoveryv1.EndpointSlice)
	rec := convertSlice(o, h.view.sliceConverter(), f)
	version := uint64(0) // meaningless in a manifest
	if h.source != nil {
		version = resourceVersionOf(o)
	}
	if rec == nil {
		h.dropSlice(o.Namespace, o.Name, version) // its faults are noted later
		return
	}
	if h.source != nil && h.source.names != nil && !h.source.covers(rec) {
		h.noteVersion(version)
		*f = faults{}
		h.dropSlice(o.Namespace, o.Name, version)
		return
	}
	rec.class = classOfSlice(o.Labels)
	h.change(func(x *index) bool {
		if h.source != nil {
			if !h.source.outdated {
				rec.version = version
			}
			// Under one lock with isStale: otherwise two sources that deliver the slice at once each take it for deleted by the other.
			h.source.reach(version)
			if x.isStale(rec, h.source) {
				return false
			}
		}
		return x.putSlice(rec)
	})
	rec.noteWithheld(f)
	if live {
		h.view.observeProgramming(rec.key, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
	}
}

// putImportSlice removes a slice that belongs to no import.
func (h *handler) putImportSlice(obj runtime.Object, _ bool, f *faults) {
	o := obj.(*discoveryv1.EndpointSlice)
	rec := convertImportSlice(o, h.view.sliceConverter(), f)
	if rec == nil {
		h.dropSlice(o.Namespace, o.Name, 0)
		return
	}
	h.change(func(x *index) bool { return x.putSlice(rec) })
	rec.noteWithheld(f)
}

// dropSlice removes a slice of a Service or a ServiceImport, if it is one that h's source covers.
func (h *handler) dropSlice(ns, name string, version uint64) {
	key := objectKey(ns, name)
	h.change(func(x *index) bool {
		return (h.source == nil || !x.isStaleDelete(key, version, h.source)) && x.dropSlice(key)
	})
}

// putNamespace adds a Namespace, of which perhaps only the metadata is there.
func (h *handler) putNamespace(obj runtime.Object, _ bool, f *faults) {
	o := obj.(metav1.Object)
	key, ok := namespaceKey(o.GetName())
	if !ok {
		f.add("name is not a DNS label")
		return
	}
	h.change(func(x *index) bool { return x.putNamespace(key) })
	h.view.annotations.put(o.GetName(), o.GetAnnotations()[ClientMetricsAnnotation])
}

func (h *handler) dropNamespace(_, name string, _ uint64) {
	key, ok := namespaceKey(name)
	h.change(func(x *index) bool { return ok && x.dropNamespace(key) })
	h.view.annotations.put(name, "")
}

// putPod adds a pod, or removes one that has ended. Pods don't change the serial.
func (h *handler) putPod(obj runtime.Object, _ bool, f *faults) {
	o := obj.(*corev1.Pod)
	rec := convertPod(o, h.view.node, h.view.podSelector, f)
	if rec == nil {
		h.dropPod(o.Namespace, o.Name, 0)
		return
	}
	h.change(func(x *index) bool { x.putPod(rec); return false })
	if rec.awaitsAddr() {
		h.view.limitAddrWait(rec.name)
	}
	h.view.nodePods.put(o, rec)
	h.view.policies.putPod(o, rec)
	h.view.requestReconcile()
}

func (h *handler) dropPod(ns, name string, _ uint64) {
	h.change(func(x *index) bool { x.dropPod(objectKey(ns, name)); return false })
	h.view.nodePods.drop(objectKey(ns, name))
	h.view.policies.dropPod(ns, objectKey(ns, name))
}

// change is [View.change] in the index of the handler's kind, unless the source is closed.
func (h *handler) change(f func(*index) bool) {
	x, serial := &h.view.index, &h.view.serial
	if h.resource.forImports() {
		x, serial = &h.view.imports, &h.view.importSerial
	}
	h.view.noteActivityAt(h.view.changeIn(x, serial, func(x *index) bool { return (h.source == nil || !h.source.closed) && f(x) }))
}

// missingObjects returns the objects, as namespace and name, that are in the index and
// covered by h, but were not in the list.
func (h *handler) missingObjects() (list [][2]string) {
	if h.resource == dnsPolicies {
		return h.missingPolicies()
	}
	h.view.mu.RLock()
	defer h.view.mu.RUnlock()
	for _, o := range kinds[h.resource].names(h.view.indexFor(h.resource.forImports()), h.source) {
		if _, ok := h.seen[objectKey(o[0], o[1])]; !ok {
			list = append(list, o)
		}
	}
	return list
}

// indexKey returns the key of an object as missingObjects reads it from the index.
func (h *handler) indexKey(ns, name string) string {
	key := objectKey(ns, name)
	if kinds[h.resource].anyCase {
		return strings.ToLower(key)
	}
	return key
}

// handler receives the objects of one resource, converts them to records and puts these
// into the view's index. It keeps nothing of the objects. Its methods are called one at a
// time.
type handler struct {
	view     *View
	resource resource
	// source delivers the slices; nil for other resources and for manifests.
	source *sliceSource
	// everyPod says that it receives the pods of all nodes.
	everyPod bool
	// seen holds the keys of the objects of the current list; nil between lists.
	seen map[string]struct{}
	// listed says that a list was complete.
	listed bool
	// faults are those of the object that Upsert has received; here they take no allocation for each object.
	faults faults
}

// BeginList implements reflector.Handler.
func (h *handler) BeginList() {
	h.seen = make(map[string]struct{})
	if h.source != nil {
		h.view.mu.Lock()
		h.source.outdated, h.source.floor = false, nil
		h.view.mu.Unlock()
	}
}

// EndList implements reflector.Handler. It removes the objects that were not in the list, last,
// so that a name that exists before and after the list never disappears.
func (h *handler) EndList(version uint64) {
	since := version
	if since > 0 {
		since++ // objects of the list's own version were deleted, too
	}
	for _, o := range h.missingObjects() {
		h.forget(o[0], o[1], since)
	}
	h.view.pruneFaults(h)
	h.seen = nil
	h.view.noteActivity()
	if h.listed && h.view.watchesAPI() {
		h.view.gaps.relisted(h.view.now())
	}
	h.listed = true
	if h.source != nil {
		h.source.markComplete(version)
		return
	}
	if h.everyPod && !h.view.allPods.Swap(true) {
		h.view.scope.broadcast()
	}
	h.view.setListed(h.resource)
	h.view.policies.setListed(h.resource)
}

// Upsert implements reflector.Handler.
func (h *handler) Upsert(obj runtime.Object, live bool) {
	meta, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	ns, name := meta.GetNamespace(), meta.GetName()
	defer h.view.noteTime(h.view.now(), h.resource, ns, name)
	if h.seen != nil {
		h.seen[h.indexKey(ns, name)] = struct{}{}
	}
	h.faults = faults{}
	kinds[h.resource].put(h, obj, live, &h.faults)
	h.view.noteFaults(h.resource, ns, name, &h.faults)
}

// Delete implements reflector.Handler.
func (h *handler) Delete(obj runtime.Object) {
	if o, ok := obj.(metav1.Object); ok {
		defer h.view.noteTime(h.view.now(), h.resource, o.GetNamespace(), o.GetName())
		h.noteVersion(resourceVersionOf(o))
		h.forget(o.GetNamespace(), o.GetName(), resourceVersionOf(o))
	}
}

// noteVersion records that the source has delivered something of that version.
func (h *handler) noteVersion(version uint64) {
	if h.source == nil {
		return
	}
	h.view.mu.Lock()
	h.source.reach(version)
	h.view.mu.Unlock()
}

// forget removes an object that was deleted at that version, and its faults.
func (h *handler) forget(ns, name string, version uint64) {
	kinds[h.resource].drop(h, ns, name, version)
	h.view.noteFaults(h.resource, ns, name, new(faults))
}

// follow makes f feed h. If the saved view has a position for it, f goes on from there, once.
func (h *handler) follow(f *reflector.Reflector) {
	v := h.view
	v.mu.Lock()
	at, saved := &v.followers[h.resource], v.saved[sourceKey{Resource: h.resource}]
	zone := v.savedZone
	delete(v.saved, sourceKey{Resource: h.resource})
	if h.source != nil {
		at, zone = &h.source.follower, h.source.savedZone
		if !h.source.outdated {
			saved = h.source.saved
		}
		h.source.saved = reflector.Position{}
	}
	*at = follower{f, v.zoneOf(h.resource)}
	if saved.Version > 0 && (at.zone == "" || at.zone == zone) {
		f.Resume, h.listed = saved, true
	}
	v.mu.Unlock()
	if h.listed {
		h.resume()
	}
}

// resume does what a list would have done besides filling the index.
func (h *handler) resume() {
	switch h.resource {
	case namespaces:
		for ns, value := range h.view.savedAnnotations {
			h.view.annotations.put(ns, value)
		}
	case pods:
		h.resumePods()
	}
}

// objectKey identifies an object of a resource. Names contain no slash.
func objectKey(ns, name string) string { return ns + "/" + name }

func namespaceKey(name string) (string, bool) {
	b, ok := appendLabel(nil, name)
	return string(b), ok
}

// resourceVersionOf returns o's resourceVersion, which grows with every change in the
// cluster; 0 if it is missing or not a number.
func resourceVersionOf(o metav1.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// resumePods makes the pods of a saved view those of a list of the node's pods.
func (h *handler) resumePods() {
	v := h.view
	v.mu.RLock()
	all := slices.Collect(maps.Values(v.index.pods))
	v.mu.RUnlock()
	for _, p := range all {
		if !p.onNode {
			ns, name, _ := strings.Cut(p.name, "/")
			h.forget(ns, name, 0)
			continue
		}
		if p.awaitsAddr() {
			v.limitAddrWait(p.name)
		}
		v.nodePods.restore(p, v.savedPods[p.name])
	}
	v.savedPods = nil
	v.policies.setListed(pods)
}
