package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// emptyTTL is the TTL of a NOERROR reply without records. Some load balancers answer AAAA
// queries so, and each of them would go upstream otherwise.
const emptyTTL = 5 * time.Second

// cacheability says whether, as what kind and for how long a reply may be cached.
type cacheability struct {
	kind      kind
	ttl       time.Duration
	cacheable bool
}

// classify returns the cacheability of resp, the reply to q, in a cache with cfg:
//
//   - The TTL of an answer to the question is the least TTL of all its records.
//   - The TTL of a denial (NXDOMAIN, or NOERROR without an answer to the question) is
//     min(SOA TTL, SOA MINIMUM) (RFC 2308, 5), or the TTL of its CNAME records if it is
//     less. A denial without an SOA is not cached.
//   - A SERVFAIL is kept for the time of the `servfail` option (RFC 9520).
//   - Other rcodes are not cached: they are about the query, not about the name.
//   - Truncated replies, zone transfers and what `disable` names are not cached, nor are
//     replies to queries without RD, which may lack what the next client wants.
//   - A reply that contradicts itself ([wire.Response.Contradictory]) is not cached.
//
// The limits of `success` or `denial` apply to the TTL even if the reply is not cacheable, so
// that clients see TTLs by one rule.
func classify(cfg *config.Cache, q *wire.Query, resp *wire.Response) cacheability {
	v := classifyRcode(cfg, resp)
	if resp.Truncated || resp.Contradictory || !q.RD() || q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR || v.ttl <= 0 || disabled(cfg, v.kind, q) {
		v.cacheable = false
	}
	return v
}

// disabled reports whether the `disable` option names replies of kind k to q.
func disabled(cfg *config.Cache, k kind, q *wire.Query) bool {
	limits := &cfg.Success
	if k == denial {
		limits = &cfg.Denial
	}
	for _, zone := range limits.Disabled {
		if wire.Under(q.Name(), zone) {
			return true
		}
	}
	return false
}

func classifyRcode(cfg *config.Cache, resp *wire.Response) cacheability {
	switch resp.Rcode {
	case wire.NoError:
		return classifyNoError(cfg, resp)
	case wire.NXDomain:
		return classifyDenial(cfg, resp)
	case wire.ServFail:
		return cacheability{denial, cfg.Servfail, true}
	}
	return cacheability{success, clamp(emptyTTL, cfg.Success), false}
}

func classifyNoError(cfg *config.Cache, resp *wire.Response) cacheability {
	switch {
	case resp.Answered:
		return cacheability{success, clamp(ttlOf(resp.MinTTL), cfg.Success), true}
	case resp.SOA:
		return classifyDenial(cfg, resp)
	case resp.Answers == 0:
		return cacheability{success, clamp(emptyTTL, cfg.Success), true}
	}
	// An alias without its target: the upstream did not finish its work.
	return cacheability{success, clamp(ttlOf(resp.MinTTL), cfg.Success), false}
}

func classifyDenial(cfg *config.Cache, resp *wire.Response) cacheability {
	ttl := emptyTTL
	switch {
	case resp.SOA:
		ttl = ttlOf(min(resp.MinTTL, resp.NegativeTTL))
	case resp.Records > 0:
		ttl = ttlOf(resp.MinTTL)
	}
	return cacheability{denial, clamp(ttl, cfg.Denial), resp.SOA}
}

func ttlOf(s uint32) time.Duration { return time.Duration(s) * time.Second }

func clamp(ttl time.Duration, l config.CacheLimits) time.Duration {
	return min(max(ttl, l.MinTTL), l.MaxTTL)
}
