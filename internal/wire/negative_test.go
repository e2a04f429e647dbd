// These tests use message, which is not exported.

package wire

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// denial returns a packed NXDOMAIN reply.
func denial(t testing.TB, name string, compress bool, authority ...string) Packed {
	t.Helper()
	q := stubQuery(t, name, dns.TypeA)
	var m dns.Msg
	m.SetRcode(unpacked(t, q.Packet), dns.RcodeNameError)
	m.Compress, m.RecursionAvailable, m.AuthenticatedData, m.Authoritative = compress, true, true, true
	for _, line := range authority {
		rr, err := dns.NewRR(line)
		noError(t, err)
		m.Ns = append(m.Ns, rr)
	}
	resp, err := ParseResponse(packed(t, &m), q)
	noError(t, err)
	return resp.Packed
}

// TestDeny: the SOA of a denial also denies the names below.
func TestDeny(t *testing.T) {
	const rest = " 900 IN SOA ns.example. Admin.x.test. 1 7200 1800 86400 60"
	long := strings.Repeat(strings.Repeat("l", 60)+".", 3)
	for name, tt := range map[string]struct {
		denied, qname string
		authority     []string
		want          string // "" is false
	}{
		"below":             {"x.example.", "a.B.X.example.", []string{"example." + rest}, "example."},
		"the name itself":   {"x.example.", "x.example.", []string{"example." + rest}, "example."},
		"the zone's apex":   {"example.", "x.example.", []string{"example." + rest}, "example."},
		"the root's":        {"x.example.", "a.x.example.", []string{"." + rest}, "."},
		"behind others":     {"x.example.", "a.x.example.", []string{"example. 60 IN NS ns.example.", "example." + rest, "." + rest}, "example."},
		"long names":        {"x.example.", long + "x.example.", []string{"example. 900 IN SOA " + long + " " + long + " 1 2 3 4 5"}, "example."},
		"no SOA":            {"x.example.", "a.x.example.", []string{"example. 60 IN NS ns.example."}, ""},
		"nothing":           {"x.example.", "a.x.example.", nil, ""},
		"an SOA from below": {"x.example.", "a.x.example.", []string{"a.x.example." + rest}, ""},
		"of elsewhere":      {"x.example.", "a.x.example.", []string{"test." + rest}, ""},
		"ends alike":        {"x.example.", "a.x.example.", []string{"ample." + rest}, ""},
		"not below":         {"x.example.", "y.example.", []string{"example." + rest}, ""},
		"above":             {"x.example.", "example.", []string{"example." + rest}, ""},
	} {
		for _, compress := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				p := denial(t, tt.denied, compress, tt.authority...)
				q := stubQuery(t, tt.qname, dns.TypeSRV)
				var r Reply
				r.Start(nil, q)
				r.SetRcode(NotImp)
				if ok := r.Deny(p, 17); ok != (tt.want != "") {
					t.Fatalf("denied: %v", ok)
				}
				m := unpacked(t, r.Finish(MaxMessage))
				if tt.want == "" {
					if m.Rcode != dns.RcodeNotImplemented || len(m.Ns) != 0 {
						t.Errorf("touched\n%s", m)
					}
					return
				}
				if m.Rcode != dns.RcodeNameError || !m.RecursionAvailable || !m.Authoritative || m.AuthenticatedData || len(m.Answer)+len(m.Extra) != 0 || len(m.Ns) != 1 {
					t.Fatalf("got\n%s", m)
				}
				for _, line := range tt.authority {
					if !strings.Contains(line, "SOA") {
						continue
					}
					rr, _ := dns.NewRR(line)
					rr.Header().Ttl = 17
					if got := m.Ns[0].String(); !strings.EqualFold(got, rr.String()) {
						t.Errorf("got %s, want %s", got, rr)
					}
					break
				}
			})
		}
	}
}

// TestDenyRefusesAnswers: a denial behind an alias is about another name.
func TestDenyRefusesAnswers(t *testing.T) {
	q := stubQuery(t, "x.example.", dns.TypeA)
	var m dns.Msg
	m.SetRcode(unpacked(t, q.Packet), dns.RcodeNameError)
	cname, _ := dns.NewRR("x.example. 60 IN CNAME y.example.")
	soa, _ := dns.NewRR("example. 60 IN SOA a. b. 1 2 3 4 5")
	m.Answer, m.Ns = []dns.RR{cname}, []dns.RR{soa}
	resp, err := ParseResponse(packed(t, &m), q)
	noError(t, err)
	if n := resp.Packed.Answers(); n != 1 {
		t.Errorf("%d answers", n)
	}
	var r Reply
	r.Start(nil, stubQuery(t, "a.x.example.", dns.TypeA))
	if r.Deny(resp.Packed, 5) {
		t.Error("denied")
	}
}

// FuzzDeny infers denials from any accepted reply, for its name and for one below it. The
// result is well-formed, and its SOA is the reply's.
func FuzzDeny(f *testing.F) {
	addReplies(f, 30)
	for _, authority := range []string{"a. 60 IN SOA ns.a. x.ns.a. 1 2 3 4 5", ". 60 IN SOA a. a. 1 2 3 4 5"} {
		for _, compress := range []bool{false, true} {
			b := denial(f, "a.", compress, authority).message()
			f.Add(b[6:12], b[HeaderLen+3+4:], uint16(0x8183))
		}
	}
	q, below := stubQuery(f, "a.", dns.TypeA), stubQuery(f, "b.a.", dns.TypeTXT)
	f.Fuzz(func(t *testing.T, counts, body []byte, flags uint16) {
		msg, ok := replyTo(counts, body, flags|3)
		if !ok {
			return
		}
		resp, err := ParseResponse(msg, q)
		if err != nil {
			return
		}
		if got := string(resp.Packed.Name()); got != "\x01a\x00" {
			t.Fatalf("its name is %q", got)
		}
		for _, q := range []*Query{q, below} {
			var r Reply
			r.Start(nil, q)
			if !r.Deny(resp.Packed, 9) {
				continue
			}
			if resp.Rcode != NXDomain || resp.Answers != 0 || !resp.SOA {
				t.Fatalf("denied by %+v", resp)
			}
			m := unpacked(t, r.Finish(MaxMessage))
			if len(m.Ns) != 1 || m.Rcode != dns.RcodeNameError || !dns.IsSubDomain(m.Ns[0].Header().Name, "a.") || m.Ns[0].Header().Ttl != 9 {
				t.Errorf("sent\n%s", m)
			}
			if _, ok := m.Ns[0].(*dns.SOA); !ok {
				t.Errorf("sent %s", m.Ns[0])
			}
		}
	})
}
