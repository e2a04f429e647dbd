package kubernetes

import (
	"encoding/binary"

	"github.com/nodens-dns/nodens/internal/wire"
)

// pair is one address at one port: what a SRV answer is made of. Several pairs may
// come to one record; their number still sets the weight.
type pair struct {
	host   string // the label in front of the service's name; "" is the service
	addr   string // packed
	number uint16 // 0 is none: no record
	// cluster is the label, in wire form, between host and the service's name, where
	// the host is an import's.
	cluster string
}

// front is what p's name has in front of the service's, to tell it from others.
func (p *pair) front() string { return p.host + p.cluster }

// srv writes m's SRV records (RFC 2782) and the addresses of their targets.
func (w *writer) srv(m *match) {
	pairs := m.pairs()
	if len(pairs) == 0 {
		return
	}
	weight := uint16(max(1, 100/len(pairs)))
	owners := w.targets(m, pairs, weight)
	type address struct{ host, addr string }
	seen := make(map[address]struct{}, len(pairs))
	for _, p := range pairs {
		a := address{p.front(), p.addr}
		owner, ok := owners[p.front()]
		if _, dup := seen[a]; dup || !ok || p.number == 0 {
			continue
		}
		seen[a] = struct{}{}
		w.addr(wire.Additional, owner, p.addr)
	}
}

// targets writes the SRV records, each target and port once, and gives the offset
// of each target's name.
func (w *writer) targets(m *match, pairs []pair, weight uint16) map[string]int {
	type target struct {
		host   string
		number uint16
	}
	seen := make(map[target]struct{}, len(pairs))
	owners := make(map[string]int, len(pairs))
	key := string(m.key)
	var buf [6 + wire.MaxName]byte
	for _, p := range pairs {
		t := target{p.front(), p.number}
		if _, dup := seen[t]; dup || p.number == 0 {
			continue
		}
		seen[t] = struct{}{}
		name := join(buf[6:6], p.host, p.cluster+key, w.origin.svc)
		if name == nil {
			continue
		}
		binary.BigEndian.PutUint16(buf[0:], 0) // priority
		binary.BigEndian.PutUint16(buf[2:], weight)
		binary.BigEndian.PutUint16(buf[4:], p.number)
		before := w.reply.Count(wire.Answer)
		at := w.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeSRV, w.ttl, buf[:6+len(name)])
		if w.reply.Count(wire.Answer) == before {
			break // the message is full
		}
		if _, ok := owners[t.host]; !ok {
			owners[t.host] = at + 6
		}
	}
	return owners
}

// pairs lists what m's SRV records are made of.
func (m *match) pairs() (list []pair) {
	switch m.node {
	case outward:
		return m.outerPairs()
	case named, port, member, zonal:
	default:
		return nil
	}
	switch {
	case m.svc.kind == clusterIP && m.node != member:
		return m.servicePairs()
	case !m.svc.hasEndpoints():
		return nil
	}
	for _, s := range m.svc.slices {
		for i := m.step(s, 0); i < s.len(); i = m.step(s, i+1) {
			list = m.endpointPairs(list, s, i)
		}
	}
	return list
}

// servicePairs lists the pairs of the service itself.
func (m *match) servicePairs() (list []pair) {
	for p := m.svc.ports; p != ""; {
		name, proto, number, rest := p.next()
		p = rest
		if !m.port.matches(name, proto) {
			continue
		}
		for addr := range m.svc.each {
			list = append(list, pair{addr: addr, number: number})
		}
	}
	return list
}

// endpointPairs appends the pairs of endpoint i of s.
func (m *match) endpointPairs(list []pair, s *slice, i int) []pair {
	host := s.hostOf(i)
	if s.ports == "" && m.port.any() {
		// It gives no record, but has its part in the weight, as one without a number.
		return append(list, pair{host: host, addr: s.addr(i), cluster: s.cluster})
	}
	for p := s.ports; p != ""; {
		name, proto, number, rest := p.next()
		p = rest
		if m.port.matches(name, proto) {
			list = append(list, pair{host: host, addr: s.addr(i), number: number, cluster: s.cluster})
		}
	}
	return list
}

// hostOf is the label of endpoint i, spelled out.
func (s *slice) hostOf(i int) string {
	if host := s.host(i); host != "" {
		return host
	}
	return string(appendDashed(nil, s.addr(i)))
}
