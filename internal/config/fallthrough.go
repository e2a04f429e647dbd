package config

import "github.com/nodens-dns/nodens/internal/wire"

// Fallthrough is `fallthrough [ZONES…]`: names in Zones that a directive would
// answer with NXDOMAIN go on to the next one. nil is none; empty Zones are all.
type Fallthrough struct {
	Zones []wire.Name
}

// fallthroughs is the `fallthrough [ZONES…]` option, which several directives have.
func (p *parser) fallthroughs(dst **Fallthrough) option {
	return option{usage: "fallthrough [ZONES…]", most: -1, set: func(args []token) {
		*dst = &Fallthrough{Zones: p.zones(args)}
	}}
}
