package kubernetes

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/config"
)

// nodeType is what a name is in the tree of a zone.
type nodeType uint8

const (
	notFound         nodeType = iota
	incomplete                // what it hangs on is not in view
	emptyNonTerminal          // exists for the names below it (RFC 8020)
	zoneApex                  // the zone
	versionName               // dns-version
	nameserverName            // ns.dns
	serviceName               // a service
	portName                  // _port._proto of a service
	endpointName              // an endpoint of a service
	zonalName                 // the endpoints of a headless service in a topology zone
	podName                   // a pod's address
	reverseName               // a reverse name
	externalService           // a service as it is reached from outside
)

// match is a node that was found, with what the answer is made from.
type match struct {
	node nodeType
	svc  *service
	key  []byte // of svc; a part of the qname
	port portMatch
	host hostnameMatch
	addr packedAddr // podAddr, reverseIP
	pod  bool       // what is elsewhere is a pod
	zone zoneName   // zonal; the zero value is all
}

// maxDepth is the most labels a name in the zone has: _port._proto.svc.ns.svc. Only
// names by topology zone have more, and of those that many say what they are.
const maxDepth = 5

// lookup looks name, which is in o, up. Once b is spent, what it gives means nothing.
func (z *Zone) lookup(name []byte, o *origin, b *Budget) match {
	rel := name[:len(name)-len(o.name)]
	switch {
	case len(rel) == 0:
		return match{node: zoneApex}
	case o.reverse:
		return z.lookupReverse(name, rel, b)
	}
	var at [maxDepth]int // where the last labels start
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

// lookupNameserver knows the names that are not of the cluster's objects.
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

// exposes reports whether names in the namespace (a label in wire form) may be
// seen, existing or not.
func (z *Zone) exposes(ns []byte) bool {
	if z.needsNamespaceObject && !z.view.hasNamespaceObject(ns) {
		return false
	}
	return z.selectsNamespace(ns)
}

// exposesLocked is exposes for who holds the view's lock.
func (z *Zone) exposesLocked(ns string) bool {
	if z.needsNamespaceObject {
		if at := z.view.index.namespaces[ns]; at == nil || !at.hasObject {
			return false
		}
	}
	return z.selectsNamespace([]byte(ns))
}

// selectsNamespace reports whether the namespace is one of those that are listed by name, if
// any are.
func (z *Zone) selectsNamespace(ns []byte) bool {
	if z.namespaces == nil {
		return true
	}
	_, ok := z.namespaces[string(ns)]
	return ok
}

// lookupService looks up a name below svc, that of a Service or, where o has those, of a
// ServiceImport; at holds where its labels start.
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
	case z.needsSlices(m.svc, n, rel) && !z.view.requireSlices(m.svc):
		return match{node: incomplete, svc: m.svc}
	case !z.hasName(m.svc):
		return match{}
	case o.imports:
		return m.matchBelowImport(rel, at, b)
	}
	return m.matchBelowService(rel, at, b)
}

// hasNamespace reports whether names in that namespace (a label in wire form) may be
// in o.
func (o *origin) hasNamespace(v *View, ns []byte) bool {
	return v.hasNamespace(ns) || o.imports && v.importsInto(ns)
}

// matchBelowService is the node of the labels, if any, in front of a service.
func (m match) matchBelowService(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchEndpoint(rel[1:at[1]], b)
	case 5:
		return m.matchPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
	}
	return m
}

// needsSlices reports whether what s answers for a name of n labels hangs on its
// slices. Below a service with a cluster IP that is only so for what may be an
// endpoint's name, and those don't start with an underscore.
func (z *Zone) needsSlices(s *service, n int, rel []byte) bool {
	switch s.kind {
	case headless:
		return true
	case clusterIP:
		return z.ignoreEmpty || n == 4 && rel[1] != '_'
	}
	return false
}

func emptyIf(ok bool) match {
	if ok {
		return match{node: emptyNonTerminal}
	}
	return match{}
}

// hasName reports whether a service has a name: a headless one without ready
// endpoints has none, nor has one whose target no CNAME can hold, and with `ignore
// empty_service` one that nothing stands behind.
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

// matchEndpoint is the node of one more label below a service: an endpoint, or the
// protocol above its named ports.
func (m match) matchEndpoint(label []byte, b *Budget) match {
	if m.svc.kind == externalName {
		return match{}
	}
	m.node, m.host = endpointName, newHostnameMatch(label)
	if m.svc.hasEndpoint(&m.host, b) {
		return m
	}
	proto := parseProtocol(trimUnderscore(label))
	return emptyIf(proto != 0 && m.svc.hasNamed(proto, b))
}

// matchPort is the node of two more labels below a service. A port that matches
// nothing is no name, and nor is one without a name: that would be a wildcard.
func (m match) matchPort(name, proto []byte, b *Budget) match {
	m.node = portName
	m.port = portMatch{proto: parseProtocol(trimUnderscore(proto)), name: trimUnderscore(name)}
	if m.port.proto == 0 || len(m.port.name) == 0 || !m.svc.hasPort(m.port, b) {
		return match{}
	}
	return m
}

// trimUnderscore is label without its underscore. RFC 2782 asks for one; clients that
// leave it out get the same answer, as they do from CoreDNS.
func trimUnderscore(label []byte) []byte { return bytes.TrimPrefix(label, []byte("_")) }

// hasPort reports whether a port that pm selects has a record under s.
func (s *service) hasPort(pm portMatch, b *Budget) bool {
	if s.kind == clusterIP {
		return b.spend(s.ports.steps()) && s.ports.has(pm)
	}
	for _, sl := range s.slices {
		if !b.spend(sl.ports.steps()) {
			return false
		}
		if sl.addrs != "" && sl.ports.has(pm) {
			return s.kind == headless
		}
	}
	return false
}

// hasNamed is hasPort for any named port of proto.
func (s *service) hasNamed(proto byte, b *Budget) bool {
	if s.kind == clusterIP {
		return b.spend(s.ports.steps()) && s.ports.hasNamed(proto)
	}
	for _, sl := range s.slices {
		if !b.spend(sl.ports.steps()) {
			return false
		}
		if sl.addrs != "" && sl.ports.hasNamed(proto) {
			return s.kind == headless
		}
	}
	return false
}

// lookupPod looks up a name below pod; at holds where its labels start.
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

// lookupPodAddr looks up the name of a pod's address in the namespace ns.
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
