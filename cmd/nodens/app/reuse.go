package app

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Views, taps and certificates are shared: all blocks of a generation, and of the one before
// it, with the same key have the same one (see views.go, dnstap.go and tls.go). Hosts tables, zones,
// pools, caches and limiters belong to one block each; this file matches them across a reload by what
// they are made of, wherever their block stands in the Corefile.

// partKey identifies a part of a block.
type partKey struct {
	// content is all that the part is made of, compared by [reflect.DeepEqual]; nil: the
	// block has no such part.
	content any
	// place is the block's listen addresses and view. It only decides between parts of equal
	// content, so that each keeps its counters' labels.
	place string
}

// partKeys are the keys of a block's parts.
type partKeys struct{ hosts, file, auto, secondary, transfer, balance, pools, cache, limit partKey }

// upstreamContent is what the pools of a block are made of.
type upstreamContent struct {
	forward *config.Forward
	// certs are the digests of the client certificates and CAs, in the order of the forward
	// directives. A pool reads these files once.
	certs [][sha256.Size]byte
	view  string // key of the view that resolves upstreams that are Services; "": none is one
	// listen is set if an upstream's address is looked up, because the address may turn out
	// to be the block's own.
	listen []netip.AddrPort
}

// cacheContent is what a cache is made of: its settings, the names it may hold, and the
// upstreams that fill it.
type cacheContent struct {
	settings  config.Cache
	bounds    []wire.Name
	upstreams upstreamContent
}

// newPartKeys returns the keys of b's parts. The view with the key view resolves its upstreams
// that are Services.
func newPartKeys(cfg *config.Config, b *config.Block, view string) (keys partKeys) {
	place := fmt.Sprintf("%v %v %q", b.Transport, b.Listen, b.ViewName())
	if b.Hosts != nil {
		keys.hosts = partKey{*b.Hosts, place}
	}
	if b.ZoneFile != nil {
		keys.file = partKey{*b.ZoneFile, place}
	}
	if b.Auto != nil {
		keys.auto = partKey{*b.Auto, place}
	}
	if b.Secondary != nil {
		keys.secondary = partKey{*b.Secondary, place}
	}
	if b.Transfer != nil {
		keys.transfer = partKey{*b.Transfer, place}
	}
	if b.Loadbalance != nil {
		keys.balance = partKey{*b.Loadbalance, place}
	}
	if b.ClientLimit != nil {
		settings := *b.ClientLimit
		settings.Action = 0 // it is not the limiter's
		keys.limit = partKey{settings, place}
	}
	upstreams := newUpstreamContent(cfg, b, view)
	if b.Forward != nil {
		keys.pools = partKey{upstreams, place}
	}
	if b.Cache != nil {
		settings := *b.Cache
		settings.Zones = sorted(settings.Zones)
		keys.cache = partKey{cacheContent{settings, sorted(b.Boundaries()), upstreams}, place}
	}
	return keys
}

func newUpstreamContent(cfg *config.Config, b *config.Block, view string) upstreamContent {
	c := upstreamContent{forward: b.Forward, view: view}
	for f := b.Forward; f != nil; f = f.Next {
		if f.TLS != nil {
			c.certs = append(c.certs, cfg.Sums[f.TLS.Cert], cfg.Sums[f.TLS.Key], cfg.Sums[f.TLS.CA])
		}
		if slices.ContainsFunc(f.To, func(to config.Target) bool { return !to.Addr.IsValid() }) {
			c.listen = b.Listen
		}
	}
	return c
}

func sorted(names []wire.Name) []wire.Name {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}

// matchParts returns for each of want the index of the part in have to reuse, -1 for none.
// Contents must be equal. Among several of equal content, the ones in the same place match
// first, then the others in file order. No part matches twice.
func matchParts(have, want []partKey) []int {
	match, used := make([]int, len(want)), make([]bool, len(have))
	for i := range match {
		match[i] = -1
	}
	for _, samePlace := range []bool{true, false} {
		for i, w := range want {
			if match[i] >= 0 || w.content == nil {
				continue
			}
			if j := findPart(have, used, w, samePlace); j >= 0 {
				match[i], used[j] = j, true
			}
		}
	}
	return match
}

// findPart returns the index of the first unused part in have with w's content, and with its
// place if samePlace; -1 if there is none.
func findPart(have []partKey, used []bool, w partKey, samePlace bool) int {
	for i, h := range have {
		if !used[i] && (h.place == w.place || !samePlace) && reflect.DeepEqual(h.content, w.content) {
			return i
		}
	}
	return -1
}

// reuseParts gives the blocks of g the hosts tables, zones, pools, caches and limiters of old (nil: none) that
// are made of the same.
func (g *generation) reuseParts(old *generation) {
	if old == nil {
		return
	}
	reuse := func(kind func(partKeys) partKey, take func(to, from *blockParts)) {
		for i, j := range matchParts(old.keys(kind), g.keys(kind)) {
			if j >= 0 {
				take(g.blocks[i], old.blocks[j])
			}
		}
	}
	reuse(func(k partKeys) partKey { return k.hosts }, func(to, from *blockParts) { to.hosts = from.hosts })
	reuse(func(k partKeys) partKey { return k.file }, func(to, from *blockParts) { to.file, to.fileChanged = from.file, from.fileChanged })
	reuse(func(k partKeys) partKey { return k.auto }, func(to, from *blockParts) { to.auto, to.autoChanged = from.auto, from.autoChanged })
	reuse(func(k partKeys) partKey { return k.secondary }, func(to, from *blockParts) {
		to.secondary, to.secondaryChanged = from.secondary, from.secondaryChanged
	})
	reuse(func(k partKeys) partKey { return k.transfer }, func(to, from *blockParts) { to.transfer = from.transfer })
	reuse(func(k partKeys) partKey { return k.balance }, func(to, from *blockParts) { to.balance = from.balance })
	reuse(func(k partKeys) partKey { return k.pools }, func(to, from *blockParts) {
		to.pools, to.previousLoops = from.pools, from.loops
	})
	reuse(func(k partKeys) partKey { return k.limit }, func(to, from *blockParts) { to.limiter = from.limiter })
	reuse(func(k partKeys) partKey { return k.cache }, func(to, from *blockParts) { to.cache = from.cache })
}

// keys returns the keys of one kind of all blocks.
func (g *generation) keys(kind func(partKeys) partKey) []partKey {
	list := make([]partKey, len(g.blocks))
	for i, p := range g.blocks {
		list[i] = kind(p.keys)
	}
	return list
}
