// These tests use maxPointed, which is not exported.

package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestAdd(t *testing.T) {
	q := stubQuery(t, "_dns._UDP.Example.", dns.TypeSRV)
	var r Reply
	r.Start(nil, q)
	r.SetAuthoritative()
	target := r.Add(Answer, AtQuestion, TypeSRV, 5, []byte("\x00\x01\x00\x02\x00\x35\x02ns\x07example\x00")) + 6
	r.Add(Authority, r.Suffix(9), TypeNS, 6, []byte("\x02ns\x07example\x00"))
	r.Add(Additional, target, TypeA, 7, []byte{192, 0, 2, 53})
	got := unpacked(t, r.Finish(MinUDP))
	want := []string{
		"_dns._UDP.Example.\t5\tIN\tSRV\t1 2 53 ns.example.", "Example.\t6\tIN\tNS\tns.example.", "ns.example.\t7\tIN\tA\t192.0.2.53",
	}
	var have []string
	for _, rr := range slices.Concat(got.Answer, got.Ns, got.Extra) {
		have = append(have, rr.String())
	}
	equal(t, want, have, "")
	if !got.Authoritative || got.Truncated {
		t.Errorf("header %+v", got.MsgHdr)
	}
}

func TestFullReply(t *testing.T) {
	big := make([]byte, 60000)
	tests := map[string]func(r *Reply){
		"too many bytes": func(r *Reply) {
			r.Add(Answer, AtQuestion, 65280, 1, big)
			r.Add(Answer, AtQuestion, 65280, 1, big)
		},
		"an earlier section": func(r *Reply) {
			r.Add(Authority, AtQuestion, 65280, 1, nil)
			r.Add(Answer, AtQuestion, 65280, 1, nil)
		},
	}
	for name, fill := range tests {
		t.Run(name, func(t *testing.T) {
			var r Reply
			r.Start(nil, stubQuery(t, "a.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, true) }))
			fill(&r)
			out := r.Finish(MaxMessage)
			m := unpacked(t, out)
			if !m.Truncated || len(m.Answer)+len(m.Ns) != 1 || len(out) > MaxMessage {
				t.Errorf("%d bytes, TC %v, %d records", len(out), m.Truncated, len(m.Answer)+len(m.Ns))
			}
			r.Fail(ServFail)
			if m := unpacked(t, r.Finish(MaxMessage)); m.Truncated || m.Rcode != dns.RcodeServerFailure || len(m.Answer)+len(m.Ns) != 0 {
				t.Errorf("after Fail\n%s", m)
			}
		})
	}
}

// TestOwnerBeyondPointers uses an owner that no pointer reaches.
func TestOwnerBeyondPointers(t *testing.T) {
	var r Reply
	r.Start(nil, stubQuery(t, "a.", dns.TypeA))
	r.Add(Answer, AtQuestion, 65280, 1, make([]byte, maxPointed))
	at := r.Add(Answer, AtQuestion, TypeCNAME, 1, []byte("\x03far\x00"))
	if at <= maxPointed {
		t.Fatalf("the name stands at %d", at)
	}
	r.Add(Answer, at, TypeA, 1, []byte{192, 0, 2, 1})
	m := unpacked(t, r.Finish(MaxMessage))
	if len(m.Answer) != 3 || m.Answer[2].Header().Name != "far." {
		t.Errorf("became\n%s", m)
	}
}

func TestExtendedRcodeOut(t *testing.T) {
	var r Reply
	r.Start(nil, stubQuery(t, "a.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(100, true) }))
	r.Fail(BadVers)
	m := unpacked(t, r.Finish(MinUDP))
	if m.Rcode != dns.RcodeBadVers || m.IsEdns0() == nil || !m.IsEdns0().Do() || m.IsEdns0().UDPSize() != 100 {
		t.Errorf("became\n%s", m)
	}
}

// answers makes a reply that copies a response with those answers.
func answers(t testing.TB, q *Query, compress bool, records ...string) *Reply {
	t.Helper()
	var m dns.Msg
	m.SetReply(unpacked(t, q.Packet))
	m.Compress = compress
	for _, line := range records {
		rr, err := dns.NewRR(line)
		noError(t, err)
		m.Answer = append(m.Answer, rr)
	}
	resp, err := ParseResponse(packed(t, &m), q)
	noError(t, err)
	var r Reply
	r.Start(nil, q)
	r.CopyRaw(resp.Packed)
	return &r
}

func TestShuffle(t *testing.T) {
	var many, alias []string
	for i := range 8 {
		many = append(many, fmt.Sprintf("www.example. 60 IN A 192.0.2.%d", i))
		alias = append(alias, fmt.Sprintf("target.test. 60 IN AAAA 2001:db8::%d", i))
	}
	alias = append([]string{"www.example. 60 IN CNAME target.test."}, alias...)
	tests := map[string]struct {
		records []string
		moves   bool
	}{
		"addresses":         {many, true},
		"behind an alias":   {alias, true},
		"one":               {many[:1], false},
		"an alias alone":    {alias[:1], false},
		"of two owners":     {[]string{"www.example. 60 IN A 192.0.2.1", "web.example. 60 IN A 192.0.2.2", "wet.example. 60 IN A 192.0.2.3"}, false},
		"two other owners":  {[]string{"web.example. 60 IN A 192.0.2.2", "wet.example. 60 IN A 192.0.2.3"}, false},
		"of two types":      {[]string{many[0], many[1], "www.example. 60 IN AAAA ::1"}, false},
		"of no addresses":   {[]string{"www.example. 60 IN TXT a", "www.example. 60 IN TXT b"}, false},
		"with text between": {append([]string{"www.example. 60 IN TXT a"}, many...), true},
	}
	for name, tt := range tests {
		for _, compress := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, compressed %v", name, compress), func(t *testing.T) {
				q := stubQuery(t, "www.example.", dns.TypeANY)
				before := lines(unpacked(t, answers(t, q, compress, tt.records...).Finish(MaxMessage)).Answer, 0)
				moved := false
				for range 200 { // 8 addresses stay in place once in 40,320 times
					r := answers(t, q, compress, tt.records...)
					r.Shuffle()
					after := lines(unpacked(t, r.Finish(MaxMessage)).Answer, 0)
					moved = moved || !slices.Equal(before, after)
					slices.Sort(after)
					if want := slices.Sorted(slices.Values(before)); !slices.Equal(want, after) {
						t.Fatalf("other records: %v, want %v", after, want)
					}
				}
				if moved != tt.moves {
					t.Errorf("moved: %v", moved)
				}
			})
		}
	}
}

func TestShuffleSpreads(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	first := map[string]int{}
	for range 400 {
		r := answers(t, q, true, "www.example. 60 IN A 192.0.2.1", "www.example. 60 IN A 192.0.2.2", "www.example. 60 IN A 192.0.2.3", "www.example. 60 IN A 192.0.2.4")
		r.Shuffle()
		first[unpacked(t, r.Finish(MinUDP)).Answer[0].String()]++
	}
	for rr, n := range first {
		if n < 40 { // 100 expected; 40 is seven standard deviations away
			t.Errorf("%s is first %d times of 400", rr, n)
		}
	}
	if len(first) != 4 {
		t.Errorf("%d of 4 addresses are ever first", len(first))
	}
}

// TestShuffleKeepsTTLs: an address keeps its TTL when it moves.
func TestShuffleKeepsTTLs(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	for range 50 { // two addresses stay in place in half of them
		r := answers(t, q, true, "www.example. 10 IN A 192.0.2.10", "www.example. 20 IN A 192.0.2.20")
		r.Shuffle()
		for _, rr := range unpacked(t, r.Finish(MinUDP)).Answer {
			if last := rr.(*dns.A).A.To4()[3]; rr.Header().Ttl != uint32(last) {
				t.Fatalf("%s has TTL %d, want %d", rr.(*dns.A).A, rr.Header().Ttl, last)
			}
		}
	}
}

// TestAllocations: replying from a packed answer does not allocate.
func TestAllocations(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	full := answers(t, q, true, "www.example. 60 IN A 192.0.2.1", "www.example. 60 IN A 192.0.2.2").Finish(MaxMessage)
	resp, err := ParseResponse(full, q)
	noError(t, err)
	var parsed Query
	var r Reply
	buf := make([]byte, 0, 4096)
	out := make([]byte, 0, 512)
	tests := map[string]func(){
		"Parse":                 func() { parsed.Parse(q.Packet) },
		"Start, Copy, Finish":   func() { r.Start(buf, q); r.Copy(resp.Packed, 5); r.Finish(MinUDP) },
		"Copy, Shuffle":         func() { r.Start(buf, q); r.Copy(resp.Packed, 5); r.Shuffle() },
		"Copy, Finish with cut": func() { r.Start(buf, q); r.Copy(resp.Packed, 5); r.Finish(60) },
		"Add":                   func() { r.Start(buf, q); r.Add(Answer, AtQuestion, TypeA, 5, full[:4]) },
		"Fail":                  func() { r.Start(buf, q); r.Fail(ServFail); r.Finish(MinUDP) },
		"Matches":               func() { Matches(full, q.Packet) },
		"AppendQuery":           func() { AppendQuery(out, 1, q.Name(), TypeA, q, 1232) },
		"AppendError":           func() { AppendError(out, q.Packet, FormErr) },
		"AppendRefusal":         func() { AppendRefusal(out, q.Packet, Refused, true) },
		"Empty":                 func() { r.Start(buf, q); r.Empty(); r.Finish(MinUDP) },
		"For":                   func() { resp.Packed.IsReplyTo(q) },
	}
	for name, f := range tests {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// One for the offsets of the TTLs while they are collected (it doubles from one
	// to two), one for the packed bytes.
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseResponse(full, q) }); n > 3 {
		t.Errorf("ParseResponse: %v allocations", n)
	}
}

// TestChangeFlags: flags are changed last, and not in the next reply.
func TestChangeFlags(t *testing.T) {
	q := stubQuery(t, "a.test.", dns.TypeA) // with RD
	var r Reply
	r.Start(nil, q)
	r.SetAuthoritative()
	r.ChangeFlags(FlagRA, FlagAA|FlagRD)
	if m := unpacked(t, r.Finish(MaxMessage)); m.Authoritative || m.RecursionDesired || !m.RecursionAvailable {
		t.Errorf("header %+v", m.MsgHdr)
	}
	r.Start(nil, q)
	if m := unpacked(t, r.Finish(MaxMessage)); !m.RecursionDesired || m.RecursionAvailable {
		t.Errorf("header of the next reply %+v", m.MsgHdr)
	}
	q.ChangeRD(0, FlagRD|FlagAA)
	r.Start(nil, q)
	if m := unpacked(t, r.Finish(MaxMessage)); q.RD() || m.RecursionDesired || m.Authoritative {
		t.Errorf("header without RD %+v", m.MsgHdr)
	}
	if q.ChangeRD(FlagRD|FlagAA, 0); !q.RD() || q.flags != flagRD {
		t.Errorf("flags of the query %#x", q.flags)
	}
}

// TestAddText: a TXT record of another class, and a text that is too long.
func TestAddText(t *testing.T) {
	q := stubQuery(t, "a.test.", dns.TypeTXT)
	var r Reply
	r.Start(nil, q)
	r.AddText(Answer, ClassCH, 7, "b c")
	r.AddText(Answer, ClassIN, 8, strings.Repeat("x", 256))
	want := `NOERROR a.test. 7 CH TXT "b c"; a.test. 8 IN TXT "` + strings.Repeat("x", 255) + `"`
	if got := sectionsOf(unpacked(t, r.Finish(MaxMessage))); got != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
