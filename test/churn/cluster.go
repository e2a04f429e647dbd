package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// question is a query for addresses and the answer that is expected.
type question struct {
	name  string
	rcode int
	addrs []netip.Addr // sorted
}

const (
	domain   = "cluster.local."
	nodeName = "n1"
	// calmServices never change, changing ones do. Both are spread over the namespaces.
	calmServices, changingServices = 20, 60
	namespaces                     = 6
)

// cluster is the objects at the API server, and how they look in DNS.
type cluster struct {
	api    *fakeapi.HTTPS
	random *rand.Rand
	// slots are the changing Services by their number. calm has the other names.
	slots []slot
	calm  []question
	// addrs counts the addresses given so far: none is given twice in a million.
	addrs uint32
}

// slot is a name that has a Service, or has none.
type slot struct {
	service *corev1.Service // nil: none
	slice   *discoveryv1.EndpointSlice
	pod     *corev1.Pod
	asked   []question
}

func newCluster(api *fakeapi.HTTPS, random *rand.Rand) *cluster {
	c := &cluster{api: api, random: random, slots: make([]slot, changingServices)}
	for n := range namespaces {
		api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(n)}})
	}
	c.putClusterDNS()
	for n := range calmServices {
		s := c.makeSlot(fmt.Sprintf("calm-%d", n), namespace(n), kind(n%int(kinds)))
		c.put(&s)
		c.calm = append(c.calm, s.asked...)
	}
	for n := range c.slots {
		c.change(n)
	}
	return c
}

// putClusterDNS adds the Service of the cluster DNS, which agents send queries to when they end.
func (c *cluster) putClusterDNS() {
	const ns, name, port = metav1.NamespaceSystem, "kube-dns", 53
	c.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	c.api.Put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: serviceAddr.String(), ClusterIPs: []string{serviceAddr.String()},
			Ports: []corev1.ServicePort{{Name: "dns", Port: port, Protocol: corev1.ProtocolUDP}},
		},
	})
	c.api.Put(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Namespace: ns, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{clusterDNSAddr.String()}}},
		Ports:     []discoveryv1.EndpointPort{{Name: new("dns"), Port: new(int32(port)), Protocol: new(corev1.ProtocolUDP)}},
	})
}

func namespace(n int) string { return fmt.Sprintf("ns-%d", n%namespaces) }

// address returns an address that no object has.
func (c *cluster) address(first byte) netip.Addr {
	c.addrs++
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], c.addrs&(1<<24-1))
	b[0] = first
	return netip.AddrFrom4(b)
}

// kind is a kind of Service.
type kind int

const (
	clusterIP kind = iota
	headless
	withPod // a headless Service of one pod on the agents' node
	kinds
	absent = kinds // no Service
)

// change gives the slot another state and returns its questions, with those for names that
// are gone.
func (c *cluster) change(n int) []question {
	old := c.slots[n]
	name, ns := fmt.Sprintf("changing-%d", n), namespace(n)
	host := question{name: name + "." + ns + ".svc." + domain, rcode: dns.RcodeNameError}
	next := slot{asked: []question{host}}
	if k := kind(c.random.IntN(int(kinds) + 1)); k != absent {
		next = c.makeSlot(name, ns, k)
	}
	if old.pod != nil {
		c.api.Remove(old.pod)
	}
	// A Service with a ClusterIP keeps it, and never becomes headless.
	if old.service != nil && (next.service == nil || old.slice == nil || next.slice == nil) {
		if old.slice != nil {
			c.api.Remove(old.slice)
		}
		c.api.Remove(old.service)
	}
	c.put(&next)
	c.slots[n] = next
	asked := next.asked
	if old.pod != nil {
		asked = append(asked[:len(asked):len(asked)], question{name: old.asked[1].name, rcode: dns.RcodeNameError})
	}
	return asked
}

func (c *cluster) makeSlot(name, ns string, k kind) slot {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	host := name + "." + ns + ".svc." + domain
	if k == clusterIP {
		a := c.address(172)
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = a.String(), []string{a.String()}
		return slot{service: svc, asked: []question{{name: host, addrs: []netip.Addr{a}}}}
	}
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	s := slot{service: svc, slice: &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Namespace: ns, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, corev1.IsHeadlessService: "",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}}
	n := 1
	if k == headless {
		n += c.random.IntN(5)
	}
	var addrs []netip.Addr
	for range n {
		a := c.address(10)
		addrs = append(addrs, a)
		s.slice.Endpoints = append(s.slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
	}
	s.asked = []question{{name: host, addrs: addrs}}
	if k == withPod {
		a := addrs[0].As4()
		s.pod = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: corev1.PodSpec{NodeName: nodeName},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addrs[0].String(), PodIPs: []corev1.PodIP{{IP: addrs[0].String()}}},
		}
		pod := fmt.Sprintf("%d-%d-%d-%d.%s.pod.%s", a[0], a[1], a[2], a[3], ns, domain)
		s.asked = append(s.asked, question{name: pod, addrs: addrs})
	}
	return s
}

func (c *cluster) put(s *slot) {
	for _, o := range s.objects() {
		c.api.Put(o)
	}
}

// objects returns the objects of a slot, the ones without a name in DNS of their own first.
func (s *slot) objects() (list []fakeapi.Object) {
	if s.pod != nil {
		list = append(list, s.pod)
	}
	if s.slice != nil {
		list = append(list, s.slice)
	}
	if s.service != nil {
		list = append(list, s.service)
	}
	return list
}

// questions returns the names of the changing Services as they are.
func (c *cluster) questions() (list []question) {
	for _, s := range c.slots {
		list = append(list, s.asked...)
	}
	return list
}
