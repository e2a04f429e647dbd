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

// noZone is a zone without endpoints.
var noZone = unique.Make("")
