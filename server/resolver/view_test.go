package resolver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

func viewOf(t testing.TB, name string, expressions ...string) *resolver.View {
	t.Helper()
	text := ". {\nview " + name + " {\n"
	for _, e := range expressions {
		text += "expr " + e + "\n"
	}
	c, err := config.Parse(config.Source{Text: []byte(text + "}\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	return resolver.NewView(c.Blocks[0].View, netip.MustParseAddrPort("192.0.2.53:53"))
}

// split is three blocks for one zone and one for the zone above.
func split(t testing.TB) *counterDesk {
	zone := resolvertest.ZoneName(t, "a.test.")
	return newDesk(t,
		&resolver.Zone{Name: zone, View: viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8')", "type() in ['A', 'AAAA', 'DS']"), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 www.a.test")},
		&resolver.Zone{Name: zone, View: viewOf(t, "large", "proto() == 'tcp' || do() && bufsize() == 1232"), Hosts: resolvertest.Hosts(t, false, "192.0.2.2 www.a.test")},
		&resolver.Zone{Name: zone, View: viewOf(t, "self", "server_ip() + ':' + server_port() == client_ip() + ':' + port()"), Hosts: resolvertest.Hosts(t, false, "192.0.2.3 www.a.test")},
		&resolver.Zone{Name: wire.Root, View: viewOf(t, "named", "name() startsWith 'www.' and size() > 20 and class() == 'IN' and opcode() == 0"), Hosts: resolvertest.Hosts(t, false, "192.0.2.4 www.a.test")},
	)
}

func TestView(t *testing.T) {
	for _, tt := range []struct {
		client string
		via    resolver.Proto
		query  string
		want   string
	}{
		{"10.0.0.1:53", resolver.UDP, "www.a.test. A", "NOERROR aa | www.a.test. 3600 A 192.0.2.1"},
		{"[::ffff:10.0.0.1]:53", resolver.TCP, "WWW.a.test. A", "NOERROR aa | WWW.a.test. 3600 A 192.0.2.1"},
		{"192.0.2.9:53", resolver.TCP, "www.a.test. A", "NOERROR aa | www.a.test. 3600 A 192.0.2.2"},
		{"192.0.2.9:53", resolver.UDP, "www.a.test. A do", "NOERROR aa | www.a.test. 3600 A 192.0.2.2"},
		{"192.0.2.53:53", resolver.UDP, "www.a.test. A edns", "NOERROR aa | www.a.test. 3600 A 192.0.2.3"},
		{"192.0.2.53:54", resolver.UDP, "www.a.test. A edns", "NOERROR aa | www.a.test. 3600 A 192.0.2.4"},
		{"10.0.0.1:53", resolver.UDP, "www.a.test. MX", "NOERROR aa"},
		{"10.0.0.1:53", resolver.UDP, "x.a.test. MX", "REFUSED"},
		{"10.0.0.1:53", resolver.UDP, "www. A", "SERVFAIL"},
		{"10.0.0.1:53", resolver.UDP, ". A", "REFUSED"},
		{"10.0.0.1:53", resolver.UDP, "www.a.test. DS", "NOERROR aa"},
	} {
		if got := told(split(t).from(tt.client, tt.via).ask(asked(tt.query))); got != tt.want {
			t.Errorf("%s from %s by %s is %s, want %s", tt.query, tt.client, tt.via, got, tt.want)
		}
	}
}

// TestViewOrder: a zone without a view takes what comes to it, and hides those behind.
func TestViewOrder(t *testing.T) {
	pods := func() *resolver.Zone {
		return &resolver.Zone{Name: wire.Root, View: viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8')"), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 www.a.test")}
	}
	all := func() *resolver.Zone {
		return &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, "192.0.2.2 www.a.test")}
	}
	for name, tt := range map[string]struct {
		zones []*resolver.Zone
		want  string
	}{
		"in front": {[]*resolver.Zone{pods(), all()}, "NOERROR aa | www.a.test. 3600 A 192.0.2.1"},
		"behind":   {[]*resolver.Zone{all(), pods()}, "NOERROR aa | www.a.test. 3600 A 192.0.2.2"},
	} {
		d := newDesk(t, tt.zones...).from("10.0.0.1:53", resolver.UDP)
		if got := told(d.ask(asked("www.a.test. A"))); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		n := 0
		for z := range d.rt.Zones() {
			n++
			z.Stats.EachResponse(func(string, string, uint64) {
				if z.Hosts != d.x.Zone().Hosts {
					t.Errorf("%s: the reply is counted for another zone", name)
				}
			})
		}
		if n != 2 {
			t.Errorf("%s: %d zones", name, n)
		}
	}
}

// TestViewWithin: what a query leads to is in its client's view, too.
func TestViewWithin(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.77"))
	d := newDesk(t,
		&resolver.Zone{Name: resolvertest.ZoneName(t, "lb.test."), View: viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8') && proto() == 'tcp' && id() == 4242"), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 lb.test")},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "lb.test."), Forward: resolvertest.Pool(t, b.Addr())},
		&resolver.Zone{Name: wire.Root, External: &outside{name: "out.test.", outcome: kubernetes.Alias}},
	)
	for client, want := range map[string]string{"10.0.0.1:53": "192.0.2.1", "192.0.2.9:53": "192.0.2.77"} {
		m := question("out.test.", dns.TypeA)
		m.Id = 4242
		r := d.from(client, resolver.TCP).ask(m)
		if len(r.Answer) != 2 || r.Answer[1].(*dns.A).A.String() != want {
			t.Errorf("%s gets %v, want %s", client, r.Answer, want)
		}
	}
}

// TestViewLoop: a probe that comes back is known whichever view takes it.
func TestViewLoop(t *testing.T) {
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	l := newLoop(t, resolvertest.Pool(t, addr), new(strings.Builder), fromServers)
	z := &resolver.Zone{Name: wire.Root, View: viewOf(t, "none", "client_ip() == '192.0.2.1'"), Stats: resolver.NewStats(), Loop: l, Forward: resolvertest.Pool(t, addr)}
	s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
	rt := resolver.NewRoutes([]*resolver.Zone{{Name: wire.Root, View: viewOf(t, "all"), Stats: resolver.NewStats()}, z}, resolver.NewStats())
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: rt}}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	watch(t, l)
	eventually(t, "forwarding to stop", l.Stopped)
}

func BenchmarkView(b *testing.B) {
	d := split(b).from("10.0.0.1:53", resolver.UDP)
	packet, err := asked("www.a.test. A").Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		d.serve(packet)
	}
}

// TestViewBackward: a client for whose query for a name there is no block is not told the name by PTR; one whose block
// forwards cluster names to the cluster's own DNS is.
func TestViewBackward(t *testing.T) {
	p := newPartial(t, "cluster.local", "in-addr.arpa")
	pods := func() *resolver.View { return viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8')") }
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.9"))
	pool := resolvertest.Pool(t, b.Addr())
	reverse := func() *resolver.Zone {
		return &resolver.Zone{Name: resolvertest.ZoneName(t, "in-addr.arpa."), Cluster: p}
	}
	cluster := func() *resolver.Zone {
		return &resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local."), View: pods(), Cluster: p}
	}
	const told1, hidden1 = "NOERROR aa | 9.0.96.10.in-addr.arpa. 30 PTR web.shop.svc.cluster.local.", "NXDOMAIN"
	for name, tt := range map[string]struct {
		others          *resolver.Zone
		inside, outside string
	}{
		"no block":          {nil, told1, hidden1},
		"another upstream":  {&resolver.Zone{Name: wire.Root, Forward: pool}, told1, hidden1},
		"the cluster's DNS": {&resolver.Zone{Name: wire.Root, Forward: pool, ClusterDNS: func(*upstream.Pool) bool { return true }}, told1, told1},
		"its own block":     {&resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local."), Cluster: p}, told1, told1},
	} {
		zones := []*resolver.Zone{cluster(), reverse()}
		if tt.others != nil {
			zones = append(zones, tt.others)
		}
		d := newDesk(t, zones...)
		for client, want := range map[string]string{"10.0.0.1:53": tt.inside, "192.0.2.1:53": tt.outside} {
			for _, via := range []resolver.Proto{resolver.UDP, resolver.TCP} {
				if got := told(d.from(client, via).ask(asked("9.0.96.10.in-addr.arpa. PTR"))); got != want {
					t.Errorf("%s: %s by %s gets %s, want %s", name, client, via, got, want)
				}
			}
		}
	}
}
