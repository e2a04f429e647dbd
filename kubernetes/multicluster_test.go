// Internal: feeds handlers directly.

package kubernetes

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
)

// Where multicluster zones differ from CoreDNS's, and why:
//
//   - An import without ports has its addresses, as a Service without ports has;
//     CoreDNS says it doesn't exist.
//   - `<cluster>.<service>` and `_tcp.<service>` exist where something below them does
//     (RFC 8020).
//   - An endpoint of no cluster is the SRV target `<hostname>.<service>…`, the name it
//     is found by; CoreDNS writes an empty label, which no client can read.
//   - `_._tcp` and `_http._` are no names, where CoreDNS takes the empty part for any.
//   - Names are as good in any case; CoreDNS doesn't know a multicluster zone that is
//     not in lower case.
//   - The NS of the apex is a name in the zone of the Services it is made of; CoreDNS
//     says the one in this zone, which is no import's.
//   - PTR records never point into a multicluster zone, and the endpoints of imports
//     have none: CoreDNS says `<hostname>..<namespace>.svc.<zone>` for these.
//   - A cluster that can't be a label is left out of its endpoints' names.

// importSlice is a slice of an import; a host with an empty name is one of no
// hostname.
func importSlice(name, service, cluster string, port int32, hosts ...string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{labelImport: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if cluster != "" {
		es.Labels[labelCluster] = cluster
	}
	if port != 0 {
		portName, proto := "pg", corev1.ProtocolTCP
		es.Ports = []discoveryv1.EndpointPort{{Name: &portName, Protocol: &proto, Port: &port}}
	}
	for _, h := range hosts {
		host, addr, _ := strings.Cut(h, "=")
		ep := discoveryv1.Endpoint{Addresses: []string{addr}}
		if strings.Contains(addr, ":") {
			es.AddressType = discoveryv1.AddressTypeIPv6
		}
		if host != "" {
			ep.Hostname = &host
		}
		es.Endpoints = append(es.Endpoints, ep)
	}
	return es
}

func testImport(name, kind string, ports []serviceImportPort, ips ...string) *serviceImport {
	return &serviceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       serviceImportSpec{Type: kind, IPs: ips, Ports: ports},
	}
}

func testImports(t testing.TB, v *View) {
	t.Helper()
	var f faults
	http := []serviceImportPort{{Name: "http", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}
	for _, o := range []*serviceImport{
		testImport("web", "ClusterSetIP", http, "10.240.0.1", "fd00:240::1"),
		testImport("portless", "ClusterSetIP", nil, "10.240.0.2"),
		testImport("pending", "ClusterSetIP", http),
		testImport("db", "Headless", nil),
		testImport("idle", "Headless", nil),
		testImport("bare", "Headless", nil),
		testImport("plain", "Headless", nil),
		testImport("twin", "Headless", nil),
	} {
		v.putImport(o, &f)
	}
	for _, es := range []*discoveryv1.EndpointSlice{
		importSlice("web-east", "web", "east", 8080, "one=10.8.0.1", "=10.8.0.2"),
		importSlice("db-east", "db", "East", 5432, "db-0=10.8.1.1", "db-1=10.8.1.2"),
		importSlice("db-west", "db", "west", 5432, "db-0=10.9.1.1", "=10.9.1.3", "db-2=10.8.1.2"),
		importSlice("db-west6", "db", "west", 5432, "db-0=fd00:9::1"),
		importSlice("db-north", "db", "north", 5432),
		importSlice("plain-east", "plain", "east", 0, "=10.8.3.1"),
		importSlice("plain-west", "plain", "west", 0, "=10.9.3.1"),
		importSlice("twin-east", "twin", "east", 0, "t=10.8.4.1"),
		importSlice("twin-west", "twin", "west", 0, "t=10.8.4.1"),
		importSlice("bare-1", "bare", "", 0, "lone=10.8.2.1"),
		importSlice("bare-2", "bare", "tcp", 0, "db-0=10.8.2.2"),
	} {
		v.putImportSlice(es, &f)
	}
	if f.n > 0 {
		t.Fatal(f)
	}
}

const (
	setSOA      = "clusterset.local. 30 IN SOA ns.dns.clusterset.local. hostmaster.clusterset.local. 1700000000 7200 1800 86400 30 |"
	setNXDomain = "answered NXDOMAIN | ns " + setSOA
	setNoData   = "answered NOERROR | ns " + setSOA
)

func multiclusterConfig(t testing.TB) *config.Kubernetes {
	cfg := testConfig(t)
	cfg.Zones = names(t, "clusterset.local", "cluster.local", "in-addr.arpa")
	cfg.Multicluster = names(t, "clusterset.local")
	return cfg
}

func openMulticluster(t testing.TB, change func(*config.Kubernetes)) *Zone {
	t.Helper()
	cfg := multiclusterConfig(t)
	if change != nil {
		change(cfg)
	}
	v := openText(t, cfg, cluster)
	testImports(t, v)
	return NewZone(v, cfg)
}

func TestMulticluster(t *testing.T) {
	checkAnswers(t, openMulticluster(t, nil), []answerCase{
		// ClusterSetIP.
		{"web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
		{"Web.default.SVC.ClusterSet.local", dns.TypeA, "answered NOERROR | Web.default.SVC.ClusterSet.local. 30 IN A 10.240.0.1 |"},
		{"web.default.svc.clusterset.local", dns.TypeAAAA, "answered NOERROR | web.default.svc.clusterset.local. 30 IN AAAA fd00:240::1 |"},
		{"web.default.svc.clusterset.local", dns.TypeTXT, setNoData},
		{"web.default.svc.clusterset.local", dns.TypeCNAME, setNoData},
		{"web.default.svc.clusterset.local", dns.TypeSRV, "answered NOERROR | web.default.svc.clusterset.local. 30 IN SRV 0 25 53 web.default.svc.clusterset.local. " +
			"| web.default.svc.clusterset.local. 30 IN SRV 0 25 80 web.default.svc.clusterset.local. " +
			"| extra web.default.svc.clusterset.local. 30 IN A 10.240.0.1 | extra web.default.svc.clusterset.local. 30 IN AAAA fd00:240::1 |"},
		{"_http._tcp.web.default.svc.clusterset.local", dns.TypeSRV,
			"answered NOERROR | _http._tcp.web.default.svc.clusterset.local. 30 IN SRV 0 50 80 web.default.svc.clusterset.local. " +
				"| extra web.default.svc.clusterset.local. 30 IN A 10.240.0.1 | extra web.default.svc.clusterset.local. 30 IN AAAA fd00:240::1 |"},
		{"_http.tcp.web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | _http.tcp.web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
		{"http._tcp.web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | http._tcp.web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
		{"http.tcp.web.default.svc.clusterset.local", dns.TypeA, setNXDomain}, // an endpoint in cluster tcp
		{"_http._udp.web.default.svc.clusterset.local", dns.TypeSRV, setNXDomain},
		{"_._tcp.web.default.svc.clusterset.local", dns.TypeSRV, setNXDomain},
		{"_tcp.web.default.svc.clusterset.local", dns.TypeA, setNoData},
		{"portless.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | portless.default.svc.clusterset.local. 30 IN A 10.240.0.2 |"},
		{"pending.default.svc.clusterset.local", dns.TypeA, setNoData},
		// Its endpoints.
		{"one.east.web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | one.east.web.default.svc.clusterset.local. 30 IN A 10.8.0.1 |"},
		{"10-8-0-2.east.web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | 10-8-0-2.east.web.default.svc.clusterset.local. 30 IN A 10.8.0.2 |"},
		{"one.east.web.default.svc.clusterset.local", dns.TypeSRV,
			"answered NOERROR | one.east.web.default.svc.clusterset.local. 30 IN SRV 0 100 8080 one.east.web.default.svc.clusterset.local. " +
				"| extra one.east.web.default.svc.clusterset.local. 30 IN A 10.8.0.1 |"},
		{"one.west.web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"one.web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"two.east.web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"east.web.default.svc.clusterset.local", dns.TypeA, setNoData},
		{"west.web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"x.one.east.web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		// Headless: the endpoints of all clusters.
		{"db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db.default.svc.clusterset.local. 30 IN A 10.8.1.1 " +
			"| db.default.svc.clusterset.local. 30 IN A 10.8.1.2 | db.default.svc.clusterset.local. 30 IN A 10.9.1.1 | db.default.svc.clusterset.local. 30 IN A 10.9.1.3 |"},
		{"db-0.east.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-0.east.db.default.svc.clusterset.local. 30 IN A 10.8.1.1 |"},
		{"db-0.EAST.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-0.EAST.db.default.svc.clusterset.local. 30 IN A 10.8.1.1 |"},
		{"db-0.west.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-0.west.db.default.svc.clusterset.local. 30 IN A 10.9.1.1 |"},
		{"db-0.west.db.default.svc.clusterset.local", dns.TypeAAAA, "answered NOERROR | db-0.west.db.default.svc.clusterset.local. 30 IN AAAA fd00:9::1 |"},
		{"db-0.east.db.default.svc.clusterset.local", dns.TypeAAAA, setNoData},
		{"db-1.west.db.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"db-2.west.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-2.west.db.default.svc.clusterset.local. 30 IN A 10.8.1.2 |"},
		{"db-2.east.db.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"10-9-1-3.west.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | 10-9-1-3.west.db.default.svc.clusterset.local. 30 IN A 10.9.1.3 |"},
		{"db-0.db.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"_pg._tcp.db.default.svc.clusterset.local", dns.TypeSRV,
			"answered NOERROR | _pg._tcp.db.default.svc.clusterset.local. 30 IN SRV 0 16 5432 10-9-1-3.west.db.default.svc.clusterset.local. " +
				"| _pg._tcp.db.default.svc.clusterset.local. 30 IN SRV 0 16 5432 db-0.east.db.default.svc.clusterset.local. " +
				"| _pg._tcp.db.default.svc.clusterset.local. 30 IN SRV 0 16 5432 db-0.west.db.default.svc.clusterset.local. " +
				"| _pg._tcp.db.default.svc.clusterset.local. 30 IN SRV 0 16 5432 db-1.east.db.default.svc.clusterset.local. " +
				"| _pg._tcp.db.default.svc.clusterset.local. 30 IN SRV 0 16 5432 db-2.west.db.default.svc.clusterset.local. " +
				"| extra 10-9-1-3.west.db.default.svc.clusterset.local. 30 IN A 10.9.1.3 | extra db-0.east.db.default.svc.clusterset.local. 30 IN A 10.8.1.1 " +
				"| extra db-0.west.db.default.svc.clusterset.local. 30 IN A 10.9.1.1 | extra db-0.west.db.default.svc.clusterset.local. 30 IN AAAA fd00:9::1 " +
				"| extra db-1.east.db.default.svc.clusterset.local. 30 IN A 10.8.1.2 | extra db-2.west.db.default.svc.clusterset.local. 30 IN A 10.8.1.2 |"},
		{"_pg._tcp.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | _pg._tcp.db.default.svc.clusterset.local. 30 IN A 10.8.1.1 " +
			"| _pg._tcp.db.default.svc.clusterset.local. 30 IN A 10.8.1.2 | _pg._tcp.db.default.svc.clusterset.local. 30 IN A 10.9.1.1 " +
			"| _pg._tcp.db.default.svc.clusterset.local. 30 IN A 10.9.1.3 |"},
		{"_no._tcp.db.default.svc.clusterset.local", dns.TypeSRV, setNXDomain},
		{"north.db.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"idle.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"10-8-3-1.east.plain.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | 10-8-3-1.east.plain.default.svc.clusterset.local. 30 IN A 10.8.3.1 |"},
		{"10-8-3-1.west.plain.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		// Clusters may use the same addresses.
		{"twin.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | twin.default.svc.clusterset.local. 30 IN A 10.8.4.1 |"},
		{"t.west.twin.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | t.west.twin.default.svc.clusterset.local. 30 IN A 10.8.4.1 |"},
		// Of no cluster.
		{"bare.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | bare.default.svc.clusterset.local. 30 IN A 10.8.2.1 | bare.default.svc.clusterset.local. 30 IN A 10.8.2.2 |"},
		{"lone.bare.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | lone.bare.default.svc.clusterset.local. 30 IN A 10.8.2.1 |"},
		{"db-0.tcp.bare.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-0.tcp.bare.default.svc.clusterset.local. 30 IN A 10.8.2.2 |"},
		{"bare.default.svc.clusterset.local", dns.TypeSRV, setNoData},
		// Names of no import.
		{"out.default.svc.clusterset.local", dns.TypeA, setNXDomain}, // a Service
		{"nope.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"web.none.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"default.svc.clusterset.local", dns.TypeA, setNoData},
		{"bare.svc.clusterset.local", dns.TypeA, setNoData},
		{"none.svc.clusterset.local", dns.TypeA, setNXDomain},
		{"svc.clusterset.local", dns.TypeA, setNoData},
		{"foo.clusterset.local", dns.TypeA, setNXDomain},
		{"clusterset.local", dns.TypeSOA, "answered NOERROR | " + setSOA},
		{"clusterset.local", dns.TypeNS, "answered NOERROR | clusterset.local. 30 IN NS ns.dns.clusterset.local. | extra ns.dns.clusterset.local. 30 IN A 169.254.20.10 |"},
		{"dns-version.clusterset.local", dns.TypeTXT, `answered NOERROR | dns-version.clusterset.local. 28800 IN TXT "1.1.0" |`},
		{"10-0-0-1.default.pod.clusterset.local", dns.TypeA, "answered NOERROR | 10-0-0-1.default.pod.clusterset.local. 30 IN A 10.0.0.1 |"},
		{"clusterset.local", dns.TypeAXFR, "refused REFUSED |"},
		// The cluster zone beside it knows nothing of imports.
		{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"bare.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"db-0.east.db.default.svc.cluster.local", dns.TypeA, nxdomain},
		// No reverse names, and none in the zone of imports.
		{"1.0.240.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"1.1.8.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"10.0.96.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 10.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc.cluster.local. |"},
	})
}

func TestMulticlusterOptions(t *testing.T) {
	cases := map[string]struct {
		change func(*config.Kubernetes)
		cases  []answerCase
	}{
		"namespaces": {func(c *config.Kubernetes) { c.Namespaces = []string{"bare"} }, []answerCase{
			{"web.default.svc.clusterset.local", dns.TypeA, setNXDomain},
			{"default.svc.clusterset.local", dns.TypeA, setNXDomain},
			{"bare.svc.clusterset.local", dns.TypeA, setNoData},
		}},
		"ignore empty_service": {func(c *config.Kubernetes) { c.IgnoreEmptyService = true }, []answerCase{
			{"web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
			{"portless.default.svc.clusterset.local", dns.TypeA, setNXDomain},
		}},
		"fallthrough": {func(c *config.Kubernetes) { c.Fallthrough = &config.Fallthrough{Zones: names(t, "clusterset.local")} }, []answerCase{
			{"nope.default.svc.clusterset.local", dns.TypeA, "not mine NOERROR |"},
			{"pending.default.svc.clusterset.local", dns.TypeA, setNoData},
		}},
		"no zone of Services": {func(c *config.Kubernetes) { c.Zones = names(t, "clusterset.local", "in-addr.arpa") }, []answerCase{
			{"web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
			{"10.0.96.10.in-addr.arpa", dns.TypePTR, nxptr},
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { checkAnswers(t, openMulticluster(t, c.change), c.cases) })
	}
}

// Before the lists of ServiceImports, or without them, only their zones deny nothing. The view is saved, and the next
// one knows no more.
func TestMulticlusterUnlisted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	cfg.Zones, cfg.Multicluster = names(t, "clusterset.local", "cluster.local"), names(t, "clusterset.local")
	v, _ := openSaved(t, cfg)
	for r := range serviceImports {
		v.setListed(r)
	}
	handlerFixture{v, services}.put(makeService("default", "web", "10.96.0.1"))
	check := func(v *View) {
		t.Helper()
		checkAnswers(t, NewZone(v, cfg), []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.1 |"},
			{"no.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"no.default.svc.clusterset.local", dns.TypeA, "not synced NOERROR |"},
		})
	}
	check(v)
	if v.Loaded() {
		t.Error("a view that waits for ServiceImports says it is loaded")
	}
	s := viewSaver{view: v, path: path}
	s.save()
	back, _ := openSaved(t, cfg)
	check(back)
	if !back.Loaded() {
		t.Error("a start waits for what the saved view lacks")
	}
	back.setListed(serviceImports)
	back.setListed(importSlices)
	checkAnswers(t, NewZone(back, cfg), []answerCase{{"no.default.svc.clusterset.local", dns.TypeA, setNXDomain}})
}

func TestMulticlusterNameservers(t *testing.T) {
	z := openMulticluster(t, nil)
	z.view.addrs = reachableAddrs(addrs("10.1.0.1"))
	checkAnswers(t, z, []answerCase{
		{"clusterset.local", dns.TypeNS, "answered NOERROR | clusterset.local. 30 IN NS web.default.svc.cluster.local. " +
			"| extra web.default.svc.cluster.local. 30 IN A 10.96.0.10 | extra web.default.svc.cluster.local. 30 IN AAAA fd00:10::a |"},
	})
}

// Cluster zones and multicluster zones have separate serials.
func TestMulticlusterSerial(t *testing.T) {
	v := emptyView()
	z := NewZone(v, multiclusterConfig(t))
	now := testClock()
	v.now = func() time.Time { return now }
	serial := func(zone string) uint32 {
		t.Helper()
		m, _, _ := ask(t, z, zone, dns.TypeSOA)
		return m.Answer[0].(*dns.SOA).Serial - start
	}
	check := func(step string, cluster, set uint32) {
		t.Helper()
		if c, s := serial("cluster.local"), serial("clusterset.local"); c != cluster || s != set {
			t.Errorf("%s: the serials are %d and %d, want %d and %d", step, c, s, cluster, set)
		}
	}
	var f faults
	steps := []struct {
		name         string
		do           func()
		cluster, set uint32
	}{
		{"an import", func() { v.putImport(testImport("db", "Headless", nil), &f) }, 0, 1},
		{"the same again", func() { v.putImport(testImport("db", "Headless", nil), &f) }, 0, 1},
		{"a slice", func() { v.putImportSlice(importSlice("db-1", "db", "east", 80, "a=10.8.0.1"), &f) }, 0, 3},
		{"the same again", func() { v.putImportSlice(importSlice("db-1", "db", "east", 80, "a=10.8.0.1"), &f) }, 0, 3},
		{"another cluster", func() { v.putImportSlice(importSlice("db-1", "db", "west", 80, "a=10.8.0.1"), &f) }, 0, 5},
		{"a Service", func() {
			key, rec, _ := convertService(makeService("default", "web", "10.96.0.1"), true, &f)
			v.change(func(x *index) bool { return x.putService(key, rec) })
		}, 6, 5},
		{"a slice of nothing", func() { v.putImportSlice(importSlice("db-1", "", "west", 80, "a=10.8.0.1"), &f) }, 6, 7},
		{"no import", func() { v.dropImport("default", "db") }, 6, 8},
		{"nor again", func() { v.dropImport("default", "db") }, 6, 8},
		{"no slice", func() { v.dropImportSlice("default", "db-1") }, 6, 8},
	}
	for _, s := range steps {
		now = now.Add(time.Second)
		s.do()
		check(s.name, s.cluster, s.set)
	}
	count(t, len(v.imports.services)+len(v.imports.slices)+len(v.imports.namespaces)+len(v.imports.endpoints), 0, "records are left of nothing")
}

// Values that no name can hold are left out and reported.
func TestMulticlusterFaults(t *testing.T) {
	v := emptyView()
	z := NewZone(v, multiclusterConfig(t))
	var f faults
	v.putImport(testImport("no.name", "Headless", nil), &f)
	v.putImport(testImport("web", "ClusterSetIP", []serviceImportPort{{Name: "http", Port: 70000}}, "none", "10.240.0.1"), &f)
	v.putImport(testImport("db", "Headless", nil), &f)
	v.putImportSlice(importSlice("db-1", "db", "a.b", 80, "db-0=10.8.0.1"), &f)
	if f.n != 4 {
		t.Errorf("%d faults: %s", f.n, &f)
	}
	checkAnswers(t, z, []answerCase{
		{"web.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | web.default.svc.clusterset.local. 30 IN A 10.240.0.1 |"},
		{"db.default.svc.clusterset.local", dns.TypeSRV, "answered NOERROR | db.default.svc.clusterset.local. 30 IN SRV 0 100 80 db-0.db.default.svc.clusterset.local. " +
			"| extra db-0.db.default.svc.clusterset.local. 30 IN A 10.8.0.1 |"},
		{"db-0.db.default.svc.clusterset.local", dns.TypeA, "answered NOERROR | db-0.db.default.svc.clusterset.local. 30 IN A 10.8.0.1 |"},
	})
}

func TestMulticlusterAllocatesNothing(t *testing.T) {
	z := openMulticluster(t, nil)
	for _, c := range []struct {
		qname   string
		answers int
	}{
		{"web.default.svc.clusterset.local", 1},
		{"db.default.svc.clusterset.local", 4},
		{"db-0.east.db.default.svc.clusterset.local", 1},
		{"10-9-1-3.west.db.default.svc.clusterset.local", 1},
		{"nope.default.svc.clusterset.local", 0},
	} {
		t.Run(c.qname, func(t *testing.T) {
			allocatesNothing(t, answerer(t, z, c.qname, dns.TypeA), Answered, c.answers)
		})
	}
}
