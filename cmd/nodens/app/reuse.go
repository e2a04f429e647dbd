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
// it, with the same key have the same one (see views.go, dnstap.go and tls.go). Other parts belong to one
// block each; this file matches them across a reload by their keys ([directive.key]).

// partKey identifies a part of a block.
type partKey struct {
	// content is all that the part is made of, compared by [reflect.DeepEqual]; nil: the
	// block has no such part.
	content any
	// place is the block's listen addresses and view. It only decides between parts of equal
	// content, so that each keeps its counters' labels.
	place string
}

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

// keyed is what the key of a part may be made of.
type keyed struct {
	block *config.Block
	// upstreams are what the block's pools are made of.
	upstreams upstreamContent
}

// newPartKeys returns the keys of the parts of b that the directives of list have, by directive. The view with the key view resolves its upstreams that
// are Services.
func newPartKeys(list []directive, cfg *config.Config, b *config.Block, view string) map[string]partKey {
	place := fmt.Sprintf("%v %v %q", b.Transport, b.Listen, b.ViewName())
	x := keyed{b, newUpstreamContent(cfg, b, view)}
	keys := make(map[string]partKey)
	for _, d := range list {
		if d.key != nil && b.Has(d.name) {
			keys[d.name] = partKey{d.key(x), place}
		}
	}
	return keys
}

// keyLimit is the key of client_limit: everything but the action, which is not the limiter's.
func keyLimit(x keyed) any {
	settings := *x.block.ClientLimit
	settings.Action = 0
	return settings
}

func keyPools(x keyed) any { return x.upstreams }

func keyCache(x keyed) any {
	settings := *x.block.Cache
	settings.Zones = sorted(settings.Zones)
	return cacheContent{settings, sorted(x.block.Boundaries()), x.upstreams}
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
