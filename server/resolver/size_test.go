package resolver_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestUDPSize: a reply over UDP is no larger than bufsize, or else 1,232 bytes, whatever
// the client claims to take and whatever answers; so is the size in its OPT record. What
// is longer has TC, and is whole over TCP.
func TestUDPSize(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := resolvertest.Address("192.0.2.1")(q)
		m.Answer = slices.Repeat(m.Answer, 700)
		m.Compress = true
		return m
	})
	lines := make([]string, 700)
	for i := range lines {
		lines[i] = "10.0." + itoa(i/250) + "." + itoa(i%250) + " many.hosts.test"
	}
	zones := func(bufsize uint16) []*resolver.Zone {
		return []*resolver.Zone{
			{Name: resolvertest.ZoneName(t, "hosts.test."), Hosts: resolvertest.Hosts(t, false, lines...), Bufsize: bufsize},
			{Name: resolvertest.ZoneName(t, "cached.test."), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache(), Bufsize: bufsize},
			{Name: resolvertest.ZoneName(t, "forwarded.test."), Forward: resolvertest.Pool(t, b.Addr()), Bufsize: bufsize},
		}
	}
	for _, tt := range []struct {
		bufsize, claimed uint16
		want             int // the limit
	}{
		{0, 0, 512}, {0, 100, 512}, {0, 600, 600}, {0, 1232, 1232}, {0, 1233, 1232}, {0, 65535, 1232},
		{512, 65535, 512}, {1400, 65535, 1400}, {4096, 1400, 1400}, {4096, 65535, 4096},
	} {
		d := newDesk(t, zones(tt.bufsize)...)
		for _, name := range []string{"many.hosts.test.", "many.cached.test.", "many.cached.test.", "many.forwarded.test."} {
			m := question(name, dns.TypeA)
			if tt.claimed > 0 {
				m.SetEdns0(tt.claimed, false)
			}
			packet, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			msg := d.from("192.0.2.1:53", resolver.UDP).serve(packet)
			if len(msg) > tt.want || len(msg) < tt.want-32 {
				t.Errorf("bufsize %d, claimed %d, %s: %d bytes, want nearly %d", tt.bufsize, tt.claimed, name, len(msg), tt.want)
			}
			reply := new(dns.Msg)
			if err := reply.Unpack(msg); err != nil || !reply.Truncated {
				t.Errorf("bufsize %d, claimed %d, %s: TC is not set (%v)", tt.bufsize, tt.claimed, name, err)
			}
			if opt := reply.IsEdns0(); opt != nil && opt.UDPSize() > uint16(max(tt.want, wire.MinUDP)) {
				t.Errorf("bufsize %d, claimed %d, %s: the OPT record says %d", tt.bufsize, tt.claimed, name, opt.UDPSize())
			}
			if whole := d.from("192.0.2.1:53", resolver.TCP).ask(m); whole.Truncated || len(whole.Answer) != 700 {
				t.Errorf("bufsize %d, claimed %d, %s over TCP: %d records", tt.bufsize, tt.claimed, name, len(whole.Answer))
			}
		}
		d.from("192.0.2.1:53", resolver.UDP).serve(edns(t, "many.hosts.test.", 65535))
		if want := map[bool]int{true: 65535, false: int(tt.bufsize)}[tt.bufsize == 0]; d.x.Bufsize() != want {
			t.Errorf("bufsize %d: the log says %d, want %d", tt.bufsize, d.x.Bufsize(), want)
		}
	}
}

// edns is a query for A records from a client that takes size bytes.
func edns(t *testing.T, name string, size uint16) []byte {
	t.Helper()
	m := question(name, dns.TypeA)
	m.SetEdns0(size, false)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// TestUDPSizeRefused: replies of no zone say the same size in their OPT record.
func TestUDPSizeRefused(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: resolvertest.ZoneName(t, "a.test."), Bufsize: 4096})
	for _, version := range []uint8{0, 1} {
		m := question("www.b.test.", dns.TypeA)
		m.SetEdns0(65535, false)
		m.IsEdns0().SetVersion(version)
		reply := d.from("192.0.2.1:53", resolver.UDP).ask(m)
		if got := reply.IsEdns0().UDPSize(); got != wire.SafeUDP {
			t.Errorf("%s says %d", dns.RcodeToString[reply.Rcode], got)
		}
	}
}

// TestUDPSizeOnNode: a client on the node gets what it claims to take, up to `bufsize` and what a datagram holds; the others
// don't.
func TestUDPSizeOnNode(t *testing.T) {
	lines := make([]string, 4096)
	for i := range lines {
		lines[i] = "10.0." + itoa(i/250) + "." + itoa(i%250) + " many.hosts.test"
	}
	for _, tt := range []struct {
		client           string
		bufsize, claimed uint16
		want             int
	}{
		{"127.0.0.1:53", 0, 0, 512}, {"127.0.0.1:53", 0, 1200, 1200}, {"127.0.0.1:53", 0, 8192, 8192}, {"127.0.0.1:53", 0, 65535, 65507},
		{"[::1]:53", 0, 8192, 8192}, {"[::ffff:127.0.0.1]:53", 0, 8192, 8192}, {"169.254.20.10:53", 0, 8192, 8192}, {"[fe80::1%eth0]:53", 0, 8192, 8192},
		{"10.244.1.7:53", 0, 8192, 8192}, {"10.244.2.7:53", 0, 8192, 1232}, {"192.0.2.1:53", 0, 8192, 1232}, {"[2001:db8::1]:53", 0, 65535, 1232},
		{"127.0.0.1:53", 1232, 8192, 1232}, {"127.0.0.1:53", 512, 8192, 512}, {"192.0.2.1:53", 8192, 65535, 8192}, {"192.0.2.1:53", 65535, 65535, 65507},
	} {
		d := newDesk(t, &resolver.Zone{Name: resolvertest.ZoneName(t, "hosts.test."), Hosts: resolvertest.Hosts(t, false, lines...), Bufsize: tt.bufsize})
		d.rt.OnNode = netip.MustParsePrefix("10.244.1.0/24").Contains
		m := question("many.hosts.test.", dns.TypeA)
		if tt.claimed > 0 {
			m.SetEdns0(tt.claimed, false)
		}
		packet, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if msg := d.from(tt.client, resolver.UDP).serve(packet); len(msg) > tt.want || len(msg) < tt.want-256 {
			t.Errorf("%s, bufsize %d, claimed %d: %d bytes, want nearly %d", tt.client, tt.bufsize, tt.claimed, len(msg), tt.want)
		}
	}
}

// TestRecursionAvailable: RA says that the block forwards.
func TestRecursionAvailable(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.66"))
	for _, forwards := range []bool{false, true} {
		z := &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Local: resolver.NewLocal(new(config.Local))}
		if forwards {
			z.Forward = resolvertest.Pool(t, b.Addr())
		}
		d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
		for _, name := range []string{"by.hand.", "localhost.", "x.test."} {
			if reply := d.ask(question(name, dns.TypeA)); reply.RecursionAvailable != forwards {
				t.Errorf("%s, forwards %v: %v", name, forwards, reply)
			}
		}
	}
}

// TestANY: the type ANY gets one RRset of a name in hosts, and what an upstream answers. The class ANY gets what IN has.
func TestANY(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := resolvertest.Address("192.0.2.1")(q)
		txt := &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{"x"}}
		a := &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: []byte{192, 0, 2, 1}}
		m.Answer = []dns.RR{a, txt}
		m.Extra = append(m.Extra, txt)
		return m
	})
	for _, cached := range []bool{false, true} {
		z := &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand", "2001:db8::9 six.hand"), Forward: resolvertest.Pool(t, b.Addr())}
		if cached {
			z.Cache = resolvertest.Cache()
		}
		d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
		for name, want := range map[string]uint16{"by.hand.": dns.TypeA, "six.hand.": dns.TypeAAAA, "9.2.0.192.in-addr.arpa.": dns.TypePTR, "x.test.": dns.TypeA} {
			for range 2 {
				q := question(name, dns.TypeANY)
				q.Question[0].Qclass = dns.ClassANY
				reply := d.ask(q)
				answers, extra := 1, 0
				if name == "x.test." {
					answers, extra = 2, 1
				}
				if len(reply.Answer) != answers || reply.Answer[0].Header().Rrtype != want || len(reply.Extra) != extra || reply.Question[0].Qclass != dns.ClassANY {
					t.Errorf("%s, cached %v: %v", name, cached, reply)
				}
			}
		}
	}
}
