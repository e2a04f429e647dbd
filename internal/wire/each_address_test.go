package wire_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestEachAddress finds the addresses of all sections, and those in hints.
func TestEachAddress(t *testing.T) {
	parseRR := func(t *testing.T, text string) dns.RR {
		t.Helper()
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		return rr
	}
	m := new(dns.Msg).SetQuestion("a.test.", dns.TypeANY)
	m.Response = true
	for _, text := range []string{
		"a.test. 60 IN A 192.0.2.1", "a.test. 60 IN AAAA 2001:db8::1", "a.test. 60 IN TXT 192.0.2.99",
		`a.test. 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.2,192.0.2.3 ipv6hint=2001:db8::2`,
		`a.test. 60 IN SVCB 0 b.test.`,
	} {
		m.Answer = append(m.Answer, parseRR(t, text))
	}
	m.Extra = append(m.Extra, parseRR(t, "b.test. 60 IN A 192.0.2.4"), parseRR(t, `c.test. 60 IN SVCB 1 c.test. ipv4hint=192.0.2.5`))
	query := new(dns.Msg).SetQuestion("a.test.", dns.TypeANY)
	packet, err := query.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		t.Fatal("the query does not parse")
	}
	m.Id = query.Id
	reply, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := wire.ParseResponse(reply, &q)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	resp.Packed.EachAddress(func(a netip.Addr) bool { got = append(got, a.String()); return true })
	want := []string{"192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3", "2001:db8::2", "192.0.2.4", "192.0.2.5"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	calls := 0
	if n := testing.AllocsPerRun(100, func() { resp.Packed.EachAddress(func(netip.Addr) bool { calls++; return true }) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	calls = 0
	resp.Packed.EachAddress(func(netip.Addr) bool { calls++; return calls < 3 })
	if calls != 3 {
		t.Errorf("called %d times after false, want 3", calls)
	}
}

// TestReplyBody: a body makes the same reply of another query for the name.
func TestReplyBody(t *testing.T) {
	start := func(name string) (*wire.Query, *wire.Reply) {
		packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		q, r := new(wire.Query), new(wire.Reply)
		if q.Parse(packet) != wire.Serve {
			t.Fatal("the query does not parse")
		}
		r.Start(nil, q)
		return q, r
	}
	_, r := start("a.test.")
	r.SetAuthoritative()
	for i := range 300 {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 60, []byte{192, 0, byte(i / 256), byte(i)})
	}
	body := r.Body()
	want := r.Finish(wire.MaxMessage)
	q, other := start("A.Test.")
	other.SetBody(body)
	got := other.Finish(wire.MaxMessage)
	var a, b dns.Msg
	if err := a.Unpack(want); err != nil {
		t.Fatal(err)
	}
	if err := b.Unpack(got); err != nil {
		t.Fatal(err)
	}
	if b.Id != q.ID || len(b.Answer) != 300 || b.Answer[0].Header().Name != "A.Test." || !b.Authoritative {
		t.Errorf("ID %d, %d answers, the first %v", b.Id, len(b.Answer), b.Answer[0])
	}
	for i := range a.Answer {
		if a.Answer[i].(*dns.A).A.String() != b.Answer[i].(*dns.A).A.String() {
			t.Fatalf("answer %d: %v, want %v", i, b.Answer[i], a.Answer[i])
		}
	}
	if body.Size() != len(want)-wire.HeaderLen-len("\x01a\x04test\x00")-4 {
		t.Errorf("size %d of %d", body.Size(), len(want))
	}
}
