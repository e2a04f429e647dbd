package kubernetes

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// serviceKind is what sort of Service a service is; it decides what its name answers.
type serviceKind uint8

const (
	orphan       serviceKind = iota // slices name it, the Service itself is not known
	clusterIP                       // answers its own addresses
	headless                        // answers its ready endpoints
	externalName                    // an alias
)

// service is everything DNS knows about one Service and its slices. It is
// immutable once it is in the index: a change publishes a new one, so that a
// query works on what it found without a lock.
type service struct {
	kind serviceKind
	// v4 and v6 are the addresses of the bare name as packed RDATA, without
	// duplicates: the cluster IPs, or the ready endpoints of a headless service, unless
	// bare has these.
	v4, v6 string
	ports  portList // of the Service
	// target is what an external service is an alias of; "" if no alias can be made of
	// it. Of other services it is the name of the load balancer, where that has one.
	target wire.Name
	slices []*slice // by name; of every kind of service
	// selects says that the Service has a selector, so that the slice controller
	// makes its slices.
	selects bool
	// distribution is how far the Service wants its clients to be served from.
	distribution trafficDistribution
	// bounds4 and far6 cut v4 and v6 of a headless service by distance; see [localityMasks].
	bounds4, bounds6 localityBounds
	// complete says that slices are all that there are; see [index.isComplete].
	complete bool
	ready    bool // some slice has a ready endpoint
	// external4 and external6 are the addresses that the Service is reached at from
	// outside of the cluster, packed as RDATA.
	external4, external6 string
	ns                   *namespace
	// lazy is the addresses of the bare name where they are made when they are asked for;
	// nil where v4 and v6 have them.
	lazy *lazyAddrs
}

// trafficDistribution is what a Service's trafficDistribution asks for.
type trafficDistribution uint8

const (
	noPreference trafficDistribution = iota
	preferSameZone
	preferSameNode
)

// localityBounds says where in a list of addresses that is ordered by distance the ones of
// the same zone and the rest begin, as numbers of addresses: those before zone are
// of the same node.
type localityBounds struct{ zoneStart, otherStart uint16 }

// addrSet are lists of packed addresses, of both families.
type addrSet struct{ v4, v6 string }

// each goes over the addresses.
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

// same reports whether DNS can't tell s from t, slices aside.
func (s *service) same(t *service) bool {
	if s.kind != t.kind || s.ports != t.ports || s.target != t.target {
		return false
	}
	if s.selects != t.selects || s.distribution != t.distribution || s.external4 != t.external4 || s.external6 != t.external6 {
		return false
	}
	return s.kind == headless || s.v4 == t.v4 && s.v6 == t.v6
}

// slice is the ready part of one EndpointSlice. It is immutable.
type slice struct {
	name string // namespace/name of the object
	key  string // of the service it belongs to
	// cluster is the label, in wire form, of the cluster that the endpoints of an import
	// are in; "" is none, or that it is no import's.
	cluster string
	size    int    // of an address: 4 or 16
	addrs   string // packed RDATA, ascending; an address with two hosts is there twice
	// hosts are the endpoints' labels in lower case, one per address, "" where
	// the label is the dashed address; nil if that is true of all.
	hosts []string
	ports portList
	// localities is one byte per address, the [locality] it has; "" is far for all.
	localities string
	// zones are the topology zones of the addresses as labels in wire form, one per
	// address, where zonal names are answered; nil if none is known.
	zones []zoneName
	// version is the object's resourceVersion, 0 if it has none.
	version uint64
	// labelled says that the object has the label of headless services' slices.
	labelled bool
	byHost   *hostnameIndex // nil if hosts are few
}

// len is the number of endpoints.
func (s *slice) len() int { return len(s.addrs) / s.size }

// addr is the packed address of endpoint i.
func (s *slice) addr(i int) string { return s.addrs[i*s.size : (i+1)*s.size] }

// each goes over the addresses, each once.
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

// compare is the order of slices at an address: those of a service stand together.
func (s *slice) compare(t *slice) int {
	if c := strings.Compare(s.key, t.key); c != 0 {
		return c
	}
	return strings.Compare(s.name, t.name)
}

// host is the label of endpoint i, "" for the dashed address.
func (s *slice) host(i int) string {
	if s.hosts == nil {
		return ""
	}
	return s.hosts[i]
}

// searchAddr is the first endpoint whose address is not less than addr.
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

// hasDuplicateAddrs reports whether an address is in s twice, under two hosts.
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

// pod is what DNS knows of a pod: where it is and whether it may be taken at its
// word. It is immutable.
type pod struct {
	name string // namespace/name of the object
	ns   string // the namespace's label in wire form
	ips  []string
	// onNode says that the pod is on the agent's node, host that it has that node's
	// own addresses, ending that it is about to lose those it has.
	onNode, hostNetwork, terminating bool
	// named says that it may have a name (`labels`). Pods that may not can have been
	// given another's address all the same.
	named bool
	// label is ns as queries need it.
	label []byte
}

// compare is the order of pods at an address: those of a namespace stand together.
func (p *pod) compare(q *pod) int {
	if c := strings.Compare(p.ns, q.ns); c != 0 {
		return c
	}
	return strings.Compare(p.name, q.name)
}

// awaitsAddr reports whether p will have an address of its own that is not known yet.
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

// parseProtocol reads a protocol's name in lower case; 0 is an unknown one.
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

// portList is a list of ports in one string, which costs a service one allocation
// instead of one per name: for each its protocol, its number (two bytes, 0 is
// none), the length of its name, and the name in lower case ("" is unnamed).
type portList string

func (p portList) append(name string, proto byte, number uint16) portList {
	return p + portList([]byte{proto, byte(number >> 8), byte(number), byte(len(name))}) + portList(name)
}

// steps is what it takes to get at p and go through it.
func (p portList) steps() int { return sliceSteps + len(p)/typicalPortBytes }

// typicalPortBytes is about what a port takes in [portList]: its name is mostly short.
const typicalPortBytes = 8

// next is the first port and what is behind it. p must not be empty.
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

// has reports whether p has a port that m selects. No ports at all pass where
// anything does.
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

// hasNamed reports whether p has a named port of proto.
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

// appendLabel appends name as one label in lower case; ok is false if it can't be one
// that a cluster's names are made of (RFC 1035, 2.3.4; dots would make it two).
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

// serviceKey is the name and the namespace of a service as two labels in wire
// form: the bytes between its endpoint labels and "svc" in a qname.
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

// namespaceOf is the namespace's label in a service's key.
func namespaceOf(key string) string { return key[1+key[0]:] }

// packAddr is a's RDATA.
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

// lowerLabel is name as a label's text, or "" if it can't be one.
func lowerLabel(name string) string {
	var buf [1 + wire.MaxLabel]byte
	b, ok := appendLabel(buf[:0], name)
	if !ok {
		return ""
	}
	return string(b[1:])
}
