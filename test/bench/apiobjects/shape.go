// Package apiobjects makes clusters to measure with: Services, their EndpointSlices,
// namespaces, nodes and pods in any number, with the labels, annotations and owners
// that objects of a real cluster carry, since their size is part of what is
// measured. A Shape says how many; the same Shape always makes the same objects.
// Write puts them into an API server, and the World that it returns changes them,
// one at a time, and says by which DNS answer each change shows.
package apiobjects

import "fmt"

// Shape says what a cluster is made of.
type Shape struct {
	// Namespaces is the number of namespaces. Services are distributed over them in turn.
	Namespaces int
	// ClusterIPServices have a cluster IP and one slice of EndpointsPerService endpoints,
	// HeadlessServices have one slice of EndpointsPerHeadless.
	ClusterIPServices, HeadlessServices       int
	EndpointsPerService, EndpointsPerHeadless int
	// HeadlessTen adds a headless Service of ten endpoints to every namespace that the first
	// node uses.
	HeadlessTen bool
	// Nodes is the number of nodes with pods. Each has PodsPerNode pods in UsedNamespaces
	// namespaces.
	Nodes, UsedNamespaces, PodsPerNode int
}

// LargeCluster is the cluster that one agent is measured in: a fifth of the Services is headless,
// and the node uses a twenty-fifth of the namespaces.
func LargeCluster(services int) Shape {
	used := max(1, services/500)
	return Shape{
		Namespaces:        max(2, services/20),
		ClusterIPServices: services - services/5, HeadlessServices: services / 5,
		EndpointsPerService: 3, EndpointsPerHeadless: 50, HeadlessTen: true,
		Nodes: 1, UsedNamespaces: used, PodsPerNode: 2 * used,
	}
}

// FleetCluster is the cluster that many agents are measured in: a fifth of the Services is headless,
// and each node uses a tenth of the namespaces.
func FleetCluster(services, nodes int) Shape {
	used := max(1, services/200)
	return Shape{
		Namespaces:        max(2, services/20),
		ClusterIPServices: services - services/5, HeadlessServices: services / 5,
		EndpointsPerService: 3, EndpointsPerHeadless: 10,
		Nodes: nodes, UsedNamespaces: used, PodsPerNode: used,
	}
}

// Service is what a Service is made of.
type Service struct {
	Namespace, Name string
	Headless        bool
	// Endpoints is how many there are, and First the number of the first in the
	// cluster.
	Endpoints, First int
	// Number is that of the Service in the cluster.
	Number int
}

// Host is the Service's name in DNS, with a dot at the end.
func (s Service) Host() string { return s.Name + "." + s.Namespace + ".svc.cluster.local." }

// Member is the name in DNS of the endpoint with the number i of a headless Service.
func (s Service) Member(i int) string { return hostname(s, i) + "." + s.Host() }

// Services are all of the Shape's, those with a cluster IP first.
func (s Shape) Services() []Service {
	var list []Service
	first := 0
	add := func(ns int, name string, headless bool, endpoints int) {
		list = append(list, Service{namespace(ns), name, headless, endpoints, first, len(list)})
		first += endpoints
	}
	for i := range s.ClusterIPServices {
		add(i%s.Namespaces, fmt.Sprintf("web-%05d", i), false, s.EndpointsPerService)
	}
	for i := range s.HeadlessServices {
		add(i%s.Namespaces, fmt.Sprintf("set-%05d", i), true, s.EndpointsPerHeadless)
	}
	for i := 0; s.HeadlessTen && i < s.UsedNamespaces; i++ {
		add(i, fmt.Sprintf("ten-%05d", i), true, 10)
	}
	return list
}

// Endpoints is how many endpoints all Services have.
func (s Shape) Endpoints() int {
	n := 0
	for _, svc := range s.Services() {
		n += svc.Endpoints
	}
	return n
}

// namespace names the namespace with the number i.
func namespace(i int) string { return fmt.Sprintf("team-%04d", i) }

// Uses are the namespaces that the node has pods in: those of the first are the
// first, and each other node's come after those of the one before it, so that
// every namespace is used by equally many.
func (s Shape) Uses(node int) []string {
	list := make([]string, s.UsedNamespaces)
	for i := range list {
		list[i] = namespace((node*s.UsedNamespaces + i) % s.Namespaces)
	}
	return list
}

// Node names the node with the number i, and Zone the zone that it is in: there are
// three, as a region has.
func Node(i int) string { return fmt.Sprintf("node-%04d", i) }
func Zone(i int) string { return "eu-1" + string(rune('a'+i%3)) }
