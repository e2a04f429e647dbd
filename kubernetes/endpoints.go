package kubernetes

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
)

const (
	// dnsPort is the port of DNS, and dnsPortName the name that cluster DNS's Services give
	// it, whatever its number.
	dnsPort     = 53
	dnsPortName = "dns"
	// maxEndpoints bounds the result of [View.Endpoints].
	maxEndpoints = 16
)

// Endpoints returns the addresses of the ready endpoints of a Service, NAMESPACE/NAME, for
// DNS, the nearest first, and a channel that is closed when they may have changed. port 0
// is the port named dns, or else 53. Of a large Service it returns the nearest
// [maxEndpoints]; among equally near endpoints the choice differs from node to node.
//
// It does not block: a Service that doesn't exist or is not in view has no addresses.
// Callers call again whenever the channel is closed, which also happens without a change
// from time to time: these calls keep the Service's endpoints in view. The channel is nil
// if service can't be the name of a Service.
//
// It is safe for concurrent use.
func (v *View) Endpoints(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{}) {
	ns, name, _ := strings.Cut(service, "/")
	key, ok := serviceKey(name, ns)
	if !ok {
		return nil, nil
	}
	v.mu.Lock()
	if v.index.endpointWaiters[key] == nil {
		v.index.endpointWaiters[key] = make(chan struct{})
	}
	changed = v.index.endpointWaiters[key]
	svc := v.index.services[key]
	v.mu.Unlock()
	if svc == nil || svc.kind == orphan || !v.requireSlices(svc) {
		return nil, changed
	}
	return v.rankEndpoints(svc, port), changed
}

// broadcast closes the channel of those who wait for a change of the service's endpoints.
func (x *index) broadcast(key string) {
	if c := x.endpointWaiters[key]; c != nil {
		close(c)
		delete(x.endpointWaiters, key)
	}
}

// expireWaiters closes all channels that [View.Endpoints] has returned, so that those who
// still want the endpoints call again.
func (v *View) expireWaiters() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.index.endpointWaiters {
		v.index.broadcast(key)
	}
}

// rankedEndpoint is an endpoint with what it is sorted by.
type rankedEndpoint struct {
	addr     netip.AddrPort
	rank     rank
	tiebreak uint64
}

func (v *View) rankEndpoints(s *service, port uint16) []netip.AddrPort {
	var list []rankedEndpoint
	seen := make(map[netip.AddrPort]bool)
	for _, sl := range s.slices {
		p := sl.ports.findDNSPort(port)
		for i := range sl.len() {
			addr := netip.AddrPortFrom(unpackAddr(sl.addr(i)), p)
			if p == 0 || seen[addr] {
				continue
			}
			seen[addr] = true
			list = append(list, rankedEndpoint{addr, sl.locality(i).rank(), maphash.Comparable(v.seed, addr)})
		}
	}
	slices.SortFunc(list, func(a, b rankedEndpoint) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.tiebreak, b.tiebreak))
	})
	list = list[:min(len(list), maxEndpoints)]
	addrs := make([]netip.AddrPort, len(list))
	for i, n := range list {
		addrs[i] = n.addr
	}
	return addrs
}

// findDNSPort returns the port for DNS: configured unless that is 0, else the port named
// dns, else 53 if the list has it; 0 if there is none. A slice without ports does not
// restrict them.
func (p portList) findDNSPort(configured uint16) uint16 {
	if configured != 0 || p == "" {
		return cmp.Or(configured, dnsPort)
	}
	var found uint16
	for p != "" {
		name, proto, number, rest := p.next()
		p = rest
		if proto == sctp {
			continue
		}
		if name == dnsPortName {
			return number
		}
		if number == dnsPort {
			found = dnsPort
		}
	}
	return found
}
