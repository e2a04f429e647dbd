package wire

import "github.com/miekg/dns"

// CopyAsAlias makes r, whatever it holds, the reply that other is to a question for another
// name: the records, the rcode and the flags of other behind r's own question. Where
// other has answers, an alias leads from r's name to other's, in the case of other's
// query, with the TTL of the first of them; without answers there is nothing to lead
// to. AD is not taken along: nobody has validated the alias. other stays as it is.
//
// It is false, and r empty, where a record can't be moved: names in its RDATA that
// only its own type tells from other bytes, pointers to what is no name, or beyond
// what a pointer reaches. Nothing is allocated but what r's buffer needs to grow.
func (r *Reply) CopyAsAlias(other *Reply) bool {
	r.Reset()
	m := relocator{from: other.b, to: r, question: other.q.questionEnd()}
	m.anchor = m.question
	for at := HeaderLen; at < m.question-4; at += 1 + int(m.from[at]) {
		m.labels[at/64] |= 1 << (at % 64)
	}
	if other.count[Answer] > 0 {
		first, ok := readRecord(other.b, m.question)
		if !ok {
			return false
		}
		m.anchor = HeaderLen
		m.placed = r.Add(Answer, AtQuestion, TypeCNAME, first.TTL, other.b[HeaderLen:m.question-4])
	}
	m.markShift(m.question)
	if !m.copyRecords(other) {
		r.Reset()
		return false
	}
	r.flags, r.rcode, r.full = other.flags&^flagAD, other.rcode, other.full
	r.section = Additional
	for s := range r.count {
		r.count[s] += other.count[s]
	}
	return true
}

// maxShifts bounds the places in a message from which on all stands further away
// from where it stood. There is one more for each name of the question's that is
// written out, and those differ in their first label: hosts, zones, the root.
const maxShifts = 8

// relocator copies records from one message to another with a question of another length,
// so that the pointers in it (RFC 1035, 4.1.4) lead to what they led to.
type relocator struct {
	from []byte
	to   *Reply
	// question is the end of from's question section. The part of its name that
	// starts at anchor stands in the other message at placed.
	question, anchor, placed int

	shifts [maxShifts]struct{ from, by int }
	n      int
	// labels has a bit for each byte of from at which a label of the question's name is, or
	// a label or a pointer of a name was copied: what a pointer may lead to.
	labels [(maxPointed + 1) / 64]uint64
}

// markShift notes that what comes next in from, at off, comes next in the other message.
func (m *relocator) markShift(off int) bool {
	if m.n == maxShifts {
		return false
	}
	m.shifts[m.n].from, m.shifts[m.n].by = off, len(m.to.b)-off
	m.n++
	return true
}

// copyRecords copies all of other's.
func (m *relocator) copyRecords(other *Reply) bool {
	off := m.question
	for range int(other.count[Answer]) + int(other.count[Authority]) + int(other.count[Additional]) {
		rr, ok := readRecord(m.from, off)
		if !ok || !m.copyRecord(rr) {
			return false
		}
		off = rr.End
	}
	return len(m.to.b)+optLen <= MaxMessage
}

func (m *relocator) copyRecord(rr Record) bool {
	off, ok := m.copyName(rr.Start)
	if !ok {
		return false
	}
	m.copyBytes(off, rr.Data)
	at := len(m.to.b)
	if !m.copyRdata(rr) {
		return false
	}
	put16(m.to.b[at-2:], uint16(len(m.to.b)-at))
	return true
}

func (m *relocator) copyBytes(from, to int) { m.to.b = append(m.to.b, m.from[from:to]...) }

// copyRdata copies r's. RDATA without names is copied as it is, and so is that of types
// nobody knows, which is never compressed (RFC 3597, 4).
func (m *relocator) copyRdata(r Record) bool {
	shape, named := rdataNames[r.Type]
	if !named {
		_, known := dns.TypeToRR[r.Type]
		m.copyBytes(r.Data, r.End)
		return addressLen(r.Type) > 0 || !known || r.Type == TypeTXT
	}
	off := r.Data + shape.head
	m.copyBytes(r.Data, off)
	for range shape.names {
		end, ok := m.copyName(off)
		if !ok {
			return false
		}
		off = end
	}
	m.copyBytes(off, r.End)
	return shape.tail >= 0
}

// copyName copies the name at off, and gives the offset behind it.
func (m *relocator) copyName(off int) (end int, ok bool) {
	for {
		if off <= maxPointed {
			m.labels[off/64] |= 1 << (off % 64)
		}
		switch n := int(m.from[off]); {
		case n == 0:
			m.to.b = append(m.to.b, 0)
			return off + 1, true
		case n&0xC0 == 0xC0:
			end = off + 2
			return end, m.copyPointer(int(u16(m.from[off:])&0x3FFF), end)
		default:
			m.copyBytes(off, off+1+n)
			off += 1 + n
		}
	}
}

// copyPointer ends a name as a pointer to the byte to of from does; next is what stands
// behind that pointer.
func (m *relocator) copyPointer(to, next int) bool {
	switch {
	case m.labels[to/64]&(1<<(to%64)) == 0:
		return false
	case to >= m.question:
		return m.writePointer(to + m.shiftAt(to))
	case to >= m.anchor:
		return m.writePointer(m.placed + to - m.anchor)
	default:
		m.anchor, m.placed = to, len(m.to.b)
		m.copyBytes(to, m.question-4)
		return m.markShift(next)
	}
}

func (m *relocator) writePointer(at int) bool {
	m.to.b = append16(m.to.b, 0xC000|uint16(at))
	return at <= maxPointed
}

// shiftAt is how far what stands at off in from has moved.
func (m *relocator) shiftAt(off int) int {
	i := m.n - 1
	for i > 0 && m.shifts[i].from > off {
		i--
	}
	return m.shifts[i].by
}
