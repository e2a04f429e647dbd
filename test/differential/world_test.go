package differential

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// world is a set of objects.
type world struct {
	namespaces []*corev1.Namespace
	services   []*corev1.Service
	slices     []*discoveryv1.EndpointSlice
	pods       []*corev1.Pod
	imports    []*serviceImport
}

// namespace adds namespaces.
func (w *world) namespace(names ...string) {
	for _, name := range names {
		w.namespaces = append(w.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// service adds a service and returns it for more to be set. "None" as the
// only address makes a headless one.
func (w *world) service(ns, name string, ips []string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, Ports: ports},
	}
	if ips[0] == corev1.ClusterIPNone {
		s.Spec.ClusterIPs = nil
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
		w.services = append(w.services, s)
		return s
	}
	for _, ip := range ips {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, ipFamily(ip))
	}
	s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicySingleStack)
	if len(ips) > 1 {
		s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicyRequireDualStack)
	}
	w.services = append(w.services, s)
	return s
}

// external adds an ExternalName service and returns it.
func (w *world) external(ns, name, target string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target},
	}
	w.services = append(w.services, s)
	return s
}

// slice adds a slice of the service as the EndpointSlice controller would
// make it. The family is that of the first endpoint's address.
func (w *world) slice(ns, svc, suffix string, ports []discoveryv1.EndpointPort, eps ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns,
			Name:      svc + "-" + suffix,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc,
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
				corev1.IsHeadlessService:     "",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       ports,
		Endpoints:   eps,
	}
	if len(eps) > 0 && ipFamily(eps[0].Addresses[0]) == corev1.IPv6Protocol {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	w.slices = append(w.slices, s)
	return s
}

// port is a service's port.
func port(name string, number int32, proto corev1.Protocol) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: proto}
}

// ports copies a service's ports for a slice, in which an unnamed port has an
// empty name.
func ports(of ...corev1.ServicePort) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for _, p := range of {
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	return out
}

// ready is an endpoint that takes traffic.
func ready(addr string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}}
}

// named is a ready endpoint with a hostname.
func named(hostname, addr string) discoveryv1.Endpoint {
	e := ready(addr)
	e.Hostname = &hostname
	return e
}

// unready is an endpoint that takes no traffic.
func unready(addr string) discoveryv1.Endpoint {
	e := ready(addr)
	e.Conditions.Ready = ptr(false)
	return e
}

func ipFamily(ip string) corev1.IPFamily {
	for _, c := range ip {
		if c == ':' {
			return corev1.IPv6Protocol
		}
	}
	return corev1.IPv4Protocol
}

func ptr[T any](v T) *T { return &v }

// noClusterIP is the address of a headless service.
var noClusterIP = []string{corev1.ClusterIPNone}

// fixedWorld is one of each kind of object, and the combinations that have
// been got wrong by someone.
func fixedWorld() *world {
	w := &world{}
	w.namespace("plain", "headless", "external", "empty", "odd")
	w.clusterIPs()
	w.headless()
	w.twoSlices()
	w.externals()
	w.oddNames()
	w.exposedServices()
	return w
}

// exposedServices are services that are reached from outside in several ways, one that
// has endpoints and is an alias, and one of other clusters without ports.
func (w *world) exposedServices() {
	const ns = "plain"
	http := port("http", 80, corev1.ProtocolTCP)
	name := corev1.LoadBalancerIngress{Hostname: "host.ext.test"}
	for i, tt := range []struct {
		name      string
		externals []string
		ingress   []corev1.LoadBalancerIngress
	}{
		{"edge-named", nil, []corev1.LoadBalancerIngress{name}},
		{"edge-both", []string{"198.51.100.20"}, []corev1.LoadBalancerIngress{name}},
		{"edge-twice", []string{"198.51.100.21"}, []corev1.LoadBalancerIngress{{IP: "198.51.100.21"}}},
	} {
		s := w.service(ns, tt.name, []string{fmt.Sprintf("10.96.2.%d", 20+i)}, http)
		s.Spec.Type, s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, tt.externals, tt.ingress
	}
	w.external(ns, "edge-alias", "host.ext.test")
	w.slice(ns, "edge-alias", "a", ports(http), named("end", "10.244.22.1"))
	w.imports = append(w.imports, newImport(ns, "portless", importSpec{Type: "ClusterSetIP", IPs: []string{"10.97.1.1", "fd00:10:97:1::1"}}))
}

func (w *world) clusterIPs() {
	const ns = "plain"
	http, dnsTCP, dnsUDP := port("http", 80, corev1.ProtocolTCP), port("dns-tcp", 53, corev1.ProtocolTCP), port("dns", 53, corev1.ProtocolUDP)
	w.service(ns, "one", []string{"10.96.1.1"}, http)
	w.service(ns, "six", []string{"fd00:10:96::16"}, http)
	w.service(ns, "dual", []string{"10.96.1.2", "fd00:10:96::12"}, http, dnsTCP, dnsUDP)
	w.service(ns, "dual6", []string{"fd00:10:96::13", "10.96.1.3"}, port("", 443, corev1.ProtocolTCP))
	w.service(ns, "sctp", []string{"10.96.1.4"}, port("sig", 2905, corev1.ProtocolSCTP), port("sig-tcp", 2905, corev1.ProtocolTCP))
	w.service(ns, "same-name", []string{"10.96.1.5"}, port("a", 1, corev1.ProtocolTCP), port("b", 1, corev1.ProtocolUDP), port("c", 65535, corev1.ProtocolUDP))
	w.service(ns, "balanced", []string{"10.96.1.6"}, http).Spec.Type = corev1.ServiceTypeLoadBalancer
	w.service(ns, "nodeport", []string{"10.96.1.7"}, http).Spec.Type = corev1.ServiceTypeNodePort
	w.service(ns, "backed", []string{"10.96.1.8"}, http)
	w.slice(ns, "backed", "a", ports(port("http", 8080, corev1.ProtocolTCP)), ready("10.244.1.1"), named("host", "10.244.1.2"), unready("10.244.1.3"))
	w.service(ns, "published", []string{"10.96.1.9"}, http).Spec.ExternalIPs = []string{"198.51.100.9"}
	w.service(ns, "x-1", []string{"10.96.1.10"}, http)
	w.service("default", "one", []string{"10.96.1.11"}, port("https", 443, corev1.ProtocolTCP))
}

func (w *world) headless() {
	const ns = "headless"
	http, admin := port("http", 80, corev1.ProtocolTCP), port("admin", 9000, corev1.ProtocolTCP)
	both := ports(http, admin)

	w.service(ns, "set", noClusterIP, http, admin)
	w.slice(ns, "set", "a", both, named("set-0", "10.244.2.1"), named("set-1", "10.244.2.2"), unready("10.244.2.3"))
	w.slice(ns, "set", "b", both, named("set-0", "fd00:244:2::1"), named("set-1", "fd00:244:2::2"))

	w.service(ns, "bare", noClusterIP, http)
	w.slice(ns, "bare", "a", ports(http), ready("10.244.3.1"), ready("10.244.3.2"))
	w.slice(ns, "bare", "b", ports(http), ready("fd00:244:3::"), ready("fd00:244:3::2"))

	unknown := ready("10.244.4.1")
	unknown.Conditions.Ready = nil
	w.service(ns, "unknown", noClusterIP, http)
	w.slice(ns, "unknown", "a", ports(http), unknown, unready("10.244.4.2"))

	leaving := unready("10.244.5.1")
	leaving.Conditions.Serving, leaving.Conditions.Terminating = ptr(true), ptr(true)
	w.service(ns, "leaving", noClusterIP, http)
	w.slice(ns, "leaving", "a", ports(http), leaving)

	// The controller has set ready for the sake of publishNotReadyAddresses.
	early := named("early-0", "10.244.6.1")
	early.Conditions.Serving, early.Conditions.Terminating = ptr(false), ptr(true)
	w.service(ns, "early", noClusterIP, http).Spec.PublishNotReadyAddresses = true
	w.slice(ns, "early", "a", ports(http), early)

	w.service(ns, "unready", noClusterIP, http)
	w.slice(ns, "unready", "a", ports(http), unready("10.244.7.1"))
	w.service(ns, "nothing", noClusterIP, http)
	w.service(ns, "hollow", noClusterIP, http)
	w.slice(ns, "hollow", "a", ports(http))

	w.service(ns, "portless", noClusterIP)
	w.slice(ns, "portless", "a", nil, ready("10.244.8.1"), named("h", "10.244.8.2"))
	w.service(ns, "nameless", noClusterIP, port("", 80, corev1.ProtocolTCP))
	w.slice(ns, "nameless", "a", ports(port("", 80, corev1.ProtocolTCP)), ready("10.244.9.1"), ready("10.244.9.2"))
	w.service(ns, "allports", noClusterIP, http)
	w.slice(ns, "allports", "a", []discoveryv1.EndpointPort{{Name: ptr("http")}}, ready("10.244.10.1"))

	// Enough for an answer that no UDP reply of 512 bytes holds, and for one
	// that needs more than 1232.
	w.service(ns, "crowd", noClusterIP, http)
	var eps []discoveryv1.Endpoint
	for i := range 100 {
		eps = append(eps, named(fmt.Sprintf("crowd-%d", i), fmt.Sprintf("10.244.11.%d", i+1)))
	}
	w.slice(ns, "crowd", "a", ports(http), eps...)
	w.service(ns, "group", noClusterIP, http)
	w.slice(ns, "group", "a", ports(http), eps[:40]...)
}

// twoSlices are slices that share something.
func (w *world) twoSlices() {
	const ns = "headless"
	http, alt := port("http", 80, corev1.ProtocolTCP), port("alt", 8080, corev1.ProtocolTCP)

	w.service(ns, "several", noClusterIP, http)
	w.slice(ns, "several", "a", ports(http), named("db", "10.244.12.1"), named("db", "10.244.12.2"), named("web", "10.244.12.3"))
	w.slice(ns, "several", "b", ports(http), named("db", "10.244.12.4"))
	w.slice(ns, "several", "c", ports(http), named("db", "fd00:244:12::1"))

	w.service(ns, "double", noClusterIP, http)
	w.slice(ns, "double", "a", ports(http), ready("10.244.13.1"), ready("10.244.13.2"))
	w.slice(ns, "double", "b", ports(http), ready("10.244.13.1"))

	w.service(ns, "moving", noClusterIP, http)
	w.slice(ns, "moving", "a", ports(http), unready("10.244.14.1"))
	w.slice(ns, "moving", "b", ports(http), ready("10.244.14.1"))

	w.service(ns, "split", noClusterIP, http, alt)
	w.slice(ns, "split", "a", ports(http), ready("10.244.15.1"))
	w.slice(ns, "split", "b", ports(alt), ready("10.244.15.2"), named("both", "10.244.15.1"))

	// Endpoints without ports, which count in the weights of the others' records.
	w.service(ns, "part", noClusterIP, http)
	w.slice(ns, "part", "a", ports(http), ready("10.244.23.1"), named("part", "10.244.23.2"))
	w.slice(ns, "part", "b", nil, ready("10.244.23.3"))

	// One pod in two services, and a pod on the node's address with a
	// ClusterIP's backend.
	w.service(ns, "shared-a", noClusterIP, http)
	w.slice(ns, "shared-a", "a", ports(http), ready("10.244.16.1"))
	w.service(ns, "shared-b", noClusterIP, http)
	w.slice(ns, "shared-b", "a", ports(http), named("pod", "10.244.16.1"))

	// So many that the names fit a reply of 512 bytes only when compressed.
	for i := range 12 {
		name := fmt.Sprintf("popular-%d", i)
		w.service(ns, name, noClusterIP, http)
		w.slice(ns, name, "a", ports(http), ready("10.244.16.2"))
	}

	// Made by hand: nothing says that the service is headless.
	w.service(ns, "manual", noClusterIP, http)
	s := w.slice(ns, "manual", "a", ports(http), ready("10.244.17.1"))
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "manual"}
	w.slice(ns, "orphaned", "a", ports(http), ready("10.244.18.1"))
}

func (w *world) externals() {
	const ns = "external"
	for name, target := range map[string]string{
		"outside":    "host.ext.test",
		"four":       "four.ext.test",
		"alias":      "alias2.ext.test",
		"missing":    "missing.ext.test",
		"failing":    "servfail.ext.test",
		"refusing":   "refused.ext.test",
		"nodata":     "neg.test",
		"inside":     "one.plain.svc.cluster.local",
		"insideset":  "set.headless.svc.cluster.local",
		"endpoint":   "set-0.set.headless.svc.cluster.local",
		"insidegone": "gone.plain.svc.cluster.local",
		"chain":      "chain2.external.svc.cluster.local",
		"chain2":     "outside.external.svc.cluster.local",
		"loop-a":     "loop-b.external.svc.cluster.local",
		"loop-b":     "loop-a.external.svc.cluster.local",
		"self":       "self.external.svc.cluster.local",
		"back":       "tocluster.ext.test",
		"ip":         "192.0.2.77",
		"pod":        "10-1-2-3.plain.pod.cluster.local",
		"apex":       "cluster.local",
	} {
		w.external(ns, name, target)
	}
	w.service(ns, "withports", noClusterIP)
	s := w.services[len(w.services)-1]
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "host.ext.test", Ports: []corev1.ServicePort{port("http", 80, corev1.ProtocolTCP)}}
}

// oddNames are names that look like something else.
func (w *world) oddNames() {
	const ns = "odd"
	http := port("http", 80, corev1.ProtocolTCP)
	w.namespace("svc", "pod")
	w.service(ns, "svc", []string{"10.96.2.1"}, http)
	w.service(ns, "pod", []string{"10.96.2.2"}, http)
	w.service("svc", "svc", []string{"10.96.2.3"}, http)
	w.service("pod", "pod", noClusterIP, http)
	w.slice("pod", "pod", "a", ports(http), named("pod", "10.244.19.1"), ready("10.244.19.2"))
	w.service(ns, "tcp", noClusterIP, port("tcp", 80, corev1.ProtocolTCP), port("udp", 80, corev1.ProtocolUDP))
	w.slice(ns, "tcp", "a", ports(port("tcp", 80, corev1.ProtocolTCP), port("udp", 80, corev1.ProtocolUDP)), named("tcp", "10.244.20.1"), named("udp", "10.244.20.2"), named("10-244-20-4", "10.244.20.3"), ready("10.244.20.4"))
	pod := ready("10.244.21.1")
	pod.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p.q"}
	w.service(ns, "dotted", noClusterIP, http)
	w.slice(ns, "dotted", "a", ports(http), pod)
	w.service(ns, "dns-version", []string{"10.96.2.4"}, http)
	w.service(ns, "a23456789-123456789-123456789-123456789-123456789-123456789-123", []string{"10.96.2.5"}, http)
}
