package differential

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/rig/check"

	"github.com/miekg/dns"
)

// reply makes the wire form of a reply to a query for x.test with the
// records, after the changes.
func reply(t *testing.T, change func(*dns.Msg), rrs ...string) []byte {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion("x.test.", dns.TypeA)
	q.Id = 7
	m := new(dns.Msg).SetReply(q)
	for _, text := range rrs {
		rr, err := dns.NewRR(text)
		check.NoError(t, err)
		m.Answer = append(m.Answer, rr)
	}
	if change != nil {
		change(m)
	}
	wire, err := m.Pack()
	check.NoError(t, err)
	return wire
}

// TestParseView holds what counts as a difference and what doesn't.
func TestParseView(t *testing.T) {
	const a, b = "x.test. 30 A 192.0.2.1", "x.test. 30 A 192.0.2.2"
	base := parseView(reply(t, nil, a, b), 7)
	for _, tt := range []struct {
		name string
		wire []byte
		id   uint16
		same bool
	}{
		{"the same", reply(t, nil, a, b), 7, true},
		{"another order", reply(t, nil, b, a), 7, true},
		{"uncompressed", reply(t, func(m *dns.Msg) { m.Compress = false }, a, b), 7, true},
		{"silence", nil, 7, false},
		{"half a header", reply(t, nil, a, b)[:6], 7, false},
		{"another id", reply(t, nil, a, b), 8, false},
		{"a record less", reply(t, nil, a), 7, false},
		{"a record twice", reply(t, nil, a, b, b), 7, false},
		{"another TTL", reply(t, nil, a, "x.test. 29 A 192.0.2.2"), 7, false},
		{"another case", reply(t, nil, a, "X.test. 30 A 192.0.2.2"), 7, false},
		{"another class", reply(t, nil, a, "x.test. 30 CH A 192.0.2.2"), 7, false},
		{"another address", reply(t, nil, a, "x.test. 30 A 192.0.2.3"), 7, false},
		{"another section", reply(t, func(m *dns.Msg) { m.Answer, m.Extra = m.Answer[:1], m.Answer[1:] }, a, b), 7, false},
		{"aa", reply(t, func(m *dns.Msg) { m.Authoritative = true }, a, b), 7, false},
		{"tc", reply(t, func(m *dns.Msg) { m.Truncated = true }, a, b), 7, false},
		{"ra", reply(t, func(m *dns.Msg) { m.RecursionAvailable = true }, a, b), 7, false},
		{"rcode", reply(t, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, a, b), 7, false},
		{"case of the question", reply(t, func(m *dns.Msg) { m.Question[0].Name = "X.test." }, a, b), 7, false},
		{"EDNS", reply(t, func(m *dns.Msg) { m.SetEdns0(1232, false) }, a, b), 7, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			diff := gocmp.Diff(base, parseView(tt.wire, tt.id))
			if (diff == "") != tt.same {
				t.Errorf("the same: %t, want %t; the difference is %q", diff == "", tt.same, diff)
			}
		})
	}
}

func TestParseViewHides(t *testing.T) {
	soa := func(serial string) []byte {
		return reply(t, nil, "test. 30 SOA ns.test. host.test. "+serial+" 1 2 3 4")
	}
	if diff := gocmp.Diff(parseView(soa("1"), 7), parseView(soa("2"), 7)); diff != "" {
		t.Errorf("a SOA's serial makes a difference: %s", diff)
	}
	cut := func(rr string) []byte {
		return reply(t, func(m *dns.Msg) { m.Truncated = true }, rr)
	}
	if diff := gocmp.Diff(parseView(cut("x.test. 1 A 192.0.2.1"), 7), parseView(cut("x.test. 1 A 192.0.2.2"), 7)); diff != "" {
		t.Errorf("what is left of a truncated reply makes a difference: %s", diff)
	}
}

func TestAdoptTTLs(t *testing.T) {
	at := func(ttl string) view { return parseView(reply(t, nil, "x.test. "+ttl+" A 192.0.2.1"), 7) }
	for _, tt := range []struct {
		name     string
		a, b     view
		same     bool
		duration uint32
	}{
		{"equal", at("30"), at("30"), true, 0},
		{"held by the agent", at("30"), at("28"), true, 2},
		{"held by CoreDNS", at("28"), at("30"), true, 2},
		{"lower than it can be", at("30"), at("5"), false, 2},
		{"another record", at("30"), parseView(reply(t, nil, "x.test. 30 A 192.0.2.2"), 7), false, 2},
		{"a record more", at("30"), parseView(reply(t, nil, "x.test. 30 A 192.0.2.1", "x.test. 30 A 192.0.2.2"), 7), false, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := gocmp.Diff(tt.a.adoptTTLs(tt.b, tt.duration), tt.b); (diff == "") != tt.same {
				t.Errorf("the same: %t, want %t; the difference is %q", diff == "", tt.same, diff)
			}
		})
	}
}

func TestMatchKnown(t *testing.T) {
	toNodata := &knownDifference{reason: "r", expect: func(c comparison) (view, bool) {
		v := c.view
		v.Rcode = "NOERROR"
		return v, c.name == "x."
	}}
	unneeded := &knownDifference{reason: "u", expect: func(c comparison) (view, bool) { return c.view, true }}
	table := []*knownDifference{toNodata, unneeded}
	same := func(a, b view) bool { return gocmp.Equal(a, b) }
	name, nodata, failure := view{Rcode: "NXDOMAIN"}, view{Rcode: "NOERROR"}, view{Rcode: "SERVFAIL"}
	x, y := comparison{query: query{name: "x."}, view: name}, comparison{query: query{name: "y."}, view: name}
	if matchKnown(table, y, nodata, same) || toNodata.uses.Load() > 0 {
		t.Error("an entry matches a query that it is not about")
	}
	if matchKnown(table, x, failure, same) || toNodata.uses.Load() > 0 {
		t.Error("an entry matches an answer that it doesn't ask for")
	}
	if !matchKnown(table, x, nodata, same) || toNodata.uses.Load() == 0 {
		t.Error("an entry doesn't match its own case")
	}
	if unneeded.uses.Load() > 0 {
		t.Error("an entry that changed nothing counts as used")
	}
}

// TestMatchKnownTTL: a known difference in a TTL counts in full. Here a denial holds for 5 s, the
// agent has held it for 4 s and CoreDNS for 11 s of 30 s, after 14 s of comparisons.
func TestMatchKnownTTL(t *testing.T) {
	soa := func(ttl string) view {
		return parseView(reply(t, func(m *dns.Msg) { m.Ns, m.Answer = m.Answer, nil }, "x.test. "+ttl+" SOA ns.x.test. host.x.test. 1 1800 900 604800 5"), 7)
	}
	same := func(want, got view) bool { return gocmp.Equal(want.adoptTTLs(got, 14), got) }
	c := comparison{query: query{name: "x.test.", qtype: dns.TypeA}, view: soa("19"), caches: true}
	if !matchKnown(knownTTLs(), c, soa("1"), same) {
		t.Error("the agent's TTL is not known to be right")
	}
}
