package app

import (
	"reflect"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/upstream"
)

// heirs finds for each of blocks the parts that it takes over from g: those of a block
// of the same zones, in whatever order, wherever in the file. Where there are several,
// for other ports, addresses or clients, the one most like it; nobody inherits twice.
// A nil generation has none.
func (g *generation) heirs(blocks []*config.Block) map[*config.Block]*blockParts {
	found := make(map[*config.Block]*blockParts)
	if g == nil {
		return found
	}
	taken := make(map[*blockParts]bool)
	for alike := same; alike >= namesake; alike-- {
		for _, b := range blocks {
			if found[b] != nil {
				continue
			}
			for _, p := range g.blocks {
				if !taken[p] && compare(p.block, b) >= alike {
					found[b], taken[p] = p, true
					break
				}
			}
		}
	}
	return found
}

// likeness is how like each other two blocks are.
type likeness uint8

const (
	stranger  likeness = iota // of other zones
	namesake                  // of the same zones
	colleague                 // and with the same upstreams
	neighbour                 // and on the same addresses
	same                      // and for the same clients
)

func compare(a, b *config.Block) likeness {
	switch {
	case !slices.Equal(sorted(a.Zones), sorted(b.Zones)):
		return stranger
	case !reflect.DeepEqual(a.Forward, b.Forward):
		return namesake
	case !slices.Equal(a.Listen, b.Listen):
		return colleague
	case a.ViewName() != b.ViewName():
		return neighbour
	}
	return same
}

// sameCache reports whether a cache made for a is what b asks for.
func sameCache(a, b *config.Block) bool {
	if a.Cache == nil || b.Cache == nil {
		return a.Cache == b.Cache
	}
	x, y := *a.Cache, *b.Cache
	x.Zones, y.Zones = sorted(x.Zones), sorted(y.Zones)
	return reflect.DeepEqual(x, y) && slices.Equal(sorted(a.Boundaries()), sorted(b.Boundaries()))
}

func sorted(zones []wire.Name) []wire.Name {
	zones = slices.Clone(zones)
	slices.Sort(zones)
	return zones
}

// certDigest tells apart what was in the certificates that b's upstreams are asked with
// and trusted by, when cfg was read: who has them in use reads them once.
func certDigest(cfg *config.Config, b *config.Block) string {
	var out []byte
	for f := b.Forward; f != nil; f = f.Next {
		if f.TLS == nil {
			continue
		}
		for _, path := range []string{f.TLS.Cert, f.TLS.Key, f.TLS.CA} {
			sum := cfg.Sums[path]
			out = append(out, sum[:]...)
		}
	}
	return string(out)
}

// setUpstreamsAndCache makes the pools and the cache of p, or takes those of was (nil: none) over.
func (a *builder) setUpstreamsAndCache(p, was *blockParts) {
	b := p.block
	sameUpstreams := was != nil && p.sameUpstreams(was)
	if sameUpstreams {
		p.pools = was.pools
	} else {
		p.pools = a.newPools(b, p.endpointsView)
	}
	switch {
	case b.Cache == nil:
	case sameUpstreams && sameCache(was.block, b):
		p.cache = was.cache
	default: // what was asked of other upstreams is not what these would answer
		p.cache = a.store.NewCache(b.Cache, b.Boundaries()...)
	}
}

// sameUpstreams reports whether p's upstreams are those that was asks, in the same way.
func (p *blockParts) sameUpstreams(was *blockParts) bool {
	if !reflect.DeepEqual(was.block.Forward, p.block.Forward) || was.endpointsView != p.endpointsView || was.certDigest != p.certDigest {
		return false
	}
	for f := p.block.Forward; f != nil; f = f.Next {
		for _, to := range f.To { // an address that is looked up may be the block's own
			if !to.Addr.IsValid() && !slices.Equal(was.block.Listen, p.block.Listen) {
				return false
			}
		}
	}
	return true
}

// newPools makes those of b's forward directives; around (nil: none of them is a
// Service) has the endpoints of its upstreams.
func (a *builder) newPools(b *config.Block, around *kubernetes.View) (pools []*upstream.Pool) {
	opts := upstream.Options{Logger: a.log.With("part", "upstream"), Own: b.ListensAt}
	if around != nil {
		opts.Endpoints = around.Endpoints
	}
	for f := b.Forward; f != nil; f = f.Next {
		pools = append(pools, upstream.New(f, opts))
	}
	return upstream.Chain(pools)
}

// closeUnused ends all of g that keep does not have.
func (g *generation) closeUnused(keep *generation) {
	g.stopUnused(keep)
	closeAll(g.unusedPools(keep))
}

// stopUnused is closeUnless for all but the pools.
func (g *generation) stopUnused(keep *generation) {
	for _, p := range g.blocks {
		if p.cache != nil && !keep.owns(p.cache) {
			p.cache.Close()
		}
		if p.errors != nil {
			for _, pattern := range p.errors.Patterns {
				pattern.Stop()
			}
		}
	}
}

// unusedPools lists the pools of g that keep does not have.
func (g *generation) unusedPools(keep *generation) (list []*upstream.Pool) {
	for _, p := range g.blocks {
		for _, u := range p.pools {
			if !keep.owns(u) {
				list = append(list, u)
			}
		}
	}
	return list
}

func closeAll(pools []*upstream.Pool) {
	for _, u := range pools {
		_ = u.Close()
	}
}
