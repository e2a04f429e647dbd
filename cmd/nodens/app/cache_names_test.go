// These tests use blocks, cache and maxCacheName, which are not exported.

package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// blocks are those of a Corefile.
func blocks(t *testing.T, corefile string) []*config.Block {
	t.Helper()
	cfg, err := config.Parse(config.Source{Path: "Corefile", Text: []byte(corefile), Options: config.Options{Port: 53}})
	check.NoError(t, err)
	return cfg.Blocks
}

// TestCacheName: the names are part of what agents of different versions say to each
// other, and change with what is in a cache, not with how it is asked for.
func TestCacheName(t *testing.T) {
	var many strings.Builder
	for i := range 40 {
		fmt.Fprintf(&many, "z%d.test ", i)
	}
	tests := []struct{ name, corefile, want string }{
		{"plain", ".:53 {\n bind 127.0.0.1\n cache 30\n forward . 192.0.2.1\n}", ". dns:53 forward . 192.0.2.1:53"},
		{"no upstreams", ".:1053 {\n cache\n}", ". dns:1053"},
		{
			"all there is", "b.test a.test {\n view v {\n expr true\n }\n cache\n forward x.a.test 192.0.2.1\n forward . tls://192.0.2.1:853 192.0.2.2 {\n except c.a.test\n tls_servername x.test\n }\n}",
			`a.test.,b.test. dns:53 view "v" forward x.a.test. 192.0.2.1:53 forward . tls://192.0.2.1:853 192.0.2.2:53 except c.a.test. as x.test`,
		},
		{
			"another way of asking", "a.test b.test {\n view v {\n expr true\n }\n bind 127.0.0.1\n cache 30\n forward x.a.test 192.0.2.1\n forward . tls://192.0.2.1:853 192.0.2.2 {\n max_fails 3\n except c.a.test\n tls_servername x.test\n }\n}",
			`a.test.,b.test. dns:53 view "v" forward x.a.test. 192.0.2.1:53 forward . tls://192.0.2.1:853 192.0.2.2:53 except c.a.test. as x.test`,
		},
		{
			"many zones", many.String() + "{\n cache\n}",
			"z0.test.,z1.test.,z10.test.,z11.test.,z12.test.,z13.test.,z14.test.,z15.test.,z16.test.,z17.test.,z18.test.,z19.test.,z2.test.,z20.test c71e",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := cacheName(blocks(t, tt.corefile)[0])
			if len(got) > maxCacheName {
				t.Errorf("the name has %d bytes, %d are the most", len(got), maxCacheName)
			}
			if len(got) == maxCacheName {
				got = got[:len(tt.want)]
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestCaches: each cache has a name, and blocks with the same keep theirs apart.
func TestCaches(t *testing.T) {
	store := cache.NewStore(1<<20, cache.Options{})
	g := new(generation)
	for _, b := range blocks(t, ". {\n bind 127.0.0.1\n cache\n}\n. {\n bind 127.0.0.2\n cache\n}\na.test {\n cache\n}\nb.test {\n}\n") {
		p := &blockParts{block: b, parts: make(map[string]any)}
		if b.Cache != nil {
			p.parts["cache"] = store.NewCache(b.Cache)
		}
		g.blocks = append(g.blocks, p)
	}
	want := map[string]*cache.Cache{". dns:53": g.blocks[0].cache(), ". dns:53 #2": g.blocks[1].cache(), "a.test. dns:53": g.blocks[2].cache()}
	same := cmp.Comparer(func(a, b *cache.Cache) bool { return a == b })
	if d := cmp.Diff(want, namedCaches(g), same); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
