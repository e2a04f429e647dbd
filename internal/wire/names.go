package wire

import (
	"net/netip"
	"slices"
)

// NameRef is a name in a reply other than the question's: the owner of a record, or the target
// of one of the types listed at [Names.Next].
type NameRef struct {
	Section Section
	Record  int    // the record's number in the reply, from 0
	Type    uint16 // of the record
	Target  bool   // the name is in the RDATA
	// Name is in lower case and wire form. It is nil if the name is malformed, or if the
	// read budget of the message is exhausted. It is valid until the next
	// call.
	Name []byte
	// HintsA and HintsAAAA say that the record, of type SVCB or HTTPS, has addresses of the target (RFC 9460, 7.3).
	HintsA, HintsAAAA bool
}

// Names iterates over the names in the answer and additional sections of a reply. [Reply.Names]
// returns one. It must not be used after the reply has changed. It does not allocate.
type Names struct {
	it     records
	target bool       // the name in the record's RDATA comes next
	all    bool       // see [Reply.AllNames]
	owner  uint16     // the compression pointer at the start of the previous record
	budget readBudget // for the rest of the reply
	name   [MaxName]byte
}

// Names returns an iterator that is before the first name of r.
func (r *Reply) Names() Names {
	return Names{it: r.records(), owner: questionPointer, budget: newReadBudget(len(r.b))}
}

// AllNames is Names with the owner of each record.
func (r *Reply) AllNames() Names {
	n := r.Names()
	n.all = true
	return n
}

// Next returns the next name; ok is false at the end. In the answer section these are owners,
// except the question's name and repetitions in consecutive records, and the targets of CNAME,
// DNAME, PTR, SRV, MX, NS, SVCB and HTTPS records; the target "." of the last two is the owner
// (RFC 9460, 2.5). In the additional section they are all owners.
func (n *Names) Next() (NameRef, bool) {
	for {
		if n.target {
			n.target = false
			return n.targetRef(), true
		}
		if !n.it.next() {
			return NameRef{}, false
		}
		if n.it.section == Authority {
			continue
		}
		n.target = n.it.section == Answer && targetAt(n.it.Type) >= 0
		owner := u16(n.it.msg[n.it.Start:])
		same := owner >= 0xC000 && owner == n.owner
		n.owner = owner
		if !same || n.all || n.it.section != Answer {
			return n.nameRef(n.it.Start, false), true
		}
	}
}

// nameRef returns the name at off.
func (n *Names) nameRef(off int, target bool) NameRef {
	size, _ := unpackName(n.name[:], n.it.msg, off, &n.budget)
	item := NameRef{Section: n.it.section, Record: n.it.n - 1, Type: n.it.Type, Target: target}
	if size > 0 {
		item.Name = n.name[:size]
	}
	return item
}

// targetRef returns the target of the record.
func (n *Names) targetRef() NameRef {
	item := n.nameRef(n.it.Data+targetAt(n.it.Type), true)
	if n.it.Type != TypeSVCB && n.it.Type != TypeHTTPS {
		return item
	}
	if len(item.Name) == 1 {
		item = n.nameRef(n.it.Start, true)
	}
	eachHint(n.it.msg[n.it.Data:n.it.End], func(addr netip.Addr) bool {
		item.HintsA, item.HintsAAAA = item.HintsA || addr.Is4(), item.HintsAAAA || addr.Is6()
		return true
	})
	return item
}

// targetAt returns the offset of the target name in RDATA of type t, -1 if the type has none.
func targetAt(t uint16) int {
	switch t {
	case TypeCNAME, TypeDNAME, TypePTR, TypeNS:
		return 0
	case TypeSVCB, TypeHTTPS, TypeMX:
		return 2
	case TypeSRV:
		return 6
	}
	return -1
}

// CopyTC sets TC in r if it is set in other.
func (r *Reply) CopyTC(other *Reply) { r.full = r.full || other.full }

// Remove removes records, given by their numbers in ascending order, from r. It returns false
// and leaves r unchanged if a record cannot be rewritten.
func (r *Reply) Remove(numbers []int) bool { return r.rewriteRecords(numbers, false) }

// rewriteRecords is Remove, and with hints [Reply.RemoveIPv6Hints].
func (r *Reply) rewriteRecords(numbers []int, hints bool) bool {
	var out Reply
	out.Start(make([]byte, 0, len(r.b)), r.q)
	w := rewriter{from: r.b, left: newReadBudget(len(r.b)), to: &out, e: unchanged{}}
	it := r.records()
	for it.next() {
		at := len(out.b)
		if len(numbers) > 0 && numbers[0] == it.n-1 {
			numbers = numbers[1:]
		} else if !w.record(it.section, it.Record) {
			return false
		}
		if rr, ok := readRecord(out.b, at); ok && hints {
			out.cutIPv6Hint(rr)
		}
	}
	if it.bad {
		return false
	}
	r.b = append(r.b[:0], out.b...)
	r.count, r.section, r.full = out.count, out.section, r.full || out.full
	return true
}

// cutIPv6Hint removes ipv6hint from rr, the last record.
func (r *Reply) cutIPv6Hint(rr Record) {
	if from, to := ipv6Hint(r.b, rr); to > 0 {
		r.b = slices.Delete(r.b, from, to)
		put16(r.b[rr.Data-2:], uint16(len(r.b)-rr.Data))
	}
}
