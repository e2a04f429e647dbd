package kubernetes

import (
	"encoding/binary"
	"iter"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxTransferPairs bounds the pairs of an endpoint and a port of one headless Service that have SRV records in a
// transfer. Their number is the product of two lists that tenants write, and each record is remembered.
const maxTransferPairs = 1 << 14

// clusterIPWeight is the weight of the SRV records of a Service with a cluster IP in a transfer, as in CoreDNS.
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
		w := recordYielder{ttl: s.zone.ttl, svc: s.origin.svc, yield: yield}
		nameservers, service := s.yieldNameservers, w.yieldService
		if s.external != nil {
			nameservers, service = s.yieldExternalNameserver, w.yieldExternal
		}
		nameservers(&w)
		for i := range s.services {
			if w.stopped {
				return
			}
			service(s.services[i])
		}
	}
}

// yieldNameservers yields the NS records, and their addresses unless a Service of the zone has them.
func (s *Snapshot) yieldNameservers(w *recordYielder) {
	z, o, apex := s.zone, s.origin, []byte(s.origin.name)
	if len(s.nameservers) == 0 {
		host := []byte(o.server + string(o.name))
		for i, a := range z.view.addrs {
			if i == 0 {
				w.add(apex, wire.TypeNS, host)
			}
			w.addAddr(host, packAddr(a))
		}
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
			w.addServiceAddrs(host, n.service)
		}
	}
}

// recordYielder yields the records of Services until the caller wants no more.
type recordYielder struct {
	ttl     uint32
	svc     wire.Name // what Services are below
	yield   func(wire.RR) bool
	stopped bool
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

// addServiceAddrs yields the addresses of s's own name, each once, wherever the endpoints are.
func (w *recordYielder) addServiceAddrs(owner []byte, s *service) {
	all := addrSet{s.v4, s.v6}
	if s.kind == headless {
		all.v4, _ = s.headlessAddrs(4, false)
		all.v6, _ = s.headlessAddrs(16, false)
	}
	for addr := range all.each {
		w.addAddr(owner, addr)
	}
}

// addSRV yields an SRV record of priority 0.
func (w *recordYielder) addSRV(owner []byte, weight, port uint16, target []byte) {
	data := binary.BigEndian.AppendUint16(make([]byte, 2, 6+len(target)), weight)
	data = binary.BigEndian.AppendUint16(data, port)
	w.add(owner, wire.TypeSRV, append(data, target...))
}

// yieldService yields the records of s.
func (w *recordYielder) yieldService(s keyedService) {
	owner := joinName(nil, "", s.key, w.svc)
	if owner == nil {
		return
	}
	switch s.kind {
	case clusterIP:
		w.addServiceAddrs(owner, s.service)
		if s.v4 != "" || s.v6 != "" {
			w.yieldPorts(owner, owner, s)
		}
	case headless:
		w.addServiceAddrs(owner, s.service)
		w.yieldEndpoints(s)
	case externalName:
		if s.target != "" {
			w.add(owner, wire.TypeCNAME, []byte(s.target))
		}
	}
}

// yieldPorts yields the SRV records of s that lead to target: those of owner for all ports, unless it is nil, and those of named
// ports.
func (w *recordYielder) yieldPorts(owner, target []byte, s keyedService) {
	var seen portSet
	var numbers []uint16
	for p := s.ports; p != "" && !w.stopped; {
		name, proto, number, rest := p.next()
		p = rest
		if number == 0 {
			continue
		}
		if owner != nil && seen.add(number, numbers) {
			numbers = append(numbers, number)
			w.addSRV(owner, clusterIPWeight, number, target)
		}
		if below := w.portOwner(name, proto, s.key); below != nil {
			w.addSRV(below, clusterIPWeight, number, target)
		}
	}
}

// portOwner returns the name of a named port of the service with that key; nil if there is none.
func (w *recordYielder) portOwner(name string, proto byte, key string) []byte {
	if name == "" || proto == 0 || len(name) == wire.MaxLabel {
		return nil
	}
	return joinName(nil, "_"+name, protocolLabels[proto]+key, w.svc)
}

// yieldEndpoints yields the records of the endpoints of s, each once: the addresses of their names, and the SRV records of named
// ports.
func (w *recordYielder) yieldEndpoints(s keyedService) {
	seen := make(map[endpointRecord]struct{})
	isNew := func(id endpointRecord) bool {
		_, dup := seen[id]
		seen[id] = struct{}{}
		return !dup
	}
	pairs := 0
	for _, sl := range s.slices {
		var ports []ownedPort
		if pairs < maxTransferPairs {
			ports = w.endpointPorts(sl, s.key)
		}
		for i := 0; i < sl.len() && !w.stopped; i++ {
			front := sl.hostname(i) + sl.cluster
			host := joinName(nil, sl.hostname(i), sl.cluster+s.key, w.svc)
			if host == nil {
				continue
			}
			if isNew(endpointRecord{front: front, addr: sl.addr(i)}) {
				w.addAddr(host, sl.addr(i))
			}
			if pairs += len(ports); pairs > maxTransferPairs {
				ports = nil
			}
			for _, p := range ports {
				if isNew(endpointRecord{front: front, owner: string(p.owner), port: p.number}) {
					w.addSRV(p.owner, srvWeight(sl.len()), p.number, host)
				}
			}
		}
	}
}

// endpointRecord identifies an address record of an endpoint, or an SRV record that leads to it. front is what its name has in
// front of the Service's.
type endpointRecord struct {
	front, addr string
	owner       string // of the SRV record
	port        uint16
}

// ownedPort is a port number and the name of its SRV records.
type ownedPort struct {
	owner  []byte
	number uint16
}

// endpointPorts returns the ports of sl, a slice of the service with that key, that have a name and a number.
func (w *recordYielder) endpointPorts(sl *slice, key string) (list []ownedPort) {
	for p := sl.ports; p != ""; {
		name, proto, number, rest := p.next()
		p = rest
		if owner := w.portOwner(name, proto, key); owner != nil && number != 0 {
			list = append(list, ownedPort{owner, number})
		}
	}
	return list
}
