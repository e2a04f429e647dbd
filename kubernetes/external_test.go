// Internal: feeds handlers directly.

package kubernetes

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Where External differs from CoreDNS's k8s_external, and why:
//
//   - All records have the directive's own TTL. CoreDNS gives SRV and CNAME records
//     that of the `kubernetes` directive.
//   - A SOA's TTL is 300 at most, as in the cluster zone.
//   - The serial is that of the view. CoreDNS's starts at 0 and moves only when the
//     addresses or ports of a Service that stays are changed.
//   - A name exists or not whatever its type (RFC 8020): a reverse name with a PTR
//     record is NODATA for other types, not a name error.
//   - CNAME queries get the CNAME that A queries get, not NODATA.
//   - A name with addresses is no alias too (RFC 2181, 10.1), and has one CNAME at
//     most: CoreDNS writes one for each host name beside the addresses.
//   - SRV to the name of a load balancer comes without the addresses of that name. Of
//     several names the first one counts.
//   - An address counts once in the weights of SRV records, however often the Service
//     names it.
//   - `_._tcp` and `_http._` are no names, where CoreDNS takes the empty part for any;
//     nor is `_db-0.db` another name for the endpoint `db-0.db`.
//   - `_tcp.<service>` of a headless Service exists where `_x._tcp.<service>` does.
//   - Reverse zones have no names but those of addresses and of the zone itself, and
//     PTR records point into the first zone that is no reverse zone, where CoreDNS
//     takes the first one and gives `<service>.<namespace>.in-addr.arpa`.
//   - PTR records leave out Services of namespaces that `namespace_labels` hides.
//   - The endpoints of an ExternalName Service have no names.
//   - A transfer has no addresses of a load balancer's host name, no name `_._tcp` of an unnamed port, and all ports of
//     a name instead of the first.
//   - Before the view is complete, no name is denied.

const (
	exampleSOA   = "example.org. 5 IN SOA ns1.dns.example.org. hostmaster.dns.example.org. 1700000000 7200 1800 86400 5 |"
	outNXDomain  = "answered NXDOMAIN | ns " + exampleSOA
	outNoData    = "answered NOERROR | ns " + exampleSOA
	outReverse   = "answered NXDOMAIN | ns in-addr.arpa. 5 IN SOA ns1.dns.in-addr.arpa. hostmaster.dns.in-addr.arpa. 1700000000 7200 1800 86400 5 |"
	outNoReverse = "answered NOERROR | ns in-addr.arpa. 5 IN SOA ns1.dns.in-addr.arpa. hostmaster.dns.in-addr.arpa. 1700000000 7200 1800 86400 5 |"
)

// externalConfig is a directive with a zone of names, and those of addresses.
func externalConfig(t testing.TB) *config.K8sExternal {
	return &config.K8sExternal{Zones: names(t, "example.org", "in-addr.arpa", "ip6.arpa"), Apex: "dns", TTL: 5}
}

func openOutside(t testing.TB, change func(*config.K8sExternal, *config.Kubernetes)) *External {
	t.Helper()
	cfg, k := externalConfig(t), testConfig(t)
	if change != nil {
		change(cfg, k)
	}
	return NewExternal(openText(t, k, outsideWorld), cfg, k)
}

func TestExternal(t *testing.T) {
	web := func(name string) string {
		return "answered NOERROR | " + name + " 5 IN A 192.0.2.1 | " + name + " 5 IN A 192.0.2.2 | " + name + " 5 IN A 192.0.2.3 |"
	}
	glue := "| extra web.default.example.org. 5 IN A 192.0.2.1 | extra web.default.example.org. 5 IN A 192.0.2.2 " +
		"| extra web.default.example.org. 5 IN A 192.0.2.3 | extra web.default.example.org. 5 IN AAAA 2001:db8::1 |"
	checkAnswers(t, openOutside(t, nil), []answerCase{
		// Addresses: externalIPs and those of the load balancer.
		{"web.default.example.org", dns.TypeA, web("web.default.example.org.")},
		{"Web.Default.EXAMPLE.org", dns.TypeA, web("Web.Default.EXAMPLE.org.")},
		{"web.default.example.org", dns.TypeAAAA, "answered NOERROR | web.default.example.org. 5 IN AAAA 2001:db8::1 |"},
		{"portless.default.example.org", dns.TypeAAAA, "answered NOERROR | portless.default.example.org. 5 IN AAAA 2001:db8::2 |"},
		{"portless.default.example.org", dns.TypeA, outNoData},
		{"portless.default.example.org", dns.TypeSRV, outNoData},
		{"shown.default.example.org", dns.TypeA, "answered NOERROR | shown.default.example.org. 5 IN A 192.0.2.6 |"},
		{"alias.default.example.org", dns.TypeA, "answered NOERROR | alias.default.example.org. 5 IN A 192.0.2.7 |"},
		{"web.default.example.org", dns.TypeTXT, outNoData},
		{"web.default.example.org", dns.TypePTR, outNoData},
		{"web.default.example.org", dns.TypeCNAME, outNoData},
		{"web.default.example.org", dns.TypeSOA, outNoData},
		// SRV: each named and unnamed port, every address in the weight.
		{"web.default.example.org", dns.TypeSRV, "answered NOERROR | web.default.example.org. 5 IN SRV 0 8 53 web.default.example.org. " +
			"| web.default.example.org. 5 IN SRV 0 8 80 web.default.example.org. | web.default.example.org. 5 IN SRV 0 8 9000 web.default.example.org. " + glue},
		{"_http._tcp.web.default.example.org", dns.TypeSRV,
			"answered NOERROR | _http._tcp.web.default.example.org. 5 IN SRV 0 25 80 web.default.example.org. " + glue},
		{"http.tcp.web.default.example.org", dns.TypeSRV,
			"answered NOERROR | http.tcp.web.default.example.org. 5 IN SRV 0 25 80 web.default.example.org. " + glue},
		{"_http._tcp.web.default.example.org", dns.TypeA, web("_http._tcp.web.default.example.org.")},
		{"_http._udp.web.default.example.org", dns.TypeSRV, outNXDomain},
		{"_._tcp.web.default.example.org", dns.TypeSRV, outNXDomain},
		{"_http._.web.default.example.org", dns.TypeSRV, outNXDomain},
		{"a._http._tcp.web.default.example.org", dns.TypeSRV, outNXDomain},
		{"_pg._tcp.shown.default.example.org", dns.TypeSRV,
			"answered NOERROR | _pg._tcp.shown.default.example.org. 5 IN SRV 0 100 5432 shown.default.example.org. " +
				"| extra shown.default.example.org. 5 IN A 192.0.2.6 |"},
		// One more label is the service all the same.
		{"x.web.default.example.org", dns.TypeA, web("x.web.default.example.org.")},
		// A load balancer with a name.
		{"named.default.example.org", dns.TypeA, "alias lb-1.example.net. NOERROR | named.default.example.org. 5 IN CNAME lb-1.example.net. |"},
		{"named.default.example.org", dns.TypeAAAA, "alias lb-1.example.net. NOERROR | named.default.example.org. 5 IN CNAME lb-1.example.net. |"},
		{"named.default.example.org", dns.TypeCNAME, "answered NOERROR | named.default.example.org. 5 IN CNAME lb-1.example.net. |"},
		{"named.default.example.org", dns.TypeTXT, outNoData},
		{"named.default.example.org", dns.TypeSRV, "answered NOERROR | named.default.example.org. 5 IN SRV 0 33 443 lb-1.example.net. " +
			"| named.default.example.org. 5 IN SRV 0 33 80 lb-1.example.net. |"},
		{"_tls._tcp.named.default.example.org", dns.TypeSRV, "answered NOERROR | _tls._tcp.named.default.example.org. 5 IN SRV 0 100 443 lb-1.example.net. |"},
		{"_no._tcp.named.default.example.org", dns.TypeSRV, outNXDomain},
		{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
		{"both.default.example.org", dns.TypeAAAA, outNoData},
		{"both.default.example.org", dns.TypeSRV, "answered NOERROR | both.default.example.org. 5 IN SRV 0 50 80 both.default.example.org. " +
			"| both.default.example.org. 5 IN SRV 0 50 80 lb-1.example.net. | extra both.default.example.org. 5 IN A 192.0.2.5 |"},
		{"_http._tcp.both.default.example.org", dns.TypeSRV, "answered NOERROR | _http._tcp.both.default.example.org. 5 IN SRV 0 50 80 both.default.example.org. " +
			"| _http._tcp.both.default.example.org. 5 IN SRV 0 50 80 lb-1.example.net. | extra both.default.example.org. 5 IN A 192.0.2.5 |"},
		// Services that are not reached from outside, and what is no Service.
		{"inside.default.example.org", dns.TypeA, outNXDomain},
		{"one.inside.default.example.org", dns.TypeA, outNXDomain},
		{"_http._tcp.inside.default.example.org", dns.TypeSRV, outNXDomain},
		{"db.default.example.org", dns.TypeA, outNXDomain},
		{"db-0.db.default.example.org", dns.TypeA, outNXDomain},
		{"plainalias.default.example.org", dns.TypeA, outNXDomain},
		{"nope.default.example.org", dns.TypeA, outNXDomain},
		{"nope.default.example.org", dns.TypePTR, outNXDomain},
		{"web.none.example.org", dns.TypeA, outNXDomain},
		{"default.example.org", dns.TypeA, outNoData},
		{"default.example.org", dns.TypeSOA, outNoData},
		{"bare.example.org", dns.TypeA, outNoData},
		{"none.example.org", dns.TypeA, outNXDomain},
		{"a.b.c.d.web.default.example.org", dns.TypeA, outNXDomain},
		{"web.default.svc.cluster.local", dns.TypeA, "not mine NOERROR |"},
		{"web.default.example.org", dns.TypeAXFR, "refused REFUSED |"},
		{"example.org", dns.TypeIXFR, "refused REFUSED |"},
	})
}

func TestExternalApex(t *testing.T) {
	checkAnswers(t, openOutside(t, nil), []answerCase{
		{"example.org", dns.TypeSOA, "answered NOERROR | " + exampleSOA},
		{"example.org", dns.TypeNS, "answered NOERROR | example.org. 5 IN NS ns1.dns.example.org. | extra ns1.dns.example.org. 5 IN A 169.254.20.10 |"},
		{"example.org", dns.TypeSRV, outNoData},
		{"example.org", dns.TypeA, outNoData},
		{"dns.example.org", dns.TypeSRV, outNoData},
		{"dns.example.org", dns.TypeNS, outNoData},
		{"ns1.dns.example.org", dns.TypeA, "answered NOERROR | ns1.dns.example.org. 5 IN A 169.254.20.10 |"},
		{"ns1.dns.example.org", dns.TypeAAAA, outNoData},
		{"ns1.dns.example.org", dns.TypeSRV, outNoData},
		{"ns2.dns.example.org", dns.TypeA, outNXDomain},
		{"a.ns1.dns.example.org", dns.TypeA, outNXDomain},
		{"in-addr.arpa", dns.TypeNS, "answered NOERROR | in-addr.arpa. 5 IN NS ns1.dns.in-addr.arpa. | extra ns1.dns.in-addr.arpa. 5 IN A 169.254.20.10 |"},
		{"dns.in-addr.arpa", dns.TypeA, outNoReverse},
	})
	long := strings.Repeat("x", 63)
	soa := "example.org. 5 IN SOA ns1." + long + ".example.org. hostmaster." + long + ".example.org. 1700000000 7200 1800 86400 5 |"
	checkAnswers(t, openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Apex = strings.ToUpper(long) }), []answerCase{
		{"example.org", dns.TypeSOA, "answered NOERROR | " + soa},
		{"ns1." + long + ".example.org", dns.TypeA, "answered NOERROR | ns1." + long + ".example.org. 5 IN A 169.254.20.10 |"},
		{"dns.example.org", dns.TypeA, "answered NOERROR | ns " + soa}, // a namespace
	})
}

// The name server's addresses are the external ones of the Services that select the agent.
func TestExternalNameserver(t *testing.T) {
	e := openOutside(t, nil)
	e.zone.view.addrs = reachableAddrs(addrs("10.1.0.1", "10.1.1.2"))
	checkAnswers(t, e, []answerCase{
		{"ns1.dns.example.org", dns.TypeA, "answered NOERROR | ns1.dns.example.org. 5 IN A 192.0.2.1 " +
			"| ns1.dns.example.org. 5 IN A 192.0.2.2 | ns1.dns.example.org. 5 IN A 192.0.2.3 |"},
		{"example.org", dns.TypeNS, "answered NOERROR | example.org. 5 IN NS ns1.dns.example.org. | extra ns1.dns.example.org. 5 IN A 192.0.2.1 " +
			"| extra ns1.dns.example.org. 5 IN A 192.0.2.2 | extra ns1.dns.example.org. 5 IN A 192.0.2.3 | extra ns1.dns.example.org. 5 IN AAAA 2001:db8::1 |"},
	})
	e.zone.view.addrs = reachableAddrs(addrs("10.1.0.9"))
	checkAnswers(t, e, []answerCase{
		{"ns1.dns.example.org", dns.TypeA, outNoData},
		{"example.org", dns.TypeNS, "answered NOERROR | example.org. 5 IN NS ns1.dns.example.org. |"},
	})
	e.headless = true
	e.zone.view.addrs = reachableAddrs(addrs("10.1.1.2"))
	checkAnswers(t, e, []answerCase{
		{"ns1.dns.example.org", dns.TypeA, "answered NOERROR | ns1.dns.example.org. 5 IN A 10.1.1.1 | ns1.dns.example.org. 5 IN A 10.1.1.2 |"},
	})
}

func TestExternalHeadless(t *testing.T) {
	checkAnswers(t, openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true }), []answerCase{
		{"db.default.example.org", dns.TypeA, "answered NOERROR | db.default.example.org. 5 IN A 10.1.1.1 | db.default.example.org. 5 IN A 10.1.1.2 |"},
		{"db.default.example.org", dns.TypeAAAA, outNoData},
		{"db.default.example.org", dns.TypeMX, outNoData},
		{"db-0.db.default.example.org", dns.TypeA, "answered NOERROR | db-0.db.default.example.org. 5 IN A 10.1.1.1 |"},
		{"10-1-1-2.db.default.example.org", dns.TypeA, "answered NOERROR | 10-1-1-2.db.default.example.org. 5 IN A 10.1.1.2 |"},
		{"_db-0.db.default.example.org", dns.TypeA, outNXDomain},
		{"db-9.db.default.example.org", dns.TypeA, outNXDomain},
		{"_tcp.db.default.example.org", dns.TypeA, outNoData},
		{"db.default.example.org", dns.TypeSRV, "answered NOERROR | db.default.example.org. 5 IN SRV 0 50 5432 10-1-1-2.db.default.example.org. " +
			"| db.default.example.org. 5 IN SRV 0 50 5432 db-0.db.default.example.org. " +
			"| extra 10-1-1-2.db.default.example.org. 5 IN A 10.1.1.2 | extra db-0.db.default.example.org. 5 IN A 10.1.1.1 |"},
		{"_pg._tcp.db.default.example.org", dns.TypeSRV, "answered NOERROR | _pg._tcp.db.default.example.org. 5 IN SRV 0 50 5432 10-1-1-2.db.default.example.org. " +
			"| _pg._tcp.db.default.example.org. 5 IN SRV 0 50 5432 db-0.db.default.example.org. " +
			"| extra 10-1-1-2.db.default.example.org. 5 IN A 10.1.1.2 | extra db-0.db.default.example.org. 5 IN A 10.1.1.1 |"},
		{"_no._tcp.db.default.example.org", dns.TypeSRV, outNXDomain},
		{"idle.default.example.org", dns.TypeA, outNXDomain},
		// The endpoints of a service with a cluster IP have names, it has not.
		{"one.inside.default.example.org", dns.TypeA, "answered NOERROR | one.inside.default.example.org. 5 IN A 10.1.0.9 |"},
		{"one.inside.default.example.org", dns.TypeSRV, "answered NOERROR | one.inside.default.example.org. 5 IN SRV 0 100 8080 one.inside.default.example.org. " +
			"| extra one.inside.default.example.org. 5 IN A 10.1.0.9 |"},
		{"inside.default.example.org", dns.TypeA, outNXDomain},
		{"_http._tcp.inside.default.example.org", dns.TypeSRV, outNXDomain},
		{"_tcp.inside.default.example.org", dns.TypeSRV, outNXDomain},
		// External addresses go first.
		{"shown.default.example.org", dns.TypeA, "answered NOERROR | shown.default.example.org. 5 IN A 192.0.2.6 |"},
		{"shown-0.shown.default.example.org", dns.TypeA, "answered NOERROR | shown-0.shown.default.example.org. 5 IN A 192.0.2.6 |"},
		{"plainalias.default.example.org", dns.TypeA, outNXDomain},
		{"1.1.1.10.in-addr.arpa", dns.TypePTR, outReverse},
	})
}

func TestExternalReverse(t *testing.T) {
	v6, err := dns.ReverseAddr("2001:db8::1")
	noError(t, err)
	cases := []answerCase{
		{"1.2.0.192.in-addr.arpa", dns.TypePTR, "answered NOERROR | 1.2.0.192.in-addr.arpa. 5 IN PTR web.default.example.org. |"},
		{"3.2.0.192.in-addr.arpa", dns.TypePTR, "answered NOERROR | 3.2.0.192.in-addr.arpa. 5 IN PTR shared.default.example.org. " +
			"| 3.2.0.192.in-addr.arpa. 5 IN PTR web.default.example.org. |"},
		{v6, dns.TypePTR, "answered NOERROR | " + v6 + " 5 IN PTR web.default.example.org. |"},
		{"1.2.0.192.in-addr.arpa", dns.TypeA, outNoReverse},
		{"9.2.0.192.in-addr.arpa", dns.TypePTR, outReverse},
		{"10.0.96.10.in-addr.arpa", dns.TypePTR, outReverse},
		{"2.0.192.in-addr.arpa", dns.TypePTR, outReverse},
		{"web.default.in-addr.arpa", dns.TypeA, outReverse},
	}
	checkAnswers(t, openOutside(t, nil), cases)
	reversed := openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) {
		e.Zones = names(t, "in-addr.arpa", "ip6.arpa", "example.org")
	})
	checkAnswers(t, reversed, cases)
	only := openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Zones = names(t, "in-addr.arpa") })
	checkAnswers(t, only, []answerCase{{"1.2.0.192.in-addr.arpa", dns.TypePTR, outReverse}})
}

func TestExternalOptions(t *testing.T) {
	type change = func(*config.K8sExternal, *config.Kubernetes)
	cases := map[string]struct {
		change change
		cases  []answerCase
	}{
		"ttl": {func(e *config.K8sExternal, _ *config.Kubernetes) { e.TTL = 600 }, []answerCase{
			{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 600 IN A 192.0.2.5 |"},
			{"no.default.example.org", dns.TypeA, strings.Replace(strings.Replace(outNXDomain, " 5 IN", " 300 IN", 1), "86400 5", "86400 600", 1)},
		}},
		"fallthrough": {func(e *config.K8sExternal, _ *config.Kubernetes) { e.Fallthrough = &config.Fallthrough{} }, []answerCase{
			{"no.default.example.org", dns.TypeA, "not mine NOERROR |"},
			{"9.2.0.192.in-addr.arpa", dns.TypePTR, "not mine NOERROR |"},
			{"portless.default.example.org", dns.TypeA, outNoData},
			{"ns2.dns.example.org", dns.TypeA, outNXDomain},
		}},
		"fallthrough zones": {func(e *config.K8sExternal, _ *config.Kubernetes) {
			e.Fallthrough = &config.Fallthrough{Zones: names(t, "in-addr.arpa")}
		}, []answerCase{
			{"no.default.example.org", dns.TypeA, outNXDomain},
			{"9.2.0.192.in-addr.arpa", dns.TypePTR, "not mine NOERROR |"},
		}},
		"fallthrough of the cluster zone": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.Fallthrough = &config.Fallthrough{} }, []answerCase{
			{"no.default.example.org", dns.TypeA, outNXDomain},
		}},
		"namespaces": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.Namespaces = []string{"bare"} }, []answerCase{
			{"both.default.example.org", dns.TypeA, outNXDomain},
			{"default.example.org", dns.TypeA, outNXDomain},
			{"bare.example.org", dns.TypeA, outNoData},
			{"5.2.0.192.in-addr.arpa", dns.TypePTR, outReverse},
		}},
		"multicluster": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.Multicluster = names(t, "example.org") }, []answerCase{
			{"5.2.0.192.in-addr.arpa", dns.TypePTR, "answered NOERROR | 5.2.0.192.in-addr.arpa. 5 IN PTR both.default.example.org. |"},
		}},
		"namespace_labels": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.NamespaceLabels = "team=x" }, []answerCase{
			{"both.default.example.org", dns.TypeA, outNXDomain},
			{"5.2.0.192.in-addr.arpa", dns.TypePTR, outReverse},
		}},
		"labels": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.Labels = "app=none" }, []answerCase{
			{"both.default.example.org", dns.TypeA, outNXDomain},
		}},
		"ignore empty_service": {func(_ *config.K8sExternal, k *config.Kubernetes) { k.IgnoreEmptyService = true }, []answerCase{
			{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
		}},
		"noendpoints": {func(e *config.K8sExternal, k *config.Kubernetes) { e.Headless, k.NoEndpoints = true, true }, []answerCase{
			{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
			{"db.default.example.org", dns.TypeA, outNXDomain},
		}},
		"nested zones": {func(e *config.K8sExternal, _ *config.Kubernetes) { e.Zones = names(t, "org", "example.org") }, []answerCase{
			{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
			{"both.default.org", dns.TypeA, "answered NOERROR | both.default.org. 5 IN A 192.0.2.5 |"},
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { checkAnswers(t, openOutside(t, c.change), c.cases) })
	}
}

// Before all lists are complete, known names are answered and nothing is denied.
func TestExternalUnsynced(t *testing.T) {
	e := openOutside(t, nil)
	e.zone.view.listed[services].Store(false)
	checkAnswers(t, e, []answerCase{
		{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
		{"no.default.example.org", dns.TypeA, "not synced NOERROR |"},
		{"9.2.0.192.in-addr.arpa", dns.TypePTR, "not synced NOERROR |"},
		{"ns2.dns.example.org", dns.TypeA, outNXDomain},
	})
}

// The names of an address follow changes of its Services.
func TestExternalChanges(t *testing.T) {
	v := emptyView()
	e := NewExternal(v, externalConfig(t), testConfig(t))
	put := func(name, typ string, ips ...string) {
		t.Helper()
		svc := makeService("default", name, "10.96.0.1")
		svc.Spec.Type, svc.Spec.ExternalIPs = corev1.ServiceType(typ), ips
		key, rec, ok := convertService(svc, true, new(faults))
		if !ok {
			t.Fatal("no record")
		}
		v.change(func(x *index) bool { return x.putService(key, rec) })
	}
	drop := func(name string) {
		t.Helper()
		key, _ := serviceKey(name, "default")
		v.change(func(x *index) bool { return x.dropService(key) })
	}
	owners := func(want ...string) {
		t.Helper()
		m, _, _ := ask(t, e, "1.2.0.192.in-addr.arpa", dns.TypePTR)
		var got []string
		for _, rr := range m.Answer {
			got = append(got, rr.(*dns.PTR).Ptr)
		}
		equal(t, want, got, "")
	}
	put("a", "ClusterIP", "192.0.2.1", "192.0.2.2")
	owners("a.default.example.org.")
	put("b", "LoadBalancer", "192.0.2.1")
	owners("a.default.example.org.", "b.default.example.org.")
	put("a", "ClusterIP", "192.0.2.2")
	owners("b.default.example.org.")
	put("b", "ExternalName", "192.0.2.1")
	owners("b.default.example.org.")
	drop("b")
	owners()
	put("b", "ClusterIP", "192.0.2.1")
	owners("b.default.example.org.")
	drop("a")
	drop("b")
	count(t, len(v.index.externalAddrs), 0, "addresses are left of no Service")
}

// Invalid addresses and names are left out and reported.
func TestExternalFaults(t *testing.T) {
	svc := makeService("default", "web", "10.96.0.1")
	svc.Spec.ExternalIPs = []string{"192.0.2.300", "fe80::1%eth0", "::ffff:192.0.2.1", "192.0.2.1"}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "none"}, {Hostname: "two words"}, {Hostname: "lb.example.net"}}
	var f faults
	_, s, _ := convertService(svc, true, &f)
	if got := f.n; got != 4 {
		t.Errorf("%d faults: %s", got, &f)
	}
	if s.external4 != "\xc0\x00\x02\x01" || s.external6 != "" || s.target != "\x02lb\x07example\x03net\x00" || s.loadBalancerName() != "" {
		t.Errorf("external4 %q, external6 %q, target %q, balancer %q", s.external4, s.external6, s.target, s.loadBalancerName())
	}
}

func TestExternalAllocatesNothing(t *testing.T) {
	e := openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true })
	for _, c := range []struct {
		qname   string
		qtype   uint16
		want    Outcome
		answers int
	}{
		{"web.default.example.org", dns.TypeA, Answered, 3},
		{"WEB.default.example.org", dns.TypeAAAA, Answered, 1},
		{"_http._tcp.web.default.example.org", dns.TypeA, Answered, 3},
		{"named.default.example.org", dns.TypeA, Alias, 1},
		{"db.default.example.org", dns.TypeA, Answered, 2},
		{"db-0.db.default.example.org", dns.TypeA, Answered, 1},
		{"nope.default.example.org", dns.TypeA, Answered, 0},
		{"9.2.0.192.in-addr.arpa", dns.TypePTR, Answered, 0},
	} {
		t.Run(c.qname, func(t *testing.T) {
			allocatesNothing(t, answerer(t, e, c.qname, c.qtype), c.want, c.answers)
		})
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// Names that depend on slices out of view are incomplete, and can be awaited.
func TestExternalElsewhere(t *testing.T) {
	e := openOutside(t, func(e *config.K8sExternal, _ *config.Kubernetes) { e.Headless = true })
	v := e.zone.view
	v.setLevel(levelNode)
	checkAnswers(t, e, []answerCase{
		{"db.default.example.org", dns.TypeA, "elsewhere NOERROR |"},
		{"db-0.db.default.example.org", dns.TypeTXT, "elsewhere NOERROR |"},
		{"_pg._tcp.db.default.example.org", dns.TypeSRV, "elsewhere NOERROR |"},
		{"idle.default.example.org", dns.TypeA, "elsewhere NOERROR |"},
		{"one.inside.default.example.org", dns.TypeA, "elsewhere NOERROR |"},
		{"inside.default.example.org", dns.TypeA, outNXDomain},
		{"_tcp.inside.default.example.org", dns.TypeA, outNXDomain},
		{"both.default.example.org", dns.TypeA, "answered NOERROR | both.default.example.org. 5 IN A 192.0.2.5 |"},
		{"shown-0.shown.default.example.org", dns.TypeA, "answered NOERROR | shown-0.shown.default.example.org. 5 IN A 192.0.2.6 |"},
		{"nope.default.example.org", dns.TypeA, outNXDomain},
		{"5.2.0.192.in-addr.arpa", dns.TypePTR, "answered NOERROR | 5.2.0.192.in-addr.arpa. 5 IN PTR both.default.example.org. |"},
	})
	var q wire.Query
	q.Parse(packQuery(t, "db.default.example.org", dns.TypeA))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Await(ended, &q); !errors.Is(err, context.Canceled) {
		t.Errorf("what isn't in view is waited for until %v", err)
	}
	done := make(chan error)
	go func() { done <- e.Await(t.Context(), &q) }()
	v.setLevel(levelAll)
	if err := <-done; err != nil {
		t.Error(err)
	}
	checkAnswers(t, e, []answerCase{
		{"db.default.example.org", dns.TypeA, "answered NOERROR | db.default.example.org. 5 IN A 10.1.1.1 | db.default.example.org. 5 IN A 10.1.1.2 |"},
		{"idle.default.example.org", dns.TypeA, outNXDomain},
	})
	// Without `headless` no name hangs on slices.
	e.headless = false
	v.setLevel(levelNode)
	checkAnswers(t, e, []answerCase{{"db.default.example.org", dns.TypeA, outNXDomain}})
}
