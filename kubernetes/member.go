package kubernetes

import (
	"iter"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// hostMatch selects endpoints by their label.
type hostMatch struct {
	label []byte
	// addr is the address that label is the dashed form of; none if it isn't.
	addr packedAddr
	// cluster is the length of the label, in wire form, that stands behind label in the
	// qname, where that is an import's cluster. Every query copies a hostMatch around,
	// so it has no third slice.
	cluster uint8
}

// in reports whether s is of the cluster that h selects.
func (h *hostMatch) in(s *slice) bool {
	n := len(h.label)
	return s.cluster == string(h.label[n:n+int(h.cluster)])
}

func hostOf(label []byte) hostMatch {
	h := hostMatch{label: label}
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

// next is the first endpoint of s from i on that h selects, s.len() if none is.
func (h *hostMatch) next(s *slice, i int) int {
	n := s.len()
	if !h.in(s) {
		return n
	}
	if s.hosts == nil { // all are dashed addresses, and each is there once
		if int(h.addr.size) != s.size {
			return n
		}
		i = max(i, s.search(string(h.addr.bytes[:s.size])))
		if i < n && !h.addr.is(s.addr(i)) {
			return n
		}
		return i
	}
	if s.byHost != nil {
		return min(s.byHost.next(s, h.label, i), h.dashed(s, i))
	}
	for i < n && !h.selects(s, i) {
		i++
	}
	return i
}

// dashed is the first endpoint of s from i on that goes by the address that h's label
// stands for, s.len() if none does.
func (h *hostMatch) dashed(s *slice, i int) int {
	if int(h.addr.size) != s.size {
		return s.len()
	}
	i = max(i, s.search(string(h.addr.bytes[:s.size])))
	for ; i < s.len() && h.addr.is(s.addr(i)); i++ {
		if s.hosts[i] == "" {
			return i
		}
	}
	return s.len()
}

// hostOrder is the endpoints of a slice in the order of their hosts.
type hostOrder struct {
	list    []uint16
	repeats bool // an address is there twice
}

// fewHosts is how many hosts are looked through one by one: in the time that takes a search
// gets nowhere.
const fewHosts = 8

// sortHosts prepares looking for a host in s.
func (s *slice) sortHosts() {
	n := len(s.hosts)
	if n <= fewHosts || n > 1<<16 || s.byHost != nil {
		return
	}
	o := hostOrder{list: make([]uint16, n), repeats: s.repeats()}
	for i := range o.list {
		o.list[i] = uint16(i)
	}
	slices.SortStableFunc(o.list, func(a, b uint16) int { return strings.Compare(s.hosts[a], s.hosts[b]) })
	s.byHost = &o
}

// next is the first endpoint of s from i on whose host is label, s.len() if none is.
func (o *hostOrder) next(s *slice, label []byte, i int) int {
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
func (h *hostMatch) selects(s *slice, i int) bool {
	if host := s.host(i); host != "" {
		return host == string(h.label)
	}
	return h.addr.is(s.addr(i))
}

// steps is what it takes to look for h in s.
func (h *hostMatch) steps(s *slice) int {
	switch {
	case s.hosts == nil:
		return sliceSteps
	case s.byHost != nil:
		return 2 * sliceSteps
	}
	return sliceSteps + s.len()
}

// hasMember reports whether h selects an endpoint of s.
func (s *service) hasMember(h *hostMatch, b *Budget) bool {
	for _, sl := range s.slices {
		if !b.take(h.steps(sl)) {
			return false
		}
		if h.next(sl, 0) < sl.len() {
			return true
		}
	}
	return false
}

// best is the rank of the nearest endpoint of m that the slice s has at the address
// addr, 0 if it has none.
func (m *match) best(s *slice, addr string) (r rank) {
	if m.node == member && !m.host.in(s) {
		return 0
	}
	for i := s.search(addr); i < s.len() && s.addr(i) == addr; i++ {
		if m.takes(s, i) {
			r = max(r, s.place(i).rank())
		}
	}
	return r
}

// takes reports whether endpoint i of s is m's.
func (m *match) takes(s *slice, i int) bool {
	switch m.node {
	case member:
		return m.host.selects(s, i)
	case zonal:
		return s.inZone(i, m.zone)
	}
	return true
}

// step is the next endpoint of s from i on that is m's.
func (m *match) step(s *slice, i int) int {
	switch m.node {
	case member:
		return m.host.next(s, i)
	case zonal:
		return s.nextIn(m.zone, i)
	}
	return i
}

// steps goes over the endpoints of s that are m's, until b is spent.
func (m *match) steps(s *slice, b *Budget) iter.Seq[int] {
	return func(yield func(int) bool) {
		i, passed := m.step(s, 0), 0 // up to passed all are paid for
		for ; i < s.len(); i = m.step(s, i+1) {
			if !b.take(1+i-passed) || !yield(i) {
				return
			}
			passed = i
		}
		b.take(1 + i - passed)
	}
}

// members writes the addresses of the endpoints that m selects, each once: the
// nearest first, if the zone's answers have an order, and at random within a distance.
func (w *writer) members(m *match, owner int, qtype uint16) {
	size := addrSize(qtype)
	if m.node == member {
		if addr, n := m.lone(size, w.budget); n < 2 {
			w.reply.AddAddrs(wire.Answer, owner, qtype, w.ttl, addr)
			return
		}
	}
	var few [fewSlices]*slice
	list, many := m.among(few[:0], size, w.budget)
	if w.budget.spent() {
		return
	}
	g := gathering{w: w, m: m, owner: owner, list: list}
	if many {
		g.seen = make(map[string]struct{})
	}
	for _, r := range [...]rank{nodeRank, zoneRank, farther} {
		before := w.reply.Count(wire.Answer)
		for n := range g.list {
			g.ranked(n, r)
		}
		if n := w.reply.Count(wire.Answer) - before; w.zone.ordered {
			w.reply.ShuffleLast(n, qtype)
		}
	}
}

// lone is the address of the endpoint that goes by m's name, and how many there are:
// nearly always it is one, and going through them once is enough. Two is as far as it
// counts.
func (m *match) lone(size int, b *Budget) (addr string, n int) {
	for _, s := range m.svc.slices {
		if !b.take(m.host.steps(s)) {
			return "", 0
		}
		if s.size != size {
			continue
		}
		for i := m.host.next(s, 0); i < s.len(); i = m.host.next(s, i+1) {
			if n++; n == 2 {
				return "", 2
			}
			addr = s.addr(i)
		}
	}
	return addr, n
}

// gathering is what writing the addresses of several endpoints takes.
type gathering struct {
	w     *writer
	m     *match
	owner int
	// list is the slices that they may be in.
	list []*slice
	// seen holds the addresses that are written, where there are too many to compare each
	// with all others; nil where there are few.
	seen map[string]struct{}
	full bool // no more can be written
}

// compared is how many times an address is compared with those of another slice: a service
// of 200 endpoints, which has two, needs 400. That takes no memory. With twice as many a
// set is cheaper.
const compared = 512

// usable reports whether m's port, if it names one, is a port of s.
func (m *match) usable(s *slice, b *Budget) bool {
	return m.node != port || b.take(s.ports.steps()) && s.ports.has(m.port)
}

// fewSlices is how many slices need no place on the heap.
const fewSlices = 8

// among appends the slices with addresses of the given size that m's may be among. many
// says that these are too many to compare each with all others. Once b is spent, what it
// gives means nothing.
func (m *match) among(list []*slice, size int, b *Budget) (all []*slice, many bool) {
	n, repeated := 0, 0
	for _, s := range m.svc.slices {
		if !b.take(sliceSteps) {
			return list, false
		}
		if s.size != size || s.addrs == "" || !m.usable(s, b) {
			continue
		}
		list = append(list, s)
		n += s.len()
		if s.repeats() {
			repeated += s.len() // an address may be there as often
		}
	}
	lists := len(list) + repeated
	if lists < 2 {
		return list, false
	}
	return list, lists*n > compared || !b.take(2*lists*n)
}

// ranked writes the addresses of rank r in slice n that are not written yet.
func (g *gathering) ranked(n int, r rank) {
	s := g.list[n]
	if g.full || s.near == "" && r != farther {
		return
	}
	passed := 0 // endpoints that are paid for
	for i := g.m.step(s, 0); i < s.len(); i = g.m.step(s, i+1) {
		if i-passed >= paidAtOnce {
			if !g.w.budget.take(i - passed) {
				return
			}
			passed = i
		}
		if s.place(i).rank() == r && g.fresh(n, i, r) {
			g.w.addr(wire.Answer, g.owner, s.addr(i))
			if g.full = g.w.enoughAddrs(); g.full {
				return
			}
		}
	}
	g.w.budget.take(s.len() - passed)
}

// paidAtOnce is how many endpoints are looked at before they are paid for: to do it with
// each costs as much as the look.
const paidAtOnce = 32

// fresh reports whether the address of endpoint i, of rank r, in slice n is to be written.
func (g *gathering) fresh(n, i int, r rank) bool {
	if g.seen == nil {
		return !g.known(n, i, r)
	}
	addr := g.list[n].addr(i)
	_, dup := g.seen[addr]
	if !dup && g.w.budget.take(seenSteps) {
		g.seen[addr] = struct{}{}
	}
	return !dup
}

// known reports whether the address of endpoint i, of rank r, in slice n is written
// without it: there is a nearer one with that address, or one before it. Slices are in
// order of address, so that looking for one in the others is cheap where it is needed at
// all: with more than one slice.
func (g *gathering) known(n, i int, r rank) bool {
	s := g.list[n]
	if s.hosts != nil && g.m.again(s, i, r) {
		return true
	}
	addr := s.addr(i)
	for _, other := range g.list[:n] {
		if g.m.best(other, addr) >= r {
			return true
		}
	}
	for _, other := range g.list[n+1:] {
		if other.near != "" && g.m.best(other, addr) > r { // else nothing is nearer there
			return true
		}
	}
	return false
}

// again is known within one slice: an address is there once for each of its hosts.
func (m *match) again(s *slice, i int, r rank) bool {
	addr := s.addr(i)
	for j := i - 1; j >= 0 && s.addr(j) == addr; j-- {
		if m.takes(s, j) && s.place(j).rank() >= r {
			return true
		}
	}
	for j := i + 1; j < s.len() && s.addr(j) == addr; j++ {
		if m.takes(s, j) && s.place(j).rank() > r {
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
