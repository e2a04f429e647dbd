// Internal: has the fixtures of internal tests.

package kubernetes

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// start is the time of test views, and thereby the serial of every SOA.
const start = 1700000000

func testClock() time.Time { return time.Unix(start, 0) }

func names(t testing.TB, list ...string) []wire.Name {
	t.Helper()
	var out []wire.Name
	for _, s := range list {
		n, err := wire.ParseName(s)
		noError(t, err)
		out = append(out, n)
	}
	return out
}

// testConfig is the directive of most tests, with the zones of the cluster add-on.
func testConfig(t testing.TB) *config.Kubernetes {
	return &config.Kubernetes{
		Zones: names(t, "cluster.local", "in-addr.arpa", "ip6.arpa"),
		TTL:   30, Pods: config.PodsInsecure,
	}
}

// objectHead is a line that stands for the head of an object in the tests' manifests: its kind, its namespace and name, and the
// Service of an EndpointSlice.
var objectHead = regexp.MustCompile(`(?m)^--- (\w+) (?:(\S+)/)?(\S+)(?: of (\S+))?$`)

// manifests returns the objects in yaml with their heads as Kubernetes writes them.
func manifests(yaml string) []byte {
	return objectHead.ReplaceAllFunc([]byte(yaml), func(line []byte) []byte {
		m := objectHead.FindSubmatch(line)
		version, labels := "v1", ""
		if len(m[4]) > 0 {
			version, labels = "discovery.k8s.io/v1", "kubernetes.io/service-name: "+string(m[4])
		}
		return fmt.Appendf(nil, "---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %q, labels: {%s}}", version, m[1], m[3], m[2], labels)
	})
}

// openText opens a view of the manifests in yaml.
func openText(t testing.TB, cfg *config.Kubernetes, yaml string) *View {
	t.Helper()
	return openWith(t, cfg, Options{Now: testClock, ServerAddrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}}, yaml)
}

func openWith(t testing.TB, cfg *config.Kubernetes, opts Options, yaml string) *View {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	noError(t, os.WriteFile(file, manifests(yaml), 0o600))
	cfg.Manifests = []string{file}
	v, err := Open(cfg, opts)
	noError(t, err)
	return v
}

func packQuery(t testing.TB, name string, qtype uint16) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(4096, false)
	b, err := m.Pack()
	noError(t, err)
	return b
}

// answers is a Zone or an External.
type answers interface {
	Answer(*wire.Query, *wire.Reply, *Budget) (Outcome, wire.Name)
}

// ask sends one query to z.
func ask(t testing.TB, z answers, name string, qtype uint16) (*dns.Msg, Outcome, wire.Name) {
	t.Helper()
	var q wire.Query
	var r wire.Reply
	if verdict := q.Parse(packQuery(t, name, qtype)); verdict != wire.Serve {
		t.Fatalf("%s is no query: %d", name, verdict)
	}
	r.Start(nil, &q)
	outcome, target := z.Answer(&q, &r, nil)
	m := new(dns.Msg)
	if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
		t.Fatalf("%s: the reply can't be read: %v", name, err)
	}
	return m, outcome, target
}

// format returns an answer as text, one record a line, sorted within its section.
func format(m *dns.Msg, outcome Outcome, target wire.Name) string {
	var b strings.Builder
	fmt.Fprintln(&b, [...]string{"not mine", "answered", "not synced", "alias", "refused", "elsewhere", "large"}[outcome], target, dns.RcodeToString[m.Rcode])
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var lines []string
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			lines = append(lines, [...]string{"", "ns ", "extra "}[i]+strings.Join(strings.Fields(rr.String()), " "))
		}
		if i != 0 || len(m.Answer) == 0 || m.Answer[0].Header().Rrtype != dns.TypeCNAME {
			sort.Strings(lines)
		}
		for _, l := range lines {
			fmt.Fprintln(&b, l)
		}
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "\n", " | ")), " ")
}

// cluster is the cluster of most tests.
const cluster = `
--- Namespace bare
--- Service default/web
spec:
  type: ClusterIP
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:10::a"]
  ports:
  - {name: http, port: 80, protocol: TCP}
  - {name: dns, port: 53, protocol: UDP}
  - {port: 9000}
--- EndpointSlice default/web-1 of web
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: web-abc}}
- {addresses: [10.1.0.2], conditions: {ready: false}}
--- Service default/db
spec: {clusterIP: None, clusterIPs: [None], ports: [{name: pg, port: 5432}]}
--- EndpointSlice default/db-4 of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.1.1.2], hostname: db-1}
- {addresses: [10.1.1.1], hostname: db-0, conditions: {ready: true}}
- {addresses: [10.1.1.3], conditions: {}}
- {addresses: [10.1.1.4], hostname: db-9, conditions: {ready: false}}
--- EndpointSlice default/db-4b of db
addressType: IPv4
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: [10.1.1.1], hostname: db-0}
- {addresses: [10.1.1.5], hostname: db-0}
--- EndpointSlice default/db-6 of db
addressType: IPv6
ports: [{name: pg, port: 5432, protocol: TCP}]
endpoints:
- {addresses: ["fd00:1::1"], hostname: db-0}
- {addresses: ["fd00:1::"]}
--- Service default/idle
spec: {clusterIP: None, ports: [{name: x, port: 1}]}
--- Service default/portless
spec: {clusterIP: 10.96.0.11}
--- Service default/out
spec: {type: ExternalName, externalName: www.example.com}
--- Service default/in
spec: {type: ExternalName, externalName: web.default.svc.cluster.local.}
--- Service default/in2out
spec: {type: ExternalName, externalName: out.default.svc.cluster.local}
--- Service default/dangling
spec: {type: ExternalName, externalName: nothing.default.svc.cluster.local}
--- Service default/ip
spec: {type: ExternalName, externalName: 192.0.2.1}
--- Service loop/a
spec: {type: ExternalName, externalName: b.loop.svc.cluster.local}
--- Service loop/b
spec: {type: ExternalName, externalName: a.loop.svc.cluster.local}
`

const (
	nxdomain = "answered NXDOMAIN | ns cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 30 |"
	nodata   = "answered NOERROR | ns cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 30 |"
	nxptr    = "answered NXDOMAIN | ns in-addr.arpa. 30 IN SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 1700000000 7200 1800 86400 30 |"
	noptr    = "answered NOERROR | ns in-addr.arpa. 30 IN SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 1700000000 7200 1800 86400 30 |"
)

type answerCase struct {
	name  string
	qtype uint16
	want  string
}

func checkAnswers(t *testing.T, z answers, cases []answerCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name+" "+dns.TypeToString[c.qtype], func(t *testing.T) {
			m, outcome, target := ask(t, z, c.name, c.qtype)
			got := format(m, outcome, target)
			equal(t, strings.Split(c.want, "|"), strings.Split(got, "|"), "")
			if (outcome == Answered || outcome == Alias) && !m.Authoritative {
				t.Error("AA is not set")
			}
		})
	}
}

func TestAnswerForward(t *testing.T) {
	z := NewZone(openText(t, testConfig(t), cluster), testConfig(t))
	checkAnswers(t, z, []answerCase{
		// ClusterIP.
		{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"WEB.Default.svc.CLUSTER.local", dns.TypeA, "answered NOERROR | WEB.Default.svc.CLUSTER.local. 30 IN A 10.96.0.10 |"},
		{"web.default.svc.cluster.local", dns.TypeAAAA, "answered NOERROR | web.default.svc.cluster.local. 30 IN AAAA fd00:10::a |"},
		{"portless.default.svc.cluster.local", dns.TypeAAAA, nodata},
		{"portless.default.svc.cluster.local", dns.TypeSRV, nodata},
		{"web.default.svc.cluster.local", dns.TypeMX, nodata},
		{"web.default.svc.cluster.local", dns.TypeANY, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"nope.default.svc.cluster.local", dns.TypeANY, nxdomain},
		{"web.default.svc.cluster.local", dns.TypeHTTPS, nodata},
		{"web.default.svc.cluster.local", dns.TypeTXT, nodata},
		{"web.default.svc.cluster.local", dns.TypeDS, nodata},
		{"web.default.svc.cluster.local", dns.TypePTR, nodata},
		{"web.default.svc.cluster.local", dns.TypeSOA, nodata},
		{"web.default.svc.cluster.local", dns.TypeNS, nodata},
		{"web.default.svc.cluster.local", dns.TypeCNAME, nodata},
		{"nope.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"nope.default.svc.cluster.local", dns.TypeSOA, nxdomain},
		{"*.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"any.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"web.bare.svc.cluster.local", dns.TypeA, nxdomain},
		{"_http._tcp.web.default.svc.cluster.local", dns.TypeSRV,
			"answered NOERROR | _http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 50 80 web.default.svc.cluster.local. " +
				"| extra web.default.svc.cluster.local. 30 IN A 10.96.0.10 | extra web.default.svc.cluster.local. 30 IN AAAA fd00:10::a |"},
		{"_http._tcp.web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | _http._tcp.web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"_http._udp.web.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"_._tcp.web.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"_http._.web.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"_tcp.web.default.svc.cluster.local", dns.TypeA, nodata},
		{"_udp.web.default.svc.cluster.local", dns.TypeSRV, nodata},
		{"_sctp.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"a._http._tcp.web.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"web.default.svc.cluster.local", dns.TypeSRV,
			"answered NOERROR | web.default.svc.cluster.local. 30 IN SRV 0 16 53 web.default.svc.cluster.local. " +
				"| web.default.svc.cluster.local. 30 IN SRV 0 16 80 web.default.svc.cluster.local. | web.default.svc.cluster.local. 30 IN SRV 0 16 9000 web.default.svc.cluster.local. " +
				"| extra web.default.svc.cluster.local. 30 IN A 10.96.0.10 | extra web.default.svc.cluster.local. 30 IN AAAA fd00:10::a |"},
		// Endpoints of a ClusterIP service.
		{"10-1-0-1.web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | 10-1-0-1.web.default.svc.cluster.local. 30 IN A 10.1.0.1 |"},
		{"10-1-0-2.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"web-abc.web.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"10-1-0-1.web.default.svc.cluster.local", dns.TypeSRV,
			"answered NOERROR | 10-1-0-1.web.default.svc.cluster.local. 30 IN SRV 0 100 8080 10-1-0-1.web.default.svc.cluster.local. " +
				"| extra 10-1-0-1.web.default.svc.cluster.local. 30 IN A 10.1.0.1 |"},
		// Headless.
		{"db.default.svc.cluster.local", dns.TypeA,
			"answered NOERROR | db.default.svc.cluster.local. 30 IN A 10.1.1.1 | db.default.svc.cluster.local. 30 IN A 10.1.1.2 " +
				"| db.default.svc.cluster.local. 30 IN A 10.1.1.3 | db.default.svc.cluster.local. 30 IN A 10.1.1.5 |"},
		{"db.default.svc.cluster.local", dns.TypeAAAA,
			"answered NOERROR | db.default.svc.cluster.local. 30 IN AAAA fd00:1:: | db.default.svc.cluster.local. 30 IN AAAA fd00:1::1 |"},
		{"db-0.db.default.svc.cluster.local", dns.TypeA,
			"answered NOERROR | db-0.db.default.svc.cluster.local. 30 IN A 10.1.1.1 | db-0.db.default.svc.cluster.local. 30 IN A 10.1.1.5 |"},
		{"db-0.db.default.svc.cluster.local", dns.TypeAAAA, "answered NOERROR | db-0.db.default.svc.cluster.local. 30 IN AAAA fd00:1::1 |"},
		{"db-1.db.default.svc.cluster.local", dns.TypeAAAA, nodata},
		{"db-9.db.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"10-1-1-1.db.default.svc.cluster.local", dns.TypeA, nxdomain}, // hidden by its hostname
		{"10-1-1-3.db.default.svc.cluster.local", dns.TypeA, "answered NOERROR | 10-1-1-3.db.default.svc.cluster.local. 30 IN A 10.1.1.3 |"},
		{"fd00-1--0.db.default.svc.cluster.local", dns.TypeAAAA, "answered NOERROR | fd00-1--0.db.default.svc.cluster.local. 30 IN AAAA fd00:1:: |"},
		{"fd00-1--.db.default.svc.cluster.local", dns.TypeAAAA, nxdomain},
		{"fd00-1-0--0.db.default.svc.cluster.local", dns.TypeAAAA, nxdomain},
		{"_pg._tcp.db.default.svc.cluster.local", dns.TypeA,
			"answered NOERROR | _pg._tcp.db.default.svc.cluster.local. 30 IN A 10.1.1.1 | _pg._tcp.db.default.svc.cluster.local. 30 IN A 10.1.1.2 " +
				"| _pg._tcp.db.default.svc.cluster.local. 30 IN A 10.1.1.3 | _pg._tcp.db.default.svc.cluster.local. 30 IN A 10.1.1.5 |"},
		{"_pg._tcp.db.default.svc.cluster.local", dns.TypeSRV,
			"answered NOERROR | _pg._tcp.db.default.svc.cluster.local. 30 IN SRV 0 14 5432 10-1-1-3.db.default.svc.cluster.local. " +
				"| _pg._tcp.db.default.svc.cluster.local. 30 IN SRV 0 14 5432 db-0.db.default.svc.cluster.local. " +
				"| _pg._tcp.db.default.svc.cluster.local. 30 IN SRV 0 14 5432 db-1.db.default.svc.cluster.local. " +
				"| _pg._tcp.db.default.svc.cluster.local. 30 IN SRV 0 14 5432 fd00-1--0.db.default.svc.cluster.local. " +
				"| extra 10-1-1-3.db.default.svc.cluster.local. 30 IN A 10.1.1.3 | extra db-0.db.default.svc.cluster.local. 30 IN A 10.1.1.1 " +
				"| extra db-0.db.default.svc.cluster.local. 30 IN A 10.1.1.5 | extra db-0.db.default.svc.cluster.local. 30 IN AAAA fd00:1::1 " +
				"| extra db-1.db.default.svc.cluster.local. 30 IN A 10.1.1.2 | extra fd00-1--0.db.default.svc.cluster.local. 30 IN AAAA fd00:1:: |"},
		{"_tcp.db.default.svc.cluster.local", dns.TypeA, nodata},
		{"_no._tcp.db.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"idle.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"_x._tcp.idle.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"_tcp.idle.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		// ExternalName.
		{"out.default.svc.cluster.local", dns.TypeA, "alias www.example.com. NOERROR | out.default.svc.cluster.local. 30 IN CNAME www.example.com. |"},
		{"out.default.svc.cluster.local", dns.TypeCNAME, "answered NOERROR | out.default.svc.cluster.local. 30 IN CNAME www.example.com. |"},
		{"out.default.svc.cluster.local", dns.TypeTXT, nodata},
		{"out.default.svc.cluster.local", dns.TypeSRV, nodata},
		{"x.out.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"in.default.svc.cluster.local", dns.TypeA, "answered NOERROR | in.default.svc.cluster.local. 30 IN CNAME web.default.svc.cluster.local. | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"in2out.default.svc.cluster.local", dns.TypeAAAA, "alias www.example.com. NOERROR | in2out.default.svc.cluster.local. 30 IN CNAME out.default.svc.cluster.local. | out.default.svc.cluster.local. 30 IN CNAME www.example.com. |"},
		{"dangling.default.svc.cluster.local", dns.TypeA, nodata},
		{"ip.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"a.loop.svc.cluster.local", dns.TypeA, nodata},
		// Names of no object.
		{"cluster.local", dns.TypeA, nodata},
		{"cluster.local", dns.TypeTXT, nodata},
		{"cluster.local", dns.TypeSOA, "answered NOERROR | cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 30 |"},
		{"cluster.local", dns.TypeNS, "answered NOERROR | cluster.local. 30 IN NS ns.dns.cluster.local. | extra ns.dns.cluster.local. 30 IN A 169.254.20.10 |"},
		{"ns.dns.cluster.local", dns.TypeA, "answered NOERROR | ns.dns.cluster.local. 30 IN A 169.254.20.10 |"},
		{"ns.dns.cluster.local", dns.TypeAAAA, nodata},
		{"dns.cluster.local", dns.TypeA, nodata},
		{"svc.cluster.local", dns.TypeA, nodata},
		{"pod.cluster.local", dns.TypeA, nodata},
		{"default.svc.cluster.local", dns.TypeA, nodata},
		{"bare.svc.cluster.local", dns.TypeA, nodata},
		{"none.svc.cluster.local", dns.TypeA, nxdomain},
		{"foo.cluster.local", dns.TypeA, nxdomain},
		{"dns-version.cluster.local", dns.TypeTXT, `answered NOERROR | dns-version.cluster.local. 28800 IN TXT "1.1.0" |`},
		{"dns-version.cluster.local", dns.TypeA, nodata},
		{"x.dns-version.cluster.local", dns.TypeTXT, nxdomain},
		{"a.b.c.d.e.f.g.svc.cluster.local", dns.TypeA, nxdomain},
		{"example.com", dns.TypeA, "not mine NOERROR |"},
		{"xcluster.local", dns.TypeA, "not mine NOERROR |"},
		{"cluster.local", dns.TypeAXFR, "refused REFUSED |"},
		{"web.default.svc.cluster.local", dns.TypeIXFR, "refused REFUSED |"},
	})
}

func TestAnswerPod(t *testing.T) {
	z := NewZone(openText(t, testConfig(t), cluster), testConfig(t))
	checkAnswers(t, z, []answerCase{
		{"10-0-0-1.default.pod.cluster.local", dns.TypeA, "answered NOERROR | 10-0-0-1.default.pod.cluster.local. 30 IN A 10.0.0.1 |"},
		{"10-0-0-1.default.pod.cluster.local", dns.TypeAAAA, nodata},
		{"fd00--1.default.pod.cluster.local", dns.TypeAAAA, "answered NOERROR | fd00--1.default.pod.cluster.local. 30 IN AAAA fd00::1 |"},
		{"1-2--4.default.pod.cluster.local", dns.TypeAAAA, "answered NOERROR | 1-2--4.default.pod.cluster.local. 30 IN AAAA 1:2::4 |"},
		{"--ffff-a00-1.default.pod.cluster.local", dns.TypeA, "answered NOERROR | --ffff-a00-1.default.pod.cluster.local. 30 IN A 10.0.0.1 |"},
		{"10-0-0-256.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"10-0-0-01.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"10-0-0-1.none.pod.cluster.local", dns.TypeA, nxdomain},
		{"web.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"x.10-0-0-1.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"default.pod.cluster.local", dns.TypeA, nodata},
		{"none.pod.cluster.local", dns.TypeA, nxdomain},
	})
	cfg := testConfig(t)
	cfg.Pods = config.PodsDisabled
	checkAnswers(t, NewZone(z.View(), cfg), []answerCase{
		{"10-0-0-1.default.pod.cluster.local", dns.TypeA, nxdomain},
		{"default.pod.cluster.local", dns.TypeA, nxdomain},
		{"pod.cluster.local", dns.TypeA, nodata},
	})
}

func TestAnswerOptions(t *testing.T) {
	with := func(change func(*config.Kubernetes)) *Zone {
		cfg := testConfig(t)
		change(cfg)
		return NewZone(openText(t, cfg, cluster), cfg)
	}
	cases := map[string]struct {
		change func(*config.Kubernetes)
		cases  []answerCase
	}{
		"ttl": {func(c *config.Kubernetes) { c.TTL = 600 }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 600 IN A 10.96.0.10 |"},
			{"no.default.svc.cluster.local", dns.TypeA, strings.Replace(strings.Replace(nxdomain, " 30 IN", " 300 IN", 1), "86400 30", "86400 600", 1)},
		}},
		"namespaces": {func(c *config.Kubernetes) { c.Namespaces = []string{"bare"} }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"default.svc.cluster.local", dns.TypeA, nxdomain},
			{"bare.svc.cluster.local", dns.TypeA, nodata},
			{"10-0-0-1.default.pod.cluster.local", dns.TypeA, nxdomain},
			{"10.0.96.10.in-addr.arpa", dns.TypePTR, nxptr},
			{"1.1.1.10.in-addr.arpa", dns.TypePTR, nxptr},
		}},
		"noendpoints": {func(c *config.Kubernetes) { c.NoEndpoints = true }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
			{"db.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"1.1.1.10.in-addr.arpa", dns.TypePTR, nxptr},
		}},
		"labels": {func(c *config.Kubernetes) { c.Labels = "app=none" }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"bare.svc.cluster.local", dns.TypeA, nodata},
		}},
		"ignore empty_service": {func(c *config.Kubernetes) { c.IgnoreEmptyService = true }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
			{"portless.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"out.default.svc.cluster.local", dns.TypeCNAME, "answered NOERROR | out.default.svc.cluster.local. 30 IN CNAME www.example.com. |"},
		}},
		"endpoint_pod_names": {func(c *config.Kubernetes) { c.EndpointPodNames = true }, []answerCase{
			{"web-abc.web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web-abc.web.default.svc.cluster.local. 30 IN A 10.1.0.1 |"},
			{"10-1-0-1.web.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"1.0.1.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 1.0.1.10.in-addr.arpa. 30 IN PTR web-abc.web.default.svc.cluster.local. |"},
		}},
		"fallthrough": {func(c *config.Kubernetes) { c.Fallthrough = &config.Fallthrough{} }, []answerCase{
			{"no.default.svc.cluster.local", dns.TypeA, "not mine NOERROR |"},
			{"portless.default.svc.cluster.local", dns.TypeAAAA, nodata},
		}},
		"fallthrough zones": {func(c *config.Kubernetes) { c.Fallthrough = &config.Fallthrough{Zones: names(t, "in-addr.arpa")} }, []answerCase{
			{"no.default.svc.cluster.local", dns.TypeA, nxdomain},
			{"1.2.3.4.in-addr.arpa", dns.TypePTR, "not mine NOERROR |"},
		}},
		"nested zones": {func(c *config.Kubernetes) { c.Zones = names(t, "local", "cluster.local") }, []answerCase{
			{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
			{"web.default.svc.local", dns.TypeA, "answered NOERROR | web.default.svc.local. 30 IN A 10.96.0.10 |"},
		}},
		"root zone": {func(c *config.Kubernetes) { c.Zones = []wire.Name{wire.Root} }, []answerCase{
			{"web.default.svc", dns.TypeA, "answered NOERROR | web.default.svc. 30 IN A 10.96.0.10 |"},
			{"web.default", dns.TypeA, "answered NXDOMAIN | ns . 30 IN SOA ns.dns. hostmaster. 1700000000 7200 1800 86400 30 |"},
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { checkAnswers(t, with(c.change), c.cases) })
	}
}

func TestAnswerNameservers(t *testing.T) {
	v := openText(t, testConfig(t), cluster)
	v.addrs = []netip.Addr{netip.MustParseAddr("10.1.0.1")}
	checkAnswers(t, NewZone(v, testConfig(t)), []answerCase{
		{"cluster.local", dns.TypeNS, "answered NOERROR | cluster.local. 30 IN NS web.default.svc.cluster.local. " +
			"| extra web.default.svc.cluster.local. 30 IN A 10.96.0.10 | extra web.default.svc.cluster.local. 30 IN AAAA fd00:10::a |"},
		{"ns.dns.cluster.local", dns.TypeA, "answered NOERROR | ns.dns.cluster.local. 30 IN A 10.96.0.10 |"},
	})
}

// Before all lists are complete, known names are answered and nothing is denied.
func TestAnswerUnsynced(t *testing.T) {
	v := openText(t, testConfig(t), cluster)
	v.listed[endpointSlices].Store(false)
	checkAnswers(t, NewZone(v, testConfig(t)), []answerCase{
		{"web.default.svc.cluster.local", dns.TypeA, "answered NOERROR | web.default.svc.cluster.local. 30 IN A 10.96.0.10 |"},
		{"portless.default.svc.cluster.local", dns.TypeAAAA, nodata},
		{"idle.default.svc.cluster.local", dns.TypeA, "not synced NOERROR |"},
		{"no.default.svc.cluster.local", dns.TypeA, "not synced NOERROR |"},
		{"dangling.default.svc.cluster.local", dns.TypeA, "not synced NOERROR |"},
		{"9.9.9.9.in-addr.arpa", dns.TypePTR, "not synced NOERROR |"},
		{"cluster.local", dns.TypeA, nodata},
	})
	if v.Synced() {
		t.Error("the view says it is synced")
	}
}
