package kubernetes

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// An SRV answer (RFC 2782) has a record for each pair of an address (or endpoint) and a
// port. The number of pairs is the product of two lists that tenants write, so they are
// never listed. Their number sets the weight and need not be known beyond [maxPairs]. An
// endpoint's ports count once by number. The first record without room is the last.

// maxPairs is the least number of pairs for which the weight is 1; larger numbers need not
// be known.
const maxPairs = 51

// srvWeight returns the weight of each of n records.
func srvWeight(n int) uint16 { return uint16(max(1, 100/max(1, n))) }

// minSRVBytes is a lower bound of the size of an SRV record: a pointer, 10 bytes up to the
// RDATA, 6 bytes of it, and a name of at least two labels.
const minSRVBytes = 20

// srvWriter writes the SRV records of one answer.
type srvWriter struct {
	answerWriter
	port portMatch
	// key is the service's.
	key    string
	weight uint16
	// ports is the list that numbers was read from; reads counts the different lists so far.
	ports   portList
	numbers []uint16
	reads   int
	// written holds the targets that have records; done, these with their ports.
	written map[string]srvName
	done    map[srvTarget]struct{}
	// addrs are the addresses of the targets, each once; known has the same for lookups.
	addrs []glue
	known map[glue]struct{}
	// skip is how many endpoints are still to be passed over.
	skip int
}

// srvName is the offset of a target's name, and the value of srvWriter.reads for which it
// has records.
type srvName struct{ at, read int }

// srvTarget is a target, identified by the part of its name in front of the service's, and
// a port.
type srvTarget struct {
	prefix string
	number uint16
}

// glue is an address of a target.
type glue struct{ prefix, addr string }

// writeAll writes the records of m. It returns false if the reply has no room for all of
// them or the budget is exhausted.
func (t *srvWriter) writeAll(m *match) bool {
	if m.usesServiceAddrs() {
		if !t.readPorts(m.svc.ports) || len(t.numbers) == 0 {
			return false
		}
		for addr := range m.serviceAddrs().each {
			if !t.writeEndpoint("", "", addr) {
				return false
			}
		}
		return m.node != externalService || t.writeLoadBalancer(m.svc.loadBalancer())
	}
	for _, s := range m.svc.slices {
		if !t.writeSlice(m, s) {
			return false
		}
	}
	return !t.budget.exhausted()
}

// endpoints returns the number of endpoints of m's slices.
func (t *srvWriter) endpoints(m *match) (n int) {
	for _, s := range m.svc.slices {
		n += s.len()
	}
	return n
}

// tooMany reports whether a reply over UDP has no room for a record of each endpoint of m.
func (t *srvWriter) tooMany(m *match) bool {
	limit := t.reply.Limit()
	return limit < wire.MaxMessage && !m.usesServiceAddrs() && t.endpoints(m)*minSRVBytes > limit
}

// writeSample writes the records of m anew, from a random endpoint on: the reply has no room for all, and a client that
// never asks over TCP gets others each time. It returns as writeAll.
func (t *srvWriter) writeSample(m *match) bool {
	n := t.endpoints(m)
	if n == 0 {
		return false
	}
	t.reply.Reset()
	t.reply.SetAuthoritative()
	clear(t.done)
	clear(t.written)
	clear(t.known)
	t.addrs, t.reads, t.ports = t.addrs[:0], 0, ""
	for _, t.skip = range [...]int{rand.IntN(min(n, wire.MaxShuffled)), 0} {
		if !t.writeAll(m) {
			return false
		}
	}
	return true
}

// writeSlice writes the records of the endpoints of s that belong to m; it returns as
// writeAll.
func (t *srvWriter) writeSlice(m *match, s *slice) bool {
	if !t.readPorts(s.ports) {
		return false
	}
	if len(t.numbers) == 0 {
		return true
	}
	for i := range m.endpoints(s, t.budget) {
		if !t.writeEndpoint(s.hostname(i), s.cluster, s.addr(i)) {
			return false
		}
	}
	return true
}

// readPorts reads the numbers of the matching ports of p, each once, and not more than the
// reply can hold. It returns false if the budget is exhausted.
func (t *srvWriter) readPorts(p portList) bool {
	if t.reads > 0 && p == t.ports {
		return t.budget.spend(1 + len(p)/64) // the cost of the comparison
	}
	t.reads++
	t.ports, t.numbers = p, t.numbers[:0]
	most := 1 + t.reply.Limit()/minSRVBytes // an endpoint with more ports fills the reply
	var seen portSet
	for p != "" && len(t.numbers) < most {
		label, proto, number, rest := p.next()
		p = rest
		if !t.budget.spend(1) {
			return false
		}
		if number != 0 && t.port.matches(label, proto) && seen.add(number, t.numbers) {
			t.numbers = append(t.numbers, number)
		}
	}
	return true
}

// portSet is a set of port numbers; nil while there are few.
type portSet []uint64

// maxUnindexedPorts is the number of ports up to which a linear search is used.
const maxUnindexedPorts = 16

// add reports whether number is not in list, which holds all numbers so far.
func (s *portSet) add(number uint16, list []uint16) bool {
	if len(list) < maxUnindexedPorts {
		return !slices.Contains(list, number)
	}
	if *s == nil {
		*s = make(portSet, 1<<16/64)
		for _, n := range list {
			(*s)[n/64] |= 1 << (n % 64)
		}
	}
	at, bit := &(*s)[number/64], uint64(1)<<(number%64)
	isNew := *at&bit == 0
	*at |= bit
	return isNew
}

// writeEndpoint writes the records of the endpoint with that hostname, cluster and address,
// each target and port once. It returns as writeAll.
func (t *srvWriter) writeEndpoint(host, cluster, addr string) bool {
	if t.skip > 0 {
		t.skip--
		return true // the caller has paid for looking at it
	}
	front := host + cluster
	if !t.budget.spend(dedupSteps) {
		return false
	}
	have, ok := t.written[front]
	if !ok || have.read != t.reads {
		var buf [6 + wire.MaxName]byte
		label := joinName(buf[6:6], host, cluster+t.key, t.origin.svc)
		if label == nil {
			return true
		}
		for _, number := range t.numbers {
			at, ok := t.writeRecord(srvTarget{front, number}, buf[:6+len(label)])
			if !ok {
				return false
			}
			if have.at == 0 && at != 0 {
				have.at = at + 6
			}
		}
		have.read = t.reads
		t.written[front] = have
	}
	t.addGlue(glue{front, addr})
	return true
}

// addGlue adds an address of a target, once.
func (t *srvWriter) addGlue(g glue) {
	if _, dup := t.known[g]; !dup && len(t.addrs) < wire.MaxAddrs {
		t.known[g] = struct{}{}
		t.addrs = append(t.addrs, g)
	}
}

// writeRecord writes one record, unless it has been written. rdata is its RDATA, of which
// the 6 bytes before the name are set here. at is the offset of the RDATA, 0 if there was
// none to write. ok is false if the reply has no room for more.
func (t *srvWriter) writeRecord(to srvTarget, rdata []byte) (at int, ok bool) {
	if _, dup := t.done[to]; dup {
		return 0, t.budget.spend(dedupSteps)
	}
	if !t.budget.spend(recordSteps) {
		return 0, false
	}
	t.done[to] = struct{}{}
	binary.BigEndian.PutUint16(rdata[0:], 0) // priority
	binary.BigEndian.PutUint16(rdata[2:], t.weight)
	binary.BigEndian.PutUint16(rdata[4:], to.number)
	at = t.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeSRV, t.ttl, rdata)
	return at, !t.reply.Overflows()
}

// writeSRV writes m's SRV records and the addresses of their targets.
func writeSRV(w *answerWriter, m *match) {
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

// writeLoadBalancer writes the records that lead to the host name of a load balancer, none for "". They have no glue: the name
// would have to be resolved first. It returns as writeAll.
func (t *srvWriter) writeLoadBalancer(to wire.Name) bool {
	if to == "" {
		return true
	}
	var buf [6 + wire.MaxName]byte
	rdata := append(buf[:6], to...)
	for _, number := range t.numbers {
		if _, ok := t.writeRecord(srvTarget{string(to), number}, rdata); !ok {
			return false
		}
	}
	return true
}
