package kubernetes

import (
	"iter"

	"github.com/nodens-dns/nodens/internal/wire"
)

// hostnameMatch selects endpoints by the label of their name.
type hostnameMatch struct {
	label []byte
	// addr is the address whose dashed form is label; none if label is something else.
	addr packedAddr
	// cluster is the length of the label, in wire form, that follows label in the qname if it
	// names the cluster of a ServiceImport's endpoint. It is no slice because every query
	// copies a hostnameMatch.
	cluster uint8
}

// inCluster reports whether s belongs to the cluster that h selects.
func (h *hostnameMatch) inCluster(s *slice) bool {
	n := len(h.label)
	return s.cluster == string(h.label[n:n+int(h.cluster)])
}

func newHostnameMatch(label []byte) hostnameMatch {
	h := hostnameMatch{label: label}
	a, ok := parseDashed(label)
	if !ok {
		return h
	}
	// Another spelling of the address (fd00-0-0--1) is another name.
	var buf [wire.MaxLabel]byte
	if string(appendDashed(buf[:0], string(a.bytes[:a.size]))) == string(label) {
		h.addr = a
	}
	return h
}

// nextEndpoint returns the first endpoint of s from i on that h selects, s.len() if there
// is none.
func (h *hostnameMatch) nextEndpoint(s *slice, i int) int {
	n := s.len()
	if !h.inCluster(s) {
		return n
	}
	if s.hosts == nil { // all are dashed addresses without duplicates
		if int(h.addr.size) != s.size {
			return n
		}
		i = max(i, s.searchAddr(string(h.addr.bytes[:s.size])))
		if i < n && !h.addr.equals(s.addr(i)) {
			return n
		}
		return i
	}
	if s.byHost != nil {
		return min(s.byHost.next(s, h.label, i), h.nextDashed(s, i))
	}
	for i < n && !h.selects(s, i) {
		i++
	}
	return i
}

// nextDashed returns the first endpoint of s from i on that has no hostname and the address
// that h's label stands for; s.len() if there is none.
func (h *hostnameMatch) nextDashed(s *slice, i int) int {
	if int(h.addr.size) != s.size {
		return s.len()
	}
	i = max(i, s.searchAddr(string(h.addr.bytes[:s.size])))
	for ; i < s.len() && h.addr.equals(s.addr(i)); i++ {
		if s.hosts[i] == "" {
			return i
		}
	}
	return s.len()
}

// hostnameIndex is the endpoints of a slice in the order of their hostnames.
type hostnameIndex struct {
	list           []uint16
	duplicateAddrs bool // an address occurs twice
}

// maxUnindexedHosts is the number of hostnames up to which a linear search is as fast as
// the index.
const maxUnindexedHosts = 8

// next returns the first endpoint of s from i on whose hostname is label, s.len() if there
// is none.
func (o *hostnameIndex) next(s *slice, label []byte, i int) int {
	lo, hi := 0, len(o.list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		at := int(o.list[mid])
		if host := s.hosts[at]; host < string(label) || host == string(label) && at < i {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(o.list) && s.hosts[o.list[lo]] == string(label) {
		return int(o.list[lo])
	}
	return s.len()
}

// selects reports whether h selects endpoint i of s. s is in h's cluster.
func (h *hostnameMatch) selects(s *slice, i int) bool {
	if host := s.host(i); host != "" {
		return host == string(h.label)
	}
	return h.addr.equals(s.addr(i))
}

// cost is the number of steps of a search for h in s.
func (h *hostnameMatch) cost(s *slice) int {
	switch {
	case s.hosts == nil:
		return sliceSteps
	case s.byHost != nil:
		return 2 * sliceSteps
	}
	return sliceSteps + s.len()
}

// bestRank returns the rank of the nearest endpoint of m that s has at addr, 0 if there is
// none.
func (m *match) bestRank(s *slice, addr string) (r rank) {
	if m.node == endpointName && !m.host.inCluster(s) {
		return 0
	}
	for i := s.searchAddr(addr); i < s.len() && s.addr(i) == addr; i++ {
		if m.includes(s, i) {
			r = max(r, s.locality(i).rank())
		}
	}
	return r
}

// includes reports whether endpoint i of s belongs to m.
func (m *match) includes(s *slice, i int) bool {
	switch m.node {
	case endpointName:
		return m.host.selects(s, i)
	case zonalName:
		return s.inZone(i, m.zone)
	}
	return true
}

// next returns the first endpoint of s from i on that may belong to m.
func (m *match) next(s *slice, i int) int {
	switch m.node {
	case endpointName:
		return m.host.nextEndpoint(s, i)
	case zonalName:
		return s.nextInZone(m.zone, i)
	}
	return i
}

// endpoints iterates over the endpoints of s that belong to m, until b is exhausted.
func (m *match) endpoints(s *slice, b *Budget) iter.Seq[int] {
	return func(yield func(int) bool) {
		i, passed := m.next(s, 0), 0 // endpoints before passed are charged
		for ; i < s.len(); i = m.next(s, i+1) {
			if !b.spend(1+i-passed) || !yield(i) {
				return
			}
			passed = i
		}
		b.spend(1 + i - passed)
	}
}

// singleAddr returns the address of the endpoint with m's name, and the number of such
// endpoints up to 2. Nearly always there is one, which needs no deduplication.
func (m *match) singleAddr(size int, b *Budget) (addr string, n int) {
	for _, s := range m.svc.slices {
		if !b.spend(m.host.cost(s)) {
			return "", 0
		}
		if s.size != size {
			continue
		}
		for i := m.host.nextEndpoint(s, 0); i < s.len(); i = m.host.nextEndpoint(s, i+1) {
			if n++; n == 2 {
				return "", 2
			}
			addr = s.addr(i)
		}
	}
	return addr, n
}

// endpointWriter writes the addresses of several endpoints.
type endpointWriter struct {
	w     *answerWriter
	m     *match
	owner int
	// slices may contain the endpoints.
	slices []*slice
	// seen holds the addresses written so far; nil if there are few, which are compared with
	// each other.
	seen map[string]struct{}
	full bool // the reply has no room
}

// writeEndpointAddrs writes the addresses of the endpoints that m selects, each once: the
// nearest first if the zone is ordered, in random order within a distance.
func writeEndpointAddrs(w *answerWriter, m *match, owner int, qtype uint16) {
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

// maxComparisons is the number of comparisons up to which duplicates are found without a
// set, and without its memory. A service of 200 endpoints in two slices needs 400.
const maxComparisons = 512

// matchesPort reports whether s has the port that m names, if it names one.
func (m *match) matchesPort(s *slice, b *Budget) bool {
	return m.node != portName || b.spend(s.ports.steps()) && s.ports.has(m.port)
}

// stackSlices is how many slices need no heap memory.
const stackSlices = 8

// candidateSlices appends the slices with addresses of that size that may contain m's
// endpoints. many reports whether they are too many to compare each address with all
// others. The result is meaningless once b is exhausted.
func (m *match) candidateSlices(list []*slice, size int, b *Budget) (all []*slice, many bool) {
	n, repeated := 0, 0
	for _, s := range m.svc.slices {
		if !b.spend(sliceSteps) {
			return list, false
		}
		if s.size != size || s.addrs == "" || !m.matchesPort(s, b) {
			continue
		}
		list = append(list, s)
		n += s.len()
		if s.hasDuplicateAddrs() {
			repeated += s.len() // the address may occur as often
		}
	}
	lists := len(list) + repeated
	if lists < 2 {
		return list, false
	}
	return list, lists*n > maxComparisons || !b.spend(2*lists*n)
}

// writeRank writes the addresses of rank r in slice n that have not been written.
func (g *endpointWriter) writeRank(n int, r rank) {
	s := g.slices[n]
	if g.full || s.localities == "" && r != otherRank {
		return
	}
	passed := 0 // endpoints before it are charged
	for i := g.m.next(s, 0); i < s.len(); i = g.m.next(s, i+1) {
		if i-passed >= budgetBatch {
			if !g.w.budget.spend(i - passed) {
				return
			}
			passed = i
		}
		if s.locality(i).rank() == r && g.isNew(n, i, r) {
			g.w.writeAddr(wire.Answer, g.owner, s.addr(i))
			if g.full = g.w.enoughAddrs(); g.full {
				return
			}
		}
	}
	g.w.budget.spend(s.len() - passed)
}

// budgetBatch is how many endpoints are charged at once: charging each costs as much as the
// look at it.
const budgetBatch = 32

// isNew reports whether the address of endpoint i, of rank r, in slice n is to be written.
func (g *endpointWriter) isNew(n, i int, r rank) bool {
	if g.seen == nil {
		return !g.isDuplicate(n, i, r)
	}
	addr := g.slices[n].addr(i)
	_, dup := g.seen[addr]
	if !dup && g.w.budget.spend(dedupSteps) {
		g.seen[addr] = struct{}{}
	}
	return !dup
}

// isDuplicate reports whether the address of endpoint i, of rank r, in slice n is written
// for another endpoint: a nearer one, or an earlier one at the same distance.
func (g *endpointWriter) isDuplicate(n, i int, r rank) bool {
	s := g.slices[n]
	if s.hosts != nil && g.m.duplicateInSlice(s, i, r) {
		return true
	}
	addr := s.addr(i)
	for _, other := range g.slices[:n] {
		if g.m.bestRank(other, addr) >= r {
			return true
		}
	}
	for _, other := range g.slices[n+1:] {
		if other.localities != "" && g.m.bestRank(other, addr) > r { // otherwise nothing in it is nearer
			return true
		}
	}
	return false
}

// duplicateInSlice is isDuplicate within one slice, where an address occurs once for each
// of its hostnames.
func (m *match) duplicateInSlice(s *slice, i int, r rank) bool {
	addr := s.addr(i)
	for j := i - 1; j >= 0 && s.addr(j) == addr; j-- {
		if m.includes(s, j) && s.locality(j).rank() >= r {
			return true
		}
	}
	for j := i + 1; j < s.len() && s.addr(j) == addr; j++ {
		if m.includes(s, j) && s.locality(j).rank() > r {
			return true
		}
	}
	return false
}

// addrSize returns the RDATA length of an address of qtype.
func addrSize(qtype uint16) int {
	if qtype == wire.TypeA {
		return 4
	}
	return 16
}

// usesServiceAddrs reports whether m's SRV records are made of the service's own addresses
// and ports, and not of its endpoints'.
func (m *match) usesServiceAddrs() bool {
	return m.node == externalService || m.node != endpointName && m.svc.kind == clusterIP
}

// serviceAddrs returns the addresses that these records lead to.
func (m *match) serviceAddrs() addrSet {
	if m.node == externalService {
		return addrSet{m.svc.external4, m.svc.external6}
	}
	return addrSet{m.svc.v4, m.svc.v6}
}

// pairCount returns the number of pairs that m's SRV records are made of, up to [maxPairs].
func (m *match) pairCount(b *Budget) (n int) {
	switch m.node {
	case externalService, serviceName, portName, endpointName, zonalName:
	default:
		return 0
	}
	switch {
	case m.node == externalService:
		return min(maxPairs, m.port.count(m.svc.ports, b)*m.svc.externalTargets())
	case m.usesServiceAddrs():
		list := m.serviceAddrs()
		return min(maxPairs, m.port.count(m.svc.ports, b)*(len(list.v4)/4+len(list.v6)/16))
	case !m.svc.hasEndpoints():
		return 0
	}
	for _, s := range m.svc.slices {
		if n += m.pairsInSlice(s, b); n >= maxPairs {
			return maxPairs
		}
	}
	return n
}

// pairsInSlice is pairCount for the endpoints of s that belong to m.
func (m *match) pairsInSlice(s *slice, b *Budget) (n int) {
	per := m.port.count(s.ports, b)
	if s.ports == "" && m.port.isAny() {
		per = 1 // no record, but part of the weight, like a port without a number
	}
	if per == 0 {
		return 0
	}
	for range m.endpoints(s, b) {
		if n += per; n >= maxPairs {
			break
		}
	}
	return n
}
