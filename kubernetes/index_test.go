// Internal: compares indexes.

package kubernetes

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dump writes an index down, so that two can be compared.
func (x *index) dump() string {
	var lines []string
	for key, s := range x.services {
		var list []string
		for _, sl := range s.slices {
			list = append(list, fmt.Sprintf("%s %x %q %q", sl.name, sl.addrs, sl.hosts, sl.ports))
		}
		lines = append(lines, fmt.Sprintf("service %q kind %d v4 %x v6 %x ports %q target %q slices %v", key, s.kind, s.v4, s.v6, s.ports, s.target, list))
	}
	for key, ns := range x.namespaces {
		lines = append(lines, fmt.Sprintf("namespace %q %+v", key, struct {
			o bool
			n [5]int
		}{ns.hasObject, [5]int{ns.objectCount, ns.sourceCount, ns.nodePods, ns.headlessCount, ns.selectorless}}))
	}
	for key, s := range x.slices {
		lines = append(lines, fmt.Sprintf("slice %s of %q", key, s.key))
	}
	for a, r := range x.clusterIPs {
		lines = append(lines, fmt.Sprintf("cluster IP %x %q", a, slices.Sorted(r.each)))
	}
	if x.pendingPods > 0 {
		lines = append(lines, fmt.Sprintf("%d pods without an address", x.pendingPods))
	}
	for a, r := range x.podIPs {
		var list []string
		for p := range r.each {
			list = append(list, fmt.Sprintf("%+v", *p))
		}
		sort.Strings(list)
		lines = append(lines, fmt.Sprintf("pod IP %x %q", a, list))
	}
	for a, r := range x.endpoints {
		var list []string
		for s := range r.each {
			list = append(list, s.current.name)
			if s.current != x.slices[s.current.name] {
				list = append(list, "an old slice")
			}
		}
		sort.Strings(list)
		lines = append(lines, fmt.Sprintf("endpoint %x %q", a, list))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// faulty returns the objects that are faulty.
func (v *View) faulty() (list []string) {
	for key, state := range v.faults.objects {
		if state.text != 0 {
			list = append(list, fmt.Sprint(key))
		}
	}
	sort.Strings(list)
	return list
}

// objectWorld is a random cluster: its current objects by resource and name.
type objectWorld struct {
	rng     *rand.Rand
	objects [numResources]map[string]metav1.Object
}

func newWorld(seed uint64) *objectWorld {
	w := &objectWorld{rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range w.objects {
		w.objects[i] = map[string]metav1.Object{}
	}
	return w
}

func (w *objectWorld) pick(list ...string) string { return list[w.rng.IntN(len(list))] }

// make returns a random object of r; names and addresses collide often.
func (w *objectWorld) make(r resource) metav1.Object {
	ns := w.pick("a", "b", "a.b")
	switch r {
	case namespaces:
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	case pods:
		return makePod(ns, w.pick("p1", "p2", "p3"), w.pick("10.1.0.1", "10.1.0.2", "fd00:1::1", ""))
	case services:
		s := makeService(ns, w.pick("x", "y", "z", "bad.name"), w.pick("10.0.0.1", "10.0.0.2", "None", "None", "fd00::1", "", "10.0.0.999"))
		if w.rng.IntN(4) == 0 {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::2")
		}
		if w.rng.IntN(4) == 0 {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, w.pick("example.com", "1.2.3.4", "no name")
		}
		return s
	}
	es := makeSlice(ns, w.pick("x", "y", "z", ""), w.pick("s1", "s2", "s3", "s4"))
	if w.rng.IntN(3) == 0 {
		es.AddressType = discoveryv1.AddressTypeIPv6
	}
	for range w.rng.IntN(4) {
		ep := discoveryv1.Endpoint{Addresses: []string{w.pick("10.1.0.1", "10.1.0.2", "10.1.0.3", "fd00:1::1", "fd00:1::2", "junk")}}
		if w.rng.IntN(2) == 0 {
			host := w.pick("h1", "h2", "not a host")
			ep.Hostname = &host
		}
		if w.rng.IntN(4) == 0 {
			ep.Conditions.Ready = new(bool)
		}
		es.Endpoints = append(es.Endpoints, ep)
	}
	return es
}

// step changes the cluster and sends one event to v or, after some changes without events,
// a new list.
func (w *objectWorld) step(v *View) {
	r := resource(w.rng.IntN(int(serviceImports)))
	s := handlerFixture{v, r}
	if w.rng.IntN(8) == 0 { // a disconnect: changes that only the next list shows
		for range 1 + w.rng.IntN(4) {
			w.change(r)
		}
		var list []metav1.Object
		for _, o := range w.objects[r] {
			list = append(list, o)
		}
		s.list(list...)
		return
	}
	switch o, was := w.change(r); {
	case o == nil:
	case w.objects[r][objectKey(o.GetNamespace(), o.GetName())] == nil:
		s.drop(o)
	case was:
		s.put(o)
	default:
		s.put(o)
	}
}

// change adds, changes or deletes one object of r.
func (w *objectWorld) change(r resource) (o metav1.Object, was bool) {
	o = w.make(r)
	key := objectKey(o.GetNamespace(), o.GetName())
	_, was = w.objects[r][key]
	if w.rng.IntN(3) == 0 {
		if !was {
			return nil, false
		}
		delete(w.objects[r], key)
		return o, true
	}
	w.objects[r][key] = o
	return o, was
}

// Whatever the order of events, the index equals that of a list of the final objects.
func TestIndexMatchesObjects(t *testing.T) {
	for seed := range uint64(200) {
		w, v := newWorld(seed), emptyView()
		for range 120 {
			w.step(v)
		}
		fresh := emptyView()
		for _, r := range []resource{pods, endpointSlices, namespaces, services} {
			var list []metav1.Object
			for _, o := range w.objects[r] {
				list = append(list, o)
			}
			handlerFixture{fresh, r}.list(list...)
		}
		got, want := v.index.dump(), fresh.index.dump()
		if got != want {
			t.Fatalf("seed %d: -fresh +followed:\n%s", seed, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
		}
		services, endpoints := 0, 0
		for _, s := range v.index.services {
			if s.kind != orphan {
				services++
			}
		}
		for _, sl := range v.index.slices {
			endpoints += sl.len()
		}
		if st := v.Stats(); st.Services != services || st.Endpoints != endpoints {
			t.Fatalf("seed %d: %d services and %d endpoints are counted, want %d and %d", seed, st.Services, st.Endpoints, services, endpoints)
		}
		if d := cmp.Diff(fresh.faulty(), v.faulty()); d != "" {
			t.Fatalf("seed %d: faults -fresh +followed:\n%s", seed, d)
		}
	}
}

// When all objects are deleted, the index is empty.
func TestIndexEmpties(t *testing.T) {
	w, v := newWorld(7), emptyView()
	for range 300 {
		w.step(v)
	}
	for r := range numResources {
		handlerFixture{v, r}.list()
	}
	if got := v.index.dump(); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
	if len(v.faulty()) != 0 {
		t.Errorf("faults left behind: %v", v.faulty())
	}
}

// A new list never hides a name that exists before and after it, not even for a moment:
// concurrent queries always find it.
func TestReplaceKeepsNames(t *testing.T) {
	v := emptyView()
	z := NewZone(v, testConfig(t))
	a, b := makeSlice("default", "db", "db-a", "10.1.0.1"), makeSlice("default", "db", "db-b", "10.1.0.2")
	handlerFixture{v, services}.put(makeService("default", "db", "None"))
	handlerFixture{v, endpointSlices}.put(a)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			list := []metav1.Object{a}
			if i%2 == 0 {
				list = []metav1.Object{b}
			}
			handlerFixture{v, endpointSlices}.list(list...)
			handlerFixture{v, services}.list(makeService("default", "db", "None"))
		}
	}()
	answer := answerer(t, z, "db.default.svc.cluster.local", dns.TypeA)
	for {
		if outcome, n := answer(); outcome != Answered || n == 0 {
			t.Errorf("outcome %d with %d addresses", outcome, n)
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// The serial changes with visible changes only.
func TestSerial(t *testing.T) {
	now := testClock()
	v := emptyView()
	v.now = func() time.Time { return now }
	svc, eps := handlerFixture{v, services}, handlerFixture{v, endpointSlices}
	labelled := makeService("default", "x", "10.0.0.1")
	labelled.Labels = map[string]string{"a": "b"}
	notReady := makeSlice("default", "x", "x-1", "10.1.0.1", "10.1.0.2")
	notReady.Endpoints[1].Conditions.Ready = new(bool)
	for _, c := range []struct {
		name  string
		event func()
		moves bool
	}{
		{"new service", func() { svc.put(makeService("default", "x", "10.0.0.1")) }, true},
		{"same service", func() { svc.put(makeService("default", "x", "10.0.0.1")) }, false},
		{"a label", func() { svc.put(labelled) }, false},
		{"new slice", func() { eps.put(makeSlice("default", "x", "x-1", "10.1.0.1")) }, true},
		{"an endpoint that isn't ready", func() { eps.put(notReady) }, false},
		{"a second endpoint", func() { eps.put(makeSlice("default", "x", "x-1", "10.1.0.1", "10.1.0.2")) }, true},
		{"other order", func() { eps.put(makeSlice("default", "x", "x-1", "10.1.0.2", "10.1.0.1")) }, false},
		{"a list of the same", func() { svc.list(labelled) }, false},
		{"new address", func() { svc.put(makeService("default", "x", "10.0.0.2")) }, true},
		{"slice gone", func() { eps.drop(notReady) }, true},
		{"service gone", func() { svc.drop(labelled) }, true},
		{"gone again", func() { svc.drop(labelled) }, false},
	} {
		before := v.serial.Load()
		now = now.Add(time.Minute)
		c.event()
		if moved := v.serial.Load() != before; moved != c.moves {
			t.Errorf("%s: the serial moved: %v, want %v", c.name, moved, c.moves)
		}
	}
}

// Values that DNS can't show are counted and logged once; the rest of the object is used.
func TestFaults(t *testing.T) {
	var log bytes.Buffer
	v := emptyView()
	v.log = slog.New(slog.NewTextHandler(&log, nil))
	z := NewZone(v, testConfig(t))
	long := strings.Repeat("x", 64)
	bad := makeService("default", "half", "10.0.0.1")
	bad.Spec.ClusterIPs = []string{"10.0.0.1", "10.0.0.777"}
	bad.Spec.Ports = append(bad.Spec.Ports, corev1.ServicePort{Name: "zero", Port: 0}, corev1.ServicePort{Name: "big", Port: 70000},
		corev1.ServicePort{Name: "odd", Port: 1, Protocol: "XYZ"})
	objects := []metav1.Object{bad, makeService("default", long, "10.0.0.2"), makeService("default", "dotted.name", "10.0.0.3")}
	for i, name := range []string{"a b", strings.Repeat("a.", 150), long + ".com", "ok.example.", "", "."} {
		s := makeService("default", fmt.Sprintf("ext-%d", i), "")
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, name
		objects = append(objects, s)
	}
	handlerFixture{v, services}.list(objects...)
	es := makeSlice("default", "half", "half-1", "10.1.0.1", "300.1.1.1", "fd00::1")
	host := "under score!"
	es.Endpoints[0].Hostname = &host
	for range 2 {
		handlerFixture{v, endpointSlices}.put(es)
	}
	checkAnswers(t, z, []answerCase{
		{"half.default.svc.cluster.local", dns.TypeA, "answered NOERROR | half.default.svc.cluster.local. 30 IN A 10.0.0.1 |"},
		{"_http._tcp.half.default.svc.cluster.local", dns.TypeA, "answered NOERROR | _http._tcp.half.default.svc.cluster.local. 30 IN A 10.0.0.1 |"},
		{"_big._tcp.half.default.svc.cluster.local", dns.TypeSRV, nxdomain},
		{"10-1-0-1.half.default.svc.cluster.local", dns.TypeA, "answered NOERROR | 10-1-0-1.half.default.svc.cluster.local. 30 IN A 10.1.0.1 |"},
		{"ext-0.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"ext-1.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"ext-2.default.svc.cluster.local", dns.TypeA, nxdomain},
		{"ext-3.default.svc.cluster.local", dns.TypeA, "alias ok.example. NOERROR | ext-3.default.svc.cluster.local. 30 IN CNAME ok.example. |"},
		{"ext-4.default.svc.cluster.local", dns.TypeA, nxdomain},
	})
	const want = 9 // half, two names, five external names, one slice
	if st := v.Stats(); st.Faulty != want || st.Faults != want {
		t.Errorf("%d faulty objects, %d faults, want %d of each:\n%s", st.Faulty, st.Faults, want, log.String())
	}
	if n := strings.Count(log.String(), "\n"); n != want {
		t.Errorf("%d log lines, want %d:\n%s", n, want, log.String())
	}
	for _, name := range []string{"half-1", long, "dotted.name", "ext-0"} {
		if strings.Count(log.String(), "name="+name+" ") != 1 {
			t.Errorf("the log names %s not once:\n%s", name, log.String())
		}
	}
	handlerFixture{v, endpointSlices}.put(makeSlice("default", "half", "half-1", "10.1.0.1"))
	if st := v.Stats(); st.Faulty != want-1 {
		t.Errorf("%d faulty objects after one was mended, want %d", st.Faulty, want-1)
	}
}

// Any bytes can be parsed, and dashed addresses are parsed like net/netip parses the
// address.
func FuzzParseDashed(f *testing.F) {
	for _, s := range []string{"10-0-0-1", "fd00--1", "--", "--1", "1--", "1-2-3-4-5-6-7-8", "1-2-3-4-5-6-7--", "--ffff-1-2", "1-2--3", "01-2-3-4", "a-b-c-d", "1---2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToLower(s)
		if len(s) > 63 || strings.ContainsAny(s, ".:%") {
			return
		}
		want, err := undash(s)
		got, ok := parseDashed([]byte(s))
		if ok != (err == nil) || ok && !got.equals(packAddr(want)) {
			t.Fatalf("%q: %x %v, netip says %v %v", s, got.bytes[:got.size], ok, want, err)
		}
		if !ok {
			return
		}
		back := string(appendDashed(nil, string(got.bytes[:got.size])))
		if again, ok := parseDashed([]byte(back)); !ok || again != got {
			t.Fatalf("%q → %q → %v", s, back, ok)
		}
	})
}

// undash parses a dashed address with net/netip.
func undash(s string) (netip.Addr, error) {
	text := strings.ReplaceAll(s, "-", ":")
	if strings.Count(s, "-") == 3 && !strings.Contains(s, "--") {
		text = strings.ReplaceAll(s, "-", ".")
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err
}

// If a name exists, all names above it exist (RFC 8020), and a name exists for all types or
// for none.
func TestEmptyNonTerminals(t *testing.T) {
	cfg := testConfig(t)
	found := 0
	for seed := range uint64(60) {
		w, v := newWorld(seed), emptyView()
		for range 60 {
			w.step(v)
		}
		cfg.IgnoreEmptyService = seed%4 == 0
		z := NewZone(v, cfg)
		for range 60 {
			name := w.name() + ".cluster.local"
			m, _, _ := ask(t, z, name, dns.TypeA)
			for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeSOA, dns.TypePTR} {
				if other, _, _ := ask(t, z, name, qtype); other.Rcode != m.Rcode {
					t.Fatalf("seed %d: %s is %s for A and %s for %s", seed, name, dns.RcodeToString[m.Rcode],
						dns.RcodeToString[other.Rcode], dns.TypeToString[qtype])
				}
			}
			if m.Rcode != dns.RcodeSuccess {
				continue
			}
			found++
			_, parent, _ := strings.Cut(name, ".")
			if above, _, _ := ask(t, z, parent, dns.TypeA); above.Rcode != dns.RcodeSuccess {
				t.Fatalf("seed %d: %s exists and %s does not", seed, name, parent)
			}
		}
	}
	if found < 500 {
		t.Errorf("only %d of the names exist: the test tests little", found)
	}
}

// name is a random name of the sort that the world's objects have.
func (w *objectWorld) name() string {
	base := w.pick("x", "y", "z") + "." + w.pick("a", "b") + "." + w.pick("svc", "svc", "svc", "pod")
	switch w.rng.IntN(4) {
	case 0:
		return base
	case 1:
		return w.pick("h1", "h2", "10-1-0-1", "10-1-0-2", "fd00-1--1", "_tcp", "_udp") + "." + base
	case 2:
		return w.pick("_http", "_metrics", "http", "_") + "." + w.pick("_tcp", "tcp", "_udp") + "." + base
	}
	return w.pick("10-1-0-1.a.pod", "a.svc", "b.pod", "svc", "ns.dns", "dns", "dns-version", "other")
}
