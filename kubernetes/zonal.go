package kubernetes

import "unique"

// The names of a headless service's endpoints by topology zone:
//
//	<zone>.pin._zone.<service>.<namespace>.svc.<cluster>     those in the zone
//	<zone>.prefer._zone.<service>.<namespace>.svc.<cluster>  those, or all if there are none
//
// A zone is as many labels as its name has parts between dots. It is compared
// without regard to case, by the labels: one label with a dot in it is no zone. Every
// zone exists under every headless service, with or without endpoints: that none is
// there is true of zones that were drained and of ones that never were, and a name
// error would be remembered for all types. So the names above zones exist as well
// (RFC 8020), and that is certain as soon as the Service is in view, whatever is
// known of its endpoints.
const (
	zoneLabel   = "\x05_zone"
	pinLabel    = "\x03pin"
	preferLabel = "\x06prefer"
)

// findBelow is findService where there are names by topology zone; at holds where the
// last [maxDepth] labels start, so that it begins above 0 if there are more.
func (z *Zone) findBelow(rel []byte, at []int, o *origin, b *Budget) match {
	if n := len(at); n > 3 && string(rel[at[n-4]:at[n-3]]) == zoneLabel {
		return z.findZonal(rel, at, b)
	}
	if at[0] > 0 {
		return match{}
	}
	return z.findService(rel, at, o, b)
}

// findZonal looks up a name at or below a service's _zone.
func (z *Zone) findZonal(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if !z.exposes(rel[at[n-2]:at[n-1]]) {
		return match{}
	}
	m := match{node: zonal, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, false)
	if m.svc == nil || m.svc.kind != headless {
		return match{} // what has one address for all zones has no address by zone
	}
	if n == 4 {
		return match{node: empty}
	}
	return m.directed(z.view, rel[at[0]:at[1]], rel[:at[0]], b)
}

// directed is the node of a zone, or of none yet, below a directive.
func (m match) directed(v *View, directive, zone []byte, b *Budget) match {
	pin := string(directive) == pinLabel
	switch {
	case !pin && string(directive) != preferLabel:
		return match{}
	case len(zone) == 0:
		return match{node: empty}
	case !v.held(m.svc):
		return match{node: elsewhere, svc: m.svc}
	}
	var found bool
	if m.zone, found = m.svc.zoneNamed(zone, b); !found && pin {
		m.zone = nowhere
	}
	return m
}

// nowhere is a zone that no endpoint is in.
var nowhere = unique.Make("")

// zoneNamed is the zone of that name if s has an endpoint there.
func (s *service) zoneNamed(zone []byte, b *Budget) (z topozone, ok bool) {
	var none topozone
	for _, sl := range s.slices {
		if !b.take(sliceSteps + len(sl.zones)) {
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

// nextIn is the first endpoint from i on that is in the zone z, s.len() if none is.
func (s *slice) nextIn(z topozone, i int) int {
	for i < s.len() && !s.inZone(i, z) {
		i++
	}
	return i
}

// inZone reports whether endpoint i is in the zone z; the zero zone is all of them.
func (s *slice) inZone(i int, z topozone) bool {
	var all topozone
	return z == all || s.zones != nil && s.zones[i] == z
}
