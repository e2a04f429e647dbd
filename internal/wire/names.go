package wire

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
}

// Names iterates over the names in the answer and additional sections of a reply. [Reply.Names]
// returns one. It must not be used after the reply has changed. It does not allocate.
type Names struct {
	r       *Reply
	section Section
	left    uint16 // records of the section after rr
	number  int
	off     int
	rr      Record
	target  bool       // the name in rr's RDATA comes next
	owner   uint16     // the compression pointer at the start of the previous record
	budget  readBudget // for the rest of r
	name    [MaxName]byte
}

// Names returns an iterator that is before the first name of r.
func (r *Reply) Names() Names {
	return Names{r: r, left: r.count[Answer], number: -1, off: r.q.questionEnd(), owner: questionPointer, budget: newReadBudget(len(r.b))}
}

// Next returns the next name; ok is false at the end. In the answer section these are owners,
// except the question's name and repetitions in consecutive records, and the targets of CNAME,
// DNAME, PTR, SRV, SVCB and HTTPS records. In the additional section they are all owners.
func (n *Names) Next() (NameRef, bool) {
	for {
		if n.target {
			n.target = false
			return n.nameRef(n.rr.Data+targetAt(n.rr.Type), true), true
		}
		if !n.nextRecord() {
			return NameRef{}, false
		}
		n.target = n.section == Answer && targetAt(n.rr.Type) >= 0
		owner := u16(n.r.b[n.rr.Start:])
		same := owner >= 0xC000 && owner == n.owner
		n.owner = owner
		if !same || n.section != Answer {
			return n.nameRef(n.rr.Start, false), true
		}
	}
}

// nextRecord reads the next record; it returns false at the end.
func (n *Names) nextRecord() bool {
	for n.left == 0 || n.section == Authority {
		if n.section == Additional {
			return false
		}
		for range n.left { // of the authority section
			rr, ok := readRecord(n.r.b, n.off)
			if !ok {
				return false
			}
			n.off = rr.End
			n.number++
		}
		n.section++
		n.left = n.r.count[n.section]
	}
	rr, ok := readRecord(n.r.b, n.off)
	if !ok {
		return false
	}
	n.rr, n.off = rr, rr.End
	n.left--
	n.number++
	return true
}

// nameRef returns the name at off.
func (n *Names) nameRef(off int, target bool) NameRef {
	size, _ := unpackName(n.name[:], n.r.b, off, &n.budget)
	item := NameRef{Section: n.section, Record: n.number, Type: n.rr.Type, Target: target}
	if size > 0 {
		item.Name = n.name[:size]
	}
	return item
}

// targetAt returns the offset of the target name in RDATA of type t, -1 if the type has none.
func targetAt(t uint16) int {
	switch t {
	case TypeCNAME, TypeDNAME, TypePTR:
		return 0
	case TypeSVCB, TypeHTTPS:
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
func (r *Reply) Remove(records []int) bool {
	var out Reply
	out.Start(make([]byte, 0, len(r.b)), r.q)
	w := rewriter{from: r.b, left: newReadBudget(len(r.b)), to: &out, e: unchanged{}}
	off, number := r.q.questionEnd(), 0
	for section := range Section(3) {
		for range r.count[section] {
			rr, ok := readRecord(r.b, off)
			if !ok {
				return false
			}
			off = rr.End
			if len(records) > 0 && records[0] == number {
				records = records[1:]
			} else if !w.record(section, rr) {
				return false
			}
			number++
		}
	}
	r.b = append(r.b[:0], out.b...)
	r.count, r.section, r.full = out.count, out.section, r.full || out.full
	return true
}
