package resolver_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// crowded is a cluster in which a tenant has n Services on one pod, and what it came to
// with and without a budget.
type crowded struct {
	*kubernetes.Zone

	mu      sync.Mutex
	budgets map[*kubernetes.Budget]int // asked with it; nil is no budget
	large   int
}

func newCrowded(t testing.TB, n int) *crowded {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: s%d, namespace: shop}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%d, namespace: shop, labels: {kubernetes.io/service-name: s%d}}
addressType: IPv4
endpoints: [{addresses: [10.1.2.3]}]
`, i, i, i)
	}
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30, Zones: []wire.Name{resolvertest.ZoneName(t, "cluster.local"), resolvertest.ZoneName(t, "in-addr.arpa")}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &crowded{Zone: kubernetes.NewZone(view, cfg), budgets: make(map[*kubernetes.Budget]int)}
}

func (c *crowded) Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	outcome, target := c.Zone.Answer(q, r, b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budgets[b]++
	if outcome == kubernetes.OverBudget {
		c.large++
	}
	return outcome, target
}

// AnswerLarge is Answer without a budget: nothing is kept.
func (c *crowded) AnswerLarge(q *wire.Query, r *wire.Reply) (kubernetes.Outcome, wire.Name) {
	return c.Answer(q, r, nil)
}

// asked is how often it was asked with a budget and without one, and how often that was
// not enough, since the last time.
func (c *crowded) asked() (bounded, free, large int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, n := range c.budgets {
		if b == nil {
			free += n
		} else {
			bounded += n
		}
	}
	large = c.large
	clear(c.budgets)
	c.large = 0
	return bounded, free, large
}

const crowdName = "3.2.1.10.in-addr.arpa."

// TestLarge: what takes a reader too long is answered by a worker, whole; what is cut
// anyway, or small, by the reader.
func TestLarge(t *testing.T) {
	const all = 300
	c := newCrowded(t, all)
	z := &resolver.Zone{Name: wire.Root, Cluster: c, Bufsize: 0xFFFF}
	_, addr := start(t, server.Limits{}, z)
	for _, v := range []struct {
		name, network string
		size          uint16
		answers       int // the least
		large         int
		cut           bool
	}{
		{"whole over UDP", "udp", 0xFFFF, all, 1, false},
		{"whole over TCP", "tcp", 0xFFFF, all, 1, false},
		{"cut over UDP", "udp", 1232, 20, 0, true},
		{"cut to the least", "udp", 512, 5, 0, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			q := question(crowdName, dns.TypePTR).SetEdns0(v.size, false)
			m := asFrom(t, loopback, v.network, addr, q)
			if m.Rcode != dns.RcodeSuccess || len(m.Answer) < v.answers || m.Truncated != v.cut {
				t.Errorf("%s with %d answers, cut: %v", dns.RcodeToString[m.Rcode], len(m.Answer), m.Truncated)
			}
			if bounded, free, large := c.asked(); bounded != 1 || free != v.large || large != v.large {
				t.Errorf("a reader asked %d times, of which %d were large, and a worker %d times; want 1, %d and %d", bounded, large, free, v.large, v.large)
			}
		})
	}
}

// TestLargeIsShed: without a place for those that wait, a large answer is none, and the
// reader goes on. There is no place when work that has lost its own does not end.
func TestLargeIsShed(t *testing.T) {
	c := newCrowded(t, 300)
	s, addr := start(t, server.Limits{Waiting: 1}, &resolver.Zone{Name: wire.Root, Cluster: c, Bufsize: 0xFFFF})
	ask := func(network string) *dns.Msg {
		return query(t, network, addr, question(crowdName, dns.TypePTR).SetEdns0(0xFFFF, false))
	}
	hang := make(chan struct{})
	defer close(hang)
	for shed := false; !shed; {
		for s.Usage().Waiting.Used > 0 {
			runtime.Gosched()
		}
		if !s.Go(func(context.Context) { <-hang }) {
			t.Fatal("no place in an idle server")
		}
		shed = ask("udp").Rcode == dns.RcodeServerFailure
	}
	for _, network := range []string{"udp", "tcp"} {
		if m := ask(network); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %s", network, dns.RcodeToString[m.Rcode])
		}
		if m := query(t, network, addr, question("s1.shop.svc.cluster.local.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("%s: another name has %d addresses", network, len(m.Answer))
		}
	}
	n := uint64(0)
	s.EachShed(func(_ string, shed uint64) { n += shed })
	if n != 3 {
		t.Errorf("%d are counted, want 3", n)
	}
}

// TestOneBudget: all names that one query leads to share its budget, on a reader and on a worker.
func TestOneBudget(t *testing.T) {
	c := newCrowded(t, 3)
	path := resolver.NewTestAutopath([]byte("\x04shop"), resolver.SearchPath{
		Zone: resolvertest.ZoneName(t, "cluster.local"), First: resolvertest.ZoneName(t, "svc.cluster.local"),
		Rest: []wire.Name{resolvertest.ZoneName(t, "svc.cluster.local"), resolvertest.ZoneName(t, "cluster.local"), resolvertest.ZoneName(t, "a.cluster.local"), resolvertest.ZoneName(t, "b.cluster.local")},
	})
	for _, v := range []struct {
		name, asked string
		qtype       uint16
		zone        *resolver.Zone
		times       int
	}{
		{"search path", "nope.shop.svc.cluster.local.", dns.TypeA, &resolver.Zone{Autopath: path}, 5},
		{"addresses of the other family", "s1.shop.svc.cluster.local.", dns.TypeAAAA, &resolver.Zone{DNS64: resolver.NewDNS64(&config.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), AllowIPv4: true})}, 2},
	} {
		t.Run(v.name, func(t *testing.T) {
			v.zone.Name, v.zone.Cluster, v.zone.Stats = wire.Root, c, resolver.NewStats()
			rt := resolver.NewRoutes([]*resolver.Zone{v.zone}, resolver.NewStats())
			x := &resolver.Request{Client: netip.MustParseAddrPort("192.0.2.1:53")}
			var err error
			if x.Query.Packet, err = question(v.asked, v.qtype).Pack(); err != nil {
				t.Fatal(err)
			}
			if _, o := serve(rt, x, nil); o != resolver.Answered {
				t.Fatalf("it came to %d", o)
			}
			if n := c.budgets[x.Budget()]; n != v.times || len(c.budgets) != 1 {
				t.Errorf("%d times with the query's budget, want %d; and %d budgets", n, v.times, len(c.budgets))
			}
			c.asked()
			resume(rt, x, resolver.WouldWait)
			if bounded, free, _ := c.asked(); bounded != v.times || free != 0 {
				t.Errorf("a worker asks %d times with a budget, %d times without; want %d and none", bounded, free, v.times)
			}
		})
	}
}

// gatedView has one name whose answer is large. It makes answers only when it is told to, and counts how many it makes at a time.
type gatedView struct {
	*kubernetes.Zone

	entered, leave chan struct{}
	making, most   atomic.Int32
}

func (g *gatedView) Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	if b != nil {
		return kubernetes.OverBudget, ""
	}
	if n := g.making.Add(1); n > g.most.Load() {
		g.most.Store(n)
	}
	defer g.making.Add(-1)
	g.entered <- struct{}{}
	<-g.leave
	for range 200 {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeTXT, 60, append([]byte{200}, make([]byte, 200)...))
	}
	return kubernetes.Answered, ""
}

func (g *gatedView) AnswerLarge(q *wire.Query, r *wire.Reply) (kubernetes.Outcome, wire.Name) {
	return g.Answer(q, r, nil)
}

// TestLargeInTurn: large answers are made in turn, whoever asks and over which transport. A connection has one at a time,
// however many queries it has sent, and others are answered meanwhile.
func TestLargeInTurn(t *testing.T) {
	const clients, pipelined = 12, 8
	g := &gatedView{Zone: newCrowded(t, 1).Zone, entered: make(chan struct{}, clients*pipelined+clients), leave: make(chan struct{})}
	large := &resolver.Zone{Name: resolvertest.ZoneName(t, "cluster.local"), Cluster: g, Bufsize: 4096}
	small := &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand")}
	s, addr := start(t, server.Limits{}, large, small)
	var replies sync.WaitGroup
	for i := range clients {
		client := netip.AddrFrom4([4]byte{127, 0, 7, byte(1 + i)})
		replies.Go(func() { askPipelined(t, client, addr, "big.cluster.local.", pipelined) })
		replies.Go(func() {
			asFrom(t, client, "udp", addr, question("big.cluster.local.", dns.TypeTXT).SetEdns0(4096, false))
		})
	}
	<-g.entered
	// Each connection waits with one query, and each client over UDP.
	eventually(t, "all clients to wait", func() bool { return s.Usage().Waiting.Used == 2*clients })
	for _, network := range []string{"udp", "tcp"} {
		if m := asFrom(t, loopback, network, addr, question("by.hand.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("another query over %s: %v", network, m)
		}
	}
	close(g.leave)
	replies.Wait()
	if most := g.most.Load(); most > int32(max(1, runtime.GOMAXPROCS(0)/2)) {
		t.Errorf("%d large answers were made at a time", most)
	}
	if n := s.Usage().Waiting.Used; n != 0 {
		t.Errorf("%d queries wait at the end", n)
	}
}

// askPipelined sends n queries for name over one connection at once and reads the replies.
func askPipelined(t *testing.T, client netip.Addr, addr netip.AddrPort, name string, n int) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
	conn, err := d.Dial("tcp", addr.String())
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	c := dns.Conn{Conn: conn}
	for range n {
		if err := c.WriteMsg(question(name, dns.TypeTXT)); err != nil {
			t.Error(err)
			return
		}
	}
	for range n {
		if m, err := c.ReadMsg(); err != nil || len(m.Answer) != 200 {
			t.Errorf("got %v, %v", m, err)
			return
		}
	}
}

// TestLargeFlood: large answers that a client asks for over UDP wait for their turn without a goroutine each.
func TestLargeFlood(t *testing.T) {
	const queries = 300
	g := &gatedView{Zone: newCrowded(t, 1).Zone, entered: make(chan struct{}, queries), leave: make(chan struct{})}
	s, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Cluster: g, Bufsize: 4096})
	conn, err := net.Dial("udp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	packet, err := question("big.cluster.local.", dns.TypeTXT).Pack()
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for i := range queries {
		if _, err := conn.Write(packet); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the query to wait", func() bool { return s.Usage().Waiting.Used == i+1 })
	}
	if n := runtime.NumGoroutine() - before; n > queries/2 {
		t.Errorf("%d goroutines for %d queries", n, queries)
	}
	close(g.leave)
	eventually(t, "the queries to end", func() bool { return s.Usage().Waiting.Used == 0 })
}
