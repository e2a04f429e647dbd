package kubernetes

import (
	"bytes"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/wire"
)

// serviceKind is the type of a Service as DNS sees it.
type serviceKind uint8

const (
	orphan       serviceKind = iota // slices refer to it; the Service is not known
	clusterIP                       // has its own addresses
	headless                        // has its ready endpoints' addresses
	externalName                    // a CNAME
)

// service is all that DNS knows of one Service and its slices. It is immutable once it is
// in the index: a change publishes a new one, so that a query needs no lock after the
// lookup.
type service struct {
	kind serviceKind
	// v4 and v6 are the addresses of the service's own name as packed RDATA, without
	// duplicates: the cluster IPs, or the ready endpoints of a headless service unless lazy
	// holds them.
	v4, v6 string
	ports  portList // of the Service
	// target is the name that a Service of type ExternalName points to, "" if it can't be a
	// CNAME target. Of other services it is the host name of the load balancer.
	target wire.Name
	serviceSlices
	// selects says that the Service has a selector, so that the EndpointSlice controller
	// maintains its slices.
	selects bool
	// distribution is the Service's trafficDistribution.
	distribution trafficDistribution
	// bounds4 and bounds6 divide v4 and v6 of a headless service by distance.
	bounds4, bounds6 localityBounds
	// complete says that all slices are in view; see [index.isComplete].
	complete bool
	ready    bool // a slice has a ready endpoint
	// external4 and external6 are the packed addresses at which the Service is externally
	// reachable.
	external4, external6 string
	ns                   *namespace
	// lazy holds the addresses of a large headless service; nil if v4 and v6 do.
	lazy *lazyAddrs
}

const (
	// externalOverhead estimates the memory of an external address with its entry in the index.
	externalOverhead = 96
	// maxNamespaceServices bounds the memory of the ports and external addresses of the
	// Services of a namespace: 100,000 Services with three ports.
	maxNamespaceServices = 4 << 20
)

// listBytes estimates the memory of the ports and external addresses of s, which may be nil.
func (s *service) listBytes() int {
	if s == nil {
		return 0
	}
	return len(s.ports) + (len(s.external4)/4+len(s.external6)/16)*externalOverhead
}

// serviceSlices are the slices of a service of any kind.
type serviceSlices struct {
	slices   []*slice // by name, without those that are withheld
	withheld int      // the number of slices that are
	used     *serviceUse
}

// serviceUse says when the slices of the Service with a key were used. It stays as long as the key is in the index.
type serviceUse struct {
	key  string
	tick atomic.Uint32 // the last one in which a query needed them
}

// trafficDistribution is a Service's preference for near endpoints.
type trafficDistribution uint8

const (
	noPreference trafficDistribution = iota
	preferSameZone
	preferSameNode
)

// addrSet is packed addresses of both families.
type addrSet struct{ v4, v6 string }

// each yields the addresses.
func (a addrSet) each(yield func(string) bool) {
	for list := a.v4; list != ""; list = list[4:] {
		if !yield(list[:4]) {
			return
		}
	}
	for list := a.v6; list != ""; list = list[16:] {
		if !yield(list[:16]) {
			return
		}
	}
}

// same reports whether s and t, apart from their slices, give the same answers.
func (s *service) same(t *service) bool {
	if s.kind != t.kind || s.ports != t.ports || s.target != t.target {
		return false
	}
	if s.selects != t.selects || s.distribution != t.distribution || s.external4 != t.external4 || s.external6 != t.external6 {
		return false
	}
	return s.kind == headless || s.v4 == t.v4 && s.v6 == t.v6
}

// appendLabel appends name as one label in lower case. ok is false if name is not a label
// of letters, digits, dashes and underscores (RFC 1035, section 2.3.4).
func appendLabel(b []byte, name string) (out []byte, ok bool) {
	if name == "" || len(name) > wire.MaxLabel {
		return b, false
	}
	b = append(b, byte(len(name)))
	for i := range len(name) {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return b, false
		}
		b = append(b, c)
	}
	return b, true
}

// serviceKey returns a service's name and namespace as two labels in wire form: the bytes
// of a qname between the endpoint's labels and "svc".
func serviceKey(name, namespace string) (string, bool) {
	var buf [2 * (1 + wire.MaxLabel)]byte
	b, ok := appendLabel(buf[:0], name)
	if !ok {
		return "", false
	}
	if b, ok = appendLabel(b, namespace); !ok {
		return "", false
	}
	return string(b), true
}

// namespaceOf returns the namespace's label in a service's key.
func namespaceOf(key string) string { return key[1+key[0]:] }

// packAddr returns a's RDATA.
func packAddr(a netip.Addr) string { return string(a.AsSlice()) }

// unpackAddr is the inverse of packAddr.
func unpackAddr(s string) netip.Addr {
	if len(s) == 4 {
		return netip.AddrFrom4([4]byte{s[0], s[1], s[2], s[3]})
	}
	var b [16]byte
	copy(b[:], s)
	return netip.AddrFrom16(b)
}

// unpackAddrs returns the addresses of a list, each once and in its order.
func unpackAddrs(list []string) (addrs []netip.Addr) {
	for _, s := range list {
		if a := unpackAddr(s); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// lowerLabel returns name as the text of a label in lower case, "" if it is not a label.
func lowerLabel(name string) string {
	var buf [1 + wire.MaxLabel]byte
	b, ok := appendLabel(buf[:0], name)
	if !ok {
		return ""
	}
	return string(b[1:])
}

// hasLabelledSlice reports whether a slice of s has the headless label.
func (s *service) hasLabelledSlice() bool {
	return slices.ContainsFunc(s.slices, func(sl *slice) bool { return sl.class == headlessSlice })
}

// each yields the packed addresses of the service's own name.
func (s *service) each(yield func(string) bool) { addrSet{s.v4, s.v6}.each(yield) }

// eachClusterIP yields the packed cluster IPs.
func (s *service) eachClusterIP(yield func(string) bool) {
	if s.kind == clusterIP {
		s.each(yield)
	}
}

// externallyReachable reports whether s has an address or a load balancer outside of the
// cluster.
func (s *service) externallyReachable() bool {
	return s.external4 != "" || s.external6 != "" || s.loadBalancerName() != ""
}

// loadBalancer returns the host name of the load balancer of s, "" if it has none.
func (s *service) loadBalancer() wire.Name {
	if s.kind == externalName {
		return ""
	}
	return s.target
}

// loadBalancerName returns the host name of the load balancer of s, "" if it has an address
// or no name.
func (s *service) loadBalancerName() wire.Name {
	if s.external4 != "" || s.external6 != "" {
		return ""
	}
	return s.loadBalancer()
}

// externalTargets returns how many targets the SRV records of each port of s have outside of the cluster.
func (s *service) externalTargets() int {
	n := len(s.external4)/4 + len(s.external6)/16
	if s.loadBalancer() != "" {
		n++
	}
	return n
}

// eachExternal yields the external addresses of s, packed.
func (s *service) eachExternal(yield func(string) bool) {
	addrSet{s.external4, s.external6}.each(yield)
}

// hasPort reports whether a port that pm selects has a record below s.
func (s *service) hasPort(pm portMatch, b *Budget) bool {
	if s.kind == clusterIP {
		return b.spend(s.ports.steps()) && s.ports.has(pm)
	}
	for _, sl := range s.slices {
		if !b.spend(sl.ports.steps()) {
			return false
		}
		if sl.addrs != "" && sl.ports.has(pm) {
			return s.kind == headless
		}
	}
	return false
}

// hasNamed is hasPort for any named port of proto.
func (s *service) hasNamed(proto byte, b *Budget) bool {
	if s.kind == clusterIP {
		return b.spend(s.ports.steps()) && s.ports.hasNamed(proto)
	}
	for _, sl := range s.slices {
		if !b.spend(sl.ports.steps()) {
			return false
		}
		if sl.addrs != "" && sl.ports.hasNamed(proto) {
			return s.kind == headless
		}
	}
	return false
}

// hasEndpoint reports whether h selects an endpoint of s.
func (s *service) hasEndpoint(h *hostnameMatch, b *Budget) bool {
	for _, sl := range s.slices {
		if !b.spend(h.cost(sl)) {
			return false
		}
		if h.nextEndpoint(sl, 0) < sl.len() {
			return true
		}
	}
	return false
}

// hasEndpoints reports whether s, which may be nil, is a service whose endpoints have
// names.
func (s *service) hasEndpoints() bool {
	return s != nil && (s.kind == clusterIP || s.kind == headless)
}

// findZone returns the zone of that name if s has an endpoint there.
func (s *service) findZone(zone []byte, b *Budget) (z zoneName, ok bool) {
	var none zoneName
	for _, sl := range s.slices {
		if !b.spend(sliceSteps + len(sl.zones)) {
			return none, false
		}
		for _, z := range sl.zones {
			if z != none && z.Value() == string(zone) {
				return z, true
			}
		}
	}
	return none, false
}

// addClusterIPs adds cluster IPs, each once. "" is not allocated yet.
func (s *service) addClusterIPs(ips []string, f *faults) {
	var v4 [4]byte // most Services have one IPv4 address
	b := addrBuilder{v4: v4[:0]}
	for _, ip := range atMost(ips, maxServiceAddrs, "cluster IPs", f) {
		if ip != "" && !b.add(ip) {
			f.add("cluster IP %q is not an IP address", ip)
		}
	}
	s.v4, s.v6 = string(b.v4), string(b.v6)
}

// addExternalAddrs adds the external IPs of svc and the addresses of its load balancer. If
// the load balancer has host names, the first one counts: a name has one CNAME.
func (s *service) addExternalAddrs(svc *corev1.Service, f *faults) {
	var b addrBuilder
	for _, ip := range atMost(svc.Spec.ExternalIPs, maxServiceAddrs, "external IPs", f) {
		if !b.add(ip) {
			f.add("external IP %q is not an IP address", ip)
		}
	}
	ingress := atMost(svc.Status.LoadBalancer.Ingress, maxServiceAddrs, "addresses of the load balancer", f)
	for i := range ingress {
		in := &ingress[i]
		switch {
		case in.IP != "":
			if !b.add(in.IP) {
				f.add("load balancer's IP %q is not an IP address", in.IP)
			}
		case in.Hostname != "" && s.target == "":
			s.target = parseExternalName(in.Hostname, f)
		}
	}
	s.external4, s.external6 = string(b.v4), string(b.v6)
}

// addrBuilder packs addresses in their order, each once. The zero value is ready.
type addrBuilder struct {
	v4, v6 []byte
	seen   map[string]struct{} // nil while there are few
}

// maxComparedAddrs is the number of addresses up to which duplicates are found by comparing.
const maxComparedAddrs = 16

// add adds an address unless it is a duplicate. It returns false if text is not an IP address.
func (b *addrBuilder) add(text string) bool {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return false
	}
	packed := a.Unmap().AsSlice()
	switch {
	case !b.isNew(packed):
	case len(packed) == 4:
		b.v4 = append(b.v4, packed...)
	default:
		b.v6 = append(b.v6, packed...)
	}
	return true
}

// isNew reports whether packed, which is about to be added, is not there yet.
func (b *addrBuilder) isNew(packed []byte) bool {
	if len(b.v4)/4+len(b.v6)/16 < maxComparedAddrs {
		list := b.v4
		if len(packed) == 16 {
			list = b.v6
		}
		for ; len(list) > 0; list = list[len(packed):] {
			if bytes.Equal(list[:len(packed)], packed) {
				return false
			}
		}
		return true
	}
	if b.seen == nil {
		b.seen = make(map[string]struct{})
		for addr := range (addrSet{string(b.v4), string(b.v6)}).each {
			b.seen[addr] = struct{}{}
		}
	}
	_, dup := b.seen[string(packed)]
	b.seen[string(packed)] = struct{}{}
	return !dup
}

// countPorts returns the number of ports of each name of s.
func (s *service) countPorts() map[portKey]int {
	counts := make(map[portKey]int)
	for p := s.ports; p != ""; {
		name, proto, _, rest := p.next()
		p = rest
		counts[portKey{}]++
		if name != "" {
			counts[portKey{name, proto}]++
		}
	}
	return counts
}
