package kubernetes

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// writeEndpointAddrs writes the addresses of the endpoints that m selects, each once: the
// nearest first if the zone is ordered, in random order within a distance.
func (w *answerWriter) writeEndpointAddrs(m *match, owner int, qtype uint16) {
	size := addrSize(qtype)
	if m.node == endpointName {
		if addr, n := m.singleAddr(size, w.budget); n < 2 {
			w.reply.AddAddrs(wire.Answer, owner, qtype, w.ttl, addr)
			return
		}
	}
	var few [stackSlices]*slice
	list, many := m.candidateSlices(few[:0], size, w.budget)
	if w.budget.exhausted() {
		return
	}
	g := endpointWriter{w: w, m: m, owner: owner, slices: list}
	if many {
		g.seen = make(map[string]struct{})
	}
	for _, r := range [...]rank{nodeRank, zoneRank, otherRank} {
		before := w.reply.Count(wire.Answer)
		for n := range g.slices {
			g.writeRank(n, r)
		}
		if n := w.reply.Count(wire.Answer) - before; w.zone.ordered {
			w.reply.ShuffleLast(n, qtype)
		}
	}
}

// writePTRs writes the PTR records of m's address: the name of the service whose cluster IP
// it is, else the names of all endpoints that have it.
func (w *answerWriter) writePTRs(m *match) {
	packed := string(m.addr.bytes[:m.addr.size])
	at := addrKeyOf(packed)
	var p ptrCompression
	if key := w.zone.clusterIPOwner(at, w.budget); key != "" {
		w.writePTR(&p, "", key)
		return
	}
	dashed := string(appendDashed(nil, packed))
	var hosts seenHosts
	for h := range (addrOwners{w.zone.view, at, w.zone, w.budget}).each {
		for i := h.searchAddr(packed); i < h.len() && h.addr(i) == packed; i++ {
			host := h.host(i)
			if host == "" {
				host = dashed
			}
			if !w.budget.spend(dedupSteps) {
				return
			}
			if hosts.add(h.slice, host) && !w.writePTR(&p, host, h.key) {
				return
			}
		}
	}
}

// writePTR writes one PTR record, compressed against p. It returns false if there is no
// room for more.
func (w *answerWriter) writePTR(p *ptrCompression, host, key string) bool {
	svc := w.zone.primary.svc
	if !w.budget.spend(lookupSteps) {
		return false
	}
	if joinedLen(host, key, svc) > wire.MaxName {
		return true
	}
	var buf [wire.MaxName]byte
	b := buf[:0]
	if host != "" {
		b = append(b, byte(len(host)))
		b = append(b, host...)
	}
	ns := namespaceOf(key)
	keyAt, nsAt, svcAt := -1, -1, -1 // of the suffixes in this RDATA
	switch at, ok := p.namespaces[ns]; {
	case p.keyAt > 0 && p.key == key:
		b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(p.keyAt))
	case ok:
		keyAt = len(b)
		b = append(b, key[:len(key)-len(ns)]...)
		b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(at))
	default:
		keyAt, nsAt = len(b), len(b)+len(key)-len(ns)
		b = append(b, key...)
		if p.svcAt > 0 {
			b = binary.BigEndian.AppendUint16(b, 0xC000|uint16(p.svcAt))
		} else {
			svcAt = len(b)
			b = append(b, svc...)
		}
	}
	before := w.reply.Count(wire.Answer)
	at := w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, w.ttl, b)
	if w.reply.Count(wire.Answer) == before {
		return false // the message is full
	}
	p.record(at, key, keyAt, nsAt, svcAt)
	return !w.reply.Overflows()
}

// writeSRV writes m's SRV records and the addresses of their targets.
func (w *answerWriter) writeSRV(m *match) {
	n := m.pairCount(w.budget)
	if n == 0 {
		return
	}
	t := srvWriter{
		answerWriter: *w, port: m.port, key: string(m.key), weight: srvWeight(n),
		written: make(map[string]srvName), done: make(map[srvTarget]struct{}), known: make(map[glue]struct{}),
	}
	whole := !t.tooMany(m) && t.writeAll(m)
	if !whole && !w.budget.exhausted() && w.reply.Limit() < wire.MaxMessage { // over TCP there is nothing to come back for
		whole = t.writeSample(m)
	}
	if !whole {
		return
	}
	slices.SortStableFunc(t.addrs, func(a, b glue) int { // whole RRsets
		return cmp.Or(cmp.Compare(t.written[a.prefix].at, t.written[b.prefix].at), cmp.Compare(len(a.addr), len(b.addr)))
	})
	for _, g := range t.addrs {
		if !w.budget.spend(dedupSteps) || w.reply.Overflows() {
			return
		}
		w.writeAddr(wire.Additional, t.written[g.prefix].at, g.addr)
	}
}

// writeExternal writes the records of qtype of an externally reachable service: its
// addresses, or a CNAME if its load balancer has only a host name. Addresses take
// precedence: a CNAME allows no other records (RFC 2181, section 10.1).
func (w *answerWriter) writeExternal(m *match, qtype uint16) (target wire.Name) {
	switch qtype {
	case wire.TypeSRV:
		if target = m.svc.loadBalancerName(); target != "" {
			w.writeLoadBalancerSRV(m, target)
			return ""
		}
		w.writeSRV(m)
	case wire.TypeA, wire.TypeAAAA, wire.TypeCNAME:
		if target = m.svc.loadBalancerName(); target != "" {
			w.writeName(wire.Answer, wire.TypeCNAME, wire.AtQuestion, target)
			if qtype == wire.TypeCNAME {
				return ""
			}
			return target
		}
		list := m.svc.external4
		if qtype == wire.TypeAAAA {
			list = m.svc.external6
		}
		if n := len(list) / addrSize(qtype); qtype != wire.TypeCNAME && w.budget.spend(min(n, w.reply.AddrCapacity(wire.Answer, qtype))) {
			w.reply.AddAddrs(wire.Answer, wire.AtQuestion, qtype, w.ttl, list)
		}
	}
	return ""
}

// writeLoadBalancerSRV writes SRV records that point to the host name of a load balancer.
// They have no glue: the name would have to be resolved first.
func (w *answerWriter) writeLoadBalancerSRV(m *match, to wire.Name) {
	t := srvWriter{answerWriter: *w, port: m.port, weight: srvWeight(m.port.count(m.svc.ports, w.budget)), done: make(map[srvTarget]struct{})}
	if !t.readPorts(m.svc.ports) {
		return
	}
	var buf [6 + wire.MaxName]byte
	rdata := append(buf[:6], to...)
	for _, number := range t.numbers {
		if _, ok := t.writeRecord(srvTarget{"", number}, rdata); !ok {
			return
		}
	}
}
