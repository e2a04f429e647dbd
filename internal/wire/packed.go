package wire

import (
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

// ErrResponse is wrapped by the errors of responses that are refused.
var ErrResponse = errors.New("broken response")

// errTooCostly is the error of a message that exceeds a [readBudget].
var errTooCostly = fmt.Errorf("%w: reading its names, aliases or rare records would take too long", ErrResponse)

// Packed is a reply in the form in which it is cached: a checked message with ID 0, the
// question in lower case, compressed names and no OPT record, followed by the offsets of its
// TTLs. In place of the ID it has the extended error (RFC 8914), without its text: one more than its code, 0 for none. It is immutable and safe for concurrent use. The zero value is no reply.
type Packed struct {
	// data is the message and the offsets. Between its length and its capacity are zeros, or the options and their
	// length, see [Packed.WithOptions]; nothing may be appended to it.
	data []byte
}

// Size returns the number of bytes that p takes in memory.
func (p Packed) Size() int { return cap(p.data) }

// Rcode returns the reply's response code. p is not the zero Packed.
func (p Packed) Rcode() Rcode { return Rcode(u16(p.data[2:]) & rcodeMask) }

// IsZero reports whether p is the zero Packed.
func (p Packed) IsZero() bool { return p.data == nil }

// Name returns the qname of the reply, in lower case and wire form. p must not be zero; the
// bytes belong to p.
func (p Packed) Name() []byte {
	end := HeaderLen
	for p.data[end] != 0 {
		end += 1 + int(p.data[end])
	}
	return p.data[HeaderLen : end+1]
}

// Question returns the type and the class of the question. p must not be zero.
func (p Packed) Question() (qtype, class uint16) {
	end := HeaderLen + len(p.Name())
	return u16(p.data[end:]), u16(p.data[end+2:])
}

// Answers returns the number of records in the answer section. p must not be zero.
func (p Packed) Answers() int { return int(u16(p.data[6:])) }

// WithOptions returns a copy of p with the EDNS options of the query that p answers (RFC 6891, section 6.1.2),
// which are at most [MaxMessage] bytes. They are not sent with the reply: a cache tells replies apart by them.
//
// The options and, in two bytes, their length end the memory of the reply, behind the length of its slice. So a
// Packed, and with it each entry of a cache, is no larger for those that have none.
func (p Packed) WithOptions(options []byte) Packed {
	end := len(p.data)
	b := make([]byte, 0, end+len(options)+2)
	b = append16(append(append(b, p.data...), options...), uint16(len(options)))
	return Packed{data: b[:end]}
}

// Options returns the options of [Packed.WithOptions], which belong to p. They are empty if it was not called.
func (p Packed) Options() []byte {
	all := p.data[:cap(p.data)]
	end := len(all) - 2
	if end < len(p.data) {
		return nil
	}
	return all[end-int(u16(all[end:])) : end]
}

// IsReplyTo reports whether p is a reply to q's question. It is false for the zero Packed.
func (p Packed) IsReplyTo(q *Query) bool {
	end := q.questionEnd()
	return len(p.data) >= end && string(p.data[HeaderLen:HeaderLen+q.nameLen]) == string(q.Name()) &&
		u16(p.data[end-4:]) == q.Type && u16(p.data[end-2:]) == q.Class
}

// end returns the end of the message, where the offsets begin: two bytes for each record. p
// is not the zero Packed.
func (p Packed) end() int {
	return len(p.data) - 2*(int(u16(p.data[6:]))+int(u16(p.data[8:]))+int(u16(p.data[10:])))
}

func (p Packed) message() []byte { return p.data[:p.end()] }

// Append appends the message in p to b, for [Query.Restore]: with ID 0, the question in lower
// case, and the original TTLs, but no extended error. p must not be zero.
func (p Packed) Append(b []byte) []byte {
	begin := len(b)
	b = append(b, p.message()...)
	put16(b[begin:], 0)
	return b
}

// Response is an upstream's reply that has been read and checked.
type Response struct {
	Packed Packed
	Rcode  Rcode
	// Truncated is the TC bit: the answer is incomplete.
	Truncated bool
	// Records is the number of records, without OPT.
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
	// Contradictory says that the answer section contradicts itself or the rcode: see
	// [responseScan.followAliases].
	Contradictory bool
}

// Matches reports whether msg is a reply to query: whether the ID and, without regard to
// case, the question are the same. A reply without a question matches only if it is an error
// that a server sends for a query that it can't read.
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

// bareRcode reports whether a reply without a question may have rcode c: an error that a
// server sends before it has read a name. Others would be accepted by their ID alone.
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

// ParseResponse checks and packs msg, a reply that [Matches] a query for q's question. The
// result holds no reference to msg. Errors wrap [ErrResponse].
func ParseResponse(msg []byte, q *Query) (Response, error) {
	return parseResponse(msg, q, newReadBudget(len(msg)))
}

// parseResponse is ParseResponse with a budget.
func parseResponse(msg []byte, q *Query, left readBudget) (Response, error) {
	if len(msg) < HeaderLen {
		return Response{}, fmt.Errorf("%w: %d bytes are no header", ErrResponse, len(msg))
	}
	if u16(msg[4:]) == 0 { // a bare error
		return bareResponse(q, Rcode(u16(msg[2:])&rcodeMask)), nil
	}
	s, err := scanResponse(msg, q, left)
	if err != nil {
		return Response{}, err
	}
	switch {
	case s.needsObjects():
		if msg, err = s.replace(msg, q, left); err != nil {
			return Response{}, err
		}
	case s.rewrite && !s.mixed:
		msg = s.withPointers(msg, q)
	}
	s.Packed = pack(msg[:s.end], q, s.ttls)
	flags := u16(msg[2:])&(flagAA|flagTC|flagRA|flagAD) | flagQR | uint16(s.Rcode&rcodeMask)
	put16(s.Packed.data[2:], flags)
	put16(s.Packed.data[10:], u16(msg[10:])-s.opts)
	put16(s.Packed.data, s.ede)
	return s.Response, nil
}

// needsObjects reports whether the message is to be rewritten and withPointers can't do it.
func (s *responseScan) needsObjects() bool {
	return s.repack || s.rewrite && s.mixed && s.Records <= maxRepacked
}

// replace returns msg rewritten, or as it is if that fails and it may be passed on so, and makes s what is read from that, with
// the budget left.
func (s *responseScan) replace(msg []byte, q *Query, left readBudget) ([]byte, error) {
	written, err := s.rewritten(msg, q)
	switch {
	case err == nil:
		msg = written
	case s.repack:
		return nil, err
	}
	rcode, ede := s.Rcode, s.ede // repack drops them with the OPT record
	// Names that were written out may be pointers now.
	if *s, err = scanResponse(msg, q, 2*left); err != nil {
		return nil, err
	}
	s.Rcode, s.ede = rcode, ede
	return msg, nil
}

// withPointers returns msg with a pointer to the question as the owner of every record but OPT, which are addresses of the qname.
// Unlike repack, it costs little: servers that compress no names send many such replies.
func (s *responseScan) withPointers(msg []byte, q *Query) []byte {
	out := append(make([]byte, 0, s.end), msg[:q.questionEnd()]...)
	it := recordsOf(msg, len(out))
	for i := range s.ttls { // without OPT, which comes last
		it.next()
		out = append16(out, questionPointer)
		s.ttls[i] = uint16(len(out) + 4)
		out = append(out, msg[it.ttlOffset()-4:it.End]...)
	}
	s.end = len(out)
	return out
}

// rewritten returns msg rewritten as repack does. If that would take too long or make it too
// long, only its OPT records are removed.
func (s *responseScan) rewritten(msg []byte, q *Query) (written []byte, err error) {
	if err = errTooCostly; s.Records <= maxRepacked {
		written, err = repack(msg)
	}
	if err == nil || !s.repack {
		return written, err
	}
	if moved, ok := withoutOPT(msg, q); ok {
		return moved, nil
	}
	return nil, err
}

// ErrorResponse returns a reply to q with rcode c and no records, such as a SERVFAIL
// that is cached.
func ErrorResponse(q *Query, c Rcode) Response { return bareResponse(q, c) }

// Explain adds an extended error to r, which nobody else uses yet.
func (r Response) Explain(why EDE) Response {
	put16(r.Packed.data, uint16(why)+1)
	return r
}

func bareResponse(q *Query, c Rcode) Response {
	var head [HeaderLen + MaxName + 4]byte
	msg := append(head[:HeaderLen], q.Packet[HeaderLen:q.questionEnd()]...)
	p := pack(msg, q, nil)
	put16(p.data[2:], flagQR|uint16(c&rcodeMask))
	put16(p.data[4:], 1)
	return Response{Packed: p, Rcode: c}
}

// pack makes msg a Packed, with ID 0, and the question in lower case and of q's class.
func pack(msg []byte, q *Query, ttls []uint16) Packed {
	data := slices.Grow([]byte(nil), len(msg)+2*len(ttls)) // its cap is what it takes
	data = append(data, msg...)
	for _, t := range ttls {
		data = append16(data, t)
	}
	put16(data, 0)
	copy(data[HeaderLen:], q.Name())
	put16(data[q.questionEnd()-2:], q.Class)
	return Packed{data: data}
}

// responseScan is the result of reading a response once.
type responseScan struct {
	Response
	checker
	opts  uint16 // OPT records found
	ede   uint16 // one more than the extended error's code, 0 for none
	end   int    // after the last record that is packed
	asked int    // answers of the qtype
	// aliases are the CNAMEs of the answer section, and aliasesLeft what may be read of them.
	aliases     []aliasRecord
	aliasesLeft readBudget
	repack      bool // an OPT record is before others
	mixed       bool // a record is no address, or its owner is not the qname
}

// scanResponse reads every record of msg once, with the budget left.
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
	s.left, s.aliasesLeft, s.objectsLeft = left, aliasBudget, objectBudget
	s.MinTTL = 1<<32 - 1
	records := int(u16(msg[6:])) + int(u16(msg[8:])) + int(u16(msg[10:]))
	s.ttls = make([]uint16, 0, min(records, len(msg)/16)) // no record of an RRset has fewer bytes than an address
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
	if s.left < 0 || s.aliasesLeft < 0 {
		return s, errTooCostly
	}
	return s, nil
}

// recordError returns the error of the section's record number i.
func (s *responseScan) recordError(i uint16, section Section) error {
	if s.left < 0 || s.objectsLeft < 0 {
		return errTooCostly
	}
	return fmt.Errorf("%w: record %d of section %d is cut off or malformed", ErrResponse, i, section)
}

// count adds a checked record to s.
func (s *responseScan) count(msg []byte, q *Query, section Section, rr Record) {
	if rr.Type == TypeOPT {
		s.countOPT(msg, rr)
		return
	}
	// Records after an OPT record can't just be moved: names point by offset.
	s.repack = s.repack || s.opts > 0
	s.countOwner(msg, q, rr)
	s.end = rr.End
	s.Records++
	ttl := rr.TTL
	if ttl>>31 != 0 { // RFC 2181, 8: a TTL with the highest bit set is 0
		ttl = 0
	}
	s.MinTTL = min(s.MinTTL, ttl)
	switch section {
	case Answer:
		s.countAnswer(q, rr)
	case Authority:
		if rr.Type == TypeSOA && !s.SOA {
			s.SOA = true
			s.NegativeTTL = min(ttl, u32(msg[rr.End-4:]))
		}
	}
}

// countOwner notes whether the owner of rr is the qname.
func (s *responseScan) countOwner(msg []byte, q *Query, rr Record) {
	written := namesQuestion(msg, q, rr.Start)
	s.rewrite = s.rewrite || written
	s.mixed = s.mixed || addressLen(rr.Type) == 0 || !written && u16(msg[rr.Start:]) != questionPointer
}

// countOPT adds an OPT record to s.
func (s *responseScan) countOPT(msg []byte, rr Record) {
	s.opts++
	if rr.TTL>>24 != 0 { // an extended rcode, which a client without EDNS could not be sent
		s.Rcode = ServFail
	}
	options := msg[rr.Data:rr.End]
	if at := findOption(options, optionEDE); at >= 0 && u16(options[at+2:]) >= edeLen-optionHead {
		s.ede = u16(options[at+optionHead:]) + 1 // 65,535 is for private use, and none here
	}
}

// namesQuestion reports whether the name at off is the qname, uncompressed.
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

// repack rewrites msg with compressed names, the question and equal names in lower case,
// and without OPT records. It is for rare messages and unpacks them into objects.
func repack(msg []byte) ([]byte, error) {
	m, err := unpackWithin(objectBudget, msg)
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
	if len(out) > MaxMessage { // names were compressed where they may not be (RFC 3597, 4)
		return nil, fmt.Errorf("%w: it has %d bytes with its names uncompressed", ErrResponse, len(out))
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

// AppendAnswers appends the answer section of msg to r's, whatever its owner names are: the
// answers for the target of an alias. It is for rare cases and unpacks msg into objects. msg
// is a message from [Reply.Finish].
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
