package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/wire"
)

// faults collects the values of an object that DNS can't use. The rest of the object is
// used.
type faults []string

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

func (f faults) String() string { return strings.Join(f, "; ") }

// convertService converts a Service to a record. ok is false if its name can't be a DNS
// name. The result shares no memory with svc.
func convertService(svc *corev1.Service, f *faults) (key string, s service, ok bool) {
	if key, ok = serviceKey(svc.Name, svc.Namespace); !ok {
		f.add("%q in namespace %q not valid as two DNS labels", svc.Name, svc.Namespace)
		return "", s, false
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		s.ports = appendPort(s.ports, p.Name, string(p.Protocol), &p.Port, f)
	}
	s.addExternalAddrs(svc, f)
	if !s.externallyReachable() && (svc.Spec.Type == corev1.ServiceTypeExternalName || isHeadless(svc)) {
		s.ports = "" // its endpoints' ports count
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
	for _, ip := range ips {
		s.addClusterIP(ip, f)
	}
	return key, s, true
}

func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone ||
		len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// appendPort appends one port of a Service or a slice. A port without a number has no SRV
// record, but its name exists.
func appendPort(list portList, name, proto string, number *int32, f *faults) portList {
	if proto == "" {
		proto = string(corev1.ProtocolTCP) // the API's default
	}
	p := parseProtocol([]byte(strings.ToLower(proto)))
	if p == 0 {
		f.add("port %q has unknown protocol %q", name, proto)
		return list
	}
	if name != "" {
		low := lowerLabel(name)
		if low == "" || len(low) == wire.MaxLabel { // no room for the underscore
			f.add("port name %q not valid as a DNS label after an underscore", name)
			return list
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
	return list.append(name, p, uint16(n))
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
	if !ok {
		f.add("service %q in namespace %q not valid as two DNS labels", owner, es.Namespace)
		return nil
	}
	s := &slice{name: es.Namespace + "/" + es.Name, key: key, size: sliceAddrSize(es)}
	for i := range es.Ports {
		p := &es.Ports[i]
		s.ports = appendPort(s.ports, deref(p.Name), string(deref(p.Protocol)), p.Port, f)
	}
	var list endpointList
	for i := range es.Endpoints {
		list.add(&es.Endpoints[i], s.size, pack, f)
	}
	list.pack(s)
	return s
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

func (l *endpointList) add(ep *discoveryv1.Endpoint, size int, pack converter, f *faults) {
	if ep.Conditions.Ready != nil && !*ep.Conditions.Ready {
		return
	}
	e := endpoint{host: hostLabel(ep, pack.podNames, f), place: pack.localityOf(ep)}
	if pack.zonal {
		e.zone = endpointZone(ep, f)
	}
	for _, text := range ep.Addresses {
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
