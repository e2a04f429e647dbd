package zonefile

import (
	"iter"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Zone returns the current data of the zone with this name; nil if the table does not serve it, or its data
// could not be loaded yet. A later change makes another Zone, so the caller may read this one for as long as
// a transfer takes.
func (t *Table) Zone(origin wire.Name) *Zone {
	if z := (*t.zones.Load())[origin]; z != nil {
		return z.data.Load()
	}
	return nil
}

// Serves reports whether origin is the name of one of the table's zones, loaded or not.
func (t *Table) Serves(origin wire.Name) bool { return (*t.zones.Load())[origin] != nil }

// SOA returns the zone's SOA record. The caller must not change its bytes.
func (z *Zone) SOA() wire.RR {
	ttl, data := z.soa.first()
	return wire.RR{Owner: z.apex.name(), Type: wire.TypeSOA, TTL: ttl, Data: data}
}

// All iterates over the zone's records, the SOA record among them: names in canonical order (RFC 4034,
// 6.1), the records of a name by type. Records point into the zone: nothing is copied, and the caller must not change
// their bytes.
func (z *Zone) All() iter.Seq[wire.RR] {
	return func(yield func(wire.RR) bool) {
		for n := (node{z, 0}); n.at < len(z.data); n = n.following() {
			var s set
			for list := n.sets(); list.next(&s); {
				if !s.yield(n.name(), yield) {
					return
				}
			}
		}
	}
}

// yield passes the records of s to yield, and reports whether it wants more.
func (s set) yield(owner []byte, yield func(wire.RR) bool) bool {
	for {
		ttl, data, ok := s.next()
		if !ok {
			return true
		}
		if !yield(wire.RR{Owner: owner, Type: s.rtype, TTL: ttl, Data: data}) {
			return false
		}
	}
}

// following returns the node after n in the zone's data; its offset is the data's size after the last one.
func (n node) following() node {
	list, s := n.sets(), set{}
	for list.next(&s) {
	}
	return node{n.z, len(n.z.data) - len(list.data)}
}
