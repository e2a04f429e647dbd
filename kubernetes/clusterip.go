package kubernetes

import "net/netip"

// IsClusterIP reports whether a Service in view has the address for its own, so that
// what listens there is the cluster's. It is safe for concurrent use and allocates
// nothing.
func (v *View) IsClusterIP(a netip.Addr) bool {
	v.mu.RLock()
	_, ok := v.index.clusterIPs[address(a.As16())] // IPv4 in its mapped form, as the index has it
	v.mu.RUnlock()
	return ok
}
