// Package broken breaks DNS packets: flags, counts, labels, pointers, types, records, options
// and lengths, one at a time or a few, drawn by weight from a seed, so that the same seed
// gives the same packets. It reads a packet as far as it can be read, to break what is there.
package broken

import (
	"encoding/binary"
	"math/rand/v2"
)

const (
	// HeaderLen is the length of the header (RFC 1035, 4.1.1).
	HeaderLen = 12
	// maxDatagram is the longest UDP payload over IPv4: 65,535 less both headers.
	maxDatagram = 65507
	// maxMutations is how many mutations one packet gets at most. One breaks one
	// field and leaves the rest readable, which goes deepest; more than three and
	// nearly all packets fail at the first look.
	maxMutations = 3
)

// Mutator breaks packets. It belongs to one goroutine.
type Mutator struct {
	*rand.Rand
	// Corpus are the packets that are broken, which are not changed.
	Corpus [][]byte
	// Used is how often each mutation was applied, in the order of [Names].
	Used []uint64
	buf  []byte
}

// New makes the mutator number n of those that share a seed.
func New(seed, n uint64, corpus [][]byte) *Mutator {
	return &Mutator{Rand: rand.New(rand.NewPCG(seed, n)), Corpus: corpus, buf: make([]byte, 0, maxDatagram), Used: make([]uint64, len(mutations))}
}

// Next is a packet of the corpus after one mutation or a few. It is valid until the
// next call.
func (m *Mutator) Next() []byte { return m.Mutate(m.Corpus[m.IntN(len(m.Corpus))]) }

// Mutate is a copy of packet after one mutation or a few, valid until the next call.
func (m *Mutator) Mutate(packet []byte) []byte {
	b := append(m.buf[:0], packet...)
	n := 1
	if m.IntN(4) == 0 {
		n += m.IntN(maxMutations)
	}
	for range n {
		i := m.pick()
		m.Used[i]++
		b = mutations[i].apply(m, b)
	}
	if len(b) > maxDatagram {
		b = b[:maxDatagram]
	}
	m.buf = b[:0]
	return b
}

// Names are the mutations.
func Names() []string {
	var names []string
	for _, mu := range mutations {
		names = append(names, mu.name)
	}
	return names
}

// pick draws a mutation by weight.
func (m *Mutator) pick() int {
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
	apply  func(m *Mutator, b []byte) []byte
}{
	{"flags", 20, func(m *Mutator, b []byte) []byte { return m.field(b, 2, uint16(m.Uint32())&^response) }},
	{"opcode", 10, func(m *Mutator, b []byte) []byte {
		return m.patch(b, 2, func(v uint16) uint16 { return v&^(0xF<<11) | uint16(m.IntN(16))<<11 })
	}},
	{"response", 20, func(m *Mutator, b []byte) []byte {
		return m.patch(b, 2, func(v uint16) uint16 { return v | response })
	}},
	{"count", 40, func(m *Mutator, b []byte) []byte { return m.field(b, 4+2*m.IntN(4), m.edge()) }},
	{"label length", 40, (*Mutator).label},
	{"pointer", 60, (*Mutator).pointer},
	{"type or class", 40, (*Mutator).question},
	{"record field", 80, (*Mutator).recordField},
	{"option", 40, (*Mutator).option},
	{"record more", 20, (*Mutator).recordMore},
	{"cut", 60, func(m *Mutator, b []byte) []byte { return b[:m.IntN(len(b)+1)] }},
	{"tail", 30, func(m *Mutator, b []byte) []byte { return m.Garbage(b, m.IntN(600)) }},
	{"long tail", 1, func(m *Mutator, b []byte) []byte { return m.Garbage(b, m.IntN(maxDatagram)) }},
	{"bytes", 40, func(m *Mutator, b []byte) []byte {
		for range min(len(b), 1+m.IntN(8)) {
			b[m.IntN(len(b))] = byte(m.Uint32())
		}
		return b
	}},
	{"bit", 40, func(m *Mutator, b []byte) []byte {
		if len(b) > 0 {
			b[m.IntN(len(b))] ^= 1 << m.IntN(8)
		}
		return b
	}},
	{"splice", 40, (*Mutator).splice},
	{"shift", 30, (*Mutator).shiftBytes},
	{"tiny", 10, func(m *Mutator, b []byte) []byte { return b[:min(len(b), m.IntN(HeaderLen))] }},
	{"noise", 10, func(m *Mutator, b []byte) []byte { return m.Garbage(b[:0], m.IntN(600)) }},
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
func (m *Mutator) edge() uint16 {
	edges := [...]uint16{0, 1, 2, 3, 11, 12, 63, 64, 255, 256, 511, 512, 4096, 0x7FFF, 0x8000, 0xBFFF, 0xC000, 0xFFFE, 0xFFFF}
	if i := m.IntN(len(edges) + 1); i < len(edges) {
		return edges[i]
	}
	return uint16(m.Uint32())
}

// field writes a number at off, if there is room.
func (m *Mutator) field(b []byte, off int, v uint16) []byte {
	return m.patch(b, off, func(uint16) uint16 { return v })
}

func (m *Mutator) patch(b []byte, off int, f func(uint16) uint16) []byte {
	if off >= 0 && off+2 <= len(b) {
		binary.BigEndian.PutUint16(b[off:], f(binary.BigEndian.Uint16(b[off:])))
	}
	return b
}

// Garbage appends n bytes of any kind to b.
func (m *Mutator) Garbage(b []byte, n int) []byte {
	for range n {
		b = append(b, byte(m.Uint32()))
	}
	return b
}

// label overwrites the length of one label of the question.
func (m *Mutator) label(b []byte) []byte {
	l := ParseLayout(b)
	if len(l.Labels) == 0 {
		return b
	}
	lengths := [...]byte{0, 1, 2, 62, 63, 64, 65, 127, 128, 191, 192, 255}
	b[l.Labels[m.IntN(len(l.Labels))]] = lengths[m.IntN(len(lengths))]
	return b
}

// pointer puts a compression pointer in the place of a label or of an owner: back,
// forward, at itself, into the header, behind the end, or into a loop of two.
func (m *Mutator) pointer(b []byte) []byte {
	l := ParseLayout(b)
	at := -1
	if n := len(l.Labels) + len(l.Records); n > 0 {
		if i := m.IntN(n); i < len(l.Labels) {
			at = l.Labels[i]
		} else {
			at = l.Records[i-len(l.Labels)].Start
		}
	}
	if at < 0 || at+4 > len(b) {
		return b
	}
	to := [...]int{at, HeaderLen, at + 2, at + 1, m.IntN(HeaderLen), m.IntN(at + 1), m.IntN(len(b)), len(b), len(b) - 1, 0x3FFF}[m.IntN(10)]
	if m.IntN(8) == 0 { // there and back again
		m.field(b, at+2, 0xC000|uint16(at))
		to = at + 2
	}
	return m.field(b, at, 0xC000|uint16(to&0x3FFF))
}

func (m *Mutator) question(b []byte) []byte {
	if l := ParseLayout(b); l.QuestionEnd > 0 {
		return m.field(b, l.QuestionEnd-2-2*m.IntN(2), m.edge())
	}
	return b
}

// recordField overwrites a field of a record: type, class (an OPT's size), TTL (its
// rcode, version and flags), RDLENGTH, or a part of its RDATA.
func (m *Mutator) recordField(b []byte) []byte {
	l := ParseLayout(b)
	if len(l.Records) == 0 {
		return b
	}
	r := l.Records[m.IntN(len(l.Records))]
	if m.IntN(4) == 0 && r.End > r.Data {
		return m.field(b, r.Data+m.IntN(r.End-r.Data), m.edge())
	}
	return m.field(b, r.Data-10+2*m.IntN(5), m.edge())
}

// option overwrites the code or the length of an option of the OPT record.
func (m *Mutator) option(b []byte) []byte {
	for _, r := range ParseLayout(b).Records {
		if binary.BigEndian.Uint16(b[r.Data-10:]) != TypeOPT || r.End-r.Data < 4 {
			continue
		}
		var at []int
		for off := r.Data; off+4 <= r.End; off += 4 + int(binary.BigEndian.Uint16(b[off+2:])) {
			at = append(at, off, off+2)
		}
		return m.field(b, at[m.IntN(len(at))], m.edge())
	}
	return b
}

// TypeOPT is the type of OPT records (RFC 6891, 6.1.2).
const TypeOPT = 41

// recordMore appends records, most of them OPT records, and counts some of them.
func (m *Mutator) recordMore(b []byte) []byte {
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
func (m *Mutator) splice(b []byte) []byte {
	other := m.Corpus[m.IntN(len(m.Corpus))]
	return append(b[:m.IntN(len(b)+1)], other[m.IntN(len(other)+1):]...)
}

// shiftBytes takes out some bytes or puts some in.
func (m *Mutator) shiftBytes(b []byte) []byte {
	at, n := m.IntN(len(b)+1), 1+m.IntN(4)
	if m.IntN(2) == 0 {
		return append(b[:at], b[min(len(b), at+n):]...)
	}
	b = append(b, make([]byte, n)...)
	copy(b[at+n:], b[at:len(b)-n])
	return b
}

// RecordOffsets is where a record stands: its owner, its RDATA, and the end of that.
type RecordOffsets struct{ Start, Data, End int }

// Layout is where the parts of a packet stand, as far as it can be read.
type Layout struct {
	Labels      []int // the length bytes of the question's name, the root's too
	QuestionEnd int   // 0 if it is cut
	Records     []RecordOffsets
}

// ParseLayout reads any bytes. It looks at no count but to end.
func ParseLayout(b []byte) (l Layout) {
	off := skipName(b, HeaderLen, &l.Labels)
	if off < 0 || off+4 > len(b) {
		return l
	}
	l.QuestionEnd = off + 4
	for off = l.QuestionEnd; ; {
		start := off
		if off = skipName(b, off, nil); off < 0 || off+10 > len(b) {
			return l
		}
		r := RecordOffsets{Start: start, Data: off + 10, End: off + 10 + int(binary.BigEndian.Uint16(b[off+8:]))}
		if r.End > len(b) {
			return l
		}
		l.Records = append(l.Records, r)
		off = r.End
	}
}

// skipName gives the offset behind the name at off, -1 if there is none, and appends
// where its labels begin to labels, which may be nil.
func skipName(b []byte, off int, labels *[]int) int {
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
