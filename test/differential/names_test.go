package differential

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miekg/dns"
)

// The zones that some Corefiles have beside the cluster's.
const (
	externalZone = "out.test."
	importZone   = "clusterset.local."
)

// externalTTL is the TTL of names outside of the cluster.
const externalTTL = 7

// nameOptions says which names a Corefile has beside those that all have.
type nameOptions struct {
	zonal, external, imports bool
	// searches says that clients send the names of their search path.
	searches bool
}

// owners are the names that the world's objects could own with the options.
func (d nameOptions) owners(w *world) []string {
	var names []string
	if d.zonal {
		names = append(names, zonalNames(w)...)
	}
	if d.external {
		names = append(names, externalNames(w)...)
	}
	if d.imports {
		names = append(names, importNames(w)...)
	}
	for _, p := range w.pods {
		for _, ip := range p.Status.PodIPs {
			names = append(names, dashed(ip.IP)+"."+p.Namespace+".pod."+zone, reverse(ip.IP))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// zonalNames are those of the zones that endpoints are in.
func zonalNames(w *world) []string {
	var names []string
	for _, s := range w.slices {
		base := s.Labels[serviceName] + "." + s.Namespace + ".svc." + zone
		for _, e := range s.Endpoints {
			if e.Zone == nil {
				continue
			}
			for _, directive := range []string{"pin", "prefer"} {
				names = append(names, *e.Zone+"."+directive+"._zone."+base)
			}
		}
	}
	for _, s := range w.services {
		base := "_zone." + s.Name + "." + s.Namespace + ".svc." + zone
		names = append(names, "z1.pin."+base, "nowhere.prefer."+base, "pin."+base, base, "z1.Pin."+base, "a.z1.pin."+base)
	}
	return names
}

// externalNames are those under which services are reached from outside.
func externalNames(w *world) []string {
	names := []string{externalZone, "dns." + externalZone, "ns1.dns." + externalZone, "ns2.dns." + externalZone, "a.ns1.dns." + externalZone}
	for _, ns := range w.namespaces {
		names = append(names, ns.Name+"."+externalZone)
	}
	for _, s := range w.services {
		base := s.Name + "." + s.Namespace + "." + externalZone
		names = append(names, base, "x."+base)
		for _, p := range s.Spec.Ports {
			names = append(names, portName(p)+"."+base)
		}
		for _, ip := range s.Spec.ExternalIPs {
			names = append(names, reverse(ip))
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				names = append(names, reverse(in.IP))
			}
		}
	}
	for _, s := range w.slices {
		base := s.Labels[serviceName] + "." + s.Namespace + "." + externalZone
		names = append(names, endpointNames(s, base)...)
	}
	return names
}

// importNames are those of services of other clusters.
func importNames(w *world) []string {
	var names []string
	for _, ns := range w.namespaces {
		names = append(names, ns.Name+".svc."+importZone)
	}
	for _, o := range w.imports {
		base := o.Name + "." + o.Namespace + ".svc." + importZone
		names = append(names, base, "_a."+base, "_a._tcp."+base)
		for _, p := range o.Spec.Ports {
			names = append(names, "_"+p.Name+"._"+strings.ToLower(string(p.Protocol))+"."+base)
		}
		for _, ip := range o.Spec.IPs {
			names = append(names, reverse(ip))
		}
	}
	for _, s := range w.slices {
		service := s.Labels[importName] + "." + s.Namespace + ".svc." + importZone
		names = append(names, s.Labels[importCluster]+"."+service)
		names = append(names, endpointNames(s, s.Labels[importCluster]+"."+service)...)
		names = append(names, endpointNames(s, service)...)
	}
	return append(names, importZone, "svc."+importZone, "dns-version."+importZone, "ns.dns."+importZone)
}

// endpointNames are those of the slice's endpoints, by all rules.
func endpointNames(s *discoveryv1.EndpointSlice, base string) []string {
	var names []string
	for _, e := range s.Endpoints {
		names = append(names, dashed(e.Addresses[0])+"."+base)
		if e.Hostname != nil {
			names = append(names, *e.Hostname+"."+base)
		}
		if e.TargetRef != nil && len(e.TargetRef.Name) < 64 {
			names = append(names, e.TargetRef.Name+"."+base)
		}
	}
	return names
}

// queries are n random questions about the world and about the other names: a
// name that an object could own or did own, mostly one that the last round had
// to do with, or one put together from the same words, sometimes changed a
// little.
func (g *generator) queries(d nameOptions, n int, others []string) []query {
	owners := append(g.owners(), d.owners(&g.world)...)
	out := make([]query, n)
	for i := range out {
		q := g.randomQuery()
		for !validName(q.name) {
			q.name = g.name(d, owners, others)
			if d.searches {
				g.useSearchPath(&q)
			}
		}
		q.dropped = unanswered(q)
		out[i] = q
	}
	return out
}

// name is one of the names, or one that is like them.
func (g *generator) name(d nameOptions, owners, others []string) string {
	name := g.pick(owners)
	switch n := g.IntN(100); {
	case n < 20:
		name = g.inventName(d)
	case n < 30:
		name = g.pick(others)
	case n < 45 && len(g.formerNames) > 0:
		name = g.pick(g.formerNames)
	case n < 75 && len(g.changedNames) > 0:
		name = g.pick(g.changedNames)
	}
	if g.percent(20) {
		name = g.alterName(name)
	}
	return name
}

// validName says that it is a name: a change may leave an empty label or make one
// too long, as a slice's lack of a service does.
func validName(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok && !strings.Contains(name, "..") && (name == "." || !strings.HasPrefix(name, ".")) && name != ""
}

// unanswered says that CoreDNS may have no answer to the query.
func unanswered(q query) bool { return q.qtype == dns.TypePTR && importPool.has(q.name) }

// certainQueries are queries that are asked in each round, whatever the seed: those
// that show a difference that is meant and that few random ones would.
func (g *generator) certainQueries(d nameOptions) []query {
	var names []string
	if d.external {
		for _, name := range []string{"edge-named.plain", "edge-both.plain", "edge-twice.plain", "end.edge-alias.plain", "_set-0.set.headless"} {
			names = append(names, name+"."+externalZone)
		}
	}
	if d.imports {
		names = append(names, "portless.plain.svc."+importZone)
	}
	var qs []query
	for _, name := range names {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeSRV} {
			qs = append(qs, query{name: name, qtype: kind})
		}
	}
	for _, from := range clients {
		p := g.clientPods[from]
		if !d.searches || p == nil {
			continue
		}
		domain := p.Namespace + ".svc." + zone
		for _, kind := range []uint16{dns.TypeA, dns.TypeHTTPS, dns.TypeMX} {
			for _, name := range []string{"", "host.ext.test.", "servfail.ext.test.", "missing.ext.test."} {
				qs = append(qs, query{name: name + domain, qtype: kind, from: from})
			}
		}
	}
	return qs
}

// randomQuery is a query without its name.
func (g *generator) randomQuery() query {
	q := query{qtype: allTypes[g.IntN(len(allTypes))], tcp: g.percent(5), norec: g.percent(5), cd: g.percent(5), ad: g.percent(5)}
	if g.percent(60) {
		q.qtype = allTypes[g.IntN(4)]
	}
	if g.percent(30) {
		q.ednsSize = ednsSize
		q.do = g.percent(50)
	}
	return q
}

// inventName puts a name together.
func (g *generator) inventName(d nameOptions) string {
	labels := []string{g.pick([]string{"svc", "svc", "svc", "pod"}), strings.TrimSuffix(zone, ".")}
	switch {
	case d.imports && g.percent(40):
		labels[1] = strings.TrimSuffix(importZone, ".")
	case d.external && g.percent(40):
		labels = []string{strings.TrimSuffix(externalZone, ".")}
	}
	labels = append([]string{g.pick(randomNamespaces)}, labels...)
	short := len(labels)
	for range g.IntN(4) {
		labels = append([]string{g.pick(randomLabels)}, labels...)
	}
	if g.percent(30) && len(labels) == short+1 {
		labels = append([]string{"_" + g.pick(randomPorts), g.pick([]string{"_tcp", "_udp", "_sctp", "_TCP", "tcp"})}, labels...)
	}
	return strings.Join(slices.DeleteFunc(labels, func(l string) bool { return l == "" }), ".") + "."
}

// alterName drops, adds or upper-cases a label.
func (g *generator) alterName(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	i := g.IntN(len(labels))
	switch g.IntN(4) {
	case 0:
		labels = slices.Delete(labels, i, i+1)
	case 1:
		labels = slices.Insert(labels, i, g.pick(randomLabels))
	case 2:
		labels[i] = "_" + labels[i]
	default:
		labels[i] = strings.ToUpper(labels[i])
	}
	return strings.Join(labels, ".") + "."
}

// useSearchPath makes the query one that a client sends on its search path: from a
// pod or a stranger, for a name that is short of some of its labels, below the
// domain of a namespace, mostly the pod's own.
func (g *generator) useSearchPath(q *query) {
	from := g.pick(append([]string{unknownClientAddr}, clients...))
	q.from = from
	if g.percent(30) || importPool.has(q.name) {
		return
	}
	ns := g.anyNamespace()
	if p := g.clientPods[from]; p != nil && g.percent(80) {
		ns = p.Namespace
	}
	name := g.pick([]string{"host.ext.test.", "missing.ext.test.", "alias2.ext.test.", "neg.test.", "servfail.ext.test.", q.name})
	for _, suffix := range []string{ns + ".svc." + zone, "svc." + zone, zone} {
		if g.percent(60) {
			name = strings.TrimSuffix(name, suffix)
		}
	}
	q.name = name + ns + ".svc." + zone
}
