package wire

import (
	"iter"
	"slices"

	"github.com/miekg/dns"
)

// TypeDNAME and TypeNAPTR are types whose RDATA has a name that an [Editor] may change.
const (
	TypeNAPTR uint16 = 35
	TypeDNAME uint16 = 39
)

// Editor decides how [Reply.Rewrite] changes records. Names are in wire form and keep their
// case. A result is used before the next call, and may be the argument. A nil name means that
// the record cannot be written.
type Editor interface {
	// Owner returns the new owner of a record.
	Owner(name []byte) []byte
	// Value returns the new name in the RDATA of CNAME, DNAME, MX, NAPTR, NS, PTR
	// and SRV records, and the new MNAME of a SOA record.
	Value(name []byte) []byte
	// TTL returns the new TTL of a record, in seconds.
	TTL(ttl uint32) uint32
}

// Splice replaces the answers after an alias.
type Splice struct {
	// At is the index of the alias, a CNAME. Of the answers before it only aliases stay.
	At int
	// Target is the new target of the alias, in wire form.
	Target []byte
	// Answers holds the answers that follow the alias.
	Answers *Reply
}

// Rewrite makes r a reply with the records of other as e changes them; the previous contents of
// r are dropped. Rcode, extended error and flags are taken from other. AD is cleared unless the questions are
// the same and e has changed only TTLs, because nobody has validated other names. If s is not nil, it replaces some of
// the answers. other is not changed. Rewrite returns false and leaves r empty if e returns a nil name, or if the names of
// other exceed the read budget. A reply longer than a message is truncated, with TC set.
func (r *Reply) Rewrite(other *Reply, e Editor, s *Splice) bool {
	r.Reset()
	w := rewriter{from: other.b, left: rewriteBudget(other.b), to: r, e: e, splice: s}
	if !w.sections(other) {
		r.Reset()
		return false
	}
	r.flags, r.rcode = other.flags, other.rcode
	if w.renamed || s != nil || !sameQuestion(r.b, other.b) {
		r.flags &^= flagAD
	}
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

// recordOrSplice writes rr, record i of its section, unless the splice replaces it.
func (w *rewriter) recordOrSplice(section Section, i int, rr Record) bool {
	w.target = nil
	if s := w.splice; s != nil && section == Answer {
		if i > s.At || i < s.At && rr.Type != TypeCNAME {
			return true
		}
		if i == s.At {
			w.target = s.Target
		}
	}
	return w.record(section, rr)
}

// spliceAnswers writes the answers of other unchanged.
func (w *rewriter) spliceAnswers(other *Reply) bool {
	from, left, e := w.from, w.left, w.e
	w.from, w.left, w.e, w.target = other.b, rewriteBudget(other.b), unchanged{}, nil
	it := other.answers()
	for it.next() {
		if !w.record(Answer, it.Record) {
			return false
		}
	}
	if it.bad {
		return false
	}
	w.from, w.left, w.e = from, left, e
	w.to.full = w.to.full || other.full
	return true
}

// AddAnswers adds the answers of other to r. other may be a reply to any question. It returns
// false if an answer cannot be read.
func (r *Reply) AddAnswers(other *Reply) bool {
	w := rewriter{to: r}
	return w.spliceAnswers(other)
}

// unchanged is an [Editor] that changes nothing.
type unchanged struct{}

func (unchanged) Owner(name []byte) []byte { return name }
func (unchanged) Value(name []byte) []byte { return name }
func (unchanged) TTL(ttl uint32) uint32    { return ttl }

// maxKnown bounds the names, besides the question's, that later names may point to. Each record
// is compared with all of them; a reply has few different owners, next to one another.
const maxKnown = 4

// rewriter writes the records of one message into another.
type rewriter struct {
	from   []byte
	left   readBudget // for from
	to     *Reply
	e      Editor
	splice *Splice // nil: none
	// target, if not nil, is the new target of the next record, an alias.
	target []byte
	// known are the names written out last.
	known [maxKnown]struct{ at, n int }
	last  int // index of the newest
	name  [MaxName]byte
	plain bool // names in from are not compressed, and those in RDATA stay
	// renamed is set once e has changed a name.
	renamed bool
}

// rewriteBudgets is how much larger the budget of a rewriter is than that for a message from an
// upstream. The owner of an RRset is read for each record.
const rewriteBudgets = 4

// rewriteBudget returns the budget for reading from.
func rewriteBudget(from []byte) readBudget { return rewriteBudgets * newReadBudget(len(from)) }

// record writes rr as changed by the editor.
func (w *rewriter) record(section Section, rr Record) bool {
	r := w.to
	n, _ := expandName(w.name[:], w.from, rr.Start, &w.left)
	if n == 0 || w.left < 0 {
		return false
	}
	owner := w.changed(w.name[:n], w.e.Owner(w.name[:n]))
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

// changed returns the name that the editor has made of from, and records whether it is another one.
func (w *rewriter) changed(from, to []byte) []byte {
	w.renamed = w.renamed || !EqualNames(from, to)
	return to
}

// compressName writes name, as a pointer if it is already in the message. An owner equal to the
// question's name always becomes a pointer to it, and so takes the client's case. Other names
// keep their case.
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

// writeName writes name out and records its offset.
func (w *rewriter) writeName(name []byte) {
	if at := len(w.to.b); at <= maxPointed && len(name) > 1 {
		w.last = (w.last + 1) % maxKnown
		w.known[w.last].at, w.known[w.last].n = at, len(name)
	}
	w.to.b = append(w.to.b, name...)
}

// hasSuffix reports whether q is name or a name below it. Case matters.
func hasSuffix(q, name []byte) bool {
	for len(q) > len(name) {
		q = q[1+int(q[0]):]
	}
	return string(q) == string(name)
}

// EqualNames compares two names in wire form without regard to case (RFC 4343).
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

// rdata writes the RDATA of rr.
func (w *rewriter) rdata(rr Record) bool {
	shape, named := shapeOf(rr.Type)
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
			if name = w.target; name == nil {
				name = w.changed(w.name[:n], w.e.Value(w.name[:n]))
			}
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

// editable reports whether [Editor.Value] is called for the first name in RDATA of type t.
func editable(t uint16) bool {
	switch t {
	case TypeCNAME, TypeDNAME, TypeMX, TypeNAPTR, TypeNS, TypePTR, TypeSRV, TypeSOA:
		return true
	}
	return false
}

// compressible reports whether names in RDATA of type t may be compressed: only those of RFC
// 1035's types (RFC 3597, 4).
func compressible(t uint16) bool {
	switch t {
	case TypeCNAME, TypeMX, TypeNS, TypePTR, TypeSOA:
		return true
	}
	return false
}

// copyRdata writes RDATA without names, or of a type that has no entry in rdataNames. miekg/dns
// decompresses the latter, because pointers would lead to the wrong place.
func (w *rewriter) copyRdata(rr Record) bool {
	if isMovable(rr.Type, w.from[rr.Data:rr.End]) || w.plain || rr.Data == rr.End {
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
	data := buf[1+10 : end] // after the root as owner
	if rr.Type == TypeNAPTR {
		return w.rewriteNAPTR(data)
	}
	w.to.b = append(w.to.b, data...)
	return true
}

// rewriteNAPTR writes data, the RDATA of a NAPTR record (RFC 3403, 4.1). Its name follows two
// numbers and three strings.
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

// expandName copies the name at off to dst, decompressed and in its own case. It returns the
// number of bytes in dst and the offset after the name in msg; n is 0 if the name is malformed.
// Bytes read after the first pointer are taken from left; the caller checks whether left is
// exhausted.
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

// Aliases iterates over the CNAME records among r's answers: the number of the answer, and its
// target in wire form and its own case. The target is in buf, of at least [MaxName] bytes, and
// valid until the next one. The iteration ends early at a malformed record.
func (r *Reply) Aliases(buf []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		left := newReadBudget(len(r.b))
		for it := r.answers(); it.next(); {
			if it.Type != TypeCNAME {
				continue
			}
			n, _ := expandName(buf, r.b, it.Data, &left)
			if n == 0 || left < 0 || !yield(it.n-1, slices.Clip(buf[:n])) {
				return
			}
		}
	}
}
