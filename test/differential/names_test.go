package differential

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
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
