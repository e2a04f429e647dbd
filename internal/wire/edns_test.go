// These tests use append16, which is not exported.

package wire

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

var (
	nsid   = &dns.EDNS0_NSID{Code: dns.EDNS0NSID}
	cookie = &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}
)

// TestOptions: the options are in the OPT record, if there is one, and Reset removes them with
// the records.
func TestOptions(t *testing.T) {
	edns := func(m *dns.Msg) { m.SetEdns0(1232, true) }
	blocked := func(r *Reply) { r.SetEDE(EDEBlocked) }
	named := func(r *Reply) { r.SetNSID("a server") }
	for name, tt := range map[string]struct {
		shape func(*dns.Msg)
		do    []func(*Reply)
		want  []string
	}{
		"none":            {edns, nil, []string{}},
		"extended error":  {edns, []func(*Reply){blocked}, []string{"15 15"}},
		"the one is 0":    {edns, []func(*Reply){func(r *Reply) { r.SetEDE(0) }}, []string{"15 0"}},
		"name":            {edns, []func(*Reply){named}, []string{"3 a server"}},
		"both":            {edns, []func(*Reply){named, blocked}, []string{"15 15", "3 a server"}},
		"name taken back": {edns, []func(*Reply){named, func(r *Reply) { r.SetNSID("") }}, []string{}},
		"reset":           {edns, []func(*Reply){named, blocked, (*Reply).Reset}, []string{"3 a server"}},
		"failed":          {edns, []func(*Reply){blocked, func(r *Reply) { r.Fail(ServFail) }}, []string{}},
		"without EDNS":    {func(*dns.Msg) {}, []func(*Reply){named, blocked}, nil},
	} {
		q := stubQuery(t, "www.example.", dns.TypeA, tt.shape)
		var r Reply
		for range 2 { // nothing is left from one query to the next
			r.Start(nil, q)
			for _, f := range tt.do {
				f(&r)
			}
			equal(t, tt.want, optionsOf(unpacked(t, r.Finish(MinUDP))), "%s", name)
		}
		r.Start(nil, q)
		if got := optionsOf(unpacked(t, r.Finish(MinUDP))); len(got) > 0 {
			t.Errorf("%s: the next reply has %v", name, got)
		}
	}
}

// optionsOf returns the options of m's OPT record, nil if it has none.
func optionsOf(m *dns.Msg) []string {
	opt := m.IsEdns0()
	if opt == nil {
		return nil
	}
	list := []string{}
	for _, o := range opt.Option {
		switch o := o.(type) {
		case *dns.EDNS0_NSID:
			id, _ := hex.DecodeString(o.Nsid)
			list = append(list, "3 "+string(id))
		case *dns.EDNS0_EDE:
			list = append(list, fmt.Sprintf("15 %d", o.InfoCode))
		}
	}
	return list
}

// TestExplanationFits: the text of an extended error is left out if the question and the OPT record
// would exceed the limit, and only then.
func TestExplanationFits(t *testing.T) {
	q := stubQuery(t, "www.example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
	reply := func(text string, limit int) []byte {
		var r Reply
		r.Start(nil, q)
		r.Add(Answer, AtQuestion, TypeA, 1, []byte{1, 2, 3, 4})
		r.SetEDEText(EDEFiltered, text)
		return r.Finish(limit)
	}
	const text = "see example.com"
	size := len(reply(text, MaxMessage)) - stride4 // with the question and the OPT record only
	for limit, want := range map[int]string{size + 1: text, size: text, size - 1: ""} {
		msg := reply(text, limit)
		ede, ok := unpacked(t, msg).IsEdns0().Option[0].(*dns.EDNS0_EDE)
		if !ok || ede.ExtraText != want || len(msg) > limit {
			t.Errorf("limit %d: %d bytes, %v; want the text %q", limit, len(msg), ede, want)
		}
	}
}

// TestQueryOptions: options that don't end where the RDATA does are a format error, and unknown ones are ignored whatever they have.
func TestQueryOptions(t *testing.T) {
	const asks, other, malformed = "asks for NSID", "other options", "malformed"
	for options, want := range map[string]string{
		"": other, "0003": malformed, "00030000": asks, "0003000161": asks, "00030002 61": malformed, "0003ffff": malformed,
		"000a0002 6162 00030000": asks, "000a0004 6162 00030000": malformed,
		"00030000 ffffff": malformed, "00030000 ffffffff": malformed, "0300 0000": other, "0008 0002 0001": other, "000a 0001 61": other,
	} {
		data := unhex(t, options)
		packet := unhex(t, "0001 0100 0001 0000 0000 0001 00 0001 0001 00 0029 04d0 00000000")
		packet = append(append16(packet, uint16(len(data))), data...)
		var q Query
		v := q.Parse(packet)
		if v != Serve && v != Malformed || (v == Malformed) != (want == malformed) || v == Serve && q.NSID != (want == asks) {
			t.Errorf("%s: verdict %d, asked for %v; want %s", options, v, q.NSID, want)
		}
		if q.Parse(stubQuery(t, "a.", dns.TypeA).Packet); q.NSID {
			t.Errorf("%s: the next query asks, too", options)
		}
	}
}

// TestOptionsFit: the largest options and the largest question fit into the smallest reply, and
// a truncated reply keeps them.
func TestOptionsFit(t *testing.T) {
	q := stubQuery(t, longName(63, 63, 63, 61), dns.TypeA, func(m *dns.Msg) { m.SetEdns0(512, true) })
	var r Reply
	r.Start(nil, q)
	for range 100 {
		r.Add(Answer, AtQuestion, TypeA, 1, []byte{1, 2, 3, 4})
	}
	r.SetEDE(EDEFiltered)
	r.SetNSID(strings.Repeat("x", MaxNSID))
	msg := r.Finish(MinUDP)
	m := unpacked(t, msg)
	if len(msg) > MinUDP || !m.Truncated || len(optionsOf(m)) != 2 {
		t.Errorf("%d bytes:\n%s", len(msg), m)
	}
}
