package kubernetes

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resource is a kind of object that a view watches.
type resource uint8

const (
	services resource = iota
	endpointSlices
	namespaces
	pods
	serviceImports
	importSlices
	numResources
)

// plural returns the resource's name in paths and RBAC rules.
func (r resource) plural() string {
	return [...]string{"services", "endpointslices", "namespaces", "pods", "serviceimports", "endpointslices"}[r]
}

// groupResource returns the API group and the name of r.
func (r resource) groupResource() schema.GroupResource {
	group := [...]string{"", discoveryv1.GroupName, "", "", multiclusterV1alpha1.Group, discoveryv1.GroupName}[r]
	return schema.GroupResource{Group: group, Resource: r.plural()}
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
}

// BeginList implements reflector.Handler.
func (s *handler) BeginList() {
	s.seen = make(map[string]struct{})
	if s.source != nil {
		s.source.begin()
	}
}

// EndList implements reflector.Handler. It removes the objects that were not in the list, last,
// so that a name that exists before and after the list never disappears.
func (s *handler) EndList(version uint64) {
	since := version
	if since > 0 {
		since++ // objects of the list's own version were deleted, too
	}
	for _, o := range s.missingObjects() {
		s.forget(o[0], o[1], since)
	}
	s.view.pruneFaults(s)
	s.seen = nil
	s.view.noteActivity()
	if s.listed && s.view.watchesAPI() {
		s.view.gaps.relisted(s.view.now())
	}
	s.listed = true
	if s.source != nil {
		s.source.markComplete(version)
		return
	}
	if s.everyPod && !s.view.allPods.Swap(true) {
		s.view.scope.broadcast()
	}
	s.view.setListed(s.resource)
}

// Upsert implements reflector.Handler.
func (s *handler) Upsert(obj runtime.Object, live bool) {
	meta, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	ns, name := meta.GetNamespace(), meta.GetName()
	defer s.view.noteTime(s.view.now(), s.resource, ns, name)
	if s.seen != nil {
		s.seen[s.indexKey(ns, name)] = struct{}{}
	}
	var f faults
	switch o := obj.(type) {
	case *corev1.Service:
		s.putService(o, &f)
	case *discoveryv1.EndpointSlice:
		if s.resource == importSlices {
			s.view.putImportSlice(o, &f)
		} else {
			s.putSlice(o, live, &f)
		}
	case *serviceImport:
		s.view.putImport(o, &f)
	case *corev1.Pod:
		s.putPod(o, &f)
	default: // a Namespace or its metadata
		key, ok := namespaceKey(name)
		if ok {
			s.view.change(func(x *index) bool { return x.putNamespace(key) })
			s.view.annotations.put(name, meta.GetAnnotations()[ClientMetricsAnnotation])
		} else {
			f.add("name is not a DNS label")
		}
	}
	s.view.noteFaults(s.resource, ns, name, &f)
}

func (s *handler) putService(o *corev1.Service, f *faults) {
	key, rec, ok := convertService(o, s.view.external, f)
	if !ok {
		return
	}
	s.view.change(func(x *index) bool {
		x.fit(key, &rec, f)
		return x.putService(key, rec)
	})
	if rec.kind == headless {
		s.view.requestReconcile() // its namespace may be in use
	}
}

func (s *handler) putSlice(o *discoveryv1.EndpointSlice, live bool, f *faults) {
	rec := convertSlice(o, s.view.sliceConverter(), f)
	version := uint64(0) // meaningless in a manifest
	if s.source != nil {
		version = resourceVersionOf(o)
	}
	if rec == nil {
		s.remove(o.Namespace, o.Name, version) // its faults are noted later
		return
	}
	s.noteVersion(version)
	rec.class = classOfSlice(o.Labels)
	s.change(func(x *index) bool {
		if s.source != nil {
			if !s.source.outdated {
				rec.version = version
			}
			if x.isStale(rec, s.source) {
				return false
			}
		}
		return x.putSlice(rec)
	})
	rec.noteWithheld(f)
	if live {
		s.view.observeProgramming(rec.key, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
	}
}

func (s *handler) putPod(o *corev1.Pod, f *faults) {
	rec := convertPod(o, s.view.node, s.view.podSelector, f)
	if rec == nil {
		s.change(func(x *index) bool { x.dropPod(objectKey(o.Namespace, o.Name)); return false })
		s.view.nodePods.drop(objectKey(o.Namespace, o.Name))
		return
	}
	s.change(func(x *index) bool { x.putPod(rec); return false })
	if rec.awaitsAddr() {
		s.view.limitAddrWait(rec.name)
	}
	s.view.nodePods.put(o, rec)
	s.view.requestReconcile()
}

// Delete implements reflector.Handler.
func (s *handler) Delete(obj runtime.Object) {
	if o, ok := obj.(metav1.Object); ok {
		defer s.view.noteTime(s.view.now(), s.resource, o.GetNamespace(), o.GetName())
		s.noteVersion(resourceVersionOf(o))
		s.forget(o.GetNamespace(), o.GetName(), resourceVersionOf(o))
	}
}

// noteVersion records that the source has delivered something of that version.
func (s *handler) noteVersion(version uint64) {
	if s.source == nil {
		return
	}
	s.view.mu.Lock()
	s.source.reach(version)
	s.view.mu.Unlock()
}

// forget removes an object that was deleted at that version, and its faults.
func (s *handler) forget(ns, name string, version uint64) {
	s.remove(ns, name, version)
	switch s.resource {
	case pods:
		s.view.nodePods.drop(objectKey(ns, name))
	case namespaces:
		s.view.annotations.put(name, "")
	}
	s.view.noteFaults(s.resource, ns, name, new(faults))
}

// remove removes the records of an object from the index.
func (s *handler) remove(ns, name string, version uint64) {
	switch s.resource {
	case serviceImports:
		s.view.dropImport(ns, name)
		return
	case importSlices:
		s.view.dropImportSlice(ns, name)
		return
	}
	s.change(func(x *index) bool {
		switch s.resource {
		case services:
			key, ok := serviceKey(name, ns)
			return ok && x.dropService(key)
		case endpointSlices:
			if s.source != nil && x.isStaleDelete(objectKey(ns, name), version, s.source) {
				return false
			}
			return x.dropSlice(objectKey(ns, name))
		case pods:
			x.dropPod(objectKey(ns, name))
			return false // pods don't change the serial
		default:
			key, ok := namespaceKey(name)
			return ok && x.dropNamespace(key)
		}
	})
}

// change is [View.change], unless the source is closed.
func (s *handler) change(f func(*index) bool) {
	s.view.change(func(x *index) bool {
		if s.source != nil && s.source.closed {
			return false
		}
		return f(x)
	})
}

// missingObjects returns the objects, as namespace and name, that are in the index and
// covered by s, but were not in the list.
func (s *handler) missingObjects() [][2]string {
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	var list [][2]string
	switch s.resource {
	case services:
		list = s.view.index.serviceNames()
	case serviceImports:
		list = s.view.imports.serviceNames()
	case endpointSlices:
		list = s.view.index.sliceNames(s.source)
	case importSlices:
		list = s.view.imports.sliceNames(nil)
	case pods:
		list = s.view.index.podNames()
	default:
		list = s.view.index.namespaceNames()
	}
	return slices.DeleteFunc(list, func(o [2]string) bool {
		_, ok := s.seen[objectKey(o[0], o[1])]
		return ok
	})
}

// indexKey returns the key of an object as missingObjects reads it from the index, where
// names are in lower case.
func (s *handler) indexKey(ns, name string) string {
	switch s.resource {
	case endpointSlices, importSlices, pods:
		return objectKey(ns, name)
	}
	return strings.ToLower(objectKey(ns, name))
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
