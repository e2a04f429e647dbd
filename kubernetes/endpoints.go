package kubernetes

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
)

const (
	// dnsPort is the port of DNS, and dnsPortName what the Services of cluster DNS
	// call it, whatever its number is.
	dnsPort     = 53
	dnsPortName = "dns"
	// maxEndpoints bounds the endpoints given: half as many can all be of a zone that
	// fails, with twice as many a node would hold sockets to servers that it asks
	// once a minute.
	maxEndpoints = 16
)

// Endpoints gives the addresses of the ready endpoints of a Service, NAMESPACE/NAME,
// that answer DNS, the nearest first, and a channel that is closed when the addresses
// may be others. A port of 0 is that named dns, else 53. Of a large Service it is the
// nearest [maxEndpoints]; of those equally near each node has others.
//
// It does not wait: what is not in view yet, or does not exist, is no addresses. Whoever
// wants the addresses asks again each time the channel is closed, which now and then it
// is without a change: as long as somebody does, the Service's endpoints stay in view.
// A name that can't be a Service's gives a nil channel.
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

// broadcast tells those who wait for endpoints of the service of key.
func (x *index) broadcast(key string) {
	if c := x.endpointWaiters[key]; c != nil {
		close(c)
		delete(x.endpointWaiters, key)
	}
}

// expireWaiters has all who wait for endpoints ask again, so that it shows who still wants
// them.
func (v *View) expireWaiters() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.index.endpointWaiters {
		v.index.broadcast(key)
	}
}

// rankedEndpoint is an endpoint and what it is ordered by.
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

// findDNSPort is the port, of those of a slice, that DNS is asked at: given if that is not 0;
// 0 is none. Without any ports a slice says nothing of them.
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
