package kubernetes

import "unique"

// Zonal names select a headless service's endpoints by topology zone:
//
//	<zone>.pin._zone.<service>.<namespace>.svc.<cluster>     the endpoints in the zone
//	<zone>.prefer._zone.<service>.<namespace>.svc.<cluster>  these, or all if there are none
//
// A zone is as many labels as its name has parts between dots, compared without regard to
// case. Every zone exists below every headless service, with or without endpoints: a name
// error would be cached for all types, also for a zone that is only drained. So the names
// above zones exist as well (RFC 8020), as soon as the Service is in view.
const (
	zoneLabel   = "\x05_zone"
	pinLabel    = "\x03pin"
	preferLabel = "\x06prefer"
)

// lookupServiceOrZonal is lookupService for zones with zonal names. at holds the offsets of
// the last [maxDepth] labels; it begins above 0 if there are more.
func (z *Zone) lookupServiceOrZonal(rel []byte, at []int, o *origin, b *Budget) match {
	if n := len(at); n > 3 && string(rel[at[n-4]:at[n-3]]) == zoneLabel {
		return z.lookupZonal(rel, at, b)
	}
	if at[0] > 0 {
		return match{}
	}
	return z.lookupService(rel, at, o, b)
}

// lookupZonal finds a name at or below a service's _zone.
func (z *Zone) lookupZonal(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if !z.exposes(rel[at[n-2]:at[n-1]]) {
		return match{}
	}
	m := match{node: zonalName, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, false)
	if m.svc == nil || m.svc.kind != headless {
		return match{} // a cluster IP is in no zone
	}
	if n == 4 {
		return match{node: emptyNonTerminal}
	}
	return m.matchDirective(z.view, rel[at[0]:at[1]], rel[:at[0]], b)
}

// matchDirective returns the node of a topology zone, or of none yet, below pin or prefer.
func (m match) matchDirective(v *View, directive, zone []byte, b *Budget) match {
	pin := string(directive) == pinLabel
	switch {
	case !pin && string(directive) != preferLabel:
		return match{}
	case len(zone) == 0:
		return match{node: emptyNonTerminal}
	case !v.requireSlices(m.svc):
		return match{node: incomplete, svc: m.svc}
	}
	var found bool
	if m.zone, found = m.svc.findZone(zone, b); !found && pin {
		m.zone = noZone
	}
	return m
}

// noZone is a zone without endpoints.
var noZone = unique.Make("")

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

// nextInZone returns the first endpoint from i on that is in zone z, s.len() if there is
// none.
func (s *slice) nextInZone(z zoneName, i int) int {
	for i < s.len() && !s.inZone(i, z) {
		i++
	}
	return i
}

// inZone reports whether endpoint i is in zone z; the zero zone contains all endpoints.
func (s *slice) inZone(i int, z zoneName) bool {
	var all zoneName
	return z == all || s.zones != nil && s.zones[i] == z
}
