package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Result is what [Cache.Get] found for one question. It is a value: it refers to no query,
// and it stays valid whatever happens to the cache. The zero Result counts nothing.
type Result struct {
	part    *part // where the lookup is counted; nil in the zero Result
	now     time.Duration
	expires time.Duration // with hash and owner, tells whether the entry is still the same
	hash    uint32
	owner   uint32
	state   resultState
}

type resultState uint8

const (
	resultMiss resultState = iota
	resultFresh
	resultStale
	resultInferred // from the denial of a name at or above the question's (nxdomain_cut)
)

// Hit reports whether Get has completed the reply.
func (r *Result) Hit() bool { return r.state != resultMiss }

// Get makes r the cached reply to q, with the TTL that is left at now, a time on the
// store's clock. At a miss r is unchanged. Get changes nothing in the cache: the caller
// counts the lookup with [Result.Count] when the query is finished, or drops the Result if
// the query will be run again. It never blocks on the network and allocates only what r's
// buffer needs to grow.
func (c *Cache) Get(q *wire.Query, r *wire.Reply, now time.Duration) Result {
	now = c.moment(now)
	k := c.key(q)
	s := k.part.shard
	s.mu.Lock()
	e, res := c.seek(&k, now)
	if e == nil {
		s.mu.Unlock()
		return c.cut(&k, r, now)
	}
	packed, ttl := e.packed, c.ttl(e, now)
	s.mu.Unlock()
	r.Copy(packed, ttl)
	return res
}

// seek finds the entry that answers k at once, nil if there is none. k's shard is locked.
func (c *Cache) seek(k *key, now time.Duration) (*slot, Result) {
	res := Result{part: k.part, now: now}
	s := k.part.shard
	i := s.find(k)
	if i == none {
		return nil, res
	}
	e := s.at(i)
	switch {
	case e.alive(now):
		res.state = resultFresh
	case c.servedAtOnce(e, now):
		res.state = resultStale
	default:
		return nil, res
	}
	res.expires, res.hash, res.owner = e.expires, e.hash, e.owner
	return e, res
}

// Count counts the lookup as a request, and as a hit, a stale answer or a miss, and marks
// the entry as used. It reports whether the caller must now call [Cache.Refresh] for the
// same question; no other caller is told so for a while. Call it at most once. It never
// blocks on the network and allocates nothing.
func (r *Result) Count() (refresh bool) {
	if r.part == nil {
		return false
	}
	s := r.part.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.count()
}

// count is Count with the shard locked.
func (r *Result) count() (refresh bool) {
	p, c := r.part, r.part.cache
	if r.state == resultMiss {
		p.misses++
		return false
	}
	p.lists[r.owner&kindBit].hits++
	switch r.state {
	case resultStale:
		p.stale++
	case resultInferred:
		p.cuts++
	}
	i := p.shard.findAgain(r)
	if i == none {
		return false
	}
	e := p.shard.at(i)
	switch {
	case r.state == resultStale:
		refresh = c.claimStale(e, r.now)
	case r.state == resultFresh && c.cfg.Prefetch.Amount > 0:
		if e.beat(r.now, c.cfg.Prefetch.Within, 1); e.due(&c.cfg.Prefetch, r.now) {
			e.used |= claimed
			refresh = true
		}
	}
	p.shard.touch(i, e, r.now)
	return refresh
}

// findAgain finds the entry that r is about; s is locked.
func (s *shard) findAgain(r *Result) ref {
	if r.part.closed {
		return none
	}
	i := *s.bucket(r.hash)
	for i != none {
		e := s.at(i)
		if e.hash == r.hash && (e.owner^r.owner)&^(failedBit|copiedBit) == 0 && e.expires == r.expires {
			break
		}
		i = e.chain
	}
	return i
}
