package differential

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// objectFacts are what a known difference may have to know of the objects.
type objectFacts struct {
	// below gives names of services' ports, and of endpoints of other clusters,
	// by the name above them.
	below map[string][]string
	// services and imports are by their first two labels, with the dot behind.
	services map[string]*corev1.Service
	imports  map[string]*serviceImport
	// terminatingAddrs are addresses of pods that have been asked to go.
	terminatingAddrs map[string]bool
	// clientNamespaces are the namespaces of the pods that clients' addresses belong to.
	clientNamespaces map[string]string
}

// collectFacts gives the facts of the worlds.
func collectFacts(worlds ...*world) objectFacts {
	f := objectFacts{
		below:            map[string][]string{},
		services:         map[string]*corev1.Service{},
		imports:          map[string]*serviceImport{},
		terminatingAddrs: map[string]bool{},
		clientNamespaces: map[string]string{},
	}
	for _, w := range worlds {
		for _, s := range w.services {
			key := s.Name + "." + s.Namespace + "."
			f.services[key] = s
			for _, p := range s.Spec.Ports {
				if p.Name != "" {
					f.add(portName(p), key+"svc."+zone)
					f.add(portName(p), key+externalZone)
				}
			}
		}
		for _, o := range w.imports {
			key := o.Name + "." + o.Namespace + "."
			f.imports[key] = o
			for _, p := range o.Spec.Ports {
				if p.Name != "" {
					f.add("_"+p.Name+"._"+strings.ToLower(string(p.Protocol)), key+"svc."+importZone)
				}
			}
		}
		for _, s := range w.slices {
			for _, p := range s.Ports {
				if *p.Name != "" {
					name := "_" + *p.Name + "._" + strings.ToLower(string(protocol(p)))
					f.add(name, s.Labels[serviceName]+"."+s.Namespace+".svc."+zone)
					f.add(name, s.Labels[serviceName]+"."+s.Namespace+"."+externalZone)
					f.add(name, s.Labels[importName]+"."+s.Namespace+".svc."+importZone)
				}
			}
			service := s.Labels[importName] + "." + s.Namespace + ".svc." + importZone
			for _, name := range endpointNames(s, s.Labels[importCluster]+"."+service) {
				f.put(name)
			}
		}
		for _, p := range w.pods {
			for _, ip := range p.Status.PodIPs {
				switch {
				case p.DeletionTimestamp != nil:
					f.terminatingAddrs[ip.IP] = true
				case slices.Contains(clients, ip.IP):
					f.clientNamespaces[ip.IP] = p.Namespace
				}
			}
		}
	}
	return f
}

// add notes a service's port.
func (f objectFacts) add(port, service string) { f.put(port + "." + service) }

func (f objectFacts) put(name string) {
	name = strings.ToLower(name)
	f.below[parent(name)] = append(f.below[parent(name)], name)
}

// protocol is the port's, TCP where it says nothing.
func protocol(p discoveryv1.EndpointPort) corev1.Protocol {
	if p.Protocol == nil {
		return corev1.ProtocolTCP
	}
	return *p.Protocol
}
