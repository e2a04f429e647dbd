package resolver_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

const fuzzManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9, "fd00::9"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: by.hand}
`

// fuzzRoutes have every step that needs nobody else: hosts, a cluster out of a file,
// a cache.
func fuzzRoutes(f *testing.F) *resolver.Routes {
	f.Helper()
	file := filepath.Join(f.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(fuzzManifest), 0o644); err != nil {
		f.Fatal(err)
	}
	cfg := &config.Kubernetes{Zones: []wire.Name{resolvertest.ZoneName(f, "cluster.local"), resolvertest.ZoneName(f, "in-addr.arpa")}, Manifests: []string{file}, TTL: 30, Pods: config.PodsInsecure}
	view, err := kubernetes.Open(cfg, kubernetes.Options{})
	if err != nil {
		f.Fatal(err)
	}
	search := resolver.NewAutopath(&config.Autopath{Search: []wire.Name{resolvertest.ZoneName(f, "shop.svc.cluster.local"), resolvertest.ZoneName(f, "svc.cluster.local")}}, nil)
	return resolver.NewRoutes([]*resolver.Zone{
		{Name: wire.Root, Autopath: search, Hosts: resolvertest.Hosts(f, true, "192.0.2.9 by.hand", "2001:db8::9 by.hand"), Cluster: kubernetes.NewZone(view, cfg),
			Cache: resolvertest.Cache(), Stats: resolver.NewStats(), Shuffle: true},
		{Name: resolvertest.ZoneName(f, "none.test"), Bufsize: 512, Stats: resolver.NewStats()},
	}, resolver.NewStats())
}

// FuzzServe: whatever comes in, the server neither panics nor mirrors responses,
// and what it sends is a reply to the query, within the client's size, that a
// resolver can read. The explanation of the query has the reply's rcode.
func FuzzServe(f *testing.F) {
	rt := fuzzRoutes(f)
	for _, q := range []struct {
		name  string
		qtype uint16
		size  uint16
	}{
		{"web.shop.svc.cluster.local.", dns.TypeA, 0}, {"_http._tcp.WEB.shop.svc.cluster.local.", dns.TypeSRV, 512},
		{"out.shop.svc.cluster.local.", dns.TypeAAAA, 1232}, {"9.0.96.10.in-addr.arpa.", dns.TypePTR, 4096},
		{"no.svc.cluster.local.", dns.TypeANY, 100}, {"by.hand.", dns.TypeA, 0}, {"x.none.test.", dns.TypeDS, 1232},
		{"10-1-2-3.shop.pod.cluster.local.", dns.TypeA, 0}, {".", dns.TypeNS, 0},
		{"By.Hand.shop.svc.cluster.local.", dns.TypeA, 1232}, {"web.shop.shop.svc.cluster.local.", dns.TypeMX, 0},
		{"_http._tcp.web.shop.shop.svc.cluster.local.", dns.TypeSRV, 0}, {"out.shop.shop.svc.cluster.local.", dns.TypeA, 0},
	} {
		m := question(q.name, q.qtype)
		if q.size > 0 {
			m.SetEdns0(q.size, q.size == 1232)
		}
		packet, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		var x resolver.Request
		x.Query.Packet = packet
		e, _ := rt.Explain(packet, x.Client, resolver.UDP)
		msg, o := serve(rt, &x, nil)
		if o != resolver.Answered {
			msg = resume(rt, &x, o)
		}
		if msg == nil {
			if len(packet) >= wire.HeaderLen && packet[2]&0x80 == 0 {
				t.Error("a query got no reply")
			}
			return
		}
		if packet[2]&0x80 != 0 {
			t.Error("a response got a reply")
		}
		if binary.BigEndian.Uint16(msg) != binary.BigEndian.Uint16(packet) || msg[2]&0x80 == 0 {
			t.Error("not a reply to the query")
		}
		var reply dns.Msg
		if err := reply.Unpack(msg); err != nil {
			t.Errorf("the reply can't be read: %v", err)
		}
		if e != nil && (e.Waits != resolver.NoWait || int(e.Rcode) != reply.Rcode) {
			t.Errorf("explained as %v, waiting for %q, and answered %s", e.Rcode, e.Waits, dns.RcodeToString[reply.Rcode])
		}
		if limit := max(x.Query.Limit(), wire.MinUDP); len(msg) > limit {
			t.Errorf("%d bytes for a client that takes %d", len(msg), limit)
		}
	})
}
