package app

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
)

// maxCacheName bounds the name of a cache, in bytes. A checksum replaces the rest of a longer
// one.
const maxCacheName = 200

// namedCaches returns g's caches by name. All versions of the agent use the same names, in handovers
// and in the saved cache.
func namedCaches(g *generation) map[string]*cache.Cache {
	named := make(map[string]*cache.Cache)
	for _, p := range g.blocks {
		if p.cache() == nil {
			continue
		}
		name := cacheName(p.block)
		for n := 2; named[name] != nil; n++ { // for example, on another address
			name = fmt.Sprintf("%s #%d", cacheName(p.block), n)
		}
		named[name] = p.cache()
	}
	return named
}

// cacheName returns a name for what is in b's cache: the zones, the listener and the
// upstreams. The order of the zones does not matter.
func cacheName(b *config.Block) string {
	zones := make([]string, len(b.Zones))
	for i, z := range b.Zones {
		zones[i] = z.String()
	}
	slices.Sort(zones)
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s:%d", strings.Join(zones, ","), b.Transport, b.Port)
	if view := b.ViewName(); view != noView {
		fmt.Fprintf(&text, " view %q", view)
	}
	for f := b.Forward; f != nil; f = f.Next {
		fmt.Fprintf(&text, " forward %s", f.From)
		for _, to := range f.To {
			fmt.Fprintf(&text, " %s", to)
		}
		for _, z := range f.Except {
			fmt.Fprintf(&text, " except %s", z)
		}
		if f.ServerName != "" {
			fmt.Fprintf(&text, " as %s", f.ServerName)
		}
	}
	name := text.String()
	if len(name) <= maxCacheName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s %x", name[:maxCacheName-2*len(sum)-1], sum)
}
