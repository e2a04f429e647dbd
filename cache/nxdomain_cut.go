package cache

import (
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// maxCutLookups bounds the names that are looked up for one miss: the name itself and those
// above it. What clients ask for below a missing name is nearly always one or two labels
// longer.
const maxCutLookups = 4

// deniesSubtree reports whether resp, the reply to q, says that no name at or below q's
// exists (RFC 8020, 2): an NXDOMAIN for the name itself, not for the target of an alias.
//
// Only replies to A queries count: some servers answer NXDOMAIN to AAAA for a name that has
// an A record (RFC 4074, 4.2). Names that begin with an underscore don't count: some servers,
// such as CoreDNS, deny these although SRV records exist below. Reverse names and top-level
// domains don't count: different servers hold the parts, and some deny what lies between. A
// client that asks for proof (DO), or checks for itself (CD), gets its own answers.
func deniesSubtree(q *wire.Query, resp *wire.Response) bool {
	name := q.Name()
	return resp.Rcode == wire.NXDomain && resp.Answers == 0 && resp.SOA && q.Type == wire.TypeA &&
		q.Class == wire.ClassIN && keyFlagsOf(q) == 0 && len(name) > 1 && name[1] != '_' &&
		len(parent(name)) > 1 && !wire.Under(name, arpa)
}

// arpa is the domain of all reverse names.
const arpa wire.Name = "\x04arpa\x00"

// inferDenial finds an entry for a name at or above k's that denies k's name, and makes r that denial. If r is nil, it only
// finds one. No boundary may lie between the two names, and no shard may be locked. It is called after a miss, and returns it
// if there is no such entry.
func (c *Cache) inferDenial(k *key, r *wire.Reply, now time.Duration) Result {
	q, miss := k.q, Result{shard: k.shard, now: now}
	if c.cuts.Load() == 0 || !mayInfer(k) {
		return miss
	}
	name, shortest := q.Name(), c.boundaryLen(q.Name())
	if q.Type == wire.TypeA { // that lookup has just missed
		name = parent(name)
	}
	for range maxCutLookups {
		if len(name) <= 1 || len(name) < shortest {
			return miss
		}
		if res := c.denyBy(name, r, now); res.Hit() {
			return res
		}
		name = parent(name)
	}
	return miss
}

// mayInfer reports whether k's question may be answered by the denial of a name above.
func mayInfer(k *key) bool {
	return k.q.Class == wire.ClassIN && k.flags == 0 && k.q.Type != wire.TypeAXFR && k.q.Type != wire.TypeIXFR
}

// parent returns name without its first label; it is empty for the root.
func parent(name []byte) []byte { return name[1+name[0]:] }

// boundaryLen returns the length of the longest boundary that name is under, 0 if there is
// none. Names shorter than that belong to other servers.
func (c *Cache) boundaryLen(name []byte) int {
	n := 0
	for _, b := range c.boundaries {
		if len(b) > n && wire.Under(name, b) {
			n = len(b)
		}
	}
	return n
}

// denyBy makes r a denial by the entry that says that name does not exist, unless r is nil. At a
// miss r is unchanged. An entry for a name at or below name that exists is proof that the denial says
// nothing about the names below.
func (c *Cache) denyBy(name []byte, r *wire.Reply, now time.Duration) Result {
	h := c.store.hash(name, wire.TypeA, wire.ClassIN, 0)
	p := c.shardOf(h)
	s := p.shard
	s.mu.Lock()
	e := p.at(h)
	if e == nil || e.flags&cutFlag == 0 || !e.alive(now) || string(e.packed.Name()) != string(name) {
		s.mu.Unlock()
		return Result{}
	}
	packed, ttl := e.packed, c.ttl(e, now)
	s.mu.Unlock()
	if c.existing.has(c.nameHash(name)) || r != nil && !r.Deny(packed, ttl) {
		return Result{}
	}
	return Result{shard: p, entry: e, hash: h, now: now, state: resultCut}
}

// DeniedBy describes the denial of a name at or above q's that answers q at now, for which there is no entry; false for
// none. It is no use of the entry.
func (c *Cache) DeniedBy(q *wire.Query, now time.Duration) (i EntryInfo, ok bool) {
	now = c.store.now(now)
	k := c.key(q)
	res := c.inferDenial(&k, nil, now)
	if !res.Hit() {
		return EntryInfo{}, false
	}
	s := res.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.info(res.entry, now), true
}

// maxExistingNames bounds the names that are counted for one entry: its own and those above it. While an entry has
// a name that is longer, no denial answers for other names.
const maxExistingNames = 16

// existingNames counts, by hash, the entries that show that a name exists: those for the name and for names below
// it that have records, or another type. Servers deny names that have names below: CoreDNS where `hosts` or another
// plugin holds these, Unbound for `local-data`. It is empty without `nxdomain_cut`. It is safe for concurrent use.
type existingNames struct {
	mu     sync.Mutex
	counts map[uint64]int32
	long   int // entries with more names than are counted
}

// noteExisting adds n, which is 1 or -1, to the number of entries for each name that e shows to exist.
func (c *Cache) noteExisting(e *entry, n int32) {
	if !c.cfg.NXDomainCut || e.packed.Rcode() != wire.NoError && e.packed.Answers() == 0 {
		return
	}
	x := &c.existing
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts == nil {
		x.counts = make(map[uint64]int32)
	}
	name := e.packed.Name()
	for range maxExistingNames {
		if len(name) <= 1 {
			return
		}
		h := c.nameHash(name)
		if x.counts[h] += n; x.counts[h] == 0 {
			delete(x.counts, h)
		}
		name = parent(name)
	}
	if len(name) > 1 {
		x.long += int(n)
	}
}

// clear forgets all names.
func (x *existingNames) clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts, x.long = nil, 0
}

// has reports whether the name with hash h, or one below it, exists.
func (x *existingNames) has(h uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.long > 0 || x.counts[h] > 0
}

// nameHash returns the hash of a name for [existingNames].
func (c *Cache) nameHash(name []byte) uint64 { return c.store.hash(name, 0, 0, 0) }
