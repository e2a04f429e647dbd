package kubernetes

import (
	"fmt"
	"strings"
	"unique"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// nodeType is what a name is in the DNS tree of a zone.
type nodeType uint8

const (
	notFound         nodeType = iota
	incomplete                // data it depends on is not in view
	emptyNonTerminal          // exists because of names below it (RFC 8020)
	zoneApex                  // the zone
	versionName               // dns-version
	nameserverName            // ns.dns
	serviceName               // a service
	portName                  // _port._proto of a service
	endpointName              // an endpoint of a service
	zonalName                 // the endpoints of a headless service in a topology zone
	podName                   // a pod's address
	reverseName               // a reverse name
	externalService           // an externally reachable service
)

// maxDepth is the largest number of labels of a name in the zone: _port._proto.svc.ns.svc.
// Only zonal names have more.
const maxDepth = 5

// lookup finds name, which is in o. The result is meaningless once b is exhausted.
func (z *Zone) lookup(name []byte, o *origin, b *Budget) match {
	rel := name[:len(name)-len(o.name)]
	switch {
	case len(rel) == 0:
		return match{node: zoneApex}
	case o.reverse:
		return z.lookupReverse(name, rel, b)
	}
	var at [maxDepth]int // offsets of the last labels
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		if n == maxDepth {
			if !o.zonal {
				return match{}
			}
			copy(at[:], at[1:])
			n--
		}
		at[n] = off
		n++
	}
	switch last := rel[at[n-1]:]; string(last) {
	case "\x03svc":
		if o.zonal {
			return z.lookupServiceOrZonal(rel, at[:n], o, b)
		}
		return z.lookupService(rel, at[:n], o, b)
	case "\x03pod":
		return z.lookupPod(rel, at[:n], b)
	default:
		return lookupNameserver(rel)
	}
}

// lookupNameserver finds names that don't belong to objects of the cluster.
func lookupNameserver(rel []byte) match {
	switch string(rel) {
	case "\x0bdns-version":
		return match{node: versionName}
	case "\x03dns":
		return match{node: emptyNonTerminal}
	case "\x02ns\x03dns":
		return match{node: nameserverName}
	}
	return match{}
}

// exposes reports whether names in the namespace (a label in wire form) are visible,
// whether it exists or not.
func (z *Zone) exposes(ns []byte) bool {
	if z.needsNamespaceObject && !z.view.hasNamespaceObject(ns) {
		return false
	}
	return z.selectsNamespace(ns)
}

// exposesLocked is exposes for callers that hold the view's lock.
func (z *Zone) exposesLocked(ns string) bool {
	if z.needsNamespaceObject {
		if at := z.view.index.namespaces[ns]; at == nil || !at.hasObject {
			return false
		}
	}
	return z.selectsNamespace([]byte(ns))
}

// selectsNamespace reports whether `namespaces` lists the namespace or is not set.
func (z *Zone) selectsNamespace(ns []byte) bool {
	if z.namespaces == nil {
		return true
	}
	_, ok := z.namespaces[string(ns)]
	return ok
}

// lookupService finds a name below svc: a Service's or, in a multicluster zone, a
// ServiceImport's. at holds the offsets of its labels.
func (z *Zone) lookupService(rel []byte, at []int, o *origin, b *Budget) match {
	n := len(at)
	if n == 1 {
		return match{node: emptyNonTerminal}
	}
	ns := rel[at[n-2]:at[n-1]]
	if !z.exposes(ns) {
		return match{}
	}
	if n == 2 {
		return emptyIf(o.hasNamespace(z.view, ns))
	}
	m := match{node: serviceName, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, o.imports)
	switch {
	case m.svc == nil:
		return match{}
	case z.needsSlices(m.svc, n, rel) && !z.view.requireSlices(m.svc, b):
		return match{node: incomplete, svc: m.svc}
	case !z.hasName(m.svc):
		return match{}
	case o.imports:
		return m.matchBelowImport(rel, at, b)
	}
	return m.matchBelowService(rel, at, b)
}

// needsSlices reports whether the answer for a name of n labels at or below s depends on
// its slices. Below a service with a cluster IP only endpoints' names do, which don't begin
// with an underscore.
func (z *Zone) needsSlices(s *service, n int, rel []byte) bool {
	switch s.kind {
	case headless:
		return true
	case clusterIP:
		return z.ignoreEmpty || n == 4 && rel[1] != '_'
	}
	return false
}

// hasName reports whether the service has a name. A headless one without ready endpoints
// has none, nor has an ExternalName that is no CNAME target, nor, with `ignore
// empty_service`, one without endpoints.
func (z *Zone) hasName(s *service) bool {
	switch s.kind {
	case clusterIP:
		return !z.ignoreEmpty || s.ready
	case headless:
		return s.ready
	case externalName:
		return s.target != ""
	}
	return false
}

// lookupPod finds a name below pod; at holds the offsets of its labels.
func (z *Zone) lookupPod(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if n == 1 {
		return match{node: emptyNonTerminal}
	}
	if n > 3 {
		return match{}
	}
	ns := rel[at[n-2]:at[n-1]]
	if z.pods == config.PodsDisabled || !z.exposes(ns) || !z.view.hasNamespace(ns) {
		return match{}
	}
	if n == 2 {
		return match{node: emptyNonTerminal}
	}
	return z.lookupPodAddr(rel[1:at[1]], ns, b)
}

// lookupPodAddr finds the name of a pod's address in the namespace ns.
func (z *Zone) lookupPodAddr(label, ns []byte, b *Budget) match {
	addr, ok := parseDashed(label)
	switch {
	case !ok:
		return match{}
	case z.pods == config.PodsInsecure || z.view.hasPod(addr, ns, b):
		return match{node: podName, addr: addr}
	case z.view.allPods.Load():
		return match{}
	}
	return match{node: incomplete, pod: true}
}

// followAliases returns the node that the aliases from m lead to; an alias if they leave o
// or don't end.
func (z *Zone) followAliases(m match, o *origin, b *Budget) match {
	for range maxCNAMEs {
		if !m.isAlias() || !m.svc.target.Under(o.name) {
			break
		}
		m = z.lookup([]byte(m.svc.target), o, b)
	}
	return m
}

// lookupServiceOrZonal is lookupService for zones with zonal names. at holds the offsets of
// the last [maxDepth] labels; it begins above 0 if there are more.
func (z *Zone) lookupServiceOrZonal(rel []byte, at []int, o *origin, b *Budget) match {
	if n := len(at); n > 3 && string(rel[at[n-4]:at[n-3]]) == zoneLabel {
		return z.lookupZonal(rel, at, b)
	}
	if at[0] > 0 {
		return match{}
	}
	return z.lookupService(rel, at, o, b)
}

// lookupZonal finds a name at or below a service's _zone.
func (z *Zone) lookupZonal(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if !z.exposes(rel[at[n-2]:at[n-1]]) {
		return match{}
	}
	m := match{node: zonalName, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, false)
	if m.svc == nil || m.svc.kind != headless {
		return match{} // a cluster IP is in no zone
	}
	if n == 4 {
		return match{node: emptyNonTerminal}
	}
	return m.matchDirective(z.view, rel[at[0]:at[1]], rel[:at[0]], b)
}

// lookupReverse finds a name in a reverse zone; rel is the part in front of the zone.
func (z *Zone) lookupReverse(name, rel []byte, b *Budget) match {
	a, ok := parseReverse(name)
	if !ok {
		return lookupNameserver(rel)
	}
	if z.primary == nil {
		return match{}
	}
	some, known := z.reverseExists(&a, b)
	switch {
	case !known:
		return match{node: incomplete, addr: a}
	case !some:
		return match{}
	}
	return match{node: reverseName, addr: a}
}

// reverseExists reports whether the address has a name: it is a cluster IP or an endpoint.
// known is false if slices that are not in view might contain it.
func (z *Zone) reverseExists(a *packedAddr, b *Budget) (some, known bool) {
	at := addrKeyOf(string(a.bytes[:a.size]))
	if z.clusterIPOwner(at, b) != "" {
		return true, true
	}
	known = true
	var last *sliceRef
	for more := true; more && !some; {
		some, last, more = z.nextReverseOwner(at, last, b, &known)
	}
	if b == nil || !b.dry {
		z.view.requireReverse(at)
	}
	return some, known
}

// nextReverseOwner looks at the slices after last that contain the address, up to the first
// that gives it a name.
func (z *Zone) nextReverseOwner(at addrKey, last *sliceRef, b *Budget, known *bool) (some bool, end *sliceRef, more bool) {
	var list [1]addrOwner
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	x := &z.view.index
	found, end, more := x.nextOwners(at, last, z, list[:], b)
	some = len(found) > 0
	*known = *known && (x.level == levelAll || x.level == levelWide && z.view.scope.cluster) || some && x.ownedByNodePod(at)
	return some, end, more
}

// clusterIPOwner returns the key of the service with that cluster IP, "" if z exposes none.
// If two Services have it for a moment, the first in order wins, so that the answer doesn't
// depend on the order of events.
func (z *Zone) clusterIPOwner(at addrKey, b *Budget) string {
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	r, ok := z.view.index.clusterIPs[at]
	if !ok {
		return ""
	}
	for key := range r.each {
		if !b.spend(1) || z.exposesLocked(namespaceOf(key)) {
			return key
		}
	}
	return ""
}

// nextExternalServices looks at the keys after last until list is full. It returns those
// that the zone exposes, the last key it looked at, and whether there may be more.
func (z *Zone) nextExternalServices(at addrKey, last string, list []string, b *Budget) (some []string, end string, more bool) {
	z.view.mu.RLock()
	defer z.view.mu.RUnlock()
	r, ok := z.view.index.externalAddrs[at]
	if !ok {
		return nil, last, false
	}
	some, looked := list[:0], 0
	for key := range r.after(last, strings.Compare) {
		if more = looked == len(list); more || !b.spend(lookupSteps) {
			break
		}
		looked, last = looked+1, key
		if z.exposesLocked(namespaceOf(key)) {
			some = append(some, key)
		}
	}
	return some, last, more
}

// Zonal names select a headless service's endpoints by topology zone:
//
//	<zone>.pin._zone.<service>.<namespace>.svc.<cluster>     the endpoints in the zone
//	<zone>.prefer._zone.<service>.<namespace>.svc.<cluster>  these, or all if there are none
//
// A zone is as many labels as its name has parts between dots, compared without regard to
// case. Every zone exists below every headless service, with or without endpoints: a name
// error would be cached for all types, also for a zone that is only drained. So the names
// above zones exist as well (RFC 8020), as soon as the Service is in view.
const (
	zoneLabel   = "\x05_zone"
	pinLabel    = "\x03pin"
	preferLabel = "\x06prefer"
)

// noZone is a zone without endpoints.
var noZone = unique.Make("")

// WhyAbsent says why name, in lower case and wire form, does not exist in z, as far as a namespace or a Service is the
// reason, else "". The caller knows that the name does not exist. It is no use of the view. It is for explanations,
// and allocates.
func (z *Zone) WhyAbsent(name []byte) string {
	o := z.origin(name)
	if o == nil || o.lacksServices() {
		return ""
	}
	labels := labelsOf(name[:len(name)-len(o.name)])
	n := len(labels)
	if n < 2 || string(labels[n-1]) != "\x03svc" {
		return ""
	}
	ns := labels[n-2]
	switch {
	case !z.selectsNamespace(ns):
		return fmt.Sprintf("the kubernetes directive does not list the namespace %s", ns[1:])
	case !z.exposes(ns):
		return fmt.Sprintf("there is no namespace %s with the labels of the kubernetes directive", ns[1:])
	case !z.view.hasNamespace(ns):
		return fmt.Sprintf("there is no namespace %s, or nothing in it", ns[1:])
	case n < 3:
		return ""
	}
	key := string(labels[n-3]) + string(ns)
	return z.whyUnnamed(z.view.service([]byte(key), false), labels[n-3], ns, n > 3)
}

// whyUnnamed says why the Service s, nil for none, has no name, or with below no such name below its own.
func (z *Zone) whyUnnamed(s *service, name, ns []byte, below bool) string {
	switch {
	case s == nil || s.kind == orphan:
		return fmt.Sprintf("there is no Service %s in the namespace %s", name[1:], ns[1:])
	case s.kind == headless && !s.ready:
		return fmt.Sprintf("the headless Service %s in the namespace %s has no ready endpoints", name[1:], ns[1:])
	case s.kind == externalName && s.target == "":
		return fmt.Sprintf("the external name of the Service %s in the namespace %s is not a name", name[1:], ns[1:])
	case !z.hasName(s):
		return fmt.Sprintf("the Service %s in the namespace %s has no ready endpoints", name[1:], ns[1:])
	case below:
		return fmt.Sprintf("the Service %s in the namespace %s has no such endpoint or port", name[1:], ns[1:])
	}
	return ""
}

// labelsOf returns the labels of the first part of a name, each in wire form.
func labelsOf(part []byte) (labels [][]byte) {
	for len(part) > 0 && part[0] != 0 && len(labels) < wire.MaxName {
		end := 1 + int(part[0])
		labels = append(labels, part[:end])
		part = part[end:]
	}
	return labels
}

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
