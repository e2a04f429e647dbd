package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxCuts bounds the names that are looked up for one that is missed: its own, and those
// above it. What clients ask for below a name that isn't there is nearly always one or
// two labels longer. Half as many would leave out a name with a label for the port and
// one for the protocol; twice as many would only make a miss longer, each by a look-up
// in another shard.
const maxCuts = 4

// cuts reports whether resp, the reply to q, says that no name at or below q's exists
// (RFC 8020, 2): an NXDOMAIN for the name itself, not for what an alias leads to.
//
// Only those to the question for A count. There are servers that say NXDOMAIN to AAAA
// for a name that has an A record (RFC 4074, 4.2); to a question for A none does. And
// none for a name that begins with an underscore: there are servers, CoreDNS is one, that
// don't know such a name, the middle of the names of SRV records, and those below it.
// Reverse names and top-level domains don't count: they are put together of parts that
// different servers know, of which some deny what lies between. Clients that want proof
// (DO), or check for themselves (CD), get their own answers.
func cuts(q *wire.Query, resp *wire.Response) bool {
	name := q.Name()
	return resp.Rcode == wire.NXDomain && resp.Answers == 0 && resp.SOA && q.Type == wire.TypeA &&
		q.Class == wire.ClassIN && tags(q) == 0 && len(name) > 1 && name[1] != '_' &&
		len(parent(name)) > 1 && !wire.Under(name, arpa)
}

// arpa is the domain that all reverse names are in.
const arpa wire.Name = "\x04arpa\x00"

// cut makes r the denial of k's name by that of a name at or above it, which no bound
// may part from it, and gives the hit; or else the miss. It is called after a miss.
func (c *Cache) cut(k *key, r *wire.Reply, now time.Duration) Result {
	q, miss := k.q, Result{part: k.part, now: now}
	if c.deniers.Load() == 0 || q.Class != wire.ClassIN || tags(q) != 0 || q.Type == wire.TypeAXFR || q.Type == wire.TypeIXFR {
		return miss
	}
	name, floor := q.Name(), c.floor(q.Name())
	if q.Type == wire.TypeA {
		name = parent(name)
	}
	for range maxCuts {
		if len(name) <= 1 || len(name) < floor {
			return miss
		}
		if res := c.deny(name, r, now); res.Hit() {
			return res
		}
		name = parent(name)
	}
	return miss
}

func parent(name []byte) []byte {
	if len(name) <= 1 {
		return name
	}
	return name[1+name[0]:]
}

// floor is the length of the longest bound that name is in: shorter names than that are
// others' to deny.
func (c *Cache) floor(name []byte) int {
	n := 0
	for _, b := range c.bounds {
		if len(b) > n && wire.Under(name, b) {
			n = len(b)
		}
	}
	return n
}

// deny makes r the denial by the entry that says that there is no name; a miss leaves r.
func (c *Cache) deny(name []byte, r *wire.Reply, now time.Duration) Result {
	h := c.store.hash(name, wire.TypeA, 0, c.id)
	p := c.part(h)
	s := p.shard
	s.mu.Lock()
	i := s.findCut(p, uint32(h), name)
	if i == none || !s.at(i).alive(now) {
		s.mu.Unlock()
		return Result{}
	}
	e := s.at(i)
	res := Result{part: p, now: now, expires: e.expires, hash: e.hash, owner: e.owner, state: resultInferred}
	packed, ttl := e.packed, c.ttl(e, now)
	s.mu.Unlock()
	if !r.Deny(packed, ttl) {
		return Result{}
	}
	return res
}

// findCut gives the slot of p that denies name; s is locked.
func (s *shard) findCut(p *part, hash uint32, name []byte) ref {
	if p.closed {
		return none
	}
	i := *s.bucket(hash)
	for i != none {
		e := s.at(i)
		if e.hash == hash && e.owner&^stateBits == p.owner && e.owner&cutBit != 0 && string(e.packed.Name()) == string(name) {
			break
		}
		i = e.chain
	}
	return i
}
