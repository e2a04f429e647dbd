package app

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/resolver"
)

// openTaps opens the taps of g's directives, or reuses old's taps (nil: none). Equal
// directives share one tap.
func openTaps(a *builder, g, old *generation) {
	for _, b := range g.cfg.Blocks {
		for d := range b.Dnstap.All {
			key := withoutNext(d)
			switch {
			case g.taps[key] != nil:
			case old != nil && old.taps[key] != nil:
				g.taps[key] = old.taps[key]
			default:
				g.taps[key] = dnstap.New(key, "nodens-"+a.opts.Build.Version, a.log.With("part", "dnstap"))
				if c := g.certs[key.TLS]; c != nil {
					g.taps[key].TLS = c.TLS
				}
			}
		}
	}
}

// installTaps sets the taps of the block.
func installTaps(_ *builder, p *blockParts, _ any) func(*resolver.Zone) {
	return func(z *resolver.Zone) {
		for d := range p.block.Dnstap.All {
			t := resolver.Tap{To: p.generation.taps[withoutNext(d)], Full: d.Full, Local: z.Addr.Addr()}
			if d.Extra != "" {
				t.Extra = resolver.ParseFormat(d.Extra)
			}
			z.Taps = append(z.Taps, t)
		}
	}
}

// withoutNext returns d without the directives after it.
func withoutNext(d *config.Dnstap) config.Dnstap {
	key := *d
	key.Next = nil
	return key
}
