package config

import (
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Cache is `cache [TTL] [ZONES…] { … }`. A reload keeps a cache whose Cache is unchanged by
// reflect.DeepEqual.
type Cache struct {
	Zones    []wire.Name   // by default the block's zones
	Success  CacheLimits   // 9984 entries, 3600s, 5s
	Denial   CacheLimits   // 9984 entries, 1800s, 5s
	Servfail time.Duration // 5s; 0: failures are not cached
	Prefetch Prefetch
	Stale    Stale
	// Keep are the names whose answers stay, and may be served however long ago they have expired (`keep`).
	Keep []wire.Name
	// KeepTTL serves answers with their original TTL until they expire.
	KeepTTL bool
	// NXDomainCut denies names below one that does not exist, without asking upstream (RFC
	// 8020). It is off by default: many servers, such as CoreDNS and Unbound with names of
	// their own, deny names although there are names below.
	NXDomainCut bool
}

// Prefetch is `prefetch AMOUNT [DURATION [PERCENT%]]`.
type Prefetch struct {
	Amount  int           // hits that make a name popular; 0: off
	Within  time.Duration // the longest pause between two of them; 1m
	Percent int           // of the TTL that is left when the name is refreshed; 10
}

// StaleMode says when an expired answer is served.
type StaleMode uint8

// The modes.
const (
	// StaleFallback asks upstream first and serves the expired answer if that fails or takes
	// too long (RFC 8767, 5). It is the default.
	StaleFallback StaleMode = iota
	// StaleImmediate serves the expired answer and refreshes it in the background.
	StaleImmediate
	// StaleVerify asks upstream first every time.
	StaleVerify
)

// Stale is `serve_stale` and `serve_stale_policy`.
type Stale struct {
	// For is how long after its expiry an answer may be served; 0: not at all.
	For  time.Duration
	Mode StaleMode
	// ClientTimeout is how long a client waits before it gets the expired answer (RFC 8767,
	// 5); 0: until the upstreams have answered or failed. StaleImmediate ignores it.
	ClientTimeout time.Duration
	// TTL is the TTL of expired answers, in whole seconds.
	TTL time.Duration
	// Recheck is how long a name is not refreshed after a failure (RFC 8767, 5).
	Recheck time.Duration
	// PreferPositive keeps an answer, as long as it may be served, when a reply without an
	// answer arrives.
	PreferPositive bool
}

// CacheLimits bounds one kind of entry.
type CacheLimits struct {
	Entries        int
	MaxTTL, MinTTL time.Duration // MinTTL is at most MaxTTL
	Disabled       []wire.Name   // zones that are not cached
}

const (
	// fewestEntries is the size of CoreDNS's smallest cache, which it makes of a capacity of 0.
	fewestEntries = 1024
	// maxEntries catches typing errors: ten million replies take some gigabytes.
	maxEntries = 10_000_000
	// maxTTL is the highest TTL (RFC 2181, 8).
	maxTTL = 1<<31 - 1
	// maxServfail is the longest time for which a failure may be cached (RFC 2308, 7.1).
	maxServfail = 5 * time.Minute
	// longDenial is the time beyond which negative caching "has been found to be problematic"
	// (RFC 2308, 5).
	longDenial = 24 * time.Hour
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
	p.body(s, append(options{
		c.limits(p, "success", &c.Success),
		c.limits(p, "denial", &c.Denial),
		opt("servfail DURATION", p.toDuration(&c.Servfail, 0, maxServfail)),
		opt("disable success|denial [ZONES…]", func(args []token) { c.disable(p, args) }),
		flag("keepttl", &c.KeepTTL),
		opt("nxdomain_cut on|off", toChoice(p, &c.NXDomainCut, "value", onOff)),
		opt(prefetchUsage, func(args []token) { c.Prefetch.parse(p, args) }),
	}, c.Stale.options(p, s)...)...)
	p.suspectTTLs(s, c)
	for _, limits := range []*CacheLimits{&c.Success, &c.Denial} {
		limits.MinTTL = min(limits.MinTTL, limits.MaxTTL) // the upper bound wins
	}
}

// suspectTTLs reports bounds that contradict each other, or that keep denials too long.
func (p *parser) suspectTTLs(s statement, c *Cache) {
	for _, kind := range []struct {
		name   string
		limits CacheLimits
	}{{"success", c.Success}, {"denial", c.Denial}} {
		if l := kind.limits; l.MinTTL > l.MaxTTL && l.MinTTL != defaultCache().Success.MinTTL {
			p.suspect(s.name(), "%s: the minimum TTL %s is more than the maximum %s, which counts", kind.name, l.MinTTL, l.MaxTTL)
		}
	}
	if c.Denial.MaxTTL > longDenial {
		p.suspect(s.name(), "denial: names that do not exist are remembered for up to %s; more than a day causes trouble (RFC 2308, 5): write a lower TTL, such as `denial 9984 1800`", c.Denial.MaxTTL)
	}
}

// defaultCache is `cache` without arguments.
func defaultCache() Cache {
	return Cache{
		Success:  CacheLimits{Entries: 9984, MaxTTL: time.Hour, MinTTL: 5 * time.Second},
		Denial:   CacheLimits{Entries: 9984, MaxTTL: 30 * time.Minute, MinTTL: 5 * time.Second},
		Servfail: 5 * time.Second,
	}
}

// limits is the `success` and the `denial` option.
func (c *Cache) limits(p *parser, name string, dst *CacheLimits) option {
	return opt(name+" CAPACITY [TTL] [MINTTL]", func(args []token) {
		n, _ := p.number(args[0], 0, maxEntries)
		if dst.Entries = int(n); n == 0 {
			dst.Entries = fewestEntries
			p.suspect(args[0], "0 entries are read as %d, CoreDNS's smallest cache; `disable %s` turns the cache off", fewestEntries, name)
		}
		if len(args) > 1 {
			dst.MaxTTL = c.seconds(p, args[1], 1)
		}
		if len(args) > 2 {
			dst.MinTTL = c.seconds(p, args[2], 0)
		}
	})
}

// disable is the `disable` option. If it is given twice for one kind, the last one counts,
// as in CoreDNS.
func (c *Cache) disable(p *parser, args []token) {
	limits, ok := choice(p, args[0], "kind", map[string]*CacheLimits{"success": &c.Success, "denial": &c.Denial})
	if !ok {
		return
	}
	if limits.Disabled = p.zones(args[1:]); len(args) == 1 {
		limits.Disabled = []wire.Name{wire.Root}
	}
}

func (c *Cache) seconds(p *parser, w token, least int64) time.Duration {
	n, _ := p.number(w, least, maxTTL)
	return time.Duration(n) * time.Second
}
