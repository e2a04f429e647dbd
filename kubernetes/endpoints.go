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
	if v.index.awaited[key] == nil {
		v.index.awaited[key] = make(chan struct{})
	}
	changed = v.index.awaited[key]
	svc := v.index.services[key]
	v.mu.Unlock()
	if svc == nil || svc.kind == orphan || !v.held(svc) {
		return nil, changed
	}
	return v.endpointsOf(svc, port), changed
}

// news tells those who wait for endpoints of the service of key.
func (x *index) news(key string) {
	if c := x.awaited[key]; c != nil {
		close(c)
		delete(x.awaited, key)
	}
}

// recall has all who wait for endpoints ask again, so that it shows who still wants
// them.
func (v *View) recall() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.index.awaited {
		v.index.news(key)
	}
}

// near is an endpoint and what it is ordered by.
type near struct {
	addr netip.AddrPort
	rank rank
	draw uint64
}

func (v *View) endpointsOf(s *service, port uint16) []netip.AddrPort {
	var list []near
	seen := make(map[netip.AddrPort]bool)
	for _, sl := range s.slices {
		p := sl.ports.dns(port)
		for i := range sl.len() {
			addr := netip.AddrPortFrom(unpackAddr(sl.addr(i)), p)
			if p == 0 || seen[addr] {
				continue
			}
			seen[addr] = true
			list = append(list, near{addr, sl.place(i).rank(), maphash.Comparable(v.seed, addr)})
		}
	}
	slices.SortFunc(list, func(a, b near) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.draw, b.draw))
	})
	list = list[:min(len(list), maxEndpoints)]
	addrs := make([]netip.AddrPort, len(list))
	for i, n := range list {
		addrs[i] = n.addr
	}
	return addrs
}

// dns is the port, of those of a slice, that DNS is asked at: given if that is not 0;
// 0 is none. Without any ports a slice says nothing of them.
func (p ports) dns(given uint16) uint16 {
	if given != 0 || p == "" {
		return cmp.Or(given, dnsPort)
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
