package kubernetes

import (
	"iter"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// hostnameMatch selects endpoints by their label.
type hostnameMatch struct {
	label []byte
	// addr is the address that label is the dashed form of; none if it isn't.
	addr packedAddr
	// cluster is the length of the label, in wire form, that stands behind label in the
	// qname, where that is an import's cluster. Every query copies a hostMatch around,
	// so it has no third slice.
	cluster uint8
}

// inCluster reports whether s is of the cluster that h selects.
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
	// Other spellings of the address (fd00-0-0--1) are other names.
	var buf [wire.MaxLabel]byte
	if string(appendDashed(buf[:0], string(a.bytes[:a.size]))) == string(label) {
		h.addr = a
	}
	return h
}

// nextEndpoint is the first endpoint of s from i on that h selects, s.len() if none is.
func (h *hostnameMatch) nextEndpoint(s *slice, i int) int {
	n := s.len()
	if !h.inCluster(s) {
		return n
	}
	if s.hosts == nil { // all are dashed addresses, and each is there once
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

// nextDashed is the first endpoint of s from i on that goes by the address that h's label
// stands for, s.len() if none does.
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

// hostnameIndex is the endpoints of a slice in the order of their hosts.
type hostnameIndex struct {
	list           []uint16
	duplicateAddrs bool // an address is there twice
}

// maxUnindexedHosts is how many hosts are looked through one by one: in the time that takes a search
// gets nowhere.
const maxUnindexedHosts = 8

// indexHosts prepares looking for a host in s.
func (s *slice) indexHosts() {
	n := len(s.hosts)
	if n <= maxUnindexedHosts || n > 1<<16 || s.byHost != nil {
		return
	}
	o := hostnameIndex{list: make([]uint16, n), duplicateAddrs: s.hasDuplicateAddrs()}
	for i := range o.list {
		o.list[i] = uint16(i)
	}
	slices.SortStableFunc(o.list, func(a, b uint16) int { return strings.Compare(s.hosts[a], s.hosts[b]) })
	s.byHost = &o
}

// next is the first endpoint of s from i on whose host is label, s.len() if none is.
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

// selects reports whether h, which is in s, selects endpoint i of it.
func (h *hostnameMatch) selects(s *slice, i int) bool {
	if host := s.host(i); host != "" {
		return host == string(h.label)
	}
	return h.addr.equals(s.addr(i))
}

// cost is what it takes to look for h in s.
func (h *hostnameMatch) cost(s *slice) int {
	switch {
	case s.hosts == nil:
		return sliceSteps
	case s.byHost != nil:
		return 2 * sliceSteps
	}
	return sliceSteps + s.len()
}

// hasEndpoint reports whether h selects an endpoint of s.
func (s *service) hasEndpoint(h *hostnameMatch, b *Budget) bool {
	for _, sl := range s.slices {
		if !b.spend(h.cost(sl)) {
			return false
		}
		if h.nextEndpoint(sl, 0) < sl.len() {
			return true
		}
	}
	return false
}

// bestRank is the rank of the nearest endpoint of m that the slice s has at the address
// addr, 0 if it has none.
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

// includes reports whether endpoint i of s is m's.
func (m *match) includes(s *slice, i int) bool {
	switch m.node {
	case endpointName:
		return m.host.selects(s, i)
	case zonalName:
		return s.inZone(i, m.zone)
	}
	return true
}

// next is the next endpoint of s from i on that is m's.
func (m *match) next(s *slice, i int) int {
	switch m.node {
	case endpointName:
		return m.host.nextEndpoint(s, i)
	case zonalName:
		return s.nextInZone(m.zone, i)
	}
	return i
}

// endpoints goes over the endpoints of s that are m's, until b is spent.
func (m *match) endpoints(s *slice, b *Budget) iter.Seq[int] {
	return func(yield func(int) bool) {
		i, passed := m.next(s, 0), 0 // up to passed all are paid for
		for ; i < s.len(); i = m.next(s, i+1) {
			if !b.spend(1+i-passed) || !yield(i) {
				return
			}
			passed = i
		}
		b.spend(1 + i - passed)
	}
}

// writeEndpointAddrs writes the addresses of the endpoints that m selects, each once: the
// nearest first, if the zone's answers have an order, and at random within a distance.
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

// singleAddr is the address of the endpoint that goes by m's name, and how many there are:
// nearly always it is one, and going through them once is enough. Two is as far as it
// counts.
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

// endpointWriter is what writing the addresses of several endpoints takes.
type endpointWriter struct {
	w     *answerWriter
	m     *match
	owner int
	// slices is the slices that they may be in.
	slices []*slice
	// seen holds the addresses that are written, where there are too many to compare each
	// with all others; nil where there are few.
	seen map[string]struct{}
	full bool // no more can be written
}

// maxComparisons is how many times an address is compared with those of another slice: a service
// of 200 endpoints, which has two, needs 400. That takes no memory. With twice as many a
// set is cheaper.
const maxComparisons = 512

// matchesPort reports whether m's port, if it names one, is a port of s.
func (m *match) matchesPort(s *slice, b *Budget) bool {
	return m.node != portName || b.spend(s.ports.steps()) && s.ports.has(m.port)
}

// stackSlices is how many slices need no place on the heap.
const stackSlices = 8

// candidateSlices appends the slices with addresses of the given size that m's may be among. many
// says that these are too many to compare each with all others. Once b is spent, what it
// gives means nothing.
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
			repeated += s.len() // an address may be there as often
		}
	}
	lists := len(list) + repeated
	if lists < 2 {
		return list, false
	}
	return list, lists*n > maxComparisons || !b.spend(2*lists*n)
}

// writeRank writes the addresses of rank r in slice n that are not written yet.
func (g *endpointWriter) writeRank(n int, r rank) {
	s := g.slices[n]
	if g.full || s.localities == "" && r != otherRank {
		return
	}
	passed := 0 // endpoints that are paid for
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

// budgetBatch is how many endpoints are looked at before they are paid for: to do it with
// each costs as much as the look.
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
// without it: there is a nearer one with that address, or one before it. Slices are in
// order of address, so that looking for one in the others is cheap where it is needed at
// all: with more than one slice.
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
		if other.localities != "" && g.m.bestRank(other, addr) > r { // else nothing is nearer there
			return true
		}
	}
	return false
}

// duplicateInSlice is known within one slice: an address is there once for each of its hosts.
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

// addrSize is the RDATA length of an address of qtype.
func addrSize(qtype uint16) int {
	if qtype == wire.TypeA {
		return 4
	}
	return 16
}
