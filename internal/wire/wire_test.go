package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// packed is m on the wire.
func packed(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatalf("packing: %v", err)
	}
	return b
}

func unpacked(t testing.TB, b []byte) *dns.Msg {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unpacking %x: %v", b, err)
	}
	return &m
}

// stubQuery returns a query as a stub resolver sends it.
func stubQuery(t testing.TB, name string, qtype uint16, shape ...func(*dns.Msg)) *Query {
	t.Helper()
	var m dns.Msg
	m.SetQuestion(name, qtype)
	for _, f := range shape {
		f(&m)
	}
	var q Query
	if v := q.Parse(packed(t, &m)); v != Serve {
		t.Fatalf("a query for %s: verdict %d", name, v)
	}
	return &q
}

// maker makes random messages; the same seed makes the same.
type maker struct {
	*rand.Rand
	names []string // owners and targets; the first is the qname
}

func newMaker(seed uint64) *maker {
	m := &maker{Rand: rand.New(rand.NewPCG(seed, 53))}
	zone := m.label() + "." + m.label() + "."
	m.names = []string{m.label() + "." + zone, zone, "."}
	for range 4 {
		m.names = append(m.names, m.label()+"."+m.names[m.IntN(2)], m.label()+"."+m.label()+".")
	}
	return m
}

func (m *maker) label() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGH0123456789-_"
	b := make([]byte, 1+m.IntN(12))
	for i := range b {
		b[i] = letters[m.IntN(len(letters))]
	}
	return string(b)
}

// name is one of the names, in any case.
func (m *maker) name() string { return m.mixed(m.names[m.IntN(len(m.names))]) }

func (m *maker) mixed(s string) string {
	switch m.IntN(3) {
	case 0:
		return strings.ToUpper(s)
	case 1:
		return strings.ToLower(s)
	}
	return s
}

// shapes are records of many types, those with compressed names among them. %s is a
// name.
var shapes = []string{
	"A 192.0.2.1", "A 192.0.2.2", "AAAA 2001:db8::1", "CNAME %s", "CNAME %s", "CNAME %s", "NS %s", "PTR %s",
	"SOA %s %s 1 2 3 4 77", "MX 10 %s", "SRV 1 2 53 %s", `TXT "some text" "more"`, `HINFO "a" "b"`, "RP %s %s",
	"AFSDB 1 %s", "RT 1 %s", "KX 1 %s", "PX 1 %s %s", "MINFO %s %s", "DNAME %s", "MB %s", "MG %s", "MR %s",
	`NAPTR 1 2 "u" "s" "" %s`, `CAA 0 issue "ca.example"`, "DS 1 8 2 " + sha, "TLSA 3 1 1 " + sha, "NSEC %s A AAAA",
	"SVCB 1 %s alpn=h2 port=53", "HTTPS 0 %s", `TYPE65280 \# 3 abcdef`, "NXT %s A",
	"RRSIG A 8 2 60 20300101000000 20200101000000 1 %s AAAA", "LOC 1 1 1 N 1 1 1 E 1m",
}

const sha = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func (m *maker) record(t testing.TB) dns.RR {
	shape := shapes[m.IntN(len(shapes))]
	args := []any{}
	for range strings.Count(shape, "%s") {
		args = append(args, m.name())
	}
	line := fmt.Sprintf("%s %d IN ", m.name(), m.IntN(100)) + fmt.Sprintf(shape, args...)
	rr, err := dns.NewRR(line)
	if err != nil {
		t.Fatalf("record %q: %v", line, err)
	}
	if m.IntN(50) == 0 {
		rr.Header().Ttl = 1<<31 + 5
	}
	return rr
}

// response is a random reply to q.
func (m *maker) response(t testing.TB, q *Query) *dns.Msg {
	var r dns.Msg
	r.SetReply(unpacked(t, q.Packet))
	r.Question[0].Name = m.mixed(r.Question[0].Name)
	r.Rcode = []int{0, 0, 0, 2, 3, 5}[m.IntN(6)]
	r.Authoritative = m.IntN(2) == 0
	r.RecursionAvailable = m.IntN(2) == 0
	r.AuthenticatedData = m.IntN(2) == 0
	r.Compress = m.IntN(4) > 0
	for _, section := range []*[]dns.RR{&r.Answer, &r.Ns, &r.Extra} {
		for range m.IntN(8) {
			*section = append(*section, m.record(t))
		}
	}
	if m.IntN(2) == 0 {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(1232)
		i := m.IntN(len(r.Extra) + 1)
		r.Extra = append(r.Extra[:i:i], append([]dns.RR{opt}, r.Extra[i:]...)...)
	}
	return &r
}

// lines are the records of a section, in lower case, without OPT, and with ttl in
// place of their own.
func lines(rrs []dns.RR, ttl uint32) []string {
	var out []string
	for _, rr := range rrs {
		if rr.Header().Rrtype == dns.TypeOPT {
			continue
		}
		rr = dns.Copy(rr)
		rr.Header().Ttl = ttl
		out = append(out, strings.ToLower(rr.String()))
	}
	return out
}
