package resolver_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Clients: a pod without an IPv6 address, one with both, and an address of no known pod.
const ipv4Pod, dualPod, noPod = "10.0.0.1", "10.0.0.2", "10.0.0.3"

// families knows ipv4Pod and dualPod. Its counter is in a table whose indexes begin at base.
func families(base uint32) *podrange.Ranges {
	const bits = 4
	r := &podrange.Ranges{Epochs: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), base, bits)}
	r.SetPod(netip.MustParseAddr(ipv4Pod), true, true)
	r.SetPod(netip.MustParseAddr(dualPod), true, false)
	return r
}

// hinting is an upstream with addresses of both families for each name below test., and hints in HTTPS and SVCB records.
func hinting(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable, m.Compress, m.AuthenticatedData = true, true, true
	name := q.Question[0].Name
	var lines []string
	switch q.Question[0].Qtype {
	case dns.TypeA:
		lines = []string{" 60 A 192.0.2.1"}
	case dns.TypeAAAA:
		lines = []string{" 60 AAAA 2001:db8::1"}
	case dns.TypeHTTPS:
		lines = []string{" 60 HTTPS 1 b.test. alpn=h2 ipv4hint=192.0.2.2 ipv6hint=2001:db8::2 ech=AAAA", " 60 HTTPS 2 . alpn=h3"}
	case dns.TypeSVCB:
		lines = []string{" 60 SVCB 1 b.test. mandatory=ipv6hint ipv6hint=2001:db8::2", " 60 SVCB 2 b.test. ipv6hint=2001:db8::3"}
	}
	for _, line := range lines {
		rr, err := dns.NewRR(name + line)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	if q.Question[0].Qtype == dns.TypeHTTPS {
		m.Extra = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "b.test.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: []byte{192, 0, 2, 2}}}
	}
	return m
}

const (
	withoutAAAA = "NOERROR |  | . 30 SOA aaaa.auto.invalid. nobody.invalid. 1 3600 1200 604800 30"
	withAAAA    = "NOERROR | a.test. 60 AAAA 2001:db8::1"
	withHint    = `NOERROR | a.test. 60 HTTPS 1 b.test. alpn="h2" ipv4hint="192.0.2.2" ech="AAAA" ipv6hint="2001:db8::2", a.test. 60 HTTPS 2 . alpn="h3" |  | b.test. 60 A 192.0.2.2`
	withoutHint = `NOERROR | a.test. 60 HTTPS 1 b.test. alpn="h2" ipv4hint="192.0.2.2" ech="AAAA", a.test. 60 HTTPS 2 . alpn="h3" |  | b.test. 60 A 192.0.2.2`
)

// TestAAAA: what each kind of client gets, the first time and from the cache. No upstream is asked for what a pod can't use.
func TestAAAA(t *testing.T) {
	for _, tt := range []struct{ query, ipv4, others string }{
		{"a.test. AAAA", withoutAAAA, withAAAA},
		{"a.test. A", "NOERROR | a.test. 60 A 192.0.2.1", "NOERROR | a.test. 60 A 192.0.2.1"},
		{"a.test. AAAA edns", withoutAAAA, withAAAA},
		{"a.test. AAAA do", withAAAA, withAAAA},
		{"a.test. AAAA cd", withAAAA, withAAAA},
		{"a.test. HTTPS", withoutHint, withHint},
		{"a.test. HTTPS do", withHint, withHint},
		{"a.test. SVCB", `NOERROR | a.test. 60 SVCB 1 b.test. mandatory="ipv6hint" ipv6hint="2001:db8::2", a.test. 60 SVCB 2 b.test.`,
			`NOERROR | a.test. 60 SVCB 1 b.test. mandatory="ipv6hint" ipv6hint="2001:db8::2", a.test. 60 SVCB 2 b.test. ipv6hint="2001:db8::3"`},
		{"x.kept.test. AAAA", "NOERROR | x.kept.test. 60 AAAA 2001:db8::1", "NOERROR | x.kept.test. 60 AAAA 2001:db8::1"},
		{"by.hand. AAAA", withoutAAAA, "NOERROR aa | by.hand. 3600 AAAA 2001:db8::9"},
		{"four.hand. AAAA", "NOERROR aa", "NOERROR aa"},
		{"a.localhost. AAAA", "NOERROR | a.localhost. 604800 AAAA ::1", "NOERROR | a.localhost. 604800 AAAA ::1"},
		{"a.resolver.arpa. AAAA", "NOERROR aa |  | resolver.arpa. 10800 SOA resolver.arpa. nobody.invalid. 1 3600 1200 604800 10800",
			"NOERROR aa |  | resolver.arpa. 10800 SOA resolver.arpa. nobody.invalid. 1 3600 1200 604800 10800"},
	} {
		b := resolvertest.StartBackend(t, hinting)
		z := &resolver.Zone{
			Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr()), Local: resolver.NewLocal(&config.Local{}),
			Hosts: resolvertest.Hosts(t, true, "2001:db8::9 by.hand", "192.0.2.9 four.hand"),
			AAAA:  resolver.NewAAAA(&config.AAAA{Except: []wire.Name{resolvertest.ZoneName(t, "kept.test.")}}, families(1)),
		}
		for i, client := range []string{ipv4Pod, dualPod, ipv4Pod, noPod, "::ffff:" + ipv4Pod, dualPod} {
			want := tt.others
			if strings.HasSuffix(client, ipv4Pod) {
				want = tt.ipv4
			}
			d := newDesk(t, z)
			d.x.Client = netip.AddrPortFrom(netip.MustParseAddr(client), 4242)
			q := asked(tt.query)
			q.AuthenticatedData = true
			m := d.ask(q)
			if got := told(m); got != want {
				t.Errorf("%s from %s: %s\nwant %s", tt.query, client, got, want)
			}
			if changed := want != tt.others; changed && m.AuthenticatedData {
				t.Errorf("%s from %s: a changed answer has AD", tt.query, client)
			}
			if n := len(b.Asked()); i == 0 && tt.ipv4 == withoutAAAA && n > 0 {
				t.Errorf("%s from %s: the upstream is asked %d times", tt.query, client, n)
			}
		}
	}
}

// TestAAAAWithoutUpstream: nothing is made up in place of an error, and a zone without the directive gives each client the same.
func TestAAAAWithoutUpstream(t *testing.T) {
	z := &resolver.Zone{Name: wire.Root, AAAA: resolver.NewAAAA(&config.AAAA{}, families(1))}
	if got := told(newDesk(t, z).from(ipv4Pod+":53", resolver.UDP).ask(asked("a.test. AAAA"))); got != "SERVFAIL" {
		t.Errorf("without an upstream %s", got)
	}
	b := resolvertest.StartBackend(t, hinting)
	plain := &resolver.Zone{Name: resolvertest.ZoneName(t, "test."), Forward: resolvertest.Pool(t, b.Addr())}
	if got := told(newDesk(t, z, plain).from(ipv4Pod+":53", resolver.UDP).ask(asked("a.test. AAAA"))); got != withAAAA {
		t.Errorf("in another block %s", got)
	}
}

// dualStack is a view with a Service that has addresses of both families, and one that is an alias.
func dualStack(t *testing.T, epochs *epoch.Table) *kubernetes.Zone {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7, 'fd00::7']}\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {type: ExternalName, externalName: a.test}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30, Zones: []wire.Name{resolvertest.ZoneName(t, "cluster.local."), resolvertest.ZoneName(t, "ip6.arpa.")}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{Epochs: epochs})
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewZone(view, cfg)
}

// TestAAAACluster: a Service's IPv6 address is withheld with the SOA record of the cluster's zone; a name that does not exist is
// NXDOMAIN for every client, and so copied for all.
func TestAAAACluster(t *testing.T) {
	const bits = 4
	pods := families(cachedBase) // another table: in the cluster's, a Service may have the same counter
	view := epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1, bits)
	z := &resolver.Zone{Name: wire.Root, Cluster: dualStack(t, view), AAAA: resolver.NewAAAA(&config.AAAA{}, pods)}
	d := newDesk(t, z).from(ipv4Pod+":53", resolver.UDP)
	d.x.Sources = new(resolver.ReplySources)
	const name = "web.shop.svc.cluster.local."
	if m := d.ask(asked(name + " AAAA")); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 || len(m.Ns) != 1 || m.Ns[0].Header().Name != "cluster.local." {
		t.Errorf("a pod without IPv6 gets %v", m)
	}
	if c, ok := d.copied(asked(name + " AAAA")); !ok || !c.Clients.Family.IPv4Only || c.Mark.Serial == 0 || len(c.More) != 1 {
		t.Errorf("copied %t as %+v", ok, c)
	}
	for _, query := range []string{name + " A", "none.shop.svc.cluster.local. AAAA"} {
		if c, ok := d.copied(asked(query)); !ok || !c.Clients.IsAll() || len(c.More) != 0 {
			t.Errorf("%s: copied %t as %+v", query, ok, c)
		}
	}
	if c, ok := d.from(dualPod+":53", resolver.UDP).copied(asked(name + " AAAA")); !ok || c.Clients.IsAll() || c.Clients.Family.IPv4Only {
		t.Errorf("of the other pod: copied %t as %+v", ok, c)
	}
	if got := told(d.ask(asked(name + " AAAA"))); !strings.Contains(got, "fd00::7") {
		t.Errorf("a pod with IPv6 gets %s", got)
	}
}

// copyWorld is a zone whose answers can be copied, of an upstream with addresses of both families.
func copyWorld(t testing.TB) (*counterDesk, *podrange.Ranges) {
	const bits = 4
	store := cache.NewStore(1<<20, cache.Options{Epochs: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), cachedBase, bits)})
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	pods := families(1)
	z := &resolver.Zone{
		Name: wire.Root, Cache: store.NewCache(&config.Cache{Success: limits, Denial: limits}), Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, hinting).Addr()),
		AAAA: resolver.NewAAAA(&config.AAAA{}, pods),
	}
	d := newDesk(t, z)
	d.x.Sources = new(resolver.ReplySources)
	return d, pods
}

// TestAAAACopies: a copy of a reply that depends on the client's family is for clients of the same family, as long as no pod
// gets another one. Others are for all clients.
func TestAAAACopies(t *testing.T) {
	d, pods := copyWorld(t)
	group := func(client, query string) (resolver.Reusable, bool) {
		d.x.Client = netip.MustParseAddrPort(client + ":53")
		d.ask(asked(query))
		return d.copied(asked(query))
	}
	for query, grouped := range map[string]bool{"a.test. AAAA": true, "a.test. HTTPS": true, "a.test. A": false, "a.test. AAAA do": false, "a.test. TXT": false} {
		var got []resolver.ClientFamily
		for _, client := range []string{ipv4Pod, dualPod, noPod} {
			c, ok := group(client, query)
			if !ok || c.Clients.IsAll() == grouped {
				t.Errorf("%s from %s: copied %t for %+v", query, client, ok, c.Clients)
			}
			got = append(got, c.Clients.Family)
			if !grouped {
				continue
			}
			watched := slices.ContainsFunc(append(c.More, c.Mark), func(m epoch.Mark) bool { return pods.Epochs.Has(m) && m.Value == c.Clients.Family.Mark.Value })
			if !watched || !c.FromCluster {
				t.Errorf("%s from %s: the copy does not end when a pod gets another family: %+v", query, client, c)
			}
		}
		if got[1] != got[2] || (got[0] != got[1]) != grouped {
			t.Errorf("%s: the families are %+v", query, got)
		}
	}
	c, _ := group(ipv4Pod, "a.test. AAAA")
	before := pods.Epochs.Any()
	pods.SetPod(netip.MustParseAddr(ipv4Pod), true, false)
	if pods.Mark() == c.Clients.Family.Mark || pods.Epochs.Any() == before {
		t.Error("the mark has not moved with the family of a pod")
	}
	if now, ok := group(ipv4Pod, "a.test. AAAA"); !ok || now.Clients.Family.IPv4Only || now.Clients.Family == c.Clients.Family {
		t.Errorf("afterwards copied %t for %+v", ok, now.Clients)
	}
	if got := told(d.ask(asked("a.test. AAAA"))); got != withAAAA {
		t.Errorf("afterwards it gets %s", got)
	}
	mark := pods.Mark()
	pods.SetPod(netip.MustParseAddr("10.0.0.77"), true, false)
	if pods.Mark() != mark {
		t.Error("a pod with IPv6 addresses ends the copies")
	}
}

// TestAAAASearchPath: along a client's search path the reply depends on the family if one of its parts does.
func TestAAAASearchPath(t *testing.T) {
	w := newSearchWorld(t, nil)
	pods := families(5 * cachedBase)
	pods.SetPod(shopper, true, true)
	w.zone.AAAA = resolver.NewAAAA(&config.AAAA{}, pods)
	w.rt = resolver.NewRoutes([]*resolver.Zone{w.zone}, resolver.NewStats())
	const name = "www.example.org" + inShop
	got, ok := w.copyFor(shopper, name, dns.TypeAAAA)
	if !ok || !got.Clients.Family.IPv4Only || string(got.Clients.Namespace) != "\x04shop" {
		t.Errorf("copied %t for %+v", ok, got.Clients)
	}
	if m := w.ask(question(name, dns.TypeAAAA)); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 || len(m.Ns) != 1 {
		t.Errorf("the reply is %v", m)
	}
	if got, ok := w.copyFor(shopper, name, dns.TypeA); !ok || string(got.Clients.Namespace) != "\x04shop" || slices.ContainsFunc(got.More, pods.Epochs.Has) {
		t.Errorf("for an IPv4 address copied %t as %+v", ok, got)
	}
	if got, ok := w.copyFor(neighbor, "www.example.org"+inOther, dns.TypeAAAA); !ok || got.Clients.Family.IPv4Only || !slices.ContainsFunc(got.More, pods.Epochs.Has) {
		t.Errorf("for a pod that is not known copied %t as %+v", ok, got)
	}
}

// TestAAAAAlias: the target of an alias in the cluster's zone is withheld, too, and no upstream is asked for it.
func TestAAAAAlias(t *testing.T) {
	b := resolvertest.StartBackend(t, hinting)
	z := &resolver.Zone{Name: wire.Root, Cluster: dualStack(t, nil), Forward: resolvertest.Pool(t, b.Addr()), AAAA: resolver.NewAAAA(&config.AAAA{}, families(1))}
	const name, alias = "db.shop.svc.cluster.local.", "db.shop.svc.cluster.local. 30 CNAME a.test."
	for i, c := range []struct{ client, want string }{{ipv4Pod, "NOERROR aa | " + alias}, {dualPod, "NOERROR aa | " + alias + ", a.test. 60 AAAA 2001:db8::1"}} {
		if got := told(newDesk(t, z).from(c.client+":53", resolver.UDP).ask(asked(name + " AAAA"))); got != c.want {
			t.Errorf("%s gets %s, want %s", c.client, got, c.want)
		}
		if n := b.CountName("a.test."); n != i {
			t.Errorf("after %s the upstream was asked %d times", c.client, n)
		}
	}
}

// TestAAAAHidden: that a denial of IPv6 addresses is made up tells nothing about who may know a name: one that a view keeps from the
// client is not told by PTR.
func TestAAAAHidden(t *testing.T) {
	p, pods := dualStack(t, nil), families(1)
	pods.SetPod(netip.MustParseAddr("192.0.2.1"), true, true)
	d := newDesk(
		t, &resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local."), View: viewOf(t, "pods", "incidr(client_ip(), '10.0.0.0/8')"), Cluster: p},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "ip6.arpa."), Cluster: p},
		&resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, hinting).Addr()), AAAA: resolver.NewAAAA(&config.AAAA{}, pods)},
	)
	reverse, err := dns.ReverseAddr("fd00::7")
	if err != nil {
		t.Fatal(err)
	}
	for client, want := range map[string]int{ipv4Pod: dns.RcodeSuccess, "192.0.2.1": dns.RcodeNameError} {
		if m := d.from(client+":53", resolver.UDP).ask(asked(reverse + " PTR")); m.Rcode != want || (len(m.Answer) > 0) != (want == dns.RcodeSuccess) {
			t.Errorf("%s gets %s", client, told(m))
		}
	}
}

// TestAAAAExplained: explain says why.
func TestAAAAExplained(t *testing.T) {
	d, _ := copyWorld(t)
	packet, err := asked("a.test. AAAA").Pack()
	if err != nil {
		t.Fatal(err)
	}
	e, _ := d.rt.Explain(packet, netip.MustParseAddrPort(ipv4Pod+":53"), resolver.UDP)
	last := e.Steps[len(e.Steps)-1]
	if diff := cmp.Diff([]string{"aaaa", "aaaa", "answers", "the client is a pod without an IPv6 address"}, []string{e.Source, last.Step, last.Outcome.String(), last.Reason}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAAAAAllocPin: the denial allocates nothing.
func TestAAAAAllocPin(t *testing.T) {
	d, _ := copyWorld(t)
	d.from(ipv4Pod+":53", resolver.UDP)
	packet, err := asked("a.test. AAAA edns").Pack()
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { d.serve(packet) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkAAAA compares hits in the cache of a zone with the directive with those of one without: of A queries, of AAAA queries
// that every client gets, and AAAA queries that are denied. with/without is the quotient of the medians of alternating rounds.
func BenchmarkAAAA(b *testing.B) {
	const round = 2000
	for _, c := range []struct{ name, query, client string }{
		{"A", "a.test. A edns", ipv4Pod}, {"AAAA", "a.test. AAAA edns", dualPod}, {"denied", "a.test. AAAA edns", ipv4Pod},
	} {
		b.Run(c.name, func(b *testing.B) {
			with, _ := copyWorld(b)
			without, _ := copyWorld(b)
			for z := range without.rt.Zones() {
				z.AAAA = nil
			}
			without.rt = resolver.NewRoutes(slices.Collect(without.rt.Zones()), resolver.NewStats())
			packet, err := asked(c.query).Pack()
			if err != nil {
				b.Fatal(err)
			}
			var took [2][]time.Duration
			for range 2 {
				with.from(c.client+":53", resolver.UDP).serve(packet)
				without.from(c.client+":53", resolver.UDP).serve(packet)
			}
			for b.Loop() {
				for i, d := range []*counterDesk{with, without} {
					began := time.Now()
					for range round {
						d.serve(packet)
					}
					took[i] = append(took[i], time.Since(began))
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			median := func(list []time.Duration) float64 { return float64(list[len(list)/2]) }
			b.ReportMetric(median(took[0])/median(took[1]), "with/without")
			b.ReportMetric(median(took[0])/round, "ns/query")
			b.ReportMetric(0, "ns/op")
		})
	}
}
