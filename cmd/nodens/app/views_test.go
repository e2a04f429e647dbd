// These tests use viewKey, clusterDNS and pools, which are not exported.

package app

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// assembled is the first block of a Corefile, made.
func assembled(t *testing.T, corefile string) *blockParts {
	t.Helper()
	cfg, err := config.Parse(config.Source{Text: []byte(corefile)})
	check.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	a := builder{opts: &options.Agent{}, log: log, stats: make(map[statsKey]*resolver.Stats), store: cache.NewStore(1<<20, cache.Options{}), directives: slices.Concat(directives[:], optional(log))}
	g, err := a.build(cfg, nil)
	check.NoError(t, err)
	t.Cleanup(func() { g.closeUnused(nil) })
	return g.blocks[0]
}

// TestClusterDNS: which upstreams are asked for what the view does not hold.
func TestClusterDNS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, file, "apiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\nspec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, \"fd00::a\"]}\n")
	for _, c := range []struct {
		name, keys, zones, from, to string
		want                        string // zones of the block for which it is the cluster DNS
	}{
		{"a block of the cluster's zones", "cluster.local in-addr.arpa", "cluster.local in-addr.arpa ip6.arpa", ".", "192.0.2.1", "cluster.local. in-addr.arpa."},
		{"a part of a reverse zone", "0.10.in-addr.arpa", "cluster.local in-addr.arpa", ".", "192.0.2.1", "0.10.in-addr.arpa."},
		{"one of two zones", "cluster.local example.org", "cluster.local", ".", "192.0.2.1", "cluster.local."},
		{"what gets the cluster's names only", ".", "cluster.local", "cluster.local", "192.0.2.1", "."},
		{"what gets a part of them", ".", "cluster.local", "svc.cluster.local", "192.0.2.1", "."},
		{"the world's names", ".", "cluster.local in-addr.arpa", ".", "192.0.2.1", ""},
		{"a zone above the cluster's", "local", "cluster.local", ".", "192.0.2.1", ""},
		{"another zone", ".", "cluster.local", "example.org", "192.0.2.1", ""},
		{"a cluster that is the world", ".", ".", "example.org", "192.0.2.1", ""},
		{"an address of a service", ".", "cluster.local", ".", "10.96.0.10", "."},
		{"its other family", ".", "cluster.local", ".", "192.0.2.1 [fd00::a]:53", "."},
		{"a service itself", ".", "cluster.local", ".", "k8s:kube-system/kube-dns", "."},
		{"no address of a service", ".", "cluster.local", ".", "10.96.0.11 fd00::b", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := assembled(t, c.keys+" {\nbind 127.0.0.1\nkubernetes "+c.zones+" {\nmanifests "+file+"\n}\nforward "+c.from+" "+c.to+"\n}\n")
			var got []string
			for _, zone := range p.block.Zones {
				if clusterDNS(p, zone)(p.pools()[0]) {
					got = append(got, zone.String())
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("it is for %q, want %q", got, c.want)
			}
		})
	}
}

// TestClusterDNSOfSeveral: each forward directive of a block speaks for itself.
func TestClusterDNSOfSeveral(t *testing.T) {
	dir := t.TempDir()
	agenttest.WriteFile(t, filepath.Join(dir, "m.yaml"), "")
	p := assembled(t, ".:53 {\nbind 127.0.0.1\nkubernetes cluster.local {\nmanifests "+dir+"\n}\nforward example.org 192.0.2.1\nforward cluster.local 192.0.2.1\nforward . 192.0.2.1\n}\n")
	var got []bool
	for _, u := range p.pools() {
		got = append(got, clusterDNS(p, wire.Root)(u))
	}
	if want := []bool{false, true, false}; !slices.Equal(got, want) {
		t.Errorf("they are %v, want %v", got, want)
	}
}

// TestViewKey: blocks share a view unless an option says that they watch different
// things.
func TestViewKey(t *testing.T) {
	// What only shapes the answers, or may change while the view runs.
	shared := []string{"Zones", "Namespaces", "TTL", "StartupTimeout", "Fallthrough", "ScopeIdle", "ScopeMax"}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	plain := viewKey(&config.Block{Kubernetes: &config.Kubernetes{}}, addrs, nil, needs{})
	fields := reflect.TypeFor[config.Kubernetes]()
	for i := range fields.NumField() {
		k := new(config.Kubernetes)
		v := reflect.ValueOf(k).Elem().Field(i)
		name := fields.Field(i).Name
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.String:
			v.SetString("x")
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(time.Minute))
		case reflect.Uint8, reflect.Uint32:
			v.SetUint(2) // config.PodsVerified
		case reflect.Float32:
			v.SetFloat(2)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			if name == "TLS" {
				k.TLS.CA = "x"
			}
		default:
			t.Fatalf("%s is of a kind that this test does not know", name)
		}
		differs := viewKey(&config.Block{Kubernetes: k}, addrs, nil, needs{}) != plain
		if differs == slices.Contains(shared, name) {
			t.Errorf("%s: views differ is %v", name, differs)
		}
	}
	if viewKey(&config.Block{Kubernetes: &config.Kubernetes{Pods: config.PodsInsecure}}, addrs, nil, needs{}) != plain {
		t.Error("pods insecure has a view of its own")
	}
	reverse := &config.Block{Kubernetes: &config.Kubernetes{Zones: []wire.Name{"\x02in\x04arpa\x00"}}}
	if !hasReverseZone(reverse) || viewKey(reverse, addrs, nil, needs{reverse: true}) == plain {
		t.Error("reverse zones make no difference")
	}
	// NodeLocal DNSCache's Corefile has blocks for names and for addresses: one view serves both.
	if viewKey(reverse, addrs, nil, needs{reverse: true}) != viewKey(&config.Block{Kubernetes: &config.Kubernetes{}}, addrs, nil, needs{reverse: true}) {
		t.Error("a block with a reverse zone has a view of its own")
	}
	if viewKey(&config.Block{Kubernetes: &config.Kubernetes{}}, addrs, []string{"app"}, needs{}) == plain {
		t.Error("the labels of pods make no difference")
	}
	if viewKey(&config.Block{Kubernetes: &config.Kubernetes{}}, addrs, nil, needs{external: true}) == plain {
		t.Error("the views with and without external addresses are one")
	}
	if viewKey(&config.Block{Kubernetes: &config.Kubernetes{}}, nil, nil, needs{}) == plain {
		t.Error("the agent's addresses make no difference")
	}
}
