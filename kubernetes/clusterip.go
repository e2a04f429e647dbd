package kubernetes

import "net/netip"

// IsClusterIP reports whether a Service in view has the address for its own, so that
// what listens there is the cluster's. It is safe for concurrent use and allocates
// nothing.
func (v *View) IsClusterIP(a netip.Addr) bool {
	v.mu.RLock()
	_, ok := v.index.clusterIPs[addrKey(a.As16())] // IPv4 in its mapped form, as the index has it
	v.mu.RUnlock()
	return ok
}

// maxEndpointsBehind bounds the endpoints that [View.EndpointsBehind] gives. Cluster DNS has one
// for some hundred cores.
const maxEndpointsBehind = 1000

// EndpointsBehind gives the addresses of the ready endpoints of the Service that has a for
// a cluster IP: who answers what is sent to a, and asks others in its place. There are
// none if there is no such Service, or if its endpoints are not in view yet; the call
// asks for them. It does not wait. It is safe for concurrent use.
func (v *View) EndpointsBehind(a netip.Addr) (list []netip.Addr) {
	var owners []*service
	v.mu.RLock()
	if r, ok := v.index.clusterIPs[addrKey(a.As16())]; ok {
		for key := range r.each {
			owners = append(owners, v.index.services[key])
		}
	}
	v.mu.RUnlock()
	for _, s := range owners {
		if s == nil || s.kind == orphan || !v.requireSlices(s) {
			continue
		}
		for _, sl := range s.slices {
			for i := range min(sl.len(), maxEndpointsBehind-len(list)) {
				list = append(list, unpackAddr(sl.addr(i)).Unmap())
			}
		}
	}
	return list
}
