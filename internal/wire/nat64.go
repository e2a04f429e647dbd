package wire

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// Prefix64 is the IPv6 prefix in which IPv4 addresses are embedded (RFC 6052). The zero value
// is not valid.
type Prefix64 struct {
	bytes [16]byte
	head  int // bytes of the prefix
}

// NewPrefix64 returns the prefix p. ok is false if its length is not one of those in RFC 6052,
// 2.2.
func NewPrefix64(p netip.Prefix) (Prefix64, bool) {
	if !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() {
		return Prefix64{}, false
	}
	switch p.Bits() {
	case 32, 40, 48, 56, 64, 96:
		return Prefix64{bytes: p.Masked().Addr().As16(), head: p.Bits() / 8}, true
	}
	return Prefix64{}, false
}

// Embed returns the IPv6 address for the IPv4 address a, which has four bytes. Bits 64 to 71
// stay zero (RFC 6052, 2.2).
func (p *Prefix64) Embed(a []byte) (addr [16]byte) {
	addr = p.bytes
	at := p.head
	for _, b := range a[:4] {
		if at == 8 {
			at++
		}
		addr[at] = b
		at++
	}
	return addr
}

// Synthesize64 makes r, a reply to an AAAA query, from a, the reply to an A query for the same
// name: it replaces each A record by an AAAA record with the address embedded in p and a TTL of
// at most most seconds, and keeps the other records (RFC 6147, 5.3 and 5.4). The previous
// contents of r are dropped. AD is cleared because nobody has validated the result, and AA
// because no zone has it. The contents of a are not usable afterwards. On an error, a record
// that cannot be read, r is empty.
func (r *Reply) Synthesize64(a *Reply, p *Prefix64, most uint32) error {
	r.Reset()
	if !r.synthesize64(a, p, most) {
		r.Reset()
		if err := r.synthesize64Unpacked(a, p, most); err != nil {
			r.Reset()
			return err
		}
	}
	r.flags, r.rcode, r.full = a.flags&^(flagAA|flagAD), a.rcode, r.full || a.full
	r.CopyEDE(a)
	r.section = Additional
	return nil
}

// synthesize64 is Synthesize64 for the common replies: aliases followed by addresses and
// nothing else, or no address at all. It returns false for others, because a name after the
// addresses may point into their records.
func (r *Reply) synthesize64(a *Reply, p *Prefix64, most uint32) bool {
	end := a.q.questionEnd()
	it := a.answers()
	for it.next() && it.Type != TypeA {
	}
	if it.bad {
		return false
	}
	off, ahead := it.Start, uint16(it.n-1)
	if it.Type != TypeA {
		r.b = append(r.b, a.b[end:]...)
		r.count = a.count
		return true
	}
	if a.count[Authority]+a.count[Additional] > 0 {
		return false
	}
	r.b = append(r.b, a.b[end:off]...)
	r.count[Answer] = ahead
	return r.addMapped(a, off, p, most)
}

// addMapped appends an AAAA record for each record from off on. It returns false if one is not
// an A record, or its owner is not a pointer to before the first address.
func (r *Reply) addMapped(a *Reply, off int, p *Prefix64, most uint32) bool {
	for first := off; off < len(a.b); {
		rr, ok := readRecord(a.b, off)
		if !ok || rr.Type != TypeA || rr.Class != ClassIN || rr.End-rr.Data != addressLen(TypeA) {
			return false
		}
		owner := int(u16(a.b[rr.Start:])) - 0xC000
		if owner < 0 || owner >= first {
			return false
		}
		addr := p.Embed(a.b[rr.Data:rr.End])
		r.Add(Answer, owner, TypeAAAA, min(rr.TTL, most), addr[:])
		off = rr.End
	}
	return true
}

// synthesize64Unpacked is Synthesize64 for all other replies. It unpacks the message; such
// replies are rare.
func (r *Reply) synthesize64Unpacked(a *Reply, p *Prefix64, most uint32) error {
	m, err := Unpack(a.Finish(MaxMessage))
	if err != nil {
		return err
	}
	for i, rr := range m.Answer {
		v4, ok := rr.(*dns.A)
		if !ok || len(v4.A.To4()) == 0 {
			continue
		}
		head := v4.Hdr
		head.Rrtype, head.Ttl = TypeAAAA, min(head.Ttl, most)
		addr := p.Embed(v4.A.To4())
		m.Answer[i] = &dns.AAAA{Hdr: head, AAAA: addr[:]}
	}
	extra := m.Extra[:0]
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			extra = append(extra, rr)
		}
	}
	m.Extra, m.Compress, m.Rcode = extra, true, 0
	m.Question[0].Qtype = TypeAAAA
	out, err := m.Pack()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrResponse, err)
	}
	end := r.q.questionEnd()
	if len(out) < end || len(out)+optLen > MaxMessage {
		return fmt.Errorf("%w: %d bytes with synthesized addresses are too long", ErrResponse, len(out))
	}
	r.b = append(r.b, out[end:]...)
	r.count = [3]uint16{uint16(len(m.Answer)), uint16(len(m.Ns)), uint16(len(m.Extra))}
	return nil
}
