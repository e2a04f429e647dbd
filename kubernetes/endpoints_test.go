// Internal: feeds handlers directly.

package kubernetes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
)

// dnsSlice puts a slice of kube-system/dns with the ports "NAME NUMBER …".
func dnsSlice(v *View, name, ports string, endpoints ...string) {
	es := makeSlice("kube-system", "dns", name)
	es.Ports = nil
	words := strings.Fields(ports)
	for i := 0; i < len(words); i += 2 {
		var number int32
		fmt.Sscan(words[i+1], &number)
		proto := corev1.ProtocolUDP
		es.Ports = append(es.Ports, discoveryv1.EndpointPort{Name: &words[i], Port: &number, Protocol: &proto})
	}
	for _, e := range endpoints {
		es.Endpoints = append(es.Endpoints, endpointAt(e))
	}
	handlerFixture{v, endpointSlices}.put(es)
}

func listOf(addrs []netip.AddrPort) string { return strings.Trim(fmt.Sprint(addrs), "[]") }

// TestEndpointsPorts checks which port of a Service is used for DNS.
func TestEndpointsPorts(t *testing.T) {
	for _, c := range []struct {
		name, ports string
		given       uint16
		want        string
	}{
		{"named", "metrics 9153 dns 8053 dns-tcp 8053", 0, "10.0.0.1:8053"},
		{"53", "metrics 9153 whatever 53", 0, "10.0.0.1:53"},
		{"named before 53", "other 53 dns 5353", 0, "10.0.0.1:5353"},
		{"given", "dns 5353", 1053, "10.0.0.1:1053"},
		{"no ports", "", 0, "10.0.0.1:53"},
		{"none of DNS", "metrics 9153", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openPlaced(t, testConfig(t), "")
			handlerFixture{v, services}.put(makeService("kube-system", "dns", "10.96.0.10"))
			dnsSlice(v, "dns-1", c.ports, "10.0.0.1 n9 west")
			if got, _ := v.Endpoints("kube-system/dns", c.given); listOf(got) != c.want {
				t.Errorf("endpoints %s, want %s", listOf(got), c.want)
			}
		})
	}
}

// TestEndpointsOrder checks that the nearest endpoints come first, each once, and that
// their number is bounded.
func TestEndpointsOrder(t *testing.T) {
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOrder
	v := openPlaced(t, cfg, "")
	handlerFixture{v, services}.put(makeService("kube-system", "dns", "10.96.0.10"))
	dnsSlice(v, "dns-1", "dns 53", "10.0.0.1 n9 west", "10.0.0.2 n1 east", "10.0.0.3 n0 east")
	dnsSlice(v, "dns-2", "dns 53", "10.0.0.2 n1 east", "10.0.0.4 n2 east")
	got, _ := v.Endpoints("kube-system/dns", 0)
	if len(got) != 4 {
		t.Fatalf("endpoints %v", got)
	}
	slices.SortFunc(got[1:3], netip.AddrPort.Compare)
	if want := "10.0.0.3:53 10.0.0.2:53 10.0.0.4:53 10.0.0.1:53"; listOf(got) != want {
		t.Errorf("endpoints %s, want %s", listOf(got), want)
	}
	var far []string
	for i := range 40 {
		far = append(far, fmt.Sprintf("10.0.1.%d n9 west", i))
	}
	dnsSlice(v, "dns-3", "dns 53", far...)
	got, _ = v.Endpoints("kube-system/dns", 0)
	again, _ := v.Endpoints("kube-system/dns", 0)
	if len(got) != maxEndpoints || got[0].Addr().String() != "10.0.0.3" || !slices.Equal(got, again) {
		t.Errorf("endpoints of a large service %v, and then %v", got, again)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestEndpointsChange checks that the channel is closed when the Service or its endpoints
// change, and not when others do.
func TestEndpointsChange(t *testing.T) {
	v := openPlaced(t, testConfig(t), "")
	wants := func(what, want string, before <-chan struct{}) <-chan struct{} {
		t.Helper()
		if before != nil && !closed(before) {
			t.Errorf("%s: the channel is open", what)
		}
		got, changed := v.Endpoints("kube-system/dns", 0)
		if listOf(got) != want || closed(changed) {
			t.Errorf("%s: endpoints %s, want %s", what, listOf(got), want)
		}
		return changed
	}
	c := wants("before all", "", nil)
	handlerFixture{v, services}.put(makeService("kube-system", "dns", "10.96.0.10"))
	c = wants("the service", "", c)
	dnsSlice(v, "dns-1", "dns 53", "10.0.0.1 n9 west")
	c = wants("a slice", "10.0.0.1:53", c)
	handlerFixture{v, services}.put(makeService("kube-system", "other", "10.96.0.11"))
	if closed(c) {
		t.Error("another service closes the channel")
	}
	if _, twin := v.Endpoints("kube-system/dns", 0); twin != c {
		t.Error("two who ask wait for different things")
	}
	handlerFixture{v, endpointSlices}.drop(makeSlice("kube-system", "dns", "dns-1"))
	c = wants("no slice", "", c)
	handlerFixture{v, services}.drop(makeService("kube-system", "dns", "10.96.0.10"))
	wants("no service", "", c)
	for _, bad := range []string{"", "dns", "/", "a/", "kube-system/dns.", strings.Repeat("x", 64) + "/dns"} {
		if addrs, changed := v.Endpoints(bad, 0); addrs != nil || changed != nil {
			t.Errorf("%q: %v %v", bad, addrs, changed)
		}
	}
}

// TestEndpointsHold checks that calls bring endpoints into view and keep them there, and
// that they are dropped without calls.
func TestEndpointsHold(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	handlerFixture{l.view, services}.put(makeService("kube-system", "dns", "10.96.0.10"))
	l.slice("kube-system", "dns", false, "10.1.0.1")
	l.reconcile()
	l.wantSources("")
	_, changed := l.view.Endpoints("kube-system/dns", 1053)
	l.reconcile()
	l.wantSources("kube-system")
	if !closed(changed) {
		t.Fatal("the endpoints are in view, and nobody is told")
	}
	for range 3 * idleTicks {
		got, changed := l.view.Endpoints("kube-system/dns", 1053)
		if listOf(got) != "10.1.0.1:1053" {
			t.Fatalf("endpoints %v", got)
		}
		l.view.scope.tick.Add(1)
		l.view.expireWaiters()
		if !closed(changed) {
			t.Fatal("nobody is made to ask again")
		}
		l.reconcile()
	}
	l.wantSources("kube-system")
	l.idle()
	l.reconcile()
	l.wantSources("")
}

// TestEndpointsBehind checks the endpoints of a cluster IP.
func TestEndpointsBehind(t *testing.T) {
	v := openPlaced(t, testConfig(t), "")
	handlerFixture{v, services}.put(makeService("kube-system", "dns", "10.96.0.10"))
	handlerFixture{v, services}.put(makeService("kube-system", "empty", "10.96.0.11"))
	dnsSlice(v, "dns-1", "dns 53", "10.0.0.1 n1 west", "10.0.0.2 n2 west")
	dnsSlice(v, "dns-2", "dns 53", "10.0.0.3 n3 east")
	for at, want := range map[string]string{
		"10.96.0.10": "10.0.0.1 10.0.0.2 10.0.0.3", "::ffff:10.96.0.10": "10.0.0.1 10.0.0.2 10.0.0.3",
		"10.96.0.11": "", "10.96.0.12": "", "10.0.0.1": "", "2001:db8::1": "",
	} {
		got := v.EndpointsBehind(netip.MustParseAddr(at))
		slices.SortFunc(got, netip.Addr.Compare)
		if text := strings.Trim(fmt.Sprint(got), "[]"); text != want {
			t.Errorf("%s: %q, want %q", at, text, want)
		}
	}
	many := make([]string, maxEndpointsBehind+10)
	for i := range many {
		many[i] = fmt.Sprintf("10.1.%d.%d n1 west", i/200, i%200)
	}
	dnsSlice(v, "dns-3", "dns 53", many...)
	count(t, len(v.EndpointsBehind(netip.MustParseAddr("10.96.0.10"))), maxEndpointsBehind, "endpoints")
}
