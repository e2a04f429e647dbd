package kubernetes

import (
	"maps"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

const (
	// conversionVersion is the version of what handlers make of objects, and of what a saved view holds of that. Increase
	// it with every change: an object that does not change is not sent again, and its record would stay as it is.
	conversionVersion = 2
	// maxResumeAge is the age up to which a saved view is resumed. The API server forgets older versions, and in a longer
	// time its data may have been set back and have reached the same versions again.
	maxResumeAge = 15 * time.Minute
)

// sourceKey identifies what a reflector follows: a resource, and the key of the sliceSource.
type sourceKey struct {
	Resource resource
	Scope    string
}

// follower is the reflector of a source; nil is none. zone is the zoneOf its records.
type follower struct {
	reflector interface{ Position() reflector.Position }
	zone      string
}

// zoneOf returns the topology zone that the records of r are made for: those of slices have distances. The view's lock
// is held.
func (v *View) zoneOf(r resource) string {
	if r == endpointSlices || r == importSlices {
		return v.converter.zone
	}
	return ""
}

// positions returns how far the view is, by source, without those that a list has to begin. The view's lock is held.
func (v *View) positions() map[sourceKey]reflector.Position {
	all := make(map[sourceKey]reflector.Position)
	add := func(r resource, scope string, f *follower) {
		if f.reflector == nil || f.zone != v.zoneOf(r) || r == namespaces && v.annotations == nil {
			return
		}
		p := f.reflector.Position()
		p.Newest = slices.DeleteFunc(p.Newest, func(o reflector.ObjectVersion) bool { return !isSavedVersion(o) })
		if p.Version > 0 {
			all[sourceKey{r, scope}] = p
		}
	}
	for r := range v.followers {
		add(resource(r), "", &v.followers[r])
	}
	for _, src := range v.index.sources {
		if src.complete && !src.outdated {
			add(endpointSlices, src.key, &src.follower)
		}
	}
	return all
}

// unfollow makes r have no position.
func (v *View) unfollow(r resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.followers[r] = follower{}
}

// resumable reports whether a view can go on from a file with the header h.
func (v *View) resumable(h *savedHead) bool {
	age := v.now().Sub(h.At)
	return h.Conversion == conversionVersion && age >= 0 && age <= maxResumeAge
}

// hasPods reports whether a file with the header h has all that v needs to know of the node's pods.
func (v *View) hasPods(h *savedHead) bool {
	if v.policies != nil && !h.Policies {
		return false
	}
	return v.nodePods == nil || h.Observed && slices.Equal(h.PodLabels, v.nodePods.labels)
}

// dropSaved drops the positions of a resource. Without that of slices, their versions mean nothing.
func (v *View) dropSaved(r resource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.saved, func(key sourceKey, _ reflector.Position) bool { return key.Resource == r })
	if r == endpointSlices {
		v.index.forgetVersions()
	}
}
