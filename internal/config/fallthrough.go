package config

import "github.com/nodens-dns/nodens/internal/wire"

// Fallthrough is `fallthrough [ZONES…]`: for names in Zones, the next directive answers instead
// of an NXDOMAIN. nil means never; empty Zones mean all names.
type Fallthrough struct {
	Zones []wire.Name
}

// fallthroughs is the `fallthrough [ZONES…]` option, which several directives have.
func (p *parser) fallthroughs(dst **Fallthrough) option {
	return opt("fallthrough [ZONES…]", func(args []token) { *dst = &Fallthrough{Zones: p.zones(args)} })
}
