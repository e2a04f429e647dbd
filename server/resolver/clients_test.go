package resolver_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// countedDesk is a desk whose queries are counted by client: with the cluster of manifests, a hosts table,
// and an upstream that knows the names below example.org.
func countedDesk(t testing.TB) *counterDesk {
	t.Helper()
	up := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		if dns.IsSubDomain("example.org.", q.Question[0].Name) {
			return fakedns.Address(q, 60, "192.0.2.1")
		}
		return new(dns.Msg).SetRcode(q, dns.RcodeNameError)
	})
	d := newDesk(t,
		&resolver.Zone{
			Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cluster: newPartial(t, "cluster.local"),
			Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, up.Addr()),
		},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "acl.test"), Whoami: true, ACL: aclOf(t, "acl {\ndrop net 192.0.2.8\n}")},
	)
	d.rt.Clients = clients.New(clients.Options{})
	d.rt.Search = []wire.Name{resolvertest.ZoneName(t, "corp.test")}
	return d
}

// TestClientCounts: each query is counted for its client once, with its result, with what answered it, and
// as waste if only a search path makes its name.
func TestClientCounts(t *testing.T) {
	d := countedDesk(t)
	for i, step := range []struct {
		name string
		want clients.Counts
	}{
		{"web.shop.svc.cluster.local.", clients.Counts{NoError: 1, Hits: 1}},
		{"nosuch.shop.svc.cluster.local.", clients.Counts{NXDomain: 1, Hits: 1}},
		{"www.example.com.shop.svc.cluster.local.", clients.Counts{NXDomain: 1, Hits: 1, Waste: 1}},
		{"www.example.com.svc.cluster.local.", clients.Counts{NXDomain: 1, Hits: 1, Waste: 1}},
		{"www.example.com.cluster.local.", clients.Counts{NXDomain: 1, Hits: 1, Waste: 1}},
		{"by.hand.", clients.Counts{NoError: 1, Hits: 1}},
		{"www.example.org.", clients.Counts{NoError: 1, Upstream: 1}},
		{"www.example.org.", clients.Counts{NoError: 1, Hits: 1}},
		{"out.other.svc.cluster.local.", clients.Counts{NoError: 1, Hits: 1}}, // an alias of it
		{"nosuch.test.", clients.Counts{NXDomain: 1, Upstream: 1}},
		{"www.example.com.corp.test.", clients.Counts{NXDomain: 1, Upstream: 1, Waste: 1}},
		{"nosuch.corp.test.", clients.Counts{NXDomain: 1, Upstream: 1}},
		{"corp.test.", clients.Counts{NXDomain: 1, Upstream: 1}},
		{"a.acl.test.", clients.Counts{NoError: 1, Hits: 1}},
	} {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 53)
		d.from(client.String(), resolver.UDP).ask(question(step.name, dns.TypeA))
		checkClient(t, d, client.Addr(), step.name, step.want)
	}
}

// checkClient compares what is counted for client with want.
func checkClient(t *testing.T, d *counterDesk, client netip.Addr, name string, want clients.Counts) {
	t.Helper()
	for _, c := range d.rt.Clients.Report(clients.Pods, clients.Minute).Clients {
		if len(c.Addrs) > 0 && c.Addrs[0] == client {
			if diff := cmp.Diff(want, c.Total, cmpopts.IgnoreFields(clients.Counts{}, "Slow")); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			return
		}
	}
	t.Errorf("%s: the client is not counted", name)
}

// TestClientTruncated: truncated replies are counted, with whether the client would have taken more, and no longer as
// unfollowed once the client has asked over a connection.
func TestClientTruncated(t *testing.T) {
	up := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for range 6 {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{strings.Repeat("x", 250)}})
		}
		return m
	})
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, up.Addr())})
	d.rt.Clients = clients.New(clients.Options{})
	offer := func(size uint16) *dns.Msg {
		q := question("long.test.", dns.TypeTXT)
		return q.SetEdns0(size, false)
	}
	for i, step := range []struct {
		query            *dns.Msg
		via              resolver.Proto
		want             clients.Counts
		unfollowed, caps uint64
	}{
		{question("long.test.", dns.TypeTXT), resolver.UDP, clients.Counts{NoError: 1, Truncated: 1}, 1, 0},
		{offer(1000), resolver.UDP, clients.Counts{NoError: 2, Truncated: 2}, 2, 0},
		{offer(4096), resolver.UDP, clients.Counts{NoError: 3, Truncated: 3, Capped: 1}, 3, 1},
		{question("long.test.", dns.TypeTXT), resolver.TCP, clients.Counts{NoError: 4, Truncated: 3, Capped: 1, Stream: 1}, 0, 0},
		{question("long.test.", dns.TypeTXT), resolver.UDP, clients.Counts{NoError: 5, Truncated: 4, Capped: 1, Stream: 1}, 0, 0},
	} {
		d.from("192.0.2.1:53", step.via).ask(step.query)
		c := d.rt.Clients.Report(clients.Pods, clients.Minute).Clients[0]
		if diff := cmp.Diff(step.want, c.Total, cmpopts.IgnoreFields(clients.Counts{}, "Slow", "Hits", "Upstream")); diff != "" || c.Unfollowed != step.unfollowed || c.UnfollowedCapped != step.caps {
			t.Errorf("query %d: %d and %d unfollowed, want %d and %d\n%s", i, c.Unfollowed, c.UnfollowedCapped, step.unfollowed, step.caps, diff)
		}
	}
}

// TestClientWithoutReply: a query that is dropped, and one for which there is no place to wait in, are
// counted.
func TestClientWithoutReply(t *testing.T) {
	d := countedDesk(t)
	dropped := netip.MustParseAddr("192.0.2.8")
	d.from("192.0.2.8:53", resolver.TCP).ask(question("a.acl.test.", dns.TypeA))
	checkClient(t, d, dropped, "dropped", clients.Counts{Other: 1, Hits: 1, Stream: 1})

	d.from("10.0.0.1:53", resolver.UDP)
	packet, err := question("new.example.org.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	d.x.Query.Packet = packet
	if _, o := serve(d.rt, &d.x, d.out); o == resolver.Answered {
		t.Fatal("the query does not have to wait")
	}
	d.x.Reject()
	checkClient(t, d, netip.MustParseAddr("10.0.0.1"), "shed", clients.Counts{ServFail: 1, Shed: 1, Limited: [6]uint64{clients.ReasonPlaces: 1}})
}

// TestClientAllocs: counting by client allocates nothing, for hits as for names that don't exist, and for slow queries.
// There are more queries than samples in a buffer.
func TestClientAllocs(t *testing.T) {
	d := countedDesk(t)
	for _, slow := range []time.Duration{0, time.Second} {
		for _, name := range []string{"www.example.org.", "web.shop.svc.cluster.local.", "by.hand.", "nosuch.shop.svc.cluster.local.", "www.example.com.svc.cluster.local."} {
			d.from("10.0.0.1:53", resolver.UDP)
			packet, err := question(name, dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			d.serve(packet)
			if n := testing.AllocsPerRun(200, func() {
				d.x.Arrival = clock.Now() - slow
				d.serve(packet)
			}); n != 0 {
				t.Errorf("%s after %v: %v allocations", name, slow, n)
			}
		}
	}
}

// BenchmarkClients is the cost of a hit, and of a name that a search path has made, without and with
// counting by client.
func BenchmarkClients(b *testing.B) {
	d := countedDesk(b)
	d.from("10.0.0.1:53", resolver.UDP)
	table := d.rt.Clients
	for _, name := range []string{"www.example.org.", "example.com.shop.svc.cluster.local."} {
		packet, err := question(name, dns.TypeA).Pack()
		if err != nil {
			b.Fatal(err)
		}
		d.serve(packet)
		for _, on := range []string{"off", "on"} {
			b.Run(name+"/"+on, func(b *testing.B) {
				if d.rt.Clients = nil; on == "on" {
					d.rt.Clients = table
				}
				b.ReportAllocs()
				for b.Loop() {
					d.x.Arrival = clock.Now()
					d.serve(packet)
				}
			})
		}
	}
}
