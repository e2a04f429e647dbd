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

// place is where an endpoint is, seen from this node, and whom it is meant for. Zero
// is far away and meant for nobody in particular. The greater of two is the nearer.
type place uint8

const (
	// onNode and inZone are where it is. What is on this node is in its zone, if the
	// zone is known.
	onNode place = 1 << (7 - iota)
	inZone
	// forNode and forZone say that its hints name this node, and this node's zone.
	forNode
	forZone
	// nodeHints and zoneHints say that it has any such hints.
	nodeHints
	zoneHints
)

// rank is one of the sets that an answer is ordered by, the nearest last. Zero is of
// what isn't there.
type rank uint8

const (
	farther rank = 1 + iota
	zoneRank
	nodeRank
)

func (p place) rank() rank {
	switch {
	case p&onNode != 0:
		return nodeRank
	case p&inZone != 0:
		return zoneRank
	}
	return farther
}

// packer is what the records of an EndpointSlice depend on beside the object. The
// zero value tells no endpoint from another.
type packer struct {
	podNames bool // an endpoint without a hostname goes by the name of its pod
	zonal    bool // zones of endpoints have names
	near     bool // endpoints of this node and its zone are told from others
	hints    bool // so are those that are meant for this node or its zone
	// node and zone are where the agent is; "" is unknown, and then nothing is there.
	node, zone string
}

func newPacker(cfg *config.Kubernetes, opts Options) packer {
	return packer{
		podNames: cfg.EndpointPodNames,
		zonal:    cfg.Zonal,
		near:     cfg.Topology != config.TopologyOff,
		hints:    cfg.Topology == config.TopologyHints,
		node:     opts.Node,
		zone:     opts.Zone,
	}
}

// placeOf is the place of ep.
func (p *packer) placeOf(ep *discoveryv1.Endpoint) (at place) {
	if !p.near {
		return 0
	}
	onHere := p.node != "" && deref(ep.NodeName) == p.node
	if onHere {
		at |= onNode
	}
	if p.zone != "" && (onHere || deref(ep.Zone) == p.zone) {
		at |= inZone
	}
	if p.hints && ep.Hints != nil {
		at |= p.hintsOf(ep.Hints)
	}
	return at
}

// hintsOf says whom h names. Without a node or a zone of its own the agent can't
// tell, so that the hints count as none.
func (p *packer) hintsOf(h *discoveryv1.EndpointHints) (at place) {
	if p.node != "" && len(h.ForNodes) > 0 {
		at |= nodeHints
		if slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == p.node }) {
			at |= forNode
		}
	}
	if p.zone != "" && len(h.ForZones) > 0 {
		at |= zoneHints
		if slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == p.zone }) {
			at |= forZone
		}
	}
	return at
}

// nearestOf is what svc's trafficDistribution asks for. Values that came later than
// this program ask for nothing.
func nearestOf(svc *corev1.Service) nearest {
	switch deref(svc.Spec.TrafficDistribution) {
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return sameZone
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return sameNode
	}
	return anywhere
}

// place is where endpoint i is.
func (s *slice) place(i int) place {
	if s.near == "" {
		return 0
	}
	return place(s.near[i])
}

// places is what the places of all endpoints have in common, and what any has.
func (s *slice) places() (all, some place) {
	if s.near == "" {
		return 0, 0
	}
	all = ^place(0)
	for i := range len(s.near) {
		all &= place(s.near[i])
		some |= place(s.near[i])
	}
	return all, some
}

// wanted is the place that endpoints must have to be given under the bare name, if
// all of them have the bits of all, and some those of some; 0 is any. What the
// Service itself asks for goes before the hints. Hints count as they do for
// kube-proxy: only if every endpoint has some, since otherwise the slices are in
// between two states, and if any is for here.
func (s *service) wanted(all, some place) place {
	has := func(p place) bool { return some&p != 0 }
	switch {
	case s.nearest == sameNode && has(onNode):
		return onNode
	case s.nearest != anywhere && has(inZone):
		return inZone
	case s.nearest != anywhere:
		return 0
	case all&nodeHints != 0 && has(forNode):
		return forNode
	case all&zoneHints != 0 && has(forZone):
		return forZone
	}
	return 0
}

// union is what the bare name of a headless service gives: the addresses of the
// given size in its slices, each once and the nearest first, and where the next
// distance begins. With narrow it is the nearest of them only, where the service asks
// for that; any is better than none.
func (s *service) union(size int, narrow bool) (string, places) {
	u := s.collect(size)
	if u.total == 0 {
		return "", places{}
	}
	if narrow {
		u.want = s.wanted(u.all, u.some)
	}
	single := len(u.list) == 1 && !u.list[0].repeats()
	if single && u.alike() {
		var cut places
		cut.note(u.some.rank(), u.total)
		return u.list[0].addrs, cut // share its bytes
	}
	u.out = make([]byte, 0, u.total*size)
	if !single {
		u.seen = make(map[string]struct{}, u.total)
	}
	var cut places
	for _, r := range [...]rank{nodeRank, zoneRank, farther} {
		before := len(u.out)
		for _, sl := range u.list {
			u.add(sl, r)
		}
		cut.note(r, (len(u.out)-before)/size)
	}
	return string(u.out), cut
}

// union collects addresses of one size, each once.
type union struct {
	size      int
	list      []*slice // what they come from
	total     int      // endpoints
	all, some place    // what the places of all have in common, and what any has
	want      place    // every address has these bits
	out       []byte
	seen      map[string]struct{} // nil if none can come twice
}

func (s *service) collect(size int) union {
	u := union{size: size, list: make([]*slice, 0, len(s.slices)), all: ^place(0)}
	for _, sl := range s.slices {
		if sl.size == size && sl.addrs != "" {
			all, some := sl.places()
			u.all, u.some, u.total = u.all&all, u.some|some, u.total+sl.len()
			u.list = append(u.list, sl)
		}
	}
	return u
}

// alike reports whether all are wanted and as far away as each other.
func (u *union) alike() bool {
	return u.all&u.want == u.want && (u.all^u.some)&(onNode|inZone) == 0
}

// note counts n addresses of the rank r. More than fit into two bytes are more than
// any answer has room for.
func (p *places) note(r rank, n int) {
	sum := func(have uint16) uint16 { return uint16(min(int(have)+n, 1<<16-1)) }
	if r == nodeRank {
		p.zone = sum(p.zone)
	}
	if r != farther {
		p.rest = sum(p.rest)
	}
}

// add appends the addresses of s that are of the rank r.
func (u *union) add(s *slice, r rank) {
	for i := range s.len() {
		p := s.place(i)
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
	if o == nil || !isAddress(q.Type) {
		return false
	}
	var b Budget
	b.Refill()
	m := z.find(q.Name(), o, &b)
	if b.spent() || m.node != named || m.svc.kind != headless {
		return false
	}
	list, cut := m.svc.addrs(q.Type, &b)
	n := len(list) / addrSize(q.Type)
	return !b.spent() && n <= wire.MaxAddrs && cut.alike(n)
}

// alike reports whether n addresses are all as far away as each other.
func (p places) alike(n int) bool {
	zone, rest := int(p.zone), int(p.rest)
	return rest == 0 || zone == n || zone == 0 && rest == n
}

// topozone is a topology zone as labels in wire form, so that it is what stands in a
// qname. A value is kept once, however many endpoints are in the zone. The zero value
// is none.
type topozone = unique.Handle[string]

// zoneOf is the topology zone of ep. Names have no case, and so have zones here.
func zoneOf(ep *discoveryv1.Endpoint, f *faults) (none topozone) {
	zone := deref(ep.Zone)
	if zone == "" {
		return none
	}
	var b []byte
	for part := range strings.SplitSeq(zone, ".") {
		var ok bool
		if b, ok = label(b, part); !ok {
			f.add("topology zone %q can't be a part of a domain name", zone)
			return none
		}
	}
	return unique.Make(string(b))
}
