package kubernetes

import "github.com/nodens-dns/nodens/internal/wire"

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

// hasMember reports whether h selects an endpoint of s.
func (s *service) hasMember(h *hostMatch) bool {
	for _, sl := range s.slices {
		if h.next(sl, 0) < sl.len() {
			return true
		}
	}
	return false
}

// selects reports whether the slice s has an endpoint of m at the address addr.
func (m *match) selects(s *slice, addr string) bool {
	if s.size != len(addr) || !m.usable(s) || m.node == member && !m.host.in(s) {
		return false
	}
	for i := s.search(addr); i < s.len() && s.addr(i) == addr; i++ {
		if m.node != member || m.host.selects(s, i) {
			return true
		}
	}
	return false
}

// usable reports whether m's port, if it names one, is a port of s.
func (m *match) usable(s *slice) bool { return m.node != port || s.ports.has(m.port) }

// step is the next endpoint of s from i on that is m's.
func (m *match) step(s *slice, i int) int {
	if m.node == member {
		return m.host.next(s, i)
	}
	return i
}

// members writes the addresses of the endpoints that m selects, each once. Slices
// are in order of address, so that looking for one in the slices before is cheap
// where it is needed at all: with more than one slice.
func (w *writer) members(m *match, owner int, qtype uint16) {
	size := addrSize(qtype)
	for n, s := range m.svc.slices {
		if s.size != size || !m.usable(s) {
			continue
		}
		last := ""
		for i := m.step(s, 0); i < s.len(); i = m.step(s, i+1) {
			addr := s.addr(i)
			if addr == last || m.earlier(n, addr) {
				continue
			}
			last = addr
			w.addr(wire.Answer, owner, addr)
		}
	}
}

// earlier reports whether m's address addr is in one of its first n slices.
func (m *match) earlier(n int, addr string) bool {
	for _, s := range m.svc.slices[:n] {
		if m.selects(s, addr) {
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
