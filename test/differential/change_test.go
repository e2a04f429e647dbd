package differential

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// changesPerRound is how many objects a round changes: a third of the world, so that
// after three rounds few are as they were made.
const changesPerRound = 50

// nextChange changes the world and says how.
func (g *generator) nextChange() *change {
	c := &change{}
	// A client's pod is asked to go in every round.
	for _, from := range clients {
		if p := g.clientPods[from]; p != nil && p.DeletionTimestamp == nil {
			g.terminatePod(c, p)
			break
		}
	}
	if g.percent(70) {
		g.changeNamespaces(c)
	}
	for range changesPerRound {
		switch n := g.IntN(20); {
		case n < 8:
			g.changeService(c)
		case n < 14:
			g.changeSlice(c)
		case n < 18:
			g.changePod(c)
		default:
			g.changeImport(c)
		}
	}
	return c
}

// owners are the names that the objects of the change could own, and those of
// the services that its slices are of.
func (c *change) owners(d nameOptions) []string {
	w := &world{}
	for _, o := range slices.Concat(c.deleted, c.created, c.updated) {
		switch o := o.(type) {
		case *corev1.Namespace:
			w.namespaces = append(w.namespaces, o)
		case *corev1.Service:
			w.services = append(w.services, o)
		case *discoveryv1.EndpointSlice:
			w.slices = append(w.slices, o)
		case *corev1.Pod:
			w.pods = append(w.pods, o)
		case *serviceImport:
			w.imports = append(w.imports, o)
		}
	}
	names := append(w.owners(), d.owners(w)...)
	for _, s := range w.slices {
		for _, zone := range []string{"svc." + zone, externalZone} {
			names = append(names, s.Labels[serviceName]+"."+s.Namespace+"."+zone)
		}
	}
	return names
}

// touched says that the round has done something to the object already: one
// thing for each is enough, and two could go against each other.
func (c *change) touched(o metav1.Object) bool {
	if p, ok := o.(*corev1.Pod); ok && slices.Contains(c.terminating, p) {
		return true
	}
	return slices.Contains(c.deleted, o) || slices.Contains(c.created, o) || slices.Contains(c.updated, o)
}

// untouched returns an object that has not been touched, or false.
func untouched[T metav1.Object](g *generator, c *change, list []T) (o T, ok bool) {
	if len(list) == 0 {
		return o, false
	}
	o = list[g.IntN(len(list))]
	return o, !c.touched(o)
}

// removeItem removes the object from the list.
func removeItem[T comparable](list []T, o T) []T {
	return slices.DeleteFunc(list, func(x T) bool { return x == o })
}

// changeNamespaces deletes a namespace with all that is in it, and makes one, the same
// or another. Labels of the others change.
func (g *generator) changeNamespaces(c *change) {
	old := g.namespaces[g.IntN(len(g.namespaces))]
	all := g.world.objects()
	for _, o := range all {
		if o.GetNamespace() == old.Name || o == metav1.Object(old) {
			c.terminating = removeItem(c.terminating, podOf(o))
			g.deleteObject(c, o)
		}
	}
	name := old.Name
	for g.percent(60) || slices.ContainsFunc(g.namespaces, func(n *corev1.Namespace) bool { return n.Name == name }) {
		name = g.pick(randomNamespaces)
	}
	c.created = append(c.created, g.addNamespace(name))
	for range 5 {
		g.makeService(c, name, g.pick(randomLabels))
	}
	if ns, ok := untouched(g, c, g.namespaces); ok {
		ns.Labels = g.randomObjectLabels()
		c.updated = append(c.updated, ns)
	}
}

// podOf is the object if it is a pod.
func podOf(o metav1.Object) *corev1.Pod {
	p, _ := o.(*corev1.Pod)
	return p
}

// deleteObject deletes the object.
func (g *generator) deleteObject(c *change, o metav1.Object) {
	c.deleted = append(c.deleted, o)
	switch o := o.(type) {
	case *corev1.Namespace:
		g.namespaces = removeItem(g.namespaces, o)
	case *corev1.Service:
		g.services = removeItem(g.services, o)
		g.releaseClusterIPs(o)
	case *discoveryv1.EndpointSlice:
		g.slices = removeItem(g.slices, o)
	case *corev1.Pod:
		g.pods = removeItem(g.pods, o)
		g.releaseAddresses(o)
	case *serviceImport:
		g.imports = removeItem(g.imports, o)
	}
}

// releaseClusterIPs gives the service's addresses back.
func (g *generator) releaseClusterIPs(s *corev1.Service) {
	for _, ip := range s.Spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			continue
		}
		addr := netip.MustParseAddr(ip)
		delete(g.used, addr)
		g.freed = append(g.freed, addr)
	}
}

// makeService makes a service with slices.
func (g *generator) makeService(c *change, ns, name string) {
	s, made := g.addService(ns, name)
	c.created = append(c.created, s)
	for _, slice := range made {
		c.created = append(c.created, slice)
	}
}

// changeService deletes a service, with or without its slices, makes it anew
// as another one, or changes what it says.
func (g *generator) changeService(c *change) {
	s, ok := untouched(g, c, g.services)
	if !ok {
		return
	}
	switch n := g.IntN(10); {
	case n < 3:
		g.deleteObject(c, s)
		g.makeService(c, g.anyNamespace(), g.pick(randomLabels))
	case n < 6:
		g.deleteObject(c, s)
		g.makeService(c, s.Namespace, s.Name)
	default:
		if g.updateService(s) {
			c.updated = append(c.updated, s)
		}
	}
}

// updateService changes the service in place, if it can be.
func (g *generator) updateService(s *corev1.Service) bool {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName && g.percent(50):
		s.Spec.ExternalName = g.pick(randomTargets)
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		ips := g.clusterIPs()
		var w world
		s.Spec = w.service(s.Namespace, s.Name, ips, port("http", 80, corev1.ProtocolTCP)).Spec
		s.Spec.Type = corev1.ServiceTypeClusterIP
	case s.Spec.Type == "" && s.Spec.ClusterIP != corev1.ClusterIPNone && g.percent(20):
		// Its addresses are free only when the round is over.
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: g.pick(randomTargets)}
	case g.percent(30):
		s.Labels = g.randomObjectLabels()
	case g.percent(40):
		s.Spec.ExternalIPs = g.externals()
	default:
		of := g.servicePorts()
		if len(of) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone {
			return false
		}
		s.Spec.Ports = of
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer.Ingress = g.ingress()
	}
	return true
}

// changeSlice deletes a slice, adds one, gives one to another service, or
// changes its endpoints.
func (g *generator) changeSlice(c *change) {
	s, ok := untouched(g, c, g.slices)
	if !ok {
		return
	}
	of := g.servicePorts()
	switch g.IntN(6) {
	case 0:
		g.deleteObject(c, s)
		return
	case 1:
		g.named++
		label := g.pick(randomLabels)
		if poolOf(s) == importPool {
			return
		}
		_, labelled := s.Labels[corev1.IsHeadlessService]
		c.created = append(c.created, g.addSlice(s.Namespace, label, fmt.Sprintf("n%d", g.named), of, labelled, servicePool))
		return
	case 2:
		if s.Labels[serviceName] == "" {
			return
		}
		s.Labels[serviceName] = g.pick(randomLabels)
	case 3:
		s.Ports = g.slicePorts(of)
	default:
		s.Endpoints = g.endpoints(poolOf(s), s.AddressType == discoveryv1.AddressTypeIPv6)
	}
	c.updated = append(c.updated, s)
}

// changePod deletes a pod, at once or in two steps, adds one, or gives one
// another status.
func (g *generator) changePod(c *change) {
	p, ok := untouched(g, c, g.pods)
	switch n := g.IntN(10); {
	case n < 4 || !ok:
		c.created = append(c.created, g.addPod(g.anyNamespace()))
	case n < 6:
		g.deleteObject(c, p)
	case p.DeletionTimestamp != nil:
	case n < 8 && p.Status.Phase == corev1.PodRunning:
		g.terminatePod(c, p)
	case p.Status.Phase == corev1.PodRunning:
		g.setPodStatus(p)
		c.updated = append(c.updated, p)
	}
}

// terminatePod asks the pod to go. It stays for now, and keeps its addresses.
func (g *generator) terminatePod(c *change, p *corev1.Pod) {
	p.DeletionTimestamp = ptr(metav1.Now())
	c.terminating = append(c.terminating, p)
}

// releaseAddresses lets another pod have the addresses of clients that were this one's.
func (g *generator) releaseAddresses(p *corev1.Pod) {
	for _, ip := range p.Status.PodIPs {
		if g.clientPods[ip.IP] == p {
			delete(g.clientPods, ip.IP)
		}
	}
}

// changeImport deletes an import, adds one, or changes what it says.
func (g *generator) changeImport(c *change) {
	o, ok := untouched(g, c, g.imports)
	switch n := g.IntN(4); {
	case n == 0 || !ok:
		slices := len(g.slices)
		g.addImport(g.anyNamespace())
		c.created = append(c.created, g.imports[len(g.imports)-1])
		for _, s := range g.slices[slices:] {
			c.created = append(c.created, s)
		}
	case n == 1:
		g.deleteObject(c, o)
	default:
		g.fillImportSpec(o, g.servicePorts())
		c.updated = append(c.updated, o)
	}
}
