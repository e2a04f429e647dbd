package kubernetes

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

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
func (h *handler) BeginList() {
	h.seen = make(map[string]struct{})
	if h.source != nil {
		h.source.begin()
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
	var f faults
	kinds[h.resource].put(h, obj, live, &f)
	h.view.noteFaults(h.resource, ns, name, &f)
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
