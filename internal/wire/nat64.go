package wire

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// Prefix64 is where IPv4 addresses are in the IPv6 address space (RFC 6052). The zero
// value is none.
type Prefix64 struct {
	bytes [16]byte
	head  int // bytes of the prefix
}

// NewPrefix64 is the mapping by p, whose length is one of those that RFC 6052, 2.2,
// allows; false for any other.
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

// Embed is the IPv6 address of a, four bytes. Bits 64 to 71 are left out (RFC 6052, 2.2).
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

// Synthesize64 makes r, whatever it holds, the reply that a, to an A question for r's name, is
// with p's addresses in place of those it holds, with TTLs of most at most; the other
// records stay as they are (RFC 6147, 5.3 and 5.4). AD is not taken along, because
// nobody has validated what is made here, and AA because no zone has it. a is used up.
// An error is a record that can't be read; r is empty then.
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

// synthesize64 is Map64 for the usual shapes: aliases and then addresses and no more, or no
// address at all. It is false for any other, where what stands behind the addresses may
// point to what is between them.
func (r *Reply) synthesize64(a *Reply, p *Prefix64, most uint32) bool {
	end := a.q.questionEnd()
	off, ahead := end, uint16(0)
	for ; ahead < a.count[Answer]; ahead++ {
		rr, ok := readRecord(a.b, off)
		if !ok {
			return false
		}
		if rr.Type == TypeA {
			break
		}
		off = rr.End
	}
	if ahead == a.count[Answer] {
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

// addMapped appends an IPv6 address for each record from off on. It is false if one of
// them is something else, or has an owner that is written out or stands in between.
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

// synthesize64Unpacked is Map64 for the rest: a rare path, through objects.
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
		return fmt.Errorf("%w: it has %d bytes with its addresses mapped", ErrResponse, len(out))
	}
	r.b = append(r.b, out[end:]...)
	r.count = [3]uint16{uint16(len(m.Answer)), uint16(len(m.Ns)), uint16(len(m.Extra))}
	return nil
}
