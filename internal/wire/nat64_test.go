// These tests use flagAA, flagAD and flagRA, which are not exported.

package wire

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestPrefix64 uses the addresses of RFC 6052, 2.4.
func TestPrefix64(t *testing.T) {
	for prefix, want := range map[string]string{
		"2001:db8::/32":            "2001:db8:c000:221::",
		"2001:db8:100::/40":        "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":        "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56":    "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64":    "2001:db8:122:344:c0:2:2100:0",
		"2001:db8:122:344::/96":    "2001:db8:122:344::c000:221",
		"64:ff9b::/96":             "64:ff9b::c000:221",
		"2001:db8:122:344::1:2/64": "2001:db8:122:344:c0:2:2100:0",
	} {
		p, ok := NewPrefix64(netip.MustParsePrefix(prefix))
		if got := netip.AddrFrom16(p.Embed([]byte{192, 0, 2, 33})); !ok || got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v %s, want %s", prefix, ok, got, want)
		}
	}
	for _, prefix := range []netip.Prefix{
		{}, netip.MustParsePrefix("10.0.0.0/32"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("64:ff9b::/95"), netip.MustParsePrefix("64:ff9b::/128"),
	} {
		if _, ok := NewPrefix64(prefix); ok {
			t.Errorf("%s is taken", prefix)
		}
	}
}

func wellKnownPrefix(t testing.TB) *Prefix64 {
	t.Helper()
	p, ok := NewPrefix64(netip.MustParsePrefix("64:ff9b::/96"))
	if !ok {
		t.Fatal("the well-known prefix is none")
	}
	return &p
}

// aaaaQuery returns q with the type AAAA.
func aaaaQuery(t testing.TB, q *Query) *Query {
	t.Helper()
	m := unpacked(t, q.Packet)
	m.Question[0].Qtype = dns.TypeAAAA
	var six Query
	if v := six.Parse(packed(t, m)); v != Serve {
		t.Fatalf("verdict %d", v)
	}
	return &six
}

func TestSynthesize64(t *testing.T) {
	const mapped = "www.example. 30 IN AAAA 64:ff9b::c000:201"
	for _, tt := range []struct{ name, from, want string }{
		{"addresses", "NOERROR " + webA + "; www.example. 10 IN A 192.0.2.3", "NOERROR " + mapped + "; www.example. 10 IN AAAA 64:ff9b::c000:203"},
		{"an alias", "NOERROR www.example. 60 IN CNAME x.test.; x.test. 60 IN A 192.0.2.1", "NOERROR www.example. 60 IN CNAME x.test.; x.test. 30 IN AAAA 64:ff9b::c000:201"},
		{"an alias behind", "NOERROR x.test. 60 IN A 192.0.2.1; www.example. 60 IN CNAME x.test.", "NOERROR x.test. 30 IN AAAA 64:ff9b::c000:201; www.example. 60 IN CNAME x.test."},
		{"something between", "NOERROR " + webA + `; www.example. 9 IN TXT "x"; ` + webA, "NOERROR " + mapped + `; www.example. 9 IN TXT "x"; ` + mapped},
		{"more than answers", "NOERROR " + webA + " -- " + webNS + " -- " + webNSA, "NOERROR " + mapped + " -- " + webNS + " -- " + webNSA},
		{"an address beside it", "NOERROR " + webA + " -- -- www.example. 9 IN A 192.0.2.7", "NOERROR " + mapped + " -- -- www.example. 9 IN A 192.0.2.7"},
		{"nothing there", "NOERROR -- " + webSOA, "NOERROR -- " + webSOA},
		{"no such name", "NXDOMAIN www.example. 60 IN CNAME x.test. -- " + webSOA, "NXDOMAIN www.example. 60 IN CNAME x.test. -- " + webSOA},
		{"an error", "SERVFAIL", "SERVFAIL"},
	} {
		q := stubQuery(t, "www.example.", dns.TypeA)
		a := replyFromText(t, q, tt.from)
		a.flags |= flagAA | flagAD | flagRA
		var r Reply
		r.Start(nil, aaaaQuery(t, q))
		r.Add(Authority, AtQuestion, TypeTXT, 1, nil) // what was there goes
		if err := r.Synthesize64(a, wellKnownPrefix(t), 30); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		m := unpacked(t, r.Finish(MinUDP))
		equal(t, tt.want, sectionsOf(m), "%s", tt.name)
		if m.Authoritative || m.AuthenticatedData || !m.RecursionAvailable || m.Truncated || m.Question[0].Qtype != dns.TypeAAAA {
			t.Errorf("%s: header\n%s", tt.name, m)
		}
	}
}

// TestSynthesize64Limit: a reply that grows beyond the largest message is truncated, with TC
// set.
func TestSynthesize64Limit(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	var a, r Reply
	a.Start(nil, q)
	a.AddAddrs(Answer, AtQuestion, TypeA, 60, strings.Repeat("\xc0\x00\x02\x01", 3900))
	r.Start(nil, aaaaQuery(t, q))
	noError(t, r.Synthesize64(&a, wellKnownPrefix(t), 30))
	if m := unpacked(t, r.Finish(MaxMessage)); !m.Truncated || len(m.Answer) < 2300 {
		t.Errorf("%d answers, cut %v", len(m.Answer), m.Truncated)
	}
}

// TestSynthesize64Owners: pointers between owners stay valid when the records between them
// grow.
func TestSynthesize64Owners(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	var a, r Reply
	a.Start(nil, q)
	owner := AtQuestion
	for i := range byte(4) {
		at := len(a.b)
		a.Add(Answer, owner, TypeA, 9, []byte{192, 0, 2, i})
		owner = at
	}
	r.Start(nil, aaaaQuery(t, q))
	noError(t, r.Synthesize64(&a, wellKnownPrefix(t), 30))
	m := unpacked(t, r.Finish(MinUDP))
	for _, rr := range m.Answer {
		if rr.Header().Name != "www.example." || len(m.Answer) != 4 {
			t.Fatalf("became\n%s", m)
		}
	}
}

// FuzzSynthesize64: on both paths only the addresses of the reply change.
func FuzzSynthesize64(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint32(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, most uint32) {
		m := newMaker(seed)
		q := stubQuery(t, m.names[0], dns.TypeA)
		from := m.response(t, q)
		for range m.IntN(3) {
			from.Ns, from.Extra = nil, nil
		}
		for i, rr := range from.Answer { // most are addresses
			if m.IntN(3) > 0 {
				from.Answer[i] = &dns.A{Hdr: dns.RR_Header{Name: rr.Header().Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: m.Uint32N(100)}, A: []byte{192, 0, 2, byte(i)}}
			}
		}
		resp, err := ParseResponse(packed(t, from), q)
		if err != nil {
			t.Skip()
		}
		var a, again, r Reply
		a.Start(nil, q)
		a.CopyRaw(resp.Packed)
		again.Start(nil, q)
		again.CopyRaw(resp.Packed)
		r.Start(nil, aaaaQuery(t, q))
		want := synthesizedLines(unpacked(t, again.Finish(MaxMessage)), wellKnownPrefix(t), most)
		noError(t, r.Synthesize64(&a, wellKnownPrefix(t), most))
		got := unpacked(t, r.Finish(MaxMessage))
		equal(t, want, lowerAll(strings.Split(sectionsOf(got), "; ")), "")
		var way Reply
		way.Start(nil, aaaaQuery(t, q))
		a.Start(nil, q)
		a.CopyRaw(resp.Packed)
		noError(t, way.synthesize64Unpacked(&a, wellKnownPrefix(t), most))
		way.rcode = Rcode(got.Rcode)
		equal(t, want, lowerAll(strings.Split(sectionsOf(unpacked(t, way.Finish(MaxMessage))), "; ")), "through objects")
	})
}

// synthesizedLines returns m as text, with its addresses embedded in p.
func synthesizedLines(m *dns.Msg, p *Prefix64, most uint32) []string {
	m = m.Copy()
	for i, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			addr := p.Embed(a.A.To4())
			line := fmt.Sprintf("%s %d IN AAAA %s", a.Hdr.Name, min(a.Hdr.Ttl, most), netip.AddrFrom16(addr))
			rr, err := dns.NewRR(line)
			if err != nil {
				panic(err)
			}
			m.Answer[i] = rr
		}
	}
	return lowerAll(slices.Clone(strings.Split(sectionsOf(m), "; ")))
}

// TestSynthesize64Allocs: the common path does not allocate.
func TestSynthesize64Allocs(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA)
	six := aaaaQuery(t, q)
	a := replyFromText(t, q, "NOERROR www.example. 60 IN CNAME x.test.; x.test. 60 IN A 192.0.2.1")
	p := wellKnownPrefix(t)
	buf := make([]byte, 0, 4096)
	var r Reply
	if n := testing.AllocsPerRun(100, func() {
		r.Start(buf, six)
		noError(t, r.Synthesize64(a, p, 30))
		r.Minimize()
		r.SetNSID("a")
		r.Finish(MinUDP)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
