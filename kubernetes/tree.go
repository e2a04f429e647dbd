package kubernetes

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/config"
)

// node is what a name is in the tree of a zone.
type node uint8

const (
	missing   node = iota
	elsewhere      // what it hangs on is not in view
	empty          // exists for the names below it (RFC 8020)
	apex           // the zone
	version        // dns-version
	server         // ns.dns
	named          // a service
	port           // _port._proto of a service
	member         // an endpoint of a service
	zonal          // the endpoints of a headless service in a topology zone
	podAddr        // a pod's address
	reverseIP      // a reverse name
	outward        // a service as it is reached from outside
)

// match is a node that was found, with what the answer is made from.
type match struct {
	node node
	svc  *service
	key  []byte // of svc; a part of the qname
	port portMatch
	host hostMatch
	addr packedAddr // podAddr, reverseIP
	pod  bool       // what is elsewhere is a pod
	zone topozone   // zonal; the zero value is all
}

// maxDepth is the most labels a name in the zone has: _port._proto.svc.ns.svc. Only
// names by topology zone have more, and of those that many say what they are.
const maxDepth = 5

// find looks name, which is in o, up. Once b is spent, what it gives means nothing.
func (z *Zone) find(name []byte, o *origin, b *Budget) match {
	rel := name[:len(name)-len(o.name)]
	switch {
	case len(rel) == 0:
		return match{node: apex}
	case o.reverse:
		return z.findReverse(name, rel, b)
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
			return z.findBelow(rel, at[:n], o, b)
		}
		return z.findService(rel, at[:n], o, b)
	case "\x03pod":
		return z.findPod(rel, at[:n], b)
	default:
		return findServer(rel)
	}
}

// findServer knows the names that are not of the cluster's objects.
func findServer(rel []byte) match {
	switch string(rel) {
	case "\x0bdns-version":
		return match{node: version}
	case "\x03dns":
		return match{node: empty}
	case "\x02ns\x03dns":
		return match{node: server}
	}
	return match{}
}

// exposes reports whether names in the namespace (a label in wire form) may be
// seen, existing or not.
func (z *Zone) exposes(ns []byte) bool {
	if z.listed && !z.view.lists(ns) {
		return false
	}
	return z.chooses(ns)
}

// exposesLocked is exposes for who holds the view's lock.
func (z *Zone) exposesLocked(ns string) bool {
	if z.listed {
		if at := z.view.index.namespaces[ns]; at == nil || !at.object {
			return false
		}
	}
	return z.chooses([]byte(ns))
}

// chooses reports whether the namespace is one of those that are listed by name, if
// any are.
func (z *Zone) chooses(ns []byte) bool {
	if z.exposed == nil {
		return true
	}
	_, ok := z.exposed[string(ns)]
	return ok
}

// findService looks up a name below svc, that of a Service or, where o has those, of a
// ServiceImport; at holds where its labels start.
func (z *Zone) findService(rel []byte, at []int, o *origin, b *Budget) match {
	n := len(at)
	if n == 1 {
		return match{node: empty}
	}
	ns := rel[at[n-2]:at[n-1]]
	if !z.exposes(ns) {
		return match{}
	}
	if n == 2 {
		return exists(o.hasNamespace(z.view, ns))
	}
	m := match{node: named, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, o.imports)
	switch {
	case m.svc == nil:
		return match{}
	case z.needsSlices(m.svc, n, rel) && !z.view.held(m.svc):
		return match{node: elsewhere, svc: m.svc}
	case !z.shows(m.svc):
		return match{}
	case o.imports:
		return m.belowImport(rel, at, b)
	}
	return m.belowService(rel, at, b)
}

// hasNamespace reports whether names in that namespace (a label in wire form) may be
// in o.
func (o *origin) hasNamespace(v *View, ns []byte) bool {
	return v.namespace(ns) || o.imports && v.importsInto(ns)
}

// belowService is the node of the labels, if any, in front of a service.
func (m match) belowService(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.endpoint(rel[1:at[1]], b)
	case 5:
		return m.namedPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
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

func exists(ok bool) match {
	if ok {
		return match{node: empty}
	}
	return match{}
}

// shows reports whether a service has a name: a headless one without ready
// endpoints has none, nor has one whose target no CNAME can hold, and with `ignore
// empty_service` one that nothing stands behind.
func (z *Zone) shows(s *service) bool {
	switch s.kind {
	case clusterIP:
		return !z.ignoreEmpty || s.ready
	case headless:
		return s.ready
	case external:
		return s.target != ""
	}
	return false
}

// endpoint is the node of one more label below a service: an endpoint, or the
// protocol above its named ports.
func (m match) endpoint(label []byte, b *Budget) match {
	if m.svc.kind == external {
		return match{}
	}
	m.node, m.host = member, hostOf(label)
	if m.svc.hasMember(&m.host, b) {
		return m
	}
	proto := protocol(unscored(label))
	return exists(proto != 0 && m.svc.hasNamed(proto, b))
}

// namedPort is the node of two more labels below a service. A port that matches
// nothing is no name, and nor is one without a name: that would be a wildcard.
func (m match) namedPort(name, proto []byte, b *Budget) match {
	m.node = port
	m.port = portMatch{proto: protocol(unscored(proto)), name: unscored(name)}
	if m.port.proto == 0 || len(m.port.name) == 0 || !m.svc.hasPort(m.port, b) {
		return match{}
	}
	return m
}

// unscored is label without its underscore. RFC 2782 asks for one; clients that
// leave it out get the same answer, as they do from CoreDNS.
func unscored(label []byte) []byte { return bytes.TrimPrefix(label, []byte("_")) }

// hasPort reports whether a port that pm selects has a record under s.
func (s *service) hasPort(pm portMatch, b *Budget) bool {
	if s.kind == clusterIP {
		return b.take(s.ports.steps()) && s.ports.has(pm)
	}
	for _, sl := range s.slices {
		if !b.take(sl.ports.steps()) {
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
		return b.take(s.ports.steps()) && s.ports.hasNamed(proto)
	}
	for _, sl := range s.slices {
		if !b.take(sl.ports.steps()) {
			return false
		}
		if sl.addrs != "" && sl.ports.hasNamed(proto) {
			return s.kind == headless
		}
	}
	return false
}

// findPod looks up a name below pod; at holds where its labels start.
func (z *Zone) findPod(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if n == 1 {
		return match{node: empty}
	}
	if n > 3 {
		return match{}
	}
	ns := rel[at[n-2]:at[n-1]]
	if z.pods == config.PodsDisabled || !z.exposes(ns) || !z.view.namespace(ns) {
		return match{}
	}
	if n == 2 {
		return match{node: empty}
	}
	return z.findAddr(rel[1:at[1]], ns, b)
}

// findAddr looks up the name of a pod's address in the namespace ns.
func (z *Zone) findAddr(label, ns []byte, b *Budget) match {
	addr, ok := parseDashed(label)
	switch {
	case !ok:
		return match{}
	case z.pods == config.PodsInsecure || z.view.hasPod(addr, ns, b):
		return match{node: podAddr, addr: addr}
	case z.view.allPods.Load():
		return match{}
	}
	return match{node: elsewhere, pod: true}
}
