package kubernetes

import (
	"net/netip"
	"slices"
	"strings"

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
	slices []*slice // by name; of every kind of service
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

// trafficDistribution is a Service's preference for near endpoints.
type trafficDistribution uint8

const (
	noPreference trafficDistribution = iota
	preferSameZone
	preferSameNode
)

// localityBounds divide a list of addresses that is ordered by distance: addresses before
// zoneStart are on the same node, those before otherStart in the same zone.
type localityBounds struct{ zoneStart, otherStart uint16 }

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

// slice holds the ready endpoints of one EndpointSlice. It is immutable.
type slice struct {
	name string // namespace/name of the object
	key  string // of the service it belongs to
	// cluster is the label, in wire form, of the cluster that a ServiceImport's endpoints are
	// in; "" is none.
	cluster string
	size    int    // of an address: 4 or 16
	addrs   string // packed RDATA in ascending order; an address with two hostnames occurs twice
	// hosts are the endpoints' hostnames in lower case, "" for the dashed address; nil if all
	// are "".
	hosts []string
	ports portList
	// localities has the [locality] of each endpoint as a byte; "" if all are zero.
	localities string
	// zones are the topology zones of the endpoints, if zonal names are enabled; nil if none
	// is known.
	zones []zoneName
	// version is the object's resourceVersion, 0 if it has none.
	version uint64
	// labelled says that the object has the label of headless services' slices.
	labelled bool
	byHost   *hostnameIndex // nil if there are few hosts
}

// len returns the number of endpoints.
func (s *slice) len() int { return len(s.addrs) / s.size }

// addr returns the packed address of endpoint i.
func (s *slice) addr(i int) string { return s.addrs[i*s.size : (i+1)*s.size] }

// each yields each address once.
func (s *slice) each(yield func(string) bool) {
	last := ""
	for i := range s.len() {
		addr := s.addr(i)
		if addr != last && !yield(addr) {
			return
		}
		last = addr
	}
}

// compare orders the slices of an address by service and name.
func (s *slice) compare(t *slice) int {
	if c := strings.Compare(s.key, t.key); c != 0 {
		return c
	}
	return strings.Compare(s.name, t.name)
}

// host returns the hostname of endpoint i, "" for the dashed address.
func (s *slice) host(i int) string {
	if s.hosts == nil {
		return ""
	}
	return s.hosts[i]
}

// searchAddr returns the first endpoint whose address is not less than addr.
func (s *slice) searchAddr(addr string) int {
	lo, hi := 0, s.len()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.addr(mid) < addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// hasDuplicateAddrs reports whether an address occurs twice, with two hostnames.
func (s *slice) hasDuplicateAddrs() bool {
	if s.byHost != nil {
		return s.byHost.duplicateAddrs
	}
	for i := 1; s.hosts != nil && i < s.len(); i++ {
		if s.addr(i) == s.addr(i-1) {
			return true
		}
	}
	return false
}

func (s *slice) same(t *slice) bool {
	return s.key == t.key && s.cluster == t.cluster && s.addrs == t.addrs && s.ports == t.ports && s.localities == t.localities &&
		s.labelled == t.labelled && slices.Equal(s.hosts, t.hosts) && slices.Equal(s.zones, t.zones)
}

// pod is what DNS knows of a Pod. It is immutable.
type pod struct {
	name string // namespace/name of the object
	ns   string // the namespace's label in wire form
	ips  []string
	// onNode says that the pod is on the agent's node, hostNetwork that it has the node's
	// addresses, terminating that it is about to lose its own.
	onNode, hostNetwork, terminating bool
	// named says that the pod may have a name (`labels`). Other pods count, too: they may
	// have been given the address.
	named bool
	// label is ns as bytes, for queries.
	label []byte
}

// compare orders the pods of an address by namespace and name.
func (p *pod) compare(q *pod) int {
	if c := strings.Compare(p.ns, q.ns); c != 0 {
		return c
	}
	return strings.Compare(p.name, q.name)
}

// awaitsAddr reports whether p will get an address that is not known yet.
func (p *pod) awaitsAddr() bool {
	return p.onNode && len(p.ips) == 0 && !p.hostNetwork && !p.terminating
}

func (p *pod) same(q *pod) bool {
	return p.ns == q.ns && p.onNode == q.onNode && p.hostNetwork == q.hostNetwork && p.terminating == q.terminating && p.named == q.named && slices.Equal(p.ips, q.ips)
}

// Protocols a port can have, as they stand in [portList]. Zero is none of them.
const (
	tcp byte = 1 + iota
	udp
	sctp
)

// parseProtocol returns the protocol of that name in lower case, 0 if it is unknown.
func parseProtocol(name []byte) byte {
	switch string(name) {
	case "tcp":
		return tcp
	case "udp":
		return udp
	case "sctp":
		return sctp
	}
	return 0
}

// portList is a list of ports in one string, which takes one allocation instead of one per
// name. Each port is its protocol, its number (two bytes, 0 is none), the length of its
// name, and the name in lower case.
type portList string

func (p portList) append(name string, proto byte, number uint16) portList {
	return p + portList([]byte{proto, byte(number >> 8), byte(number), byte(len(name))}) + portList(name)
}

// steps is the cost of reading p.
func (p portList) steps() int { return sliceSteps + len(p)/typicalPortBytes }

// typicalPortBytes is the usual size of a port in a portList.
const typicalPortBytes = 8

// next returns the first port and the rest. p must not be empty.
func (p portList) next() (name string, proto byte, number uint16, rest portList) {
	end := 4 + int(p[3])
	return string(p[4:end]), p[0], uint16(p[1])<<8 | uint16(p[2]), p[end:]
}

// portMatch selects ports by protocol (0 is any) and name ("" is any).
type portMatch struct {
	proto byte
	name  []byte
}

func (m portMatch) isAny() bool { return m.proto == 0 && len(m.name) == 0 }

func (m portMatch) matches(name string, proto byte) bool {
	return (m.proto == 0 || m.proto == proto) && (len(m.name) == 0 || string(m.name) == name)
}

// has reports whether m selects a port of p. If m selects any port, p may be empty.
func (p portList) has(m portMatch) bool {
	if m.isAny() {
		return true
	}
	for p != "" {
		name, proto, _, rest := p.next()
		if m.matches(name, proto) {
			return true
		}
		p = rest
	}
	return false
}

// hasNamed reports whether p has a named port of that protocol.
func (p portList) hasNamed(proto byte) bool {
	for p != "" {
		name, pr, _, rest := p.next()
		if name != "" && pr == proto {
			return true
		}
		p = rest
	}
	return false
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

// lowerLabel returns name as the text of a label in lower case, "" if it is not a label.
func lowerLabel(name string) string {
	var buf [1 + wire.MaxLabel]byte
	b, ok := appendLabel(buf[:0], name)
	if !ok {
		return ""
	}
	return string(b[1:])
}
