package kubernetes

import (
	"iter"

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
	for i < n && !h.selects(s, i) {
		i++
	}
	return i
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
	if s.hosts == nil {
		return 1
	}
	return 1 + s.len()
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
	if s.size != len(addr) || !m.usable(s) || m.node == member && !m.host.in(s) {
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

// usable reports whether m's port, if it names one, is a port of s.
func (m *match) usable(s *slice) bool { return m.node != port || s.ports.has(m.port) }

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
	g := gathering{w: w, m: m, owner: owner}
	if !g.begin(size) {
		return
	}
	for _, r := range [...]rank{nodeRank, zoneRank, farther} {
		before := w.reply.Count(wire.Answer)
		for n, s := range m.svc.slices {
			if s.size == size && m.usable(s) {
				g.ranked(n, r)
			}
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
		if s.size != size {
			continue
		}
		if !b.take(m.host.steps(s)) {
			return "", 0
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
	// seen holds the addresses that are written, where there are too many to compare each
	// with all others; nil where there are few.
	seen map[string]struct{}
	full bool // no more can be written
}

// compared is how many times an address is compared with those of another slice: a service
// of 250 endpoints, which has three, needs 750. That takes no memory. With twice as many a
// set is cheaper.
const compared = 1024

// begin prepares g for addresses of the given size; false if the budget is spent.
func (g *gathering) begin(size int) bool {
	n, lists := 0, len(g.m.svc.slices)
	for _, s := range g.m.svc.slices {
		if !g.w.budget.take(1) {
			return false
		}
		if s.size != size || !g.m.usable(s) {
			continue
		}
		n += s.len()
		if s.hosts == nil {
			continue
		}
		if !g.w.budget.take(s.len()) {
			return false
		}
		if s.repeats() {
			lists += s.len() // an address may be there as often
		}
	}
	switch {
	case lists*n <= compared:
		return g.w.budget.take(lists * n)
	case lists > 1:
		g.seen = make(map[string]struct{})
	}
	return true
}

// ranked writes the addresses of rank r in slice n that are not written yet.
func (g *gathering) ranked(n int, r rank) {
	s := g.m.svc.slices[n]
	if g.full || s.near == "" && r != farther {
		return
	}
	for i := range g.m.steps(s, g.w.budget) {
		if s.place(i).rank() == r && g.fresh(n, i, r) {
			g.w.addr(wire.Answer, g.owner, s.addr(i))
			if g.full = g.w.enoughAddrs(); g.full {
				return
			}
		}
	}
}

// fresh reports whether the address of endpoint i, of rank r, in slice n is to be written.
func (g *gathering) fresh(n, i int, r rank) bool {
	if g.seen == nil {
		return !g.m.known(n, i, r)
	}
	addr := g.m.svc.slices[n].addr(i)
	_, dup := g.seen[addr]
	if !dup && g.w.budget.take(seenSteps) {
		g.seen[addr] = struct{}{}
	}
	return !dup
}

// known reports whether the address of endpoint i, of rank r, in m's slice n is
// written without it: there is a nearer one with that address, or one before it.
// Slices are in order of address, so that looking for one in the others is cheap
// where it is needed at all: with more than one slice.
func (m *match) known(n, i int, r rank) bool {
	s := m.svc.slices[n]
	if s.hosts != nil && m.again(s, i, r) {
		return true
	}
	addr := s.addr(i)
	for _, other := range m.svc.slices[:n] {
		if m.best(other, addr) >= r {
			return true
		}
	}
	for _, other := range m.svc.slices[n+1:] {
		if other.near != "" && m.best(other, addr) > r { // else nothing is nearer there
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
