// These tests use u16, append16 and left, which are not exported.

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// FuzzRoundTrip sends random replies through ParseResponse, Copy and Finish: the
// client must see the records that came, with the TTL that was set, cut where its
// size says.
func FuzzRoundTrip(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint16(512+seed*7), seed%3 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, limit uint16, edns bool) {
		m := newMaker(seed)
		q := stubQuery(t, m.mixed(m.names[0]), []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeMX, dns.TypeANY}[m.IntN(5)],
			func(msg *dns.Msg) {
				msg.AuthenticatedData = m.IntN(2) == 0
				if edns {
					msg.SetEdns0(4096, m.IntN(2) == 0)
				}
			})
		from := m.response(t, q)
		packet := packed(t, from)
		if !Matches(packet, q.Packet) {
			t.Fatalf("a reply to the query does not match it:\n%s", from)
		}
		resp, err := ParseResponse(packet, q)
		if err != nil {
			t.Fatalf("reading\n%s: %v", from, err)
		}
		checkFields(t, q, from, resp)
		const ttl = 4711
		var r Reply
		r.Start(nil, q)
		r.Copy(resp.Packed, ttl)
		whole := append([]byte(nil), r.Finish(MaxMessage)...)
		checkWhole(t, q, from, unpacked(t, whole), ttl)

		size := max(MinUDP, int(limit))
		r.Start(nil, q)
		r.Copy(resp.Packed, ttl)
		checkCut(t, r.Finish(size), whole, size)
	})
}

// checkFields compares the parsed response with the unpacked message.
func checkFields(t *testing.T, q *Query, from *dns.Msg, got Response) {
	t.Helper()
	want := Response{Rcode: Rcode(from.Rcode), Answers: len(from.Answer), MinTTL: 1<<32 - 1}
	for i, section := range [][]dns.RR{from.Answer, from.Ns, from.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			ttl := rr.Header().Ttl
			if ttl >= 1<<31 {
				ttl = 0
			}
			want.Records++
			want.MinTTL = min(want.MinTTL, ttl)
			if s, ok := rr.(*dns.SOA); ok && i == 1 && !want.SOA {
				want.SOA, want.NegativeTTL = true, min(ttl, s.Minttl)
			}
		}
	}
	if want.Records == 0 {
		want.MinTTL = 0
	}
	if answers, contradicts := followsAliases(from.Answer, from.Question[0].Name, q.Type); from.Rcode == dns.RcodeSuccess {
		want.Answered, want.Contradictory = answers, contradicts
	} else if from.Rcode == dns.RcodeNameError {
		want.Contradictory = answers || contradicts
	}
	got.Packed = Packed{}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Packed{})); diff != "" {
		t.Errorf("(-want +got):\n%s\nof\n%s", diff, from)
	}
}

// followsAliases reports whether the aliases in rrs lead from name to a record of qtype, and
// whether they contradict one another.
func followsAliases(rrs []dns.RR, name string, qtype uint16) (answers, contradicts bool) {
	targets, has := map[string]string{}, map[string]bool{}
	for _, rr := range rrs {
		owner := dns.CanonicalName(rr.Header().Name)
		has[owner] = has[owner] || rr.Header().Rrtype == qtype || qtype == dns.TypeANY
		c, ok := rr.(*dns.CNAME)
		if !ok {
			continue
		}
		target := dns.CanonicalName(c.Target)
		if before, ok := targets[owner]; ok && before != target {
			target = "?"
		}
		targets[owner] = target
	}
	passed, beside := map[string]bool{}, false
	for name = dns.CanonicalName(name); len(passed) < maxChain; name = targets[name] {
		target, alias := targets[name]
		switch {
		case target == "?" || passed[name]:
			return false, true
		case !alias || qtype == dns.TypeCNAME || qtype == dns.TypeANY:
			return has[name], !has[name] && beside
		}
		passed[name], beside = true, beside || has[name]
	}
	return false, beside
}

func checkWhole(t *testing.T, q *Query, from, got *dns.Msg, ttl uint32) {
	t.Helper()
	asked := unpacked(t, q.Packet)
	for i, s := range [][2][]dns.RR{{from.Answer, got.Answer}, {from.Ns, got.Ns}, {from.Extra, got.Extra}} {
		equal(t, lines(s[0], 0), lines(s[1], 0), "section %d", i)
		for _, rr := range s[1] {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT && h.Ttl != ttl {
				t.Errorf("TTL %d, want %d: %s", h.Ttl, ttl, rr)
			}
		}
	}
	if got.Question[0] != asked.Question[0] {
		t.Errorf("the question became %v, was %v", got.Question[0], asked.Question[0])
	}
	wantHeader := dns.MsgHdr{
		Id: asked.Id, Response: true, RecursionDesired: asked.RecursionDesired, Rcode: from.Rcode,
		Authoritative: from.Authoritative, RecursionAvailable: from.RecursionAvailable,
		AuthenticatedData: from.AuthenticatedData && (asked.AuthenticatedData || q.DO),
	}
	equal(t, wantHeader, got.MsgHdr, "header")
	opts := 0
	for _, rr := range got.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			opts++
		}
	}
	if (opts == 1) != q.EDNS || opts > 1 {
		t.Errorf("%d OPT records, EDNS in the query: %v", opts, q.EDNS)
	}
}

// checkCut compares a reply truncated to size with the whole one.
func checkCut(t *testing.T, cut, whole []byte, size int) {
	t.Helper()
	if len(cut) > size {
		t.Fatalf("%d bytes, the limit is %d", len(cut), size)
	}
	got, all := unpacked(t, cut), unpacked(t, whole)
	incomplete := len(got.Answer) < len(all.Answer)
	if n := len(got.Ns); n < len(all.Ns) { // NS records beside an answer are no part of it
		opt := all.IsEdns0()
		incomplete = incomplete || all.Ns[n].Header().Rrtype != dns.TypeNS || len(all.Answer) == 0 || opt != nil && opt.Do()
	}
	if got.Truncated != incomplete {
		t.Errorf("TC is %v: %d of %d answers, %d of %d authority records", got.Truncated, len(got.Answer), len(all.Answer), len(got.Ns), len(all.Ns))
	}
	if (got.IsEdns0() != nil) != (all.IsEdns0() != nil) {
		t.Errorf("OPT is there: %v, in the whole: %v", got.IsEdns0() != nil, all.IsEdns0() != nil)
	}
	kept := append(append(lines(got.Answer, 0), lines(got.Ns, 0)...), lines(got.Extra, 0)...)
	want := append(append(lines(all.Answer, 0), lines(all.Ns, 0)...), lines(all.Extra, 0)...)
	if len(kept) > len(want) || !cmp.Equal(kept, want[:len(kept)]) {
		t.Errorf("what is kept is not the beginning:\n%s", cmp.Diff(want, kept))
	}
	if len(kept) < len(want) && len(whole) <= size {
		t.Errorf("%d of %d records, although there is room", len(kept), len(want))
	}
}

// hostile are replies to a query for "a.", type A, ID 0, after its header's counts
// and question.
var hostile = map[string]struct {
	counts string // answer, authority, additional
	body   string
}{
	"65,535 records claimed":             {"ffff ffff ffff", ""},
	"an owner that points at itself":     {"0001 0000 0000", "c013 0001 0001 0000003c 0004 c0000201"},
	"an owner that points forward":       {"0001 0000 0000", "c020 0001 0001 0000003c 0004 c0000201"},
	"an owner that points into the head": {"0001 0000 0000", "c000 0001 0001 0000003c 0004 c0000201"},
	"an owner that loops with labels":    {"0001 0000 0000", "0161 c013 0001 0001 0000003c 0004 c0000201"},
	"an owner that runs into itself":     {"0002 0000 0000", "c00c ff00 0001 0000003c 0001 03 c01f ff00 0001 0000003c 0000"},
	"an owner of a reserved label type":  {"0001 0000 0000", "8061 0001 0001 0000003c 0004 c0000201"},
	"an owner that ends the message":     {"0001 0000 0000", "0361"},
	"a pointer cut in half":              {"0001 0000 0000", "c0"},
	"a record cut before its RDATA":      {"0001 0000 0000", "c00c 0001 0001 0000003c 0004"},
	"a record cut in its head":           {"0001 0000 0000", "c00c 0001 0001 0000"},
	"an RDLENGTH over the end":           {"0001 0000 0000", "c00c 0010 0001 0000003c ffff 00"},
	"an A of three bytes":                {"0001 0000 0000", "c00c 0001 0001 0000003c 0003 c00002"},
	"an AAAA of four bytes":              {"0001 0000 0000", "c00c 001c 0001 0000003c 0004 c0000201"},
	"a CNAME without RDATA":              {"0001 0000 0000", "c00c 0005 0001 0000003c 0000"},
	"a CNAME that points at itself":      {"0001 0000 0000", "c00c 0005 0001 0000003c 0002 c01f"},
	"a CNAME that leaves its RDATA":      {"0001 0000 0000", "c00c 0005 0001 0000003c 0002 0361 6161 00"},
	"a CNAME and more":                   {"0001 0000 0000", "c00c 0005 0001 0000003c 0003 c00c 00"},
	"an SOA without its numbers":         {"0000 0001 0000", "c00c 0006 0001 0000003c 0004 c00c c00c"},
	"an MX of one byte":                  {"0001 0000 0000", "c00c 000f 0001 0000003c 0001 00"},
	"an OPT among the answers":           {"0001 0000 0000", "00 0029 04d0 00000000 0000"},
	"a TXT whose string is cut":          {"0001 0000 0000", "c00c 0010 0001 0000003c 0003 036161"},
	"an RRSIG of one byte":               {"0001 0000 0000", "c00c 002e 0001 0000003c 0001 00"},
	"an NSEC with a name in the header":  {"0001 0000 0000", "c00c 002f 0001 0000003c 0002 c000"},
	"an HTTPS with a key cut short":      {"0001 0000 0000", "c00c 0041 0001 0000003c 0007 0001 00 0001 0003"},
	"an NXT with half a bitmap":          {"0001 0000 0000", "c00c 001e 0001 0000003c 0003 c00c 00"},
	"an owner in another's TTL":          {"0002 0000 0000", "c00c 0010 0001 00016100 0001 00 c01a 0001 0001 0000003c 0004 c0000201"},
	"an owner that ends in a TTL":        {"0002 0000 0000", "c00c 0010 03c0 0c000000 0001 00 c018 0001 0001 0000003c 0004 c0000201"},
	"an owner in another's address":      {"0002 0000 0000", "c00c 0001 0001 0000003c 0004 01610000 c01f 0001 0001 0000003c 0004 c0000201"},
	"an owner that begins an address":    {"0002 0000 0000", "c00c 0001 0001 0000003c 0004 00000201 c01f 0001 0001 0000003c 0004 c0000201"},
	"an owner that ends an address":      {"0002 0000 0000", "c00c 0001 0001 0000003c 0004 c0000200 c022 0001 0001 0000003c 0004 c0000201"},
	"a CNAME to another's TTL":           {"0002 0000 0000", "c00c 0010 0001 01610000 0001 00 c00c 0005 0001 0000003c 0002 c019"},
	"an NSEC with a name in a TTL":       {"0002 0000 0000", "c00c 0010 0001 01610000 0001 00 c00c 002f 0001 0000003c 0002 c019"},
	"one record fewer than claimed":      {"0002 0000 0000", "c00c 0001 0001 0000003c 0004 c0000201"},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	noError(t, err)
	return b
}

func TestHostileResponses(t *testing.T) {
	q := stubQuery(t, "a.", dns.TypeA)
	for name, tt := range hostile {
		t.Run(name, func(t *testing.T) {
			msg := unhex(t, "0000 8180 0001"+tt.counts+"0161 00 0001 0001"+tt.body)
			resp, err := ParseResponse(msg, q)
			if !errors.Is(err, ErrResponse) {
				t.Errorf("error %v, response %+v", err, resp)
			}
		})
	}
	for name, msg := range map[string][]byte{
		"nothing":             nil,
		"half a header":       make([]byte, 11),
		"a cut question":      unhex(t, "0000 8180 0001 0000 0000 0000 0161 00 00"),
		"no question's bytes": unhex(t, "0000 8180 0001 0000 0000 0000"),
	} {
		if _, err := ParseResponse(msg, q); !errors.Is(err, ErrResponse) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestPointerChain: chains of pointers are followed up to the limit, and no further.
func TestPointerChain(t *testing.T) {
	q := stubQuery(t, "a.", dns.TypeA)
	taken := 0
	for n := range 2 * maxPointers {
		data := []byte("\x01b\x00")
		msg := unhex(t, "0000 8180 0001 0002 0000 0000 0161 00 0001 0001 c00c ff00 0001 0000003c")
		last := len(msg) + 2
		for range n {
			data = append16(data, 0xC000|uint16(last))
			last = len(msg) + 2 + len(data) - 2
		}
		msg = append(append16(msg, uint16(len(data))), data...)
		msg = append(append16(msg, 0xC000|uint16(last)), unhex(t, "0001 0001 0000003c 0004 c0000201")...)
		_, err := ParseResponse(msg, q)
		if want := new(dns.Msg).Unpack(msg); (err == nil) != (want == nil) {
			t.Errorf("%d pointers: %v, to another %v", n+1, err, want)
		}
		if err == nil {
			taken++
		}
	}
	if taken != maxPointers {
		t.Errorf("%d pointers are followed", taken)
	}
}

// TestRepackGrows has records whose names are compressed where no writer may compress them,
// behind an OPT record: written anew they don't fit a message, so only the OPT record goes.
func TestRepackGrows(t *testing.T) {
	q := stubQuery(t, strings.Repeat(strings.Repeat("a", 60)+".", 4), dns.TypeSRV)
	msg := append([]byte(nil), q.Packet...)
	put16(msg[2:], flagQR)
	const n = 300
	put16(msg[10:], n+1)
	msg = append(msg, unhex(t, "00 0029 04d0 00000000 0000")...)
	for range n {
		msg = append(msg, unhex(t, "c00c 0021 0001 0000003c 0008 000000000000 c00c")...)
	}
	resp, err := ParseResponse(msg, q)
	noError(t, err)
	if m := unpacked(t, replyBytes(q, resp.Packed, 60, MaxMessage)); len(m.Extra) != n {
		t.Errorf("%d records are left of %d", len(m.Extra), n)
	}
}

// TestWrittenOwners: addresses of the qname whose names are written out, in any case, become what [repack] makes of them.
func TestWrittenOwners(t *testing.T) {
	q := stubQuery(t, "www.example.org.", dns.TypeA)
	const written, upper, pointer = "03777777076578616d706c65036f726700", "03575757076578616d706c65036f726700", "c00c"
	address := func(owner string, n int) string {
		return fmt.Sprintf("%s 0001 0001 0000003c 0004 c00002%02x", owner, n)
	}
	const opt = "00 0029 04d0 00000000 0006 000f 0002 0016"
	for name, c := range map[string]struct {
		body   string
		counts [3]uint16
	}{
		"one address":               {address(written, 1), [3]uint16{1, 0, 0}},
		"several, in several cases": {address(pointer, 1) + address(upper, 2) + address(written, 3), [3]uint16{3, 0, 0}},
		"in two sections":           {address(written, 1) + address(written, 2), [3]uint16{1, 0, 1}},
		"with an OPT record":        {address(written, 1) + opt, [3]uint16{1, 0, 1}},
	} {
		msg := append([]byte(nil), q.Packet[:q.questionEnd()]...)
		put16(msg[2:], flagQR)
		for i, n := range c.counts {
			put16(msg[6+2*i:], n)
		}
		msg = append(msg, unhex(t, c.body)...)
		resp, err := ParseResponse(msg, q)
		noError(t, err)
		want, err := repack(msg)
		noError(t, err)
		got := replyBytes(q, resp.Packed, 60, MaxMessage)
		equal(t, hex.EncodeToString(want[HeaderLen:]), hex.EncodeToString(got[HeaderLen:len(want)]), "the records of %s", name)
		equal(t, unpacked(t, want).Answer, unpacked(t, got).Answer, "the answers of %s", name)
	}
}

// addReplies gives f the counts, the records and the flags of replies to a. A: the
// hostile ones, and as many more as there are seeds.
func addReplies(f *testing.F, seeds uint64) {
	for _, h := range hostile {
		f.Add(unhex(f, h.counts), unhex(f, h.body), uint16(0x8180))
	}
	for seed := range seeds {
		m := newMaker(seed)
		m.names[0] = "a."
		b := packed(f, m.response(f, stubQuery(f, "a.", dns.TypeA)))
		f.Add(b[6:12], b[HeaderLen+3+4:], u16(b[2:]))
	}
	for i := range worstShapes {
		for _, depth := range []int{0, 3, 124} {
			for _, size := range []int{600, 4000} {
				b := worstReply(i, depth, size, MaxMessage)
				f.Add(b[6:12], b[headLen:], u16(b[2:]))
			}
		}
	}
}

// replyTo is the reply to a. A with these flags, counts and records, its name in
// upper case; false if they are none that a fuzzer should try.
func replyTo(counts, body []byte, flags uint16) ([]byte, bool) {
	if len(counts) != 6 || len(body) > 4096 {
		return nil, false
	}
	msg := append16([]byte{0, 0}, flags)
	msg = append(append(append(msg, 0, 1), counts...), 1, 'A', 0, 0, 1, 0, 1)
	return append(msg, body...), true
}

// FuzzResponse feeds any bytes as a reply. It must cost no more steps than its length
// allows. What is taken must keep its question and its counts, and be a walkable message
// of the size asked for after a cut.
func FuzzResponse(f *testing.F) {
	addReplies(f, 30)
	q := stubQuery(f, "a.", dns.TypeA)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags)
		if !ok {
			return
		}
		if s, err := scanResponse(msg, q, newReadBudget(len(msg))); -s.left > oneName || err == nil && s.left < 0 {
			t.Errorf("%d steps too many were taken: %v", -s.left, err)
		}
		resp, err := ParseResponse(msg, q)
		if err != nil {
			if !errors.Is(err, ErrResponse) {
				t.Errorf("an error of its own: %v", err)
			}
			return
		}
		if !resp.Packed.IsReplyTo(q) {
			t.Errorf("the question is lost in %x", resp.Packed.data)
		}
		var r Reply
		r.Start(nil, q)
		r.Copy(resp.Packed, 60)
		if n := r.Count(Answer) + r.Count(Authority) + r.Count(Additional); n != resp.Records {
			t.Errorf("%d records, counted %d", n, resp.Records)
		}
		r.Shuffle()
		out := r.Finish(MinUDP)
		if len(out) > MinUDP {
			t.Errorf("%d bytes", len(out))
		}
		unpacked(t, out)
		checkWalk(t, r.b, q)
		checkUse(t, q, msg)
	})
}

// checkWalk walks over a finished reply: its records must fill it to the last byte.
func checkWalk(t *testing.T, b []byte, q *Query) {
	t.Helper()
	off := q.questionEnd()
	for i := range int(u16(b[6:])) + int(u16(b[8:])) + int(u16(b[10:])) {
		rr, ok := readRecord(b, off)
		if !ok {
			t.Fatalf("record %d of %x is broken", i, b)
		}
		off = rr.End
	}
	if off != len(b) {
		t.Errorf("%d bytes behind the last record of %x", len(b)-off, b)
	}
}

func TestResponseMatchesQuery(t *testing.T) {
	query := unhex(t, "1234 0100 0001 0000 0000 0000 0161 0162 00 0001 0001")
	tests := map[string]struct {
		msg  string
		want bool
	}{
		"a reply":                      {"1234 8180 0001 0000 0000 0000 0161 0162 00 0001 0001", true},
		"in another case":              {"1234 8180 0001 0000 0000 0000 0141 0142 00 0001 0001", true},
		"with records":                 {"1234 8180 0001 0001 0000 0000 0161 0162 00 0001 0001 c00c 0001 0001 0000003c 0004 c0000201", true},
		"another ID":                   {"1235 8180 0001 0000 0000 0000 0161 0162 00 0001 0001", false},
		"a query":                      {"1234 0100 0001 0000 0000 0000 0161 0162 00 0001 0001", false},
		"another name":                 {"1234 8180 0001 0000 0000 0000 0161 0163 00 0001 0001", false},
		"a shorter name":               {"1234 8180 0001 0000 0000 0000 0161 00 0001 0001", false},
		"a longer name":                {"1234 8180 0001 0000 0000 0000 0161 0162 0163 00 0001 0001", false},
		"another type":                 {"1234 8180 0001 0000 0000 0000 0161 0162 00 001c 0001", false},
		"another class":                {"1234 8180 0001 0000 0000 0000 0161 0162 00 0001 0003", false},
		"two questions":                {"1234 8180 0002 0000 0000 0000 0161 0162 00 0001 0001 0161 0162 00 0001 0001", false},
		"no question, no error":        {"1234 8180 0000 0000 0000 0000", false},
		"no question, FORMERR":         {"1234 8181 0000 0000 0000 0000", true},
		"no question, SERVFAIL":        {"1234 8182 0000 0000 0000 0000", true},
		"no question, NXDOMAIN":        {"1234 8183 0000 0000 0000 0000", false},
		"no question, NOTIMP":          {"1234 8184 0000 0000 0000 0000", true},
		"no question, REFUSED":         {"1234 8185 0000 0000 0000 0000", true},
		"no question, YXDOMAIN":        {"1234 8186 0000 0000 0000 0000", false},
		"no question, NOTAUTH":         {"1234 8189 0000 0000 0000 0000", false},
		"no question, rcode 15":        {"1234 818f 0000 0000 0000 0000", false},
		"a question cut short":         {"1234 8180 0001 0000 0000 0000 0161 0162 00 0001 00", false},
		"a header cut short":           {"1234 8180 0001 0000 0000 00", false},
		"nothing":                      {"", false},
		"a label length for a capital": {"1234 8180 0001 0000 0000 0000 0161 4162 00 0001 0001", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Matches(unhex(t, tt.msg), query); got != tt.want {
				t.Errorf("matches: %v", got)
			}
		})
	}
}

func TestIsReplyTo(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	p := ErrorResponse(q, ServFail).Packed
	for name, tt := range map[string]struct {
		q    *Query
		want bool
	}{
		"the same":     {q, true},
		"another case": {stubQuery(t, "WWW.example.", dns.TypeA), true},
		"another type": {stubQuery(t, "www.example.", dns.TypeAAAA), false},
		"shorter":      {stubQuery(t, "example.", dns.TypeA), false},
		"longer":       {stubQuery(t, "a.www.example.", dns.TypeA), false},
		"other bytes":  {stubQuery(t, "wwx.example.", dns.TypeA), false},
	} {
		if got := p.IsReplyTo(tt.q); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if (Packed{}).IsReplyTo(q) {
		t.Error("the zero Packed is for a query")
	}
}

// TestPackedOptions: a reply has the options that it was given, or none, whatever the capacity of its slice, and is the same reply
// with them.
func TestPackedOptions(t *testing.T) {
	for length := range 64 { // several size classes of the allocator
		q := stubQuery(t, strings.Repeat("a", length%60+1)+"."+strings.Repeat("b", length/2+1)+".", dns.TypeA)
		p := ErrorResponse(q, NXDomain).Packed
		if got := p.Options(); len(got) > 0 {
			t.Errorf("a reply of %d bytes without options has %x", len(p.data), got)
		}
		for _, options := range [][]byte{{}, {0, 10, 0, 1, 7}, bytes.Repeat([]byte{0xff}, 300)} {
			with := p.WithOptions(options)
			if got := with.Options(); !bytes.Equal(got, options) {
				t.Errorf("the options are %x, want %x", got, options)
			}
			if !bytes.Equal(with.data, p.data) || !with.IsReplyTo(q) {
				t.Errorf("with options the reply is %x, want %x", with.data, p.data)
			}
			if got := with.WithOptions(nil).Options(); len(got) > 0 {
				t.Errorf("options that were replaced by none are %x", got)
			}
		}
	}
	if got := (Packed{}).Options(); len(got) > 0 {
		t.Errorf("no reply has the options %x", got)
	}
}

// TestHeaderOnlyError reads a reply that is only a header, as servers send that can't
// read the query.
func TestHeaderOnlyError(t *testing.T) {
	q := stubQuery(t, "www.Example.", dns.TypeA)
	resp, err := ParseResponse(unhex(t, "0000 8181 0000 0000 0000 0000"), q)
	noError(t, err)
	var r Reply
	r.Start(nil, q)
	r.Copy(resp.Packed, 1)
	m := unpacked(t, r.Finish(MinUDP))
	if m.Rcode != dns.RcodeFormatError || len(m.Question) != 1 || m.Question[0].Name != "www.Example." {
		t.Errorf("became\n%s", m)
	}
}

func TestExtendedRcode(t *testing.T) {
	q := stubQuery(t, "a.", dns.TypeA)
	resp, err := ParseResponse(unhex(t, "0000 8180 0001 0000 0000 0001 0161 00 0001 0001 00 0029 04d0 01000000 0000"), q)
	noError(t, err)
	if resp.Rcode != ServFail || resp.Packed.Rcode() != ServFail {
		t.Errorf("BADVERS became rcode %d, %d in the packed reply", resp.Rcode, resp.Packed.Rcode())
	}
}

// TestOtherClass answers with a record that is of the qname and qtype only.
func TestOtherClass(t *testing.T) {
	q := stubQuery(t, "a.", dns.TypeA)
	for class, want := range map[string]bool{"0001": true, "0003": false} {
		resp, err := ParseResponse(unhex(t, "0000 8180 0001 0001 0000 0000 0161 00 0001 0001 c00c 0001"+class+"0000003c 0004 c0000201"), q)
		noError(t, err)
		if resp.Answered != want {
			t.Errorf("a record of class %s answers: %v", class, resp.Answered)
		}
	}
}

// noError ends the test if err is not nil.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // not before: benchmarks would measure it
		t.Fatal(err)
	}
}

// equal fails the test if want and got differ. What is said about them has the format of [fmt.Sprintf].
func equal(t testing.TB, want, got any, format string, args ...any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), d)
	}
}
