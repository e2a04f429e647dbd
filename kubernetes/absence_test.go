// Internal: has the fixtures of internal tests.

package kubernetes

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestWhyAbsent: each name that does not exist because of a Service has a reason, and no other name.
func TestWhyAbsent(t *testing.T) {
	cfg := testConfig(t)
	cfg.Namespaces = []string{"a", "b", "c"}
	z := NewZone(openText(t, cfg, `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{name: http, port: 80, protocol: TCP}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: a}, spec: {clusterIP: None}}
---
{apiVersion: v1, kind: Service, metadata: {name: out, namespace: a}, spec: {type: ExternalName, externalName: "192.0.2..1"}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: hidden}, spec: {clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2]}}
`), cfg)
	for name, want := range map[string]string{
		"web.a.svc.cluster.local":             "",
		"a.svc.cluster.local":                 "",
		"_http._tcp.web.a.svc.cluster.local":  "",
		"x.web.a.svc.cluster.local":           "the Service web in the namespace a has no such endpoint or port",
		"_x._tcp.web.a.svc.cluster.local":     "the Service web in the namespace a has no such endpoint or port",
		"no.a.svc.cluster.local":              "there is no Service no in the namespace a",
		"www.example.com.a.svc.cluster.local": "there is no Service com in the namespace a",
		"db.a.svc.cluster.local":              "the headless Service db in the namespace a has no ready endpoints",
		"out.a.svc.cluster.local":             "the external name of the Service out in the namespace a is not a name",
		"web.b.svc.cluster.local":             "there is no namespace b, or nothing in it",
		"web.hidden.svc.cluster.local":        "the kubernetes directive does not list the namespace hidden",
		"svc.cluster.local":                   "",
		"x.cluster.local":                     "",
		"cluster.local":                       "",
		"9.9.9.9.in-addr.arpa":                "",
		"example.org":                         "",
	} {
		var q wire.Query
		q.Parse(packQuery(t, name, dns.TypeA))
		got := z.WhyAbsent(q.Name())
		m, outcome, _ := ask(t, z, name, dns.TypeA)
		exists := outcome == Answered && m.Rcode == dns.RcodeSuccess
		if exists {
			got = "" // the reason is for names that don't exist
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if strings.Contains(name, ".svc.") && !exists && got == "" && strings.Count(name, ".") > 3 {
			t.Errorf("%s does not exist for no reason", name)
		}
	}
}
