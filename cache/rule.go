package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// emptyLife is how long a NOERROR reply without answers and without SOA counts: it
// says nothing of its own life. Some load balancers answer AAAA so, and without any
// life each of those queries would go upstream; twice as long would hide a name
// that has just got its first record.
const emptyLife = 5 * time.Second

// verdict is what becomes of a reply: how long its records live, and whether and
// where it is kept.
type verdict struct {
	kind kind
	life time.Duration
	keep bool
}

// judge applies the rules, which the package's tests list as a table:
//
//   - an answer to the question lives as long as the least TTL of all its records;
//   - a denial (NXDOMAIN, or NOERROR whose answers don't answer) with an SOA lives
//     min(SOA TTL, SOA MINIMUM) (RFC 2308, 5), and no longer than the aliases it
//     comes with; without an SOA it is not kept;
//   - a SERVFAIL lives as long as `servfail` says (RFC 9520);
//   - no other rcode is kept: they say something of the query, not of the name;
//   - nor is what is cut short, zone transfers, the answer to a query without RD, which
//     may lack what the next client wants, or what `disable` names;
//   - nor a reply that contradicts itself ([wire.Response.Contradictory]), with or without
//     an SOA: nobody knows what of it is true, and the next reply may say.
//
// The life is clamped by `success` or `denial` even where nothing is kept: every
// client sees TTLs by the same rule.
func (c *Cache) judge(q *wire.Query, resp *wire.Response) verdict {
	v := c.judgeRcode(resp)
	if resp.Truncated || resp.Contradictory || !q.RD() || q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR || v.life <= 0 || c.disabled(v.kind, q) {
		v.keep = false
	}
	return v
}

// disabled reports whether replies of kind k to q are not kept.
func (c *Cache) disabled(k kind, q *wire.Query) bool {
	limits := &c.cfg.Success
	if k == denial {
		limits = &c.cfg.Denial
	}
	for _, zone := range limits.Disabled {
		if wire.Under(q.Name(), zone) {
			return true
		}
	}
	return false
}

func (c *Cache) judgeRcode(resp *wire.Response) verdict {
	switch resp.Rcode {
	case wire.NoError:
		return c.judgeNoError(resp)
	case wire.NXDomain:
		return c.denied(resp)
	case wire.ServFail:
		return verdict{denial, c.cfg.Servfail, true}
	}
	return verdict{success, clamp(emptyLife, c.cfg.Success), false}
}

func (c *Cache) judgeNoError(resp *wire.Response) verdict {
	switch {
	case resp.Answered:
		return verdict{success, clamp(ttl(resp.MinTTL), c.cfg.Success), true}
	case resp.SOA:
		return c.denied(resp)
	case resp.Answers == 0:
		return verdict{success, clamp(emptyLife, c.cfg.Success), true}
	}
	// Aliases that lead nowhere: the upstream did not finish its work.
	return verdict{success, clamp(ttl(resp.MinTTL), c.cfg.Success), false}
}

func (c *Cache) denied(resp *wire.Response) verdict {
	life := emptyLife
	switch {
	case resp.SOA:
		life = ttl(min(resp.MinTTL, resp.NegativeTTL))
	case resp.Records > 0:
		life = ttl(resp.MinTTL)
	}
	return verdict{denial, clamp(life, c.cfg.Denial), resp.SOA}
}

func ttl(s uint32) time.Duration { return time.Duration(s) * time.Second }

func clamp(life time.Duration, l config.CacheLimits) time.Duration {
	return min(max(life, l.MinTTL), l.MaxTTL)
}
