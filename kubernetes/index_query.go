package kubernetes

import (
	"hash/maphash"
	"slices"
	"strings"
)

// nextOwners looks at the slices after last, nil for the beginning, until list is full. It
// returns the owners among them, the last slice it looked at, and whether there may be
// more. The view's lock is held for reading.
func (x *index) nextOwners(at addrKey, last *sliceRef, z *Zone, list []addrOwner, b *Budget) (some []addrOwner, end *sliceRef, more bool) {
	r, ok := x.endpoints[at]
	if !ok {
		return nil, last, false
	}
	some, looked := list[:0], 0
	for ref := range r.after(last, (*sliceRef).compare) {
		if more = looked == ownersPerLock || len(some) == len(list); more || !b.spend(lookupSteps) {
			break
		}
		looked, last = looked+1, ref
		s := ref.current
		svc := x.services[s.key]
		if svc.hasEndpoints() && (z == nil || z.exposesLocked(namespaceOf(s.key))) {
			some = append(some, addrOwner{s, svc})
		}
	}
	return some, last, more
}

// ownedByNodePod reports whether the address belongs to exactly one pod, that pod is on
// this node, and all slices of its namespace are in view.
func (x *index) ownedByNodePod(at addrKey) bool {
	p := x.onlyPodAt(at)
	return p != nil && p.onNode && !p.hostNetwork && x.namespaces[p.ns].complete
}

// onlyPodAt returns the pod with that address, nil if there is none or several.
func (x *index) onlyPodAt(at addrKey) *pod { return x.podIPs[at].one }

func (x *index) serviceNames(*sliceSource) (list [][2]string) {
	for key, svc := range x.services {
		if svc.kind != orphan {
			list = append(list, [2]string{namespaceOf(key)[1:], key[1 : 1+key[0]]})
		}
	}
	return list
}

func (x *index) sliceNames(src *sliceSource) (list [][2]string) {
	for key, sl := range x.slices {
		if src.covers(sl) {
			ns, name, _ := strings.Cut(key, "/")
			list = append(list, [2]string{ns, name})
		}
	}
	return list
}

func (x *index) podNames(*sliceSource) (list [][2]string) {
	for key := range x.pods {
		ns, name, _ := strings.Cut(key, "/")
		list = append(list, [2]string{ns, name})
	}
	return list
}

func (x *index) namespaceNames(*sliceSource) (list [][2]string) {
	for label, ns := range x.namespaces {
		if ns.hasObject {
			list = append(list, [2]string{"", label[1:]})
		}
	}
	return list
}

// seenByOther reports whether a source other than from has reached version and satisfies
// ok.
func (x *index) seenByOther(version uint64, from *sliceSource, ok func(*sliceSource) bool) bool {
	return slices.ContainsFunc(x.sources, func(src *sliceSource) bool { return src != from && src.version >= version && ok(src) })
}

// forgetVersions makes all versions meaningless, until a source begins a list. The view's lock
// is held for writing.
func (x *index) forgetVersions() {
	for _, sl := range x.slices {
		sl.version = 0 // not read by queries
	}
	for _, src := range x.sources {
		src.version, src.outdated = 0, true
	}
}

// isStale reports whether sl, which from delivers, is outdated because another source is
// ahead: it has delivered a later version, or it covers sl and has seen its deletion. With
// a single source nothing is stale, even if the server's versions were set back.
func (x *index) isStale(sl *slice, from *sliceSource) bool {
	old := x.slices[sl.name]
	if old == nil {
		return x.seenByOther(sl.version, from, func(src *sliceSource) bool { return src.complete && src.covers(sl) })
	}
	return old.version > sl.version && x.seenByOther(old.version, from, func(*sliceSource) bool { return true })
}

// isStaleDelete is isStale for the deletion of the slice of that name.
func (x *index) isStaleDelete(name string, version uint64, from *sliceSource) bool {
	old := x.slices[name]
	return old != nil && old.version >= version && x.seenByOther(old.version, from, func(*sliceSource) bool { return true })
}

// isComplete reports whether all slices that s's names depend on are in the index. Those of
// levelWide are not sufficient for a Service without a selector, whose slices are made by hand
// or mirrored from Endpoints and may have any labels, nor for a Service none of whose slices
// has the headless label: these need all slices of the namespace.
func (x *index) isComplete(s *service) bool {
	switch {
	case s.withheld > 0:
		return false
	case x.level == levelAll, s.ns.complete:
		return true
	}
	return x.level == levelWide && s.kind == headless && s.selects && s.hasLabelledSlice()
}

// serviceGroup is the epoch group of answers made from the service of key alone.
func (x *index) serviceGroup(key []byte) uint64 { return maphash.Bytes(x.seed, key) }
