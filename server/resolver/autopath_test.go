package resolver_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Clients of the tests: pods of two namespaces, and somebody else.
var (
	shopper  = netip.MustParseAddr("127.0.1.1")
	neighbor = netip.MustParseAddr("127.0.1.2")
	stranger = netip.MustParseAddr("127.0.1.3")
	ghost    = netip.MustParseAddr("127.0.1.4") // of a namespace that is not in view
)

const (
	inShop  = ".shop.svc.cluster.local."
	inOther = ".other.svc.cluster.local."
)

// world answers for the names outside of the cluster: what isn't in it does not exist.
var world = map[string][]string{
	"www.example.org.":      {"www.example.org. 60 A 192.0.2.1"},
	"chain.example.org.":    {"chain.example.org. 50 CNAME www.example.org.", "www.example.org. 60 A 192.0.2.1"},
	"intern.corp.test.":     {"intern.corp.test. 40 A 192.0.2.7"},
	"signed.example.org.":   {"signed.example.org. 60 CAA 0 issue \"ca.example\""},
	"empty.example.org.":    {},
	"broken.example.org.":   nil,
	"refused.example.org.":  nil,
	"alias.corp.test.":      {"alias.corp.test. 40 CNAME www.example.org.", "www.example.org. 60 A 192.0.2.1"},
	"shop.svc.example.org.": {"shop.svc.example.org. 60 A 192.0.2.5"},
}

// outer is the upstream that knows world.
func outer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	name := q.Question[0].Name
	list, known := world[name]
	switch {
	case strings.HasPrefix(name, "broken."):
		m.Rcode = dns.RcodeServerFailure
		return m
	case strings.HasPrefix(name, "refused."):
		m.Rcode = dns.RcodeRefused
		return m
	case !known:
		m.Rcode = dns.RcodeNameError
	}
	for _, line := range list {
		rr, err := dns.NewRR(line)
		if err != nil {
			panic(err)
		}
		if t := rr.Header().Rrtype; t == q.Question[0].Qtype || t == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		_, parent, _ := strings.Cut(name, ".")
		if parent == "" {
			parent = "."
		}
		soa, err := dns.NewRR(parent + " 300 SOA ns.nic.test. hostmaster.nic.test. 1 2 3 4 30")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
	}
	m.Compress = true
	return m
}

// asFrom sends a query from a client's address.
func asFrom(t *testing.T, client netip.Addr, network string, addr netip.AddrPort, q *dns.Msg) *dns.Msg {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: client.AsSlice()}
	if network == "tcp" {
		local = &net.TCPAddr{IP: client.AsSlice()}
	}
	c := dns.Client{Net: network, Timeout: patience, UDPSize: dns.MaxMsgSize, Dialer: &net.Dialer{LocalAddr: local, Timeout: patience}}
	m, _, err := c.Exchange(q, addr.String())
	if err != nil {
		t.Fatalf("%s %s: %v", network, q.Question[0].String(), err)
	}
	return m
}

// searching is a zone that finishes the search paths of pods.
func searching(t testing.TB, to netip.AddrPort, search ...string) (*resolver.Zone, *partial) {
	t.Helper()
	p := newPartial(t, "cluster.local", "in-addr.arpa")
	p.live(shopper, "shop")
	p.live(neighbor, "other")
	p.live(ghost, "ghost")
	cfg := &config.Autopath{Kubernetes: true}
	for _, s := range search {
		cfg.Search = append(cfg.Search, resolvertest.ZoneName(t, s))
	}
	return &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"), Cluster: p, Autopath: resolver.NewAutopath(cfg, p), Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, to)}, p
}

// texts are the records of a section in short.
func texts(list []dns.RR) []string {
	out := []string{}
	for _, rr := range list {
		fields := strings.Fields(rr.String())
		out = append(out, strings.Join(slices.Delete(fields, 2, 3), " "))
	}
	return out
}

// TestSearch: what a client on its search path gets, the first time, when upstreams
// are waited for, and the second, when nothing is.
func TestSearch(t *testing.T) {
	const long = "a.very.long.domain.of.the.host.that.is.more.than.the.clusters.own.test"
	deep := strings.Repeat("abcdefghijklmno.", 13) + "x"
	for _, c := range []struct {
		name   string
		client netip.Addr
		qname  string
		qtype  uint16
		rcode  int
		want   []string // answers
		ns     string   // owner of the SOA
		asked  []string // of the upstream, in any order
		found  uint64
	}{
		{"a name of the world", shopper, "www.example.org" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"www.example.org" + inShop + " 60 CNAME www.example.org.", "www.example.org. 60 A 192.0.2.1"}, "",
			[]string{"www.example.org.corp.test.", "www.example.org." + long + ".", "www.example.org."}, 1},
		{"its case", shopper, "WWW.Example.ORG.Shop.svc.Cluster.LOCAL.", dns.TypeA, dns.RcodeSuccess,
			[]string{"WWW.Example.ORG.Shop.svc.Cluster.LOCAL. 60 CNAME WWW.Example.ORG.", "WWW.Example.ORG. 60 A 192.0.2.1"}, "",
			[]string{"www.example.org.corp.test.", "www.example.org." + long + ".", "www.example.org."}, 1},
		{"an alias of the world", shopper, "alias" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"alias" + inShop + " 40 CNAME alias.corp.test.", "alias.corp.test. 40 CNAME www.example.org.", "www.example.org. 40 A 192.0.2.1"}, "",
			[]string{"alias.corp.test."}, 1},
		{"a service of another namespace", shopper, "db.other" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"db.other" + inShop + " 30 CNAME db.other.svc.cluster.local.", "db.other.svc.cluster.local. 30 A 10.96.0.10"}, "", nil, 1},
		{"below svc", shopper, "db.other.svc" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"db.other.svc" + inShop + " 30 CNAME db.other.svc.cluster.local.", "db.other.svc.cluster.local. 30 A 10.96.0.10"}, "", nil, 1},
		{"a whole name of the cluster", shopper, "db.other.svc.cluster.local" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"db.other.svc.cluster.local" + inShop + " 30 CNAME db.other.svc.cluster.local.", "db.other.svc.cluster.local. 30 A 10.96.0.10"}, "",
			[]string{"db.other.svc.cluster.local.corp.test.", "db.other.svc.cluster.local." + long + "."}, 1},
		{"a service's ports", shopper, "_sql._tcp.db.other" + inShop, dns.TypeSRV, dns.RcodeSuccess,
			[]string{"_sql._tcp.db.other" + inShop + " 30 CNAME _sql._tcp.db.other.svc.cluster.local.",
				"_sql._tcp.db.other.svc.cluster.local. 30 SRV 0 100 5432 db.other.svc.cluster.local."}, "", nil, 1},
		{"an alias of the cluster", shopper, "out.other" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"out.other" + inShop + " 30 CNAME out.other.svc.cluster.local.", "out.other.svc.cluster.local. 30 CNAME www.example.org.",
				"www.example.org. 60 A 192.0.2.1"}, "", []string{"www.example.org."}, 1},
		{"a name of the host's own domain", shopper, "intern" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"intern" + inShop + " 40 CNAME intern.corp.test.", "intern.corp.test. 40 A 192.0.2.7"}, "", []string{"intern.corp.test."}, 1},
		{"a name by hand", shopper, "by.hand" + inShop, dns.TypeA, dns.RcodeSuccess,
			[]string{"by.hand" + inShop + " 3600 CNAME by.hand.", "by.hand. 3600 A 192.0.2.9"}, "",
			[]string{"by.hand.corp.test.", "by.hand." + long + "."}, 1},
		{"the first name", shopper, "web" + inShop, dns.TypeA, dns.RcodeSuccess, []string{"web" + inShop + " 30 A 10.96.0.9"}, "", nil, 0},
		{"no data at the first name", shopper, "web" + inShop, dns.TypeAAAA, dns.RcodeSuccess, nil, "cluster.local.", nil, 0},
		{"no data further down", shopper, "www.example.org" + inShop, dns.TypeAAAA, dns.RcodeSuccess, nil, "example.org.",
			[]string{"www.example.org.corp.test.", "www.example.org." + long + ".", "www.example.org."}, 1},
		{"no name at all", shopper, "no.such" + inShop, dns.TypeA, dns.RcodeNameError, nil, "cluster.local.",
			[]string{"no.such.corp.test.", "no.such." + long + ".", "no.such."}, 0},
		{"a failure ends it", shopper, "broken" + inShop, dns.TypeA, dns.RcodeServerFailure, nil, "", []string{"broken.corp.test."}, 0},
		{"a refusal ends it", shopper, "refused" + inShop, dns.TypeA, dns.RcodeRefused, nil, "", []string{"refused.corp.test."}, 0},
		{"too long with one domain", shopper, deep + inShop, dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", []string{deep + ".corp.test.", deep + "."}, 0},
		{"what can't be moved", shopper, "signed.example.org" + inShop, dns.TypeCAA, dns.RcodeNameError, nil, "",
			[]string{"signed.example.org.corp.test.", "signed.example.org." + long + ".", "signed.example.org."}, 0},
		{"another namespace's path", neighbor, "www.example.org" + inShop, dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"another namespace's own path", neighbor, "www.example.org" + inOther, dns.TypeA, dns.RcodeSuccess,
			[]string{"www.example.org" + inOther + " 60 CNAME www.example.org.", "www.example.org. 60 A 192.0.2.1"}, "",
			[]string{"www.example.org.corp.test.", "www.example.org." + long + ".", "www.example.org."}, 1},
		{"nobody's path", stranger, "www.example.org" + inShop, dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"a namespace that ends alike", shopper, "www.example.org.workshop.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"a label that only looks like two", shopper, `a\004shop.svc.cluster.local.`, dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"the namespace itself", shopper, "shop.svc.cluster.local.", dns.TypeA, dns.RcodeSuccess, nil, "cluster.local.", nil, 0},
		{"a namespace that is not in view", ghost, "ghost.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"not a service's name", shopper, "www.example.org.shop.pod.cluster.local.", dns.TypeA, dns.RcodeNameError, nil, "cluster.local.", nil, 0},
		{"below another zone", shopper, "shop.svc.example.org.", dns.TypeA, dns.RcodeSuccess, []string{"shop.svc.example.org. 60 A 192.0.2.5"}, "",
			[]string{"shop.svc.example.org."}, 0},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.name+"/"+network, func(t *testing.T) {
				b := resolvertest.StartBackend(t, outer)
				z, _ := searching(t, b.Addr(), "corp.test", long, "cluster.local", "corp.test")
				_, addr := start(t, server.Limits{}, z)
				for range 2 {
					q := question(c.qname, c.qtype)
					m := asFrom(t, c.client, network, addr, q)
					if m.Rcode != c.rcode || m.Id != q.Id || m.Question[0] != q.Question[0] {
						t.Errorf("%v, want %s", m, dns.RcodeToString[c.rcode])
					}
					if diff := cmp.Diff(append([]string{}, c.want...), texts(m.Answer)); diff != "" {
						t.Errorf("answers (-want +got):\n%s", diff)
					}
					owner := ""
					if len(m.Ns) > 0 {
						owner = m.Ns[0].Header().Name
					}
					if owner != c.ns || len(m.Ns) > 1 {
						t.Errorf("the SOA is that of %q, want %q; %d records", owner, c.ns, len(m.Ns))
					}
				}
				for _, name := range c.asked {
					if n := b.CountName(name); n != 1 && c.rcode != dns.RcodeRefused { // which is not cached
						t.Errorf("the upstream was asked %d times for %s, want once", n, name)
					}
				}
				if n := len(b.Asked()); n != len(c.asked) {
					t.Errorf("the upstream was asked for %d names, want %d: %v", n, len(c.asked), b.Asked())
				}
				if n := z.Stats.ViaSearch(); n != 2*c.found {
					t.Errorf("%d were found, want %d", n, 2*c.found)
				}
				var queries uint64
				counted := counts(t, z.Stats, 2)
				for _, n := range counted {
					queries += n
				}
				if queries != 2 || counted["NOERROR autopath"] != 2*c.found {
					t.Errorf("two queries are counted as %v", counted)
				}
			})
		}
	}
}

// TestSearchCached: the answer of one client's path is no other's, whoever comes
// first, although both ask for the same name and there is a cache.
func TestSearchCached(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	z, p := searching(t, b.Addr())
	_, addr := start(t, server.Limits{}, z)
	name := "www.example.org" + inShop
	for _, c := range []struct {
		client netip.Addr
		rcode  int
	}{{shopper, 0}, {neighbor, 3}, {stranger, 3}, {shopper, 0}} {
		if m := asFrom(t, c.client, "udp", addr, question(name, dns.TypeA)); m.Rcode != c.rcode {
			t.Errorf("%s: %s, want %s", c.client, dns.RcodeToString[m.Rcode], dns.RcodeToString[c.rcode])
		}
	}
	// An address that has another owner now has another path.
	p.live(shopper, "other")
	if m := asFrom(t, shopper, "udp", addr, question(name, dns.TypeA)); m.Rcode != dns.RcodeNameError {
		t.Errorf("the next owner of the address: %v", m)
	}
	p.live(shopper, "")
	if m := asFrom(t, shopper, "udp", addr, question("www.example.org"+inOther, dns.TypeA)); m.Rcode != dns.RcodeNameError {
		t.Errorf("nobody's address: %v", m)
	}
}

// TestSearchHomeChanges: an address that changes hands while its query waits has no
// path that is anybody's.
func TestSearchHomeChanges(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	z, p := searching(t, b.Addr())
	name := "www.example.org" + inShop
	p.lacks(name, kubernetes.Incomplete)
	p.awaited = func(context.Context) error {
		p.lacks(name, kubernetes.Answered)
		p.live(shopper, "other")
		return nil
	}
	_, addr := start(t, server.Limits{}, z)
	if m := asFrom(t, shopper, "udp", addr, question(name, dns.TypeA)); m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 {
		t.Errorf("got %v, want the name error of the first name", m)
	}
}

// TestSearchLacks: a name on the path may need more of the cluster than is in view.
func TestSearchLacks(t *testing.T) {
	const found = "db.other.svc.cluster.local."
	name := "db.other" + inShop
	for _, lacking := range []string{found, name} {
		b := resolvertest.StartBackend(t, outer)
		z, p := searching(t, b.Addr())
		p.lacks(lacking, kubernetes.Incomplete)
		p.awaited = func(context.Context) error { p.lacks(lacking, kubernetes.Answered); return nil }
		_, addr := start(t, server.Limits{}, z)
		m := asFrom(t, shopper, "udp", addr, question(name, dns.TypeA))
		want := []string{name + " 30 CNAME " + found, found + " 30 A 10.96.0.10"}
		if diff := cmp.Diff(want, texts(m.Answer)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if n := p.waited(); n != 1 {
			t.Errorf("it waited %d times, want once", n)
		}
		p.lacks(lacking, kubernetes.NotSynced)
		if m := asFrom(t, shopper, "udp", addr, question(name, dns.TypeA)); m.Rcode != dns.RcodeServerFailure || len(m.Answer) != 0 {
			t.Errorf("not synced: %v", m)
		}
	}
}

// TestSearchZones: the path of a file is everybody's, and only some zones may have one;
// a name that no zone takes is answered by the one that searches.
func TestSearchZones(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	inner := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.3"))
	file := &config.Autopath{Search: []wire.Name{resolvertest.ZoneName(t, "shop.svc.cluster.local"), resolvertest.ZoneName(t, "corp.test"), wire.Root}}
	narrow := &config.Autopath{Search: file.Search, Zones: []wire.Name{resolvertest.ZoneName(t, "example.org")}}
	for _, c := range []struct {
		name  string
		zones []*resolver.Zone
		qname string
		want  []string
	}{
		{"a file", []*resolver.Zone{{Name: wire.Root, Autopath: resolver.NewAutopath(file, nil), Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())}},
			"intern" + inShop, []string{"intern" + inShop + " 40 CNAME intern.corp.test.", "intern.corp.test. 40 A 192.0.2.7"}},
		{"other zones", []*resolver.Zone{{Name: wire.Root, Autopath: resolver.NewAutopath(narrow, nil), Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())}},
			"intern" + inShop, []string{}},
		{"no domains", []*resolver.Zone{{Name: wire.Root, Autopath: resolver.NewAutopath(&config.Autopath{}, nil), Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())}},
			"intern" + inShop, []string{}},
		{"no other zone", []*resolver.Zone{{Name: resolvertest.ZoneName(t, "cluster.local"), Autopath: resolver.NewAutopath(file, nil), Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())}},
			"intern" + inShop, []string{"intern" + inShop + " 40 CNAME intern.corp.test.", "intern.corp.test. 40 A 192.0.2.7"}},
		{"another zone", []*resolver.Zone{
			{Name: resolvertest.ZoneName(t, "cluster.local"), Autopath: resolver.NewAutopath(file, nil), Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())},
			{Name: resolvertest.ZoneName(t, "corp.test"), Forward: resolvertest.Pool(t, inner.Addr())}},
			"intern" + inShop, []string{"intern" + inShop + " 60 CNAME intern.corp.test.", "intern.corp.test. 60 A 192.0.2.3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, addr := start(t, server.Limits{}, c.zones...)
			m := asFrom(t, stranger, "udp", addr, question(c.qname, dns.TypeA))
			if diff := cmp.Diff(c.want, texts(m.Answer)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNewSearch: what is on the paths.
func TestNewSearch(t *testing.T) {
	names := func(list ...string) (out []wire.Name) {
		for _, s := range list {
			out = append(out, resolvertest.ZoneName(t, s))
		}
		return out
	}
	type path struct {
		Zone, First wire.Name
		Rest        []wire.Name
	}
	cluster := newPartial(t, "cluster.local", "a.cluster.local")
	for _, c := range []struct {
		name       string
		kubernetes bool
		search     []wire.Name
		want       []path
	}{
		{"a file", false, names("a.test", "b.test", "c.test"), []path{{"\x01a\x04test\x00", "\x01a\x04test\x00", names("b.test", "c.test", ".")}}},
		{"domains that come twice", false, names("a.test", "b.test", "a.test", ".", "b.test", "c.test"),
			[]path{{"\x01a\x04test\x00", "\x01a\x04test\x00", names("b.test", ".", "c.test")}}},
		{"no domains", false, nil, nil},
		{"pods", true, names("cluster.local", "corp.test"), []path{
			{resolvertest.ZoneName(t, "a.cluster.local"), resolvertest.ZoneName(t, "svc.a.cluster.local"), names("svc.a.cluster.local", "a.cluster.local", "cluster.local", "corp.test", ".")},
			{resolvertest.ZoneName(t, "cluster.local"), resolvertest.ZoneName(t, "svc.cluster.local"), names("svc.cluster.local", "cluster.local", "corp.test", ".")},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []path
			for _, p := range resolver.NewAutopath(&config.Autopath{Kubernetes: c.kubernetes, Search: c.search}, cluster).Paths() {
				got = append(got, path{p.Zone, p.First, p.Rest})
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAliasFallsThrough: the target of an ExternalName Service that is a name of the cluster's zones, and that only `fallthrough`
// may know, is answered as a query for it; if nothing has it, the alias is denied, as without `fallthrough`.
func TestAliasFallsThrough(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.yaml")
	text := ""
	for _, name := range []string{"known", "gone", "broken"} {
		text += "---\napiVersion: v1\nkind: Service\nmetadata: {name: to-" + name + ", namespace: shop}\nspec: {type: ExternalName, externalName: " + name + ".legacy.svc.cluster.local}\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Zones: []wire.Name{resolvertest.ZoneName(t, "cluster.local")}, Manifests: []string{file}, TTL: 30, Fallthrough: &config.Fallthrough{}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name == "known.legacy.svc.cluster.local." && q.Question[0].Qtype == dns.TypeA {
			return resolvertest.Address("192.0.2.7")(q)
		}
		return outer(q)
	})
	_, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Cluster: kubernetes.NewZone(view, cfg), Forward: resolvertest.Pool(t, b.Addr())})
	for _, c := range []struct {
		name   string
		qtype  uint16
		want   []string
		denied bool
	}{
		{"to-known", dns.TypeA, []string{"to-known.shop.svc.cluster.local. 30 CNAME known.legacy.svc.cluster.local.", "known.legacy.svc.cluster.local. 60 A 192.0.2.7"}, false},
		{"to-gone", dns.TypeA, nil, true},
		{"to-gone", dns.TypeAAAA, nil, true},
		{"to-broken", dns.TypeA, []string{"to-broken.shop.svc.cluster.local. 5 CNAME broken.legacy.svc.cluster.local."}, false},
	} {
		m := query(t, "udp", addr, question(c.name+".shop.svc.cluster.local.", c.qtype))
		if m.Rcode != dns.RcodeSuccess || !m.Authoritative || !slices.Equal(texts(m.Answer), c.want) {
			t.Errorf("%s %s: %s, want %q", c.name, dns.TypeToString[c.qtype], m, c.want)
		}
		if c.denied && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || m.Ns[0].Header().Name != "cluster.local.") {
			t.Errorf("%s %s: the authority section is %v, want the zone's SOA", c.name, dns.TypeToString[c.qtype], m.Ns)
		}
	}
}

// TestSearchAlias: what an alias of the cluster leads to is a whole name, and on
// nobody's path.
func TestSearchAlias(t *testing.T) {
	b := resolvertest.StartBackend(t, outer)
	search := resolver.NewAutopath(&config.Autopath{Search: []wire.Name{resolvertest.ZoneName(t, "example.org"), resolvertest.ZoneName(t, "corp.test")}}, nil)
	_, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Autopath: search, Cluster: newPartial(t, "cluster.local"), Forward: resolvertest.Pool(t, b.Addr())})
	m := query(t, "udp", addr, question("lost.other.svc.cluster.local.", dns.TypeA))
	if diff := cmp.Diff([]string{"lost.other.svc.cluster.local. 30 CNAME intern.example.org."}, texts(m.Answer)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m := query(t, "udp", addr, question("intern.example.org.", dns.TypeA)); len(m.Answer) != 2 {
		t.Errorf("the same name from a client: %v", m)
	}
}

// TestSearchCut: an answer that is too long for the client has TC.
func TestSearchCut(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Compress = true
		for i := range 100 {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 0, 0, byte(i))})
		}
		return m
	})
	z, _ := searching(t, b.Addr())
	_, addr := start(t, server.Limits{}, z)
	name := "www.example.org" + inShop
	for range 2 {
		m := asFrom(t, shopper, "udp", addr, question(name, dns.TypeA))
		m.Compress = true
		if packet, _ := m.Pack(); !m.Truncated || len(m.Answer) < 20 || len(packet) > dns.MinMsgSize {
			t.Errorf("over UDP: TC %v, %d records in %d bytes", m.Truncated, len(m.Answer), len(packet))
		}
		if m := asFrom(t, shopper, "tcp", addr, question(name, dns.TypeA)); m.Truncated || len(m.Answer) != 101 {
			t.Errorf("over TCP: TC %v, %d records", m.Truncated, len(m.Answer))
		}
	}
}

// TestSearchShutdown: a query that waits on its client's path is dropped when time is
// up, and its socket with it.
func TestSearchShutdown(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name == "www.example.org." {
			close(asked)
			<-release
		}
		return outer(q)
	})
	z, _ := searching(t, b.Addr())
	s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: shopper.AsSlice()}, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	packet, err := question("www.example.org"+inShop, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	<-asked
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err == nil {
		t.Error("Shutdown says that nothing was dropped")
	}
	close(release)
}
