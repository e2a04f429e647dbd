package main

import (
	"encoding/binary"
	"math/rand/v2"
)

const (
	// headerLen is the length of the header (RFC 1035, 4.1.1).
	headerLen = 12
	// maxDatagram is the longest UDP payload over IPv4: 65,535 less both headers.
	maxDatagram = 65507
	// maxMutations is how many mutations one packet gets at most. One breaks one
	// field and leaves the rest readable, which goes deepest; more than three and
	// nearly all packets fail at the first look.
	maxMutations = 3
)

// mutator breaks packets. The same seed gives the same packets. It belongs to one
// goroutine.
type mutator struct {
	*rand.Rand
	corpus [][]byte
	buf    []byte
	used   []uint64 // how often each of mutations was applied
}

// newMutator makes the mutator number n of those that share a seed.
func newMutator(seed, n uint64, corpus [][]byte) *mutator {
	return &mutator{Rand: rand.New(rand.NewPCG(seed, n)), corpus: corpus, buf: make([]byte, 0, maxDatagram), used: make([]uint64, len(mutations))}
}

// next is a packet of the corpus after one mutation or a few. It is valid until the
// next call.
func (m *mutator) next() []byte { return m.mutate(m.corpus[m.IntN(len(m.corpus))]) }

// mutate is a copy of packet after one mutation or a few, valid until the next call.
func (m *mutator) mutate(packet []byte) []byte {
	b := append(m.buf[:0], packet...)
	n := 1
	if m.IntN(4) == 0 {
		n += m.IntN(maxMutations)
	}
	for range n {
		i := m.pick()
		m.used[i]++
		b = mutations[i].apply(m, b)
	}
	if len(b) > maxDatagram {
		b = b[:maxDatagram]
	}
	m.buf = b[:0]
	return b
}

// pick draws a mutation by weight.
func (m *mutator) pick() int {
	n := m.IntN(totalWeight)
	for i, mu := range mutations {
		if n -= mu.weight; n < 0 {
			return i
		}
	}
	return 0
}

// mutations are the ways to break a packet. Each takes any bytes, none included, and
// may write to them and append. The weight is how often one is drawn: long datagrams
// cost as much as dozens of others.
var mutations = [...]struct {
	name   string
	weight int
	apply  func(m *mutator, b []byte) []byte
}{
	{"flags", 20, func(m *mutator, b []byte) []byte { return m.field(b, 2, uint16(m.Uint32())&^response) }},
	{"opcode", 10, func(m *mutator, b []byte) []byte {
		return m.patch(b, 2, func(v uint16) uint16 { return v&^(0xF<<11) | uint16(m.IntN(16))<<11 })
	}},
	{"response", 20, func(m *mutator, b []byte) []byte {
		return m.patch(b, 2, func(v uint16) uint16 { return v | response })
	}},
	{"count", 40, func(m *mutator, b []byte) []byte { return m.field(b, 4+2*m.IntN(4), m.edge()) }},
	{"label length", 40, (*mutator).label},
	{"pointer", 60, (*mutator).pointer},
	{"type or class", 40, (*mutator).question},
	{"record field", 80, (*mutator).recordField},
	{"option", 40, (*mutator).option},
	{"record more", 20, (*mutator).recordMore},
	{"cut", 60, func(m *mutator, b []byte) []byte { return b[:m.IntN(len(b)+1)] }},
	{"tail", 30, func(m *mutator, b []byte) []byte { return m.garbage(b, m.IntN(600)) }},
	{"long tail", 1, func(m *mutator, b []byte) []byte { return m.garbage(b, m.IntN(maxDatagram)) }},
	{"bytes", 40, func(m *mutator, b []byte) []byte {
		for range min(len(b), 1+m.IntN(8)) {
			b[m.IntN(len(b))] = byte(m.Uint32())
		}
		return b
	}},
	{"bit", 40, func(m *mutator, b []byte) []byte {
		if len(b) > 0 {
			b[m.IntN(len(b))] ^= 1 << m.IntN(8)
		}
		return b
	}},
	{"splice", 40, (*mutator).splice},
	{"shift", 30, (*mutator).shift},
	{"tiny", 10, func(m *mutator, b []byte) []byte { return b[:min(len(b), m.IntN(headerLen))] }},
	{"noise", 10, func(m *mutator, b []byte) []byte { return m.garbage(b[:0], m.IntN(600)) }},
}

// response is the QR bit of the header's second word.
const response = 1 << 15

var totalWeight = func() (n int) {
	for _, mu := range mutations {
		n += mu.weight
	}
	return n
}()

// edge is a number at an edge of 16 bits, or any.
func (m *mutator) edge() uint16 {
	edges := [...]uint16{0, 1, 2, 3, 11, 12, 63, 64, 255, 256, 511, 512, 4096, 0x7FFF, 0x8000, 0xBFFF, 0xC000, 0xFFFE, 0xFFFF}
	if i := m.IntN(len(edges) + 1); i < len(edges) {
		return edges[i]
	}
	return uint16(m.Uint32())
}

// field writes a number at off, if there is room.
func (m *mutator) field(b []byte, off int, v uint16) []byte {
	return m.patch(b, off, func(uint16) uint16 { return v })
}

func (m *mutator) patch(b []byte, off int, f func(uint16) uint16) []byte {
	if off >= 0 && off+2 <= len(b) {
		binary.BigEndian.PutUint16(b[off:], f(binary.BigEndian.Uint16(b[off:])))
	}
	return b
}

func (m *mutator) garbage(b []byte, n int) []byte {
	for range n {
		b = append(b, byte(m.Uint32()))
	}
	return b
}

// label overwrites the length of one label of the question.
func (m *mutator) label(b []byte) []byte {
	l := layoutOf(b)
	if len(l.labels) == 0 {
		return b
	}
	lengths := [...]byte{0, 1, 2, 62, 63, 64, 65, 127, 128, 191, 192, 255}
	b[l.labels[m.IntN(len(l.labels))]] = lengths[m.IntN(len(lengths))]
	return b
}

// pointer puts a compression pointer in the place of a label or of an owner: back,
// forward, at itself, into the header, behind the end, or into a loop of two.
func (m *mutator) pointer(b []byte) []byte {
	l := layoutOf(b)
	at := -1
	if n := len(l.labels) + len(l.records); n > 0 {
		if i := m.IntN(n); i < len(l.labels) {
			at = l.labels[i]
		} else {
			at = l.records[i-len(l.labels)].start
		}
	}
	if at < 0 || at+4 > len(b) {
		return b
	}
	to := [...]int{at, headerLen, at + 2, at + 1, m.IntN(headerLen), m.IntN(at + 1), m.IntN(len(b)), len(b), len(b) - 1, 0x3FFF}[m.IntN(10)]
	if m.IntN(8) == 0 { // there and back again
		m.field(b, at+2, 0xC000|uint16(at))
		to = at + 2
	}
	return m.field(b, at, 0xC000|uint16(to&0x3FFF))
}

func (m *mutator) question(b []byte) []byte {
	if l := layoutOf(b); l.questionEnd > 0 {
		return m.field(b, l.questionEnd-2-2*m.IntN(2), m.edge())
	}
	return b
}

// recordField overwrites a field of a record: type, class (an OPT's size), TTL (its
// rcode, version and flags), RDLENGTH, or a part of its RDATA.
func (m *mutator) recordField(b []byte) []byte {
	l := layoutOf(b)
	if len(l.records) == 0 {
		return b
	}
	r := l.records[m.IntN(len(l.records))]
	if m.IntN(4) == 0 && r.end > r.data {
		return m.field(b, r.data+m.IntN(r.end-r.data), m.edge())
	}
	return m.field(b, r.data-10+2*m.IntN(5), m.edge())
}

// option overwrites the code or the length of an option of the OPT record.
func (m *mutator) option(b []byte) []byte {
	for _, r := range layoutOf(b).records {
		if binary.BigEndian.Uint16(b[r.data-10:]) != typeOPT || r.end-r.data < 4 {
			continue
		}
		var at []int
		for off := r.data; off+4 <= r.end; off += 4 + int(binary.BigEndian.Uint16(b[off+2:])) {
			at = append(at, off, off+2)
		}
		return m.field(b, at[m.IntN(len(at))], m.edge())
	}
	return b
}

const typeOPT = 41

// recordMore appends records, most of them OPT records, and counts some of them.
func (m *mutator) recordMore(b []byte) []byte {
	n := 1 + m.IntN(3)
	if m.IntN(50) == 0 {
		n = m.IntN(4000)
	}
	for range n {
		record := [...]string{
			"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00", "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\xc0\x00\x02\x01",
			"\xc0\x0c\x00\x29\x10\x00\x00\x00\x80\x00\x00\x00", "\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x00",
		}[m.IntN(4)]
		b = append(b, record...)
	}
	section := 6 + 2*m.IntN(3)
	return m.patch(b, section, func(v uint16) uint16 { return v + uint16(n) })
}

// splice is the first part of b and the last of another packet.
func (m *mutator) splice(b []byte) []byte {
	other := m.corpus[m.IntN(len(m.corpus))]
	return append(b[:m.IntN(len(b)+1)], other[m.IntN(len(other)+1):]...)
}

// shift takes out some bytes or puts some in.
func (m *mutator) shift(b []byte) []byte {
	at, n := m.IntN(len(b)+1), 1+m.IntN(4)
	if m.IntN(2) == 0 {
		return append(b[:at], b[min(len(b), at+n):]...)
	}
	b = append(b, make([]byte, n)...)
	copy(b[at+n:], b[at:len(b)-n])
	return b
}

// place is where a record stands: its owner, its RDATA, and the end of that.
type place struct{ start, data, end int }

// layout is where the parts of a packet stand, as far as it can be read.
type layout struct {
	labels      []int // the length bytes of the question's name, the root's too
	questionEnd int   // 0 if it is cut
	records     []place
}

// layoutOf reads any bytes. It looks at no count but to end.
func layoutOf(b []byte) (l layout) {
	off := skip(b, headerLen, &l.labels)
	if off < 0 || off+4 > len(b) {
		return l
	}
	l.questionEnd = off + 4
	for off = l.questionEnd; ; {
		start := off
		if off = skip(b, off, nil); off < 0 || off+10 > len(b) {
			return l
		}
		r := place{start: start, data: off + 10, end: off + 10 + int(binary.BigEndian.Uint16(b[off+8:]))}
		if r.end > len(b) {
			return l
		}
		l.records = append(l.records, r)
		off = r.end
	}
}

// skip gives the offset behind the name at off, -1 if there is none, and appends
// where its labels begin to labels, which may be nil.
func skip(b []byte, off int, labels *[]int) int {
	for off < len(b) {
		if labels != nil {
			*labels = append(*labels, off)
		}
		switch n := int(b[off]); {
		case n == 0:
			return off + 1
		case n >= 0xC0:
			return off + 2
		case n >= 0x40:
			return -1
		default:
			off += 1 + n
		}
	}
	return -1
}
