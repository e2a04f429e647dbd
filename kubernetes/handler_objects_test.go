// Internal: feeds handlers directly.

package kubernetes

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestHandlerImports: imports and their slices come and go by the handlers of their resources, and
// don't touch Services of the same name.
func TestHandlerImports(t *testing.T) {
	cfg := multiclusterConfig(t)
	v := emptyView()
	z := NewZone(v, cfg)
	imports, parts := handlerFixture{v, serviceImports}, handlerFixture{v, importSlices}
	handlerFixture{v, services}.put(makeService("default", "web", "10.96.0.1"))
	web, db := testImport("web", "ClusterSetIP", nil, "10.240.0.1"), testImport("db", "Headless", nil)
	east := importSlice("db-east", "db", "east", 5432, "db-0=10.8.1.1")
	imports.put(web)
	imports.put(db)
	parts.put(east)
	check := func(after string, want map[string]int) {
		t.Helper()
		for name, rcode := range want {
			if m, _, _ := ask(t, z, name, dns.TypeA); m.Rcode != rcode || (len(m.Answer) > 0) != (rcode == dns.RcodeSuccess) {
				t.Errorf("%s: %s has rcode %d and %d answers, want rcode %d", after, name, m.Rcode, len(m.Answer), rcode)
			}
		}
	}
	const imported, part, service = "web.default.svc.clusterset.local", "db-0.east.db.default.svc.clusterset.local", "web.default.svc.cluster.local"
	check("put", map[string]int{imported: 0, part: 0, service: 0})
	parts.drop(east)
	check("slice deleted", map[string]int{imported: 0, part: dns.RcodeNameError, service: 0})
	imports.drop(web)
	check("import deleted", map[string]int{imported: dns.RcodeNameError, service: 0})
}

// TestHandlerIgnores: what is no object of the API, or says nothing new, changes nothing.
func TestHandlerIgnores(t *testing.T) {
	v := emptyView()
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	before := v.serial.Load()
	h := handlerFixture{v, namespaces}.handler()
	h.Upsert(&metav1.Status{}, true)
	handlerFixture{v, namespaces}.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}) // never put
	handlerFixture{v, namespaces}.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	if m, _, _ := ask(t, NewZone(v, testConfig(t)), "web.a.svc.cluster.local", dns.TypeA); len(m.Answer) != 1 {
		t.Errorf("the Service has the answer %v", m.Answer)
	}
	if after := v.serial.Load(); after != before {
		t.Errorf("the serial changed from %d to %d", before, after)
	}
}

// TestPodAddresses: a pod that an old kubelet reports has one address in another field.
func TestPodAddresses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status corev1.PodStatus
		want   []string
		faults int
	}{
		{"list", corev1.PodStatus{PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}}, []string{"10.1.0.1", "fd00::1"}, 0},
		{"single", corev1.PodStatus{PodIP: "10.1.0.2"}, []string{"10.1.0.2"}, 0},
		{"none", corev1.PodStatus{}, nil, 0},
		{"malformed", corev1.PodStatus{PodIP: "10.1.0"}, nil, 1},
		{"zone", corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "fe80::1%eth0"}, {IP: "10.1.0.3"}}}, []string{"10.1.0.3"}, 1},
	} {
		var f faults
		p := convertPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Status: tt.status}, "", nil, &f)
		var got []string
		for _, a := range p.ips {
			got = append(got, unpackAddr(a).Unmap().String())
		}
		if !slices.Equal(got, tt.want) || f.n != tt.faults {
			t.Errorf("%s: addresses %v and faults %v, want %v and %d", tt.name, got, f, tt.want, tt.faults)
		}
	}
}

func oneFault() *faults {
	f := new(faults)
	f.add("wrong")
	return f
}

// TestFaultsOfOtherResources: a complete list of one resource forgets the faults of its missing
// objects, and of no other resource.
func TestFaultsOfOtherResources(t *testing.T) {
	v := emptyView()
	v.noteFaults(services, "a", "gone", oneFault())
	v.noteFaults(pods, "a", "there", oneFault())
	handlerFixture{v, services}.list(makeService("a", "web", "10.0.0.1"))
	if v.faults.objects[faultKey{services, "a", "gone"}].text != 0 {
		t.Error("the faults of a Service that is gone are kept")
	}
	if v.faults.objects[faultKey{pods, "a", "there"}].text == 0 {
		t.Error("the faults of a pod are forgotten with a list of Services")
	}
}

// TestReportZone: a node that may not be read, or doesn't exist, is not asked for again.
func TestReportZone(t *testing.T) {
	node := schema.GroupResource{Resource: "nodes"}
	for name, tt := range map[string]struct {
		err     error
		settled bool
	}{
		"found":     {nil, true},
		"forbidden": {apierrors.NewForbidden(node, "n1", nil), true},
		"not found": {apierrors.NewNotFound(node, "n1"), true},
		"failing":   {http.ErrServerClosed, false},
	} {
		for failed := range 2 {
			if got := emptyView().reportZone("z1", tt.err, failed); got != tt.settled {
				t.Errorf("%s after %d failures: settled %v, want %v", name, failed, got, tt.settled)
			}
		}
	}
}

// TestProgrammingTrigger: only a slice of a Service with endpoint names and a well-formed trigger
// time counts.
func TestProgrammingTrigger(t *testing.T) {
	past := testClock().Add(-3 * time.Second).Format(time.RFC3339Nano)
	for _, tt := range []struct {
		name, trigger string
		service       string
		count         uint64
	}{
		{"measured", past, "db", 1},
		{"no trigger", "", "db", 0},
		{"malformed", "yesterday", "db", 0},
		{"no Service", past, "other", 0},
	} {
		v := emptyView()
		handlerFixture{v, services}.put(makeService("a", "db", "None"))
		es := makeSlice("a", tt.service, "db-1", "10.1.0.1")
		es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: tt.trigger}
		handlerFixture{v, endpointSlices}.put(es)
		var got uint64
		for _, h := range v.Stats().Programming {
			got += h.Count
		}
		if got != tt.count {
			t.Errorf("%s: %d measured, want %d", tt.name, got, tt.count)
		}
	}
}

// TestPortNumbers: a port has a number from 1 to 65535, or none.
func TestPortNumbers(t *testing.T) {
	number := func(n int32) *int32 { return &n }
	var none portList
	for _, tt := range []struct {
		number *int32
		want   portList
	}{
		{nil, none.append("x", tcp, 0)}, {number(1), none.append("x", tcp, 1)}, {number(65535), none.append("x", tcp, 65535)},
		{number(0), none}, {number(-1), none}, {number(65536), none},
	} {
		var f faults
		got := portList(appendPort(nil, "x", "TCP", tt.number, &f))
		if got != tt.want || (f.n == 0) != (tt.want != none) {
			t.Errorf("%q, faults %v; want %q", got, f, tt.want)
		}
	}
}

// TestPortNames: a port keeps its number without a name that no label can hold.
func TestPortNames(t *testing.T) {
	long, port, none := strings.Repeat("p", 63), int32(80), portList("")
	for name, want := range map[string]portList{
		long: none.append("", tcp, 80), "a.b": none.append("", tcp, 80), long[1:]: none.append(long[1:], tcp, 80),
	} {
		var f faults
		if got := portList(appendPort(nil, name, "TCP", &port, &f)); got != want || (f.n > 0) != (name != long[1:]) {
			t.Errorf("%s: %q, faults %v; want %q", name, got, f, want)
		}
	}
}

// TestSliceOwners: a slice belongs to the Service whose name its label is, letter by letter.
func TestSliceOwners(t *testing.T) {
	for owner, owned := range map[string]bool{"h1": true, "H1": false, "": false} {
		var f faults
		if s := convertSlice(makeSlice("a", owner, "x"), converter{}, &f); (s != nil) != owned {
			t.Errorf("the slice of %q has an owner: %v", owner, s != nil)
		}
	}
}

// TestPortSet: the set tells new numbers from known ones, few or many.
func TestPortSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var set portSet
	var list []uint16
	known := make(map[uint16]bool)
	for range 400 {
		number := uint16(1 + rng.IntN(4*maxUnindexedPorts))
		isNew := set.add(number, list)
		if isNew == known[number] {
			t.Fatalf("%d of %v is new: %t", number, list, isNew)
		}
		if isNew {
			list, known[number] = append(list, number), true
		}
	}
	if len(list) <= 2*maxUnindexedPorts {
		t.Errorf("%d numbers", len(list))
	}
}

// TestCandidateSlices: addresses are compared with each other only if that takes few comparisons, and
// these are spent.
func TestCandidateSlices(t *testing.T) {
	for _, tt := range []struct {
		slices, endpoints int
		many              bool
		spent             int // at least
	}{{1, 200, false, 1}, {2, 100, false, 2 * 2 * 200}, {2, 150, true, 2}, {4, 100, true, 4}, {4, 10, false, 2 * 4 * 40}} {
		s := &service{}
		for n := range tt.slices {
			var addrs strings.Builder
			for i := range tt.endpoints {
				addrs.Write([]byte{10, byte(n), byte(i / 250), byte(i % 250)})
			}
			s.slices = append(s.slices, &slice{size: 4, addrs: addrs.String()})
		}
		const steps = 100_000
		b := Budget{left: steps}
		m := match{node: serviceName, svc: s}
		list, many := m.candidateSlices(nil, 4, &b)
		if spent := steps - b.left; len(list) != tt.slices || many != tt.many || spent < tt.spent {
			t.Errorf("%d slices of %d: %d candidates, many %t, %d steps; want many %t, %d steps", tt.slices, tt.endpoints, len(list), many, spent, tt.many, tt.spent)
		}
		if list, _ := m.candidateSlices(nil, 16, &b); len(list) != 0 {
			t.Errorf("%d slices of the other family", len(list))
		}
	}
}

// TestClientNamespace: a client's namespace is known if it is a pod of this node with an address of
// its own, in a namespace of the zone.
func TestClientNamespace(t *testing.T) {
	cfg := testConfig(t)
	cfg.Namespaces = []string{"a"}
	for _, tt := range []struct {
		name   string
		ns     string
		change func(*corev1.Pod)
		want   string
	}{
		{"pod", "a", func(*corev1.Pod) {}, "\x01a"},
		{"another namespace", "b", func(*corev1.Pod) {}, ""},
		{"host network", "a", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		{"another node", "a", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, ""},
		{"terminating", "a", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: testClock()} }, ""},
		{"ended", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, ""},
		{"another address", "a", func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.1.0.2" }, ""},
	} {
		v := emptyView()
		tell := handlerFixture{v, pods}
		tell.setNode("n1")
		p := makePod(tt.ns, "x", "10.1.0.1")
		tt.change(p)
		tell.put(p)
		ns, ok := NewZone(v, cfg).ClientNamespace(netipAddr(t, "10.1.0.1"))
		if string(ns) != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %t; want %q", tt.name, ns, ok, tt.want)
		}
	}
}

// TestDNSPort checks which port of a slice is for DNS.
func TestDNSPort(t *testing.T) {
	var none portList
	for _, tt := range []struct {
		name       string
		list       portList
		configured uint16
		want       uint16
	}{
		{"no ports", none, 0, 53},
		{"no ports, configured", none, 5353, 5353},
		{"by name", none.append("metrics", tcp, 9153).append("dns", udp, 1053), 0, 1053},
		{"by name before number", none.append("x", udp, 53).append("dns", udp, 1053), 0, 1053},
		{"by number", none.append("x", udp, 53).append("y", tcp, 54), 0, 53},
		{"configured", none.append("dns", udp, 1053), 5353, 5353},
		{"SCTP", none.append("dns", sctp, 1053).append("x", sctp, 53), 0, 0},
		{"SCTP first", none.append("dns", sctp, 1053).append("dns", tcp, 53), 0, 53},
		{"another", none.append("http", tcp, 80), 0, 0},
	} {
		if got := tt.list.findDNSPort(tt.configured); got != tt.want {
			t.Errorf("%s: port %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestMalformedReverseNames: only four octets, or 32 nibbles, are an address.
func TestMalformedReverseNames(t *testing.T) {
	const right = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa"
	v := emptyView()
	cfg := testConfig(t)
	cfg.Pods = config.PodsDisabled
	s := makeService("a", "web", "fd00::1")
	handlerFixture{v, services}.put(s)
	z := NewZone(v, cfg)
	for name, rcode := range map[string]int{
		right:             dns.RcodeSuccess,
		right[2:]:         dns.RcodeNameError,
		"0." + right:      dns.RcodeNameError,
		"g" + right[1:]:   dns.RcodeNameError,
		"10." + right[4:]: dns.RcodeNameError,
		// As many bytes as 32 nibbles.
		"100.0." + right[10:]: dns.RcodeNameError,
	} {
		if m, _, _ := ask(t, z, name, dns.TypePTR); m.Rcode != rcode {
			t.Errorf("%s: rcode %d, want %d", name, m.Rcode, rcode)
		}
	}
}

// TestStatsCounts: the view counts what exists; a slice without a Service is none.
func TestStatsCounts(t *testing.T) {
	v := emptyView()
	for _, ns := range []string{"a", "b"} {
		handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	handlerFixture{v, services}.put(makeService("c", "web", "10.0.0.2")) // its namespace exists by it
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", "10.1.0.1", "10.1.0.2"))
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "gone", "gone-1", "10.1.0.3"))
	handlerFixture{v, pods}.put(makePod("a", "p", "10.1.0.1"))
	s := v.Stats()
	got := [...]int{s.Namespaces, s.Services, s.Slices, s.Endpoints, s.Pods}
	if want := [...]int{3, 3, 2, 3, 1}; got != want {
		t.Errorf("namespaces, Services, slices, endpoints and pods: %v, want %v", got, want)
	}
}
