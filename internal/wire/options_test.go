package wire_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// parsed returns the query in packet.
func parsed(t testing.TB, packet []byte) *wire.Query {
	t.Helper()
	q := new(wire.Query)
	if v := q.Parse(packet); v != wire.Serve {
		t.Fatalf("verdict %d", v)
	}
	return q
}

// TestClientOption: the option of the query's OPT record, wherever the record is.
func TestClientOption(t *testing.T) {
	m := new(dns.Msg).SetQuestion("example.", dns.TypeA)
	m.Extra = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{0, 3, 0, 0}}}
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("first")}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("second")},
		&dns.EDNS0_LOCAL{Code: 65002},
	}
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	q := parsed(t, packet)
	for code, want := range map[uint16]string{65001: "first", 65002: "", 65003: "none", 3: "none"} {
		got := "none"
		if data, ok := q.ClientOption(code); ok {
			got = string(data)
		}
		if got != want {
			t.Errorf("option %d is %q, want %q", code, got, want)
		}
	}
	plain, err := new(dns.Msg).SetQuestion("example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := parsed(t, plain).ClientOption(65001); ok {
		t.Error("an option without an OPT record")
	}
}

// TestSetOption: lists of options after each change.
func TestSetOption(t *testing.T) {
	set := func(code uint16, data string) func([]byte) []byte {
		return func(b []byte) []byte { return wire.SetOption(b, code, []byte(data)) }
	}
	remove := func(code uint16) func([]byte) []byte {
		return func(b []byte) []byte { return wire.RemoveOption(b, code) }
	}
	var list []byte
	for i, step := range []struct {
		do   func([]byte) []byte
		want string
	}{
		{remove(1), ""},
		{set(1, "a"), "0001000161"},
		{set(2, ""), "000100016100020000"},
		{set(1, "bcd"), "0001000362636400020000"},
		{set(2, "e"), "000100036263640002000165"},
		{set(1, ""), "000100000002000165"},
		{remove(1), "0002000165"},
		{remove(2), ""},
	} {
		list = step.do(list)
		if got := hex.EncodeToString(list); got != step.want {
			t.Fatalf("after step %d: %s, want %s", i, got, step.want)
		}
	}
	twice := []byte("\x00\x01\x00\x01a\x00\x02\x00\x00\x00\x01\x00\x00")
	if got := wire.RemoveOption(bytes.Clone(twice), 1); string(got) != "\x00\x02\x00\x00" {
		t.Errorf("%x is left", got)
	}
	if diff := cmp.Diff([]uint16{1, 2, 1}, slices.Collect(wire.OptionCodes(twice))); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
}

// TestAppendOptions: a query for an upstream has the options in its OPT record.
func TestAppendOptions(t *testing.T) {
	b := wire.AppendQuery(nil, 7, []byte("\x07example\x00"), dns.TypeA, nil, 1232)
	if got := wire.AppendOptions(bytes.Clone(b), nil); !bytes.Equal(got, b) {
		t.Errorf("no options change the query to %x", got)
	}
	b = wire.AppendOptions(b, wire.SetOption(wire.SetOption(nil, 65001, []byte("abc")), dns.EDNS0NSID, nil))
	var m dns.Msg
	if err := m.Unpack(b); err != nil {
		t.Fatal(err)
	}
	list := m.IsEdns0().Option
	if len(list) != 2 || list[0].String() != "65001:0x616263" {
		t.Fatalf("options %v", list)
	}
	if n, ok := list[1].(*dns.EDNS0_NSID); !ok || n.Nsid != "" {
		t.Errorf("the second option is %#v", list[1])
	}
}

// FuzzClientOption: whatever a client's OPT record holds, an option lies in the packet, and miekg/dns reads the same.
func FuzzClientOption(f *testing.F) {
	f.Add([]byte("\xff\xee\x00\x01a"), uint16(0xffee))
	f.Add([]byte("\xff\xee\x00\x09a"), uint16(0xffee))
	f.Add([]byte("\x00\x01\x00\x00\xff\xee\x00"), uint16(0xffee))
	f.Fuzz(func(t *testing.T, options []byte, code uint16) {
		if len(options) > 60000 {
			return
		}
		packet := wire.AppendOptions(wire.AppendQuery(nil, 7, []byte("\x07example\x00"), dns.TypeA, nil, 1232), options)
		var q wire.Query
		if q.Parse(packet) != wire.Serve {
			return
		}
		data, ok := q.ClientOption(code)
		if ok && !bytes.Contains(options, data) {
			t.Errorf("%x is not in %x", data, options)
		}
		codes := slices.Collect(wire.OptionCodes(options))
		if ok && !slices.Contains(codes, code) {
			t.Errorf("option %d is not one of %d", code, codes)
		}
	})
}
