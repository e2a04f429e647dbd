package wire

// IsTruncated reports whether msg, a whole message or none, has TC set.
func IsTruncated(msg []byte) bool { return len(msg) >= HeaderLen && u16(msg[2:])&flagTC != 0 }

// Truncate shortens r to size bytes, as [Reply.Finish] does. TC is set if records are lost that the client needs: records
// of the answer, and of an authority section that denies or refers. NS records beside an answer and additional records are
// extra information, of which whole RRsets go (RFC 2181, 9).
func (r *Reply) Truncate(size int) {
	if len(r.b) > size && r.truncate(size) {
		r.full = true
	}
}

// truncate drops the first record that doesn't fit into room bytes, and all records after it. Behind the answer section
// it drops the whole RRset of that record. It reports whether the reply is incomplete.
func (r *Reply) truncate(room int) (incomplete bool) {
	off := r.q.questionEnd()
	var kept [3]uint16
	for s := range Section(3) {
		var first Record // of the last RRset, of n records
		n := uint16(0)
		for i := range r.count[s] {
			rr, ok := readRecord(r.b, off)
			if i == 0 || rr.Type != first.Type || !r.sameOwner(rr.Start, first.Start) {
				first, n = rr, 0
			}
			if !ok || rr.End > room {
				incomplete = !ok || !r.isExtra(s, rr.Type)
				if !incomplete {
					off, kept[s] = first.Start, kept[s]-n
				}
				r.count, r.b = kept, r.b[:off]
				return incomplete
			}
			kept[s]++
			n++
			off = rr.End
		}
	}
	return false
}

// isExtra reports whether the reply is complete without the RRset of that type in s.
func (r *Reply) isExtra(s Section, rtype uint16) bool {
	return s == Additional || s == Authority && rtype == TypeNS && r.count[Answer] > 0 && !r.q.DO
}

// sameOwner reports whether the records at two offsets have the same owner.
func (r *Reply) sameOwner(a, b int) bool {
	if p := u16(r.b[a:]); p >= 0xC000 && p == u16(r.b[b:]) {
		return true
	}
	var name [MaxName]byte
	left := newReadBudget(len(r.b)) // for two names
	n, _ := unpackName(name[:], r.b, a, &left)
	return n > 0 && left.equalNames(r.b, b, name[:n])
}

// leaveOut notes that a record is not written for want of room, or because it comes too late. owner is as in
// [Reply.Add].
func (r *Reply) leaveOut(s Section, owner int, rtype uint16) {
	var name [MaxName]byte
	left := newReadBudget(len(r.b)) // for one name
	n, _ := unpackName(name[:], r.b, owner, &left)
	r.leaveOutOf(s, name[:n], rtype)
}

// leaveOutOf is leaveOut for an owner in wire form. Of the additional section it removes the rest of the record's RRset,
// which was written last.
func (r *Reply) leaveOutOf(s Section, owner []byte, rtype uint16) {
	if s != Additional || r.full {
		r.full = true
		return
	}
	if r.cut {
		return
	}
	r.cut, r.section = true, Additional
	begin, n := r.q.questionEnd(), uint16(0) // of the records at the end that belong to the RRset
	for it := r.records(); it.next(); {
		if n++; it.section != Additional || it.Type != rtype || !r.hasName(it.Start, owner, true) {
			begin, n = it.End, 0
		}
	}
	r.b, r.count[Additional] = r.b[:begin], r.count[Additional]-n
}
