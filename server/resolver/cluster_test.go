package resolver_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

const manifests = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.9}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: other}
spec: {clusterIP: 10.96.0.10, ports: [{name: sql, port: 5432, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: other}
spec: {type: ExternalName, externalName: www.example.org}
---
apiVersion: v1
kind: Service
metadata: {name: lost, namespace: other}
spec: {type: ExternalName, externalName: intern.example.org}
`

// partial is a cluster out of a file of which the view may lack a part.
type partial struct {
	*kubernetes.Zone

	mu    sync.Mutex
	gaps  map[string]kubernetes.Outcome // for names, as in a question
	homes map[netip.Addr][]byte
	// awaited is called in Await, outside of the lock. nil: Await fails.
	awaited func(ctx context.Context) error
	awaits  int
}

func newPartial(t testing.TB, zones ...string) *partial {
	t.Helper()
	return newPartialWith(t, kubernetes.Options{}, zones...)
}

func newPartialWith(t testing.TB, opts kubernetes.Options, zones ...string) *partial {
	t.Helper()
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Kubernetes{Manifests: []string{file}, TTL: 30}
	for _, z := range zones {
		cfg.Zones = append(cfg.Zones, resolvertest.ZoneName(t, z))
	}
	view, err := kubernetes.Open(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &partial{Zone: kubernetes.NewZone(view, cfg), gaps: map[string]kubernetes.Outcome{}, homes: map[netip.Addr][]byte{}}
}

func (p *partial) Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.gaps) > 0 {
		if outcome, ok := p.gaps[wire.Name(q.Name()).String()]; ok {
			return outcome, ""
		}
	}
	return p.Zone.Answer(q, r, b)
}

func (p *partial) Await(ctx context.Context, _ *wire.Query) error {
	p.mu.Lock()
	p.awaits++
	awaited := p.awaited
	p.mu.Unlock()
	if awaited == nil {
		return errors.New("in vain")
	}
	return awaited(ctx)
}

// waited is how often somebody has begun to wait.
func (p *partial) waited() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.awaits
}

func (p *partial) ClientNamespace(client netip.Addr) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ns, ok := p.homes[client]
	return ns, ok
}

// lacks says what the view answers for name; [kubernetes.Answered] is what the file
// says.
func (p *partial) lacks(name string, outcome kubernetes.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gaps[name] = outcome
	if outcome == kubernetes.Answered {
		delete(p.gaps, name)
	}
}

// live says that the client is a pod of the namespace; "" is no pod.
func (p *partial) live(client netip.Addr, namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.homes[client] = append([]byte{byte(len(namespace))}, namespace...)
	if namespace == "" {
		delete(p.homes, client)
	}
}

func always(*upstream.Pool) bool { return true }

// counts are the replies of a zone by rcode and plugin, once there are n of them.
func counts(t *testing.T, s *resolver.Stats, n uint64) map[string]uint64 {
	t.Helper()
	var got map[string]uint64
	eventually(t, "the replies to be counted", func() bool {
		got = make(map[string]uint64)
		var sum uint64
		s.EachResponse(func(rcode, plugin string, n uint64) { got[rcode+" "+plugin] += n; sum += n })
		return sum >= n
	})
	return got
}

// TestElsewhere: what the view lacks is asked of the cluster's own DNS, else the query
// waits for it; no other server is asked for a name of the cluster.
func TestElsewhere(t *testing.T) {
	const name = "web.shop.svc.cluster.local."
	arrive := func(p *partial) func(context.Context) error {
		return func(context.Context) error { p.lacks(name, kubernetes.Answered); return nil }
	}
	for _, c := range []struct {
		name    string
		outcome kubernetes.Outcome
		dns     func(*upstream.Pool) bool
		awaited func(*partial) func(context.Context) error
		rcode   int
		want    string
		asked   int // of the upstream
		plugin  string
		logged  string
	}{
		{"elsewhere, asked of the cluster DNS", kubernetes.Incomplete, always, nil, dns.RcodeSuccess, "192.0.2.1", 1, "NOERROR forward", ""},
		{"elsewhere, awaited", kubernetes.Incomplete, nil, arrive, dns.RcodeSuccess, "10.96.0.9", 0, "NOERROR kubernetes", ""},
		{"elsewhere, awaited in vain", kubernetes.Incomplete, nil, nil, dns.RcodeServerFailure, "", 0, "SERVFAIL ", "has not loaded the objects that the answer needs: in vain"},
		{"elsewhere, still after waiting", kubernetes.Incomplete, nil, func(*partial) func(context.Context) error {
			return func(context.Context) error { return nil }
		}, dns.RcodeServerFailure, "", 0, "SERVFAIL ", "has not loaded the objects that the answer needs\""},
		{"elsewhere, forwarded after waiting", kubernetes.Incomplete, nil, func(p *partial) func(context.Context) error {
			return func(context.Context) error { p.lacks(name, kubernetes.NotMine); return nil }
		}, dns.RcodeSuccess, "192.0.2.1", 1, "NOERROR forward", ""},
		{"not synced, asked of the cluster DNS", kubernetes.NotSynced, always, nil, dns.RcodeSuccess, "192.0.2.1", 1, "NOERROR forward", ""},
		{"not synced, and nobody to ask", kubernetes.NotSynced, nil, nil, dns.RcodeServerFailure, "", 0, "SERVFAIL ", ""},
		{"not synced after waiting", kubernetes.Incomplete, nil, func(p *partial) func(context.Context) error {
			return func(context.Context) error { p.lacks(name, kubernetes.NotSynced); return nil }
		}, dns.RcodeServerFailure, "", 0, "SERVFAIL ", ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.name+"/"+network, func(t *testing.T) {
				b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
				p := newPartial(t, "cluster.local")
				p.lacks(name, c.outcome)
				if c.awaited != nil {
					p.awaited = c.awaited(p)
				}
				var log bytes.Buffer
				z := &resolver.Zone{Name: wire.Root, Cluster: p, ClusterDNS: c.dns, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr()),
					Errors: &resolver.ErrorLog{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
				s, addr := start(t, server.Limits{}, z)
				m := query(t, network, addr, question(name, dns.TypeA))
				got := ""
				if len(m.Answer) == 1 {
					got = m.Answer[0].(*dns.A).A.String()
				}
				if m.Rcode != c.rcode || got != c.want {
					t.Errorf("%s %q, want %s %q", dns.RcodeToString[m.Rcode], got, dns.RcodeToString[c.rcode], c.want)
				}
				if n := b.CountName(name); n != c.asked {
					t.Errorf("the upstream was asked %d times, want %d", n, c.asked)
				}
				if counted := counts(t, z.Stats, 1); counted[c.plugin] != 1 {
					t.Errorf("counted %v, want one %q", counted, c.plugin)
				}
				if err := s.Shutdown(t.Context()); err != nil { // after it, nobody writes to the log
					t.Error(err)
				}
				if !strings.Contains(log.String(), c.logged) || c.logged == "" && log.Len() > 0 {
					t.Errorf("logged %q, want %q", &log, c.logged)
				}
			})
		}
	}
}

// TestElsewhereCached: what the cluster DNS said is kept, and hides nothing once the
// view has the name.
func TestElsewhereCached(t *testing.T) {
	const name = "web.shop.svc.cluster.local."
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	p := newPartial(t, "cluster.local")
	p.lacks(name, kubernetes.Incomplete)
	z := &resolver.Zone{Name: wire.Root, Cluster: p, ClusterDNS: always, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr())}
	_, addr := start(t, server.Limits{}, z)
	for _, want := range []string{"192.0.2.1", "192.0.2.1", "10.96.0.9", "192.0.2.1"} {
		if want == "10.96.0.9" {
			p.lacks(name, kubernetes.Answered)
		}
		m := query(t, "udp", addr, question(name, dns.TypeA))
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("got %v, want %s", m, want)
		}
		if want == "10.96.0.9" {
			p.lacks(name, kubernetes.Incomplete)
		}
	}
	if n := b.CountName(name); n != 1 {
		t.Errorf("the upstream was asked %d times, want once", n)
	}
}

// TestAwaitBound: a query does not wait for the view for ever.
func TestAwaitBound(t *testing.T) {
	p := newPartial(t, "cluster.local")
	p.lacks("web.shop.svc.cluster.local.", kubernetes.Incomplete)
	bounded := make(chan bool, 1)
	p.awaited = func(ctx context.Context) error {
		_, ok := ctx.Deadline()
		bounded <- ok
		return nil
	}
	_, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Cluster: p})
	query(t, "udp", addr, question("web.shop.svc.cluster.local.", dns.TypeA))
	if !<-bounded {
		t.Error("the wait has no end")
	}
}

// TestAwaitAge: what the cache holds is as old as it is after the wait.
func TestAwaitAge(t *testing.T) {
	const name = "web.shop.svc.cluster.local."
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	p := newPartial(t, "cluster.local")
	p.lacks(name, kubernetes.NotMine)
	const life = time.Second // the least
	kept := cache.NewStore(1<<20, cache.Options{}).NewCache(&config.Cache{Success: config.CacheLimits{Entries: 10, MaxTTL: life}})
	z := &resolver.Zone{Name: wire.Root, Cluster: p, Cache: kept, Forward: resolvertest.Pool(t, b.Addr())}
	rt := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	came := clock.Now()
	packet, err := question(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply := func(before time.Duration) *dns.Msg {
		x := resolver.Request{Arrival: came - before}
		x.Permit(t.Context())
		x.Query.Packet = packet
		if x.Parse() != wire.Serve {
			t.Fatal("not a query")
		}
		x.Begin(rt, x.Arrival, nil)
		if rt.Resolve(&x) == resolver.Forward {
			x.Forward()
		}
		if err := x.Err(); err != nil {
			t.Fatal(err)
		}
		if x.Arrival != came-before {
			t.Error("the query is not as old any more as it was")
		}
		m := new(dns.Msg)
		if err := m.Unpack(x.Reply().Finish(wire.MaxMessage)); err != nil {
			t.Fatal(err)
		}
		return m
	}
	reply(0)
	since := clock.Now()
	p.lacks(name, kubernetes.Incomplete)
	p.awaited = func(context.Context) error { p.lacks(name, kubernetes.NotMine); return nil }
	eventually(t, "what is kept to be too old", func() bool { return clock.Now() > since+life })
	reply(0) // it came before
	if n := b.CountName(name); n != 2 {
		t.Errorf("the upstream was asked %d times, want again for what was too old after the wait", n)
	}
}

// TestAwaitShutdown: a query that waits for the view is answered when the server ends,
// or dropped when time is up.
func TestAwaitShutdown(t *testing.T) {
	const name = "web.shop.svc.cluster.local."
	for _, c := range []struct {
		name   string
		answer bool
	}{{"answered", true}, {"dropped", false}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPartial(t, "cluster.local")
			p.lacks(name, kubernetes.Incomplete)
			waits, arrived := make(chan struct{}), make(chan struct{})
			p.awaited = func(ctx context.Context) error {
				close(waits)
				select {
				case <-arrived:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
			s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
			z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Cluster: p}
			if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
				t.Fatal(err)
			}
			conn, err := dns.DialTimeout("udp", addr.String(), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.WriteMsg(question(name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			<-waits
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(ctx) }()
			if !c.answer {
				cancel()
				if err := <-ended; err == nil {
					t.Error("Shutdown says that nothing was dropped")
				}
				return
			}
			p.lacks(name, kubernetes.Answered)
			close(arrived)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if counted := counts(t, z.Stats, 1); counted["NOERROR kubernetes"] != 1 {
				t.Errorf("counted %v", counted)
			}
		})
	}
}

// outside is a k8s_external of one name.
type outside struct {
	resolver.External // nil: its zones are not transferred
	name              string
	awaited           func() error

	mu      sync.Mutex
	outcome kubernetes.Outcome
}

// setOutcome makes Answer return it from now on.
func (o *outside) setOutcome(to kubernetes.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcome = to
}

func (o *outside) Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	if wire.Name(q.Name()).String() != o.name {
		return kubernetes.NotMine, ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch o.outcome {
	case kubernetes.Answered:
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{203, 0, 113, 1})
	case kubernetes.Alias:
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeCNAME, 5, []byte("\x02lb\x04test\x00"))
		return kubernetes.Alias, "\x02lb\x04test\x00"
	}
	return o.outcome, ""
}

func (o *outside) Await(context.Context, *wire.Query) error { return o.awaited() }

// TestExternal: names outside of the cluster come before those inside, and what the
// view lacks of them is not asked of anybody else.
func TestExternal(t *testing.T) {
	for _, c := range []struct {
		name, qname string
		outcome     kubernetes.Outcome
		rcode       int
		want        string
		plugin      string
	}{
		{"its own", "web.shop.example.org.", kubernetes.Answered, dns.RcodeSuccess, "203.0.113.1", "NOERROR k8s_external"},
		{"before the cluster", "web.shop.svc.cluster.local.", kubernetes.Answered, dns.RcodeSuccess, "203.0.113.1", "NOERROR k8s_external"},
		{"through to the cluster", "web.shop.svc.cluster.local.", kubernetes.NotMine, dns.RcodeSuccess, "10.96.0.9", "NOERROR kubernetes"},
		{"through to the upstream", "web.shop.example.org.", kubernetes.NotMine, dns.RcodeSuccess, "192.0.2.1", "NOERROR forward"},
		{"not synced", "web.shop.example.org.", kubernetes.NotSynced, dns.RcodeServerFailure, "", "SERVFAIL "},
		{"a load balancer's name", "web.shop.example.org.", kubernetes.Alias, dns.RcodeSuccess, "192.0.2.1", "NOERROR k8s_external"},
		{"awaited", "web.shop.example.org.", kubernetes.Incomplete, dns.RcodeSuccess, "203.0.113.1", "NOERROR k8s_external"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &outside{name: c.qname, outcome: c.outcome}
			o.awaited = func() error { o.setOutcome(kubernetes.Answered); return nil }
			z := &resolver.Zone{Name: wire.Root, External: o, Cluster: newPartial(t, "cluster.local"), ClusterDNS: always,
				Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1")).Addr())}
			_, addr := start(t, server.Limits{}, z)
			m := query(t, "udp", addr, question(c.qname, dns.TypeA))
			got := ""
			for _, rr := range m.Answer {
				if a, ok := rr.(*dns.A); ok {
					got = a.A.String()
				}
			}
			if m.Rcode != c.rcode || got != c.want {
				t.Errorf("%s %q, want %s %q", dns.RcodeToString[m.Rcode], got, dns.RcodeToString[c.rcode], c.want)
			}
			if counted := counts(t, z.Stats, 1); counted[c.plugin] != 1 {
				t.Errorf("counted %v, want one %q", counted, c.plugin)
			}
		})
	}
}

// TestOrdered: the order of the cluster's answers is left alone, that of others is not.
func TestOrdered(t *testing.T) {
	var lines []string
	for i := range 8 {
		lines = append(lines, "10.0.0."+itoa(i+1)+" many.test")
	}
	ordered := &ordered{}
	search := resolver.NewAutopath(&config.Autopath{Search: []wire.Name{resolvertest.ZoneName(t, "first.test"), resolvertest.ZoneName(t, "second.test")}}, nil)
	_, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Hosts: resolvertest.Hosts(t, true, lines...), Autopath: search, Cluster: ordered, Shuffle: true, Ordered: true},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "shuffled.test"), Cluster: ordered, Shuffle: true})
	orders := func(name string) int {
		seen := make(map[string]bool)
		for range 20 {
			var order []string
			for _, rr := range query(t, "udp", addr, question(name, dns.TypeA)).Answer {
				if a, ok := rr.(*dns.A); ok {
					order = append(order, a.A.String())
				}
			}
			if len(order) != 8 {
				t.Fatalf("%s has %d addresses", name, len(order))
			}
			seen[strings.Join(order, " ")] = true
		}
		return len(seen)
	}
	for _, c := range []struct {
		name     string
		shuffled bool
	}{{"cluster.test.", false}, {"many.test.", true}, {"shuffled.test.", true}, {"x.first.test.", false}, {"many.test.", true}} {
		if n := orders(c.name); (n > 1) != c.shuffled {
			t.Errorf("%s comes in %d orders", c.name, n)
		}
	}
}

// ordered answers every question with eight addresses, but for those below first.test,
// where no names are.
type ordered struct{ resolver.Cluster }

func (*ordered) Origins() []wire.Name { return []wire.Name{wire.Root} }

func (*ordered) Rotatable(*wire.Query, *kubernetes.Budget) bool { return false }

func (*ordered) Mark(*wire.Query, *wire.Reply, *kubernetes.Budget) (epoch.Mark, bool) {
	return epoch.Mark{}, false
}

func (*ordered) Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name) {
	if wire.Under(q.Name(), "\x05first\x04test\x00") {
		r.SetRcode(wire.NXDomain)
		return kubernetes.Answered, ""
	}
	for i := range byte(8) {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 0, 1, i})
	}
	return kubernetes.Answered, ""
}
