// These tests use count, questionEnd and rcode, which are not exported.

package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// searchQueries returns a query for name, and the one for target that the search path leads to.
func searchQueries(t testing.TB, name, target string, qtype uint16, shape ...func(*dns.Msg)) (q, sub *Query) {
	t.Helper()
	q = stubQuery(t, name, qtype, shape...)
	asked := stubQuery(t, target, qtype)
	sub = new(Query)
	if v := sub.Parse(AppendQuery(nil, 0, asked.Packet[HeaderLen:asked.questionEnd()-4], qtype, q, MinUDP)); v != Serve {
		t.Fatalf("verdict %d", v)
	}
	return q, sub
}

// copyAsAlias returns the reply to q made from msg, the reply to sub; ok is false if that is
// not possible. It checks the invariants of both cases.
func copyAsAlias(t testing.TB, q, sub *Query, msg []byte, ttl uint32) (r Reply, ok bool) {
	t.Helper()
	resp, err := ParseResponse(msg, sub)
	if err != nil {
		return r, false
	}
	var from Reply
	from.Start(nil, sub)
	from.Copy(resp.Packed, ttl)
	before := string(from.b)
	r.Start(nil, q)
	r.Add(Authority, AtQuestion, TypeTXT, 1, []byte("\x04gone"))
	ok = r.CopyAsAlias(&from)
	if string(from.b) != before {
		t.Error("the other reply has changed")
	}
	if !ok && (len(r.b) != q.questionEnd() || r.count != [3]uint16{} || r.rcode != NoError) {
		t.Error("a reply that can't be made leaves something behind")
	}
	return r, ok
}

func TestCopyAsAlias(t *testing.T) {
	const name = "WWW.Example.org.shop.svc.cluster.local."
	const target = "WWW.Example.org."
	alias := name + "\t9\tIN\tCNAME\t" + target
	tests := []struct {
		name              string
		qtype             uint16
		answers, ns, more []string
		refused           bool
		want              []string // nil: alias, then all of the records
	}{
		{"an address", dns.TypeA, []string{"www.example.org. A 192.0.2.1"}, nil, nil, false,
			[]string{"0 " + alias, "0 WWW.Example.org.\t9\tIN\tA\t192.0.2.1"}},
		{"a chain", dns.TypeAAAA, []string{"www.example.org. CNAME x.y.example.org.", "x.y.example.org. CNAME y.example.org.", "y.example.org. AAAA 2001:db8::1"}, nil, nil, false, nil},
		{"out of the zone and back", dns.TypeA, []string{"www.example.org. CNAME a.cdn.test.", "a.cdn.test. CNAME b.a.cdn.test.", "b.a.cdn.test. A 192.0.2.1"}, nil, nil, false, nil},
		{"names in RDATA", dns.TypeMX, []string{"www.example.org. MX 10 mail.example.org.", "www.example.org. MX 20 a.mail.example.org."},
			[]string{"example.org. NS ns.example.org.", "org. NS example.org."}, []string{"a.mail.example.org. A 192.0.2.3"}, false, nil},
		{"strings", dns.TypeTXT, []string{`www.example.org. TXT "a" "b"`}, nil, nil, false, nil},
		{"a type nobody knows", 65280, []string{`www.example.org. TYPE65280 \# 3 c00c00`}, nil, nil, false, nil},
		{"no data", dns.TypeAAAA, nil, []string{"example.org. SOA ns.example.org. hostmaster.example.org. 1 2 3 4 5"}, nil, false,
			[]string{"1 Example.org.\t9\tIN\tSOA\tns.Example.org. hostmaster.Example.org. 1 2 3 4 5"}},
		{"no data of the name itself", dns.TypeAAAA, nil, []string{"www.example.org. SOA example.org. org. 1 2 3 4 5", "www.example.org. NS www.example.org."}, nil, false, nil},
		{"no data of the root", dns.TypeAAAA, nil, []string{". SOA . . 1 2 3 4 5"}, nil, false, nil},
		{"nothing at all", dns.TypeAAAA, nil, nil, nil, false, nil},
		{"a signature", dns.TypeRRSIG, []string{"www.example.org. RRSIG A 8 3 60 20300101000000 20200101000000 1 example.org. AAAA"}, nil, nil, false, nil},
		{"names that only the type tells", dns.TypeNAPTR, []string{`www.example.org. NAPTR 1 2 "u" "x" "" example.org.`}, nil, nil, true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, sub := searchQueries(t, name, target, tt.qtype, func(m *dns.Msg) { m.SetEdns0(1232, false); m.AuthenticatedData = true })
			m := new(dns.Msg).SetReply(unpacked(t, sub.Packet))
			m.Question[0].Name = strings.ToLower(target) // as upstreams are asked
			m.Compress, m.AuthenticatedData, m.RecursionAvailable = true, true, true
			for section, list := range map[*[]dns.RR][]string{&m.Answer: tt.answers, &m.Ns: tt.ns, &m.Extra: tt.more} {
				for _, line := range list {
					rr, err := dns.NewRR(line)
					noError(t, err)
					*section = append(*section, rr)
				}
			}
			r, ok := copyAsAlias(t, q, sub, packed(t, m), 9)
			if ok == tt.refused {
				t.Fatalf("adopted: %v", ok)
			}
			if tt.refused {
				return
			}
			got := unpacked(t, r.Finish(MaxMessage))
			if got.AuthenticatedData || !got.RecursionAvailable || got.Truncated || got.Rcode != dns.RcodeSuccess || got.Question[0].Name != name {
				t.Errorf("header %+v, question %+v", got.MsgHdr, got.Question)
			}
			want := tt.want
			have := text(got)[2:]
			if want == nil {
				if len(m.Answer) > 0 {
					want = []string{"0 " + alias}
				}
				for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
					for _, rr := range section {
						rr.Header().Ttl = 9
						want = append(want, fmt.Sprintf("%d %s", i, rr))
					}
				}
				want, have = lowerAll(want), lowerAll(have)
			}
			want = append(want, lowerAll([]string{"2 OPT 1232 bytes, DO false, version 0, []"})...)
			have[len(have)-1] = strings.ToLower(have[len(have)-1])
			equal(t, want, have, "")
		})
	}
}

func lowerAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strings.ToLower(s)
	}
	return out
}

// TestCopyAsAliasBeyondPointers: names beyond the reach of a pointer are not copied.
func TestCopyAsAliasBeyondPointers(t *testing.T) {
	q, sub := searchQueries(t, "a."+strings.Repeat("long.", 40), "a.", dns.TypeTXT)
	for _, size := range []int{15000, 16200} {
		m := new(dns.Msg).SetReply(unpacked(t, sub.Packet))
		m.Compress = true
		for used := 0; used < size; used += 200 {
			rr, err := dns.NewRR(fmt.Sprintf("a. TXT %q", strings.Repeat("x", 187)))
			noError(t, err)
			m.Answer = append(m.Answer, rr)
		}
		for range 2 {
			rr, err := dns.NewRR("b.c. NS b.c.")
			noError(t, err)
			m.Ns = append(m.Ns, rr)
		}
		if _, ok := copyAsAlias(t, q, sub, packed(t, m), 9); ok != (size == 15000) {
			t.Errorf("%d bytes: adopted %v", size, ok)
		}
	}
}

// FuzzPathsCopyAsAlias: copying records as bytes has the same result as copying them unpacked.
func FuzzPathsCopyAsAlias(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint32(seed*7), uint16(512+seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, ttl uint32, limit uint16) {
		ttl &= 1<<31 - 1
		m := newMaker(seed)
		q := m.query(t, m.mixed(m.names[0])+"Search.Test.")
		query := unpacked(t, q.Packet)
		q, sub := searchQueries(t, query.Question[0].Name, m.names[0], q.Type, func(msg *dns.Msg) { *msg = *query })
		from := m.canonical(t, sub)
		from.Rcode = dns.RcodeSuccess
		r, ok := copyAsAlias(t, q, sub, packed(t, from), ttl)
		if movable := movable(from); ok != movable {
			t.Fatalf("adopted: %v, want %v\n%s", ok, movable, from)
		}
		if !ok {
			return
		}
		var records sections
		if len(from.Answer) > 0 {
			records[Answer] = []sizedRecord{{rr: &dns.CNAME{
				Hdr:    dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl},
				Target: m.names[0],
			}}}
		}
		for i, section := range [][]dns.RR{from.Answer, from.Ns, from.Extra} {
			for _, rr := range section {
				if rr.Header().Rrtype != dns.TypeOPT {
					rr = dns.Copy(rr)
					rr.Header().Ttl = ttl
					records[i] = append(records[i], sizedRecord{rr: rr})
				}
			}
		}
		from.AuthenticatedData = false
		want := lowerAll(text(reference(query, from.MsgHdr, records, MaxMessage)))
		whole := unpacked(t, r.Finish(MaxMessage))
		equal(t, want, lowerAll(text(whole)), "")
	})
}

// movable reports whether all records of m are of types whose names are known, or not compressed.
func movable(m *dns.Msg) bool {
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			switch rr.(type) {
			case *dns.A, *dns.AAAA, *dns.TXT, *dns.RFC3597, *dns.OPT, *dns.CNAME, *dns.NS, *dns.PTR, *dns.SOA, *dns.MX, *dns.SRV, *dns.RP,
				*dns.AFSDB, *dns.RT, *dns.KX, *dns.PX, *dns.MINFO, *dns.DNAME, *dns.MB, *dns.MG, *dns.MR,
				*dns.DS, *dns.DNSKEY, *dns.RRSIG, *dns.NSEC, *dns.CDS, *dns.CDNSKEY, *dns.TLSA, *dns.SVCB, *dns.HTTPS:
			default:
				return false
			}
		}
	}
	return true
}

// FuzzCopyAsAlias: the result for any accepted reply is well-formed.
func FuzzCopyAsAlias(f *testing.F) {
	addReplies(f, 100)
	q, sub := searchQueries(f, "a.search.test.", "a.", dns.TypeA)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags)
		if !ok {
			return
		}
		r, ok := copyAsAlias(t, q, sub, msg, 9)
		if !ok {
			return
		}
		out := r.Finish(MaxMessage)
		m := unpacked(t, out)
		if n := len(m.Answer) + len(m.Ns) + len(m.Extra); n != r.Count(Answer)+r.Count(Authority)+r.Count(Additional) {
			t.Errorf("%d records can be read of %v", n, r.count)
		}
		if len(m.Answer) > 0 && m.Answer[0].Header().Rrtype != dns.TypeCNAME {
			t.Errorf("the first answer is no alias: %s", m.Answer[0])
		}
	})
}

func BenchmarkCopyAsAlias(b *testing.B) {
	for _, c := range []struct {
		name    string
		records []string
	}{
		{"address", []string{"www.example.org. A 192.0.2.1"}},
		{"chain", []string{"www.example.org. CNAME x.cdn.test.", "x.cdn.test. CNAME y.cdn.test.", "y.cdn.test. A 192.0.2.1", "y.cdn.test. A 192.0.2.2"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			q, sub := searchQueries(b, "www.example.org.shop.svc.cluster.local.", "www.example.org.", dns.TypeA)
			from := answers(b, sub, true, c.records...)
			var r Reply
			r.Start(make([]byte, 0, 2048), q)
			b.ReportAllocs()
			for b.Loop() {
				if !r.CopyAsAlias(from) {
					b.Fatal("not adopted")
				}
			}
		})
	}
}
