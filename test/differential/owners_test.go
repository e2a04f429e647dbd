package differential

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miekg/dns"
)

// zone is the cluster's domain.
const zone = "cluster.local."

// owners returns the names that the world's objects could own: every
// service, its ports, its endpoints by hostname and by address, and the
// reverse of every address, whether or not there is an answer for it.
func (w *world) owners() []string {
	set := map[string]bool{}
	for _, ns := range w.namespaces {
		set[ns.Name+".svc."+zone] = true
		set[ns.Name+".pod."+zone] = true
	}
	for _, s := range w.services {
		base := s.Name + "." + s.Namespace + ".svc." + zone
		set[base] = true
		for _, p := range s.Spec.Ports {
			set[portName(p)+"."+base] = true
		}
		for _, ip := range s.Spec.ClusterIPs {
			set[reverse(ip)] = true
		}
	}
	for _, s := range w.slices {
		base := s.Labels[discoveryv1.LabelServiceName] + "." + s.Namespace + ".svc." + zone
		for _, e := range s.Endpoints {
			addr := e.Addresses[0]
			set[dashed(addr)+"."+base] = true
			set[dashed(addr)+"."+s.Namespace+".pod."+zone] = true
			set[reverse(addr)] = true
			if e.Hostname != nil {
				set[*e.Hostname+"."+base] = true
			}
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func portName(p corev1.ServicePort) string {
	return "_" + p.Name + "._" + strings.ToLower(string(p.Protocol))
}

// dashed is an address as a label.
func dashed(addr string) string {
	s := strings.NewReplacer(".", "-", ":", "-").Replace(addr)
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

// reverse is an address's name for PTR queries.
func reverse(addr string) string {
	// ReverseAddr fails only for what is no address.
	name, err := dns.ReverseAddr(netip.MustParseAddr(addr).String())
	if err != nil {
		panic(err)
	}
	return name
}
