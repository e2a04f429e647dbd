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
	"github.com/nodens-dns/nodens/test/resolvertest"
)

// markedCluster is a cluster whose answers have one mark, and which counts the names that copies
// keep in use.
type markedCluster struct {
	*partial
	touched map[string]int
}

func (c *markedCluster) Mark(*wire.Query, *wire.Reply) (epoch.Mark, bool) {
	return epoch.Mark{Index: 7, Value: 1}, true
}

func (c *markedCluster) Touch(q *wire.Query) { c.touched[wire.Name(q.Name()).String()]++ }

// epochCache returns a cache that knows epochs, so that its answers can be copied.
func epochCache() *cache.Cache {
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	words := make([]atomic.Uint64, epoch.Words(8))
	s := cache.NewStore(1<<20, cache.Options{Epochs: epoch.New(words, 0, 8)})
	return s.NewCache(&config.Cache{Success: limits, Denial: limits})
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
		d.ask(question(tt.name, tt.qtype))
		copied, ok := d.x.Copy()
		if ok != tt.ok || ok && copied.FromCluster != tt.cluster {
			t.Errorf("%s: copied %v, from the cluster %v; want %v, %v", tt.name, ok, copied.FromCluster, tt.ok, tt.cluster)
		}
		if ok && copied.MaxSize != wire.SafeUDP {
			t.Errorf("%s: at most %d bytes, want %d", tt.name, copied.MaxSize, wire.SafeUDP)
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
		copied, ok := d.x.Copy()
		if !ok {
			t.Fatal("no copy")
		}
		before := requests(z.Stats)
		d.x.Copied(&copied, m.Len()).ReportHits(3, time.Millisecond)
		after := requests(z.Stats)
		if diff := cmp.Diff(map[string]uint64{"udp " + family + " A": before["udp "+family+" A"] + 3}, after); diff != "" {
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
