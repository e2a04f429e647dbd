package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// TestRegistry: names of types, classes and rcodes are read in any case, and numbers without a name are written as
// RFC 3597 says.
func TestRegistry(t *testing.T) {
	if n, ok := ParseType("https"); n != TypeHTTPS || !ok {
		t.Errorf("HTTPS is type %d, %t", n, ok)
	}
	if n, ok := ParseClass("ch"); n != 3 || !ok {
		t.Errorf("CH is class %d, %t", n, ok)
	}
	if c, ok := ParseRcode("nxdomain"); c != NXDomain || !ok {
		t.Errorf("NXDOMAIN is rcode %d, %t", c, ok)
	}
	for _, unknown := range []string{"", "NONESUCH", "TYPE1", "0"} {
		_, isType := ParseType(unknown)
		_, isClass := ParseClass(unknown)
		_, isRcode := ParseRcode(unknown)
		if isType || isClass || isRcode {
			t.Errorf("%q has a number", unknown)
		}
	}
	got := []string{TypeName(TypeSVCB), TypeName(65280), RegisteredTypeName(TypeCAA), RegisteredTypeName(65280), ClassName(ClassIN), ClassName(100), BadVers.String(), Rcode(100).String()}
	want := []string{"SVCB", "TYPE65280", "CAA", "", "IN", "CLASS100", "BADSIG", "100"}
	equal(t, want, got, "names")
}

// TestAppendClientQuery: the query is the one that miekg/dns builds.
func TestAppendClientQuery(t *testing.T) {
	for _, do := range []bool{false, true} {
		for _, cd := range []bool{false, true} {
			m := new(dns.Msg).SetQuestion("www.a.test.", dns.TypeMX)
			m.CheckingDisabled = cd
			want, err := m.SetEdns0(SafeUDP, do).Pack()
			noError(t, err)
			equal(t, want, AppendClientQuery(nil, m.Id, []byte("\x03www\x01a\x04test\x00"), TypeMX, do, cd), "do %t, cd %t", do, cd)
		}
	}
}

// TestAddrs: only addresses among the answers count, each once.
func TestAddrs(t *testing.T) {
	q := stubQuery(t, "www.a.test.", dns.TypeA)
	var r Reply
	r.Start(nil, q)
	for i, text := range []string{
		"www.a.test. 1 IN CNAME b.test.", "b.test. 1 IN A 192.0.2.1", "b.test. 1 IN AAAA 2001:db8::1", "b.test. 1 IN A 192.0.2.1",
		"b.test. 1 IN AAAA ::ffff:192.0.2.2", "b.test. 1 CH A 192.0.2.3", "c.test. 1 IN A 192.0.2.4",
	} {
		p, err := ParseRecord(text)
		noError(t, err)
		noError(t, r.AddRecord([]Section{Answer, Additional}[i/6], p))
	}
	if got := fmt.Sprint(r.Addrs()); got != fmt.Sprint([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2")}) {
		t.Errorf("addresses %s", got)
	}
}

// TestParseRecord: text without a record, malformed text, and aliases.
func TestParseRecord(t *testing.T) {
	if p, err := ParseRecord(" ; a comment"); p != nil || err != nil {
		t.Errorf("a comment is %v, %v", p, err)
	}
	if p, err := ParseRecord("a.test. A 1.2.3"); p != nil || err == nil {
		t.Error("an incomplete address is a record")
	}
	if p, err := ParseRecord("$include /etc/hostname"); p != nil || err == nil || strings.Contains(err.Error(), "no such file") {
		t.Errorf("an included file is %v, %v", p, err)
	}
	p, err := ParseRecord("a.test. CNAME b.test.")
	noError(t, err)
	if target, ok := p.Alias(); target != "b.test." || !ok {
		t.Errorf("the target is %q, %t", target, ok)
	}
	if p, _ = ParseRecord("a.test. A 192.0.2.1"); p == nil {
		t.Fatal("an address is no record")
	}
	if _, ok := p.Alias(); ok {
		t.Error("an address is an alias")
	}
}

// TestPresent: answers in presentation form, and the lowest TTL of the first two sections.
func TestPresent(t *testing.T) {
	m := new(dns.Msg).SetQuestion("a.test.", dns.TypeTXT)
	for _, text := range []string{`a.test. 30 TXT "b c"`, `a.test. 20 TXT "d"`} {
		rr, err := dns.NewRR(text)
		noError(t, err)
		m.Answer = append(m.Answer, rr)
	}
	ttl := func(rr dns.RR, ttl uint32) dns.RR { rr = dns.Copy(rr); rr.Header().Ttl = ttl; return rr }
	m.Ns, m.Extra = []dns.RR{ttl(m.Answer[0], 10)}, []dns.RR{ttl(m.Answer[0], 5)}
	msg, err := m.Pack()
	noError(t, err)
	p, err := Present(msg)
	ten := uint32(10)
	if diff := cmp.Diff(Presentation{Answers: []string{`a.test. 30 IN TXT "b c"`, `a.test. 20 IN TXT "d"`}, TTL: &ten}, p); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if p, err = Present(AppendQuery(nil, 1, []byte("\x00"), TypeA, nil, SafeUDP)); p.TTL != nil || len(p.Answers) != 0 || err != nil {
		t.Errorf("a query is %+v, %v", p, err)
	}
	if _, err = Present(msg[:len(msg)-1]); !errors.Is(err, ErrResponse) {
		t.Errorf("a message that is cut off: %v", err)
	}
}

// TestObjects: templates reach a query's fields by the names that CoreDNS has.
func TestObjects(t *testing.T) {
	message, question, err := Objects(AppendQuery(nil, 7, []byte("\x01a\x00"), TypeA, nil, SafeUDP))
	noError(t, err)
	if m := message.(*dns.Msg); m.Id != 7 || question.(*dns.Question) != &m.Question[0] || m.Question[0].Name != "a." {
		t.Errorf("message %v, question %v", message, question)
	}
	if message, question, err = Objects(make([]byte, HeaderLen)); message == nil || question != nil || err != nil {
		t.Errorf("a bare header: %v, %v, %v", message, question, err)
	}
	if _, _, err = Objects(nil); !errors.Is(err, ErrResponse) {
		t.Errorf("no message: %v", err)
	}
}
