package resolver_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestSubqueryRefresh: a popular name that only a subquery asks for is refreshed, too.
func TestSubqueryRefresh(t *testing.T) {
	var addresses atomic.Int64 // queries for A records
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Qtype == dns.TypeA {
			addresses.Add(1)
		}
		return sixless(q)
	})
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	c := cache.NewStore(1<<20, cache.Options{}).NewCache(&config.Cache{
		Success: limits, Denial: limits, Prefetch: config.Prefetch{Amount: 1, Within: time.Hour, Percent: 100},
	})
	z := &resolver.Zone{Name: wire.Root, DNS64: mapping(t, func(*config.DNS64) {}), Cache: c, Forward: resolvertest.Pool(t, b.Addr())}
	d := newDesk(t, z).from("[2001:db8::9]:53", resolver.UDP)
	for range 2 {
		if m := d.ask(question("v4.test.", dns.TypeAAAA)); len(m.Answer) != 2 {
			t.Fatalf("got %v", m)
		}
	}
	eventually(t, "the addresses to be asked for again", func() bool { return addresses.Load() == 2 })
}

// TestAliasLoop: of aliases that lead from one cluster zone to another and back the first is the
// answer.
func TestAliasLoop(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.yaml")
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {type: ExternalName, externalName: a.shop.svc.TARGET}\n"
	var zones []*resolver.Zone
	for from, to := range map[string]string{"one.local": "two.local", "two.local": "one.local"} {
		if err := os.WriteFile(file, []byte(strings.Replace(text, "TARGET", to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30, Zones: []wire.Name{resolvertest.ZoneName(t, from)}}
		view, err := kubernetes.Open(cfg, kubernetes.Options{})
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, &resolver.Zone{Name: cfg.Zones[0], Cluster: kubernetes.NewZone(view, cfg)})
	}
	d := newDesk(t, zones...).from("192.0.2.9:53", resolver.UDP)
	m := d.ask(question("a.shop.svc.one.local.", dns.TypeA))
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].Header().Rrtype != dns.TypeCNAME {
		t.Errorf("rcode %d with the records %v, want one alias", m.Rcode, m.Answer)
	}
}

// TestACLAnyNet: policies that differ only in their nets are one; with one for any net it is for
// all clients. The policies after them stay.
func TestACLAnyNet(t *testing.T) {
	for _, order := range [][2]string{{"10.0.0.0/8", "*"}, {"*", "10.0.0.0/8"}} {
		a := aclOf(t, "acl {\nblock type A net "+order[0]+"\nblock type A net "+order[1]+"\nblock type AAAA net *\n}")
		if n := a.Policies(0); n != 2 {
			t.Errorf("%v: %d policies, want 2", order, n)
		}
		for _, client := range []string{"10.0.0.1", "192.0.2.1", "2001:db8::1"} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				if a.Judge([]byte("\x01x\x00"), qtype, netip.MustParseAddr(client)) {
					t.Errorf("%v: %s is allowed type %d", order, client, qtype)
				}
			}
		}
	}
}

// longCluster is a cluster with a zone of such a length that a Service's domain fits no name.
type longCluster struct{ resolver.Cluster }

func (longCluster) ClientNamespace(netip.Addr) ([]byte, bool) { return nil, false }
func (longCluster) ClientMark() epoch.Mark                    { return epoch.Mark{} }
func (longCluster) Origins() []wire.Name {
	label := wire.Name("\x3f" + strings.Repeat("x", 63))
	return []wire.Name{label + label + label + wire.Name("\x3b"+strings.Repeat("y", 59)) + wire.Root}
}

// TestAutopathLongZone: a zone below which no Service has a name has no search path.
func TestAutopathLongZone(t *testing.T) {
	s := resolver.NewAutopath(&config.Autopath{Kubernetes: true}, longCluster{})
	if list := s.Paths(); len(list) != 0 {
		t.Errorf("paths %v", list)
	}
}

// TestViewBufsize: the largest reply is what the client says over UDP, and all that fits a message
// otherwise.
func TestViewBufsize(t *testing.T) {
	d := newDesk(t,
		&resolver.Zone{Name: wire.Root, View: viewOf(t, "stream", "bufsize() == 65535"), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 www.test")},
		&resolver.Zone{Name: wire.Root, View: viewOf(t, "small", "bufsize() == 512"), Hosts: resolvertest.Hosts(t, false, "192.0.2.2 www.test")},
	)
	for proto, want := range map[resolver.Proto]string{resolver.UDP: "192.0.2.2", resolver.TCP: "192.0.2.1"} {
		m := d.from("192.0.2.9:53", proto).ask(question("www.test.", dns.TypeA))
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("over %d: %v, want %s", proto, m.Answer, want)
		}
	}
}

// TestHINFO: a query of the type of loop probes is answered like any other where no probe is.
func TestHINFO(t *testing.T) {
	d := newDesk(t, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, false, "192.0.2.1 www.test")})
	if m := d.from("192.0.2.9:53", resolver.UDP).ask(question("www.test.", dns.TypeHINFO)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
		t.Errorf("got %v", m)
	}
}

// TestLoopWithoutUpstreams: where nothing is forwarded there is no loop to look for.
func TestLoopWithoutUpstreams(t *testing.T) {
	l, err := resolver.NewLoop(wire.Root, nil, resolver.LoopOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.Run(context.Background())
	if l.Stopped() {
		t.Error("a loop was found")
	}
}

// TestACLReversePointer: whether a client may have the name that an address has depends on the type
// of the address.
func TestACLReversePointer(t *testing.T) {
	z := &resolver.Zone{
		Name: wire.Root, ACL: aclOf(t, "acl secret.test {\nblock type AAAA net *\n}"),
		Hosts: resolvertest.Hosts(t, false, "2001:db8::1 secret.test", "192.0.2.1 secret.test"),
	}
	d := newDesk(t, z).from("192.0.2.9:53", resolver.UDP)
	for addr, want := range map[string]int{"2001:db8::1": 0, "192.0.2.1": 1} {
		name, err := dns.ReverseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if m := d.ask(question(name, dns.TypePTR)); len(m.Answer) != want {
			t.Errorf("%s: %d names, want %d: %v", addr, len(m.Answer), want, m)
		}
	}
}

// TestLoopOtherQueries: only the current probe is taken for one; before the first there is none.
func TestLoopOtherQueries(t *testing.T) {
	l, err := resolver.NewLoop(wire.Root, nil, resolver.LoopOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddr("192.0.2.9")
	var other wire.Query
	packet, err := question("www.test.", dns.TypeHINFO).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if other.Parse(packet) != wire.Serve {
		t.Fatal("no query")
	}
	if l.Observe(&other, client) {
		t.Error("before the first probe, a query is taken for one")
	}
	asked := 0
	l.Rehearse([]netip.Addr{client}, func(_ context.Context, q *wire.Query) (wire.Response, error) {
		asked++
		if l.Observe(&other, client) {
			t.Error("a query for another name is taken for the probe")
		}
		return wire.ErrorResponse(q, wire.NXDomain), nil
	})
	l.Run(t.Context())
	if asked != 1 || l.Stopped() {
		t.Errorf("%d probes, stopped %v; want one, which nothing brings back", asked, l.Stopped())
	}
}

// TestLookupCountedOnce: a look-up in a run that ends because the answer would have to wait is not
// counted; the next run does it again.
func TestLookupCountedOnce(t *testing.T) {
	b := resolvertest.StartBackend(t, sixless)
	c, pool := resolvertest.Cache(), resolvertest.Pool(t, b.Addr())
	plain := newDesk(t, &resolver.Zone{Name: wire.Root, Cache: c, Forward: pool}).from("[2001:db8::9]:53", resolver.UDP)
	plain.ask(question("v4.test.", dns.TypeAAAA)) // into the cache, without the A records
	before := c.Stats()
	z := &resolver.Zone{Name: wire.Root, Cache: c, Forward: pool, DNS64: mapping(t, func(*config.DNS64) {})}
	if m := newDesk(t, z).from("[2001:db8::9]:53", resolver.UDP).ask(question("v4.test.", dns.TypeAAAA)); len(m.Answer) != 2 {
		t.Fatalf("got %v", m)
	}
	after := c.Stats()
	if hits, misses := after.Hits.Denial-before.Hits.Denial, after.Misses-before.Misses; hits != 1 || misses != 1 {
		t.Errorf("%d hits and %d misses, want 1 and 1", hits, misses)
	}
}

// TestACLFirstOfEqualRulings: of several equally strict verdicts on a reply's names, the first one's
// zone is counted.
func TestACLFirstOfEqualRulings(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for _, line := range []string{"www.test. 60 CNAME a.one.test.", "a.one.test. 60 CNAME b.two.test.", "b.two.test. 60 A 192.0.2.1"} {
			rr, err := dns.NewRR(line)
			if err != nil {
				panic(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		return m
	})
	z := &resolver.Zone{Name: wire.Root, ACL: aclOf(t, "acl two.test {\nblock\n}\nacl one.test {\nblock\n}"), Forward: resolvertest.Pool(t, b.Addr())}
	if m := newDesk(t, z).from("192.0.2.9:53", resolver.UDP).ask(question("www.test.", dns.TypeA)); m.Rcode != dns.RcodeRefused {
		t.Errorf("got %v", m)
	}
	blocked := z.Stats.Verdicts().Blocked
	if len(blocked) != 1 || blocked[resolvertest.ZoneName(t, "one.test.")] != 1 {
		t.Errorf("blocked by zone: %v, want one.test once", blocked)
	}
}
