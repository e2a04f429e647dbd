package resolver_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/collector"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// exporterTo returns an exporter to a collector. It sends when stop is called, and is then at its end.
func exporterTo(t *testing.T, c *collector.Collector) (e *otlp.Exporter, stop func()) {
	t.Helper()
	e = otlp.New(otlp.Options{Endpoint: c.URL, Logger: slog.New(slog.DiscardHandler)})
	return e, func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Run(ctx)
	}
}

// tree writes spans as text: a line for each, with its attributes, indented below its parent. It checks what all
// spans have in common.
func tree(t *testing.T, spans []collector.Span) (lines []string) {
	t.Helper()
	ids := make(map[string]bool)
	var below func(parent collector.Span, depth int)
	below = func(parent collector.Span, depth int) {
		for _, s := range spans {
			if s.Parent != parent.ID || parent.ID != "" && s.Trace != parent.Trace {
				continue
			}
			if len(s.Trace) != 32 || len(s.ID) != 16 || ids[s.ID] {
				t.Errorf("span %s in trace %s, which is no identity or not unique", s.ID, s.Trace)
			}
			ids[s.ID] = true
			if s.End.Before(s.Start) || parent.ID != "" && (s.Start.Before(parent.Start) || s.End.After(parent.End)) {
				t.Errorf("%s: from %v to %v, and its parent from %v to %v", s.Name, s.Start, s.End, parent.Start, parent.End)
			}
			line := strings.Repeat("  ", depth) + s.Name
			for _, key := range slices.Sorted(maps.Keys(s.Attrs)) {
				if key != "server.port" && key != "nodens.cache.age" {
					line += fmt.Sprintf(" %s=%v", strings.TrimPrefix(key, "nodens."), s.Attrs[key])
				}
			}
			if s.Failed {
				line += " FAILED"
			}
			lines = append(lines, line)
			below(s, depth+1)
		}
	}
	below(collector.Span{}, 0)
	return lines
}

const (
	clientAttrs  = "client.address=10.0.0.1 client.port=53"
	upstreamLine = "    dns.upstream network.protocol.name=dns network.transport=udp %s server.address=127.0.0.1"
)

// rootLine returns the line of a query of shopPod.
func rootLine(name, rest string) string {
	return "dns.query " + clientAttrs + " dns.question.name=" + name + " k8s.namespace.name=shop k8s.pod.name=web-1" +
		" network.protocol.name=dns network.transport=udp " + rest + " workload=Deployment/web zone=."
}

// TestSpans: which queries have spans, and what they say.
func TestSpans(t *testing.T) {
	d := countedDesk(t)
	d.rt.Owners = d.rt.Clients
	d.rt.Owners.SetPod(netip.MustParseAddr("10.0.0.1"), shopPod)
	c := collector.Start(t)
	e, stop := exporterTo(t, c)
	d = traced(d, &resolver.Tracing{To: e, Every: 1})
	var cluster *partial
	for z := range d.rt.Zones() {
		if z.Cluster != nil {
			cluster = z.Cluster.(*partial)
		}
	}
	cluster.lacks("web.shop.svc.cluster.local.", kubernetes.Incomplete)
	cluster.awaited = func(context.Context) error {
		cluster.lacks("web.shop.svc.cluster.local.", kubernetes.Answered)
		return nil
	}
	for _, name := range []string{
		"www.example.org.", "www.example.org.", "by.hand.", "db.other.svc.cluster.local.", "nosuch.test.",
		"lost.other.svc.cluster.local.", "out.other.svc.cluster.local.", "web.shop.svc.cluster.local.",
	} {
		d.from("10.0.0.1:53", resolver.UDP).ask(question(name, dns.TypeA))
	}
	stop()
	want := []string{
		rootLine("www.example.org", "cache=miss question.type=A rcode=NOERROR selected=sampled source=forward"),
		"  dns.forward",
		fmt.Sprintf(upstreamLine, "rcode=NOERROR upstream.protocol=udp upstream.used=true"),
		rootLine("nosuch.test", "cache=miss question.type=A rcode=NXDOMAIN selected=sampled source=forward"),
		"  dns.forward",
		fmt.Sprintf(upstreamLine, "rcode=NXDOMAIN upstream.protocol=udp upstream.used=true"),
		rootLine("lost.other.svc.cluster.local", "cache=miss question.type=A rcode=NOERROR selected=sampled source=kubernetes"),
		"  dns.forward dns.question.name=intern.example.org question.type=A",
		fmt.Sprintf(upstreamLine, "rcode=NOERROR upstream.protocol=udp upstream.used=true"),
		rootLine("web.shop.svc.cluster.local", "question.type=A rcode=NOERROR selected=sampled source=kubernetes"),
		"  kubernetes.view",
	}
	if diff := cmp.Diff(want, tree(t, c.Spans())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSpansOfOthersExchange: a query that waits for the exchange of another client says so, and one for which the cache has an
// answer by then has no span.
func TestSpansOfOthersExchange(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		close(asked)
		<-answer
		return fakedns.Address(q, 60, "192.0.2.1")
	})
	c := collector.Start(t)
	e, stop := exporterTo(t, c)
	z := &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, b.Addr()), Tracing: &resolver.Tracing{To: e, Every: 1}}
	d := newDesk(t, z)
	second := &counterDesk{t: t, rt: d.rt, out: make([]byte, 0, replyBuffer)}
	var both sync.WaitGroup
	both.Go(func() { d.from("10.0.0.1:53", resolver.UDP).ask(question("www.example.org.", dns.TypeA)) })
	<-asked
	both.Go(func() { second.from("10.0.0.1:53", resolver.UDP).ask(question("www.example.org.", dns.TypeA)) })
	eventually(t, "the second query to wait", func() bool { return z.Cache.Stats().Requests == 2 })
	close(answer)
	both.Wait()
	stop()
	joined := 0
	for _, s := range c.Named("dns.forward") {
		if s.Attrs["nodens.joined"] == true {
			joined++
		}
	}
	if n := len(c.Named("dns.query")); n != 2 || joined != 1 || len(c.Named("dns.upstream")) != 1 {
		t.Errorf("%d queries with spans, of which %d joined:\n%s", n, joined, strings.Join(tree(t, c.Spans()), "\n"))
	}
}

// traced returns d with other routes, of the same zones with tracing.
func traced(d *counterDesk, tracing *resolver.Tracing) *counterDesk {
	var zones []*resolver.Zone
	for z := range d.rt.Zones() {
		z.Tracing = tracing
		zones = append(zones, z)
	}
	old := d.rt
	d.rt = resolver.NewRoutes(zones, resolver.NewStats())
	d.rt.Clients, d.rt.Owners, d.rt.Search, d.rt.Tail = old.Clients, old.Owners, old.Search, old.Tail
	return d
}

// TestSpansSelected: failed and slow queries have spans in any case, others one in N, and the look-ups of the
// collector's name never.
func TestSpansSelected(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		switch name := q.Question[0].Name; {
		case strings.HasPrefix(name, "fails."):
			return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		case strings.HasPrefix(name, "slow."):
			time.Sleep(20 * time.Millisecond) // what the query takes
		}
		return fakedns.Address(q, 60, "192.0.2.1")
	})
	for _, test := range []struct {
		every int64
		slow  time.Duration
		want  string
	}{
		{1, 0, "fails failed, slow sampled, quick sampled"},
		{0, 10 * time.Millisecond, "fails failed, slow slow"},
		{0, 0, "fails failed"},
		{1 << 40, 0, "fails failed"},
	} {
		c := collector.Start(t)
		e := otlp.New(otlp.Options{Endpoint: "http://Collector.test:" + c.URL[strings.LastIndexByte(c.URL, ':')+1:], Logger: slog.New(slog.DiscardHandler),
			Lookup: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			},
		})
		z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Tracing: &resolver.Tracing{To: e, Every: test.every, Slow: test.slow}}
		d := newDesk(t, z)
		for _, name := range []string{"fails.a.test.", "slow.a.test.", "quick.a.test.", "collector.test.", "COLLECTOR.test.search.test."} {
			d.from("192.0.2.9:53", resolver.UDP).ask(question(name, dns.TypeA))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Run(ctx)
		var got []string
		for _, s := range c.Named("dns.query") {
			first, _, _ := strings.Cut(s.Attrs["dns.question.name"].(string), ".")
			got = append(got, first+" "+s.Attrs["nodens.selected"].(string))
		}
		// Without a measurement a quick query may take as long as a slow one.
		if text := strings.Join(got, ", "); text != test.want && text != strings.Replace(test.want, "slow slow", "slow slow, quick slow", 1) {
			t.Errorf("every %d, slow %v: %s; want %s", test.every, test.slow, text, test.want)
		}
	}
}

// TestSpansOfFailures: the spans of queries that fail say why.
func TestSpansOfFailures(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) })
	gone := fakedns.Start(t, func(*fakedns.Query) {})
	addr := gone.Addr()
	gone.Close()
	c := collector.Start(t)
	e, stop := exporterTo(t, c)
	tracing := &resolver.Tracing{To: e}
	d := newDesk(t,
		&resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Tracing: tracing},
		&resolver.Zone{Name: resolvertest.ZoneName(t, "gone.test"), Forward: resolvertest.Pool(t, addr), Tracing: tracing},
	)
	for _, name := range []string{"a.test.", "b.gone.test."} {
		d.from("10.0.0.1:53", resolver.TCP).ask(question(name, dns.TypeA))
	}
	stop()
	got := tree(t, c.Spans())
	for i, want := range []string{
		"dns.query " + clientAttrs + " dns.question.name=a.test error.type=SERVFAIL network.protocol.name=dns network.transport=tcp question.type=A rcode=SERVFAIL selected=failed source=forward zone=. FAILED",
		"  dns.forward",
		"    dns.upstream error.type=SERVFAIL network.protocol.name=dns network.transport=tcp rcode=SERVFAIL upstream.protocol=tcp upstream.used=true server.address=127.0.0.1 FAILED",
		"dns.query " + clientAttrs + " dns.question.name=b.gone.test error.type=SERVFAIL network.protocol.name=dns network.transport=tcp question.type=A rcode=SERVFAIL selected=failed source=forward zone=gone.test. FAILED",
		"  dns.forward error.type=connection_refused FAILED",
		"    dns.upstream error.type=connection_refused network.protocol.name=dns network.transport=tcp upstream.protocol=tcp server.address=127.0.0.1 FAILED",
	} {
		if i >= len(got) || got[i] != want {
			t.Fatalf("line %d is not\n%s:\n%s", i, want, strings.Join(got, "\n"))
		}
	}
}
