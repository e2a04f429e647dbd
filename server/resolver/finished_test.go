package resolver_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/test/race"
)

// shopPod is a pod, at 10.0.0.1.
var shopPod = clients.Pod{Namespace: "shop", Name: "web-1", UID: "u", Workload: clients.Workload{Kind: "Deployment", Name: "web"}}

// watchedDesk is countedDesk with a table of owners, and a subscription to all queries.
func watchedDesk(t testing.TB) (*counterDesk, *tail.Subscription) {
	t.Helper()
	d := countedDesk(t)
	d.rt.Owners, d.rt.Tail = d.rt.Clients, new(tail.Feed)
	d.rt.Owners.SetPod(netip.MustParseAddr("10.0.0.1"), shopPod)
	s, err := d.rt.Tail.Subscribe(tail.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return d, s
}

// TestFinished: what is known of each query, for those who watch and for the query log.
func TestFinished(t *testing.T) {
	d, s := watchedDesk(t)
	var out bytes.Buffer
	format := resolver.ParseFormat("{namespace} {pod} {workload} {source} {cache} {search_path} {upstream} {upstream_duration}")
	for z := range d.rt.Zones() {
		z.Log = &resolver.QueryLog{
			Logger: slog.New(slog.NewTextHandler(&out, nil)), Plain: true,
			Rules: []resolver.LogRule{{Success: true, Denial: true, Error: true, Format: format}},
		}
	}
	for _, step := range []struct {
		client, name string
		want         tail.Query
		line         string
	}{
		{"10.0.0.1:53", "web.shop.svc.cluster.local.", tail.Query{Source: "kubernetes"}, "shop web-1 Deployment/web kubernetes - - - -"},
		{"10.0.0.1:53", "www.example.com.shop.svc.cluster.local.", tail.Query{Source: "kubernetes", Rcode: "NXDOMAIN", SearchPath: "waste"}, "shop web-1 Deployment/web kubernetes - waste - -"},
		{"10.0.0.2:53", "by.hand.", tail.Query{Source: "hosts"}, "(unknown) - - hosts - - - -"},
		{"10.0.0.1:53", "www.example.org.", tail.Query{Source: "forward", Cache: "miss", Age: -1, Upstream: "UPSTREAM"}, "shop web-1 Deployment/web forward miss - UPSTREAM TIMEs"},
		{"10.0.0.1:53", "www.example.org.", tail.Query{Source: "cache", Cache: "hit"}, "shop web-1 Deployment/web cache hit - - -"},
		{"10.0.0.1:53", "nosuch.test.", tail.Query{Source: "forward", Rcode: "NXDOMAIN", Cache: "miss", Age: -1, Upstream: "UPSTREAM"}, "shop web-1 Deployment/web forward miss - UPSTREAM TIMEs"},
		{"192.0.2.8:53", "a.acl.test.", tail.Query{Source: "acl", Zone: "acl.test.", Rcode: "-"}, "(unknown) - - acl - - - -"},
	} {
		out.Reset()
		d.from(step.client, resolver.UDP).ask(question(step.name, dns.TypeA))
		got := <-s.Queries()
		want := step.want
		want.Client, want.Proto, want.Name, want.Type = netip.MustParseAddrPort(step.client), "udp", step.name, "A"
		want.Namespace = "(unknown)"
		if strings.HasPrefix(step.client, "10.0.0.1:") {
			want.Namespace, want.Pod, want.Workload = "shop", "web-1", "Deployment/web"
		}
		if want.Cache == "" {
			want.Age = -1
		}
		switch want.Rcode {
		case "":
			want.Rcode = "NOERROR"
		case "-":
			want.Rcode = ""
		}
		if want.Zone == "" {
			want.Zone = "."
		}
		if want.Upstream != "" {
			want.Upstream = got.Upstream
			if got.Exchange <= 0 || got.Exchange > got.Latency || !strings.HasPrefix(got.Upstream, "127.0.0.1:") {
				t.Errorf("%s: asked %s, %v of %v", step.name, got.Upstream, got.Exchange, got.Latency)
			}
		}
		if diff := cmp.Diff(&want, got, cmpopts.IgnoreFields(tail.Query{}, "Time", "Exchange", "Latency", "Age"), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
		if (got.Age == -1) != (want.Age == -1) || time.Since(got.Time) < got.Latency {
			t.Errorf("%s: age %v, at %v", step.name, got.Age, got.Time)
		}
		line := strings.NewReplacer("UPSTREAM", got.Upstream, "TIME", "").Replace(step.line)
		if text := out.String(); !strings.Contains(text, strings.TrimSuffix(line, "s")) {
			t.Errorf("%s: logged %q, want %q", step.name, text, line)
		}
	}
}

// TestTailAllocs: a hit of a client that nobody follows is not described, nor one beyond the limit of a second.
func TestTailAllocs(t *testing.T) {
	race.SkipSequential(t)
	d, all := watchedDesk(t)
	packet, err := question("by.hand.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	serve := func() {
		d.x.Arrival = clock.Now()
		d.serve(packet)
	}
	d.from("10.0.0.1:53", resolver.UDP)
	for range 1100 {
		serve()
	}
	// The next second has 24 places left in the queue.
	if n := testing.AllocsPerRun(3000, serve); n != 0 {
		t.Errorf("beyond the limit: %v allocations", n)
	}
	if limited, slow := all.Lost(); limited+slow < 3000 {
		t.Errorf("%d and %d queries are lost", limited, slow)
	}
	all.Close()
	other, err := d.rt.Tail.Subscribe(tail.Filter{Selected: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetClients([]netip.Addr{netip.MustParseAddr("10.0.0.2")})
	if n := testing.AllocsPerRun(200, serve); n != 0 {
		t.Errorf("with a tail of another client: %v allocations", n)
	}
}
