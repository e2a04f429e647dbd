// Internal: feeds handlers directly, and counts what they keep.

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/wire"
)

// manyAddrs returns n addresses.
func manyAddrs(n int) []string {
	list, a := make([]string, n), netip.MustParseAddr("11.0.0.0")
	for i := range list {
		a = a.Next()
		list[i] = a.String()
	}
	return list
}

// manyPorts returns n ports of a Service.
func manyPorts(n int) []corev1.ServicePort {
	list := make([]corev1.ServicePort, n)
	for i := range list {
		list[i] = corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1)}
	}
	return list
}

// crowdedSlice returns a slice of that many endpoints with that many addresses each.
func crowdedSlice(ns, service, name string, endpoints, each int) *discoveryv1.EndpointSlice {
	es, all := makeSlice(ns, service, name), manyAddrs(endpoints*each)
	for i := range endpoints {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: all[i*each : (i+1)*each]})
	}
	return es
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLongListsAreCheap: what an object costs grows with its lists, and not with their
// squares, and the records have bounds.
func TestLongListsAreCheap(t *testing.T) {
	ips := makeService("tenant", "ips", "10.96.0.3")
	ips.Spec.ExternalIPs = manyAddrs(30000)
	balanced := makeService("tenant", "balanced", "10.96.0.4")
	for _, ip := range manyAddrs(30000) {
		balanced.Status.LoadBalancer.Ingress = append(balanced.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	clustered := makeService("tenant", "clustered", "10.96.0.5")
	clustered.Spec.ClusterIPs = manyAddrs(30000)
	ported := makeService("tenant", "ported", "10.96.0.6")
	ported.Spec.Ports = manyPorts(20000)
	duplicates := makeService("tenant", "duplicates", "10.96.0.7")
	for range 30000 {
		duplicates.Spec.ExternalIPs = append(duplicates.Spec.ExternalIPs, "11.0.0.1")
	}
	imported := testImport("imported", "ClusterSetIP", nil, manyAddrs(30000)...)
	for _, p := range manyPorts(20000) {
		imported.Spec.Ports = append(imported.Spec.Ports, serviceImportPort{Name: p.Name, Port: p.Port})
	}
	es := makeSlice("tenant", "ported", "ported-1", "10.1.0.1")
	es.Ports = nil
	for _, p := range manyPorts(20000) {
		es.Ports = append(es.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port})
	}
	for name, tt := range map[string]struct {
		resource resource
		object   metav1.Object
	}{
		"external IPs":            {services, ips},
		"load balancer addresses": {services, balanced},
		"cluster IPs":             {services, clustered},
		"ports":                   {services, ported},
		"duplicates":              {services, duplicates},
		"import":                  {serviceImports, imported},
		"ports of a slice":        {endpointSlices, es},
		"addresses of a slice":    {endpointSlices, crowdedSlice("tenant", "ported", "ported-2", 1000, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			v := emptyView()
			if n := allocated(func() { handlerFixture{v, tt.resource}.put(tt.object) }); n > 4<<20 {
				t.Errorf("%d bytes allocated for one object", n)
			}
			for _, x := range []*index{&v.index, &v.imports} {
				for key, s := range x.services {
					ports := 0
					for p := s.ports; p != ""; ports++ {
						_, _, _, p = p.next()
					}
					if ports > maxPorts || len(s.v4) > 4*maxServiceAddrs || len(s.external4) > 4*maxServiceAddrs {
						t.Errorf("%q has %d ports, %d and %d bytes of addresses", key, ports, len(s.v4), len(s.external4))
					}
				}
				if n := len(x.endpoints) + len(x.clusterIPs) + len(x.externalAddrs); n > 1+maxServiceAddrs {
					t.Errorf("%d addresses in the index", n)
				}
			}
			if st := v.Stats(); st.Faulty != 1 && name != "duplicates" {
				t.Errorf("%d faulty objects, want 1", st.Faulty)
			}
		})
	}
}

// TestLongListsAnswered: an object with too long lists has names like any other.
func TestLongListsAnswered(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	svc := makeService("default", "big", "10.96.0.3")
	svc.Spec.Ports = manyPorts(20000)
	handlerFixture{v, services}.put(svc)
	checkAnswers(t, z, []answerCase{
		{"big.default.svc.cluster.local", dns.TypeA, "answered NOERROR | big.default.svc.cluster.local. 30 IN A 10.96.0.3 |"},
		{"_p4095._tcp.big.default.svc.cluster.local", dns.TypeA, "answered NOERROR | _p4095._tcp.big.default.svc.cluster.local. 30 IN A 10.96.0.3 |"},
		{"_p4096._tcp.big.default.svc.cluster.local", dns.TypeA, nxdomain},
	})
}

// TestNoExternal: without a directive that needs them, external addresses, and the ports
// that only they use, are not read.
func TestNoExternal(t *testing.T) {
	v := newView(Options{NoExternal: true, Now: testClock})
	svc := makeService("a", "db", "None")
	svc.Spec.ExternalIPs = []string{"192.0.2.1", "wrong"}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {Hostname: "lb.example"}}
	handlerFixture{v, services}.put(svc)
	if s := v.index.services["\x02db\x01a"]; s.externallyReachable() || s.ports != "" || len(v.index.externalAddrs) > 0 {
		t.Errorf("external addresses %q, ports %q, %d in the index", s.external4, s.ports, len(v.index.externalAddrs))
	}
	count(t, v.Stats().Faulty, 0, "faulty objects, though nothing is read that is faulty")
}

// TestSavedViewWithoutExternal: a file without external addresses is not used by a view that
// needs them. The other way round it is.
func TestSavedViewWithoutExternal(t *testing.T) {
	for _, saved := range []bool{false, true} {
		for _, needed := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "view")
			cfg := savedConfig(t, path)
			open := func(external bool) *View {
				v, err := Open(cfg, Options{Now: testClock, NoExternal: !external})
				noError(t, err)
				return v
			}
			noError(t, file.Replace(path, savedView{open(saved)}.writeSaved))
			if got, want := open(needed).Synced(), saved || !needed; got != want {
				t.Errorf("saved with %v, needed %v: restored %v, want %v", saved, needed, got, want)
			}
		}
	}
}

// TestFaultLinesAreBounded: an object with many long faults that changes again and again is
// one short line a minute in the log, and little in memory.
func TestFaultLinesAreBounded(t *testing.T) {
	now := time.Unix(1700000000, 0)
	var log bytes.Buffer
	v := emptyView()
	v.now = func() time.Time { return now }
	v.log = slog.New(slog.NewTextHandler(&log, nil))
	change := func(name string, i int) {
		svc := makeService("tenant", name, "10.96.0.9")
		svc.Spec.Ports = manyPorts(4000)
		for p := range svc.Spec.Ports {
			svc.Spec.Ports[p].Name = fmt.Sprintf("%d-%d-%s", i, p, strings.Repeat("é", 1000))
		}
		handlerFixture{v, services}.put(svc)
	}
	lines := func(want int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != want {
			t.Errorf("%d lines, want %d:\n%s", n, want, log.String())
		}
		for line := range strings.Lines(log.String()) {
			if len(line) > 500 || !strings.Contains(line, "; 3997 more") {
				t.Errorf("a line of %d bytes: %s", len(line), line)
			}
		}
		log.Reset()
	}
	for i := range 10 {
		change("long", i)
		if i%2 == 1 {
			handlerFixture{v, services}.drop(makeService("tenant", "long", ""))
		}
	}
	lines(1)
	now = now.Add(time.Minute)
	change("long", 11)
	lines(1)
	now = now.Add(time.Minute)
	for i := range 2 * maxFaultLines {
		change(fmt.Sprint("many-", i), i)
	}
	lines(maxFaultLines)
	for state := range v.faults.objects {
		if len(state.name) > 100 {
			t.Errorf("the name %q is kept", state.name)
		}
	}
}

// TestFaultyObjectsAreBounded: faults of more objects than are remembered are counted.
func TestFaultyObjectsAreBounded(t *testing.T) {
	v := emptyView()
	for i := range maxFaulty + 100 {
		v.noteFaults(services, "tenant", fmt.Sprint(i), oneFault())
	}
	if st := v.Stats(); st.Faulty != maxFaulty || st.Faults != maxFaulty+100 {
		t.Errorf("%d faulty objects and %d faults", st.Faulty, st.Faults)
	}
}

// TestSlowEvents: a change that takes long is counted, and logged once a minute.
func TestSlowEvents(t *testing.T) {
	now, step := time.Unix(1700000000, 0), time.Duration(0)
	var log bytes.Buffer
	v := emptyView()
	v.now = func() time.Time { now = now.Add(step); return now }
	v.log = slog.New(slog.NewTextHandler(&log, nil))
	handlerFixture{v, services}.put(makeService("a", "web", "10.96.0.1"))
	count(t, v.Stats().SlowEvents, 0, "slow events before there is one")
	step = SlowEvent
	handlerFixture{v, services}.put(makeService("a", "web", "10.96.0.2"))
	handlerFixture{v, services}.drop(makeService("a", "web", "10.96.0.2"))
	count(t, v.Stats().SlowEvents, 2, "slow events")
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "namespace=a name=web") {
		t.Errorf("log, want one line:\n%s", text)
	}
}

// TestAddressesOfEndpoints: each endpoint has all its addresses, unless the slice has too
// many: then it has the first one.
func TestAddressesOfEndpoints(t *testing.T) {
	for _, tt := range []struct{ endpoints, each, want int }{
		{2, 3, 6}, {10, 100, 1000}, {11, 100, 11}, {1000, 1, 1000}, {1000, 100, 1000}, {1001, 1, 1000},
	} {
		var f faults
		es := crowdedSlice("a", "db", "db-1", tt.endpoints, tt.each)
		s := convertSlice(es, converter{}, &f)
		if s.len() != tt.want || (f.n > 0) != (tt.want < tt.endpoints*tt.each) {
			t.Errorf("%d endpoints of %d addresses: %d in DNS, want %d; faults %s", tt.endpoints, tt.each, s.len(), tt.want, &f)
		}
		for i := range min(tt.endpoints, maxSliceEndpoints) {
			first := packAddr(netip.MustParseAddr(es.Endpoints[i].Addresses[0]))
			if at := s.searchAddr(first); at == s.len() || s.addr(at) != first {
				t.Fatalf("%d endpoints of %d addresses: the first address of endpoint %d is missing", tt.endpoints, tt.each, i)
			}
		}
	}
}

// TestChangeOfSliceKeepsEntries: addresses that are in a slice before and after a change
// keep their entries in the index, and lead to the new slice.
func TestChangeOfSliceKeepsEntries(t *testing.T) {
	v := emptyView()
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", manyAddrs(500)...))
	at := addrKeyOf("\x0b\x00\x00\x02")
	before := v.index.endpoints[at].one
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", manyAddrs(501)[1:]...))
	if after := v.index.endpoints[at].one; after != before || after.current != v.index.slices["a/db-1"] {
		t.Errorf("the entry is %p, was %p", after, before)
	}
	count(t, len(v.index.endpoints), 500, "addresses in the index")
	if _, ok := v.index.endpoints[addrKeyOf("\x0b\x00\x00\x01")]; ok {
		t.Error("an address that has gone is still there")
	}
}

// overfull fills the namespace tenant of v with slices of one Service until one is withheld, and returns
// its name.
func overfull(t *testing.T, v *View) string {
	t.Helper()
	handlerFixture{v, services}.put(makeService("tenant", "big", "None"))
	for i := range 200 {
		name := fmt.Sprint("big-", i)
		handlerFixture{v, endpointSlices}.put(crowdedSlice("tenant", "big", name, 1000, 1))
		if v.index.slices["tenant/"+name].withheld {
			return name
		}
	}
	t.Fatal("no slice is withheld")
	return ""
}

// TestNamespaceSlicesAreBounded: a Service whose slices exceed what its namespace may take
// is incomplete, so that the cluster DNS answers, until they fit. Others are not affected.
func TestNamespaceSlicesAreBounded(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	for _, ns := range []string{"tenant", "victim"} {
		handlerFixture{v, services}.put(makeService(ns, "db", "None"))
		handlerFixture{v, endpointSlices}.put(makeSlice(ns, "db", "db-1", "10.1.0.1"))
	}
	last := overfull(t, v)
	outcome := func(name string) Outcome {
		_, o, _ := ask(t, z, name, dns.TypeA)
		return o
	}
	check := func(big Outcome) {
		t.Helper()
		for name, want := range map[string]Outcome{
			"big.tenant.svc.cluster.local": big, "db.tenant.svc.cluster.local": Answered, "db.victim.svc.cluster.local": Answered,
		} {
			if got := outcome(name); got != want {
				t.Errorf("%s: outcome %d, want %d", name, got, want)
			}
		}
	}
	check(Incomplete)
	if n := v.index.namespaces["\x06tenant"].sliceBytes; n > maxNamespaceSlices {
		t.Errorf("%d bytes of slices", n)
	}
	count(t, v.Stats().Faulty, 1, "faulty objects")
	select {
	case <-v.scope.reconcileRequests:
	default:
	}
	outcome("big.tenant.svc.cluster.local")
	if len(v.scope.reconcileRequests) > 0 {
		t.Error("a query asks for slices that no source has")
	}
	handlerFixture{v, endpointSlices}.put(crowdedSlice("tenant", "big", last, 1, 1)) // fits
	check(Answered)
	handlerFixture{v, endpointSlices}.put(crowdedSlice("tenant", "big", last, 1000, 1))
	check(Incomplete)
	handlerFixture{v, endpointSlices}.drop(makeSlice("tenant", "big", last))
	check(Answered)
	handlerFixture{v, endpointSlices}.list()
	for label, ns := range v.index.namespaces {
		if ns.sliceBytes != 0 {
			t.Errorf("%d bytes of no slices in %q", ns.sliceBytes, label)
		}
	}
	if n := len(v.index.endpoints) + len(v.index.slices); n > 0 {
		t.Errorf("%d addresses and slices left behind", n)
	}
}

// TestOrphanOfWithheldSlice: a Service that arrives after its withheld slice is incomplete,
// too.
func TestOrphanOfWithheldSlice(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	overfull(t, v)
	handlerFixture{v, endpointSlices}.put(crowdedSlice("tenant", "late", "late-1", 1000, 1))
	handlerFixture{v, services}.put(makeService("tenant", "late", "None"))
	if _, o, _ := ask(t, z, "late.tenant.svc.cluster.local", dns.TypeA); o != Incomplete {
		t.Errorf("outcome %d, want incomplete", o)
	}
	handlerFixture{v, services}.drop(makeService("tenant", "late", "None"))
	handlerFixture{v, endpointSlices}.drop(makeSlice("tenant", "late", "late-1"))
	if s := v.index.services["\x04late\x06tenant"]; s != nil {
		t.Errorf("%+v is left behind", s)
	}
}

// TestSavedViewWithWithheldSlice: a Service stays incomplete in a saved view.
func TestSavedViewWithWithheldSlice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	v, _ := openSaved(t, cfg)
	v.setLevel(levelAll)
	last := overfull(t, v)
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	back, text := openSaved(t, cfg)
	if !back.Synced() {
		t.Fatalf("refused: %s", text)
	}
	if sl := back.index.slices["tenant/"+last]; sl == nil || !sl.withheld {
		t.Errorf("the withheld slice is %+v", sl)
	}
	if _, o, _ := ask(t, NewZone(back, cfg), "big.tenant.svc.cluster.local", dns.TypeA); o != Incomplete {
		t.Errorf("outcome %d, want incomplete", o)
	}
}

// TestAddrWaitEnds: a pod that never gets an address makes clients uncertain for a while
// only, however often it changes.
func TestAddrWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := emptyView()
		v.node = "n1"
		z := NewZone(v, testConfig(t))
		known := func() bool {
			_, ok := z.ClientNamespace(netip.MustParseAddr("10.1.0.1"))
			return ok
		}
		handlerFixture{v, pods}.put(makePod("a", "client", "10.1.0.1"))
		stuck := makePod("tenant", "stuck")
		handlerFixture{v, pods}.put(stuck)
		if known() {
			t.Fatal("a client is known while a pod awaits its address")
		}
		time.Sleep(maxAddrWait / 2)
		stuck = stuck.DeepCopy()
		stuck.Spec.HostNetwork = false
		stuck.Labels = map[string]string{"a": "b"}
		handlerFixture{v, pods}.put(stuck)
		before := v.index.clients.value.Load()
		time.Sleep(maxAddrWait/2 + time.Second)
		synctest.Wait()
		if !known() {
			t.Error("a pod without an address hides clients for good")
		}
		if v.index.clients.value.Load() == before {
			t.Error("copies of answers to uncertain clients stay valid")
		}
		handlerFixture{v, pods}.put(makePod("tenant", "another"))
		if known() {
			t.Error("a second pod without an address does not count")
		}
		handlerFixture{v, pods}.put(makePod("tenant", "another", "10.1.0.2"))
		if !known() {
			t.Error("the second pod has its address and still counts")
		}
		handlerFixture{v, pods}.drop(stuck)
		time.Sleep(time.Minute)
		synctest.Wait()
		if v.index.pendingPods != 0 || len(v.index.addrWaits) != 0 {
			t.Errorf("%d pods and %d waits left", v.index.pendingPods, len(v.index.addrWaits))
		}
	})
}

// TestAddrWaitAfterRun: a wait that ends after the view touches no epoch.
func TestAddrWaitAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := openText(t, testConfig(t), "")
		v.node = "n1"
		handlerFixture{v, pods}.put(makePod("a", "stuck"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		v.Run(ctx)
		before := v.index.clients.value.Load()
		time.Sleep(2 * maxAddrWait)
		synctest.Wait()
		if v.index.clients.value.Load() != before {
			t.Error("the epoch of clients moved")
		}
	})
}

// TestForgedNameserver: a slice that names an address of the agent which is a cluster IP, or
// that is in a namespace other than the agent's, makes its Service no name server.
func TestForgedNameserver(t *testing.T) {
	newZone := func(own string) (*View, *Zone) {
		v := newView(Options{Now: testClock, ServerAddrs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.2.7")}})
		v.setLevel(levelAll)
		for i := range v.listed {
			v.listed[i].Store(true)
		}
		v.ownNamespace = own
		handlerFixture{v, services}.put(makeService("kube-system", "kube-dns", "10.96.0.10"))
		for _, ns := range []string{"tenant", "kube-system"} {
			handlerFixture{v, services}.put(makeService(ns, "dns", "None"))
		}
		return v, NewZone(v, testConfig(t))
	}
	nameservers := func(z *Zone) (list []string) {
		m, _, _ := ask(t, z, "cluster.local", dns.TypeNS)
		for _, rr := range m.Answer {
			list = append(list, rr.(*dns.NS).Ns)
		}
		return list
	}
	v, z := newZone("")
	handlerFixture{v, endpointSlices}.put(makeSlice("tenant", "dns", "dns-1", "10.96.0.10"))
	if got := nameservers(z); len(got) != 1 || got[0] != "ns.dns.cluster.local." {
		t.Errorf("name servers %v", got)
	}
	v, z = newZone("\x0bkube-system")
	handlerFixture{v, endpointSlices}.put(makeSlice("tenant", "dns", "dns-1", "192.0.2.7"))
	handlerFixture{v, endpointSlices}.put(makeSlice("kube-system", "dns", "dns-1", "192.0.2.7"))
	if got := nameservers(z); len(got) != 1 || got[0] != "dns.kube-system.svc.cluster.local." {
		t.Errorf("name servers %v", got)
	}
}

// TestTransferPairsAreBounded: a transfer has a bounded number of SRV records of a headless
// Service, and all its addresses.
func TestTransferPairsAreBounded(t *testing.T) {
	v := emptyView()
	es := crowdedSlice("tenant", "big", "big-1", 1000, 1)
	es.Ports = nil
	for _, p := range manyPorts(4096) {
		es.Ports = append(es.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port})
	}
	handlerFixture{v, services}.put(makeService("tenant", "big", "None"))
	handlerFixture{v, endpointSlices}.put(es)
	cfg := testConfig(t)
	external := NewExternal(v, &config.K8sExternal{Zones: []wire.Name{"\x03ext\x00"}, TTL: 30, Headless: true}, cfg)
	for name, take := range map[string]func() (*Snapshot, error){
		"kubernetes":   func() (*Snapshot, error) { return NewZone(v, cfg).Snapshot(t.Context(), cfg.Zones[0]) },
		"k8s_external": func() (*Snapshot, error) { return external.Snapshot(t.Context(), "\x03ext\x00") },
	} {
		s, err := take()
		noError(t, err)
		count := map[uint16]int{}
		for rr := range s.All() {
			if count[rr.Type]++; count[wire.TypeSRV] > 4*maxTransferPairs {
				break
			}
		}
		if n := count[wire.TypeSRV]; n == 0 || n > 3*maxTransferPairs {
			t.Errorf("%s: %d SRV records", name, n)
		}
		if n := count[wire.TypeA]; n < 1000 {
			t.Errorf("%s: %d addresses, want 1000 at least", name, n)
		}
	}
}

// TestNamespaceServicesAreBounded: Services with long lists take a bounded amount of memory,
// and keep their addresses.
func TestNamespaceServicesAreBounded(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	svc := makeService("default", "", "10.96.0.3")
	svc.Spec.Ports, svc.Spec.ExternalIPs = manyPorts(4096), manyAddrs(1024)
	for i := range 200 {
		svc.Name = fmt.Sprint("s", i)
		handlerFixture{v, services}.put(svc)
	}
	if n := v.index.namespaces["\x07default"].serviceBytes; n > maxNamespaceServices || n < maxNamespaceServices/2 {
		t.Errorf("%d bytes of lists", n)
	}
	if n := v.Stats().Faulty; n < 100 {
		t.Errorf("%d faulty objects", n)
	}
	checkAnswers(t, z, []answerCase{
		{"s199.default.svc.cluster.local", dns.TypeA, "answered NOERROR | s199.default.svc.cluster.local. 30 IN A 10.96.0.3 |"},
		{"_p1._tcp.s0.default.svc.cluster.local", dns.TypeA, "answered NOERROR | _p1._tcp.s0.default.svc.cluster.local. 30 IN A 10.96.0.3 |"},
		{"_p1._tcp.s199.default.svc.cluster.local", dns.TypeA, nxdomain},
	})
	handlerFixture{v, services}.list()
	for label, ns := range v.index.namespaces {
		if ns.serviceBytes != 0 {
			t.Errorf("%d bytes of no lists in %q", ns.serviceBytes, label)
		}
	}
}
