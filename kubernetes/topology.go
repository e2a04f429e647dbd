package kubernetes

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// locality is where an endpoint is, seen from this node, and whom it is meant for. Zero
// is far away and meant for nobody in particular. The greater of two is the nearer.
type locality uint8

const (
	// sameNode and inZone are where it is. What is on this node is in its zone, if the
	// zone is known.
	sameNode locality = 1 << (7 - iota)
	sameZone
	// hintsNode and forZone say that its hints name this node, and this node's zone.
	hintsNode
	hintsZone
	// hasNodeHints and zoneHints say that it has any such hints.
	hasNodeHints
	hasZoneHints
)

// rank is one of the sets that an answer is ordered by, the nearest last. Zero is of
// what isn't there.
type rank uint8

const (
	otherRank rank = 1 + iota
	zoneRank
	nodeRank
)

func (p locality) rank() rank {
	switch {
	case p&sameNode != 0:
		return nodeRank
	case p&sameZone != 0:
		return zoneRank
	}
	return otherRank
}

// converter is what the records of an EndpointSlice depend on beside the object. The
// zero value tells no endpoint from another.
type converter struct {
	podNames   bool // an endpoint without a hostname goes by the name of its pod
	zonal      bool // zones of endpoints have names
	localities bool // endpoints of this node and its zone are told from others
	hints      bool // so are those that are meant for this node or its zone
	// node and zone are where the agent is; "" is unknown, and then nothing is there.
	node, zone string
}

func newConverter(cfg *config.Kubernetes, opts Options) converter {
	return converter{
		podNames:   cfg.EndpointPodNames,
		zonal:      cfg.Zonal,
		localities: cfg.Topology != config.TopologyOff,
		hints:      cfg.Topology == config.TopologyHints,
		node:       opts.Node,
		zone:       opts.Zone,
	}
}

// localityOf is the place of ep.
func (p *converter) localityOf(ep *discoveryv1.Endpoint) (at locality) {
	if !p.localities {
		return 0
	}
	onHere := p.node != "" && deref(ep.NodeName) == p.node
	if onHere {
		at |= sameNode
	}
	if p.zone != "" && (onHere || deref(ep.Zone) == p.zone) {
		at |= sameZone
	}
	if p.hints && ep.Hints != nil {
		at |= p.hintsOf(ep.Hints)
	}
	return at
}

// hintsOf says whom h names. Without a node or a zone of its own the agent can't
// tell, so that the hints count as none.
func (p *converter) hintsOf(h *discoveryv1.EndpointHints) (at locality) {
	if p.node != "" && len(h.ForNodes) > 0 {
		at |= hasNodeHints
		if slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == p.node }) {
			at |= hintsNode
		}
	}
	if p.zone != "" && len(h.ForZones) > 0 {
		at |= hasZoneHints
		if slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == p.zone }) {
			at |= hintsZone
		}
	}
	return at
}

// trafficDistributionOf is what svc's trafficDistribution asks for. Values that came later than
// this program ask for nothing.
func trafficDistributionOf(svc *corev1.Service) trafficDistribution {
	switch deref(svc.Spec.TrafficDistribution) {
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return preferSameZone
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return preferSameNode
	}
	return noPreference
}

// locality is where endpoint i is.
func (s *slice) locality(i int) locality {
	if s.localities == "" {
		return 0
	}
	return locality(s.localities[i])
}

// localityMasks is what the places of all endpoints have in common, and what any has.
func (s *slice) localityMasks() (all, some locality) {
	if s.localities == "" {
		return 0, 0
	}
	all = ^locality(0)
	for i := range len(s.localities) {
		all &= locality(s.localities[i])
		some |= locality(s.localities[i])
	}
	return all, some
}

// requiredLocality is the place that endpoints must have to be given under the bare name, if
// all of them have the bits of all, and some those of some; 0 is any. What the
// Service itself asks for goes before the hints. Hints count as they do for
// kube-proxy: only if every endpoint has some, since otherwise the slices are in
// between two states, and if any is for here.
func (s *service) requiredLocality(all, some locality) locality {
	has := func(p locality) bool { return some&p != 0 }
	switch {
	case s.distribution == preferSameNode && has(sameNode):
		return sameNode
	case s.distribution != noPreference && has(sameZone):
		return sameZone
	case s.distribution != noPreference:
		return 0
	case all&hasNodeHints != 0 && has(hintsNode):
		return hintsNode
	case all&hasZoneHints != 0 && has(hintsZone):
		return hintsZone
	}
	return 0
}

// headlessAddrs is what the bare name of a headless service gives: the addresses of the
// given size in its slices, each once and the nearest first, and where the next
// distance begins. With narrow it is the nearest of them only, where the service asks
// for that; any is better than none.
func (s *service) headlessAddrs(size int, narrow bool) (string, localityBounds) {
	u := s.newAddrMerge(size)
	if u.total == 0 {
		return "", localityBounds{}
	}
	if narrow {
		u.want = s.requiredLocality(u.all, u.some)
	}
	single := len(u.list) == 1 && !u.list[0].hasDuplicateAddrs()
	if single && u.uniform() {
		var cut localityBounds
		cut.addCount(u.some.rank(), u.total)
		return u.list[0].addrs, cut // share its bytes
	}
	u.out = make([]byte, 0, u.total*size)
	if !single {
		u.seen = make(map[string]struct{}, u.total)
	}
	var cut localityBounds
	for _, r := range [...]rank{nodeRank, zoneRank, otherRank} {
		before := len(u.out)
		for _, sl := range u.list {
			u.appendRank(sl, r)
		}
		cut.addCount(r, (len(u.out)-before)/size)
	}
	return string(u.out), cut
}

// addrMerge collects addresses of one size, each once.
type addrMerge struct {
	size      int
	list      []*slice // what they come from
	total     int      // endpoints
	all, some locality // what the places of all have in common, and what any has
	want      locality // every address has these bits
	out       []byte
	seen      map[string]struct{} // nil if none can come twice
}

func (s *service) newAddrMerge(size int) addrMerge {
	u := addrMerge{size: size, list: make([]*slice, 0, len(s.slices)), all: ^locality(0)}
	for _, sl := range s.slices {
		if sl.size == size && sl.addrs != "" {
			all, some := sl.localityMasks()
			u.all, u.some, u.total = u.all&all, u.some|some, u.total+sl.len()
			u.list = append(u.list, sl)
		}
	}
	return u
}

// uniform reports whether all are wanted and as far away as each other.
func (u *addrMerge) uniform() bool {
	return u.all&u.want == u.want && (u.all^u.some)&(sameNode|sameZone) == 0
}

// addCount counts n addresses of the rank r. More than fit into two bytes are more than
// any answer has room for.
func (p *localityBounds) addCount(r rank, n int) {
	sum := func(have uint16) uint16 { return uint16(min(int(have)+n, 1<<16-1)) }
	if r == nodeRank {
		p.zoneStart = sum(p.zoneStart)
	}
	if r != otherRank {
		p.otherStart = sum(p.otherStart)
	}
}

// appendRank appends the addresses of s that are of the rank r.
func (u *addrMerge) appendRank(s *slice, r rank) {
	for i := range s.len() {
		p := s.locality(i)
		if p.rank() != r || p&u.want != u.want {
			continue
		}
		addr := s.addr(i)
		if u.seen != nil {
			if _, dup := u.seen[addr]; dup {
				continue
			}
			u.seen[addr] = struct{}{}
		}
		u.out = append(u.out, addr...)
	}
}

// Ordered reports whether the answers of endpoints come in an order that means
// something: the nearest first, and at random where that makes no difference. Who
// shuffles answers leaves them alone.
func (z *Zone) Ordered() bool { return z.ordered }

// Rotatable reports whether the addresses of the answer that [Zone.Answer] has just given to q,
// which are several, come in an order of chance alone: a copy may give them in another one.
// It is false where it is not certain.
func (z *Zone) Rotatable(q *wire.Query) bool {
	o := z.origin(q.Name())
	if o == nil || !isAddressType(q.Type) {
		return false
	}
	var b Budget
	b.Refill()
	m := z.lookup(q.Name(), o, &b)
	if b.exhausted() || m.node != serviceName || m.svc.kind != headless {
		return false
	}
	list, cut := m.svc.addrs(q.Type, &b)
	n := len(list) / addrSize(q.Type)
	return !b.exhausted() && n <= wire.MaxAddrs && cut.uniform(n)
}

// uniform reports whether n addresses are all as far away as each other.
func (p localityBounds) uniform(n int) bool {
	zone, rest := int(p.zoneStart), int(p.otherStart)
	return rest == 0 || zone == n || zone == 0 && rest == n
}

// zoneName is a topology zone as labels in wire form, so that it is what stands in a
// qname. A value is kept once, however many endpoints are in the zone. The zero value
// is none.
type zoneName = unique.Handle[string]

// endpointZone is the topology zone of ep. Names have no case, and so have zones here.
func endpointZone(ep *discoveryv1.Endpoint, f *faults) (none zoneName) {
	zone := deref(ep.Zone)
	if zone == "" {
		return none
	}
	var b []byte
	for part := range strings.SplitSeq(zone, ".") {
		var ok bool
		if b, ok = appendLabel(b, part); !ok {
			f.add("topology zone %q can't be a part of a domain name", zone)
			return none
		}
	}
	return unique.Make(string(b))
}
