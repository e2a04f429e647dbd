package resolver_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestMetadata: the names of CoreDNS's metadata in a log.
func TestMetadata(t *testing.T) {
	d, _ := watchedDesk(t)
	d.rt.PodLabel = func(addr netip.Addr, uid, key string) string {
		if addr == netip.MustParseAddr("10.0.0.1") && uid == shopPod.UID && key == "app" {
			return "web"
		}
		return ""
	}
	var out bytes.Buffer
	const (
		client = "[{/kubernetes/client-namespace} {/kubernetes/client-pod-name} {/kubernetes/client-label/app} {/kubernetes/client-label/other}]"
		parts  = "[{/kubernetes/kind} {/kubernetes/namespace} {/kubernetes/service} {/kubernetes/endpoint} {/kubernetes/port-name} {/kubernetes/protocol} {/kubernetes/parse-error}]"
		others = "[{/view/name} {/forward/upstream} {/no/such} {/log/class}]"
	)
	log := &resolver.QueryLog{
		Logger: slog.New(slog.NewTextHandler(&out, nil)), Plain: true,
		Rules: []resolver.LogRule{{Success: true, Denial: true, Error: true, Format: resolver.ParseFormat(client + parts + others)}},
	}
	for z := range d.rt.Zones() {
		z.Log = log
		if z.Name == wire.Root {
			z.Metadata = []wire.Name{resolvertest.ZoneName(t, "cluster.local"), resolvertest.ZoneName(t, "example.org")}
		} else {
			z.Metadata = []wire.Name{wire.Root}
		}
	}
	for _, step := range []struct{ client, name, want string }{
		{"10.0.0.1:53", "web.shop.svc.cluster.local.", "[shop web-1 web -][svc shop web - - - -][- - - success]"},
		{"[::ffff:10.0.0.1]:53", "a.web.shop.svc.cluster.local.", "[shop web-1 web -][svc shop web a - - -][- - - denial]"},
		{"10.0.0.2:53", "_http._tcp.web.shop.svc.cluster.local.", "[- - - -][svc shop web - http tcp -][- - - denial]"},
		{"10.0.0.2:53", "x._http._tcp.web.shop.svc.cluster.local.", "[- - - -][- - - - - - invalid query name][- - - denial]"},
		{"10.0.0.2:53", "nosuch.cluster.local.", "[- - - -][- - - - - - invalid query name][- - - denial]"},
		{"10.0.0.2:53", "shop.svc.cluster.local.", "[- - - -][svc shop - - - - -][- - - "},
		{"10.0.0.2:53", "cluster.local.", "[- - - -][- - - - - - -][- - - "},
		{"10.0.0.1:53", "www.example.org.", "[shop web-1 web -][- - - - - - -][- 127.0.0.1:"},
		{"10.0.0.1:53", "by.hand.", "[- - - -][- - - - - - -][- - - success]"},    // outside of the zones of metadata
		{"10.0.0.1:53", "a.acl.test.", "[- - - -][- - - - - - -][- - - success]"}, // no cluster here
	} {
		out.Reset()
		d.from(step.client, resolver.UDP).ask(question(step.name, dns.TypeA))
		if text := out.String(); !strings.Contains(text, `"`+step.want) {
			t.Errorf("%s from %s: %s, want %s", step.name, step.client, text, step.want)
		}
	}
}

// TestClusterNames: the parts of names with a topology zone, and of those with a cluster's ID.
func TestClusterNames(t *testing.T) {
	var out bytes.Buffer
	const parts = "{/kubernetes/kind} {/kubernetes/service} {/kubernetes/endpoint} {/kubernetes/cluster} {/kubernetes/zone} {/kubernetes/protocol} {/kubernetes/parse-error}"
	z := &resolver.Zone{
		Name: wire.Root, Metadata: []wire.Name{wire.Root}, Cluster: newPartial(t, "cluster.local", "clusterset.local"),
		Multicluster: []wire.Name{resolvertest.ZoneName(t, "clusterset.local")}, Zonal: true,
		Log: &resolver.QueryLog{
			Logger: slog.New(slog.NewTextHandler(&out, nil)), Plain: true,
			Rules: []resolver.LogRule{{Success: true, Denial: true, Error: true, Format: resolver.ParseFormat(parts)}},
		},
	}
	d := newDesk(t, z).from("10.0.0.1:53", resolver.UDP)
	const invalid = "- - - - - - invalid query name"
	for name, want := range map[string]string{
		"a.pin._zone.web.shop.svc.cluster.local.":            "svc web - - a - -",
		"b.example.prefer._zone.web.shop.svc.cluster.local.": "svc web - - b.example - -",
		"a.other._zone.web.shop.svc.cluster.local.":          invalid,
		"a.pin._zone.web.shop.pod.cluster.local.":            invalid,
		"a.b.c.web.shop.svc.cluster.local.":                  invalid,
		"a.pin._zone.web.shop.svc.clusterset.local.":         invalid,
		"e.east.web.shop.svc.clusterset.local.":              "svc web e east - - -",
		"_http._tcp.web.shop.svc.clusterset.local.":          "svc web - - - tcp -",
		"e.east.web.shop.svc.cluster.local.":                 "svc web - - - east -", // as in CoreDNS
	} {
		out.Reset()
		d.ask(question(name, dns.TypeA))
		if text := out.String(); !strings.Contains(text, `"`+want+`"`) {
			t.Errorf("%s: %s, want %s", name, text, want)
		}
	}
}

// TestViewMetadata: a view selects pods by their namespace.
func TestViewMetadata(t *testing.T) {
	zone := func(view *resolver.View, addr string, metadata ...wire.Name) *resolver.Zone {
		return &resolver.Zone{Name: wire.Root, View: view, Metadata: metadata, Cluster: newPartial(t, "cluster.local"), Hosts: resolvertest.Hosts(t, false, addr+" www.a.test")}
	}
	const expression = "metadata('kubernetes/client-namespace') == 'shop'"
	d := newDesk(t,
		zone(viewOf(t, "without", expression), "192.0.2.1"),
		zone(viewOf(t, "shop", expression, "metadata('view/name') == 'shop'"), "192.0.2.2", wire.Root),
		zone(nil, "192.0.2.3"),
	)
	watched, _ := watchedDesk(t)
	d.rt.Owners = watched.rt.Owners
	for client, want := range map[string]string{"10.0.0.1:53": "192.0.2.2", "10.0.0.2:53": "192.0.2.3"} {
		if got := told(d.from(client, resolver.UDP).ask(asked("www.a.test. A"))); !strings.HasSuffix(got, want) {
			t.Errorf("%s gets %s, want %s", client, got, want)
		}
	}
}
