package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The sizes of the random part: large enough for every combination of two
// properties to come up, small enough to be written in two seconds.
const (
	randomServices = 150
	randomQueries  = 2000
)

// generator makes a random world and random queries for it. The words that
// names are made of are few, so that names meet in unexpected places.
type generator struct {
	*rand.Rand
	world
	used map[netip.Addr]bool
}

var (
	randomNamespaces = []string{"r-a", "r-b", "r-svc", "a", "tcp"}
	randomLabels     = []string{"a", "b", "a-b", "svc", "pod", "tcp", "http", "10-240-0-1", "dns-version", "ns", "dns", "cluster", "local", "fd00-240--1"}
	randomPorts      = []string{"", "a", "b", "http", "tcp", "10-240-0-1", "svc"}
	randomProtocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	randomTargets    = []string{"host.ext.test", "alias2.ext.test", "missing.ext.test", "six.ext.test", "192.0.2.1", "a.r-a.svc.cluster.local", "b.r-b.svc.cluster.local", "gone.r-a.svc.cluster.local"}
)

func newGenerator(seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), used: map[netip.Addr]bool{}}
	g.namespaces = randomNamespaces
	taken := map[string]bool{}
	for i := range randomServices {
		ns, name := g.of(randomNamespaces), g.of(randomLabels)
		// A Service's name has to start with a letter.
		if name[0] < 'a' || taken[ns+"/"+name] {
			name = fmt.Sprintf("s%d-%s", i, name)
		}
		taken[ns+"/"+name] = true
		g.add(ns, name)
	}
	return g
}

func (g *generator) of(words []string) string { return words[g.IntN(len(words))] }

// chance is true n times out of a hundred.
func (g *generator) chance(n int) bool { return g.IntN(100) < n }

// add adds a service of a random kind with random slices.
func (g *generator) add(ns, name string) {
	ports := g.servicePorts()
	switch kind := g.IntN(10); {
	case kind < 1:
		g.external(ns, name, g.of(randomTargets))
		return
	case kind < 4:
		if len(ports) == 0 {
			ports = []corev1.ServicePort{port("", 80, corev1.ProtocolTCP)}
		}
		g.service(ns, name, g.clusterIPs(), ports...)
	default:
		g.service(ns, name, none, ports...)
	}
	for i := range g.IntN(4) {
		g.addSlice(ns, name, fmt.Sprint(i), ports)
	}
}

// servicePorts are up to three ports, which have to have names if there are
// several, and differ in name and in protocol with number.
func (g *generator) servicePorts() []corev1.ServicePort {
	var out []corev1.ServicePort
	names := map[string]bool{}
	for i := range g.IntN(4) {
		name := g.of(randomPorts)
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
	four := g.fresh(func() netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(16 + g.IntN(16)), byte(g.IntN(256))}) })
	six := g.fresh(func() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 0x1000+g.IntN(0x1000))) })
	return [][]string{{four}, {six}, {four, six}, {six, four}}[g.IntN(4)]
}

func (g *generator) fresh(pick func() netip.Addr) string {
	addr := pick()
	for g.used[addr] {
		addr = pick()
	}
	g.used[addr] = true
	return addr.String()
}

// addSlice adds a slice of either family. Addresses come from a small range,
// so that some are in several slices and services.
func (g *generator) addSlice(ns, svc, suffix string, of []corev1.ServicePort) {
	six := g.chance(30)
	var eps []discoveryv1.Endpoint
	seen := map[string]bool{}
	for range g.IntN(5) {
		addr := fmt.Sprintf("10.240.0.%d", g.IntN(40))
		if six {
			addr = []string{"fd00:240::", "fd00:240::1", "fd00:240:0:1::", "fd00:240::a:b", "fd00:240:1:2:3:4:5:6"}[g.IntN(5)]
		}
		if seen[addr] {
			continue
		}
		seen[addr] = true
		eps = append(eps, g.endpoint(addr))
	}
	s := g.slice(ns, svc, suffix, ports(g.subset(of)...), eps...)
	if six {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	if g.chance(10) {
		s.Labels = map[string]string{discoveryv1.LabelServiceName: svc}
	}
}

// subset leaves out a port now and then, as a slice does whose pods don't
// all have a named port.
func (g *generator) subset(of []corev1.ServicePort) []corev1.ServicePort {
	if len(of) > 1 && g.chance(20) {
		return of[:len(of)-1]
	}
	return of
}

func (g *generator) endpoint(addr string) discoveryv1.Endpoint {
	e := ready(addr)
	switch n := g.IntN(10); {
	case n < 2:
		e.Conditions.Ready = ptr(false)
		e.Conditions.Serving = ptr(g.chance(50))
		e.Conditions.Terminating = ptr(g.chance(50))
	case n < 3:
		e.Conditions.Ready = nil
	}
	if g.chance(50) {
		e.Hostname = ptr(g.of(randomLabels))
	}
	return e
}

// queries are random questions about the world: a name that its objects could
// own, or one put together from the same words, sometimes changed a little.
func (g *generator) queries() []query {
	owners := g.owners()
	out := make([]query, randomQueries)
	for i := range out {
		name := g.of(owners)
		if g.chance(30) {
			name = g.invent()
		}
		if g.chance(25) {
			name = g.change(name)
		}
		q := query{name: name, kind: kinds[g.IntN(len(kinds))], tcp: g.chance(5), norec: g.chance(5), cd: g.chance(5), ad: g.chance(5)}
		if g.chance(60) {
			q.kind = kinds[g.IntN(4)]
		}
		if g.chance(30) {
			q.size = ednsSize
			q.do = g.chance(50)
		}
		out[i] = q
	}
	return out
}

// invent puts a name together.
func (g *generator) invent() string {
	labels := []string{g.of([]string{"svc", "svc", "svc", "pod"}), strings.TrimSuffix(zone, ".")}
	labels = append([]string{g.of(randomNamespaces)}, labels...)
	for range g.IntN(4) {
		labels = append([]string{g.of(randomLabels)}, labels...)
	}
	if g.chance(30) && len(labels) == 4 {
		labels = append([]string{"_" + g.of(randomPorts), g.of([]string{"_tcp", "_udp", "_sctp", "_TCP", "tcp"})}, labels...)
	}
	return strings.Join(slices.DeleteFunc(labels, func(l string) bool { return l == "" }), ".") + "."
}

// change drops, adds or upper-cases a label.
func (g *generator) change(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	i := g.IntN(len(labels))
	switch g.IntN(4) {
	case 0:
		labels = slices.Delete(labels, i, i+1)
	case 1:
		labels = slices.Insert(labels, i, g.of(randomLabels))
	case 2:
		labels[i] = "_" + labels[i]
	default:
		labels[i] = strings.ToUpper(labels[i])
	}
	return strings.Join(labels, ".") + "."
}
