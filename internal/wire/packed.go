package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

// ErrResponse is what every refused response wraps.
var ErrResponse = errors.New("broken response")

// errTooCostly is the error of a message that takes too long to read for its length.
var errTooCostly = fmt.Errorf("%w: its names point to too many others", ErrResponse)

// Packed is a whole reply as it is kept between queries: a checked message with
// ID 0, its question in lower case, its names compressed and no OPT record,
// followed by the offsets of its TTLs. It is immutable and safe for concurrent
// use; the zero value is no reply.
type Packed struct {
	data []byte
}

// Size is the memory p's bytes take, what the allocator rounds up included.
func (p Packed) Size() int { return cap(p.data) }

// Rcode is the reply's response code.
func (p Packed) Rcode() Rcode { return Rcode(u16(p.data[2:]) & rcodeMask) }

// IsZero reports whether p is no reply at all.
func (p Packed) IsZero() bool { return p.data == nil }

// IsReplyTo reports whether p is the reply to q's question; the zero Packed is to none.
func (p Packed) IsReplyTo(q *Query) bool {
	end := q.questionEnd()
	return len(p.data) >= end && string(p.data[HeaderLen:HeaderLen+q.nameLen]) == string(q.Name()) &&
		u16(p.data[end-4:]) == q.Type && u16(p.data[end-2:]) == q.Class
}

// end is where the message ends and the offsets begin: there is one of two bytes
// for each record. p is not the zero Packed.
func (p Packed) end() int {
	return len(p.data) - 2*(int(u16(p.data[6:]))+int(u16(p.data[8:]))+int(u16(p.data[10:])))
}

func (p Packed) message() []byte { return p.data[:p.end()] }

// Response is an upstream's reply, read and checked.
type Response struct {
	Packed Packed
	Rcode  Rcode
	// Truncated is the TC bit: the answer is not whole.
	Truncated bool
	// Records is the number of records, OPT not counted.
	Records int
	// Answers is the number of records in the answer section.
	Answers int
	// MinTTL is the least TTL of all records, in seconds; 0 without records.
	MinTTL uint32
	// SOA says whether the authority section has one; NegativeTTL is then
	// min(its TTL, its MINIMUM) (RFC 2308, 5).
	SOA         bool
	NegativeTTL uint32
	// Answered says that the answer section holds a record of the type asked
	// for at the end of the CNAME chain that starts at the qname.
	Answered bool
	// Contradictory says that the answer section does not agree with itself, or with the
	// rcode, on what there is: see [responseScan.followAliases].
	Contradictory bool
}

// Matches reports whether msg is a reply to query: its ID, and its question but
// for case. A reply without a question says nothing about a name, so that it is taken
// only for an error of the server: those that can't read a query send a bare header.
func Matches(msg, query []byte) bool {
	if len(msg) < HeaderLen || len(query) < HeaderLen || u16(msg) != u16(query) || u16(msg[2:])&flagQR == 0 {
		return false
	}
	switch u16(msg[4:]) {
	case 0:
		return bareRcode(Rcode(u16(msg[2:]) & rcodeMask))
	case 1:
		return sameQuestion(msg, query)
	default:
		return false
	}
}

// bareRcode reports whether a reply without a question may have rcode c: the errors that a
// server gives before it has looked at a name. Any other would be taken on its ID alone.
func bareRcode(c Rcode) bool {
	switch c {
	case FormErr, ServFail, NotImp, Refused:
		return true
	}
	return false
}

func sameQuestion(msg, query []byte) bool {
	end := skipName(query, HeaderLen)
	if end < 0 || end+4 > len(query) || end+4 > len(msg) {
		return false
	}
	for i := HeaderLen; i < end; i++ {
		if lower[msg[i]] != lower[query[i]] {
			return false
		}
	}
	return string(msg[end:end+4]) == string(query[end:end+4])
}

// ParseResponse reads msg, a reply that [Matches] a query for q's question, and
// packs it. The result holds no reference to msg. Errors wrap [ErrResponse].
func ParseResponse(msg []byte, q *Query) (Response, error) {
	if len(msg) < HeaderLen {
		return Response{}, fmt.Errorf("%w: %d bytes are no header", ErrResponse, len(msg))
	}
	if u16(msg[4:]) == 0 { // a bare error
		return bareResponse(q, Rcode(u16(msg[2:])&rcodeMask)), nil
	}
	left := newReadBudget(len(msg))
	s, err := scanResponse(msg, q, left)
	if err != nil {
		return Response{}, err
	}
	if s.repack {
		if msg, err = repack(msg); err != nil {
			return Response{}, err
		}
		rcode := s.Rcode // the extended part went with the OPT record
		// Names that were written out may be pointers now.
		if s, err = scanResponse(msg, q, 2*left); err != nil {
			return Response{}, err
		}
		s.Rcode = rcode
	}
	s.Packed = pack(msg[:s.end], q, s.ttls)
	flags := u16(msg[2:])&(flagAA|flagTC|flagRA|flagAD) | flagQR | uint16(s.Rcode&rcodeMask)
	put16(s.Packed.data[2:], flags)
	put16(s.Packed.data[10:], u16(msg[10:])-s.opts)
	return s.Response, nil
}

// ErrorResponse is a reply to q with rcode c and no records, such as a SERVFAIL
// that is kept for a while.
func ErrorResponse(q *Query, c Rcode) Response { return bareResponse(q, c) }

func bareResponse(q *Query, c Rcode) Response {
	var head [HeaderLen + MaxName + 4]byte
	msg := append(head[:HeaderLen], q.Packet[HeaderLen:q.questionEnd()]...)
	p := pack(msg, q, nil)
	put16(p.data[2:], flagQR|uint16(c&rcodeMask))
	put16(p.data[4:], 1)
	return Response{Packed: p, Rcode: c}
}

// pack lays msg out as a Packed, with ID 0 and the question in lower case.
func pack(msg []byte, q *Query, ttls []uint16) Packed {
	data := slices.Grow([]byte(nil), len(msg)+2*len(ttls)) // its cap is what it takes
	data = append(data, msg...)
	for _, t := range ttls {
		data = append16(data, t)
	}
	put16(data, 0)
	copy(data[HeaderLen:], q.Name())
	return Packed{data: data}
}

// responseScan is what one walk over a response finds.
type responseScan struct {
	Response
	checker
	opts   uint16 // OPT records found
	end    int    // behind the last record that is kept
	repack bool   // an OPT before other records, or a name the question could stand for
}

// scanResponse walks over every record of msg once, in so many steps at most.
func scanResponse(msg []byte, q *Query, left readBudget) (responseScan, error) {
	var s responseScan
	flags := u16(msg[2:])
	s.Rcode = Rcode(flags & rcodeMask)
	s.Truncated = flags&flagTC != 0
	off := q.questionEnd()
	if off > len(msg) {
		return s, fmt.Errorf("%w: it ends inside the question", ErrResponse)
	}
	s.end = off
	s.left = left
	s.MinTTL = 1<<32 - 1
	for section := range Section(3) {
		for i := range u16(msg[6+2*int(section):]) {
			rr, ok := readRecord(msg, off)
			if !ok || !s.checker.record(msg, section, rr) {
				return s, s.recordError(i+1, section)
			}
			off = rr.End
			s.count(msg, q, section, rr)
		}
	}
	if s.Records == 0 {
		s.MinTTL = 0
	}
	s.followAliases(msg, q)
	if s.left < 0 {
		return s, errTooCostly
	}
	return s, nil
}

// recordError is why the record number i of the section is not taken.
func (s *responseScan) recordError(i uint16, section Section) error {
	if s.left < 0 {
		return errTooCostly
	}
	return fmt.Errorf("%w: record %d of section %d is cut off or malformed", ErrResponse, i, section)
}

// count takes down one record of a walk that has been checked.
func (s *responseScan) count(msg []byte, q *Query, section Section, rr Record) {
	if rr.Type == TypeOPT {
		s.opts++
		if rr.TTL>>24 != 0 { // an extended rcode: nothing a client without EDNS could be told
			s.Rcode = ServFail
		}
		return
	}
	// What follows an OPT record can't move up: names point by offset.
	s.repack = s.repack || s.opts > 0 || namesQuestion(msg, q, rr.Start)
	s.end = rr.End
	s.Records++
	ttl := rr.TTL
	if ttl>>31 != 0 { // RFC 2181, 8: with the highest bit set it is zero
		ttl = 0
	}
	s.MinTTL = min(s.MinTTL, ttl)
	switch section {
	case Answer:
		s.Answers++
	case Authority:
		if rr.Type == TypeSOA && !s.SOA {
			s.SOA = true
			s.NegativeTTL = min(ttl, u32(msg[rr.End-4:]))
		}
	}
}

// namesQuestion reports whether the name at off is the qname written out.
func namesQuestion(msg []byte, q *Query, off int) bool {
	end := off + q.nameLen
	if end > len(msg) || msg[off]&0xC0 != 0 || q.nameLen == 1 {
		return false
	}
	for i, c := range q.Name() {
		if lower[msg[off+i]] != c {
			return false
		}
	}
	return true
}

// repack writes msg anew with its names compressed, its question and what
// equals it in lower case, and its OPT record last. This is the path of rare
// shapes: it goes through objects.
func repack(msg []byte) ([]byte, error) {
	m, err := Unpack(msg)
	if err != nil {
		return nil, err
	}
	qname := m.Question[0].Name
	m.Question[0].Name = dns.CanonicalName(qname)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if h := rr.Header(); equalFold(h.Name, qname) {
				h.Name = m.Question[0].Name
			}
		}
	}
	extra := m.Extra[:0]
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			extra = append(extra, rr)
		}
	}
	m.Extra = extra
	m.Rcode &= rcodeMask
	m.Compress = true
	out, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResponse, err)
	}
	if len(out) > MaxMessage { // names that were compressed where they may not be (RFC 3597, 4)
		return nil, fmt.Errorf("%w: it has %d bytes without its OPT record in the middle", ErrResponse, len(out))
	}
	return out, nil
}

func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower[a[i]] != lower[b[i]] {
			return false
		}
	}
	return true
}

// AppendAnswers appends the answer section of msg to r's, whatever its owner
// names are: what an alias in the cluster that points out of it resolves to. A
// rare path, through objects. msg is a whole message from [Reply.Finish].
func (r *Reply) AppendAnswers(msg []byte) error {
	m, err := Unpack(msg)
	if err != nil {
		return err
	}
	var buf [MaxMessage]byte
	for _, rr := range m.Answer {
		end, err := dns.PackRR(rr, buf[:], 0, nil, false)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrResponse, err)
		}
		if r.full || len(r.b)+end+optLen > MaxMessage {
			r.full = true
			return nil
		}
		r.b = append(r.b, buf[:end]...)
		r.count[Answer]++
	}
	return nil
}
