package wire

import (
	"fmt"
	"iter"
	"slices"

	"github.com/miekg/dns"
)

// TypeDNAME and TypeNAPTR have names in their RDATA that an [Editor] is asked about.
const (
	TypeNAPTR uint16 = 35
	TypeDNAME uint16 = 39
)

// Editor says what becomes of the records of a reply. Names are in wire form and in the
// case they came in; the result is used before the next call, and may be what was given.
// A nil name says that the record can't be written.
type Editor interface {
	// Owner is asked for each record's owner.
	Owner(name []byte) []byte
	// Value is asked for the names that the RDATA of CNAME, DNAME, MX, NAPTR, NS, PTR
	// and SRV records hold, and for the first of a SOA's.
	Value(name []byte) []byte
	// TTL is asked for each record's TTL.
	TTL(ttl uint32) uint32
}

// Splice is other answers in place of those behind an alias.
type Splice struct {
	// At is which of the answers is the alias, a CNAME; only aliases are kept before it.
	At int
	// Target is what it leads to instead, in wire form.
	Target []byte
	// Answers has the answers that come behind it.
	Answers *Reply
}

// Rewrite makes r, whatever it holds, what e makes of the records of other, a reply to
// another question: behind r's own question, with other's rcode, extended error and flags but AD, since
// nobody has validated the names. s, if not nil, says what takes the place of some
// answers. other stays as it is.
//
// It is false, and r empty, where e says that a record can't be written, or the names of
// other take too long to read. What is longer than a message is cut, with TC set.
func (r *Reply) Rewrite(other *Reply, e Editor, s *Splice) bool {
	r.Reset()
	w := rewriter{from: other.b, left: rewriteBudget(other.b), to: r, e: e, splice: s}
	if !w.sections(other) {
		r.Reset()
		return false
	}
	r.flags, r.rcode = other.flags&^flagAD, other.rcode
	r.CopyEDE(other)
	r.full = r.full || other.full
	return true
}

// sections writes all records of other.
func (w *rewriter) sections(other *Reply) bool {
	off := other.q.questionEnd()
	for section := range Section(3) {
		for i := range int(other.count[section]) {
			rr, ok := readRecord(other.b, off)
			if !ok || !w.recordOrSplice(section, i, rr) {
				return false
			}
			off = rr.End
		}
		if section == Answer && w.splice != nil && !w.spliceAnswers(w.splice.Answers) {
			return false
		}
	}
	return true
}

// recordOrSplice writes rr, the record number i of its section, or leaves it out by the splice.
func (w *rewriter) recordOrSplice(section Section, i int, rr Record) bool {
	w.target = nil
	if s := w.splice; s != nil && section == Answer {
		if !s.keeps(i, rr.Type) {
			return true
		}
		if i == s.At {
			w.target = s.Target
		}
	}
	return w.record(section, rr)
}

// spliceAnswers writes those of other as they are.
func (w *rewriter) spliceAnswers(other *Reply) bool {
	from, left, e := w.from, w.left, w.e
	w.from, w.left, w.e, w.target = other.b, rewriteBudget(other.b), unchanged{}, nil
	off := other.q.questionEnd()
	for range int(other.count[Answer]) {
		rr, ok := readRecord(other.b, off)
		if !ok || !w.record(Answer, rr) {
			return false
		}
		off = rr.End
	}
	w.from, w.left, w.e = from, left, e
	w.to.full = w.to.full || other.full
	return true
}

// AddRecord writes rr, of any type, owner and class, in s; the rest is as in [Reply.Add].
// An error is a record that has no wire form. It wraps [ErrResponse].
func (r *Reply) AddRecord(s Section, rr dns.RR) error {
	buf := make([]byte, dns.Len(rr)+1) // which says no less than it takes uncompressed
	end, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrResponse, err)
	}
	w := rewriter{from: buf[:end], left: rewriteBudget(buf[:end]), to: r, e: unchanged{}, plain: true}
	rec, ok := readRecord(w.from, 0)
	if r.full = r.full || s < r.section; !ok || !w.record(s, rec) {
		return fmt.Errorf("%w: %s", ErrResponse, rr)
	}
	return nil
}

// AddAnswers writes the answers of other, to whatever question, behind r's own. It is
// false if one of them can't be read.
func (r *Reply) AddAnswers(other *Reply) bool {
	w := rewriter{to: r}
	return w.spliceAnswers(other)
}

// unchanged is an [Editor] that changes nothing.
type unchanged struct{}

func (unchanged) Owner(name []byte) []byte { return name }
func (unchanged) Value(name []byte) []byte { return name }
func (unchanged) TTL(ttl uint32) uint32    { return ttl }

// keeps reports whether the answer at i, of type t, stays.
func (s *Splice) keeps(i int, t uint16) bool {
	return i == s.At || i < s.At && t == TypeCNAME
}

// maxKnown bounds the names that later ones may point to, besides the question's. A reply
// has few different owners, next to one another; with twice as many each record of a long
// one would be held against all.
const maxKnown = 4

// rewriter writes the records of one message into another.
type rewriter struct {
	from   []byte
	left   readBudget // for from
	to     *Reply
	e      Editor
	splice *Splice // nil: none
	// target, if not nil, is what the next record, an alias, leads to.
	target []byte
	// known are the names written out last.
	known [maxKnown]struct{ at, n int }
	last  int // which was noted last
	name  [MaxName]byte
	plain bool // no name in from is compressed, and nobody is asked about those in RDATA
}

// rewriteBudget is what reading from may take. It is more than a message may take that
// comes in: there the owner of a set of records counts once, and here it is read for each.
func rewriteBudget(from []byte) readBudget { return 4 * newReadBudget(len(from)) }

// record writes rr, as the editor has it.
func (w *rewriter) record(section Section, rr Record) bool {
	r := w.to
	n, _ := expandName(w.name[:], w.from, rr.Start, &w.left)
	if n == 0 || w.left < 0 {
		return false
	}
	owner := w.e.Owner(w.name[:n])
	begin := len(r.b)
	if r.full || owner == nil {
		return r.full
	}
	w.compressName(owner, true)
	r.b = append16(r.b, rr.Type)
	r.b = append16(r.b, rr.Class)
	r.b = append32(r.b, w.e.TTL(rr.TTL))
	r.b = append16(r.b, 0)
	data := len(r.b)
	if !w.rdata(rr) {
		return false
	}
	if len(r.b)+optLen > MaxMessage || len(r.b)-data > MaxMessage {
		r.b, r.full = r.b[:begin], true
		return true
	}
	put16(r.b[data-2:], uint16(len(r.b)-data))
	r.section = section
	r.count[section]++
	return true
}

// compressName writes name, as a pointer where it stands in the message already. An owner that is
// the question's name is that in any case, so that it comes in the client's; all other names
// keep their own.
func (w *rewriter) compressName(name []byte, owner bool) {
	r := w.to
	if owner && EqualNames(r.q.Name(), name) {
		r.b = append16(r.b, questionPointer)
		return
	}
	if asked := r.b[HeaderLen : HeaderLen+r.q.nameLen]; len(name) > 1 && hasSuffix(asked, name) {
		r.b = append16(r.b, 0xC000|uint16(HeaderLen+len(asked)-len(name)))
		return
	}
	for _, k := range w.known {
		if k.n == len(name) && string(r.b[k.at:k.at+k.n]) == string(name) {
			r.b = append16(r.b, 0xC000|uint16(k.at))
			return
		}
	}
	w.writeName(name)
}

// writeName writes name out, and notes where.
func (w *rewriter) writeName(name []byte) {
	if at := len(w.to.b); at <= maxPointed && len(name) > 1 {
		w.last = (w.last + 1) % maxKnown
		w.known[w.last].at, w.known[w.last].n = at, len(name)
	}
	w.to.b = append(w.to.b, name...)
}

// hasSuffix reports whether name is q or what q ends with, from a label on.
func hasSuffix(q, name []byte) bool {
	for len(q) > len(name) {
		q = q[1+int(q[0]):]
	}
	return string(q) == string(name)
}

// EqualNames compares two names in wire form but for their case (RFC 4343).
func EqualNames(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		if lower[c] != lower[b[i]] {
			return false
		}
	}
	return true
}

// rdata writes rr's.
func (w *rewriter) rdata(rr Record) bool {
	shape, named := rdataNames[rr.Type]
	if !named {
		return w.copyRdata(rr)
	}
	off := rr.Data + shape.head
	w.to.b = append(w.to.b, w.from[rr.Data:off]...)
	for i := range shape.names {
		n, end := expandName(w.name[:], w.from, off, &w.left)
		if n == 0 || w.left < 0 {
			return false
		}
		name := w.name[:n]
		if i == 0 && editable(rr.Type) {
			name = w.value(name)
		}
		if name == nil {
			return false
		}
		if compressible(rr.Type) {
			w.compressName(name, false)
		} else {
			w.writeName(name)
		}
		off = end
	}
	w.to.b = append(w.to.b, w.from[off:rr.End]...)
	return true
}

// value is what the editor makes of a name in RDATA.
func (w *rewriter) value(name []byte) []byte {
	if w.target != nil {
		return w.target
	}
	return w.e.Value(name)
}

// editable reports whether an editor is asked about the first name of RDATA of type t.
func editable(t uint16) bool {
	switch t {
	case TypeCNAME, TypeDNAME, TypeMX, TypeNAPTR, TypeNS, TypePTR, TypeSRV, TypeSOA:
		return true
	}
	return false
}

// compressible reports whether everybody reads pointers in RDATA of type t, as those do
// that RFC 1035 defines (RFC 3597, 4).
func compressible(t uint16) bool {
	switch t {
	case TypeCNAME, TypeMX, TypeNS, TypePTR, TypeSOA:
		return true
	}
	return false
}

// copyRdata writes RDATA that has no names, or none that this package has a table for:
// those are written out by miekg/dns, since pointers in them would lead nowhere.
func (w *rewriter) copyRdata(rr Record) bool {
	_, object := dns.TypeToRR[rr.Type]
	if addressLen(rr.Type) > 0 || !object || rr.Type == TypeTXT || w.plain || rr.Data == rr.End {
		w.to.b = append(w.to.b, w.from[rr.Data:rr.End]...)
		return true
	}
	if at, n := namesIn(w.from, rr); w.left.spendNames(w.from[:rr.End], at, n) < 0 {
		return false
	}
	head := dns.RR_Header{Rrtype: rr.Type, Class: rr.Class, Rdlength: uint16(rr.End - rr.Data), Name: "."}
	obj, _, err := dns.UnpackRRWithHeader(head, w.from[:rr.End], rr.Data)
	if err != nil {
		return false
	}
	buf := make([]byte, MaxMessage)
	end, err := dns.PackRR(obj, buf, 0, nil, false)
	if err != nil {
		return false
	}
	data := buf[1+10 : end] // behind the root as owner
	if rr.Type == TypeNAPTR {
		return w.rewriteNAPTR(data)
	}
	w.to.b = append(w.to.b, data...)
	return true
}

// rewriteNAPTR writes the RDATA of a NAPTR record (RFC 3403, 4.1), data, whose name is
// behind two numbers and three strings.
func (w *rewriter) rewriteNAPTR(data []byte) bool {
	off := 4
	for range 3 {
		if off >= len(data) {
			return false
		}
		off += 1 + int(data[off])
	}
	n, _ := expandName(w.name[:], data, off, &w.left)
	if n == 0 || w.left < 0 {
		return false
	}
	name := w.e.Value(w.name[:n])
	if name == nil {
		return false
	}
	w.to.b = append(w.to.b, data[:off]...)
	w.to.b = append(w.to.b, name...)
	return true
}

// expandName copies the name at off, decompressed and in its own case, to dst. It gives
// the bytes of dst used and the offset behind the name in msg; n is 0 if the name is
// broken. What is read behind its first pointer is taken from left, whose end does not
// end it.
//
//nolint:gocyclo // as unpackName
func expandName(dst, msg []byte, off int, left *readBudget) (n, end int) {
	end = -1
	for jumps := 0; off < len(msg); {
		c := int(msg[off])
		if jumps > 0 {
			left.spend(c)
		}
		switch {
		case c&0xC0 == 0xC0:
			if off+2 > len(msg) || jumps == maxPointers {
				return 0, -1
			}
			if end < 0 {
				end = off + 2
			}
			jumps++
			off = int(u16(msg[off:]) & 0x3FFF)
		case c&0xC0 != 0 || off+1+c > len(msg) || n+1+c > len(dst):
			return 0, -1
		default:
			n += copy(dst[n:], msg[off:off+1+c])
			off += 1 + c
			if c > 0 {
				continue
			}
			if end < 0 {
				end = off
			}
			return n, end
		}
	}
	return 0, -1
}

// Aliases goes over the aliases among r's answers: the number of each, and its target in
// wire form and its own case. The target is in buf, which holds a whole name, until the
// next. It ends early at what can't be read.
func (r *Reply) Aliases(buf []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		off, left := r.q.questionEnd(), newReadBudget(len(r.b))
		for i := range int(r.count[Answer]) {
			rr, ok := readRecord(r.b, off)
			if !ok {
				return
			}
			off = rr.End
			if rr.Type != TypeCNAME {
				continue
			}
			n, _ := expandName(buf, r.b, rr.Data, &left)
			if n == 0 || left < 0 || !yield(i, slices.Clip(buf[:n])) {
				return
			}
		}
	}
}
