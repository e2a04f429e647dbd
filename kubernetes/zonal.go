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

// lookupServiceOrZonal is findService where there are names by topology zone; at holds where the
// last [maxDepth] labels start, so that it begins above 0 if there are more.
func (z *Zone) lookupServiceOrZonal(rel []byte, at []int, o *origin, b *Budget) match {
	if n := len(at); n > 3 && string(rel[at[n-4]:at[n-3]]) == zoneLabel {
		return z.lookupZonal(rel, at, b)
	}
	if at[0] > 0 {
		return match{}
	}
	return z.lookupService(rel, at, o, b)
}

// lookupZonal looks up a name at or below a service's _zone.
func (z *Zone) lookupZonal(rel []byte, at []int, b *Budget) match {
	n := len(at)
	if !z.exposes(rel[at[n-2]:at[n-1]]) {
		return match{}
	}
	m := match{node: zonalName, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key, false)
	if m.svc == nil || m.svc.kind != headless {
		return match{} // what has one address for all zones has no address by zone
	}
	if n == 4 {
		return match{node: emptyNonTerminal}
	}
	return m.matchDirective(z.view, rel[at[0]:at[1]], rel[:at[0]], b)
}

// matchDirective is the node of a zone, or of none yet, below a directive.
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

// noZone is a zone that no endpoint is in.
var noZone = unique.Make("")

// findZone is the zone of that name if s has an endpoint there.
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

// nextInZone is the first endpoint from i on that is in the zone z, s.len() if none is.
func (s *slice) nextInZone(z zoneName, i int) int {
	for i < s.len() && !s.inZone(i, z) {
		i++
	}
	return i
}

// inZone reports whether endpoint i is in the zone z; the zero zone is all of them.
func (s *slice) inZone(i int, z zoneName) bool {
	var all zoneName
	return z == all || s.zones != nil && s.zones[i] == z
}
