package wire

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// cutReply returns a reply to q with answers, authority records of a type, and two addresses for each of extra names.
func cutReply(q *Query, answers, authority int, atype uint16, extra int) *Reply {
	r := new(Reply)
	r.Start(nil, q)
	for i := range answers {
		r.Add(Answer, AtQuestion, TypeA, 1, []byte{10, 0, 0, byte(i)})
	}
	data := map[uint16][]byte{TypeNS: []byte("\x02ns\x00"), TypeSOA: append(make([]byte, 2), make([]byte, 20)...)}[atype]
	for range authority {
		r.Add(Authority, AtQuestion, atype, 1, data)
	}
	for i := range extra {
		for j := range byte(2) {
			r.Add(Additional, []int{AtQuestion + 2, AtQuestion + 10}[i], TypeA, 1, []byte{192, 0, 2, j})
		}
	}
	return r
}

// TestTruncateSections: TC says that a part of the answer is missing; of other records whole RRsets go without it (RFC 2181, 9).
func TestTruncateSections(t *testing.T) {
	for _, c := range []struct {
		name                     string
		do                       bool
		answers, authority       int
		atype                    uint16
		extra                    int
		limit                    int
		wantAns, wantNS, wantAdd int
		tc                       bool
	}{
		{"all fits", false, 4, 1, TypeNS, 2, 512, 4, 1, 4, false},
		{"an answer is missing", false, 40, 0, TypeNS, 2, 512, 30, 0, 0, true},
		{"an additional RRset is missing", false, 4, 0, TypeNS, 2, 27 + 4*16 + 3*16, 4, 0, 2, false},
		{"all additional records are missing", false, 4, 0, TypeNS, 2, 27 + 4*16 + 16, 4, 0, 0, false},
		{"NS records beside an answer are missing", false, 4, 3, TypeNS, 2, 27 + 4*16 + 2*16, 4, 0, 0, false},
		{"the same for DNSSEC", true, 4, 3, TypeNS, 2, 27 + 11 + 4*16 + 2*16, 4, 2, 0, true},
		{"a referral is missing", false, 0, 3, TypeNS, 0, 27 + 2*16, 0, 2, 0, true},
		{"a denial is missing", false, 0, 1, TypeSOA, 0, 27 + 16, 0, 0, 0, true},
		{"the SOA record beside an alias is missing", false, 1, 1, TypeSOA, 0, 27 + 16 + 16, 1, 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := stubQuery(t, "a.example.", TypeA, func(m *dns.Msg) {
				if c.do {
					m.SetEdns0(4096, true)
				}
			})
			m := unpacked(t, cutReply(q, c.answers, c.authority, c.atype, c.extra).Finish(c.limit))
			extra := len(m.Extra)
			if c.do {
				extra--
			}
			got := fmt.Sprint(len(m.Answer), len(m.Ns), extra, m.Truncated)
			if want := fmt.Sprint(c.wantAns, c.wantNS, c.wantAdd, c.tc); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// TestAdditionalBeyondMessage: additional records beyond 64 KiB are left out by whole RRsets, without TC, and nothing is written
// after them.
func TestAdditionalBeyondMessage(t *testing.T) {
	q := stubQuery(t, "a.example.", TypeA)
	for _, add := range map[string]func(r *Reply){
		"Add": func(r *Reply) {
			for range 5000 {
				r.Add(Additional, AtQuestion+10, TypeA, 1, []byte{192, 0, 2, 2})
			}
		},
		"AddAddrs": func(r *Reply) { r.AddAddrs(Additional, AtQuestion+10, TypeA, 1, string(make([]byte, 4*5000))) },
	} {
		r := cutReply(q, 4, 0, TypeNS, 1)
		add(r)
		r.Add(Additional, AtQuestion, TypeA, 1, []byte{192, 0, 2, 3})
		if !r.Overflows() {
			t.Error("the reply takes more records")
		}
		if m := unpacked(t, r.Finish(MaxMessage)); len(m.Answer) != 4 || len(m.Extra) != 2 || m.Truncated {
			t.Errorf("%d answers, %d additional records, TC %v", len(m.Answer), len(m.Extra), m.Truncated)
		}
	}
}

// TestClassANY: a question about all classes is one about IN, and the reply has the client's.
func TestClassANY(t *testing.T) {
	q := stubQuery(t, "a.example.", TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY })
	if q.Class != ClassIN {
		t.Errorf("class %d", q.Class)
	}
	if m := unpacked(t, cutReply(q, 1, 0, TypeNS, 0).Finish(512)); m.Question[0].Qclass != dns.ClassANY || m.Answer[0].Header().Class != dns.ClassINET {
		t.Errorf("the reply is %v", m)
	}
	if p := ErrorResponse(q, ServFail).Packed; !p.IsReplyTo(q) || !p.IsReplyTo(stubQuery(t, "a.example.", TypeA)) {
		t.Error("what is kept is no reply to the question")
	}
}

// TestKeepalive: the option is in a reply with an OPT record.
func TestKeepalive(t *testing.T) {
	for _, edns := range []bool{false, true} {
		q := stubQuery(t, "a.example.", TypeA, func(m *dns.Msg) {
			if edns {
				m.SetEdns0(4096, false)
			}
		})
		r := cutReply(q, 1, 0, TypeNS, 0)
		r.SetKeepalive(100)
		opt := unpacked(t, r.Finish(MaxMessage)).IsEdns0()
		if !edns {
			if opt != nil {
				t.Error("a client without EDNS got an OPT record")
			}
			continue
		}
		if k, ok := opt.Option[0].(*dns.EDNS0_TCP_KEEPALIVE); !ok || k.Timeout != 100 {
			t.Errorf("the options are %v", opt.Option)
		}
	}
}
