package kubernetes

import (
	"encoding/binary"
	"iter"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxTransferPairs bounds the pairs of an endpoint and a port of one headless Service that have SRV records in a
// transfer. Their number is the product of two lists that tenants write, and each record is remembered.
const maxTransferPairs = 1 << 14

// clusterIPWeight is the weight of the SRV records of a Service with a cluster IP in a transfer of a zone of `kubernetes`, as in CoreDNS.
const clusterIPWeight = 100

// protocolLabels are the labels of protocols, in wire form.
var protocolLabels = [...]string{tcp: "\x04_tcp", udp: "\x04_udp", sctp: "\x05_sctp"}

// SOA returns the zone's SOA record.
func (s *Snapshot) SOA() wire.RR { return s.origin.soa(s.zone.ttl, s.serial) }

// All returns the other records, each once: the NS records with addresses that are not among the others, then those of each Service.
// A Service with a cluster IP has addresses and SRV records, a headless one addresses of its name and of its endpoints'
// names and SRV records, one of type ExternalName a CNAME. There are no records of pods and of the endpoints behind cluster
// IPs. For the records of a zone of `k8s_external`, see [External.Snapshot]. The records' bytes don't change.
func (s *Snapshot) All() iter.Seq[wire.RR] {
	return func(yield func(wire.RR) bool) {
		w := recordYielder{ttl: s.zone.ttl, svc: s.origin.svc, external: s.external, yield: yield}
		s.yieldNameservers(&w)
		for _, svc := range s.services {
			owner := joinName(nil, "", svc.key, w.svc)
			if owner == nil {
				continue
			}
			for _, t := range recordTypes {
				if t.transfer != nil && !w.stopped {
					t.transfer(&w, owner, svc)
				}
			}
		}
	}
}

// yieldNameservers yields the NS records, and their addresses unless a Service of the zone has them.
func (s *Snapshot) yieldNameservers(w *recordYielder) {
	z, o, apex := s.zone, s.origin, []byte(s.origin.name)
	host := []byte(o.server + string(o.name))
	if s.external != nil || len(s.nameservers) == 0 {
		s.yieldOwnNameserver(w, apex, host)
		return
	}
	base := o
	if o.lacksServices() && z.primary != nil {
		base = z.primary
	}
	for _, n := range s.nameservers {
		host := joinName(nil, "", n.key, base.svc)
		if host == nil {
			continue
		}
		w.add(apex, wire.TypeNS, host)
		if base == o && !z.exposes([]byte(namespaceOf(n.key))) {
			w.addServiceAddrs(host, n.service, 4)
			w.addServiceAddrs(host, n.service, 16)
		}
	}
}

// yieldOwnNameserver yields the NS record of the name server called host, which is no Service, and its addresses.
func (s *Snapshot) yieldOwnNameserver(w *recordYielder, apex, host []byte) {
	if s.external != nil {
		w.add(apex, wire.TypeNS, host)
		for addr := range (nameserverAddrs{s.external, nil}).each {
			w.addAddr(host, addr)
		}
		return
	}
	for i, a := range s.zone.view.addrs {
		if i == 0 {
			w.add(apex, wire.TypeNS, host)
		}
		w.addAddr(host, packAddr(a))
	}
}

// recordYielder yields the records of Services until the caller wants no more.
type recordYielder struct {
	ttl      uint32
	svc      wire.Name // what Services are below
	external *External // nil for a zone of `kubernetes`
	yield    func(wire.RR) bool
	stopped  bool
}

func (w *recordYielder) add(owner []byte, rtype uint16, data []byte) {
	w.stopped = w.stopped || !w.yield(wire.RR{Owner: owner, Type: rtype, TTL: w.ttl, Data: data})
}

// addAddr yields an address record; packed is its RDATA.
func (w *recordYielder) addAddr(owner []byte, packed string) {
	rtype := wire.TypeA
	if len(packed) == 16 {
		rtype = wire.TypeAAAA
	}
	w.add(owner, rtype, []byte(packed))
}

// addServiceAddrs yields the addresses of that size of s's own name, each once, wherever the endpoints are.
func (w *recordYielder) addServiceAddrs(owner []byte, s *service, size int) {
	list := s.v4
	if size == 16 {
		list = s.v6
	}
	if s.kind == headless {
		list, _ = s.headlessAddrs(size, false)
	}
	w.addAddrs(owner, list, size)
}

// addAddrs yields the records of packed addresses.
func (w *recordYielder) addAddrs(owner []byte, list string, size int) {
	for ; list != ""; list = list[size:] {
		w.addAddr(owner, list[:size])
	}
}

// addSRV yields an SRV record of priority 0.
func (w *recordYielder) addSRV(owner []byte, weight, port uint16, target []byte) {
	data := binary.BigEndian.AppendUint16(make([]byte, 2, 6+len(target)), weight)
	data = binary.BigEndian.AppendUint16(data, port)
	w.add(owner, wire.TypeSRV, append(data, target...))
}

// throughEndpoints reports whether s has its names through its endpoints.
func (w *recordYielder) throughEndpoints(s keyedService) bool {
	return s.kind == headless && (w.external == nil || !s.externallyReachable())
}

// yieldAlias yields the CNAME record of s.
func (w *recordYielder) yieldAlias(owner []byte, s keyedService) {
	to := s.target
	switch {
	case w.external != nil:
		to = s.loadBalancerName()
	case s.kind != externalName:
		return
	}
	if to != "" {
		w.add(owner, wire.TypeCNAME, []byte(to))
	}
}

// yieldAddrs yields the addresses of that size of s, and of its endpoints' names.
func (w *recordYielder) yieldAddrs(owner []byte, s keyedService, size int) {
	switch {
	case w.throughEndpoints(s):
		w.addServiceAddrs(owner, s.service, size)
		w.yieldEndpointAddrs(s, size)
	case w.external == nil:
		w.addServiceAddrs(owner, s.service, size)
	case size == 4:
		w.addAddrs(owner, s.external4, size)
	default:
		w.addAddrs(owner, s.external6, size)
	}
}

// yieldEndpointAddrs yields the addresses of that size of the endpoints' names, each once.
func (w *recordYielder) yieldEndpointAddrs(s keyedService, size int) {
	seen := make(map[glue]struct{})
	for _, sl := range s.slices {
		if sl.size != size {
			continue
		}
		for i := 0; i < sl.len() && !w.stopped; i++ {
			at := glue{sl.hostname(i) + sl.cluster, sl.addr(i)}
			host := joinName(nil, sl.hostname(i), sl.cluster+s.key, w.svc)
			if _, dup := seen[at]; dup || host == nil {
				continue
			}
			seen[at] = struct{}{}
			w.addAddr(host, at.addr)
		}
	}
}

// yieldSRVs yields the SRV records of s and of what is below it.
func (w *recordYielder) yieldSRVs(owner []byte, s keyedService) {
	switch {
	case w.throughEndpoints(s):
		w.yieldEndpointSRVs(owner, s)
	case w.external == nil:
		if s.kind == clusterIP && (s.v4 != "" || s.v6 != "") {
			w.yieldPorts(owner, owner, s)
		}
	default:
		w.yieldExternalSRVs(owner, s)
	}
}

// yieldExternalSRVs yields the SRV records that lead to the addresses of s and to the host name of its load balancer.
func (w *recordYielder) yieldExternalSRVs(owner []byte, s keyedService) {
	if s.external4 != "" || s.external6 != "" {
		w.yieldPorts(owner, owner, s)
	} else {
		owner = nil // an alias
	}
	if to := s.loadBalancer(); to != "" {
		w.yieldPorts(owner, []byte(to), s)
	}
}

// yieldPorts yields the SRV records of s that lead to target: those of owner for all ports, unless it is nil, and those of named
// ports. In a zone of `k8s_external` they have the weights of answers.
func (w *recordYielder) yieldPorts(owner, target []byte, s keyedService) {
	var seen portSet
	var numbers []uint16
	var counts map[portKey]int
	if w.external != nil {
		counts = s.countPorts()
	}
	for p := s.ports; p != "" && !w.stopped; {
		name, proto, number, rest := p.next()
		p = rest
		if number == 0 {
			continue
		}
		if owner != nil && seen.add(number, numbers) {
			numbers = append(numbers, number)
			w.addSRV(owner, w.portWeight(s, counts[portKey{}]), number, target)
		}
		if below := w.portOwner(name, proto, s.key); below != nil {
			w.addSRV(below, w.portWeight(s, counts[portKey{name, proto}]), number, target)
		}
	}
}

// portKey is a name of ports and their protocol; the zero value is all ports.
type portKey struct {
	name  string
	proto byte
}

// portWeight returns the weight of the SRV records of a name of s that has so many ports.
func (w *recordYielder) portWeight(s keyedService, ports int) uint16 {
	if w.external == nil {
		return clusterIPWeight
	}
	return srvWeight(ports * s.externalTargets())
}

// portOwner returns the name of a named port of the service with that key; nil if there is none.
func (w *recordYielder) portOwner(name string, proto byte, key string) []byte {
	if name == "" || proto == 0 || len(name) == wire.MaxLabel {
		return nil
	}
	return joinName(nil, "_"+name, protocolLabels[proto]+key, w.svc)
}

// yieldEndpointSRVs yields the SRV records that lead to the endpoints of s, each once. A zone of `kubernetes` has those of named
// ports, with weights as in CoreDNS; one of `k8s_external` also those of the service's name, which is owner, and of the
// endpoints' names, with the weights of answers.
func (w *recordYielder) yieldEndpointSRVs(owner []byte, s keyedService) {
	pairs := make(map[string]int)
	if w.external != nil {
		w.eachPair(owner, s, func(name, _ []byte, _ srvTarget, _ *slice) { pairs[string(name)]++ })
	}
	type record struct {
		srvTarget
		owner string
	}
	seen := make(map[record]struct{})
	w.eachPair(owner, s, func(name, host []byte, to srvTarget, sl *slice) {
		id := record{to, string(name)}
		if _, dup := seen[id]; dup || to.number == 0 {
			return
		}
		seen[id] = struct{}{}
		n := sl.len()
		if w.external != nil {
			n = pairs[id.owner]
		}
		w.addSRV(name, srvWeight(n), to.number, host)
	})
}

// eachPair calls f for each pair of an endpoint, whose name is host, and a port, with each name that has an SRV record of it. A port
// without a number, and an endpoint without ports, are pairs with the number 0, which have no record but count in the weights of
// answers, see [match.pairsInSlice]. It stops at [maxTransferPairs].
func (w *recordYielder) eachPair(owner []byte, s keyedService, f func(name, host []byte, to srvTarget, sl *slice)) {
	pairs := 0
	for _, sl := range s.slices {
		ports := w.slicePorts(sl, s.key)
		for i := 0; i < sl.len() && !w.stopped; i++ {
			if pairs += len(ports); pairs > maxTransferPairs {
				return
			}
			host := joinName(nil, sl.hostname(i), sl.cluster+s.key, w.svc)
			if host == nil {
				continue
			}
			for _, p := range ports {
				to := srvTarget{sl.hostname(i) + sl.cluster, p.number}
				if w.external != nil {
					f(owner, host, to, sl)
					f(host, host, to, sl)
				}
				if p.owner != nil {
					f(p.owner, host, to, sl)
				}
			}
		}
	}
}

// ownedPort is a port number and the name of its SRV records, nil for none.
type ownedPort struct {
	owner  []byte
	number uint16
}

// slicePorts returns the ports of sl, a slice of the service with that key, that have records or count in weights.
func (w *recordYielder) slicePorts(sl *slice, key string) (list []ownedPort) {
	for p := sl.ports; p != ""; {
		name, proto, number, rest := p.next()
		p = rest
		if o := (ownedPort{w.portOwner(name, proto, key), number}); w.external != nil || o.owner != nil && number != 0 {
			list = append(list, o)
		}
	}
	if list == nil && w.external != nil {
		list = []ownedPort{{}}
	}
	return list
}
