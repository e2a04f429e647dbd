// These tests use defaultCache, which is not exported.

package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestCacheOptions reads the options of `cache` that are about what is kept, and how long.
func TestCacheOptions(t *testing.T) {
	stale := func(edit func(*Stale)) func(*Cache) {
		return func(c *Cache) {
			c.Stale = Stale{For: time.Hour, ClientTimeout: 1800 * time.Millisecond, TTL: 30 * time.Second, Recheck: 30 * time.Second}
			edit(&c.Stale)
		}
	}
	prefetch := func(f Prefetch) func(*Cache) { return func(c *Cache) { c.Prefetch = f } }
	all := []wire.Name{wire.Root}
	for _, tt := range []struct {
		text string
		want func(*Cache)
	}{
		{"prefetch 10", prefetch(Prefetch{10, time.Minute, 10})},
		{"prefetch 0", prefetch(Prefetch{0, time.Minute, 10})},
		{"prefetch 3 10s", prefetch(Prefetch{3, 10 * time.Second, 10})},
		{"prefetch 3 10s 90%", prefetch(Prefetch{3, 10 * time.Second, 90})},
		{"serve_stale", stale(func(*Stale) {})},
		{"serve_stale 24h", stale(func(s *Stale) { s.For = 24 * time.Hour })},
		{"serve_stale 0", stale(func(s *Stale) { s.For = 0 })},
		{"serve_stale 2h immediate", stale(func(s *Stale) { s.For, s.Mode = 2*time.Hour, StaleImmediate })},
		{"serve_stale 2h Immediate 7s", stale(func(s *Stale) { s.For, s.Mode, s.TTL = 2*time.Hour, StaleImmediate, 7*time.Second })},
		{"serve_stale 2h immediate 0 1m", stale(func(s *Stale) { s.For, s.Mode, s.TTL, s.Recheck = 2*time.Hour, StaleImmediate, 0, time.Minute })},
		{"serve_stale 1h verify", stale(func(s *Stale) { s.Mode, s.ClientTimeout, s.Recheck = StaleVerify, 0, 0 })},
		{"serve_stale 1h VERIFY 100ms", stale(func(s *Stale) { s.Mode, s.ClientTimeout, s.Recheck = StaleVerify, 100*time.Millisecond, 0 })},
		{"serve_stale 1h verify 0 5s 10s", stale(func(s *Stale) {
			s.Mode, s.ClientTimeout, s.TTL, s.Recheck = StaleVerify, 0, 5*time.Second, 10*time.Second
		})},
		{"serve_stale\nserve_stale_policy prefer_positive", stale(func(s *Stale) { s.PreferPositive = true })},
		{"serve_stale_policy Prefer_positive\nserve_stale 3h", stale(func(s *Stale) { s.For, s.PreferPositive = 3*time.Hour, true })},
		{"keepttl", func(c *Cache) { c.KeepTTL = true }},
		{"nxdomain_cut off", func(*Cache) {}},
		{"nxdomain_cut on", func(c *Cache) { c.NXDomainCut = true }},
		{"disable success", func(c *Cache) { c.Success.Disabled = all }},
		{"disable denial", func(c *Cache) { c.Denial.Disabled = all }},
		{"disable denial A.test b.test\ndisable success", func(c *Cache) { c.Denial.Disabled, c.Success.Disabled = names(t, "a.test", "b.test"), all }},
		{"disable denial a.test\ndisable denial b.test", func(c *Cache) { c.Denial.Disabled = names(t, "b.test") }},
		{"disable denial a.test\ndenial 20", func(c *Cache) { c.Denial.Disabled, c.Denial.Entries = names(t, "a.test"), 20 }},
	} {
		t.Run(tt.text, func(t *testing.T) {
			want := defaultCache()
			want.Zones = names(t, "example.org")
			tt.want(&want)
			if diff := cmp.Diff(&want, one(t, "cache", "cache {\n"+tt.text+"\n}")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestCacheFaults: each error says the option and what to write.
func TestCacheFaults(t *testing.T) {
	for text, want := range map[string]string{
		"prefetch":                               `cache: an argument is missing after "prefetch"; write: prefetch AMOUNT [DURATION [PERCENT%]]`,
		"prefetch 1 1m 10% x":                    `cache: "x" is one argument too many after "prefetch"; write: prefetch AMOUNT [DURATION [PERCENT%]]`,
		"prefetch -1":                            `cache prefetch: -1 is out of range; allowed: 0 to 60000`,
		"prefetch 1 x":                           `cache prefetch: "x" is not a duration such as 500ms, 30s or 1m30s`,
		"prefetch 1 1m 10":                       `cache prefetch: "10" is not a percentage such as 10%; allowed: 10% to 90%`,
		"prefetch 1 1m 9%":                       `cache prefetch: "9%" is not a percentage such as 10%; allowed: 10% to 90%`,
		"prefetch 1 1m x%":                       `cache prefetch: "x%" is not a percentage such as 10%; allowed: 10% to 90%`,
		"serve_stale x":                          `cache serve_stale: "x" is not a duration such as 500ms, 30s or 1m30s`,
		"serve_stale -1h":                        `cache serve_stale: -1h is out of range; allowed: 0s to 8760h0m0s`,
		"serve_stale 1h later":                   `cache serve_stale: unknown mode "later"; allowed: immediate, verify`,
		"serve_stale 1h immediate 1500ms":        `cache serve_stale: "1500ms" is no TTL: it has parts of a second`,
		"serve_stale 1h immediate 30s 6m":        `cache serve_stale: 6m is out of range; allowed: 0s to 5m0s`,
		"serve_stale 1h immediate 30s 1m 1m":     `cache serve_stale: "1m" is one argument too many; write: serve_stale [DURATION] [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]`,
		"serve_stale 1h verify 2h":               `cache serve_stale: 2h is out of range; allowed: 0s to 1h0m0s`,
		"serve_stale 1h verify 1s 1s 1s 1s":      `cache: "1s" is one argument too many after "serve_stale"; write: serve_stale [DURATION] [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]`,
		"serve_stale_policy prefer_positive":     `cache serve_stale_policy: there is no serve_stale that it could be the policy of; add serve_stale, or take the line out`,
		"serve_stale\nserve_stale_policy newest": `cache serve_stale_policy: unknown policy "newest"; allowed: prefer_positive`,
		"keepttl 5":                              `cache: "5" is one argument too many after "keepttl"; write: keepttl`,
		"nxdomain_cut":                           `cache: an argument is missing after "nxdomain_cut"; write: nxdomain_cut on|off`,
		"nxdomain_cut yes":                       `cache nxdomain_cut: unknown value "yes"; allowed: off, on`,
		"disable":                                `cache: an argument is missing after "disable"; write: disable success|denial [ZONES…]`,
		"disable all":                            `cache disable: unknown kind "all"; allowed: denial, success`,
		"disable denial a..b":                    `cache disable:`,
	} {
		t.Run(text, func(t *testing.T) {
			_, err := Parse(Source{Path: "Corefile", Text: []byte("example.org {\ncache {\n" + text + "\n}\n}\n"), Options: node(t)})
			if err == nil || !strings.Contains(err.Error(), ": "+want) {
				t.Errorf("error %v\nwant  %s", err, want)
			}
		})
	}
}

// TestBounds are the names at which another server is asked.
func TestBounds(t *testing.T) {
	b := mustParse(t, `example.org a.test {
kubernetes cluster.local b.test {
multicluster b.test
}
k8s_external ext.test
forward corp.test 192.0.2.1
forward . 192.0.2.2 {
except x.test y.test
}
}
`).Blocks[0]
	want := names(t, "example.org", "a.test", "corp.test", ".", "x.test", "y.test", "cluster.local", "b.test", "b.test", "ext.test")
	if diff := cmp.Diff(want, b.Boundaries()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCutDefault: names below one that does not exist are denied only where the option says so.
func TestCutDefault(t *testing.T) {
	for text, want := range map[string]bool{
		". {\ncache\n}": false, "a.test . {\ncache a.test\n}": false, "a.test {\ncache\n}": false,
		". {\ncache {\nnxdomain_cut off\n}\n}": false, ". {\ncache {\nnxdomain_cut on\n}\n}": true, "a.test {\ncache {\nnxdomain_cut on\n}\n}": true,
	} {
		c, err := parse(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Blocks[0].Cache.NXDomainCut; got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}

// TestKeep: the names are the cache's, with the times of expired answers, which a serve_stale of its own sets.
func TestKeep(t *testing.T) {
	const rest = "cache\nforward . 192.0.2.53\n}\n"
	blockOf := func(text string) *Block {
		c, err := parse(t, text)
		if err != nil {
			t.Fatal(err)
		}
		return c.Blocks[0]
	}
	b := blockOf(". {\nkeep Registry.example.com\nkeep a.test registry.example.com\n" + rest)
	if diff := cmp.Diff(slices.Sorted(slices.Values(names(t, "a.test", "registry.example.com"))), b.Cache.Keep); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if want := (Stale{ClientTimeout: staleClientTimeout, TTL: staleTTL, Recheck: staleRecheck}); b.Cache.Stale != want {
		t.Errorf("without serve_stale: %+v", b.Cache.Stale)
	}
	b = blockOf(". {\nkeep a.test\ncache {\nserve_stale 2h immediate\n}\nforward . 192.0.2.53\n}\n")
	if b.Cache.Stale.For != 2*time.Hour || b.Cache.Stale.Mode != StaleImmediate {
		t.Errorf("with serve_stale: %+v", b.Cache.Stale)
	}
	many := ""
	for i := range maxKeep + 1 {
		many += fmt.Sprintf(" n%d.test", i)
	}
	for text, want := range map[string]string{
		". {\nkeep\n" + rest:                                                        `2: keep: an argument is missing after "keep"; write: keep NAMES…`,
		". {\nkeep a..test\n" + rest:                                                `2: keep: not a domain name: "a..test" has an empty label`,
		". {\nkeep *.test\n" + rest:                                                 `2: keep: "*.test" is no name of a host; write each name in full, such as registry.example.com`,
		". {\nkeep .\n" + rest:                                                      `2: keep: "." is no name of a host`,
		". {\nkeep a.test\nforward . 192.0.2.53\n}\n":                               `2: keep: the block has no cache and forward that could keep the names`,
		". {\nkeep a.test\ncache\n}\n":                                              `2: keep: the block has no cache and forward that could keep the names`,
		"b.test {\nkeep a.test\n" + rest:                                            `2: keep: a.test. is not in a zone of the block and of its cache`,
		". {\nkeep a.test\ncache 30 b.test\nforward . 192.0.2.53\n}\n":              `2: keep: a.test. is not in a zone of the block and of its cache`,
		". {\nkeep" + many + "\n" + rest:                                            `2: keep: the block keeps 65 names; allowed: 64`,
		". {\nkeep a.test b.test\ncache {\nsuccess 7\n}\nforward . 192.0.2.53\n}\n": `2: keep: the block keeps 2 names, and its cache has room for 7 entries of a kind; make it 8 or more`,
	} {
		if _, err := parse(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
