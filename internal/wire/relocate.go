package wire

import "github.com/miekg/dns"

// CopyAsAlias makes r the reply other for r's own name; the previous contents of r are dropped.
// If other has answers, r begins with a CNAME from r's name to other's, in the case of other's
// query, with the TTL of other's first answer. The rcode and the flags are taken from other
// except AD, because nobody has validated the alias. other is not changed. CopyAsAlias returns
// false and leaves r empty if a record cannot be moved: its type may have names in the RDATA
// that this package does not know, a pointer does not lead to a name, or the target is beyond
// the reach of a pointer. It allocates only to grow r's buffer.
func (r *Reply) CopyAsAlias(other *Reply) bool {
	r.Reset()
	m := newRelocator(other.b, r, other.q.questionEnd())
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

// maxShifts bounds the places after which the distance between the old and the new offset
// changes. Each name of the question that is written out adds one; those differ in their first
// label: hosts, zones, the root.
const maxShifts = 8

// relocator copies records to a message whose question has another length, and adjusts the
// compression pointers (RFC 1035, 4.1.4).
type relocator struct {
	from []byte
	to   *Reply
	// question is the end of from's question section. The part of the qname that
	// starts at anchor is at placed in the other message.
	question, anchor, placed int

	shifts [maxShifts]struct{ from, by int }
	n      int
	// labels has a bit for each byte of from that a pointer may lead to: a label of the
	// qname, or a label or pointer of a copied name.
	labels [(maxPointed + 1) / 64]uint64
}

// newRelocator returns a relocator that has moved nothing.
func newRelocator(from []byte, to *Reply, question int) relocator {
	m := relocator{from: from, to: to, question: question, anchor: question}
	for at := HeaderLen; at < m.question-4; at += 1 + int(m.from[at]) {
		m.labels[at/64] |= 1 << (at % 64)
	}
	return m
}

// withoutOPT returns a copy of msg, a reply to q, without its OPT records. ok is false if a record
// cannot be moved, as for [Reply.CopyAsAlias].
func withoutOPT(msg []byte, q *Query) (moved []byte, ok bool) {
	end := q.questionEnd()
	r := Reply{b: append(make([]byte, 0, len(msg)), msg[:end]...)}
	m := newRelocator(msg, &r, end)
	m.anchor, m.placed = HeaderLen, HeaderLen
	ok = m.markShift(end)
	for it := recordsOf(msg, end); ok && it.next(); {
		if it.Type != TypeOPT {
			ok = m.copyRecord(it.Record)
			continue
		}
		ok = m.markShift(it.End)
		put16(r.b[10:], u16(r.b[10:])-1)
	}
	return r.b, ok
}

// markShift records that the byte of from at off is copied to the present end of the other
// message.
func (m *relocator) markShift(off int) bool {
	if m.n == maxShifts {
		return false
	}
	m.shifts[m.n].from, m.shifts[m.n].by = off, len(m.to.b)-off
	m.n++
	return true
}

// copyRecords copies all records of other.
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

// isMovable reports whether data, RDATA of type t, is independent of its place in a message. It is
// not for the types in rdataNames.
func isMovable(t uint16, data []byte) bool {
	_, known := dns.TypeToRR[t]
	return addressLen(t) > 0 || t == TypeTXT || !known || isPlainData(t, data)
}

func (m *relocator) copyBytes(from, to int) { m.to.b = append(m.to.b, m.from[from:to]...) }

// copyRdata copies the RDATA of r. RDATA without names, and RDATA of unknown types, which is
// never compressed (RFC 3597, 4), is copied unchanged.
func (m *relocator) copyRdata(r Record) bool {
	shape, named := shapeOf(r.Type)
	if data := m.from[r.Data:r.End]; !named && !isPlainData(r.Type, data) {
		m.copyBytes(r.Data, r.End)
		return isMovable(r.Type, data)
	}
	off, names := namesIn(m.from, r) // later names may point to them
	m.copyBytes(r.Data, off)
	for range names {
		end, ok := m.copyName(off)
		if !ok {
			return false
		}
		off = end
	}
	m.copyBytes(off, r.End)
	return !named || shape.tail >= 0
}

// copyName copies the name at off, and returns the offset after it.
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

// copyPointer writes a pointer to the place to which the byte at offset to of from has moved.
// If that part of the question is not in the other message yet, it is written out instead. next
// is the offset after the pointer in from.
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

// shiftAt returns by how many bytes the byte at off in from has moved. off is not in the question.
func (m *relocator) shiftAt(off int) int {
	i := m.n - 1
	for m.shifts[i].from > off { // the first shift is at the end of the question
		i--
	}
	return m.shifts[i].by
}
