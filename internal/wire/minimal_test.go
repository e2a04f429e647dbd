// These tests use b, which is not exported.

package wire

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// replyFromText returns a reply that copies a response with records. The sections follow each
// other, with "--" between them. The rcode is the first word.
func replyFromText(t testing.TB, q *Query, text string) *Reply {
	t.Helper()
	rcode, text, _ := strings.Cut(text, " ")
	var m dns.Msg
	m.SetReply(unpacked(t, q.Packet))
	m.Rcode, m.Compress = dns.StringToRcode[rcode], true
	sections := []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra}
	for i, part := range strings.Split(text, "--") {
		for line := range strings.SplitSeq(part, ";") {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			rr, err := dns.NewRR(line)
			noError(t, err)
			*sections[i] = append(*sections[i], rr)
		}
	}
	resp, err := ParseResponse(packed(t, &m), q)
	noError(t, err)
	var r Reply
	r.Start(nil, q)
	r.CopyRaw(resp.Packed)
	return &r
}

// sectionsOf returns m in the form that replyFromText reads, without the OPT record.
func sectionsOf(m *dns.Msg) string {
	parts := make([]string, 3)
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var list []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				list = append(list, strings.Join(strings.Fields(rr.String()), " "))
			}
		}
		parts[i] = strings.Join(list, "; ")
	}
	return normalizeText(dns.RcodeToString[m.Rcode] + " " + strings.Join(parts, " -- "))
}

// normalizeText returns text in the form of sectionsOf.
func normalizeText(text string) string {
	return strings.Join(strings.Fields(strings.TrimRight(text, " -")), " ")
}

// longName returns a name with labels of the given lengths.
func longName(lengths ...int) string {
	var b strings.Builder
	for _, n := range lengths {
		b.WriteString(strings.Repeat("a", n) + ".")
	}
	return b.String()
}

const (
	webA   = "www.example. 60 IN A 192.0.2.1"
	webNS  = "example. 60 IN NS ns.example."
	webSOA = "example. 60 IN SOA ns.example. host.example. 1 2 3 4 5"
	webNSA = "ns.example. 60 IN A 192.0.2.2"
)

func TestMinimize(t *testing.T) {
	for _, tt := range []struct{ name, from, want string }{
		{"an answer", "NOERROR " + webA + " -- " + webNS + " -- " + webNSA, "NOERROR " + webA},
		{"an answer and less", "NOERROR " + webA + " -- -- " + webNSA, "NOERROR " + webA},
		{"an alias without its end", "NOERROR www.example. 60 IN CNAME x.test. -- " + webSOA, "NOERROR www.example. 60 IN CNAME x.test."},
		{"nothing to drop", "NOERROR " + webA, "NOERROR " + webA},
		{"no such type", "NOERROR -- " + webSOA, "NOERROR -- " + webSOA},
		{"no such name", "NXDOMAIN -- " + webSOA + " -- " + webNSA, "NXDOMAIN -- " + webSOA + " -- " + webNSA},
		{"an alias to no such name", "NXDOMAIN www.example. 60 IN CNAME x.test. -- " + webSOA, "NXDOMAIN www.example. 60 IN CNAME x.test. -- " + webSOA},
		{"a referral", "NOERROR -- " + webNS + " -- " + webNSA, "NOERROR -- " + webNS + " -- " + webNSA},
		{"only what is beside it", "NOERROR -- -- " + webNSA, "NOERROR"},
		{"an error", "SERVFAIL -- " + webNS, "SERVFAIL -- " + webNS},
	} {
		q := stubQuery(t, "www.example.", dns.TypeA)
		r := replyFromText(t, q, tt.from)
		r.Minimize()
		equal(t, tt.want, sectionsOf(unpacked(t, r.Finish(MinUDP))), "%s", tt.name)
	}
}

func TestFirstTTL(t *testing.T) {
	r := replyFromText(t, stubQuery(t, "www.example.", dns.TypeA), "NOERROR "+webA+" -- "+webNS+"; "+strings.Replace(webSOA, "60", "7", 1)+" -- "+webNSA)
	for _, tt := range []struct {
		s     Section
		rtype uint16
		ttl   uint32
		ok    bool
	}{
		{Answer, TypeA, 60, true}, {Answer, TypeSOA, 0, false}, {Authority, TypeSOA, 7, true}, {Authority, TypeA, 0, false}, {Additional, TypeA, 60, true}, {Additional, TypeNS, 0, false},
	} {
		if ttl, ok := r.FirstTTL(tt.s, tt.rtype); ttl != tt.ttl || ok != tt.ok {
			t.Errorf("type %d in section %d: %d %v", tt.rtype, tt.s, ttl, ok)
		}
	}
}

func TestLimitTTLs(t *testing.T) {
	r := replyFromText(t, stubQuery(t, "www.example.", dns.TypeA), "NOERROR "+webA+" -- "+strings.Replace(webSOA, "60", "7", 1)+" -- "+webNSA)
	r.LimitTTLs(9)
	for i, want := range []uint32{9, 7, 9} {
		s, rtype := Section(i), []uint16{TypeA, TypeSOA, TypeA}[i]
		if ttl, ok := r.FirstTTL(s, rtype); ttl != want || !ok {
			t.Errorf("section %d: TTL %d, want %d", s, ttl, want)
		}
	}
}

func TestAddChild(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"www.example.", "_udp.www.example. 9 IN SRV 0 0 53 ."},
		{".", "_udp. 9 IN SRV 0 0 53 ."},
		{longName(63, 63, 63, 56), "_udp." + longName(63, 63, 63, 56) + " 9 IN SRV 0 0 53 ."},
		{longName(63, 63, 63, 57), ""},
	} {
		var r Reply
		r.Start(nil, stubQuery(t, tt.name, dns.TypeA))
		r.AddChild(Additional, "_udp", TypeSRV, 9, []byte{0, 0, 0, 0, 0, 53, 0})
		want := normalizeText("NOERROR -- -- " + tt.want)
		if got := sectionsOf(unpacked(t, r.Finish(MaxMessage))); got != want {
			t.Errorf("%s: %s, want %s", tt.name, got, want)
		}
	}
	var r Reply
	r.Start(nil, stubQuery(t, "www.example.", dns.TypeA))
	r.Add(Additional, AtQuestion, TypeA, 1, []byte{1, 2, 3, 4})
	size := len(r.b)
	r.AddChild(Answer, "_udp", TypeSRV, 9, nil) // a section that is over
	if msg := r.Finish(MinUDP); len(msg) != size || !unpacked(t, msg).Truncated {
		t.Errorf("%d bytes became\n%s", size, unpacked(t, msg))
	}
}
