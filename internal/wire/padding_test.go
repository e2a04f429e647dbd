package wire

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// TestPadding: a padded reply has a multiple of its block or, where that is too much, the limit; a reply without an OPT record is not
// padded, and no record is lost for it.
func TestPadding(t *testing.T) {
	for edns, block := range map[bool]int{true: ReplyBlock, false: ReplyBlock} {
		for records := range 80 {
			for _, limit := range []int{MaxMessage, 1232} {
				m := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
				if edns {
					m.SetEdns0(MaxMessage, false)
				}
				packet, err := m.Pack()
				noError(t, err)
				var q Query
				if q.Parse(packet) != Serve {
					t.Fatal("no query")
				}
				var plain, padded Reply
				for _, r := range []*Reply{&plain, &padded} {
					r.Start(nil, &q)
					for range records {
						r.Add(Answer, AtQuestion, TypeA, 60, []byte{192, 0, 2, 1})
					}
				}
				padded.SetPadding(block)
				padded.SetEDE(EDEFiltered)
				got, without := padded.Finish(limit), plain.Finish(limit)
				if edns && len(got)%block != 0 && len(got) != limit && limit-len(got) >= optionHead || !edns && len(got) != len(without) || len(got) > limit {
					t.Fatalf("%d records, EDNS %t, limit %d: %d bytes, without padding %d", records, edns, limit, len(got), len(without))
				}
				a, b := unpacked(t, got), unpacked(t, without)
				if len(a.Answer) != len(b.Answer) && limit-len(got) > 16 {
					t.Fatalf("%d records, limit %d: %d answers, without padding %d", records, limit, len(a.Answer), len(b.Answer))
				}
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		_ = PadOptions(make([]byte, 0, 200), 60, QueryBlock)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for size := range 300 {
		list := []byte{0, 3, 0, 0} // NSID
		if got := PadOptions(list, size, QueryBlock); (size+len(got))%QueryBlock != 0 || len(got) < 8 {
			t.Errorf("%d bytes: padded by %d", size, len(got))
		}
	}
}

// TestUpstreamEDE: a reply passes on the extended error of an upstream, also when it is cached, but not its text; a saved one has none.
func TestUpstreamEDE(t *testing.T) {
	q := stubQuery(t, "a.test.", dns.TypeA)
	for _, tt := range []struct {
		options []dns.EDNS0
		want    string
	}{
		{nil, "[]"},
		{[]dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 0}}, "[0 ]"},
		{[]dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_EDE{InfoCode: 22, ExtraText: "text"}, &dns.EDNS0_EDE{InfoCode: 23}}, "[22 ]"},
		{[]dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 65535}}, "[]"},
		{[]dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0EDE, Data: []byte{1}}}, "[]"},
	} {
		m := answers(t, q, true, "a.test. 60 IN A 192.0.2.1")
		up := unpacked(t, m.Finish(MaxMessage))
		up.SetEdns0(1232, false)
		up.IsEdns0().Option = tt.options
		resp, err := ParseResponse(packed(t, up), q)
		noError(t, err)
		for _, options := range []string{"", "abcd"} {
			p := resp.Packed
			if options != "" {
				p = p.WithOptions([]byte(options))
			}
			var asked Query
			packet, err := new(dns.Msg).SetQuestion("a.test.", dns.TypeA).SetEdns0(1232, false).Pack()
			noError(t, err)
			asked.Parse(packet)
			var r Reply
			r.Start(nil, &asked)
			r.Copy(p, 5)
			var got []string
			reply := unpacked(t, r.Finish(MaxMessage))
			for _, o := range reply.IsEdns0().Option {
				e := o.(*dns.EDNS0_EDE)
				got = append(got, fmt.Sprint(e.InfoCode, " ", e.ExtraText))
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("%v: %v, want %s", tt.options, got, tt.want)
			}
			if saved := p.Append(nil); saved[0]|saved[1] != 0 {
				t.Errorf("%v: saved with the ID %x", tt.options, saved[:2])
			}
		}
	}
}
