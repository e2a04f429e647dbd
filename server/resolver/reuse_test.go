package resolver_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// markedCluster is a cluster whose answers have one mark, and which counts the names that copies
// keep in use.
type markedCluster struct {
	*partial
	touched map[string]int
}

func (c *markedCluster) Mark(*wire.Query, *wire.Reply, *kubernetes.Budget) (epoch.Mark, bool) {
	return epoch.Mark{Index: 7, Value: 1}, true
}

func (c *markedCluster) Touch(q *wire.Query) { c.touched[wire.Name(q.Name()).String()]++ }

// epochCache returns a cache that knows epochs, so that its answers can be copied.
func epochCache() *cache.Cache {
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	words := make([]atomic.Uint64, epoch.Words(8))
	s := cache.NewStore(1<<20, cache.Options{Epochs: epoch.New(words, 0, 8)})
	return s.NewCache(&config.Cache{Success: limits, Denial: limits, Servfail: 5 * time.Second})
}

// copied asks q and returns how its reply may be copied. The explanation of the query before must agree. The reply
// to a query that waits is not copied.
func (d *counterDesk) copied(q *dns.Msg) (resolver.Reusable, bool) {
	d.t.Helper()
	packet, err := q.Pack()
	if err != nil {
		d.t.Fatal(err)
	}
	e, _ := d.rt.Explain(packet, d.x.Client, d.x.Proto)
	d.ask(q)
	c, ok := d.x.Reusable()
	if want := e.NotCopied == "" && e.Waits == resolver.NoWait; ok != want {
		d.t.Errorf("%s: a copy %t, explained as %q", q.Question[0].String(), ok, e.NotCopied)
	}
	return c, ok
}

// TestCopy: answers of the cluster and of the cache may be copied, others may not. What the cache
// has for a name of the cluster is not copied: the view may come to have the name.
func TestCopy(t *testing.T) {
	const web, db, other = "web.shop.svc.cluster.local.", "db.other.svc.cluster.local.", "www.example.org."
	c := &markedCluster{newPartial(t, "cluster.local"), make(map[string]int)}
	c.lacks(db, kubernetes.Incomplete)
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{Name: wire.Root, Cluster: c, ClusterDNS: always, Cache: epochCache(), Forward: resolvertest.Pool(t, b.Addr())}
	d := newDesk(t, z).from("192.0.2.9:53", resolver.UDP)
	for _, name := range []string{db, other} { // into the cache
		if m := d.ask(question(name, dns.TypeA)); len(m.Answer) != 1 {
			t.Fatalf("%s: %v", name, m)
		}
	}
	for _, tt := range []struct {
		name        string
		qtype       uint16
		ok, cluster bool
	}{
		{web, dns.TypeA, true, true},
		{other, dns.TypeA, true, false},
		{db, dns.TypeA, false, false},
		{"localhost.", dns.TypeA, false, false},
	} {
		copied, ok := d.copied(question(tt.name, tt.qtype))
		if ok != tt.ok || ok && copied.FromCluster != tt.cluster {
			t.Errorf("%s: copied %v, from the cluster %v; want %v, %v", tt.name, ok, copied.FromCluster, tt.ok, tt.cluster)
		}
		if ok && copied.MaxSize != wire.SafeUDP {
			t.Errorf("%s: at most %d bytes, want %d", tt.name, copied.MaxSize, wire.SafeUDP)
		}
	}
}

// TestCopyOnlyPlain: there is a copy of an answer and of a denial, but of no failure, none where views
// choose the zone, and none if an ACL denies a name.
func TestCopyOnlyPlain(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		switch q.Question[0].Name {
		case "missing.test.":
			m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
			soa, _ := dns.NewRR("test. 60 SOA ns.test. host.test. 1 2 3 4 60")
			m.Ns = []dns.RR{soa}
			return m
		case "failed.test.":
			return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		case "alias.test.":
			m := new(dns.Msg).SetReply(q)
			alias, _ := dns.NewRR("alias.test. 60 CNAME www.secret.test.")
			address, _ := dns.NewRR("www.secret.test. 60 A 192.0.2.1")
			m.Answer = []dns.RR{alias, address}
			return m
		}
		return resolvertest.Address("192.0.2.1")(q)
	})
	for _, tt := range []struct {
		name   string
		other  *resolver.Zone // besides the root zone
		wanted map[string]bool
	}{
		{"no other zone", nil, map[string]bool{"www.test.": true, "alias.test.": true, "missing.test.": true, "failed.test.": false}},
		{
			"a view", &resolver.Zone{Name: resolvertest.ZoneName(t, "other."), View: viewOf(t, "none", "name() == 'x.'")},
			map[string]bool{"www.test.": false},
		},
		{
			"an ACL", &resolver.Zone{Name: resolvertest.ZoneName(t, "secret.test."), ACL: aclOf(t, "acl {\nblock net 198.51.100.0/24\n}")},
			map[string]bool{"www.test.": true, "alias.test.": true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			zones := []*resolver.Zone{{Name: wire.Root, Cache: epochCache(), Forward: resolvertest.Pool(t, b.Addr())}}
			if tt.other != nil {
				zones = append(zones, tt.other)
			}
			d := newDesk(t, zones...).from("192.0.2.9:53", resolver.UDP)
			for name, want := range tt.wanted {
				d.ask(question(name, dns.TypeA)) // into the cache
				if _, ok := d.copied(question(name, dns.TypeA)); ok != want {
					t.Errorf("a copy of %s: %t, want %t", name, ok, want)
				}
			}
		})
	}
}

// TestRewriteCopy: a reply is copied if no rewrite rule matches the query.
func TestRewriteCopy(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	z := &resolver.Zone{
		Name: wire.Root, Cache: epochCache(), Forward: resolvertest.Pool(t, b.Addr()),
		Rewrite: rulesOf(t, "rewrite continue name suffix .old.test .new.test\nrewrite ttl exact short.test 5\nrewrite type MX A"),
	}
	d := newDesk(t, z).from("192.0.2.9:53", resolver.UDP)
	for _, c := range []struct {
		name  string
		qtype uint16
		ok    bool
	}{
		{"www.test.", dns.TypeA, true}, {"x.new.test.", dns.TypeA, true}, {"x.old.test.", dns.TypeA, false},
		{"short.test.", dns.TypeA, false}, {"www.test.", dns.TypeMX, false},
	} {
		packet, err := question(c.name, c.qtype).Pack()
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if !c.ok {
			want = "a rewrite rule changes the query or the reply"
		}
		for _, when := range []string{"before", "after"} {
			if e, _ := d.rt.Explain(packet, d.x.Client, resolver.UDP); e.NotCopied != want {
				t.Errorf("%s %s the upstream has answered: explained as %q", c.name, when, e.NotCopied)
			}
			d.ask(question(c.name, c.qtype)) // into the cache
		}
		if _, ok := d.copied(question(c.name, c.qtype)); ok != c.ok {
			t.Errorf("a copy of %s %s: %t, want %t", c.name, dns.TypeToString[c.qtype], ok, c.ok)
		}
	}
}

// TestNotCopiedLater: what is known about copies before an upstream has answered.
func TestNotCopiedLater(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	c := &markedCluster{newPartial(t, "cluster.local"), make(map[string]int)}
	c.lacks("db.other.svc.cluster.local.", kubernetes.Incomplete)
	for name, tt := range map[string]struct {
		zone *resolver.Zone
		ask  string
		want string
	}{
		"a cache":          {&resolver.Zone{Cache: epochCache()}, "www.example.org.", ""},
		"no cache":         {&resolver.Zone{}, "www.example.org.", "only answers of kubernetes, hosts and the cache are copied"},
		"log":              {&resolver.Zone{Cache: epochCache(), AgentOnly: []string{"log"}}, "www.example.org.", "the server block has log"},
		"a cluster's name": {&resolver.Zone{Cache: epochCache(), Cluster: c, ClusterDNS: always}, "db.other.svc.cluster.local.", "the name is in a zone of kubernetes, whose view may answer later"},
	} {
		tt.zone.Name, tt.zone.Forward = wire.Root, resolvertest.Pool(t, b.Addr())
		d := newDesk(t, tt.zone)
		packet, err := question(tt.ask, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if e, _ := d.rt.Explain(packet, d.from("192.0.2.9:53", resolver.UDP).x.Client, resolver.UDP); e.Waits != resolver.WaitUpstream || e.NotCopied != tt.want {
			t.Errorf("%s: waits for %q, %q, want %q", name, e.Waits, e.NotCopied, tt.want)
		}
	}
}

// fewAddresses answers every question with n addresses, whose order matters.
type fewAddresses struct {
	*markedCluster
	n         byte
	rotatable bool
}

func (c *fewAddresses) Rotatable(*wire.Query, *kubernetes.Budget) bool { return c.rotatable }

func (c *fewAddresses) Answer(_ *wire.Query, r *wire.Reply, _ *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	for i := range c.n {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 0, 1, i})
	}
	if c.n == 0 {
		r.SetRcode(wire.NXDomain)
	}
	return kubernetes.Answered, ""
}

// TestCopyOrdered: an ordered answer with two addresses or more is copied only if their order may
// change. The addresses of positive answers are shuffled.
func TestCopyOrdered(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		for _, rotatable := range []bool{false, true} {
			for n := range byte(4) {
				c := &fewAddresses{&markedCluster{newPartial(t, "cluster.local"), nil}, n, rotatable}
				z := &resolver.Zone{Name: wire.Root, Cluster: c, Ordered: ordered, Shuffle: !ordered}
				d := newDesk(t, z).from("192.0.2.9:53", resolver.UDP)
				copied, ok := d.copied(question("web.shop.svc.cluster.local.", dns.TypeA))
				if want := !ordered || n < 2 || rotatable; ok != want {
					t.Errorf("ordered %t, rotatable %t, %d addresses: a copy %t, want %t", ordered, rotatable, n, ok, want)
				}
				if ok && copied.Shuffled != (n > 0) {
					t.Errorf("ordered %t, %d addresses: shuffled %t", ordered, n, copied.Shuffled)
				}
			}
		}
	}
}

// TestReportHits: queries that a copy has answered are counted like others, and keep the data of
// the cluster in use.
func TestReportHits(t *testing.T) {
	const web = "web.shop.svc.cluster.local."
	for client, family := range map[string]string{"192.0.2.9:53": "1", "[2001:db8::9]:53": "2", "[::ffff:192.0.2.9]:53": "1"} {
		c := &markedCluster{newPartial(t, "cluster.local"), make(map[string]int)}
		z := &resolver.Zone{Name: wire.Root, Cluster: c, Stats: resolver.NewStats()}
		d := newDesk(t, z).from(client, resolver.UDP)
		m := d.ask(question(web, dns.TypeA))
		copied, ok := d.x.Reusable()
		if !ok {
			t.Fatal("no copy")
		}
		before := requests(z.Stats)
		if diff := cmp.Diff(map[string]uint64{"udp " + family + " A": 1}, before); diff != "" {
			t.Errorf("%s, the first query: %s", client, diff)
		}
		d.x.HitCounter(&copied, m.Len()).ReportHits(3, time.Millisecond)
		after := requests(z.Stats)
		if diff := cmp.Diff(map[string]uint64{"udp " + family + " A": 4}, after); diff != "" {
			t.Errorf("%s: %s", client, diff)
		}
		if c.touched[web] != 1 {
			t.Errorf("%s: kept in use: %v", client, c.touched)
		}
	}
}

// requests returns the counted queries by transport, family and type.
func requests(s *resolver.Stats) map[string]uint64 {
	got := make(map[string]uint64)
	s.EachRequest(func(proto, family, qtype string, n uint64) {
		if n > 0 {
			got[proto+" "+family+" "+qtype] = n
		}
	})
	return got
}
