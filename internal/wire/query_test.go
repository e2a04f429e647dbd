// These tests use u16 and questionEnd, which are not exported.

package wire

import (
	"bytes"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// fields are what a Query and a dns.Msg both know.
type fields struct {
	ID, Type, Class   uint16
	Name              string
	Labels, Limit     int
	RD, CD, AD        bool
	EDNS, DO, NSID    bool
	Version           uint8
	UDPSize           uint16
	Question, Opcodes int
}

func fieldsOf(q *Query) fields {
	return fields{
		ID: q.ID, Type: q.Type, Class: q.Class, Name: Name(q.Name()).String(), Labels: q.Labels(), Limit: q.Limit(),
		RD: q.RD(), CD: q.CD(), AD: q.AD(), EDNS: q.EDNS, DO: q.DO, NSID: q.NSID, Version: q.Version, UDPSize: q.UDPSize,
		Question: q.questionEnd() - HeaderLen, Opcodes: q.Opcode(),
	}
}

// fieldsOfMsg are the same from the objects; ok is false if the name can't be
// compared.
func fieldsOfMsg(m *dns.Msg) (f fields, ok bool) {
	name, err := ParseName(m.Question[0].Name)
	if err != nil {
		return f, false
	}
	class := m.Question[0].Qclass
	if class == dns.ClassANY {
		class = dns.ClassINET // see [Query.Class]
	}
	f = fields{
		ID: m.Id, Type: m.Question[0].Qtype, Class: class, Name: name.String(),
		Labels: dns.CountLabel(m.Question[0].Name), Limit: MinUDP,
		RD: m.RecursionDesired, CD: m.CheckingDisabled, AD: m.AuthenticatedData,
		Question: len(name) + 4, Opcodes: m.Opcode,
	}
	if opt := m.IsEdns0(); opt != nil {
		f.EDNS, f.DO, f.Version, f.UDPSize = true, opt.Do(), opt.Version(), opt.UDPSize()
		f.Limit = max(f.Limit, int(opt.UDPSize()))
		f.NSID = slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0NSID })
	}
	return f, true
}

func TestParse(t *testing.T) {
	tests := map[string]func(*dns.Msg){
		"plain":          func(*dns.Msg) {},
		"no recursion":   func(m *dns.Msg) { m.RecursionDesired = false },
		"CD and AD":      func(m *dns.Msg) { m.CheckingDisabled, m.AuthenticatedData = true, true },
		"EDNS":           func(m *dns.Msg) { m.SetEdns0(1232, false) },
		"DO":             func(m *dns.Msg) { m.SetEdns0(4096, true) },
		"NSID":           func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().Option = []dns.EDNS0{cookie, nsid} },
		"a small size":   func(m *dns.Msg) { m.SetEdns0(100, false) },
		"all classes":    func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY },
		"another class":  func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"the root":       func(m *dns.Msg) { m.Question[0].Name = "." },
		"a strange name": func(m *dns.Msg) { m.Question[0].Name = `a\.b\000C.\255.` },
		"a version": func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().SetVersion(1)
		},
		"a cookie": func(m *dns.Msg) {
			m.SetEdns0(1232, true)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}}
		},
	}
	for name, shape := range tests {
		t.Run(name, func(t *testing.T) {
			q := stubQuery(t, "wWw.Example.", dns.TypeAAAA, shape)
			want, ok := fieldsOfMsg(unpacked(t, q.Packet))
			if !ok {
				t.Fatal("the name can't be compared")
			}
			equal(t, want, fieldsOf(q), "")
		})
	}
}

// parseResults are packets that are not ordinary queries, by name.
var parseResults = map[string]struct {
	packet string
	want   ParseResult
}{
	"nothing":                        {"", Drop},
	"half a header":                  {"0001 0100 0001 0000 0000 00", Drop},
	"a response":                     {"0001 8100 0001 0000 0000 0000 00 0001 0001", Drop},
	"a bare header":                  {"0001 0100 0000 0000 0000 0000", Malformed},
	"NOTIFY":                         {"0001 2400 0001 0000 0000 0000 00 0006 0001", Unsupported},
	"UPDATE":                         {"0001 2800 0001 0000 0000 0000 00 0006 0001", Unsupported},
	"two questions":                  {"0001 0100 0002 0000 0000 0000 00 0001 0001 00 0001 0001", Malformed},
	"a question claimed only":        {"0001 0100 0001 0000 0000 0000", Malformed},
	"a name that ends the packet":    {"0001 0100 0001 0000 0000 0000 0361", Malformed},
	"a name without its root":        {"0001 0100 0001 0000 0000 0000 0161", Malformed},
	"a type cut short":               {"0001 0100 0001 0000 0000 0000 00 0001 00", Malformed},
	"a compressed question":          {"0001 0100 0001 0000 0000 0000 c00c 0001 0001", Malformed},
	"a question that points forward": {"0001 0100 0001 0000 0000 0000 c012 0001 0001 00", Malformed},
	"a label of 64 bytes":            {"0001 0100 0001 0000 0000 0000 40" + zeros(64) + "00 0001 0001", Malformed},
	"a name of 256 bytes":            {"0001 0100 0001 0000 0000 0000" + labels(63, 63, 63, 62) + "00 0001 0001", Malformed},
	"a name of 255 bytes":            {"0001 0100 0001 0000 0000 0000" + labels(63, 63, 63, 61) + "00 0001 0001", Serve},
	"65,535 additional records":      {"0001 0100 0001 0000 0000 ffff 00 0001 0001", Malformed},
	"an OPT claimed only":            {"0001 0100 0001 0000 0000 0001 00 0001 0001", Malformed},
	"an OPT cut short":               {"0001 0100 0001 0000 0000 0001 00 0001 0001 00 0029 04d0 00000000 00", Malformed},
	"an OPT longer than the packet":  {"0001 0100 0001 0000 0000 0001 00 0001 0001 00 0029 04d0 00000000 ffff", Malformed},
	"two OPTs":                       {"0001 0100 0001 0000 0000 0002 00 0001 0001 00 0029 04d0 00000000 0000 00 0029 04d0 00000000 0000", Malformed},
	"an OPT not at the root":         {"0001 0100 0001 0000 0000 0001 00 0001 0001 0161 00 0029 04d0 00000000 0000", Malformed},
	"an OPT":                         {"0001 0100 0001 0000 0000 0001 00 0001 0001 00 0029 04d0 00000000 0000", Serve},
	"bytes behind the end":           {"0001 0100 0001 0000 0000 0000 00 0001 0001 ffff", Serve},
}

func zeros(n int) string { return labels(n)[2:] }

// labels is a name of labels of those lengths in hex, without its root.
func labels(lengths ...int) string {
	const digits = "0123456789abcdef"
	var b []byte
	for _, n := range lengths {
		b = append(b, digits[n>>4], digits[n&15])
		for range n {
			b = append(b, "61"...)
		}
	}
	return string(b)
}

func TestParseResults(t *testing.T) {
	for name, tt := range parseResults {
		t.Run(name, func(t *testing.T) {
			var q Query
			q.Parse(stubQuery(t, "left.over.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, true) }).Packet)
			packet := unhex(t, tt.packet)
			if got := q.Parse(packet); got != tt.want {
				t.Errorf("verdict %d, want %d", got, tt.want)
			}
			if tt.want == Drop || len(packet) < HeaderLen {
				return
			}
			m := unpacked(t, AppendError(nil, packet, FormErr))
			if m.Id != 1 || !m.Response || m.Rcode != dns.RcodeFormatError || m.Opcode != q.Opcode() || len(m.Question) != 0 {
				t.Errorf("answered with\n%s", m)
			}
		})
	}
}

// checkRefusal checks the reply to a packet that was not parsed: none for what is no query, else one that is not
// longer than the packet and has its ID, and its question if that is valid.
func checkRefusal(t *testing.T, packet []byte) {
	t.Helper()
	var q Query
	verdict := q.Parse(packet)
	out := AppendRefusal(nil, packet, Refused, true)
	if verdict == Drop || len(out) == 0 {
		if verdict != Drop || len(out) > 0 {
			t.Errorf("%x: verdict %d, reply %x", packet, verdict, out)
		}
		return
	}
	if len(out) > len(packet) || out[0] != packet[0] || out[1] != packet[1] {
		t.Errorf("%x: the reply is %x", packet, out)
	}
	if verdict == Serve && !bytes.Equal(out[HeaderLen:], packet[HeaderLen:q.QuestionEnd()]) {
		t.Errorf("%x: the question of the reply is %x", packet, out[HeaderLen:])
	}
	m := new(dns.Msg)
	if err := m.Unpack(out); err != nil && verdict == Serve {
		t.Errorf("%x: the reply %x: %v", packet, out, err)
	} else if err == nil && (m.Rcode != dns.RcodeRefused || !m.Truncated || !m.Response || len(m.Answer)+len(m.Ns)+len(m.Extra) > 0) {
		t.Errorf("%x: the reply is\n%s", packet, m)
	}
}

func TestAppendRefusal(t *testing.T) {
	for name, tt := range parseResults {
		t.Run(name, func(t *testing.T) { checkRefusal(t, unhex(t, tt.packet)) })
	}
	checkRefusal(t, stubQuery(t, "wWw.Example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) }).Packet)
	checkRefusal(t, stubQuery(t, ".", dns.TypeA, func(*dns.Msg) {}).Packet)
}

// FuzzQuery feeds any packet. What both this package and miekg/dns read as a query
// must be the same query, and any reply to it a message.
func FuzzQuery(f *testing.F) {
	for _, v := range parseResults {
		f.Add(unhex(f, v.packet))
	}
	f.Add(stubQuery(f, "wWw.Example.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) }).Packet)
	f.Fuzz(func(t *testing.T, packet []byte) {
		checkRefusal(t, packet)
		var q Query
		if q.Parse(packet) != Serve {
			return
		}
		if n, err := ParseName(Name(q.Name()).String()); err != nil || n != Name(q.Name()) {
			t.Errorf("the qname %x came back as %x, %v", q.Name(), n, err)
		}
		var r Reply
		r.Start(nil, &q)
		r.SetRcode(Refused)
		out := r.Finish(q.Limit())
		checkWalk(t, out, &q)
		if back := unpacked(t, out); back.Id != q.ID || back.Rcode != dns.RcodeRefused || len(back.Question) != 1 {
			t.Errorf("the reply is\n%s", back)
		}
		var m dns.Msg
		if m.Unpack(packet) != nil || len(m.Question) != 1 {
			return // RDATA, which nothing here reads, may be broken
		}
		if want, ok := fieldsOfMsg(&m); ok {
			equal(t, want, fieldsOf(&q), "%x", packet)
		}
	})
}

// parseException returns why Parse may reject a packet that unpacks as a query with one
// question and few records; "" if it must accept it.
func parseException(packet []byte, m *dns.Msg) string {
	if m.Response || m.Opcode != dns.OpcodeQuery {
		return "it is a response, or another opcode than QUERY"
	}
	name, end, err := dns.UnpackDomainName(packet, HeaderLen)
	var flat [MaxName]byte
	n, flatErr := dns.PackDomainName(name, flat[:], 0, nil, false)
	if err != nil || flatErr != nil || n != end-HeaderLen {
		return "its qname is compressed, though there is nothing to point at"
	}
	if end+4 > len(packet) {
		return "it ends inside the question; objects make up what is missing"
	}
	// Objects take a message that ends behind a record for whole, whatever its
	// header claims.
	off, opts := end+4, 0
	claimed := int(u16(packet[6:])) + int(u16(packet[8:])) + int(u16(packet[10:]))
	for i := range claimed {
		if off == len(packet) {
			return "it has fewer records than it claims"
		}
		rr, next, err := dns.UnpackRR(packet, off)
		if err != nil {
			return "" // objects have read it, so this can't be
		}
		if o, ok := rr.(*dns.OPT); ok && i >= claimed-int(u16(packet[10:])) {
			if opts++; opts > 1 {
				return "it has two OPT records (RFC 6891, 6.1.1)"
			}
			if o.Hdr.Name != "." || packet[off] != 0 {
				return "its OPT record is not at the root (RFC 6891, 6.1.2)"
			}
		}
		off = next
	}
	return ""
}

// FuzzPathsParse: what objects read as a query is a query to Parse, and the same
// one. The exceptions are those of the function exception; each is a packet that no
// resolver sends.
func FuzzPathsParse(f *testing.F) {
	for _, v := range parseResults {
		f.Add(unhex(f, v.packet))
	}
	for seed := range uint64(50) {
		m := newMaker(seed)
		f.Add(m.query(f, m.names[m.IntN(len(m.names))]).Packet)
	}
	for _, option := range []dns.EDNS0{
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}},
		&dns.EDNS0_PADDING{Padding: make([]byte, 100)}, &dns.EDNS0_NSID{Code: dns.EDNS0NSID},
	} {
		f.Add(stubQuery(f, "www.example.", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, true)
			m.IsEdns0().Option = []dns.EDNS0{option}
			m.SetTsig("key.", dns.HmacSHA256, 300, 0)
			// As many records as a query may have: IXFR brings an SOA, nobody an answer.
			soa := &dns.SOA{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET}, Ns: ".", Mbox: "."}
			m.Answer, m.Ns = []dns.RR{soa}, []dns.RR{soa}
		}).Packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		var m dns.Msg
		if m.Unpack(packet) != nil || len(m.Question) != 1 || u16(packet[4:]) != 1 ||
			u16(packet[6:]) > 1 || u16(packet[8:]) > 1 || u16(packet[10:]) > 2 {
			return
		}
		reason := parseException(packet, &m)
		var q Query
		verdict := q.Parse(packet)
		if (verdict == Serve) != (reason == "") {
			t.Fatalf("verdict %d of %x; a reason to refuse it: %q", verdict, packet, reason)
		}
		if reason != "" {
			return
		}
		want, ok := fieldsOfMsg(&m)
		if !ok {
			t.Fatalf("the name %q can't be read", m.Question[0].Name)
		}
		equal(t, want, fieldsOf(&q), "%x", packet)
	})
}

func TestAppendQuery(t *testing.T) {
	name, err := ParseName("www.example")
	noError(t, err)
	tests := map[string]struct {
		like *Query
		want fields
	}{
		"of its own":       {nil, fields{RD: true}},
		"like a plain one": {stubQuery(t, "a.", dns.TypeA), fields{RD: true, AD: true}},
		"like one with CD, AD, DO": {stubQuery(t, "a.", dns.TypeA, func(m *dns.Msg) {
			m.CheckingDisabled, m.AuthenticatedData = true, true
			m.SetEdns0(512, true)
		}), fields{RD: true, CD: true, AD: true, DO: true}},
		"like one without RD": {stubQuery(t, "a.", dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false }), fields{AD: true}},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			var q Query
			if v := q.Parse(AppendQuery(nil, 77, []byte(name), TypeMX, tt.like, 1232)); v != Serve {
				t.Fatalf("verdict %d", v)
			}
			want := tt.want
			want.ID, want.Type, want.Class, want.Name, want.Labels = 77, TypeMX, ClassIN, "www.example.", 2
			want.EDNS, want.UDPSize, want.Limit, want.Question = true, 1232, 1232, len(name)+4
			equal(t, want, fieldsOf(&q), "")
		})
	}
}
