package wire

import "github.com/miekg/dns"

// Record describes the place of one resource record in a message, as offsets.
type Record struct {
	// Start is the offset of the owner name, Data the offset of the RDATA, End the
	// offset after it.
	Start, Data, End int
	Type, Class      uint16
	TTL              uint32
}

// ttlOffset returns the offset of the TTL: four bytes and the RDLENGTH
// before the RDATA.
func (r Record) ttlOffset() int { return r.Data - 6 }

// TTLOffset returns the offset of the record's TTL.
func (r Record) TTLOffset() int { return r.ttlOffset() }

// address reports whether the record holds an address of the right length.
func (r Record) address() bool {
	n := addressLen(r.Type)
	return n > 0 && n == r.End-r.Data
}

// readRecord reads the record at off; ok is false if it exceeds msg.
func readRecord(msg []byte, off int) (r Record, ok bool) {
	r.Start = off
	off = skipName(msg, off)
	if off < 0 || off+10 > len(msg) {
		return r, false
	}
	r.Type = u16(msg[off:])
	r.Class = u16(msg[off+2:])
	r.TTL = u32(msg[off+4:])
	r.Data = off + 10
	r.End = r.Data + int(u16(msg[off+8:]))
	return r, r.End <= len(msg)
}

// records reads the records of one message, one after the other. It does not allocate. Where each hit of a cache or each query is
// read, loops of their own are a fifth faster.
type records struct {
	Record          // the one that next has read
	section Section // of it
	n       int     // its number, from 1
	msg     []byte
	left    [3]uint16 // records of each section that are not read yet
	bad     bool      // the next record exceeds msg
}

// recordsOf returns the records of msg, which has a whole header; the first one is at off.
func recordsOf(msg []byte, off int) records {
	return records{Record: Record{End: off}, msg: msg, left: [3]uint16{u16(msg[6:]), u16(msg[8:]), u16(msg[10:])}}
}

// next reads the next record; false at the end, and if it exceeds the message.
func (it *records) next() bool {
	for it.left[it.section] == 0 {
		if it.section == Additional {
			return false
		}
		it.section++
	}
	it.left[it.section]--
	it.n++
	var ok bool
	it.Record, ok = readRecord(it.msg, it.End)
	it.bad = !ok
	return ok
}

// records returns the records of r.
func (r *Reply) records() records {
	return records{Record: Record{End: r.q.questionEnd()}, msg: r.b, left: r.count}
}

// answers returns the records of r's answer section.
func (r *Reply) answers() records {
	return records{Record: Record{End: r.q.questionEnd()}, msg: r.b, left: [3]uint16{r.count[Answer]}}
}

// rdataNames describes the RDATA of the types in which a receiver expects compressed names (RFC 3597, 4): the
// bytes before the names, the number of names, and the bytes after them. A tail of -1 means any
// number of bytes. Only the types of RFC 1035 may be sent so. The index is the type.
var rdataNames = [...]rdataShape{
	TypeNS:    {0, 1, 0, true},
	3:         {0, 1, 0, true}, // MD
	4:         {0, 1, 0, true}, // MF
	TypeCNAME: {0, 1, 0, true},
	TypeSOA:   {0, 2, 20, true},
	7:         {0, 1, 0, true}, // MB
	8:         {0, 1, 0, true}, // MG
	9:         {0, 1, 0, true}, // MR
	TypePTR:   {0, 1, 0, true},
	14:        {0, 2, 0, true}, // MINFO
	TypeMX:    {2, 1, 0, true},
	17:        {0, 2, 0, false},   // RP
	18:        {2, 1, 0, false},   // AFSDB
	21:        {2, 1, 0, false},   // RT
	TypeSIG:   {18, 1, -1, false}, // SIG
	26:        {2, 2, 0, false},   // PX
	30:        {0, 1, -1, false},  // NXT
	TypeSRV:   {6, 1, 0, false},
	36:        {2, 1, 0, false}, // KX
	39:        {0, 1, 0, false}, // DNAME
}

// rdataShape is an element of [rdataNames].
type rdataShape struct {
	head, names, tail int
	rfc1035           bool
}

// shapeOf returns the element of [rdataNames] for t; ok is false if there is none.
func shapeOf(t uint16) (shape rdataShape, ok bool) {
	if int(t) < len(rdataNames) {
		shape = rdataNames[t]
	}
	return shape, shape.names > 0
}

// addressLen returns the RDATA length of an address of type t, 0 for other types.
func addressLen(t uint16) int {
	switch t {
	case TypeA:
		return 4
	case TypeAAAA:
		return 16
	}
	return 0
}

// checker checks the records of one message in order, so that no client receives a malformed
// one. The zero value is ready.
type checker struct {
	ttls []uint16   // offsets of the TTLs of the records so far
	left readBudget // for the whole message; it is rejected if negative
	// objectsLeft is the same for RDATA that miekg/dns reads.
	objectsLeft readBudget
	// rewrite says that the message had better be written again: RDATA has a compressed name that
	// a sender must write out (RFC 2782, RFC 3597, 4), or a name could be a pointer to the question.
	rewrite bool
	// pointed has the names that pointers lead to, by offset. It is nil until walked, the labels
	// and pointers read behind pointers, exceeds walkedUnknown.
	pointed []pointed
	walked  int
	// lastOwner is the last owner that was a pointer, 0 if none was: the records of an
	// RRset have one owner, and the same pointer leads to the same name.
	lastOwner  uint16
	ownerSteps readBudget // that reading it takes
	// masked is a copy of the message for miekg/dns, nil until it is needed. Its mutable
	// bytes are overwritten up to the record ttls[unmasked].
	masked   []byte
	unmasked int
}

// record reports whether r, which lies within msg, may be passed on.
func (c *checker) record(msg []byte, section Section, r Record) bool {
	if r.Type == TypeOPT { // not passed on
		// OPT belongs in the additional section (RFC 6891, 6.1.1); its TTL field is no TTL.
		return section == Additional && c.owner(msg, r)
	}
	c.ttls = append(c.ttls, uint16(r.ttlOffset()))
	return c.rdata(msg, r) && c.owner(msg, r)
}

func (c *checker) owner(msg []byte, r Record) bool {
	at := u16(msg[r.Start:])
	if at == questionPointer {
		return true
	}
	if at == c.lastOwner {
		c.left -= c.ownerSteps / rewriteBudgets // a rewriter reads it again
		return c.left >= 0
	}
	before := c.left
	if n, _ := c.name(msg, r.Start, r.Data); n == 0 {
		return false
	}
	if at >= 0xC000 {
		c.lastOwner, c.ownerSteps = at, before-c.left
	}
	return true
}

// rdata reports whether the RDATA of r is valid for its type: the right size, and well-formed
// names within it. miekg/dns checks types without an entry here, mostly the types of DNSSEC and
// HTTPS. Types that it does not know are accepted (RFC 3597, 3).
func (c *checker) rdata(msg []byte, r Record) bool {
	if n := addressLen(r.Type); n > 0 {
		return r.End-r.Data == n
	}
	shape, ok := shapeOf(r.Type)
	switch {
	case r.Type == TypeTXT:
		return stringsFill(msg[r.Data:r.End])
	case !ok:
		return c.unpacks(msg, r)
	}
	off := r.Data + shape.head
	for range shape.names {
		n, end := c.name(msg, off, r.End)
		if n == 0 {
			return false
		}
		c.rewrite = c.rewrite || !shape.rfc1035 && n > end-off
		off = end
	}
	if shape.tail < 0 {
		return c.unpacks(msg, r)
	}
	return r.End-off == shape.tail
}

// stringsFill reports whether data consists of whole <character-string>s (RFC 1035, 3.3).
func stringsFill(data []byte) bool {
	for len(data) > 0 {
		n := 1 + int(data[0])
		if n > len(data) {
			return false
		}
		data = data[n:]
	}
	return true
}

// unpacks reports whether miekg/dns can read r's RDATA, independent of the mutable bytes of the
// message. It is not asked about [isPlainData].
func (c *checker) unpacks(msg []byte, r Record) bool {
	if _, known := dns.TypeToRR[r.Type]; !known || isPlainData(r.Type, msg[r.Data:r.End]) {
		return true
	}
	at, n := namesIn(msg, r)
	c.objectsLeft -= readBudget(objectRecord + r.End - r.Data)
	if c.objectsLeft.spendNames(msg[:r.End], at, n); c.objectsLeft < 0 {
		return false
	}
	c.rewrite = c.rewrite || hasPointer(msg[:r.End], at, n)
	if c.masked == nil {
		c.masked = append([]byte(nil), msg...)
		mask(c.masked[:HeaderLen]) // the header is mutable, too: a name there would change with the ID
	}
	for ; c.unmasked < len(c.ttls); c.unmasked++ {
		ttl, from, to := mutableRanges(msg, int(c.ttls[c.unmasked]))
		mask(c.masked[ttl : ttl+4])
		mask(c.masked[from:to])
	}
	head := dns.RR_Header{Rrtype: r.Type, Class: r.Class, Rdlength: uint16(r.End - r.Data)}
	_, _, err := dns.UnpackRRWithHeader(head, c.masked[:r.End], r.Data)
	return err == nil
}

// hasPointer reports whether one of n consecutive names at off ends in a pointer; with a negative n, one of the names to the
// end of msg.
func hasPointer(msg []byte, off, n int) bool {
	for ; n != 0 && off < len(msg); n-- {
		for off < len(msg) && msg[off] != 0 {
			if msg[off]&0xC0 != 0 {
				return true
			}
			off += 1 + int(msg[off])
		}
		off++
	}
	return false
}

// mask overwrites b with a byte that no label begins with.
func mask(b []byte) {
	for i := range b {
		b[i] = 0x80
	}
}
