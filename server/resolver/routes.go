package resolver

import (
	"iter"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// Routes is what one listening address serves: its zones. It is not changed
// once it is served; a reload makes a new one.
type Routes struct {
	// StartWaiting makes every client's query begin as one that may wait, on a worker. Only
	// tests set it, before the routes are served, to see that it makes no difference.
	StartWaiting bool

	zones map[wire.Name]*Zone // the first of each name
	all   []*Zone
	depth int // labels of the longest zone
	// classes says that a zone has rules for queries of other classes than IN.
	classes bool
	// views says that some zones are only for some clients: what others take is then
	// decided by who asks, too.
	views bool
	// dropped is where queries that no zone takes are counted.
	dropped *Zone
}

// NewRoutes makes the routes of zones, which are of no other routes. Of zones of one
// name the first takes a query whose view takes it. Queries that no zone takes are
// counted in dropped.
func NewRoutes(zones []*Zone, dropped *Stats) *Routes {
	rt := &Routes{zones: make(map[wire.Name]*Zone, len(zones)), all: zones, dropped: &Zone{Stats: dropped}}
	for _, z := range slices.Backward(zones) {
		z.next = rt.zones[z.Name]
		rt.zones[z.Name] = z
		rt.depth = max(rt.depth, z.Name.Labels())
		rt.views = rt.views || z.View != nil
		rt.classes = rt.classes || z.Rewrite.RewritesClass()
	}
	if slices.ContainsFunc(zones, func(z *Zone) bool { return z.ACL != nil }) {
		for _, z := range zones {
			z.lists = rt
		}
	}
	return rt
}

// Zones gives every zone, in the order in which they were given.
func (rt *Routes) Zones() iter.Seq[*Zone] { return slices.Values(rt.all) }

// Dropped are the counters of queries that no zone takes.
func (rt *Routes) Dropped() *Stats { return rt.dropped.Stats }

// zoneFor is the zone that answers r; nil if there is none, and then why.
func (rt *Routes) zoneFor(r *Request) (*Zone, wire.Rcode) {
	if r.Query.Class != wire.ClassIN && !rt.classes {
		return nil, wire.Refused
	}
	if r.Query.EDNS && r.Query.Version != 0 {
		return nil, wire.BadVers
	}
	return rt.match(r), wire.Refused
}

// upstreams is the first pool that takes q's name, nil if there is none.
func (z *Zone) upstreams(q *wire.Query) *upstream.Pool {
	for _, p := range z.Forward {
		if p.Covers(q.Name()) {
			return p
		}
	}
	return nil
}

// zone is the zone called name that takes r, nil if there is none.
func (rt *Routes) zone(name []byte, r *Request) *Zone {
	z := rt.zones[wire.Name(name)]
	if z != nil && z.View != nil {
		return z.firstMatching(r)
	}
	return z
}

// match finds the longest zone the qname is in, of those whose view takes r. A DS
// record lives in the zone above the name it is about (RFC 4035, 3.1.4.1), so for it
// the shortest zone wins, but never the root in place of one that matches.
func (rt *Routes) match(r *Request) *Zone {
	name := r.Query.Name()
	for range r.Query.Labels() - rt.depth {
		name = name[1+name[0]:] // longer than any zone
	}
	return rt.longest(name, r.Query.Type, r)
}

// longest is match for the last labels of a name and a type of its own.
func (rt *Routes) longest(name []byte, qtype uint16, r *Request) (found *Zone) {
	for ; len(name) > 1; name = name[1+name[0]:] {
		if z := rt.zone(name, r); z != nil {
			if qtype != wire.TypeDS {
				return z
			}
			found = z
		}
	}
	if found != nil {
		return found
	}
	return rt.zone(name, r)
}
