package kubernetes

import (
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// indexed is the object's key as [View.gone] reads it back from the index, where
// the names that queries see are in lower case.
func (r resource) indexed(ns, name string) string {
	if r == endpointSlices {
		return objectKey(ns, name)
	}
	return strings.ToLower(objectKey(ns, name))
}

// errObject is an object of another type than its sink's: a bug in the caller.
var errObject = errors.New("not an object of this sink")

// resource is one of the kinds a view is made of.
type resource uint8

const (
	services resource = iota
	endpointSlices
	namespaces
	resources // how many there are
)

// plural is the resource's name in RBAC rules and in paths, group its API group.
func (r resource) plural() string { return [...]string{"services", "endpointslices", "namespaces"}[r] }
func (r resource) group() string  { return [...]string{"", "discovery.k8s.io", ""}[r] }

// sink is the end of one resource's watch: the store that a client-go Reflector
// fills. It turns each object into records, puts them into the view's index, and
// keeps nothing of the object. A Reflector calls its methods one at a time.
type sink struct {
	view     *View
	resource resource
}

var _ cache.TransformingStore = sink{}

// Add implements the Reflector's store.
func (s sink) Add(obj any) error { return s.put(obj, true) }

// Update implements the Reflector's store. What the object was before is in the
// index, so it is no different from Add.
func (s sink) Update(obj any) error { return s.put(obj, true) }

// Delete implements the Reflector's store.
func (s sink) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return errObject
	}
	s.drop(o.GetNamespace(), o.GetName())
	return nil
}

// Resync implements the Reflector's store; there is nothing to repeat.
func (s sink) Resync() error { return nil }

// Replace makes list all there is of the resource. What stays or is new is put in
// first and what is gone is taken out then: at no moment is a name that both the
// old and the new state have unknown.
func (s sink) Replace(list []any, _ string) error {
	seen := make(map[string]struct{}, len(list))
	for _, obj := range list {
		o, ok := obj.(metav1.Object)
		if !ok {
			return errObject
		}
		seen[s.resource.indexed(o.GetNamespace(), o.GetName())] = struct{}{}
		if err := s.put(obj, false); err != nil {
			return err
		}
	}
	for _, o := range s.view.gone(s.resource, seen) {
		s.drop(o[0], o[1])
	}
	s.view.keepFaults(s.resource, seen)
	s.view.setListed(s.resource)
	return nil
}

// Transformer makes the Reflector drop, as each object of a first list arrives,
// what no record is made of. It holds that list whole until it is complete, and
// the field managers are the largest part of most objects.
func (s sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(metav1.Object); ok {
			o.SetManagedFields(nil)
			o.SetAnnotations(nil)
			o.SetOwnerReferences(nil)
		}
		return obj, nil
	}
}

// put records obj. live says that it comes from a watch and not from a list.
func (s sink) put(obj any, live bool) error {
	var f faults
	switch o := obj.(type) {
	case *corev1.Service:
		key, rec, ok := fromService(o, &f)
		if ok {
			s.view.change(func(x *index) bool { return x.putService(key, rec) })
		}
		s.view.note(s.resource, o.Namespace, o.Name, f)
	case *discoveryv1.EndpointSlice:
		rec := fromSlice(o, s.view.podNames, &f)
		if rec == nil {
			s.view.change(func(x *index) bool { return x.dropSlice(objectKey(o.Namespace, o.Name)) })
		} else {
			s.view.change(func(x *index) bool { return x.putSlice(rec) })
			if live {
				s.view.programmed(rec.key, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
			}
		}
		s.view.note(s.resource, o.Namespace, o.Name, f)
	case *corev1.Namespace:
		key, ok := namespaceKey(o.Name)
		if ok {
			s.view.change(func(x *index) bool { return x.putNamespace(key) })
		} else {
			f.add("the name can't be a DNS label")
		}
		s.view.note(s.resource, "", o.Name, f)
	default:
		return errObject
	}
	return nil
}

// drop forgets the object of that name.
func (s sink) drop(ns, name string) {
	s.view.change(func(x *index) bool {
		switch s.resource {
		case services:
			key, ok := serviceKey(name, ns)
			return ok && x.dropService(key)
		case endpointSlices:
			return x.dropSlice(objectKey(ns, name))
		default:
			key, ok := namespaceKey(name)
			return ok && x.dropNamespace(key)
		}
	})
	s.view.note(s.resource, ns, name, nil)
}

// objectKey names an object within its resource. Names have no slash.
func objectKey(ns, name string) string { return ns + "/" + name }

func namespaceKey(name string) (string, bool) {
	b, ok := label(nil, name)
	return string(b), ok
}

// programmed measures the delay from a change in the cluster, as the slice
// controller noted it, to now, when queries see it.
func (v *View) programmed(key, trigger string) {
	if trigger == "" {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, trigger)
	if err != nil {
		return
	}
	s := v.service([]byte(key))
	if !s.hasEndpoints() {
		return
	}
	// The clocks of two machines may make it less than nothing.
	v.programming[s.kind-clusterIP].Observe(max(0, v.now().Sub(at)).Seconds())
}
