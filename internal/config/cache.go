package config

import (
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Cache is `cache [TTL] [ZONES…] { success CAP [TTL] [MINTTL]; denial CAP [TTL] [MINTTL]; servfail D }`.
type Cache struct {
	Zones    []wire.Name   // the block's zones where none are given
	Success  CacheLimits   // 9984 entries, 3600s, 5s
	Denial   CacheLimits   // 9984 entries, 1800s, 5s
	Servfail time.Duration // 5s; 0 keeps none
}

// CacheLimits bounds one kind of entry.
type CacheLimits struct {
	Entries        int
	MaxTTL, MinTTL time.Duration // MinTTL is at most MaxTTL
}

const (
	// maxEntries keeps a slip of the finger from being a promise of memory: ten
	// million replies are some gigabytes.
	maxEntries = 10_000_000
	// maxTTL is the largest TTL there is (RFC 2181, 8).
	maxTTL = 1<<31 - 1
	// maxServfail is the longest a failure may be kept (RFC 2308, 7.1).
	maxServfail = 5 * time.Minute
)

func (c *Cache) parse(p *parser, s statement) {
	*c = defaultCache()
	args := s.args()
	if len(args) > 0 {
		if _, err := strconv.Atoi(args[0].text); err == nil {
			c.Success.MaxTTL = c.seconds(p, args[0], 1)
			c.Denial.MaxTTL = c.Success.MaxTTL
			args = args[1:]
		}
	}
	c.Zones = p.zonesOr(args)
	p.body(s, options{
		"success": c.limits(p, "success", &c.Success),
		"denial":  c.limits(p, "denial", &c.Denial),
		"servfail": {usage: "servfail DURATION", least: 1, most: 1, set: func(args []word) {
			c.Servfail, _ = p.duration(args[0], 0, maxServfail)
		}},
		"prefetch":           later("names are asked for when a client does; take the line out"),
		"serve_stale":        later("an expired answer is not used; take the line out"),
		"serve_stale_policy": later("an expired answer is not used; take the line out"),
		"disable":            later("put the zones that are not to be cached in a block without cache"),
		"keepttl":            later("TTLs are counted down; take the line out"),
	})
	for _, limits := range []*CacheLimits{&c.Success, &c.Denial} {
		limits.MinTTL = min(limits.MinTTL, limits.MaxTTL) // the upper bound wins
	}
}

// defaultCache is `cache` without more.
func defaultCache() Cache {
	return Cache{
		Success:  CacheLimits{Entries: 9984, MaxTTL: time.Hour, MinTTL: 5 * time.Second},
		Denial:   CacheLimits{Entries: 9984, MaxTTL: 30 * time.Minute, MinTTL: 5 * time.Second},
		Servfail: 5 * time.Second,
	}
}

// limits is the `success` and the `denial` option.
func (c *Cache) limits(p *parser, name string, dst *CacheLimits) option {
	return option{usage: name + " CAPACITY [TTL] [MINTTL]", least: 1, most: 3, set: func(args []word) {
		n, _ := p.number(args[0], 1, maxEntries)
		dst.Entries = int(n)
		if len(args) > 1 {
			dst.MaxTTL = c.seconds(p, args[1], 1)
		}
		if len(args) > 2 {
			dst.MinTTL = c.seconds(p, args[2], 0)
		}
	}}
}

func (c *Cache) seconds(p *parser, w word, least int64) time.Duration {
	n, _ := p.number(w, least, maxTTL)
	return time.Duration(n) * time.Second
}
