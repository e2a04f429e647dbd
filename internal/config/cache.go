package config

import (
	"slices"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Cache is `cache [TTL] [ZONES…] { … }`. It is comparable with reflect.DeepEqual: a
// reload keeps what is cached where nothing of it has changed.
type Cache struct {
	Zones    []wire.Name   // the block's zones where none are given
	Success  CacheLimits   // 9984 entries, 3600s, 5s
	Denial   CacheLimits   // 9984 entries, 1800s, 5s
	Servfail time.Duration // 5s; 0 keeps none
	Prefetch Prefetch
	Stale    Stale
	// KeepTTL gives an answer's first TTL for as long as it is kept.
	KeepTTL bool
	// NXDomainCut answers names below one that does not exist without asking (RFC 8020). It
	// is on where the block is for all names: those of a part of the name space are mostly
	// asked of servers of one's own, CoreDNS among them, which deny names that others are
	// below of.
	NXDomainCut bool
}

// Prefetch is `prefetch AMOUNT [DURATION [PERCENT%]]`.
type Prefetch struct {
	Amount  int           // hits that make a name worth it; 0 is off
	Within  time.Duration // no two of them further apart; 1m
	Percent int           // of its life that is left when it is fetched again; 10
}

// StaleMode is when an expired answer is given.
type StaleMode uint8

// The modes.
const (
	// StaleFallback asks first, and gives the expired answer where that fails or takes
	// long (RFC 8767, 5). It is the default.
	StaleFallback StaleMode = iota
	// StaleImmediate gives the expired answer and asks behind the client's back.
	StaleImmediate
	// StaleVerify asks first every time.
	StaleVerify
)

// Stale is `serve_stale` and `serve_stale_policy`.
type Stale struct {
	// For is how long after its end an answer may be given; 0 is not at all.
	For  time.Duration
	Mode StaleMode
	// ClientTimeout is how long a client waits before it gets the expired answer, 0 until the
	// ask has ended; it means nothing with StaleImmediate.
	ClientTimeout time.Duration
	// TTL is that of expired answers, in whole seconds.
	TTL time.Duration
	// Recheck is how long a name is not asked for again after it failed.
	Recheck time.Duration
	// PreferPositive keeps an answer as long as it may be given, whatever comes that is
	// none.
	PreferPositive bool
}

// CacheLimits bounds one kind of entry.
type CacheLimits struct {
	Entries        int
	MaxTTL, MinTTL time.Duration // MinTTL is at most MaxTTL
	Disabled       []wire.Name   // zones of which nothing is kept
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
	c.NXDomainCut = slices.Contains(p.block.Zones, wire.Root)
	args := s.args()
	if len(args) > 0 {
		if _, err := strconv.Atoi(args[0].text); err == nil {
			c.Success.MaxTTL = c.seconds(p, args[0], 1)
			c.Denial.MaxTTL = c.Success.MaxTTL
			args = args[1:]
		}
	}
	c.Zones = p.zonesOr(args)
	table := options{
		"success": c.limits(p, "success", &c.Success),
		"denial":  c.limits(p, "denial", &c.Denial),
		"servfail": {usage: "servfail DURATION", least: 1, most: 1, set: func(args []token) {
			c.Servfail, _ = p.duration(args[0], 0, maxServfail)
		}},
		"disable": {usage: "disable success|denial [ZONES…]", least: 1, most: -1, set: func(args []token) { c.disable(p, args) }},
		"keepttl": flag("keepttl", &c.KeepTTL),
		"nxdomain_cut": {usage: "nxdomain_cut on|off", least: 1, most: 1, set: func(args []token) {
			c.NXDomainCut, _ = choice(p, args[0], "value", map[string]bool{"on": true, "off": false})
		}},
		"prefetch": {usage: prefetchUsage, least: 1, most: 3, set: func(args []token) { c.Prefetch.parse(p, args) }},
	}
	c.Stale.options(p, s, table)
	p.body(s, table)
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
	return option{usage: name + " CAPACITY [TTL] [MINTTL]", least: 1, most: 3, set: func(args []token) {
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

// disable is the option of that name. Written twice for one kind, the last one counts,
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
