package kubernetes

import "net/netip"

const (
	// dnsPort is the port of DNS, and dnsPortName the name that cluster DNS's Services give
	// it, whatever its number.
	dnsPort     = 53
	dnsPortName = "dns"
	// maxEndpoints bounds the result of [View.Endpoints].
	maxEndpoints = 16
)

// rankedEndpoint is an endpoint with what it is sorted by.
type rankedEndpoint struct {
	addr     netip.AddrPort
	rank     rank
	tiebreak uint64
}
