package resolver_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// touchedCluster notes the names that are kept in use.
type touchedCluster struct {
	*partial
	touched map[string]int
}

func (c *touchedCluster) Touch(q *wire.Query) { c.touched[wire.Name(q.Name()).String()]++ }

// searchWorld answers along the search paths of pods from a view and a cache whose answers can be copied.
type searchWorld struct {
	*counterDesk
	zone    *resolver.Zone
	cluster *touchedCluster
}

// cachedBase is the index of the first counter of the cache.
const cachedBase = 1 << 20

// newSearchWorld returns a world whose node has these search domains.
func newSearchWorld(t testing.TB, search []string, others ...*resolver.Zone) *searchWorld {
	t.Helper()
	const bits = 12
	table := func(base uint32) *epoch.Table {
		return epoch.New(make([]atomic.Uint64, epoch.Words(bits)), base, bits)
	}
	c := &touchedCluster{newPartialWith(t, kubernetes.Options{Epochs: table(1)}, "cluster.local"), make(map[string]int)}
	c.live(shopper, "shop")
	c.live(neighbor, "other")
	cfg := &config.Autopath{Kubernetes: true}
	for _, s := range search {
		cfg.Search = append(cfg.Search, resolvertest.ZoneName(t, s))
	}
	store := cache.NewStore(1<<20, cache.Options{Epochs: table(cachedBase)})
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	b := resolvertest.StartBackend(t, outer)
	for _, z := range others {
		z.Cache, z.Forward = store.NewCache(&config.Cache{Success: limits, Denial: limits}), resolvertest.Pool(t, b.Addr())
	}
	z := &resolver.Zone{
		Name: wire.Root, Cluster: c, Autopath: resolver.NewAutopath(cfg, c), Cache: store.NewCache(&config.Cache{Success: limits, Denial: limits, Servfail: 5 * time.Second}),
		Forward: resolvertest.Pool(t, b.Addr()), Stats: resolver.NewStats(),
	}
	w := &searchWorld{newDesk(t, append(others, z)...).from("192.0.2.1:53", resolver.UDP), z, c}
	w.x.Sources = new(resolver.ReplySources)
	return w
}

// copyFor asks twice, as the first reply may be an upstream's, and returns how the second may be copied.
func (w *searchWorld) copyFor(client netip.Addr, name string, qtype uint16) (resolver.Reusable, bool) {
	w.t.Helper()
	w.x.Client = netip.AddrPortFrom(client, 4242)
	w.ask(question(name, qtype))
	return w.copied(question(name, qtype))
}

// basis returns the marks of the answers for names, and the least expiry and the lease of the last one.
func (w *searchWorld) basis(qtype uint16, names ...string) (marks []epoch.Mark, expires time.Duration, last cache.Lease) {
	w.t.Helper()
	for _, name := range names {
		packet, err := question(name, qtype).Pack()
		if err != nil {
			w.t.Fatal(err)
		}
		var q wire.Query
		if q.Parse(packet) != wire.Serve {
			w.t.Fatalf("%s is no query", name)
		}
		var r wire.Reply
		r.Start(nil, &q)
		var mark epoch.Mark
		if o, _ := w.cluster.Answer(&q, &r, nil); o == kubernetes.Answered {
			var b kubernetes.Budget
			b.Refill()
			mark, _ = w.cluster.Mark(&q, &r, &b)
		} else {
			var ok bool
			if last, ok = w.zone.Cache.Lease(&q, w.x.Arrival); !ok {
				w.t.Fatalf("the cache has no lease for %s", name)
			}
			mark = last.Mark
			if expires == 0 || last.Expires < expires {
				expires = last.Expires
			}
		}
		mark.Serial = 0
		marks = append(marks, mark)
	}
	return sortedMarks(marks), expires, last
}

// sortedMarks returns the counters of a list of marks, each once.
func sortedMarks(list []epoch.Mark) []epoch.Mark {
	slices.SortFunc(list, func(a, b epoch.Mark) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Value, b.Value)) })
	return slices.Compact(list)
}

// marksOf returns the counters that a copy depends on.
func marksOf(c *resolver.Reusable) []epoch.Mark {
	list := append([]epoch.Mark{c.Mark}, c.More...)
	for i := range list {
		list[i].Serial = 0
	}
	return sortedMarks(list)
}

// TestSearchCopy: a reply along a search path is copied for the clients of one namespace, and depends on all answers that
// it is made of. Others are copied for all clients, except for denials of names that may be on a search path.
func TestSearchCopy(t *testing.T) {
	const www = "www.example.org."
	path := func(name string) []string {
		return []string{name + inShop, name + ".svc.cluster.local.", name + ".cluster.local.", name + ".corp.test.", name + "."}
	}
	for _, c := range []struct {
		name   string
		client netip.Addr
		qname  string
		qtype  uint16
		from   string   // the clients' namespace; "" for all clients
		of     []string // the names that were asked; nil: there is no copy
		serial bool     // the reply has the zone's serial
	}{
		{"the first name", shopper, "web" + inShop, dns.TypeA, "", []string{"web" + inShop}, false},
		{"the first name, another client", stranger, "web" + inShop, dns.TypeA, "", []string{"web" + inShop}, false},
		{"the first name, NODATA", neighbor, "web" + inShop, dns.TypeAAAA, "", []string{"web" + inShop}, true},
		{"a Service of another namespace", shopper, "db.other" + inShop, dns.TypeA, "shop", []string{"db.other" + inShop, "db.other.svc.cluster.local."}, false},
		{"its NODATA", shopper, "db.other" + inShop, dns.TypeAAAA, "shop", []string{"db.other" + inShop, "db.other.svc.cluster.local."}, true},
		{"a whole name", shopper, "db.other.svc" + inShop, dns.TypeA, "shop", []string{"db.other.svc" + inShop, "db.other.svc.svc.cluster.local.", "db.other.svc.cluster.local."}, false},
		{"a name of the world", shopper, "www.example.org" + inShop, dns.TypeA, "shop", path("www.example.org"), false},
		{"no data in the world", shopper, "www.example.org" + inShop, dns.TypeAAAA, "shop", path("www.example.org"), false},
		{"an alias in the world", shopper, "alias" + inShop, dns.TypeA, "shop", path("alias")[:4], false},
		{"no name at all", shopper, "no.such" + inShop, dns.TypeA, "shop", path("no.such"), true},
		{"the world's name itself", stranger, www, dns.TypeA, "", []string{www}, false},
		{"a name that the world lacks", stranger, "no.such.", dns.TypeA, "", []string{"no.such."}, false},
		{"another's path", neighbor, "www.example.org" + inShop, dns.TypeA, "other", []string{"www.example.org" + inShop}, true},
		{"nobody's path", stranger, "www.example.org" + inShop, dns.TypeA, "", nil, false},
		{"below no first domain", stranger, "www.example.org.cluster.local.", dns.TypeA, "", []string{"www.example.org.cluster.local."}, true},
		{"a failure", shopper, "broken" + inShop, dns.TypeA, "", nil, false},
		{"an alias that leads out of the view", shopper, "out.other" + inShop, dns.TypeA, "", nil, false},
		{"what can't be moved", shopper, "signed.example.org" + inShop, dns.TypeCAA, "", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newSearchWorld(t, []string{"corp.test"})
			got, ok := w.copyFor(c.client, c.qname, c.qtype)
			if ok != (c.of != nil) {
				t.Fatalf("a copy: %t, want %t", ok, c.of != nil)
			}
			if !ok {
				return
			}
			marks, expires, last := w.basis(c.qtype, c.of...)
			if diff := gocmp.Diff(marks, marksOf(&got)); diff != "" {
				t.Errorf("the counters (-want +got):\n%s", diff)
			}
			ns, isKnown := "", got.Clients.Of != nil
			if isKnown {
				ns = string(got.Clients.Namespace[1:])
			}
			if ns != c.from || isKnown && got.Clients.Mark != w.cluster.ClientMark() {
				t.Errorf("for clients of %q by the mark %+v, want %q, %+v", ns, got.Clients.Mark, c.from, w.cluster.ClientMark())
			}
			if got.Expires != expires {
				t.Errorf("expires %v, want %v", got.Expires, expires)
			}
			if (got.Mark.Serial != 0) != c.serial {
				t.Errorf("the mark is %+v, with a serial: %t", got.Mark, c.serial)
			}
			inCluster, inCache := slices.ContainsFunc(marks, func(m epoch.Mark) bool { return m.Index < cachedBase }), expires != 0
			if got.FromCluster != inCluster || got.FromCache != inCache {
				t.Errorf("from the cluster %t, from the cache %t", got.FromCluster, got.FromCache)
			}
			if counts := inCache && !c.serial; got.CountsDown != counts || counts && (got.Ends != last.Expires || got.Life != last.Life) {
				t.Errorf("counts down %t to %v from %d, want %t, %v, %d", got.CountsDown, got.Ends, got.Life, counts, last.Expires, last.Life)
			}
		})
	}
}

// TestSearchCopyRefused: there is no copy if there is none of an answer that the reply is made of.
func TestSearchCopyRefused(t *testing.T) {
	logged := &resolver.Zone{Name: resolvertest.ZoneName(t, "corp.test."), AgentOnly: []string{"log"}}
	plain := &resolver.Zone{Name: resolvertest.ZoneName(t, "corp.test.")}
	var many []string
	for i := range 8 {
		many = append(many, fmt.Sprintf("d%d.test", i))
	}
	for _, c := range []struct {
		name   string
		search []string
		others []*resolver.Zone
		client netip.Addr
		want   string
	}{
		{"another server block", []string{"corp.test"}, []*resolver.Zone{plain}, shopper, ""},
		{"another server block with log", []string{"corp.test"}, []*resolver.Zone{logged}, shopper, "an answer for another name of the search path is not copied"},
		{"four domains", many[:4], nil, shopper, ""},
		{"eight domains", many, nil, shopper, "an answer for another name of the search path is not copied"},
		{"a client that is no pod", nil, nil, stranger, "the reply depends on the namespace of the client, which is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newSearchWorld(t, c.search, c.others...)
			name := "www.example.org" + inShop
			if _, ok := w.copyFor(c.client, name, dns.TypeA); ok != (c.want == "") {
				t.Errorf("a copy: %t", ok)
			}
			packet, err := question(name, dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			if e, _ := w.rt.Explain(packet, w.x.Client, resolver.UDP); e.NotCopied != c.want {
				t.Errorf("explained as %q, want %q", e.NotCopied, c.want)
			}
			w.x.Sources = nil
			w.ask(question(name, dns.TypeA))
			if _, ok := w.x.Reusable(); ok {
				t.Error("a copy of a reply whose sources were not collected")
			}
		})
	}
}

// TestSearchCopyOfFile: the search path of a file is every client's.
func TestSearchCopyOfFile(t *testing.T) {
	w := newSearchWorld(t, nil)
	w.zone.Autopath = resolver.NewAutopath(&config.Autopath{Search: []wire.Name{
		resolvertest.ZoneName(t, "shop.svc.cluster.local"), resolvertest.ZoneName(t, "svc.cluster.local"),
	}}, nil)
	for name, of := range map[string][]string{
		"db.other" + inShop: {"db.other" + inShop, "db.other.svc.cluster.local."},
		"no.such" + inShop:  {"no.such" + inShop, "no.such.svc.cluster.local.", "no.such."},
	} {
		got, ok := w.copyFor(stranger, name, dns.TypeA)
		if !ok || got.Clients.Of != nil {
			t.Errorf("%s: a copy %t, for the clients %+v", name, ok, got.Clients)
		}
		marks, _, _ := w.basis(dns.TypeA, of...)
		if diff := gocmp.Diff(marks, marksOf(&got)); diff != "" {
			t.Errorf("%s: the counters (-want +got):\n%s", name, diff)
		}
	}
}

// TestSearchCopyNotShared: a query that waits does not write to the sources of the request that it was.
func TestSearchCopyNotShared(t *testing.T) {
	var r, w resolver.Request
	r.Sources = new(resolver.ReplySources)
	packet, err := question("www.example.org"+inShop, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	r.Query.Packet = packet
	if r.Parse() != wire.Serve {
		t.Fatal("no query")
	}
	r.Detach(t.Context(), &w, nil, nil)
	if w.Sources != nil || r.Sources == nil {
		t.Errorf("the copy has %p, the request %p", w.Sources, r.Sources)
	}
}

// TestReportSearchHits: an answer of a copy counts as one of the agent, with all look-ups that it takes, and keeps all
// names in use.
func TestReportSearchHits(t *testing.T) {
	for _, name := range []string{"www.example.org" + inShop, "db.other" + inShop, "no.such" + inShop, "web" + inShop, "www.example.org."} {
		w := newSearchWorld(t, []string{"corp.test"})
		if _, ok := w.copyFor(shopper, name, dns.TypeA); !ok {
			t.Fatalf("%s: no copy", name)
		}
		sums := func() (n [6]uint64) {
			for _, m := range requests(w.zone.Stats) {
				n[0] += m
			}
			w.zone.Stats.EachResponse(func(rcode, plugin string, m uint64) {
				if (plugin == "autopath" || plugin == "kubernetes" || plugin == "cache") && strings.HasPrefix(rcode, "NO") {
					n[1] += m
				} else {
					n[2] += m
				}
			})
			hits := w.zone.Cache.Stats().Hits
			n[3], n[4], n[5] = w.zone.Stats.ViaSearch(), hits.Success, hits.Denial
			return n
		}
		delta := func(f func()) (d [6]uint64) {
			before := sums()
			f()
			for i, n := range sums() {
				d[i] = n - before[i]
			}
			return d
		}
		agent := delta(func() { w.ask(question(name, dns.TypeA)) })
		c, ok := w.x.Reusable()
		if !ok {
			t.Fatalf("%s: no copy", name)
		}
		copied := w.x.HitCounter(&c, 100)
		w.ask(question("db.other.svc.cluster.local.", dns.TypeA)) // which uses the same memory
		clear(w.cluster.touched)
		kernel := delta(func() { copied.ReportHits(1, time.Microsecond) })
		if diff := gocmp.Diff(agent, kernel); diff != "" || agent[0] != 1 {
			t.Errorf("%s: counts of the agent and of the kernel:\n%s", name, diff)
		}
		want := map[string]int{}
		if base, isOn := strings.CutSuffix(name, inShop); isOn && base != "web" {
			want = map[string]int{name: 1, base + ".svc.cluster.local.": 1, base + ".cluster.local.": 1}
			if base == "db.other" {
				delete(want, base+".cluster.local.")
			}
		} else if isOn {
			want = map[string]int{name: 1}
		}
		if diff := gocmp.Diff(want, w.cluster.touched); diff != "" {
			t.Errorf("%s: kept in use (-want +got):\n%s", name, diff)
		}
	}
}

// withHosts puts a running hosts table with by.hand in front of the world's other sources, and returns it.
func (w *searchWorld) withHosts(running bool) *hosts.Table {
	w.t.Helper()
	const bits = 2
	h, err := hosts.New(&config.Hosts{
		File: w.t.TempDir() + "/none", Zones: []wire.Name{wire.Root}, Inline: []string{"192.0.2.9 by.hand"}, TTL: 3600, Fallthrough: &config.Fallthrough{},
	}, hosts.Options{Epochs: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 2*cachedBase, bits)})
	if err != nil {
		w.t.Fatal(err)
	}
	if running {
		done := make(chan struct{})
		go func() { h.Run(w.t.Context()); close(done) }()
		w.t.Cleanup(func() { <-done })
		for h.Mark().Index == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	w.zone.Hosts = h
	return h
}

// TestHostsCopy: what comes after a hosts table depends on the table, and so do its own answers. There is no copy while it
// has no mark.
func TestHostsCopy(t *testing.T) {
	for _, c := range []struct {
		name string
		of   []string // the names that were asked of other sources
		v6   bool
	}{
		{"by.hand.", nil, false},
		{"by.hand.", nil, true},
		{"web" + inShop, []string{"web" + inShop}, false},
		{"www.example.org.", []string{"www.example.org."}, false},
		{"www.example.org" + inShop, []string{"www.example.org" + inShop, "www.example.org.svc.cluster.local.", "www.example.org.cluster.local.", "www.example.org."}, false},
		{"by.hand" + inShop, []string{"by.hand" + inShop, "by.hand.svc.cluster.local.", "by.hand.cluster.local."}, false},
	} {
		qtype := dns.TypeA
		if c.v6 {
			qtype = dns.TypeAAAA // NODATA without a record
		}
		w := newSearchWorld(t, nil)
		h := w.withHosts(true)
		got, ok := w.copyFor(shopper, c.name, qtype)
		if !ok {
			t.Errorf("%s: no copy", c.name)
			continue
		}
		marks, expires, _ := w.basis(qtype, c.of...)
		if diff := gocmp.Diff(sortedMarks(append(marks, h.Mark())), marksOf(&got)); diff != "" {
			t.Errorf("%s: the counters (-want +got):\n%s", c.name, diff)
		}
		if got.Expires != expires || got.CountsDown != (expires != 0) {
			t.Errorf("%s: expires %v, want %v; counts down %t", c.name, got.Expires, expires, got.CountsDown)
		}
		if isOn := strings.HasSuffix(c.name, inShop) && c.name != "web"+inShop; (got.Clients.Of != nil) != isOn {
			t.Errorf("%s: for the clients %+v", c.name, got.Clients)
		}
		idle := newSearchWorld(t, nil)
		idle.withHosts(false)
		if _, ok := idle.copyFor(shopper, c.name, qtype); ok {
			t.Errorf("%s: a copy without a mark of the hosts table", c.name)
		}
	}
}

// TestReportHostsHits: answers of a hosts table are counted as its answers.
func TestReportHostsHits(t *testing.T) {
	w := newSearchWorld(t, nil)
	w.withHosts(true)
	c, ok := w.copyFor(shopper, "by.hand.", dns.TypeA)
	if !ok {
		t.Fatal("no copy")
	}
	count := func() (n uint64) {
		w.zone.Stats.EachResponse(func(rcode, plugin string, m uint64) {
			if rcode == "NOERROR" && plugin == "hosts" {
				n += m
			}
		})
		return n
	}
	before := count()
	w.x.HitCounter(&c, 50).ReportHits(7, time.Microsecond)
	if got := count() - before; got != 7 {
		t.Errorf("%d of 7 answers counted", got)
	}
}

// TestSearchCopyAllocs: a reply that is copied again and again takes no memory.
func TestSearchCopyAllocs(t *testing.T) {
	w := newSearchWorld(t, []string{"corp.test"})
	name := "www.example.org" + inShop
	if _, ok := w.copyFor(shopper, name, dns.TypeA); !ok {
		t.Fatal("no copy")
	}
	packet, err := question(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		w.serve(packet)
		if _, ok := w.x.Reusable(); !ok {
			t.Fatal("no copy")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
