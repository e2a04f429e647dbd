package wire

// FirstTTL returns the TTL, in seconds, of the first record of type rtype in s; ok is false if
// there is none.
func (r *Reply) FirstTTL(s Section, rtype uint16) (ttl uint32, ok bool) {
	for it := r.records(); it.next() && it.section <= s; {
		if it.section == s && it.Type == rtype {
			return it.TTL, true
		}
	}
	return 0, false
}

// LimitTTLs lowers the TTLs that exceed most, in seconds.
func (r *Reply) LimitTTLs(most uint32) {
	off := r.q.questionEnd()
	for range r.Count(Answer) + r.Count(Authority) + r.Count(Additional) {
		rr, whole := readRecord(r.b, off)
		if !whole {
			return
		}
		put32(r.b[rr.ttlOffset():], min(rr.TTL, most))
		off = rr.End
	}
}

// Minimize removes the authority and additional sections of a positive answer. Errors, denials
// and referrals keep theirs, since the authority section is what they say.
func (r *Reply) Minimize() {
	if r.rcode != NoError || r.count[Authority]+r.count[Additional] == 0 {
		return
	}
	if r.count[Answer] == 0 {
		_, denies := r.FirstTTL(Authority, TypeSOA)
		_, refers := r.FirstTTL(Authority, TypeNS)
		if denies || refers {
			return
		}
	}
	it := r.answers()
	for it.next() {
	}
	if it.bad {
		return
	}
	r.b = r.b[:it.End]
	r.section = Answer
	r.count[Authority], r.count[Additional] = 0, 0
}

// AddChild is [Reply.Add] for the owner label.qname. It adds nothing if that name would be too
// long.
func (r *Reply) AddChild(s Section, label string, rtype uint16, ttl uint32, rdata []byte) {
	if r.q.nameLen+1+len(label) > MaxName {
		return
	}
	at, before := len(r.b), r.count[s]
	r.b = append(r.b, byte(len(label)))
	r.b = append(r.b, label...)
	r.Add(s, AtQuestion, rtype, ttl, rdata)
	if r.count[s] == before {
		r.b = r.b[:at]
	}
}
