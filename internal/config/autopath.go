package config

import "github.com/nodens-dns/nodens/internal/wire"

// Autopath is `autopath [ZONES…] RESOLV-CONF|@kubernetes`: finish a client's search
// path here.
type Autopath struct {
	// Zones are those it is done in; the block's where none are given.
	Zones []wire.Name
	// Kubernetes is `@kubernetes`: the search path is that of the pod that asks, and
	// Search what stands behind it.
	Kubernetes bool
	// Search are the search domains of the file, or of the machine's own resolv.conf
	// with `@kubernetes`.
	Search []wire.Name
}

func (a *Autopath) parse(p *parser, s statement) {
	a.Zones = p.zonesOr(nil)
	a.Kubernetes = p.count(s, 1, -1, "autopath [ZONES…] RESOLV-CONF|@kubernetes")
}
