package kubernetes

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxPorts bounds the ports of a Service or a slice. Kubernetes allows 20,000 in a slice,
	// and has no bound for a Service; more than some dozen are an attack or a mistake.
	maxPorts = 4096
	// maxServiceAddrs bounds the cluster IPs that are read of a Service, and its external
	// addresses. Kubernetes has no bound for externalIPs.
	maxServiceAddrs = 1024
	// maxSliceEndpoints bounds the endpoints that are read of a slice, as in the API, and the
	// addresses of all of them.
	maxSliceEndpoints = 1000
)

// atMost returns the first n elements of list. Others are a fault.
func atMost[T any](list []T, n int, what string, f *faults) []T {
	if len(list) <= n {
		return list
	}
	f.add("%d %s, DNS uses the first %d", len(list), what, n)
	return list[:n]
}

// convertService converts a Service to a record. ok is false if its name can't be a DNS
// name. Without external, nothing is read that only serves names outside of the cluster.
// The result shares no memory with svc.
func convertService(svc *corev1.Service, external bool, f *faults) (key string, s service, ok bool) {
	if key, ok = serviceKey(svc.Name, svc.Namespace); !ok {
		f.add("%q in namespace %q not valid as two DNS labels", svc.Name, svc.Namespace)
		return "", s, false
	}
	if external {
		s.addExternalAddrs(svc, f)
	}
	if s.externallyReachable() || svc.Spec.Type != corev1.ServiceTypeExternalName && !isHeadless(svc) {
		s.ports = servicePorts(svc, f) // otherwise its endpoints' ports count
	}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		s.kind = externalName
		s.target = parseExternalName(svc.Spec.ExternalName, f)
		return key, s, true
	case isHeadless(svc):
		s.kind, s.distribution = headless, trafficDistributionOf(svc)
		s.selects = len(svc.Spec.Selector) > 0
		return key, s, true
	}
	s.kind = clusterIP
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	s.addClusterIPs(ips, f)
	return key, s, true
}

func servicePorts(svc *corev1.Service, f *faults) portList {
	var buf [smallPortList]byte
	list := buf[:0]
	ports := atMost(svc.Spec.Ports, maxPorts, "ports", f)
	for i := range ports {
		p := &ports[i]
		list = appendPort(list, p.Name, string(p.Protocol), &p.Port, f)
	}
	return portList(list)
}

func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone ||
		len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// appendPort appends one port of a Service or a slice to a portList under construction. A
// port without a number has no SRV record, but its name exists. A name that no label can hold is
// left out: the port then counts in the answers for the Service's own name only.
func appendPort(list []byte, name, proto string, number *int32, f *faults) []byte {
	if proto == "" {
		proto = string(corev1.ProtocolTCP) // the API's default
	}
	p := protocolOf(proto)
	if p == 0 {
		f.add("port %q has unknown protocol %q", name, proto)
		return list
	}
	if name != "" {
		low := lowerLabel(name)
		if low == "" || len(low) == wire.MaxLabel { // no room for the underscore
			f.add("port name %q not valid as a DNS label after an underscore", name)
			low = ""
		}
		name = low
	}
	n := int32(0)
	if number != nil {
		if n = *number; n < 1 || n > 65535 {
			f.add("port %q has invalid number %d", name, n)
			return list
		}
	}
	return packPort(list, name, p, uint16(n))
}

// parseExternalName parses an ExternalName; "" if it can't be the target of a CNAME.
func parseExternalName(name string, f *faults) wire.Name {
	if _, err := netip.ParseAddr(strings.TrimSuffix(name, ".")); err == nil {
		return "" // the API allows it, but a CNAME can't hold it
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || c == '\\' {
			f.add("external name %q is not a domain name", name)
			return ""
		}
	}
	target, err := wire.ParseName(name)
	if err != nil || target == wire.Root {
		f.add("external name %q is not a domain name", name)
		return ""
	}
	return target
}

// convertSlice converts the ready endpoints of an EndpointSlice to a record. It returns nil
// if the slice belongs to no service. The result shares no memory with es.
func convertSlice(es *discoveryv1.EndpointSlice, pack converter, f *faults) *slice {
	owner := es.Labels[discoveryv1.LabelServiceName]
	if owner == "" || es.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	key, ok := serviceKey(owner, es.Namespace)
	if !ok || owner != strings.ToLower(owner) { // a label has letters that no Service's name has
		f.add("service %q in namespace %q not valid as two DNS labels", owner, es.Namespace)
		return nil
	}
	s := &slice{name: es.Namespace + "/" + es.Name, key: key, size: sliceAddrSize(es)}
	var buf [smallPortList]byte
	list := buf[:0]
	ports := atMost(es.Ports, maxPorts, "ports", f)
	for i := range ports {
		p := &ports[i]
		list = appendPort(list, deref(p.Name), string(deref(p.Protocol)), p.Port, f)
	}
	s.ports = portList(list)
	convertEndpoints(es.Endpoints, s.size, pack, f).pack(s)
	return s
}

// convertEndpoints converts the ready endpoints of a slice. Each has all its addresses, as
// in CoreDNS, unless these are more than [maxSliceEndpoints] in all: then it has the first
// one, the only one that the API gives a meaning and that kube-proxy looks at.
func convertEndpoints(all []discoveryv1.Endpoint, size int, pack converter, f *faults) (list endpointList) {
	all = atMost(all, maxSliceEndpoints, "endpoints", f)
	total, most := 0, maxSliceEndpoints
	for i := range all {
		total += len(all[i].Addresses)
	}
	if total > maxSliceEndpoints {
		f.add("%d addresses of %d endpoints, DNS uses the first of each endpoint", total, len(all))
		most = 1
	}
	for i := range all {
		ep := &all[i]
		list.add(ep, ep.Addresses[:min(len(ep.Addresses), most)], size, pack, f)
	}
	return list
}

// sliceAddrSize returns the size of a slice's addresses. Manifests may lack the address
// type; then the first address decides.
func sliceAddrSize(es *discoveryv1.EndpointSlice) int {
	if es.AddressType == discoveryv1.AddressTypeIPv6 {
		return 16
	}
	if es.AddressType == "" && len(es.Endpoints) > 0 && len(es.Endpoints[0].Addresses) > 0 &&
		strings.Contains(es.Endpoints[0].Addresses[0], ":") {
		return 16
	}
	return 4
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// endpoint is one address of a slice with its hostname and location.
type endpoint struct {
	addr, host string
	place      locality
	zone       zoneName
}

type endpointList []endpoint

// add adds ep with these of its addresses, unless it is not ready.
func (l *endpointList) add(ep *discoveryv1.Endpoint, addrs []string, size int, pack converter, f *faults) {
	if ep.Conditions.Ready != nil && !*ep.Conditions.Ready {
		return
	}
	e := endpoint{host: hostLabel(ep, pack.podNames, f), place: pack.localityOf(ep)}
	if pack.zonal {
		e.zone = endpointZone(ep, f)
	}
	for _, text := range addrs {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.BitLen() != 8*size || a.Is4In6() {
			f.add("endpoint %q is not an address of the slice's type", text)
			continue
		}
		e.addr = packAddr(a)
		*l = append(*l, e)
	}
}

// hostLabel returns the label of ep in lower case, "" for the dashed address.
func hostLabel(ep *discoveryv1.Endpoint, podNames bool, f *faults) string {
	if name := deref(ep.Hostname); name != "" {
		if host := lowerLabel(name); host != "" {
			return host
		}
		f.add("hostname %q is not a DNS label", name)
	}
	if podNames && ep.TargetRef != nil {
		return lowerLabel(ep.TargetRef.Name) // "" for one with dots or over 63 bytes
	}
	return ""
}

// pack writes the endpoints to s in order, each once. Of duplicates the nearest counts.
func (l endpointList) pack(s *slice) {
	slices.SortStableFunc(l, func(a, b endpoint) int {
		return cmp.Or(strings.Compare(a.addr, b.addr), strings.Compare(a.host, b.host),
			cmp.Compare(b.place, a.place))
	})
	l = slices.CompactFunc(l, func(a, b endpoint) bool { return a.addr == b.addr && a.host == b.host })
	var addrs strings.Builder
	addrs.Grow(len(l) * s.size)
	for i := range l {
		addrs.WriteString(l[i].addr)
	}
	s.addrs = addrs.String()
	s.hosts = columnOf(l, func(e *endpoint) string { return e.host })
	s.indexHosts()
	s.localities = string(columnOf(l, func(e *endpoint) byte { return byte(e.place) }))
	s.zones = columnOf(l, func(e *endpoint) zoneName { return e.zone })
}

// columnOf returns one value of each endpoint, nil if all are zero: most endpoints only
// have an address.
func columnOf[T comparable](l endpointList, of func(*endpoint) T) (list []T) {
	var zero T
	if !slices.ContainsFunc(l, func(e endpoint) bool { return of(&e) != zero }) {
		return nil
	}
	list = make([]T, len(l))
	for i := range l {
		list[i] = of(&l[i])
	}
	return list
}
