// Internal: has the fixtures of internal tests.

package kubernetes

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/config"
)

// namedDNS is a Service in the namespace that has the name of the label of name servers.
const namedDNS = `
--- Service dns/hidden
spec: {clusterIP: 10.96.0.20, externalIPs: [192.0.2.20], ports: [{name: http, port: 80}]}
`

// externalSnapshot returns the records of a transfer of example.org.
func externalSnapshot(t *testing.T, e *External) []string {
	t.Helper()
	s, err := e.Snapshot(t.Context(), names(t, "example.org")[0])
	noError(t, err)
	return snapshotText(t, s)
}

// webRecords are those of the Service web.
var webRecords = []string{
	"web.default.example.org. 5 IN A 192.0.2.1",
	"web.default.example.org. 5 IN A 192.0.2.2",
	"web.default.example.org. 5 IN A 192.0.2.3",
	"web.default.example.org. 5 IN AAAA 2001:db8::1",
	"web.default.example.org. 5 IN SRV 0 8 80 web.default.example.org.",
	"_http._tcp.web.default.example.org. 5 IN SRV 0 25 80 web.default.example.org.",
	"web.default.example.org. 5 IN SRV 0 8 53 web.default.example.org.",
	"_dns._udp.web.default.example.org. 5 IN SRV 0 25 53 web.default.example.org.",
	"web.default.example.org. 5 IN SRV 0 8 9000 web.default.example.org.",
}

// TestExternalSnapshot: a transfer has the records of Services that are reachable from outside, and with headless those of endpoints.
func TestExternalSnapshot(t *testing.T) {
	apex := []string{
		"example.org. 5 IN SOA ns1.dns.example.org. hostmaster.dns.example.org. 1700000000 7200 1800 86400 5",
		"example.org. 5 IN NS ns1.dns.example.org.",
		"ns1.dns.example.org. 5 IN A 169.254.20.10",
	}
	reachable := []string{
		"alias.default.example.org. 5 IN A 192.0.2.7",
		"alias.default.example.org. 5 IN SRV 0 100 80 alias.default.example.org.",
		"_http._tcp.alias.default.example.org. 5 IN SRV 0 100 80 alias.default.example.org.",
		"both.default.example.org. 5 IN A 192.0.2.5",
		"both.default.example.org. 5 IN SRV 0 50 80 both.default.example.org.",
		"both.default.example.org. 5 IN SRV 0 50 80 lb-1.example.net.",
		"_http._tcp.both.default.example.org. 5 IN SRV 0 50 80 both.default.example.org.",
		"_http._tcp.both.default.example.org. 5 IN SRV 0 50 80 lb-1.example.net.",
		"named.default.example.org. 5 IN CNAME lb-1.example.net.",
		"_http._tcp.named.default.example.org. 5 IN SRV 0 100 80 lb-1.example.net.",
		"_tls._tcp.named.default.example.org. 5 IN SRV 0 100 443 lb-1.example.net.",
		"_h3._udp.named.default.example.org. 5 IN SRV 0 100 443 lb-1.example.net.",
		"portless.default.example.org. 5 IN AAAA 2001:db8::2",
		"shared.default.example.org. 5 IN A 192.0.2.3",
		"shared.default.example.org. 5 IN SRV 0 100 5060 shared.default.example.org.",
		"_sip._udp.shared.default.example.org. 5 IN SRV 0 100 5060 shared.default.example.org.",
		"shown.default.example.org. 5 IN A 192.0.2.6",
		"shown.default.example.org. 5 IN SRV 0 100 5432 shown.default.example.org.",
		"_pg._tcp.shown.default.example.org. 5 IN SRV 0 100 5432 shown.default.example.org.",
	}
	endpoints := []string{
		"db.default.example.org. 5 IN A 10.1.1.1",
		"db.default.example.org. 5 IN A 10.1.1.2",
		"db-0.db.default.example.org. 5 IN A 10.1.1.1",
		"10-1-1-2.db.default.example.org. 5 IN A 10.1.1.2",
		"db.default.example.org. 5 IN SRV 0 50 5432 db-0.db.default.example.org.",
		"db-0.db.default.example.org. 5 IN SRV 0 100 5432 db-0.db.default.example.org.",
		"_pg._tcp.db.default.example.org. 5 IN SRV 0 50 5432 db-0.db.default.example.org.",
		"db.default.example.org. 5 IN SRV 0 50 5432 10-1-1-2.db.default.example.org.",
		"10-1-1-2.db.default.example.org. 5 IN SRV 0 100 5432 10-1-1-2.db.default.example.org.",
		"_pg._tcp.db.default.example.org. 5 IN SRV 0 50 5432 10-1-1-2.db.default.example.org.",
	}
	for name, tt := range map[string]struct {
		change func(*config.K8sExternal, *config.Kubernetes)
		want   []string
	}{
		"reachable":  {func(*config.K8sExternal, *config.Kubernetes) {}, slices.Concat(apex, reachable, webRecords)},
		"headless":   {func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true }, slices.Concat(apex, reachable, endpoints, webRecords)},
		"namespaces": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.Namespaces = []string{"bare"} }, apex},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, k := externalConfig(t), testConfig(t)
			tt.change(cfg, k)
			got := externalSnapshot(t, NewExternal(openText(t, k, outsideWorld+namedDNS), cfg, k))
			slices.Sort(got[3:])
			slices.Sort(tt.want[3:])
			equal(t, tt.want, got, "")
		})
	}
}

// TestExternalSnapshotAnswers: each set of records of a transfer is the answer to a query for it, with the weights of SRV records.
func TestExternalSnapshotAnswers(t *testing.T) {
	e := openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true })
	e.zone.view.addrs = reachableAddrs(addrs("10.1.0.1", "10.1.1.2")) // Services select the agent
	sets := make(map[dns.Question][]string)
	for _, text := range externalSnapshot(t, e)[1:] {
		f := strings.Fields(text)
		q := dns.Question{Name: f[0], Qtype: dns.StringToType[f[3]]}
		sets[q] = append(sets[q], text)
	}
	if len(sets) < 30 {
		t.Errorf("%d sets of records", len(sets))
	}
	for q, want := range sets {
		m, _, _ := ask(t, e, q.Name, q.Qtype)
		var got []string
		for _, rr := range m.Answer {
			got = append(got, strings.Join(strings.Fields(rr.String()), " "))
		}
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s %s (-transfer +answer):\n%s", q.Name, dns.Type(q.Qtype), d)
		}
	}
}

// TestExternalSOA: only the zones of names can be transferred.
func TestExternalSOA(t *testing.T) {
	e := openOutside(t, nil)
	for zone, want := range map[string]bool{"example.org": true, "in-addr.arpa": false, "default.example.org": false, "cluster.local": false} {
		if _, got := e.SOA(names(t, zone)[0]); got != want {
			t.Errorf("%s can be transferred: %v, want %v", zone, got, want)
		}
	}
}

// TestExternalSnapshotNeeds: a transfer needs slices with headless only, and those of Services that are not reachable otherwise.
func TestExternalSnapshotNeeds(t *testing.T) {
	for _, headless := range []bool{false, true} {
		l := newLab(t, func(*config.Kubernetes) {})
		l.service("a", "x", true)
		l.slice("a", "x", true, "10.1.0.1")
		reachable := makeService("b", "y", corev1.ClusterIPNone)
		reachable.Spec.ExternalIPs = []string{"192.0.2.1"}
		handlerFixture{l.view, services}.put(reachable)
		l.reconcile()
		cfg := externalConfig(t)
		cfg.Headless = headless
		e := NewExternal(l.view, cfg, testConfig(t))
		ended, end := context.WithCancel(t.Context())
		end()
		_, err := e.Snapshot(ended, names(t, "example.org")[0])
		if needs := err != nil && strings.Contains(err.Error(), "1 namespaces"); needs != headless || err != nil && !needs {
			t.Errorf("headless %v: %v", headless, err)
		}
		l.reconcile()
		got := externalSnapshot(t, e)
		if has := slices.Contains(got, "x.a.example.org. 5 IN A 10.1.0.1"); has != headless || !slices.Contains(got, "y.b.example.org. 5 IN A 192.0.2.1") {
			t.Errorf("headless %v: %q", headless, got)
		}
	}
}
