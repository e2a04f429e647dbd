// These tests use data, rcodeMask and repack, which are not exported.

package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// The fuzzers here hold the way of bytes against the way of objects: what one of
// them reads or writes, the other must read or write too. What may differ is said
// where it is let pass.

// parseUnpacked is ParseResponse by unpacking, whatever the shape of msg. ok is false if either
// path rejects msg.
func parseUnpacked(t *testing.T, msg []byte, q *Query) (p Packed, written []byte, ok bool) {
	t.Helper()
	first, err := scanResponse(msg, q, newReadBudget(len(msg)))
	if err != nil {
		return p, nil, false
	}
	if written, err = repack(msg); err != nil {
		return p, nil, false
	}
	s, err := scanResponse(written, q, 2*newReadBudget(len(msg)))
	if err != nil {
		t.Fatalf("what objects wrote is not taken: %v\n%x", err, written)
	}
	if s.repack {
		t.Fatalf("what objects wrote is a rare shape again: %x", written)
	}
	if s.opts != 0 || s.Records != first.Records || s.Answers != first.Answers || s.MinTTL != first.MinTTL {
		t.Fatalf("objects changed what is in the reply: %+v, was %+v", s, first)
	}
	// The rcode's extended part goes with the OPT record; ParseResponse keeps what
	// the first walk made of it, and so does this.
	p = pack(written[:s.end], q, s.ttls)
	put16(p.data[2:], u16(written[2:])&(flagAA|flagTC|flagRA|flagAD)|flagQR|uint16(first.Rcode&rcodeMask))
	put16(p.data[10:], u16(written[10:]))
	return p, written, true
}

// FuzzPathsFixpoint: the byte path accepts the output of the unpacking path, which writes the
// same bytes again.
func FuzzPathsFixpoint(f *testing.F) {
	addReplies(f, 100)
	q := stubQuery(f, "a.", dns.TypeA)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags)
		if !ok {
			return
		}
		once, written, ok := parseUnpacked(t, msg, q)
		if !ok {
			return
		}
		direct, err := ParseResponse(written, q)
		if errors.Is(err, errTooCostly) { // it is shorter, and has more pointers
			return
		}
		if err != nil {
			t.Fatalf("what objects wrote is refused: %v\n%x", err, written)
		}
		// An extended rcode is in the first message's OPT record only.
		direct.Packed.data[3] = direct.Packed.data[3]&^rcodeMask | once.data[3]&rcodeMask
		if !bytes.Equal(direct.Packed.data, once.data) {
			t.Errorf("packed from bytes\n%x, through objects\n%x", direct.Packed.data, once.data)
		}
		again, _, ok := parseUnpacked(t, written, q)
		again.data[3] = again.data[3]&^rcodeMask | once.data[3]&rcodeMask
		if !ok || !bytes.Equal(again.data, once.data) {
			t.Errorf("through objects twice (%v)\n%x, once\n%x", ok, again.data, once.data)
		}
	})
}

// canonical is a reply that both paths must turn into the same bytes: compressed by
// objects, its question and what equals it in lower case, an OPT record last or
// nowhere. With a question in capitals they differ and both are right: bytes let
// every owner that ends like the question point into it and so take the client's
// case, where objects, which compare names with their case, write the owner out.
func (m *maker) canonical(t testing.TB, q *Query) *dns.Msg {
	msg := m.response(t, q)
	msg.Compress = true
	qname := strings.ToLower(msg.Question[0].Name)
	msg.Question[0].Name = qname
	for _, section := range [][]dns.RR{msg.Answer, msg.Ns, msg.Extra} {
		for _, rr := range section {
			if h := rr.Header(); strings.EqualFold(h.Name, qname) {
				h.Name = qname
			}
		}
	}
	if opt := msg.IsEdns0(); opt != nil {
		kept := msg.Extra[:0]
		for _, rr := range msg.Extra {
			if rr != dns.RR(opt) {
				kept = append(kept, rr)
			}
		}
		msg.Extra = append(kept, opt)
	}
	return msg
}

// FuzzPathsCanonical: for common replies, both paths write the same bytes.
func FuzzPathsCanonical(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint32(seed*7), uint16(512+seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, ttl uint32, limit uint16) {
		m := newMaker(seed)
		q := m.query(t, m.names[0])
		msg := packed(t, m.canonical(t, q))
		s, err := scanResponse(msg, q, newReadBudget(len(msg)))
		if err != nil || s.repack {
			t.Fatalf("a common shape is taken for a rare one (%v): %v\n%x", s.repack, err, msg)
		}
		direct, err := ParseResponse(msg, q)
		noError(t, err)
		forced, _, ok := parseUnpacked(t, msg, q)
		if !ok {
			t.Fatalf("the path of objects refuses %x", msg)
		}
		size := max(MinUDP, int(limit))
		if a, b := replyBytes(q, direct.Packed, ttl, size), replyBytes(q, forced, ttl, size); !bytes.Equal(a, b) {
			t.Errorf("from bytes\n%x, through objects\n%x", a, b)
		}
	})
}

// replyBytes returns the reply that q's client receives for p.
func replyBytes(q *Query, p Packed, ttl uint32, limit int) []byte {
	var r Reply
	r.Start(nil, q)
	r.Copy(p, ttl)
	return r.Finish(limit)
}

// query is a query for name with random case, type, flags and EDNS.
func (m *maker) query(t testing.TB, name string) *Query {
	types := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeMX, dns.TypeSRV, dns.TypeTXT, dns.TypeANY}
	return stubQuery(t, m.mixed(name), types[m.IntN(len(types))], func(msg *dns.Msg) {
		msg.Id = uint16(m.Uint32())
		msg.RecursionDesired = m.IntN(4) > 0
		msg.CheckingDisabled = m.IntN(3) == 0
		msg.AuthenticatedData = m.IntN(3) == 0
		if m.IntN(3) > 0 {
			msg.SetEdns0([]uint16{0, 100, 512, 700, 1232, 4096, 65535}[m.IntN(7)], m.IntN(2) == 0)
		}
	})
}

// FuzzPathsAlias: what an alias out of the cluster resolves to is appended as it is:
// the alias first, then the answers of the other reply with their own owners.
func FuzzPathsAlias(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed, uint32(seed*7), uint16(512+seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, ttl uint32, limit uint16) {
		m := newMaker(seed)
		q := m.query(t, "alias.svc.cluster.test.")
		query := unpacked(t, q.Packet)
		target, err := ParseName(m.names[0])
		noError(t, err)
		var sub Query
		if v := sub.Parse(AppendQuery(nil, 0, []byte(target), q.Type, q, MinUDP)); v != Serve {
			t.Fatalf("verdict %d", v)
		}
		from := m.canonical(t, &sub)
		resp, err := ParseResponse(packed(t, from), &sub)
		noError(t, err)
		var r Reply
		r.Start(nil, q)
		r.Add(Answer, AtQuestion, TypeCNAME, 30, []byte(target))
		noError(t, r.AppendAnswers(replyBytes(&sub, resp.Packed, ttl, MaxMessage)))
		size := max(MinUDP, int(limit))
		got := r.Finish(size)
		records := sections{{{&dns.CNAME{
			Hdr:    dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 30},
			Target: target.String(),
		}, 2 + 10 + len(target)}}}
		for _, rr := range from.Answer {
			rr = dns.Copy(rr)
			rr.Header().Ttl = ttl
			records[Answer] = append(records[Answer], sizedRecord{rr, dns.Len(rr)}) // names written out
		}
		want, have := text(reference(query, dns.MsgHdr{}, records, size)), text(unpacked(t, got))
		for _, lines := range [][]string{want, have} {
			for i := 2; i < len(lines); i++ {
				lines[i] = strings.ToLower(lines[i])
			}
		}
		equal(t, want, have, "limit %d", size)
	})
}
