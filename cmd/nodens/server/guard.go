package server

// guard is what the zone does with a query whatever its sources know: turn the client
// away (acl), or answer what needs no source (any, local). ok is false if it leaves the
// query to those behind it.
func (z *Zone) guard(*exchange) (at step, ok bool) { return done, false }
