package kubernetes

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

// findBelow looks up a name below svc; at holds where the last of its labels start,
// [maxDepth] at most, and not from 0 if there are more.
func (z *Zone) findBelow(rel []byte, at []int, o *origin) match {
	if n := len(at); o.zonal && n > 3 && string(rel[at[n-4]:at[n-3]]) == zoneLabel {
		return z.findZonal(rel, at)
	}
	if at[0] > 0 {
		return match{}
	}
	return z.findService(rel, at)
}

// findZonal looks up a name at or below a service's _zone.
func (z *Zone) findZonal(rel []byte, at []int) match {
	n := len(at)
	if !z.exposes(rel[at[n-2]:at[n-1]]) {
		return match{}
	}
	m := match{node: zonal, key: rel[at[n-3]:at[n-1]]}
	m.svc = z.view.service(m.key)
	if m.svc == nil || m.svc.kind != headless {
		return match{} // what has one address for all zones has no address by zone
	}
	if n == 4 {
		return match{node: empty}
	}
	directive, zone := string(rel[at[0]:at[1]]), rel[:at[0]]
	switch {
	case directive != pinLabel && directive != preferLabel:
		return match{}
	case len(zone) == 0:
		return match{node: empty}
	case !z.view.held(m.svc):
		return match{node: elsewhere, svc: m.svc}
	case directive == pinLabel || m.svc.hasZone(zone):
		m.zone = zone
	}
	return m
}

// hasZone reports whether s has an endpoint in the zone.
func (s *service) hasZone(zone []byte) bool {
	for _, sl := range s.slices {
		if sl.nextIn(zone, 0) < sl.len() {
			return true
		}
	}
	return false
}

// nextIn is the first endpoint from i on that is in the zone, s.len() if none is.
func (s *slice) nextIn(zone []byte, i int) int {
	if s.zones == nil {
		return s.len()
	}
	for i < s.len() && !s.inZone(i, zone) {
		i++
	}
	return i
}

// inZone reports whether endpoint i is in the zone.
func (s *slice) inZone(i int, zone []byte) bool {
	var none topozone
	return s.zones != nil && s.zones[i] != none && s.zones[i].Value() == string(zone)
}
