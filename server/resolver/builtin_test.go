package resolver_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// counterDesk is a server without sockets, which is asked in the name of any client.
type counterDesk struct {
	t   testing.TB
	rt  *resolver.Routes
	x   resolver.Request
	out []byte
}

func newDesk(t testing.TB, zones ...*resolver.Zone) *counterDesk {
	t.Helper()
	for _, z := range zones {
		if z.Stats == nil {
			z.Stats = resolver.NewStats()
		}
	}
	return &counterDesk{
		t: t, rt: resolver.NewRoutes(zones, resolver.NewStats()), out: make([]byte, 0, replyBuffer),
	}
}

// from has the queries that follow come from client.
func (d *counterDesk) from(client string, via resolver.Proto) *counterDesk {
	d.x.Client, d.x.Proto = netip.MustParseAddrPort(client), via
	return d
}

// serve answers packet; nil is no reply.
func (d *counterDesk) serve(packet []byte) []byte {
	d.x.Query.Packet = packet
	msg, o := serve(d.rt, &d.x, d.out)
	if o != resolver.Answered {
		msg = resume(d.rt, &d.x, o)
	}
	return msg
}

// ask answers m; nil is no reply.
func (d *counterDesk) ask(m *dns.Msg) *dns.Msg {
	d.t.Helper()
	packet, err := m.Pack()
	if err != nil {
		d.t.Fatal(err)
	}
	msg := d.serve(packet)
	if msg == nil {
		return nil
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(msg); err != nil {
		d.t.Fatalf("the reply to %s: %v", m.Question[0].String(), err)
	}
	return reply
}

// told is a reply in short: rcode, flags, and the sections one after the other.
func told(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	parts := []string{dns.RcodeToString[m.Rcode]}
	if m.Authoritative {
		parts[0] += " aa"
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var list []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				list = append(list, strings.Join(strings.Fields(strings.Replace(rr.String(), "\tIN\t", " ", 1)), " "))
			}
		}
		parts = append(parts, strings.Join(list, ", "))
	}
	text := strings.TrimRight(strings.Join(parts, " | "), " |")
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			text += fmt.Sprintf(" +%d:%s", o.Option(), o)
		}
	}
	return text
}

// asked makes a query of "NAME TYPE [call] [cd] [edns] [nsid]".
func asked(text string) *dns.Msg {
	words := strings.Fields(text)
	m := question(words[0], dns.StringToType[words[1]])
	for _, w := range words[2:] {
		if w != "cd" && m.IsEdns0() == nil {
			m.SetEdns0(1232, w == "do")
		}
		switch w {
		case "cd":
			m.CheckingDisabled = true
		case "nsid":
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
		}
	}
	return m
}

func TestLocal(t *testing.T) {
	soa := func(owner string) string {
		return owner + " 604800 SOA localhost. root.localhost. 1 0 0 0 604800"
	}
	for _, tt := range []struct{ query, want string }{
		{"localhost. A", "NOERROR | localhost. 604800 A 127.0.0.1"},
		{"LocalHost. AAAA", "NOERROR | LocalHost. 604800 AAAA ::1"},
		{"localhost. NS", "NOERROR | localhost. 604800 NS localhost."},
		{"localhost. SOA", "NOERROR | " + soa("localhost.")},
		{"localhost. MX", "NOERROR |  | " + soa("localhost.")},
		{"a.localhost. A", "NOERROR | a.localhost. 604800 A 127.0.0.1"},
		{"a.B.localhost. AAAA", "NOERROR | a.B.localhost. 604800 AAAA ::1"},
		{"a.localhost. TXT", "NOERROR |  | " + soa("a.localhost.")},
		{"localhost.example.org. A", "NOERROR | localhost.example.org. 604800 A 127.0.0.1"},
		{"LOCALHOST.example.org. TXT", "NOERROR |  | " + soa("LOCALHOST.example.org.")},
		{"0.in-addr.arpa. A", "NOERROR |  | " + soa("0.in-addr.arpa.")},
		{"127.in-addr.arpa. SOA", "NOERROR | " + soa("127.in-addr.arpa.")},
		{"255.in-addr.arpa. NS", "NOERROR | 255.in-addr.arpa. 604800 NS localhost."},
		{"255.in-addr.arpa. PTR", "NOERROR |  | " + soa("255.in-addr.arpa.")},
		{"1.0.0.127.in-addr.arpa. PTR", "NOERROR | 1.0.0.127.in-addr.arpa. 604800 PTR localhost."},
		{"1.0.0.127.in-addr.arpa. A", "NOERROR |  | " + soa("127.in-addr.arpa.")},
		{"2.0.0.127.in-addr.arpa. PTR", "NXDOMAIN |  | " + soa("127.in-addr.arpa.")},
		{"x.0.In-Addr.arpa. A", "NXDOMAIN |  | " + soa("0.In-Addr.arpa.")},
		{"xlocalhost. A", "SERVFAIL"},
		{`a\003127.in-addr.arpa. PTR`, "SERVFAIL"}, // ends in the same bytes
		{"a.localhosts. A", "SERVFAIL"},
		{"localhostx.example.org. A", "SERVFAIL"},
		{"1.in-addr.arpa. PTR", "SERVFAIL"},
		{"in-addr.arpa. PTR", "SERVFAIL"},
		{". NS", "SERVFAIL"},
	} {
		d := newDesk(t, &resolver.Zone{Name: wire.Root, Local: resolver.NewLocal(&config.Local{Prefix: true})}).from("192.0.2.1:53", resolver.UDP)
		if diff := cmp.Diff(tt.want, told(d.ask(asked(tt.query)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.query, diff)
		}
	}
	z := &resolver.Zone{Name: wire.Root, Local: resolver.NewLocal(&config.Local{})}
	d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
	for query, want := range map[string]string{"localhost.example.org. A": "SERVFAIL", "a.localhost. A": "NOERROR | a.localhost. 604800 A 127.0.0.1"} {
		if got := told(d.ask(asked(query))); got != want {
			t.Errorf("without the prefix, %s is %s, want %s", query, got, want)
		}
	}
	if n := z.Stats.Localhosts(); n != 1 {
		t.Errorf("%d names below localhost are counted", n)
	}
}

func TestAny(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Any: true, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand")}).from("192.0.2.1:53", resolver.UDP)
	for query, want := range map[string]string{
		"By.hand. ANY": `NOERROR | By.hand. 8482 HINFO "ANY obsoleted" "See RFC 8482"`,
		"nobody. ANY":  `NOERROR | nobody. 8482 HINFO "ANY obsoleted" "See RFC 8482"`,
		"by.hand. A":   `NOERROR aa | by.hand. 3600 A 192.0.2.9`,
	} {
		if got := told(d.ask(asked(query))); got != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
}

func TestWhoami(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Whoami: true})
	for _, tt := range []struct {
		client      string
		via         resolver.Proto
		query, want string
	}{
		{"192.0.2.1:5353", resolver.UDP, "Who.am.i. A", "NOERROR aa |  |  | Who.am.i. 0 A 192.0.2.1, _udp.Who.am.i. 0 SRV 0 0 5353 ."},
		{"[::ffff:192.0.2.1]:53", resolver.UDP, "who. TXT", "NOERROR aa |  |  | who. 0 A 192.0.2.1, _udp.who. 0 SRV 0 0 53 ."},
		{"[2001:db8::1]:65535", resolver.TCP, ". NS", "NOERROR aa |  |  | . 0 AAAA 2001:db8::1, _tcp. 0 SRV 0 0 65535 ."},
	} {
		if diff := cmp.Diff(tt.want, told(d.from(tt.client, tt.via).ask(asked(tt.query)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.client, diff)
		}
	}
}

// TestFinishing: what is done to replies of all steps, errors among them.
func TestFinishing(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Whoami: true, Minimal: true, NSID: "a server"}).from("192.0.2.1:53", resolver.UDP)
	const id = " +3:6120736572766572"
	for query, want := range map[string]string{
		"who. A": "NOERROR aa", "who. A edns": "NOERROR aa", "who. A do nsid": "NOERROR aa" + id, "who. A edns nsid": "NOERROR aa" + id,
	} {
		if got := told(d.ask(asked(query))); got != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
	d = newDesk(t, &resolver.Zone{Name: wire.Root, NSID: "a server"}).from("192.0.2.1:53", resolver.UDP)
	if got := told(d.ask(asked("x. A edns nsid"))); got != "SERVFAIL"+id {
		t.Errorf("an error is %s", got)
	}
	m := asked("x. A edns nsid")
	m.Question[0].Qclass = dns.ClassCHAOS
	if got := told(d.ask(m)); got != "REFUSED" {
		t.Errorf("what no zone takes is %s", got)
	}
}

// TestUnanswered: a query that no directive answers is an error in the log, also if its question was rewritten.
func TestUnanswered(t *testing.T) {
	for query, want := range map[string]string{
		"no.test. MX":   "plugin/errors: 2 no.test. MX: no next plugin found",
		"old.test. A":   "plugin/errors: 2 old.test. A: no next plugin found",
		"by.hand. A":    "",
		"by.hand. AAAA": "",
	} {
		var log bytes.Buffer
		d := newDesk(t, &resolver.Zone{
			Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Rewrite: rulesOf(t, "rewrite name old.test new.test"),
			Errors: &resolver.ErrorLog{Plain: true, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		}).from("192.0.2.1:53", resolver.UDP)
		for range 2 {
			log.Reset()
			_ = d.ask(asked(query))
			if !strings.Contains(log.String(), want) || want == "" && log.Len() > 0 {
				t.Errorf("%s: logged %q, want %q", query, &log, want)
			}
		}
	}
}

// TestOnlySetup: a block without a step is REFUSED, also for the names of a block above it, and its queries are counted as those that no
// zone takes.
func TestOnlySetup(t *testing.T) {
	z := &resolver.Zone{Name: resolvertest.ZoneName(t, "setup.test"), OnlySetup: true}
	d := newDesk(t, z, &resolver.Zone{Name: wire.Root, Whoami: true}).from("192.0.2.1:53", resolver.UDP)
	for query, want := range map[string]string{"setup.test. A": "REFUSED", "a.setup.test. AAAA": "REFUSED", "other. A": "NOERROR"} {
		if got := dns.RcodeToString[d.ask(asked(query)).Rcode]; got != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
	var sums resolver.Sums
	if z.Stats.AddTo(&sums); !reflect.DeepEqual(sums, resolver.Sums{}) {
		t.Errorf("the zone has counted %+v", sums)
	}
}

// TestGuardAllocs: none of the steps that need nobody else allocates.
func TestGuardAllocs(t *testing.T) {
	var nets []netip.Prefix
	for i := range 300 {
		nets = append(nets, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	acl := &config.ACL{Rules: []config.ACLRule{{Zones: []wire.Name{wire.Root}, Policies: []config.ACLPolicy{
		{Action: config.ACLBlock, Nets: nets}, {Action: config.ACLFilter, Types: []uint16{wire.TypeMX}}, {Action: config.ACLDrop, Types: []uint16{wire.TypeSRV}},
	}}}}
	d := newDesk(t, &resolver.Zone{
		Name: wire.Root, ACL: resolver.NewACL(acl), Local: resolver.NewLocal(&config.Local{Prefix: true}), Any: true, Whoami: true, Minimal: true, NSID: "a server",
		Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), DNS64: resolver.NewDNS64(&config.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), AllowIPv4: true}),
	})
	for _, query := range []string{
		"a.localhost. A", "localhost. SOA edns", "x. ANY do", "by.hand. A nsid edns", "by.hand. AAAA nsid edns", "by.hand. MX edns", "by.hand. SRV", "who. A",
	} {
		packet, err := asked(query).Pack()
		if err != nil {
			t.Fatal(err)
		}
		for _, client := range []string{"192.0.2.1:53", "10.0.200.7:53"} {
			d.from(client, resolver.UDP).serve(packet)
			if n := testing.AllocsPerRun(100, func() { d.serve(packet) }); n != 0 {
				t.Errorf("%s from %s allocates %v times", query, client, n)
			}
		}
	}
}

// repliesBy are the replies of z that each step wrote.
func repliesBy(z *resolver.Zone) map[string]uint64 {
	got := make(map[string]uint64)
	z.Stats.EachResponse(func(rcode, plugin string, n uint64) { got[rcode+" "+plugin] += n })
	return got
}

// guardedZones have every step that needs nobody else, and a name for each of the shapes
// of addresses.
func guardedZones(f *testing.F, dns64 bool) *counterDesk {
	z := func(name string, v *resolver.View) *resolver.Zone {
		made := &resolver.Zone{
			Name: resolvertest.ZoneName(f, name), View: v, ACL: aclOf(f, "acl blocked.test {\nblock type A\nfilter type MX\ndrop type SRV net 10.0.0.0/8\n}"),
			Local: resolver.NewLocal(&config.Local{Prefix: true}), Any: true, Whoami: true, Minimal: v != nil, NSID: "a server", Shuffle: true,
			Hosts: resolvertest.Hosts(f, true, "192.0.2.9 by.hand v4.test", "2001:db8::9 by.hand", "192.0.2.8 by.hand blocked.test"),
		}
		if dns64 {
			made.DNS64 = mapping(f, func(c *config.DNS64) { c.AllowIPv4 = v != nil })
		}
		return made
	}
	return newDesk(f, z(".", viewOf(f, "one", "id() % 2 == 0 || do()")), z(".", nil), z("blocked.test.", viewOf(f, "two", "type() != 'TXT'")))
}

// FuzzGuards: whatever comes in, what goes out is a reply to it that others can read,
// within the client's size, and dns64 changes only replies to AAAA queries.
func FuzzGuards(f *testing.F) {
	with, without := guardedZones(f, true), guardedZones(f, false)
	for _, query := range []string{
		"by.hand. A edns nsid", "by.hand. AAAA", "v4.test. AAAA do nsid", "v4.test. AAAA cd do", "blocked.test. A edns", "blocked.test. MX nsid", "x.blocked.test. SRV", "blocked.test. TXT",
		"x.blocked.test. AAAA edns", "localhost. A", "a.localhost. MX do", "1.0.0.127.in-addr.arpa. PTR", "x. ANY nsid", "who.am.i. A", ". NS",
	} {
		packet, err := asked(query).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet, false)
		f.Add(packet, true)
	}
	f.Fuzz(func(t *testing.T, packet []byte, six bool) {
		client := "10.0.0.1:53"
		if six {
			client = "[2001:db8::1]:53"
		}
		got := bytes.Clone(with.from(client, resolver.UDP).serve(bytes.Clone(packet)))
		plain := bytes.Clone(without.from(client, resolver.UDP).serve(bytes.Clone(packet)))
		var q wire.Query
		if q.Parse(packet) != wire.Serve || got == nil {
			return
		}
		var m dns.Msg
		if err := m.Unpack(got); err != nil {
			t.Fatalf("can't be read: %v\n%x", err, got)
		}
		if m.Id != q.ID || !m.Response || len(m.Question) != 1 || m.Question[0].Qtype != q.Type {
			t.Errorf("is no reply to the query:\n%s", &m)
		}
		if len(got) > q.Limit() {
			t.Errorf("%d bytes for a client that takes %d", len(got), q.Limit())
		}
		if opt := m.IsEdns0(); (opt != nil) != q.EDNS {
			t.Errorf("OPT in the query: %v, in the reply:\n%s", q.EDNS, &m)
		}
		if q.Type != wire.TypeAAAA && m.IsEdns0() == nil && len(got) != len(plain) {
			t.Errorf("dns64 made of\n%x\n%x", plain, got)
		}
	})
}
