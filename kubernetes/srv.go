package kubernetes

import (
	"encoding/binary"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// A SRV answer (RFC 2782) is made of pairs: each address of the service, or each of its
// endpoints, at each of the ports that are asked for. There are as many as the product of
// two lists that tenants write, so they are never listed. Their number sets the weight, and
// need not be known beyond [enoughPairs]; an endpoint's ports count once by number; and the
// first record for which there is no room is the last.

// enoughPairs is the least number of pairs at which the weight is 1.
const enoughPairs = 51

// weigh is the weight of each of n records.
func weigh(n int) uint16 { return uint16(max(1, 100/max(1, n))) }

// leastSRV is less than the least that a SRV record takes: a pointer, 10 bytes up to the
// RDATA, and in that 6 bytes and a name of two labels and more.
const leastSRV = 20

// targets is what writing SRV records takes.
type targets struct {
	writer
	port portMatch
	// key is the service's.
	key    string
	weight uint16
	// ports is what numbers were read from last, reads counts those that were different.
	ports   ports
	numbers []uint16
	reads   int
	// written has the names that records lead to, done these with their ports.
	written map[string]srvName
	done    map[srvTarget]struct{}
	// addrs are those of the names, each once, and known has them for looking one up.
	addrs []glue
	known map[glue]struct{}
}

// srvName is the name of a target: its offset, and the last of targets.reads for which it has
// records.
type srvName struct{ at, read int }

// srvTarget is a name by what it has in front of the service's, and a port.
type srvTarget struct {
	front  string
	number uint16
}

// glue is an address of a name.
type glue struct{ front, addr string }

// srv writes m's SRV records and the addresses of their targets.
func (w *writer) srv(m *match) {
	n := m.pairs(w.budget)
	if n == 0 {
		return
	}
	t := targets{
		writer: *w, port: m.port, key: string(m.key), weight: weigh(n),
		written: make(map[string]srvName), done: make(map[srvTarget]struct{}), known: make(map[glue]struct{}),
	}
	if !t.all(m) {
		return
	}
	for _, g := range t.addrs {
		if !w.budget.take(seenSteps) || w.reply.Over() {
			return
		}
		w.addr(wire.Additional, t.written[g.front].at, g.addr)
	}
}

// all writes the records of m; false if there is no room for all of them, or the budget is
// spent.
func (t *targets) all(m *match) bool {
	if m.ofService() {
		if !t.read(m.svc.ports) || len(t.numbers) == 0 {
			return false
		}
		for addr := range m.serviceAddrs().each {
			if !t.endpoint("", "", addr) {
				return false
			}
		}
		return true
	}
	for _, s := range m.svc.slices {
		if !t.slice(m, s) {
			return false
		}
	}
	return !t.budget.spent()
}

// slice writes the records of those endpoints of s that are m's; the result is that of all.
func (t *targets) slice(m *match, s *slice) bool {
	if !t.read(s.ports) {
		return false
	}
	if len(t.numbers) == 0 {
		return true
	}
	for i := range m.steps(s, t.budget) {
		if !t.endpoint(s.hostOf(i), s.cluster, s.addr(i)) {
			return false
		}
	}
	return true
}

// read reads the numbers of those of p that are asked for, each once, as many as there may
// be room for; false if the budget is spent.
func (t *targets) read(p ports) bool {
	if t.reads > 0 && p == t.ports {
		return t.budget.take(1 + len(p)/64) // which is what it takes to compare them
	}
	t.reads++
	t.ports, t.numbers = p, t.numbers[:0]
	most := 1 + t.reply.Expected()/leastSRV // an endpoint with so many ports is the last one
	var seen numberSet
	for p != "" && len(t.numbers) < most {
		label, proto, number, rest := p.next()
		p = rest
		if !t.budget.take(1) {
			return false
		}
		if number != 0 && t.port.matches(label, proto) && seen.add(number, t.numbers) {
			t.numbers = append(t.numbers, number)
		}
	}
	return true
}

// numberSet tells which numbers were there before; nil while they are few.
type numberSet []uint64

// fewNumbers is how many are looked through one by one.
const fewNumbers = 16

// add reports whether number is none of list, which is all that were new before.
func (s *numberSet) add(number uint16, list []uint16) bool {
	if len(list) < fewNumbers {
		return !slices.Contains(list, number)
	}
	if *s == nil {
		*s = make(numberSet, 1<<16/64)
		for _, n := range list {
			(*s)[n/64] |= 1 << (n % 64)
		}
	}
	at, bit := &(*s)[number/64], uint64(1)<<(number%64)
	isNew := *at&bit == 0
	*at |= bit
	return isNew
}

// endpoint writes the records of the endpoint of that label, cluster and address, each
// target and port once; false if there is no room for all of them, or the budget is spent.
func (t *targets) endpoint(host, cluster, addr string) bool {
	front := host + cluster
	if !t.budget.take(seenSteps) {
		return false
	}
	have, ok := t.written[front]
	if !ok || have.read != t.reads {
		var buf [6 + wire.MaxName]byte
		label := join(buf[6:6], host, cluster+t.key, t.origin.svc)
		if label == nil {
			return true
		}
		for _, number := range t.numbers {
			at, ok := t.record(srvTarget{front, number}, buf[:6+len(label)])
			if !ok {
				return false
			}
			if have.at == 0 {
				have.at = at + 6
			}
		}
		have.read = t.reads
		t.written[front] = have
	}
	g := glue{front, addr}
	if _, dup := t.known[g]; !dup && len(t.addrs) < wire.MaxAddrs {
		t.known[g] = struct{}{}
		t.addrs = append(t.addrs, g)
	}
	return true
}

// record writes one record, if there is none yet, whose RDATA is rdata but for what stands
// before the name; ok is false if there was no room for it, or there is none for more.
func (t *targets) record(to srvTarget, rdata []byte) (at int, ok bool) {
	if _, dup := t.done[to]; dup {
		return 0, t.budget.take(seenSteps)
	}
	if !t.budget.take(recordSteps) {
		return 0, false
	}
	t.done[to] = struct{}{}
	binary.BigEndian.PutUint16(rdata[0:], 0) // priority
	binary.BigEndian.PutUint16(rdata[2:], t.weight)
	binary.BigEndian.PutUint16(rdata[4:], to.number)
	at = t.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeSRV, t.ttl, rdata)
	return at, !t.reply.Over()
}

// ofService reports whether m's SRV records are made of the service's own addresses and
// ports, and not of its endpoints'.
func (m *match) ofService() bool {
	return m.node == outward || m.node != member && m.svc.kind == clusterIP
}

// serviceAddrs are the addresses that such records lead to.
func (m *match) serviceAddrs() addrLists {
	if m.node == outward {
		return addrLists{m.svc.external4, m.svc.external6}
	}
	return addrLists{m.svc.v4, m.svc.v6}
}

// pairs is the number of pairs that m's SRV records are made of, up to [enoughPairs].
func (m *match) pairs(b *Budget) (n int) {
	switch m.node {
	case outward, named, port, member, zonal:
	default:
		return 0
	}
	switch {
	case m.ofService():
		list := m.serviceAddrs()
		return min(enoughPairs, m.port.count(m.svc.ports, b)*(len(list.v4)/4+len(list.v6)/16))
	case !m.svc.hasEndpoints():
		return 0
	}
	for _, s := range m.svc.slices {
		if n += m.pairsOf(s, b); n >= enoughPairs {
			return enoughPairs
		}
	}
	return n
}

// pairsOf is pairs of those endpoints of s that are m's.
func (m *match) pairsOf(s *slice, b *Budget) (n int) {
	per := m.port.count(s.ports, b)
	if s.ports == "" && m.port.any() {
		per = 1 // it gives no record, but has its part in the weight, as one without a number
	}
	if per == 0 {
		return 0
	}
	for range m.steps(s, b) {
		if n += per; n >= enoughPairs {
			break
		}
	}
	return n
}

// count is the number of those of p that m selects, up to [enoughPairs].
func (m portMatch) count(p ports, b *Budget) (n int) {
	for b.take(1) && p != "" && n < enoughPairs {
		label, proto, _, rest := p.next()
		if m.matches(label, proto) {
			n++
		}
		p = rest
	}
	return n
}

// hostOf is the label of endpoint i, spelled out.
func (s *slice) hostOf(i int) string {
	if host := s.host(i); host != "" {
		return host
	}
	return string(appendDashed(nil, s.addr(i)))
}
