package kubernetes

// FromSearchPath reports whether name, which does not exist, can only come from a client's
// search path: if it is below one of z's zones, and nothing that is in the cluster now could
// have records at that name. Such a name's parent is the zone itself, svc or pod below it, or
// a name that does not exist either:
//
//	www.example.com.default.svc.cluster.local  no Service com in default
//	www.example.com.svc.cluster.local          no Service example in com
//	www.example.com.cluster.local              neither svc nor pod
//
// A missing Service in a namespace that exists, a missing endpoint or port of a Service, and a
// missing pod are not: an application may have meant them. It is also false while the view is
// not synced. name is in wire form and lower case. It is safe for concurrent use and does not
// allocate.
func (z *Zone) FromSearchPath(name []byte) bool {
	o := z.origin(name)
	if o == nil || o.reverse || !z.view.syncedFor(o) {
		return false
	}
	rel := name[:len(name)-len(o.name)]
	var at [maxDepth]int // offsets of the last labels
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		copy(at[:], at[1:])
		at[maxDepth-1] = off
		n++
	}
	if n < 3 {
		return n > 0
	}
	switch string(rel[at[maxDepth-1]:]) {
	case "\x03svc":
		return !z.hasParent(rel, at, n, o)
	case "\x03pod":
		return n > 3 || !z.view.hasNamespace(rel[at[maxDepth-2]:at[maxDepth-1]])
	}
	return true
}

// hasParent reports whether the parent of a name of n labels below svc, three or more,
// exists: a namespace, a Service, or one of its protocols or topology zones. at holds the
// offsets of the last labels.
func (z *Zone) hasParent(rel []byte, at [maxDepth]int, n int, o *origin) bool {
	const protocol, service, namespace, svc = maxDepth - 4, maxDepth - 3, maxDepth - 2, maxDepth - 1
	switch {
	case n == 3:
		return o.hasNamespace(z.view, rel[at[namespace]:at[svc]])
	case n > 4 && o.zonal && string(rel[at[protocol]:at[service]]) == zoneLabel:
	case n > maxDepth, n == maxDepth && (rel[1] != '_' || rel[at[protocol]+1] != '_'):
		return false
	}
	s := z.view.service(rel[at[service]:at[svc]], o.imports)
	return s != nil && s.kind != orphan
}
