// Internal: has the fixtures of internal tests.

package kubernetes

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const transferredCluster = `
--- Service default/web
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10::a"]
  ports: [{name: http, port: 80, protocol: TCP}, {name: alt, port: 80, protocol: UDP}, {port: 9000}]
--- EndpointSlice default/web-1 of web
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}}]
--- Service store/db
spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}
--- EndpointSlice store/db-a of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}, {port: 1, protocol: TCP}]
endpoints: [{addresses: [10.1.1.1], hostname: db-0}, {addresses: [10.1.1.2]}, {addresses: [10.1.1.3], conditions: {ready: false}}]
--- EndpointSlice store/db-b of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints: [{addresses: [10.1.1.1], hostname: db-0}]
--- Service store/out
spec: {type: ExternalName, externalName: host.example.org}
--- Service store/idle
spec: {clusterIP: None}
`

// recordText returns rr as text.
func recordText(t *testing.T, rr wire.RR) string {
	t.Helper()
	b := binary.BigEndian.AppendUint16(slices.Clone(rr.Owner), rr.Type)
	b = binary.BigEndian.AppendUint16(b, wire.ClassIN)
	b = binary.BigEndian.AppendUint32(b, rr.TTL)
	b = binary.BigEndian.AppendUint16(b, uint16(len(rr.Data)))
	parsed, _, err := dns.UnpackRR(append(b, rr.Data...), 0)
	noError(t, err)
	return strings.Join(strings.Fields(parsed.String()), " ")
}

// snapshotText returns the records of the zone, the SOA record first.
func snapshotText(t *testing.T, s *Snapshot) []string {
	t.Helper()
	list := []string{recordText(t, s.SOA())}
	for rr := range s.All() {
		list = append(list, recordText(t, rr))
	}
	return list
}

func takeSnapshot(t *testing.T, z *Zone) *Snapshot {
	t.Helper()
	s, err := z.Snapshot(t.Context(), names(t, "cluster.local")[0])
	noError(t, err)
	return s
}

func TestSnapshotRecords(t *testing.T) {
	const (
		first = "cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 30"
		ns    = "cluster.local. 30 IN NS ns.dns.cluster.local."
		glue  = "ns.dns.cluster.local. 30 IN A 169.254.20.10"
	)
	store := []string{
		"db.store.svc.cluster.local. 30 IN A 10.1.1.1",
		"db.store.svc.cluster.local. 30 IN A 10.1.1.2",
		"db-0.db.store.svc.cluster.local. 30 IN A 10.1.1.1",
		"10-1-1-2.db.store.svc.cluster.local. 30 IN A 10.1.1.2",
		"_pg._tcp.db.store.svc.cluster.local. 30 IN SRV 0 50 5432 db-0.db.store.svc.cluster.local.",
		"_pg._tcp.db.store.svc.cluster.local. 30 IN SRV 0 50 5432 10-1-1-2.db.store.svc.cluster.local.",
		"out.store.svc.cluster.local. 30 IN CNAME host.example.org.",
	}
	all := slices.Concat([]string{first, ns, glue}, store, []string{
		"web.default.svc.cluster.local. 30 IN A 10.96.0.10",
		"web.default.svc.cluster.local. 30 IN AAAA fd00:10::a",
		"web.default.svc.cluster.local. 30 IN SRV 0 100 80 web.default.svc.cluster.local.",
		"_http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 100 80 web.default.svc.cluster.local.",
		"_alt._udp.web.default.svc.cluster.local. 30 IN SRV 0 100 80 web.default.svc.cluster.local.",
		"web.default.svc.cluster.local. 30 IN SRV 0 100 9000 web.default.svc.cluster.local.",
	})
	for name, tt := range map[string]struct {
		change func(*config.Kubernetes)
		want   []string
	}{
		"all":        {func(*config.Kubernetes) {}, all},
		"namespaces": {func(c *config.Kubernetes) { c.Namespaces = []string{"store"} }, slices.Concat([]string{first, ns, glue}, store)},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			tt.change(cfg)
			z := NewZone(openText(t, cfg, transferredCluster), cfg)
			equal(t, tt.want, snapshotText(t, takeSnapshot(t, z)), "")
			soa, ok := z.SOA(cfg.Zones[0])
			if got := recordText(t, soa); !ok || got != first {
				t.Errorf("SOA %s, %v", got, ok)
			}
			for _, other := range names(t, "in-addr.arpa", "svc.cluster.local", "example.org") {
				if _, ok := z.SOA(other); ok {
					t.Errorf("%s can be transferred", other)
				}
			}
		})
	}
}

// TestRecordTypes: names have the types of the table, and a transfer has the records of those that Services have. An answer of
// another type would be missing from both.
func TestRecordTypes(t *testing.T) {
	cfg := testConfig(t)
	z := NewZone(openText(t, cfg, transferredCluster), cfg)
	owners := map[uint16]string{
		wire.TypeA: "web.default.svc", wire.TypeAAAA: "web.default.svc", wire.TypeSRV: "web.default.svc", wire.TypeCNAME: "out.store.svc",
		wire.TypePTR: "", wire.TypeTXT: "dns-version", wire.TypeSOA: "", wire.TypeNS: "",
	}
	transferred := map[uint16]bool{}
	for rr := range takeSnapshot(t, z).All() {
		transferred[rr.Type] = true
	}
	for _, typ := range recordTypes {
		name := strings.TrimPrefix(owners[typ.rtype]+".cluster.local.", ".")
		if typ.rtype == wire.TypePTR {
			name = arpa("10.96.0.10")
		}
		if m, outcome, _ := ask(t, z, name, typ.rtype); outcome != Answered || len(m.Answer) == 0 || m.Answer[0].Header().Rrtype != typ.rtype {
			t.Errorf("%s %s: %v, %v", name, dns.Type(typ.rtype), outcome, m)
		}
		if typ.transfer != nil && !transferred[typ.rtype] {
			t.Errorf("a transfer has no %s record", dns.Type(typ.rtype))
		}
		if want := !slices.Contains([]uint16{wire.TypePTR, wire.TypeTXT, wire.TypeSOA, wire.TypeNS}, typ.rtype); (typ.transfer != nil) != want {
			t.Errorf("%s: of Services %t", dns.Type(typ.rtype), want)
		}
	}
}

// TestSnapshotNameservers: the Service that selects the agent is the name server. Its addresses are sent with the zone
// even if its namespace is not exposed.
func TestSnapshotNameservers(t *testing.T) {
	const text = `
--- Service kube-system/dns
spec: {clusterIP: 10.96.0.53}
--- EndpointSlice kube-system/dns-1 of dns
addressType: IPv4
endpoints: [{addresses: [169.254.20.10]}]
`
	want := []string{"cluster.local. 30 IN NS dns.kube-system.svc.cluster.local.", "dns.kube-system.svc.cluster.local. 30 IN A 10.96.0.53"}
	for _, exposed := range []string{"kube-system", "default"} {
		cfg := testConfig(t)
		cfg.Namespaces = []string{exposed}
		z := NewZone(openText(t, cfg, text), cfg)
		equal(t, want, snapshotText(t, takeSnapshot(t, z))[1:], "%s is exposed", exposed)
	}
}

// TestSnapshotWaits: slices that are not in view are requested, and waited for.
func TestSnapshotWaits(t *testing.T) {
	l := newLab(t, func(c *config.Kubernetes) { c.ScopeMax = 2 })
	for _, ns := range []string{"a", "b"} {
		l.service(ns, "x", true)
		l.slice(ns, "x", true, "10.1.0.1")
	}
	l.reconcile()
	ended, end := context.WithCancel(t.Context())
	end()
	zone := names(t, "cluster.local")[0]
	if _, err := l.zone.Snapshot(ended, zone); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "2 namespaces") {
		t.Fatalf("without time: %v", err)
	}
	var s *Snapshot
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err = l.zone.Snapshot(t.Context(), zone)
	}()
	l.reconcile()
	<-done
	noError(t, err)
	before := snapshotText(t, s)
	for _, rr := range []string{"x.a.svc.cluster.local. 30 IN A 10.1.0.1", "x.b.svc.cluster.local. 30 IN A 10.1.0.1"} {
		if !slices.Contains(before, rr) {
			t.Errorf("%s is missing in %q", rr, before)
		}
	}
	l.service("a", "y", true)
	equal(t, before, snapshotText(t, s), "the snapshot has changed")
}

// TestSnapshotScope: a transfer does not bring more into view than the scope has, and names the setting.
func TestSnapshotScope(t *testing.T) {
	for name, tt := range map[string]struct {
		scope    config.Scope
		labelled bool // the slices have the headless label
		want     string
	}{
		"node":                     {config.ScopeNode, true, "set scope_max 3 or scope cluster"},
		"cluster":                  {config.ScopeCluster, true, ""},
		"cluster, unlabelled ones": {config.ScopeCluster, false, "set scope_max 3, or scope cluster with endpoints all"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, func(c *config.Kubernetes) { c.ScopeMax, c.Scope = 2, tt.scope })
			for _, ns := range []string{"a", "b", "c"} {
				l.service(ns, "x", true)
				l.slice(ns, "x", tt.labelled, "10.1.0.1")
			}
			l.reconcile()
			before := l.keep.desiredSources(true)
			_, err := l.zone.Snapshot(t.Context(), names(t, "cluster.local")[0])
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if got := l.keep.desiredSources(true); !slices.Equal(got, before) {
				t.Errorf("the sources %q are requested, %q before", got, before)
			}
		})
	}
}

// TestSnapshotNotSynced: a view without its first lists has no complete zone.
func TestSnapshotNotSynced(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.view.listed[services].Store(false)
	if _, err := l.zone.Snapshot(t.Context(), names(t, "cluster.local")[0]); !errors.Is(err, errNotSynced) {
		t.Errorf("error %v", err)
	}
}

// TestSnapshotSerial: one serial never stands for two versions that were sent, nor for slices that have left the view.
func TestSnapshotSerial(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	now := testClock()
	l.view.now = func() time.Time { return now }
	add := func(name string) { handlerFixture{l.view, services}.put(makeService("a", name, "10.0.0.1")) }
	expect := func(what string, want uint32) {
		t.Helper()
		soa, _ := l.zone.SOA(names(t, "cluster.local")[0])
		if got := soa.Serial(); got != want {
			t.Errorf("%s: serial %d, want %d", what, got, want)
		}
	}
	add("one")
	expect("a change", start)
	add("two")
	expect("another one in the same second", start)
	takeSnapshot(t, l.zone)
	add("three")
	expect("a change after a transfer", start+1)
	add("four")
	expect("one that was not sent", start+1)
	takeSnapshot(t, l.zone)
	takeSnapshot(t, l.zone)
	add("five")
	expect("after two transfers", start+2)

	l.service("b", "x", true)
	l.slice("b", "x", true, "10.1.0.1")
	l.addrs("x.b.svc.cluster.local")
	l.reconcile()
	now = now.Add(time.Minute)
	takeSnapshot(t, l.zone)
	expect("slices in view", start+2)
	l.idle()
	l.reconcile()
	expect("slices that have left the view", start+60)
}
