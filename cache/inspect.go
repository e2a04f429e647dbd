package cache

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// EntryInfo describes an entry at one moment.
type EntryInfo struct {
	Name        wire.Name
	Type, Class uint16
	DO, CD      bool // bits of the query, which belong to the key
	Rcode       wire.Rcode
	// Denial: NXDOMAIN, NODATA or a failure. Answers is the number of records in the answer section.
	Denial  bool
	Answers int
	// Subtree: the entry denies all names below, too (RFC 8020).
	Subtree bool
	// Age is the time since the answer came; it is unknown, and -1, after a failed refresh. TTL is what is
	// left, 0 after the expiry.
	Age time.Duration
	TTL time.Duration
	// Stale is for how long the entry may be served, also after its expiry; 0 if expired entries may not.
	// Usable: it may be served, fresh or stale.
	Stale  time.Duration
	Usable bool
	Size   int // in bytes, with what finds it
}

// keyFlags orders entries for the same question.
func (i *EntryInfo) keyFlags() (n int) {
	if i.DO {
		n++
	}
	if i.CD {
		n += 2
	}
	return n
}

// info describes e at now; its shard is locked.
func (c *Cache) info(e *entry, now time.Duration) EntryInfo {
	qtype, class := e.packed.Question()
	i := EntryInfo{
		Name: wire.Name(e.packed.Name()), Type: qtype, Class: class, DO: e.flags&doFlag != 0, CD: e.flags&cdFlag != 0,
		Rcode: e.packed.Rcode(), Denial: e.kind() == denial, Answers: e.packed.Answers(), Subtree: e.flags&cutFlag != 0,
		Age: -1, TTL: max(e.expires-now, 0), Usable: e.alive(now) || c.servable(e, now), Size: int(e.size()),
	}
	if e.flags&failedFlag == 0 {
		i.Age = max(now-e.fetchedAt(), 0)
	}
	if c.cfg.Stale.For > 0 && c.servable(e, now) {
		i.Stale = e.expires + c.cfg.Stale.For - now
	}
	return i
}

// Inspect describes the entry for q at now, as Get would find it; false for none. It is no use of the entry.
func (c *Cache) Inspect(q *wire.Query, now time.Duration) (i EntryInfo, ok bool) {
	now = c.store.now(now)
	k := c.key(q)
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := k.find(); e != nil {
		return c.info(e, now), true
	}
	return EntryInfo{}, false
}

// Entries describes the entries for name, lower case and in wire form, of all types, sorted by type. It is no
// use of them. It may take some milliseconds; the cache stays usable.
func (c *Cache) Entries(name []byte) (list []EntryInfo) {
	now := c.store.clock()
	for i := range c.shards {
		p := &c.shards[i]
		p.visit(p.keys(), func(_ uint64, e *entry) {
			if string(e.packed.Name()) == string(name) {
				list = append(list, c.info(e, now))
			}
		})
	}
	slices.SortFunc(list, func(a, b EntryInfo) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Class, b.Class), cmp.Compare(a.keyFlags(), b.keyFlags()))
	})
	return list
}

// Capacity returns the most entries of each kind.
func (c *Cache) Capacity() Kinds {
	return Kinds{Success: uint64(c.cfg.Success.Entries), Denial: uint64(c.cfg.Denial.Entries)} //nolint:gosec // not negative
}

// Bytes returns what the entries take, with what finds them.
func (c *Cache) Bytes() (n int) {
	for i := range c.shards {
		p := &c.shards[i]
		p.shard.mu.Lock()
		n += int(p.bytes)
		p.shard.mu.Unlock()
	}
	return n
}
