package wire

import (
	"encoding/binary"
	"math"
)

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

// MinTTL returns for how long msg, a reply, may be kept, in seconds: the lowest TTL of its records except OPT, and the MINIMUM
// field of an SOA record in the authority section (RFC 2308, 5; RFC 8484, 5.1). ok is false if there is no such record or msg is malformed.
func MinTTL(msg []byte) (ttl uint32, ok bool) {
	whole := walkTTLs(msg, func(r Record) {
		if !ok || r.TTL < ttl {
			ttl, ok = r.TTL, true
		}
	})
	if !whole {
		return 0, false
	}
	return ttl, ok
}

// Age lowers the TTLs of msg, a reply that was kept for the given number of seconds, to what is left of them: at least 0. The TTL of an
// SOA record in the authority section becomes what is left of [MinTTL]'s limit. Nothing behind malformed records changes.
func Age(msg []byte, seconds uint32) {
	walkTTLs(msg, func(r Record) {
		if r.TTL > math.MaxInt32 {
			r.TTL = 0 // RFC 2181, 8
		}
		binary.BigEndian.PutUint32(msg[r.ttlOffset():], r.TTL-min(r.TTL, seconds))
	})
}

// walkTTLs calls f with each record of msg except OPT; its TTL is limited by [denialTTL] in the authority section. It
// returns false if msg is malformed.
func walkTTLs(msg []byte, f func(Record)) bool {
	if len(msg) < HeaderLen {
		return false
	}
	off := HeaderLen
	for range u16(msg[4:]) {
		if off = skipName(msg, off); off < 0 {
			return false
		}
		off += 4
	}
	authority := int(u16(msg[6:]))
	additional := authority + int(u16(msg[8:]))
	for i := range additional + int(u16(msg[10:])) {
		r, fine := readRecord(msg, off)
		if !fine {
			return false
		}
		off = r.End
		if r.Type == TypeOPT {
			continue
		}
		if i >= authority && i < additional {
			r.TTL = denialTTL(msg, r)
		}
		f(r)
	}
	return true
}

// denialTTL returns the TTL of r, a record of msg's authority section: of an SOA record at most its last field, MINIMUM.
func denialTTL(msg []byte, r Record) uint32 {
	if r.Type != TypeSOA || r.End-r.Data < soaNumbers {
		return r.TTL
	}
	return min(r.TTL, u32(msg[r.End-4:]))
}
