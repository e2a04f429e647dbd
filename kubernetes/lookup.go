package kubernetes

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/config"
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

// match is the node of a name, with what its answer is made from.
type match struct {
	node nodeType
	svc  *service
	key  []byte // of svc; part of the qname
	port portMatch
	host hostnameMatch
	addr packedAddr // podName, reverseName
	pod  bool       // what is incomplete is a pod
	zone zoneName   // zonalName; the zero value is all zones
}

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
	case z.needsSlices(m.svc, n, rel) && !z.view.requireSlices(m.svc):
		return match{node: incomplete, svc: m.svc}
	case !z.hasName(m.svc):
		return match{}
	case o.imports:
		return m.matchBelowImport(rel, at, b)
	}
	return m.matchBelowService(rel, at, b)
}

// hasNamespace reports whether o has names in that namespace (a label in wire form).
func (o *origin) hasNamespace(v *View, ns []byte) bool {
	return v.hasNamespace(ns) || o.imports && v.importsInto(ns)
}

// matchBelowService returns the node of the labels, if any, in front of a service.
func (m match) matchBelowService(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchEndpoint(rel[1:at[1]], b)
	case 5:
		return m.matchPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
	}
	return m
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

func emptyIf(ok bool) match {
	if ok {
		return match{node: emptyNonTerminal}
	}
	return match{}
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

// matchEndpoint returns the node of one label below a service: an endpoint, or the protocol
// above its named ports.
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

// matchPort returns the node of two labels below a service: a named port. An empty port
// name would be a wildcard and doesn't exist.
func (m match) matchPort(name, proto []byte, b *Budget) match {
	m.node = portName
	m.port = portMatch{proto: parseProtocol(trimUnderscore(proto)), name: trimUnderscore(name)}
	if m.port.proto == 0 || len(m.port.name) == 0 || !m.svc.hasPort(m.port, b) {
		return match{}
	}
	return m
}

// trimUnderscore returns label without its underscore. RFC 2782 requires one; as in
// CoreDNS, clients may leave it out.
func trimUnderscore(label []byte) []byte { return bytes.TrimPrefix(label, []byte("_")) }

// hasPort reports whether a port that pm selects has a record below s.
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
