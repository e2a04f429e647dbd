package kubernetes

import (
	"fmt"
	"slices"
	"strings"
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
