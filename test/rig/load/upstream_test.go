package load

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func ask(t testing.TB, name string, qtype uint16) []byte {
	return pack(t, new(dns.Msg).SetQuestion(name, qtype))
}

func TestRespond(t *testing.T) {
	for _, test := range []struct {
		name    string
		qtype   uint16
		rcode   int
		answers int
		delay   time.Duration
	}{
		{"web.example.", dns.TypeA, dns.RcodeSuccess, 1, 0},
		{".", dns.TypeA, dns.RcodeSuccess, 1, 0},
		{"web.example.", dns.TypeAAAA, dns.RcodeSuccess, 0, 0},
		{"00000001." + Late, dns.TypeA, dns.RcodeSuccess, 1, Delay},
		{"00000001.LATE.Example.", dns.TypeA, dns.RcodeSuccess, 1, Delay},
		{"toolate.example.", dns.TypeA, dns.RcodeSuccess, 1, 0},
		{"00000001." + Slow, dns.TypeA, dns.RcodeSuccess, 1, SlowDelay},
		{"web." + Ten, dns.TypeA, dns.RcodeSuccess, 10, 0},
		{"web." + Ten, dns.TypeAAAA, dns.RcodeSuccess, 0, 0},
		{"late.example.org.", dns.TypeA, dns.RcodeSuccess, 1, 0},
		{"a.b." + Missing, dns.TypeA, dns.RcodeNameError, 0, 0},
		{Missing, dns.TypeTXT, dns.RcodeNameError, 0, 0},
	} {
		for _, edns := range []bool{false, true} {
			q := new(dns.Msg).SetQuestion(test.name, test.qtype)
			if edns {
				q.SetEdns0(4096, true)
			}
			msg, delay := respond(nil, pack(t, q))
			m := new(dns.Msg)
			if err := m.Unpack(msg); err != nil {
				t.Errorf("%s: %v", test.name, err)
				continue
			}
			if m.Id != q.Id || !m.Response || !m.RecursionDesired || m.Question[0] != q.Question[0] {
				t.Errorf("%s: no answer to the question:\n%v", test.name, m)
			}
			if m.Rcode != test.rcode || len(m.Answer) != test.answers || len(m.Ns) != max(0, 1-test.answers) || delay != test.delay {
				t.Errorf("%s: delay %v, want %v, and\n%v", test.name, delay, test.delay, m)
			}
			if (m.IsEdns0() != nil) != edns {
				t.Errorf("%s: OPT in the question: %v, in the answer: %v", test.name, edns, m.IsEdns0())
			}
			if unique := dns.Dedup(slices.Clone(m.Answer), nil); len(unique) != len(m.Answer) {
				t.Errorf("%s: an address comes twice:\n%v", test.name, m)
			}
			for _, rr := range append(m.Answer, m.Ns...) {
				if rr.Header().Ttl != TTL {
					t.Errorf("%s: TTL %d", test.name, rr.Header().Ttl)
				}
			}
		}
	}
}

// FuzzRespond holds that anything may come, that what another library takes for a
// question gets an answer that fits, and that the buffer is large enough.
func FuzzRespond(f *testing.F) {
	f.Add(ask(f, "name.example.", dns.TypeA))
	f.Add(ask(f, "x."+Missing, dns.TypeA))
	f.Add(pack(f, new(dns.Msg).SetQuestion(Late, dns.TypeA).SetEdns0(1232, false)))
	f.Add(ask(f, "x."+Ten, dns.TypeA))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, query []byte) {
		msg, _ := respond(nil, query)
		if msg == nil {
			return
		}
		if len(msg) > size {
			t.Fatalf("an answer of %d bytes", len(msg))
		}
		q := new(dns.Msg)
		if err := q.Unpack(query); err != nil || len(q.Question) != 1 {
			return
		}
		m := new(dns.Msg)
		if err := m.Unpack(msg); err != nil {
			t.Fatalf("%v: %x", err, msg)
		}
		if m.Id != q.Id || !bytes.Equal(msg[12:14], query[12:14]) {
			t.Errorf("%x is no answer to %x", msg, query)
		}
	})
}
