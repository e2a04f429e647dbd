package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// locality is where an endpoint is, seen from this node, and which nodes or zones its hints
// name. Zero is elsewhere, without hints. The greater of two is the nearer.
type locality uint8

const (
	// sameNode and sameZone are where it is. An endpoint on this node is in its zone, if the
	// zone is known.
	sameNode locality = 1 << (7 - iota)
	sameZone
	// hintsNode and hintsZone say that its hints name this node, or this node's zone.
	hintsNode
	hintsZone
	// hasNodeHints and hasZoneHints say that it has such hints at all.
	hasNodeHints
	hasZoneHints
)

// rank is one of the groups that an answer is ordered by, the nearest last. Zero is no
// endpoint.
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

// converter is what the record of an EndpointSlice depends on besides the object. The zero
// value ignores locations.
type converter struct {
	podNames   bool // an endpoint without a hostname has the name of its pod
	zonal      bool // endpoints have names by topology zone
	localities bool // tell apart endpoints of this node and its zone
	hints      bool // read topology hints
	// node and zone are where the agent is; "" is unknown and matches nothing.
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

// fingerprint identifies p in saved views. Its text is part of the file format.
func (p *converter) fingerprint() string {
	return fmt.Sprintf("{podNames:%t zonal:%t near:%t hints:%t node:%s zone:%s}", p.podNames, p.zonal, p.localities, p.hints, p.node, p.zone)
}

// localityOf returns the locality of ep.
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

// hintsOf returns what h says about this node and zone. Hints count as none if these are
// unknown.
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

// trafficDistributionOf returns svc's trafficDistribution. Unknown values are no
// preference.
func trafficDistributionOf(svc *corev1.Service) trafficDistribution {
	switch deref(svc.Spec.TrafficDistribution) {
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return preferSameZone
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return preferSameNode
	}
	return noPreference
}

// zoneName is a topology zone as labels in wire form, as in a qname. A name is in memory
// once, however many endpoints are in the zone. The zero value is none.
type zoneName = unique.Handle[string]

// endpointZone returns the topology zone of ep, in lower case.
func endpointZone(ep *discoveryv1.Endpoint, f *faults) (none zoneName) {
	zone := deref(ep.Zone)
	if zone == "" {
		return none
	}
	if len(zone) > wire.MaxName {
		f.add("topology zone %q is not part of a domain name", zone)
		return none
	}
	var b []byte
	for part := range strings.SplitSeq(zone, ".") {
		var ok bool
		if b, ok = appendLabel(b, part); !ok {
			f.add("topology zone %q is not part of a domain name", zone)
			return none
		}
	}
	return unique.Make(string(b))
}

// maxEagerEndpoints is the number of endpoints up to which addresses are merged when a
// slice changes, which takes 10 µs.
const maxEagerEndpoints = 200

// lazyAddrs are the merged addresses of a large headless service. The first answer that
// needs them merges them, not the change of a slice: that would hold the view's lock for as
// long as there are endpoints.
type lazyAddrs struct {
	nearestOnly      bool
	endpoints        int
	once             sync.Once
	built            atomic.Bool
	v4, v6           string
	bounds4, bounds6 localityBounds
}

// updateHeadlessAddrs sets the addresses of a headless service's name. old is the service
// that s replaces, nil if none: if the slices are the same, its addresses are reused.
func (s *service) updateHeadlessAddrs(old *service, narrow bool) {
	if old != nil && old.kind == headless && old.lazy != nil && old.distribution == s.distribution && sameBacking(old.slices, s.slices) {
		s.lazy = old.lazy
		return
	}
	total, lists := 0, 0
	for _, sl := range s.slices {
		if sl.addrs != "" {
			total, lists = total+sl.len(), lists+1
		}
	}
	s.lazy = nil
	if lists > 1 && total > maxEagerEndpoints {
		s.v4, s.v6, s.bounds4, s.bounds6 = "", "", localityBounds{}, localityBounds{}
		s.lazy = &lazyAddrs{nearestOnly: narrow, endpoints: total}
		return
	}
	s.v4, s.bounds4 = s.headlessAddrs(4, narrow)
	s.v6, s.bounds6 = s.headlessAddrs(16, narrow)
}

// sameBacking reports whether a and b are the same slice in memory.
func sameBacking(a, b []*slice) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// addrs returns the packed RDATA of the addresses of qtype, and where the next distance
// begins in it. It returns nothing if b is exhausted.
func (s *service) addrs(qtype uint16, b *Budget) (packed string, cut localityBounds) {
	switch all := s.lazy; {
	case all == nil && qtype == wire.TypeA:
		return s.v4, s.bounds4
	case all == nil:
		return s.v6, s.bounds6
	case !all.built.Load() && !b.spend(dedupSteps*all.endpoints):
		return "", localityBounds{}
	default:
		all.once.Do(func() {
			all.v4, all.bounds4 = s.headlessAddrs(4, all.nearestOnly)
			all.v6, all.bounds6 = s.headlessAddrs(16, all.nearestOnly)
			all.built.Store(true)
		})
		if qtype == wire.TypeA {
			return all.v4, all.bounds4
		}
		return all.v6, all.bounds6
	}
}

// requiredLocality returns the bits that the endpoints given for the service's name must
// have, 0 if any endpoint will do. all and some are the bits that all, and any, of them
// have. The Service's trafficDistribution takes precedence over hints. As in kube-proxy,
// hints only count if every endpoint has some, since otherwise the slices are in
// transition, and if any names this node or zone.
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

// headlessAddrs returns the addresses of that size of a headless service's name, each once
// and the nearest first, and where the distances begin. nearestOnly limits them to the
// nearest ones, if the service or its hints ask for that and there are any.
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
		return u.list[0].addrs, cut // shared
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

// addrMerge merges the addresses of several slices.
type addrMerge struct {
	size      int
	list      []*slice // the slices
	total     int      // endpoints
	all, some locality // bits that all have, and that any has
	want      locality // bits that an address must have
	out       []byte
	seen      map[string]struct{} // nil if there can be no duplicates
}

// uniform reports whether all endpoints are wanted and equally far.
func (u *addrMerge) uniform() bool {
	return u.all&u.want == u.want && (u.all^u.some)&(sameNode|sameZone) == 0
}

// appendRank appends the addresses of s that have rank r.
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

// localityBounds divide a list of addresses that is ordered by distance: addresses before
// zoneStart are on the same node, those before otherStart in the same zone.
type localityBounds struct{ zoneStart, otherStart uint16 }

// addCount adds n addresses of rank r. The counters saturate: no answer has room for so
// many.
func (p *localityBounds) addCount(r rank, n int) {
	sum := func(have uint16) uint16 { return uint16(min(int(have)+n, 1<<16-1)) }
	if r == nodeRank {
		p.zoneStart = sum(p.zoneStart)
	}
	if r != otherRank {
		p.otherStart = sum(p.otherStart)
	}
}

// uniform reports whether n addresses are equally far.
func (p localityBounds) uniform(n int) bool {
	zone, rest := int(p.zoneStart), int(p.otherStart)
	return rest == 0 || zone == n || zone == 0 && rest == n
}
