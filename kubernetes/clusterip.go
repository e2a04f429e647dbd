package kubernetes

import "net/netip"

// IsClusterIP reports whether a is the cluster IP of a Service in view. It is safe for
// concurrent use and does not allocate.
func (v *View) IsClusterIP(a netip.Addr) bool {
	v.mu.RLock()
	_, ok := v.index.clusterIPs[addrKey(a.As16())] // IPv4 in its mapped form, as in the index
	v.mu.RUnlock()
	return ok
}

// maxEndpointsBehind bounds the result of [View.EndpointsBehind]. Cluster DNS has one
// endpoint for some hundred cores.
const maxEndpointsBehind = 1000

// EndpointsBehind returns the addresses of the ready endpoints of the Service whose cluster
// IP is a. The result is empty if there is no such Service or if its endpoints are not in
// view; the call requests them. It does not block and is safe for concurrent use.
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
