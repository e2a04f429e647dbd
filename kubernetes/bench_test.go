// Internal: feeds handlers directly.

package kubernetes

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/wire"
)

// hot are the usual queries of a node.
var hot = []struct {
	name, qname string
	qtype       uint16
	want        Outcome
	answers     int
}{
	{"ClusterIP A", "web.default.svc.cluster.local", dns.TypeA, Answered, 1},
	{"ClusterIP AAAA", "WEB.default.svc.cluster.local", dns.TypeAAAA, Answered, 1},
	{"NODATA", "portless.default.svc.cluster.local", dns.TypeAAAA, Answered, 0},
	{"headless 10", "ten.default.svc.cluster.local", dns.TypeA, Answered, 10},
	{"headless 50", "fifty.default.svc.cluster.local", dns.TypeA, Answered, 50},
	{"headless 50 in three places", "spread.default.svc.cluster.local", dns.TypeA, Answered, 50},
	{"headless 50 IPv6", "six.default.svc.cluster.local", dns.TypeAAAA, Answered, 50},
	{"zonal", "east.pin._zone.spread.default.svc.cluster.local", dns.TypeA, Answered, 30},
	{"zonal all", "south.prefer._zone.spread.default.svc.cluster.local", dns.TypeA, Answered, 50},
	{"zonal NXDOMAIN", "east.pin._zone.web.default.svc.cluster.local", dns.TypeA, Answered, 0},
	{"endpoint of 50", "h49.spread.default.svc.cluster.local", dns.TypeA, Answered, 1},
	{"port of 50", "_http._tcp.spread.default.svc.cluster.local", dns.TypeA, Answered, 50},
	{"endpoint", "db-0.db.default.svc.cluster.local", dns.TypeA, Answered, 2},
	{"dashed endpoint", "10-1-0-1.web.default.svc.cluster.local", dns.TypeA, Answered, 1},
	{"port", "_pg._tcp.db.default.svc.cluster.local", dns.TypeA, Answered, 4},
	{"pod", "10-0-0-1.default.pod.cluster.local", dns.TypeA, Answered, 1},
	{"alias inside", "in.default.svc.cluster.local", dns.TypeA, Answered, 2},
	{"alias outside", "out.default.svc.cluster.local", dns.TypeAAAA, Alias, 1},
	{"NXDOMAIN", "www.example.com.default.svc.cluster.local", dns.TypeA, Answered, 0},
	{"NXDOMAIN service", "nope.default.svc.cluster.local", dns.TypeA, Answered, 0},
	{"NXDOMAIN search", "www.example.com.svc.cluster.local", dns.TypeAAAA, Answered, 0},
	{"NXDOMAIN endpoint", "nope.db.default.svc.cluster.local", dns.TypeA, Answered, 0},
	{"NXDOMAIN reverse", "8.8.8.8.in-addr.arpa", dns.TypePTR, Answered, 0},
	{"elsewhere", "www.example.com", dns.TypeA, NotMine, 0},
}

// hotZone returns the zone of these queries, and one with zonal names.
func hotZone(t testing.TB) (z, zonal *Zone) {
	cfg := testConfig(t)
	cfg.Zonal = true
	v := openPlaced(t, cfg, cluster)
	for _, s := range []struct {
		name, addrs string
		n           int
		spread      bool
	}{
		{"ten", "10.2.0.%d", 10, false},
		{"fifty", "10.3.0.%d", 50, false},
		{"spread", "10.4.0.%d", 50, true},
		{"six", "fd00:5::%x", 50, false},
	} {
		handlerFixture{v, services}.put(makeService("default", s.name, "None"))
		var addrs []string
		for i := range s.n {
			addrs = append(addrs, fmt.Sprintf(s.addrs, i+1))
		}
		es := makeSlice("default", s.name, s.name+"-1", addrs...)
		if strings.Contains(s.addrs, ":") {
			es.AddressType = discoveryv1.AddressTypeIPv6
		}
		for i := range es.Endpoints {
			if ep := &es.Endpoints[i]; s.spread {
				node, zone, host := "n"+fmt.Sprint(i%10), []string{"east", "west"}[i%10/4%2], "h"+fmt.Sprint(i)
				ep.NodeName, ep.Zone, ep.Hostname = &node, &zone, &host
			}
		}
		handlerFixture{v, endpointSlices}.put(es)
	}
	return NewZone(v, testConfig(t)), NewZone(v, cfg)
}

// answerer returns a function that answers one query into its own buffer.
func answerer(t testing.TB, z answers, qname string, qtype uint16) func() (Outcome, int) {
	packet := packQuery(t, qname, qtype)
	q, r, buf := new(wire.Query), new(wire.Reply), make([]byte, 0, 4096)
	return func() (Outcome, int) {
		q.Parse(packet)
		r.Start(buf, q)
		outcome, _ := z.Answer(q, r, nil)
		r.Finish(4096)
		return outcome, r.Count(wire.Answer)
	}
}

// allocatesNothing checks what answer returns, and that it allocates nothing.
func allocatesNothing(t *testing.T, answer func() (Outcome, int), want Outcome, answers int) {
	t.Helper()
	if outcome, n := answer(); outcome != want || n != answers {
		t.Fatalf("outcome %d with %d answers, want %d with %d", outcome, n, want, answers)
	}
	if n := testing.AllocsPerRun(100, func() { answer() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The usual answers allocate nothing.
func TestAnswerAllocatesNothing(t *testing.T) {
	plain, zonal := hotZone(t)
	for _, c := range hot {
		t.Run(c.name, func(t *testing.T) {
			z := plain
			if strings.Contains(c.qname, "._zone.") {
				z = zonal
			}
			allocatesNothing(t, answerer(t, z, c.qname, c.qtype), c.want, c.answers)
		})
	}
}

func BenchmarkAnswer(b *testing.B) {
	plain, zonal := hotZone(b)
	for _, c := range hot {
		b.Run(c.name, func(b *testing.B) {
			z := plain
			if strings.Contains(c.qname, "._zone.") {
				z = zonal
			}
			answer := answerer(b, z, c.qname, c.qtype)
			b.ReportAllocs()
			for b.Loop() {
				answer()
			}
		})
	}
}

// makeService and makeSlice are objects of a large cluster, as they come off the
// wire.
func makeService(ns, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "metrics", Port: 9090}},
		},
	}
}

func makeSlice(ns, service, name string, addrs ...string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	port, portName := int32(8080), "http"
	es.Ports = []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}
	for _, a := range addrs {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return es
}

// emptyView is a view without a source.
func emptyView() *View {
	v := newView(Options{Now: testClock})
	v.setLevel(levelAll)
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	v.bumpSerial()
	return v
}

// BenchmarkIndex measures the memory of a view of 10,000 services by kind of service.
func BenchmarkIndex(b *testing.B) {
	const services = 10000
	for _, c := range []struct {
		name      string
		ip        bool
		endpoints int
		hostnames bool
	}{
		{"ClusterIP", true, 0, false},
		{"ClusterIP with 10 endpoints", true, 10, false},
		{"headless 10", false, 10, false},
		{"headless 10 with hostnames", false, 10, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			var bytes uint64
			for b.Loop() {
				before := heap()
				v := emptyView()
				fill(v, services, c.ip, c.endpoints, c.hostnames)
				bytes += heap() - before
				runtime.KeepAlive(v)
			}
			b.ReportMetric(float64(bytes)/float64(b.N)/services, "B/service")
			if c.endpoints > 0 {
				b.ReportMetric(float64(bytes)/float64(b.N)/services/float64(c.endpoints), "B/endpoint")
			}
		})
	}
}

// BenchmarkEvent measures one change in a view of 10,000 services with 10 endpoints each.
func BenchmarkEvent(b *testing.B) {
	v := emptyView()
	fill(v, 10000, true, 10, false)
	handlerFixture{v, services}.put(makeService("team-1", "db", "None"))
	addrs := make([]string, 101)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("10.250.0.%d", i+1)
	}
	for _, c := range []struct {
		name     string
		resource resource
		objects  [2]metav1.Object
	}{
		{"Service", services, [2]metav1.Object{makeService("team-1", "web", "10.97.0.1"), makeService("team-1", "web", "10.97.0.2")}},
		{"Service unchanged", services, [2]metav1.Object{makeService("team-1", "same", "10.97.0.3"), makeService("team-1", "same", "10.97.0.3")}},
		{"one of 100 endpoints", endpointSlices, [2]metav1.Object{makeSlice("team-1", "db", "db-1", addrs[1:]...), makeSlice("team-1", "db", "db-1", addrs[:100]...)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				handlerFixture{v, c.resource}.put(c.objects[i%2])
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func fill(v *View, n int, ip bool, endpoints int, hostnames bool) {
	clusterIP, pod := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.128.0.1")
	for i := range n {
		ns, name := fmt.Sprintf("team-%d", i%500), fmt.Sprintf("service-%d", i)
		svc := makeService(ns, name, "None")
		if ip {
			clusterIP = clusterIP.Next()
			svc = makeService(ns, name, clusterIP.String())
		}
		handlerFixture{v, services}.put(svc)
		if endpoints == 0 {
			continue
		}
		es := makeSlice(ns, name, name+"-x7k2p")
		for j := range endpoints {
			pod = pod.Next()
			ep := discoveryv1.Endpoint{Addresses: []string{pod.String()}}
			if hostnames {
				host := fmt.Sprintf("%s-%d", name, j)
				ep.Hostname = &host
			}
			es.Endpoints = append(es.Endpoints, ep)
		}
		handlerFixture{v, endpointSlices}.put(es)
	}
}

// BenchmarkServicesInUse looks for the Services in use of a node with pods in 20 of the 1,000 namespaces of 10,000 Services.
func BenchmarkServicesInUse(b *testing.B) {
	v := newView(Options{Now: testClock})
	v.node = "n1"
	for i := range 1000 {
		ns := fmt.Sprintf("ns%03d", i)
		for j := range 10 {
			ip := "None"
			if j > 1 {
				ip = fmt.Sprintf("10.%d.%d.%d", 64+i/256, i%256, j)
			}
			handlerFixture{v, services}.put(makeService(ns, fmt.Sprintf("svc-%d-%d", i, j), ip))
		}
		if i%50 == 0 {
			handlerFixture{v, pods}.put(makePod(ns, "p", fmt.Sprintf("10.244.0.%d", i/50+1)))
		}
	}
	for b.Loop() {
		if _, used := v.servicesInUse(); len(used) != 40 {
			b.Fatalf("%d Services in use, want 40", len(used))
		}
	}
}
