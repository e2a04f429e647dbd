// These tests use rcodeMask and optLen, which are not exported.

package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// sizedRecord is a record and its size in the message under test.
type sizedRecord struct {
	rr   dns.RR
	size int
}

type sections [3][]sizedRecord

// reference is the reply to query as one would write it with objects and no thought
// of speed: the flags of from that are passed on, the client's own, and of the records
// as many as fit. TC says that a part of the answer is missing (RFC 2181, 9).
func reference(query *dns.Msg, from dns.MsgHdr, records sections, limit int) *dns.Msg {
	out := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: query.Id, Response: true, Authoritative: from.Authoritative, Truncated: from.Truncated,
		RecursionDesired: query.RecursionDesired, RecursionAvailable: from.RecursionAvailable,
		CheckingDisabled: query.CheckingDisabled, Rcode: from.Rcode,
	}}
	asked := query.IsEdns0()
	// RFC 6840, 5.8: AD only for those who show that they know it.
	out.AuthenticatedData = from.AuthenticatedData && (query.AuthenticatedData || asked != nil && asked.Do())
	out.Question = []dns.Question{query.Question[0]}
	used := out.Len()
	if asked != nil {
		used += optLen
	}
	for i, section := range []*[]dns.RR{&out.Answer, &out.Ns, &out.Extra} {
		for _, rec := range records[i] {
			used += rec.size
			if used > limit {
				extra := i == 2 || i == 1 && rec.rr.Header().Rrtype == dns.TypeNS && len(out.Answer) > 0 && (asked == nil || !asked.Do())
				out.Truncated = out.Truncated || !extra
				for extra && len(*section) > 0 && sameSet((*section)[len(*section)-1], rec.rr) {
					*section = (*section)[:len(*section)-1]
				}
				break
			}
			*section = append(*section, rec.rr)
		}
		if used > limit {
			break
		}
	}
	if asked != nil {
		out.SetEdns0(asked.UDPSize(), asked.Do())
	}
	return out
}

// sameSet reports whether a and b belong to one RRset.
func sameSet(a, b dns.RR) bool {
	return a.Header().Rrtype == b.Header().Rrtype && strings.EqualFold(a.Header().Name, b.Header().Name)
}

// text is a message in lines that can be compared, with the case of its names.
func text(m *dns.Msg) []string {
	out := []string{fmt.Sprintf("%+v", m.MsgHdr), fmt.Sprintf("%+v", m.Question)}
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if o, ok := rr.(*dns.OPT); ok {
				out = append(out, fmt.Sprintf("%d OPT %d bytes, DO %v, version %d, %v", i, o.UDPSize(), o.Do(), o.Version(), o.Option))
				continue
			}
			out = append(out, fmt.Sprintf("%d %s", i, rr))
		}
	}
	return out
}

// FuzzPathsKept: a kept reply reaches the client as the reference writes it. Names
// are compared without case, but for owners that are the qname, which must have the
// client's: those that end like it share its bytes and so its case.
func FuzzPathsKept(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint32(seed*7), uint16(512+seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, ttl uint32, limit uint16) {
		m := newMaker(seed)
		q := m.query(t, m.names[0])
		from := m.canonical(t, q)
		from.Truncated = m.IntN(8) == 0
		resp, err := ParseResponse(packed(t, from), q)
		noError(t, err)
		size := max(MinUDP, int(limit))
		own := m.IntN(2) == 0 // the TTLs it came with
		got := replyBytes(q, resp.Packed, ttl, size)
		if own {
			var r Reply
			r.Start(nil, q)
			r.CopyRaw(resp.Packed)
			got = r.Finish(size)
		}
		query := unpacked(t, q.Packet)
		want := reference(query, from.MsgHdr, measureRecords(t, from, ttl, own), size)
		wantText, gotText := text(want), text(unpacked(t, got))
		for _, lines := range [][]string{wantText, gotText} {
			for i := 2; i < len(lines); i++ { // the question keeps its case
				lines[i] = strings.ToLower(lines[i])
			}
		}
		equal(t, wantText, gotText, "limit %d", size)
		for _, rr := range unpacked(t, got).Answer {
			if name := rr.Header().Name; strings.EqualFold(name, query.Question[0].Name) && name != query.Question[0].Name {
				t.Errorf("the owner %s, the client asked for %s", name, query.Question[0].Name)
			}
		}
	})
}

// measureRecords gives the records of from with the bytes that each takes in it: what it
// adds to a message that ends with it. Names point back only, so that what follows
// does not matter.
func measureRecords(t *testing.T, from *dns.Msg, ttl uint32, own bool) sections {
	t.Helper()
	part := &dns.Msg{MsgHdr: from.MsgHdr, Question: from.Question, Compress: true}
	before := len(packed(t, part))
	var out sections
	for i, s := range []struct{ from, to *[]dns.RR }{{&from.Answer, &part.Answer}, {&from.Ns, &part.Ns}, {&from.Extra, &part.Extra}} {
		for _, rr := range *s.from {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			*s.to = append(*s.to, rr)
			n := len(packed(t, part))
			copied := dns.Copy(rr)
			if !own {
				copied.Header().Ttl = ttl
			}
			out[i] = append(out[i], sizedRecord{copied, n - before})
			before = n
		}
	}
	return out
}

// owner is a name a record can be added at: its offset, and what it reads as.
type owner struct {
	at   int
	name string
}

// addable are records that answers of the cluster and of hosts are made of, and some
// others.
var addable = []string{"A 192.0.2.NUMBER", "AAAA 2001:db8::NUMBER", "CNAME TARGET", "NS TARGET", "PTR TARGET",
	"SRV 1 2 NUMBER TARGET", `TXT "NUMBER"`, "SOA TARGET TARGET 1 2 3 4 NUMBER", `TYPE65280 \# 3 abcdef`}

// add adds a record to r and gives it as an object, and the owner that later records
// can have because of it.
func (m *maker) add(t *testing.T, r *Reply, s Section, o owner) (rr dns.RR, more []owner) {
	t.Helper()
	target := m.name()
	line := strings.NewReplacer("TARGET", target, "NUMBER", fmt.Sprint(1+m.IntN(250))).Replace(addable[m.IntN(len(addable))])
	rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s", o.name, m.IntN(1000), line))
	if err != nil {
		t.Fatalf("record %q: %v", line, err)
	}
	h := rr.Header()
	at := r.Add(s, o.at, h.Rrtype, h.Ttl, rdata(t, rr))
	switch h.Rrtype {
	case dns.TypeCNAME, dns.TypeNS, dns.TypePTR:
		more = []owner{{at, target}}
	case dns.TypeSRV:
		more = []owner{{at + 6, target}}
	}
	return rr, more
}

// rdata is the RDATA of rr, uncompressed.
func rdata(t *testing.T, rr dns.RR) []byte {
	t.Helper()
	var buf [1024]byte
	end, err := dns.PackRR(rr, buf[:], 0, nil, false)
	if err != nil {
		t.Fatalf("packing %s: %v", rr, err)
	}
	start, err := dns.PackDomainName(rr.Header().Name, buf[:], 0, nil, false)
	noError(t, err)
	return append([]byte(nil), buf[start+10:end]...)
}

// FuzzPathsBuilt: a reply made record by record reads as the reference does, names
// with their case. Where it is of addresses at the qname, what nearly all answers of
// the cluster are, or of no records at all, it is the same bytes. Elsewhere objects
// write less: they compress names inside RDATA, which this package does not, and
// they know every suffix that was written before, not only those of the question.
func FuzzPathsBuilt(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint16(512+seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, limit uint16) {
		m := newMaker(seed)
		// The root is the one name that objects write out as an owner: it is shorter
		// than a pointer to it.
		q := m.query(t, m.names[m.IntN(2)])
		query := unpacked(t, q.Packet)
		var r Reply
		r.Start(nil, q)
		var from dns.MsgHdr
		if from.Authoritative = m.IntN(2) == 0; from.Authoritative {
			r.SetAuthoritative()
		}
		from.Rcode = []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeRefused}[m.IntN(3)]
		r.SetRcode(Rcode(from.Rcode))
		var records sections
		plain := m.IntN(2) == 0
		if plain {
			records[Answer] = m.addresses(t, &r, query.Question[0].Name)
		} else {
			records = m.build(t, &r, q)
		}
		size := max(MinUDP, int(limit))
		got := r.Finish(size)
		want := reference(query, from, records, size)
		equal(t, text(want), text(unpacked(t, got)), "limit %d", size)
		want.Compress = true
		if b := packed(t, want); plain && !bytes.Equal(b, got) {
			t.Errorf("from bytes\n%x, from objects\n%x", got, b)
		}
	})
}

// addresses adds addresses of one type at the qname.
func (m *maker) addresses(t *testing.T, r *Reply, qname string) (out []sizedRecord) {
	t.Helper()
	shape := []string{"A 192.0.2.%d", "AAAA 2001:db8::%d"}[m.IntN(2)]
	ttl := m.IntN(1000)
	for range []int{0, 1, 3, 100}[m.IntN(4)] {
		rr, err := dns.NewRR(fmt.Sprintf("%s %d IN "+shape, qname, ttl, m.IntN(256)))
		noError(t, err)
		data := rdata(t, rr)
		r.Add(Answer, AtQuestion, rr.Header().Rrtype, uint32(ttl), data)
		out = append(out, sizedRecord{rr, 2 + 10 + len(data)})
	}
	return out
}

// build adds records of all kinds to all sections.
func (m *maker) build(t *testing.T, r *Reply, q *Query) (out sections) {
	t.Helper()
	qname := unpacked(t, q.Packet).Question[0].Name
	owners := []owner{{AtQuestion, qname}}
	for _, start := range dns.Split(qname)[1:] {
		zone, err := ParseName(qname[start:])
		noError(t, err)
		owners = append(owners, owner{r.Suffix(len(zone)), qname[start:]})
	}
	for s := range Section(3) {
		for range []int{0, 1, 4, 40}[m.IntN(4)] {
			rr, more := m.add(t, r, s, owners[m.IntN(len(owners))])
			owners = append(owners, more...)
			out[s] = append(out[s], sizedRecord{rr, 2 + 10 + len(rdata(t, rr))})
		}
	}
	return out
}

// FuzzPathsFailed: the replies without records are what objects write, to the byte.
func FuzzPathsFailed(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, rcode uint8) {
		m := newMaker(seed)
		q := m.query(t, m.names[m.IntN(3)])
		query := unpacked(t, q.Packet)
		from := dns.MsgHdr{Rcode: int(rcode & rcodeMask)}
		if q.EDNS && m.IntN(2) == 0 {
			from.Rcode = dns.RcodeBadVers // needs an OPT record to stand in
		}
		var r Reply
		r.Start(nil, q)
		r.SetAuthoritative()
		r.Add(Answer, AtQuestion, TypeA, 1, []byte{192, 0, 2, 1})
		r.Fail(Rcode(from.Rcode))
		if got, want := r.Finish(q.Limit()), packed(t, reference(query, from, sections{}, MinUDP)); !bytes.Equal(got, want) {
			t.Errorf("from bytes\n%x, from objects\n%x", got, want)
		}
		from.Rcode &= rcodeMask
		kept := replyBytes(q, ErrorResponse(q, Rcode(from.Rcode)).Packed, 1, MinUDP)
		if want := packed(t, reference(query, from, sections{}, MinUDP)); !bytes.Equal(kept, want) {
			t.Errorf("kept: from bytes\n%x, from objects\n%x", kept, want)
		}
		bare := &dns.Msg{MsgHdr: dns.MsgHdr{Id: query.Id, Response: true, RecursionDesired: query.RecursionDesired, Rcode: from.Rcode}}
		if got, want := AppendError(nil, q.Packet, Rcode(from.Rcode)), packed(t, bare); !bytes.Equal(got, want) {
			t.Errorf("a bare error: from bytes\n%x, from objects\n%x", got, want)
		}
	})
}
