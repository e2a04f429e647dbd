package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestAddRR: records are read as they were written, with names of all kinds, and take no more space than
// miekg/dns's compression.
func TestAddRR(t *testing.T) {
	const zone = `
a.b.Z.test.   1 A     192.0.2.1
a.b.z.test.   2 CNAME c.b.z.test.
c.b.z.test.   3 MX    10 Mail.b.z.test.
c.b.z.test.   3 MX    20 mail.b.z.test.
z.test.       4 SOA   ns.z.test. host.z.test. 1 2 3 4 5
_x.z.test.    5 SRV   1 2 3 c.b.z.test.
p.other.      6 PTR   Host.Other.
d.z.test.     7 DNAME b.z.test.
.             8 NS    .
`
	var q wire.Query
	packet, err := new(dns.Msg).SetQuestion("a.b.z.test.", dns.TypeA).Pack()
	if err != nil || q.Parse(packet) != wire.Serve {
		t.Fatal(err)
	}
	var r wire.Reply
	r.Start(nil, &q)
	var known wire.Compression
	want := new(dns.Msg).SetQuestion("a.b.z.test.", dns.TypeA)
	want.Compress = true
	for rr, err := range (wire.ZoneFile{Origin: wire.Root, Path: "/x"}).Records(strings.NewReader(zone)) {
		if err != nil {
			t.Fatal(err)
		}
		r.AddRR(&known, wire.Answer, rr)
		back, _, err := dns.UnpackRR(append(append(append([]byte{}, rr.Owner...), byte(rr.Type>>8), byte(rr.Type), 0, 1, 0, 0, 0, byte(rr.TTL), byte(len(rr.Data)>>8), byte(len(rr.Data))), rr.Data...), 0)
		if err != nil {
			t.Fatal(err)
		}
		want.Answer = append(want.Answer, back)
	}
	msg := r.Finish(wire.MaxMessage)
	var got dns.Msg
	if err := got.Unpack(msg); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Answer, got.Answer, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Rdlength" }, cmp.Ignore())); diff != "" {
		t.Error(diff)
	}
	reference, err := want.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if len(msg) > len(reference) {
		t.Errorf("%d bytes, miekg/dns takes %d", len(msg), len(reference))
	}
}

// TestCanonical is the example of RFC 4034, 6.1.
func TestCanonical(t *testing.T) {
	list := []string{"example.", "a.example.", "yljkjljk.a.example.", "z.a.example.", "zabc.a.example.", "z.example.", `\001.z.example.`, "*.z.example.", `\200.z.example.`}
	var names []wire.Name
	for _, s := range list {
		n, err := wire.ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, n)
	}
	for i, a := range names {
		for j, b := range names {
			if got := wire.Canonical([]byte(a), []byte(b)); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}
