package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miekg/dns"
)

// The sizes of a random world: large enough for most combinations of two
// properties to come up, small enough to be written in a second.
const (
	randomServices = 80
	randomPods     = 30
	randomImports  = 12
)

// dice makes random choices.
type dice struct{ *rand.Rand }

func newDice(seed, sequence uint64) dice { return dice{rand.New(rand.NewPCG(seed, sequence))} }

func (d dice) pick(words []string) string { return words[d.IntN(len(words))] }

// percent is true n times out of a hundred.
func (d dice) percent(n int) bool { return d.IntN(100) < n }

// generator makes a random world and changes it round by round. The words that
// names are made of are few, so that names meet in unexpected places. The same
// seed makes the same worlds.
type generator struct {
	dice
	world
	// used are the cluster addresses that are taken, freed those that were.
	used  map[netip.Addr]bool
	freed []netip.Addr
	// named counts the names that are made unique by a number.
	named int
	// clientPods are the pods that clients ask from, by address.
	clientPods map[string]*corev1.Pod
}

// node is the name of the node that the agent is told it runs on.
const node = "node-1"

// selectorLabel is a label that some objects have and a selector asks for.
const selectorLabel = "chosen"

var (
	randomNamespaces = []string{"r-a", "r-b", "r-svc", "a", "tcp", "r-new"}
	randomLabels     = []string{"a", "b", "a-b", "svc", "pod", "tcp", "http", "10-240-0-1", "dns-version", "ns", "dns", "cluster", "local", "fd00-240--1"}
	randomPorts      = []string{"", "a", "b", "http", "tcp", "10-240-0-1", "svc"}
	randomProtocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	randomTargets    = []string{"host.ext.test", "alias2.ext.test", "missing.ext.test", "six.ext.test", "192.0.2.1", "a.r-a.svc.cluster.local", "b.r-b.svc.cluster.local", "gone.r-a.svc.cluster.local"}
	randomNodes      = []string{node, "node-2", ""}
	randomZones      = []string{"", "z1", "Z2", "eu-1.a", "a"}
	randomPodNames   = []string{"web-0", "web-1", "a", "10-240-0-1", strings.Repeat("x", 63), strings.Repeat("y", 64)}
	randomSix        = []string{"fd00:240::", "fd00:240::1", "fd00:240:0:1::", "fd00:240::a:b", "fd00:240:1:2:3:4:5:6"}
	randomExternals  = []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5", "2001:db8:e::1", "2001:db8:e::2", "2001:db8:e::a:0"}
)

// newGenerator makes the first world of the seed.
func newGenerator(seed uint64) *generator {
	g := &generator{dice: newDice(seed, 0), used: map[netip.Addr]bool{}, clientPods: map[string]*corev1.Pod{}}
	for _, name := range randomNamespaces[:len(randomNamespaces)-1] {
		g.addNamespace(name)
	}
	for range randomServices {
		g.addService(g.anyNamespace(), g.pick(randomLabels))
	}
	for range randomPods {
		g.addPod(g.anyNamespace())
	}
	for range randomImports {
		g.addImport(g.anyNamespace())
	}
	return g
}

// anyNamespace is one of the namespaces that are there.
func (g *generator) anyNamespace() string { return g.namespaces[g.IntN(len(g.namespaces))].Name }

// unique makes the name one that nothing in the list has. It starts with a
// letter, as a Service's name has to.
func unique[T metav1.Object](g *generator, list []T, ns, name string) string {
	taken := func(o T) bool { return o.GetNamespace() == ns && o.GetName() == name }
	if name[0] < 'a' || slices.ContainsFunc(list, taken) {
		g.named++
		return fmt.Sprintf("s%d-%s", g.named, name)
	}
	return name
}

// randomObjectLabels are the labels of an object, with or without the one that selectors
// ask for.
func (g *generator) randomObjectLabels() map[string]string {
	if g.percent(60) {
		return map[string]string{selectorLabel: "yes"}
	}
	return map[string]string{}
}

func (g *generator) addNamespace(name string) *corev1.Namespace {
	g.namespace(name)
	ns := g.namespaces[len(g.namespaces)-1]
	ns.Labels = g.randomObjectLabels()
	return ns
}

// addService adds a service of a random kind with random slices.
func (g *generator) addService(ns, name string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	name = unique(g, g.services, ns, name)
	ports := g.servicePorts()
	s := g.addKind(ns, name, ports)
	s.Labels = g.randomObjectLabels()
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return s, nil
	}
	if g.percent(60) {
		s.Spec.Selector = map[string]string{"app": name}
	}
	s.Spec.PublishNotReadyAddresses = g.percent(10)
	if g.percent(20) {
		s.Spec.ExternalIPs = g.externals()
	}
	// The controller labels its slices of a headless service; those made by
	// hand may have the label or not.
	labelled := func() bool { return g.percent(50) }
	if s.Spec.Selector != nil {
		always := g.percent(85)
		labelled = func() bool { return always }
	}
	var made []*discoveryv1.EndpointSlice
	for i := range g.IntN(4) {
		made = append(made, g.addSlice(ns, name, fmt.Sprint(i), ports, labelled(), servicePool))
	}
	return s, made
}

// addKind adds the service without what all kinds may have.
func (g *generator) addKind(ns, name string, ports []corev1.ServicePort) *corev1.Service {
	kind := g.IntN(20)
	if kind < 2 {
		return g.external(ns, name, g.pick(randomTargets))
	}
	if kind >= 9 {
		return g.service(ns, name, noClusterIP, ports...)
	}
	if len(ports) == 0 {
		ports = []corev1.ServicePort{port("", 80, corev1.ProtocolTCP)}
	}
	s := g.service(ns, name, g.clusterIPs(), ports...)
	switch kind {
	case 6:
		s.Spec.Type = corev1.ServiceTypeNodePort
	case 7, 8:
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = g.ingress()
	}
	return s
}

// externals are up to three addresses, which other services may have too.
func (g *generator) externals() []string {
	var out []string
	for range 1 + g.IntN(3) {
		if ip := g.pick(randomExternals); !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	return out
}

// ingress is what a load balancer's controller writes: addresses, or a name.
func (g *generator) ingress() []corev1.LoadBalancerIngress {
	switch n := g.IntN(10); {
	case n < 2:
		return nil
	case n < 3:
		return []corev1.LoadBalancerIngress{{Hostname: g.pick([]string{"host.ext.test", "missing.ext.test"})}}
	}
	var out []corev1.LoadBalancerIngress
	for _, ip := range g.externals() {
		out = append(out, corev1.LoadBalancerIngress{IP: ip})
	}
	return out
}

// servicePorts are up to three ports, which have to have names if there are
// several, and differ in name and in protocol with number.
func (g *generator) servicePorts() []corev1.ServicePort {
	var out []corev1.ServicePort
	names := map[string]bool{}
	for i := range g.IntN(4) {
		name := g.pick(randomPorts)
		if (i > 0 && name == "") || names[name] || name == "10-240-0-1" {
			continue
		}
		names[name] = true
		out = append(out, port(name, int32(80+i), randomProtocols[g.IntN(3)]))
	}
	if len(out) > 1 && out[0].Name == "" {
		return out[1:]
	}
	return out
}

// clusterIPs are free addresses of one or both families.
func (g *generator) clusterIPs() []string {
	four := g.freshAddress(func() netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(16 + g.IntN(16)), byte(g.IntN(256))}) })
	six := g.freshAddress(func() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 0x1000+g.IntN(0x1000))) })
	return [][]string{{four}, {six}, {four, six}, {six, four}}[g.IntN(4)]
}

// freshAddress is a free address, one that another service had before if there is
// one of the family.
func (g *generator) freshAddress(pick func() netip.Addr) string {
	addr := pick()
	if i := slices.IndexFunc(g.freed, func(old netip.Addr) bool { return old.Is4() == addr.Is4() }); i >= 0 && g.percent(60) {
		addr = g.freed[i]
		g.freed = slices.Delete(g.freed, i, i+1)
	}
	for g.used[addr] {
		addr = pick()
	}
	g.used[addr] = true
	return addr.String()
}

// addSlice adds a slice of either family. Addresses come from a small range,
// so that some are in several slices and services.
func (g *generator) addSlice(ns, svc, suffix string, of []corev1.ServicePort, labelled bool, p pool) *discoveryv1.EndpointSlice {
	six := g.percent(30)
	s := g.slice(ns, svc, suffix, g.slicePorts(of), g.endpoints(p, six)...)
	s.Name = unique(g, g.slices[:len(g.slices)-1], ns, s.Name)
	s.AddressType = discoveryv1.AddressTypeIPv4
	if six {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	if !labelled {
		delete(s.Labels, corev1.IsHeadlessService)
	}
	for k, v := range g.randomObjectLabels() {
		s.Labels[k] = v
	}
	return s
}

// endpoints are up to four of one family, no address twice.
func (g *generator) endpoints(p pool, six bool) []discoveryv1.Endpoint {
	var eps []discoveryv1.Endpoint
	seen := map[string]bool{}
	for range g.IntN(5) {
		addr := g.endpointAddr(p, six)
		if seen[addr] {
			continue
		}
		seen[addr] = true
		eps = append(eps, g.endpoint(addr))
	}
	return eps
}

// pool is a range of addresses of endpoints and pods.
type pool string

// The pools. Slices of other clusters' services have one of their own, because
// CoreDNS leaves queries for those without an answer.
const (
	servicePool pool = "240"
	importPool  pool = "241"
)

// poolOf is where the slice's addresses come from.
func poolOf(s *discoveryv1.EndpointSlice) pool {
	if s.Labels[serviceName] == "" {
		return importPool
	}
	return servicePool
}

// has says that the name is the reverse of one of the pool's addresses.
func (p pool) has(name string) bool {
	return dns.IsSubDomain(string(p)+".10.in-addr.arpa.", name) || dns.IsSubDomain(string(p[2])+"."+string(p[1])+"."+string(p[0])+".0.0.0.d.f.ip6.arpa.", name)
}

// endpointAddr is an address of an endpoint or a pod.
func (g *generator) endpointAddr(p pool, six bool) string {
	if six {
		return strings.Replace(g.pick(randomSix), "240", string(p), 1)
	}
	return fmt.Sprintf("10.%s.0.%d", p, g.IntN(40))
}

// slicePorts are a service's ports as a slice has them: one may be missing, as
// where the pods don't all have a named port, have another number or protocol
// than the service's, or leave out what may be left out.
func (g *generator) slicePorts(of []corev1.ServicePort) []discoveryv1.EndpointPort {
	if len(of) > 1 && g.percent(20) {
		of = of[:len(of)-1]
	}
	out := ports(of...)
	for i := range out {
		switch g.IntN(12) {
		case 0:
			out[i].Protocol = &randomProtocols[g.IntN(3)]
		case 1:
			out[i].Port = ptr(int32(1 + g.IntN(65535)))
		case 2:
			out[i].Port = nil
		case 3:
			out[i].Protocol = nil
		}
	}
	return out
}

func (g *generator) endpoint(addr string) discoveryv1.Endpoint {
	e := ready(addr)
	switch n := g.IntN(10); {
	case n < 2:
		e.Conditions.Ready = ptr(false)
		e.Conditions.Serving = g.maybeTrue()
		e.Conditions.Terminating = g.maybeTrue()
	case n < 4:
		e.Conditions = discoveryv1.EndpointConditions{Serving: g.maybeTrue(), Terminating: g.maybeTrue()}
	case n < 5:
		// As publishNotReadyAddresses makes it.
		e.Conditions.Serving, e.Conditions.Terminating = ptr(false), ptr(true)
	}
	if g.percent(50) {
		e.Hostname = ptr(g.pick(randomLabels))
	}
	if g.percent(50) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "r-a", Name: g.pick(randomPodNames)}
	}
	if name := g.pick(randomNodes); name != "" {
		e.NodeName = &name
	}
	if name := g.pick(randomZones); name != "" {
		e.Zone = &name
	}
	return e
}

// maybeTrue is true, false or unknown.
func (g *generator) maybeTrue() *bool {
	return []*bool{nil, ptr(true), ptr(false)}[g.IntN(3)]
}
