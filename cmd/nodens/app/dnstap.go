package app

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/resolver"
)

// openTaps opens the taps of g's directives, or reuses old's taps (nil: none). Equal
// directives share one tap.
func (a *builder) openTaps(g, old *generation) {
	for _, b := range g.cfg.Blocks {
		for d := range b.Dnstap.All {
			key := withoutNext(d)
			switch {
			case g.taps[key] != nil:
			case old != nil && old.taps[key] != nil:
				g.taps[key] = old.taps[key]
			default:
				g.taps[key] = dnstap.New(key, "nodens-"+a.opts.Build.Version, a.log.With("part", "dnstap"))
			}
		}
	}
}

// blockTaps returns the taps of b.
func (a *builder) blockTaps(g *generation, b *config.Block) (list []resolver.Tap) {
	for d := range b.Dnstap.All {
		t := resolver.Tap{To: g.taps[withoutNext(d)], Full: d.Full}
		if d.Extra != "" {
			t.Extra = resolver.ParseFormat(d.Extra)
		}
		list = append(list, t)
	}
	return list
}

// withoutNext returns d without the directives after it.
func withoutNext(d *config.Dnstap) config.Dnstap {
	key := *d
	key.Next = nil
	return key
}

// taps puts the dropped messages of each collector.
func (s scrape) taps(g *generation) {
	dropped := make(map[string]uint64)
	for _, t := range g.taps {
		dropped[t.Endpoint()] += t.Dropped()
	}
	for to, n := range dropped {
		s.put(tapDropped, float64(n), to)
	}
}
