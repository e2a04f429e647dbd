package wire

import "math/rand/v2"

// maxPointed is the highest offset of a compression pointer, which has 14 bits
// (RFC 1035, 4.1.4). Owners after it are written uncompressed.
const maxPointed = 0x3FFF

// Section is one of the three record sections of a reply.
type Section uint8

// The sections, in the order in which they are written.
const (
	Answer Section = iota
	Authority
	Additional
)

// AtQuestion is the owner of a record whose owner is the qname.
const AtQuestion = HeaderLen

// Reply is a response under construction in a buffer of the caller. Records are
// written in section order. The zero value is ready for [Reply.Start]; a Reply
// is reused for query after query and is not safe for concurrent use.
type Reply struct {
	q       *Query
	b       []byte
	flags   uint16
	rcode   Rcode
	section Section
	count   [3]uint16
	full    bool
	cut     bool // the additional section lacks RRsets for which the message has no room
	limit   int  // see SetLimit
	// set and clear are applied last, see ChangeFlags.
	set, clear Flags

	explained bool // ede is set
	ede       EDE
	edeText   string
	nsid      string
	keepalive uint16 // see SetKeepalive
	block     int    // see SetPadding
	padding   int    // length of the padding option, 0 for none
}

// Start begins the reply to q in buf and overwrites its contents; the buffer grows if
// necessary. buf and q belong to the reply as long as the bytes of [Reply.Finish] are in use.
// q must have parsed as [Serve].
func (r *Reply) Start(buf []byte, q *Query) {
	r.q = q
	r.b = append(buf[:0], make([]byte, HeaderLen)...)
	r.b = append(r.b, q.Packet[HeaderLen:q.questionEnd()]...)
	r.nsid, r.keepalive, r.block, r.padding, r.limit, r.set, r.clear = "", 0, 0, 0, MaxMessage, 0, 0
	r.Reset()
}

// SetLimit announces that [Reply.Finish] will truncate the reply to limit bytes or fewer.
// Records beyond it are still written; a writer of many records stops at [Reply.Overflows].
func (r *Reply) SetLimit(limit int) { r.limit = limit }

// Limit returns the maximum size of the message in bytes.
func (r *Reply) Limit() int { return r.limit }

// Overflows reports whether [Reply.Finish] will drop what is written from now on, in the
// last section written or a later one.
func (r *Reply) Overflows() bool { return r.full || r.cut || len(r.b) > r.limit }

// Reset removes every record and flag, so that another step can answer.
func (r *Reply) Reset() {
	r.b = r.b[:r.q.questionEnd()]
	r.flags, r.rcode, r.section, r.full, r.cut, r.explained = 0, NoError, Answer, false, false, false
	r.count = [3]uint16{}
}

// MoveTo makes r, a shallow copy of another reply, independent of it: it copies r's bytes to
// buf, and makes r a reply to q, a copy of the other's query.
func (r *Reply) MoveTo(buf []byte, q *Query) {
	r.b = append(buf[:0], r.b...)
	r.q = q
}

// Rcode returns the response code.
func (r *Reply) Rcode() Rcode { return r.rcode }

// SetRcode sets the response code; the records stay. AD is cleared if the code changes, because nobody has validated that.
func (r *Reply) SetRcode(c Rcode) {
	if c != r.rcode {
		r.flags &^= flagAD
	}
	r.rcode = c
}

// SetAuthoritative sets the AA bit.
func (r *Reply) SetAuthoritative() { r.flags |= flagAA }

// SetRecursionAvailable sets the RA bit.
func (r *Reply) SetRecursionAvailable() { r.flags |= flagRA }

// ChangeFlags makes [Reply.Finish] set and clear flags, whatever the reply and the query have. Flags
// in both are set.
func (r *Reply) ChangeFlags(set, drop Flags) { r.set, r.clear = set, drop }

// Count returns the number of records in s.
func (r *Reply) Count(s Section) int { return int(r.count[s]) }

// Fail makes r an error with rcode c, without records and flags.
func (r *Reply) Fail(c Rcode) {
	r.Reset()
	r.rcode = c
}

// Empty makes r a truncated reply without records: the client asks again over TCP.
func (r *Reply) Empty() {
	r.Reset()
	r.full = true
}

// Add writes a record of class IN and returns the offset of its RDATA. owner is the offset of
// a name in the message: [AtQuestion], a result of [Reply.Suffix], or an offset into the RDATA
// of an earlier record. If the section is before the last one written, or the message would
// exceed 64 KiB, the record is not written, and the reply is sent with TC set. An additional record
// without room is left out with its whole RRset and all that follows, without TC (RFC 2181, 9).
func (r *Reply) Add(s Section, owner int, rtype uint16, ttl uint32, rdata []byte) int {
	if r.full || r.cut || s < r.section || len(r.b)+MaxName+10+len(rdata)+optLen > MaxMessage {
		r.leaveOut(s, owner, rtype)
		return AtQuestion
	}
	r.section = s
	r.count[s]++
	if owner <= maxPointed {
		r.b = append16(r.b, 0xC000|uint16(owner))
	} else {
		var name [MaxName]byte
		left := newReadBudget(len(r.b)) // for one name
		n, _ := unpackName(name[:], r.b, owner, &left)
		r.b = append(r.b, name[:n]...)
	}
	r.b = append16(r.b, rtype)
	r.b = append16(r.b, ClassIN)
	r.b = append32(r.b, ttl)
	r.b = append16(r.b, uint16(len(rdata)))
	at := len(r.b)
	r.b = append(r.b, rdata...)
	return at
}

// AddText adds a TXT record with text, of 255 bytes at most, for the question's name. It is otherwise like
// [Reply.Add]. A longer text is cut.
func (r *Reply) AddText(s Section, class uint16, ttl uint32, text string) {
	text = text[:min(len(text), maxText)]
	if data := r.Add(s, AtQuestion, TypeTXT, ttl, append([]byte{byte(len(text))}, text...)); data != AtQuestion {
		put16(r.b[data-8:], class)
	}
}

// maxText is the longest <character-string> (RFC 1035, 3.3).
const maxText = 255

// Suffix returns the owner offset for the last n bytes of the qname: of a zone with an
// n-byte name that the qname is in.
func (r *Reply) Suffix(n int) int { return HeaderLen + r.q.nameLen - n }

// Copy makes r a copy of p: its records, with every TTL set to ttl, its rcode, its flags and its extended error.
// p's question must be r's, without regard to case.
func (r *Reply) Copy(p Packed, ttl uint32) {
	r.CopyRaw(p)
	for t := p.data[p.end():]; len(t) > 0; t = t[2:] {
		put32(r.b[u16(t):], ttl)
	}
}

// CopyRaw is [Reply.Copy] with p's original TTLs.
func (r *Reply) CopyRaw(p Packed) {
	r.Reset()
	msg := p.message()
	if ede := u16(msg); ede > 0 {
		r.SetEDE(EDE(ede - 1))
	}
	flags := u16(msg[2:])
	r.flags = flags & (flagAA | flagTC | flagRA | flagAD)
	r.rcode = Rcode(flags & rcodeMask)
	for s := range r.count {
		r.count[s] = u16(msg[6+2*s:])
	}
	r.b = append(r.b, msg[len(r.b):]...)
}

// Finish completes the header and the OPT record, truncates the message to limit bytes (RFC
// 2181, 9; RFC 6891, 6.2.3) and returns it. TC says that records are missing which belong to the answer. It adds an OPT record if the query had one, with
// the query's payload size and DO bit.
func (r *Reply) Finish(limit int) []byte {
	flags := r.flags | flagQR | r.q.flags&(flagRD|flagCD) | uint16(r.rcode&rcodeMask)
	if !r.q.AD() && !r.q.DO {
		flags &^= flagAD // RFC 6840, 5.8
	}
	room := limit
	if r.q.EDNS {
		if r.edeText != "" && r.q.questionEnd()+optLen+r.optionsLen() > limit {
			r.edeText = ""
		}
		room -= optLen + r.optionsLen()
	}
	r.Truncate(room)
	if r.full {
		flags |= flagTC
	}
	flags = flags&^uint16(r.clear) | uint16(r.set)
	additional := r.count[Additional]
	if r.q.EDNS {
		r.pad(limit)
		r.appendOPT()
		additional++
	}
	put16(r.b, r.q.ID)
	put16(r.b[2:], flags)
	put16(r.b[4:], 1)
	put16(r.b[6:], r.count[Answer])
	put16(r.b[8:], r.count[Authority])
	put16(r.b[10:], additional)
	return r.b
}

func (r *Reply) appendOPT() {
	r.b = appendOPT(r.b, r.q.UDPSize, r.rcode, r.q.DO, r.optionsLen())
	r.appendOptions()
}

// Shuffle puts the addresses of the answer section in random order, so that clients that use
// the first one spread over all. CNAME records keep their places. It moves only addresses of
// one type with one owner.
func (r *Reply) Shuffle() {
	if r.count[Answer] < 2 {
		return
	}
	var at [MaxShuffled]int
	n, size := r.addresses(&at)
	rand.Shuffle(n, func(i, j int) {
		swap(r.b[at[i]:at[i]+size], r.b[at[j]:at[j]+size])
		// An address keeps its TTL, which is before its RDLENGTH.
		swap(r.b[at[i]-6:at[i]-2], r.b[at[j]-6:at[j]-2])
	})
}

// swap exchanges a and b, which have the same length of at most 16.
func swap(a, b []byte) {
	var tmp [16]byte
	n := copy(tmp[:], a)
	copy(a, b)
	copy(b, tmp[:n])
}

// addresses finds the n addresses of the answer section, of size bytes each; none if they
// are not all of one type with one owner.
func (r *Reply) addresses(at *[MaxShuffled]int) (n, size int) {
	var owner uint16                       // of the first
	alike, off := false, r.q.questionEnd() // alike: all owners are the same pointer, which is the usual case
	for range r.count[Answer] {
		rr, ok := readRecord(r.b, off)
		if !ok || n == len(at) {
			break
		}
		off = rr.End
		if !rr.address() {
			continue
		}
		if n == 0 {
			owner, size = u16(r.b[rr.Start:]), rr.End-rr.Data
			alike = owner >= 0xC000
		}
		if size != rr.End-rr.Data {
			return 0, 0
		}
		alike = alike && owner == u16(r.b[rr.Start:])
		at[n] = rr.Data
		n++
	}
	if !alike && !r.oneOwner(n) {
		return 0, 0
	}
	return n, size
}

// oneOwner reports whether the first n addresses of the answer section have one owner. It
// returns false if that takes too long to find out.
func (r *Reply) oneOwner(n int) bool {
	var name [MaxName]byte
	var last uint16 // the pointer compared last; 0: none
	left, length, off := shuffleBudget, 0, r.q.questionEnd()
	for n > 0 && left >= 0 {
		rr, _ := readRecord(r.b, off)
		off = rr.End
		if !rr.address() {
			continue
		}
		n--
		at := u16(r.b[rr.Start:])
		switch {
		case length == 0:
			length, _ = unpackName(name[:], r.b, rr.Start, &left)
		case at != last && !left.equalNames(r.b, rr.Start, name[:length]):
			return false
		}
		if last = 0; at >= 0xC000 {
			last = at
		}
	}
	return length > 0 && left >= 0
}

// MaxShuffled is the maximum number of addresses that Shuffle moves: no client uses more than
// the first few dozen, and the array stays on the stack.
const MaxShuffled = 256

// shuffleBudget bounds the cost of comparing owners at each hit: some 20 µs.
const shuffleBudget readBudget = 64 * MaxShuffled

// AppendError appends the reply to a packet that did not parse as [Serve]: a header with the
// packet's ID, opcode and RD bit, and rcode c. packet must have a whole header.
func AppendError(b, packet []byte, c Rcode) []byte {
	flags := u16(packet[2:])
	flags = flagQR | flags&(flagRD|opcodeMask<<opcodeShift) | uint16(c)
	b = append(b, packet[0], packet[1])
	b = append16(b, flags)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

// AppendRefusal appends the reply to a packet that has not been parsed: a header with the packet's ID, opcode and RD bit,
// rcode c, and TC if truncated is set, and the packet's question if it has one. The reply is no longer than the packet. It
// returns nil for what is no query.
func AppendRefusal(b, packet []byte, c Rcode, truncated bool) []byte {
	if len(packet) < HeaderLen || u16(packet[2:])&flagQR != 0 {
		return nil
	}
	at := len(b)
	b = AppendError(b, packet, c)
	if truncated {
		put16(b[at+2:], u16(b[at+2:])|flagTC)
	}
	if end := questionEnd(packet); end > 0 && u16(packet[4:]) == 1 {
		b = append(b, packet[HeaderLen:end]...)
		put16(b[at+4:], 1)
	}
	return b
}

// questionEnd returns the offset after the first question of packet, 0 if it has no valid one.
func questionEnd(packet []byte) int {
	for off := HeaderLen; off < len(packet) && off < HeaderLen+MaxName; off += 1 + int(packet[off]) {
		switch c := packet[off]; {
		case c > MaxLabel:
			return 0
		case c == 0 && off+5 <= len(packet):
			return off + 5
		case c == 0:
			return 0
		}
	}
	return 0
}
