// These tests use unchanged, count and flagAA, which are not exported.

package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// zoneEditor is an [Editor] that moves names of one zone to another, and increments TTLs.
type zoneEditor struct{ from, to []byte }

func (m zoneEditor) Owner(name []byte) []byte { return m.Value(name) }

func (m zoneEditor) Value(name []byte) []byte {
	head, ok := slices.Clone(name), false
	if n := len(name) - len(m.from); n >= 0 && EqualNames(name[n:], m.from) {
		head, ok = head[:n], true
	}
	if !ok {
		return head
	}
	if out := append(head, m.to...); len(out) <= MaxName {
		return out
	}
	return nil
}

func (m zoneEditor) TTL(ttl uint32) uint32 { return ttl + 1 }

func wireName(t testing.TB, name string) []byte {
	t.Helper()
	b, ok := AppendName(nil, []byte(name))
	if !ok {
		t.Fatalf("%q is no name", name)
	}
	return b
}

// TestRewrite: the records of a reply to another name, edited, of every type that has
// names.
func TestRewrite(t *testing.T) {
	for _, tt := range []struct{ name, from, want string }{
		{"address", "NOERROR www.b.test. 60 IN A 192.0.2.1; www.b.test. 60 IN A 192.0.2.2", "NOERROR WWW.a.test. 61 IN A 192.0.2.1; WWW.a.test. 61 IN A 192.0.2.2"},
		{
			"chain", "NOERROR www.b.test. 60 IN CNAME x.b.test.; x.b.test. 50 IN CNAME y.other.; y.other. 40 IN A 192.0.2.1",
			"NOERROR WWW.a.test. 61 IN CNAME x.a.test.; x.a.test. 51 IN CNAME y.other.; y.other. 41 IN A 192.0.2.1",
		},
		{"denial", "NXDOMAIN -- b.test. 60 IN SOA ns.b.test. host.b.test. 1 2 3 4 5", "NXDOMAIN -- a.test. 61 IN SOA ns.a.test. host.b.test. 1 2 3 4 5"},
		{"nothing", "REFUSED ", "REFUSED"},
		{
			"names in data",
			"NOERROR www.b.test. 1 IN MX 10 mail.b.test.; www.b.test. 1 IN SRV 1 2 3 x.b.test.; www.b.test. 1 IN NS ns.b.test.; www.b.test. 1 IN PTR p.b.test. -- www.b.test. 1 IN DNAME d.b.test.; www.b.test. 1 IN RP one.b.test. two.b.test. -- mail.b.test. 1 IN AAAA 2001:db8::1",
			"NOERROR WWW.a.test. 2 IN MX 10 mail.a.test.; WWW.a.test. 2 IN SRV 1 2 3 x.a.test.; WWW.a.test. 2 IN NS ns.a.test.; WWW.a.test. 2 IN PTR p.a.test. -- WWW.a.test. 2 IN DNAME d.a.test.; WWW.a.test. 2 IN RP one.b.test. two.b.test. -- mail.a.test. 2 IN AAAA 2001:db8::1",
		},
		{
			"other data", `NOERROR www.b.test. 1 IN TXT "b.test." "x"; www.b.test. 1 IN NAPTR 100 50 "s" "SIP+D2U" "" sip.b.test.; www.b.test. 1 IN CAA 0 issue "ca.test"; www.b.test. 1 IN TYPE65280 \# 3 c00c00`,
			`NOERROR WWW.a.test. 2 IN TXT "b.test." "x"; WWW.a.test. 2 IN NAPTR 100 50 "s" "SIP+D2U" "" sip.a.test.; WWW.a.test. 2 IN CAA 0 issue "ca.test"; WWW.a.test. 2 CLASS1 TYPE65280 \# 3 c00c00`,
		},
		{
			"signed", "NOERROR www.b.test. 1 IN RRSIG A 13 3 3600 20300101000000 20200101000000 1 b.test. aGVsbG8=",
			"NOERROR WWW.a.test. 2 IN RRSIG A 13 3 3600 20300101000000 20200101000000 1 b.test. aGVsbG8=",
		},
		{"case", "NOERROR www.b.test. 1 IN CNAME UP.B.Test.; up.b.test. 1 IN A 192.0.2.1", "NOERROR WWW.a.test. 2 IN CNAME UP.a.test.; up.a.test. 2 IN A 192.0.2.1"},
		{"the root", "NOERROR www.b.test. 1 IN MX 0 . -- . 1 IN NS .", "NOERROR WWW.a.test. 2 IN MX 0 . -- . 2 IN NS ."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := stubQuery(t, "WWW.a.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
			other := replyFromText(t, stubQuery(t, "www.b.test.", dns.TypeA), tt.from)
			before := string(other.b)
			var r Reply
			r.Start(nil, q)
			r.Add(Additional, AtQuestion, TypeA, 1, []byte{1, 2, 3, 4}) // goes
			if !r.Rewrite(other, zoneEditor{wireName(t, "b.test."), wireName(t, "a.test.")}, nil) {
				t.Fatal("refused")
			}
			if got := sectionsOf(unpacked(t, r.Finish(MaxMessage))); got != normalizeText(tt.want) {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if string(other.b) != before {
				t.Error("the other reply has changed")
			}
		})
	}
}

// TestRewriteCompresses: a name in RDATA that is the question's, or that was written before, becomes
// a pointer, for the types of RFC 1035.
func TestRewriteCompresses(t *testing.T) {
	for _, tt := range []struct {
		name, from, once string
	}{
		{"the question's name", "NOERROR www.b.test. 60 IN MX 10 www.a.test.", "www.a.test."},
		{"one name twice", "NOERROR www.b.test. 60 IN MX 10 mail.other.; www.b.test. 60 IN MX 20 mail.other.", "mail.other."},
		{"the owner of a later record", "NOERROR www.b.test. 60 IN NS ns.other. -- -- ns.other. 60 IN A 192.0.2.1", "ns.other."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := replyFromText(t, stubQuery(t, "www.b.test.", dns.TypeA), tt.from)
			var r Reply
			r.Start(nil, stubQuery(t, "www.a.test.", dns.TypeA))
			if !r.Rewrite(other, unchanged{}, nil) {
				t.Fatal("refused")
			}
			msg := r.Finish(MaxMessage)
			if n := bytes.Count(msg, wireName(t, tt.once)); n != 1 {
				t.Errorf("%s is written %d times in\n%s", tt.once, n, unpacked(t, msg))
			}
		})
	}
}

// TestRewriteBudget: a record is refused if its owner and the names in its RDATA, read after
// pointers, exceed the budget together.
func TestRewriteBudget(t *testing.T) {
	for _, record := range []string{
		"www.b.test. 60 IN MX 10 mail.www.b.test.", "www.b.test. 60 IN SOA ns.www.b.test. host.www.b.test. 1 2 3 4 5",
	} {
		other := replyFromText(t, stubQuery(t, "www.b.test.", dns.TypeA), "NOERROR "+record)
		write := func(left readBudget) (ok bool, rest readBudget) {
			var r Reply
			r.Start(nil, stubQuery(t, "www.a.test.", dns.TypeA))
			w := rewriter{from: other.b, left: left, to: &r, e: unchanged{}}
			ok = w.sections(other)
			return ok, w.left
		}
		const plenty = 1000
		ok, rest := write(plenty)
		if need := plenty - rest; !ok || need < 2 {
			t.Fatalf("%s: %d steps, taken %t", record, need, ok)
		}
		for left := range plenty - rest + 2 {
			if ok, _ := write(left); ok != (left >= plenty-rest) {
				t.Errorf("%s: with %d steps of %d: taken %t", record, left, plenty-rest, ok)
			}
		}
	}
}

// ttlEditor sets all TTLs to one second.
type ttlEditor struct{ unchanged }

func (ttlEditor) TTL(uint32) uint32 { return 1 }

// TestRewriteAD: what is validated stays so if only TTLs change, and no longer with another question, name, answer or rcode.
func TestRewriteAD(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	for _, tt := range []struct {
		name  string
		asked string
		qtype uint16
		e     Editor
		s     *Splice
		rcode Rcode
		want  bool
	}{
		{name: "only TTLs", asked: "WWW.a.test.", qtype: dns.TypeA, e: ttlEditor{}, want: true},
		{name: "another name", asked: "www.b.test.", qtype: dns.TypeA, e: unchanged{}},
		{name: "another type", asked: "www.a.test.", qtype: dns.TypeAAAA, e: unchanged{}},
		{name: "names in answers", asked: "www.a.test.", qtype: dns.TypeA, e: zoneEditor{wireName(t, "test."), wireName(t, "b.test.")}},
		{name: "another target", asked: "www.a.test.", qtype: dns.TypeA, e: unchanged{}, s: &Splice{Target: wireName(t, "x.test."), Answers: replyFromText(t, q, "NOERROR")}},
		{name: "another rcode", asked: "www.a.test.", qtype: dns.TypeA, e: unchanged{}, rcode: NXDomain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := replyFromText(t, stubQuery(t, tt.asked, tt.qtype), "NOERROR www.a.test. 60 IN CNAME c.test.")
			other.flags |= flagAD
			var r Reply
			r.Start(nil, q)
			if !r.Rewrite(other, tt.e, tt.s) {
				t.Fatal("refused")
			}
			r.SetRcode(tt.rcode)
			if m := unpacked(t, r.Finish(MaxMessage)); m.AuthenticatedData != tt.want {
				t.Errorf("AD %t, want %t:\n%s", m.AuthenticatedData, tt.want, m)
			}
		})
	}
}

// TestRewriteRefused: after a nil name the reply is empty, and AD is cleared by a rewrite.
func TestRewriteRefused(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	other := replyFromText(t, stubQuery(t, "www.b.test.", dns.TypeA), "NOERROR www.b.test. 60 IN A 192.0.2.1; www.b.test. 1 IN MX 10 "+longName(63, 63, 63, 55)+"b.")
	other.flags |= flagAD | flagAA
	var r Reply
	r.Start(nil, q)
	if r.Rewrite(other, zoneEditor{wireName(t, "b."), wireName(t, "longer.")}, nil) || len(r.b) != q.questionEnd() || r.count != [3]uint16{} {
		t.Errorf("%v records in %d bytes are left", r.count, len(r.b))
	}
	if !r.Rewrite(other, unchanged{}, nil) {
		t.Fatal("refused")
	}
	if m := unpacked(t, r.Finish(MaxMessage)); m.AuthenticatedData || !m.Authoritative {
		t.Errorf("AD or no AA:\n%s", m)
	}
}

// TestSplice: other answers replace those after an alias.
func TestSplice(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA)
	const chain = "NOERROR www.a.test. 9 IN CNAME x.test.; www.a.test. 9 IN RRSIG CNAME 13 3 3600 20300101000000 20200101000000 1 a.test. aGVsbG8=; x.test. 8 IN CNAME y.test.; y.test. 7 IN CNAME z.test.; z.test. 6 IN A 192.0.2.1 -- z.test. 1 IN NS ns.test."
	other := replyFromText(t, q, chain)
	var buf [MaxName]byte
	var targets []string
	for _, name := range other.Aliases(buf[:]) {
		targets = append(targets, string(AppendText(nil, name)))
	}
	equal(t, []string{"x.test.", "y.test.", "z.test."}, targets, "targets")
	rest := replyFromText(t, stubQuery(t, "n.test.", dns.TypeA), "NOERROR n.test. 5 IN CNAME m.test.; m.test. 4 IN A 192.0.2.2 -- m.test. 1 IN NS ns.test.")
	var r Reply
	r.Start(nil, q)
	if !r.Rewrite(other, unchanged{}, &Splice{At: 2, Target: wireName(t, "n.test."), Answers: rest}) {
		t.Fatal("refused")
	}
	const want = "NOERROR www.a.test. 9 IN CNAME x.test.; x.test. 8 IN CNAME n.test.; n.test. 5 IN CNAME m.test.; m.test. 4 IN A 192.0.2.2 -- z.test. 1 IN NS ns.test."
	if got := sectionsOf(unpacked(t, r.Finish(MaxMessage))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.Reset()
	if !r.AddAnswers(rest) || r.Count(Answer) != 2 || r.Count(Authority) != 0 {
		t.Errorf("%v records are added", r.count)
	}
}

// TestAddRecord: records of any type, and a message that is full.
func TestAddRecord(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA)
	var r Reply
	r.Start(nil, q)
	const want = `NOERROR www.a.test. 1 IN A 192.0.2.1; x.test. 2 CH TXT "v"; www.a.test. 1 IN HTTPS 1 . alpn="h2" -- a.test. 3 IN SOA ns.a.test. host.a.test. 1 2 3 4 5 -- ns.a.test. 4 IN AAAA 2001:db8::1`
	for s, part := range strings.Split(strings.TrimPrefix(want, "NOERROR "), " -- ") {
		for text := range strings.SplitSeq(part, "; ") {
			rr, err := ParseRecord(text)
			noError(t, err)
			noError(t, r.AddRecord(Section(s), rr))
		}
	}
	if got := sectionsOf(unpacked(t, r.Finish(MaxMessage))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	rr, _ := ParseRecord("x.test. 1 IN TXT " + strings.Repeat(`"`+strings.Repeat("x", 255)+`" `, 200))
	r.Start(nil, q)
	for range 3 {
		noError(t, r.AddRecord(Answer, rr))
	}
	out := r.Finish(MaxMessage)
	if m := unpacked(t, out); len(out) > MaxMessage || !m.Truncated || len(m.Answer) != 1 {
		t.Errorf("%d bytes, TC %t, %d answers", len(out), m.Truncated, len(m.Answer))
	}
	if r.Start(nil, q); r.AddRecord(Answer, &ParsedRecord{rr: &dns.A{Hdr: dns.RR_Header{Name: "a..b.", Rrtype: dns.TypeA, Class: dns.ClassINET}}}) == nil || r.Count(Answer) != 0 {
		t.Error("a record without a name is written")
	}
}

// FuzzRewrite: for any accepted reply, a rewrite without changes only changes the question's
// name.
func FuzzRewrite(f *testing.F) {
	addReplies(f, 100)
	f.Add([]byte{0, 1, 0, 0, 0, 0}, []byte("\xc0\f\x00\xfa000000\x00\x00"), uint16(0x8180)) // TSIG without data
	sub := stubQuery(f, "a.", dns.TypeA)
	q := stubQuery(f, "other.test.", dns.TypeA)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags)
		if !ok {
			return
		}
		resp, err := ParseResponse(msg, sub)
		if err != nil {
			return
		}
		var from, r Reply
		from.Start(nil, sub)
		from.CopyRaw(resp.Packed)
		r.Start(nil, q)
		if !r.Rewrite(&from, unchanged{}, nil) {
			return
		}
		want, got := unpacked(t, from.Finish(MaxMessage)), unpacked(t, r.Finish(MaxMessage))
		if got.Truncated && !want.Truncated {
			return // it has grown beyond a message
		}
		want.Question, want.AuthenticatedData = got.Question, false
		want.Id = got.Id
		equal(t, strings.ToLower(want.String()), strings.ToLower(got.String()), "")
	})
}

// BenchmarkRewrite is an address under another name.
func BenchmarkRewrite(b *testing.B) {
	q := stubQuery(b, "www.a.test.", dns.TypeA)
	other := replyFromText(b, stubQuery(b, "www.b.test.", dns.TypeA), "NOERROR www.b.test. 60 IN A 192.0.2.1")
	var r Reply
	r.Start(make([]byte, 0, 2048), q)
	e := Editor(unchanged{})
	b.ReportAllocs()
	for b.Loop() {
		if !r.Rewrite(other, e, nil) {
			b.Fatal("refused")
		}
	}
}
