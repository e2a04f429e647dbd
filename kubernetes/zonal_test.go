// Internal: uses the fixtures of internal tests.

package kubernetes

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// zonalObjects are a headless service in three zones, and other services.
const zonalObjects = `
--- Service default/db
spec: {clusterIP: None}
--- EndpointSlice default/db-1 of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.0.0.1], zone: East}
- {addresses: [10.0.0.2], zone: corp.example.com, hostname: db-2}
- {addresses: [10.0.0.3], zone: corp.example.com}
- {addresses: [10.0.0.4]}
- {addresses: [10.0.0.5], zone: drained, conditions: {ready: false}}
--- EndpointSlice default/db-2 of db
addressType: IPv6
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: ["fd00::2"], zone: corp.example.com, hostname: db-2}
--- EndpointSlice default/db-3 of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.0.0.1], zone: east}
---
{apiVersion: v1, kind: Service, metadata: {name: idle, namespace: default}, spec: {clusterIP: None}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: 10.96.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: out, namespace: default}, spec: {type: ExternalName, externalName: example.com}}
---
{apiVersion: v1, kind: Service, metadata: {name: to, namespace: default}, spec: {type: ExternalName, externalName: east.pin._zone.db.default.svc.cluster.local}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: hidden}, spec: {clusterIP: None}}
`

func TestAnswerZonal(t *testing.T) {
	const bare = "db.default.svc.cluster.local"
	many := strings.Repeat("a.", 90)
	a := func(name string, addrs ...string) string {
		out := "answered NOERROR |"
		for _, addr := range addrs {
			out += " " + name + "." + bare + ". 30 IN A " + addr + " |"
		}
		return out
	}
	cfg := testConfig(t)
	cfg.Zonal, cfg.Namespaces = true, []string{"default"}
	z := NewZone(openPlaced(t, cfg, zonalObjects), cfg)
	checkAnswers(t, z, []answerCase{
		{"east.pin._zone." + bare, dns.TypeA, a("east.pin._zone", "10.0.0.1")},
		{"EAST.Pin._ZONE." + bare, dns.TypeA, a("EAST.Pin._ZONE", "10.0.0.1")},
		{"east.prefer._zone." + bare, dns.TypeA, a("east.prefer._zone", "10.0.0.1")},
		{"corp.example.com.pin._zone." + bare, dns.TypeA, a("corp.example.com.pin._zone", "10.0.0.2", "10.0.0.3")},
		{"corp.Example.com.prefer._zone." + bare, dns.TypeAAAA, "answered NOERROR | corp.Example.com.prefer._zone." + bare + ". 30 IN AAAA fd00::2 |"},
		{"west.pin._zone." + bare, dns.TypeA, nodata},
		{"drained.pin._zone." + bare, dns.TypeA, nodata},
		{"west.prefer._zone." + bare, dns.TypeA, a("west.prefer._zone", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")},
		{"east.prefer._zone." + bare, dns.TypeAAAA, nodata}, // the zone has endpoints, of the other family
		// A zone is its labels: no part of it, and not the same bytes in one label.
		{`corp\.example\.com.pin._zone.` + bare, dns.TypeA, nodata},
		{"example.com.pin._zone." + bare, dns.TypeA, nodata},
		{"x.corp.example.com.pin._zone." + bare, dns.TypeA, nodata},
		{many + "pin._zone." + bare, dns.TypeA, nodata},
		{many + "florp._zone." + bare, dns.TypeA, nxdomain},
		{many + bare, dns.TypeA, nxdomain},
		{"x._pg._tcp." + bare, dns.TypeA, nxdomain},
		{"x.y.db-2." + bare, dns.TypeA, nxdomain},
		{"pin._zone.pin._zone." + bare, dns.TypeA, nodata}, // a zone may be called so
		// Other types are not there, and the name is.
		{"east.pin._zone." + bare, dns.TypeTXT, nodata},
		{"west.pin._zone." + bare, dns.TypeTXT, nodata},
		{"east.prefer._zone." + bare, dns.TypeHTTPS, nodata},
		{"east.pin._zone." + bare, dns.TypeCNAME, nodata},
		{"east.pin._zone." + bare, dns.TypeANY, "answered NOERROR | east.pin._zone." + bare + ". 30 IN A 10.0.0.1 |"},
		{"west.pin._zone." + bare, dns.TypeSRV, nodata},
		{"corp.example.com.pin._zone." + bare, dns.TypeSRV, "answered NOERROR" +
			" | corp.example.com.pin._zone." + bare + ". 30 IN SRV 0 33 5432 10-0-0-3." + bare + "." +
			" | corp.example.com.pin._zone." + bare + ". 30 IN SRV 0 33 5432 db-2." + bare + "." +
			" | extra 10-0-0-3." + bare + ". 30 IN A 10.0.0.3" +
			" | extra db-2." + bare + ". 30 IN A 10.0.0.2" +
			" | extra db-2." + bare + ". 30 IN AAAA fd00::2 |"},
		// The names above zones exist as soon as one below them does.
		{"_zone." + bare, dns.TypeA, nodata},
		{"pin._zone." + bare, dns.TypeA, nodata},
		{"Prefer._zone." + bare, dns.TypeTXT, nodata},
		{"pin._zone.idle.default.svc.cluster.local", dns.TypeA, nodata},
		{"florp._zone." + bare, dns.TypeA, nxdomain},
		{"east.florp._zone." + bare, dns.TypeA, nxdomain},
		{"east.pin.zone." + bare, dns.TypeA, nxdomain},
		{"east.pin._zone.db.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"east.pin._zone.cluster.local", dns.TypeA, nxdomain},
		{"pin._zone.default.svc.cluster.local", dns.TypeA, nxdomain},
		// Only headless services have them.
		{"east.pin._zone.idle.default.svc.cluster.local", dns.TypeA, nodata},
		{"east.prefer._zone.idle.default.svc.cluster.local", dns.TypeA, nodata},
		{"idle.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"east.pin._zone.ghost.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"east.pin._zone.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"pin._zone.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"_zone.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"east.pin._zone.out.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"east.pin._zone.db.hidden.svc.cluster.local", dns.TypeA, nxdomain},
		{"to.default.svc.cluster.local", dns.TypeA, "answered NOERROR" +
			" | to.default.svc.cluster.local. 30 IN CNAME east.pin._zone." + bare + "." +
			" | east.pin._zone." + bare + ". 30 IN A 10.0.0.1 |"},
	})
}

// Without the option, and in multicluster zones, zonal names don't exist.
func TestZonalIsAsked(t *testing.T) {
	cfg := testConfig(t)
	cfg.Zonal = true
	v := openPlaced(t, cfg, zonalObjects)
	multi := *cfg
	multi.Multicluster = names(t, "cluster.local")
	for what, z := range map[string]*Zone{"no option": NewZone(v, testConfig(t)), "multicluster": NewZone(v, &multi)} {
		for _, name := range []string{"east.pin._zone.", "a.b.c.prefer._zone.", "pin._zone.", "_zone."} {
			name += "db.default.svc.cluster.local"
			if m, _, _ := ask(t, z, name, dns.TypeA); m.Rcode != dns.RcodeNameError {
				t.Errorf("%s: %s is there", what, name)
			}
		}
	}
}

// Before the first lists are complete, no zone is known to be empty.
func TestZonalUnsynced(t *testing.T) {
	cfg := testConfig(t)
	cfg.Zonal = true
	v := openPlaced(t, cfg, "")
	headlessOf(v, "", []discoveryv1.Endpoint{endpointAt("10.0.0.1 n9 west")})
	v.listed[endpointSlices].Store(false)
	z := NewZone(v, cfg)
	for name, want := range map[string]Outcome{"east.pin": NotSynced, "west.pin": Answered, "east.florp": NotSynced, "pin": Answered} {
		m, outcome, _ := ask(t, z, name+"._zone.db.default.svc.cluster.local", dns.TypeA)
		if outcome != want || outcome == NotSynced && len(m.Answer)+len(m.Ns) > 0 {
			t.Errorf("%s is %d, want %d:\n%s", name, outcome, want, m)
		}
	}
}

// An invalid topology zone is logged if zonal names are enabled; its endpoint is used.
func TestZonalFaults(t *testing.T) {
	for _, zone := range []string{"east/1", "a..b", ".", "a.", strings.Repeat("x", 64)} {
		es := makeSlice("default", "db", "db-1")
		es.Endpoints = []discoveryv1.Endpoint{endpointAt("10.0.0.1 n9 " + zone), endpointAt("10.0.0.2 n9 a.b")}
		var f faults
		s := convertSlice(es, converter{zonal: true}, &f)
		if s.len() != 2 || len(s.zones) != 2 || s.zones[0] != (zoneName{}) || s.zones[1].Value() != "\x01a\x01b" {
			t.Errorf("%q: %d endpoints in %v", zone, s.len(), s.zones)
		}
		if f.n != 1 || !strings.Contains(f.first[0], "topology zone") {
			t.Errorf("%q: faults %q", zone, &f)
		}
		f = faults{}
		if s := convertSlice(es, converter{}, &f); f.n != 0 || s.zones != nil {
			t.Errorf("%q: without the option, faults %q and zones %v", zone, &f, s.zones)
		}
	}
}
