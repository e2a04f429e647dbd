package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Lease is until when a copy of an answer may be given in its place. Moments are on the
// store's clock.
type Lease struct {
	// Mark is what the copy hangs on: it moves when the entry goes, or is replaced.
	Mark epoch.Mark
	// Expires is when the entry ends; Renew when queries must come to the cache again, so
	// that it can have the name fetched in time: not later than Expires.
	Expires, Renew time.Duration
	// Life is the most that TTLs are, in seconds, and Counts says that they count down to
	// Expires, in seconds rounded up; else they are Life until then.
	Life       uint32
	CountsDown bool
	// Denial is the kind of the answer, for [Cache.CountHits].
	Denial bool
}

// Lease is that of the entry that q has just been answered with; ok is false for what no
// copy may be kept of: an answer that is not of an entry for the question itself, has
// expired, is a failure, or is to be fetched again; and without [Options.Epochs]. It is for
// those who read [epoch.Table.Any] before [Cache.Get], and find it unmoved after Lease.
func (c *Cache) Lease(q *wire.Query, now time.Duration) (t Lease, ok bool) {
	if c.store.epochs == nil {
		return Lease{}, false
	}
	now = c.moment(now)
	k := c.key(q)
	s := k.part.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.find(&k)
	if i == none {
		return Lease{}, false
	}
	e := s.at(i)
	t = Lease{
		Mark:    c.store.epochs.Mark(uint64(e.hash)),
		Expires: e.expires, Renew: e.expires,
		Life: e.life, CountsDown: !c.cfg.KeepTTL,
		Denial: e.owner&kindBit == uint32(denial),
	}
	if c.cfg.Prefetch.Amount > 0 {
		t.Renew -= ttl(e.late(&c.cfg.Prefetch)) // and so nobody is fetching it yet
	}
	if now >= t.Renew || e.packed.Rcode() == wire.ServFail {
		return Lease{}, false
	}
	e.owner |= copiedBit
	return t, true
}

// CountHits says that q was answered n times, until now, with a copy of what Answer gave, of
// the kind that its [Lease] says: they count as if the cache had been asked, and keep the
// entry from being pushed out by others and, with `prefetch`, from running out.
func (c *Cache) CountHits(q *wire.Query, n uint64, denied bool, now time.Duration) {
	now = c.moment(now)
	k := c.key(q)
	s := k.part.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &k.part.lists[success]
	if denied {
		list = &k.part.lists[denial]
	}
	list.hits += n
	i := s.find(&k)
	if i == none {
		return
	}
	e := s.at(i)
	if !e.alive(now) {
		return
	}
	if c.cfg.Prefetch.Amount > 0 {
		e.beat(now, c.cfg.Prefetch.Within, n)
	}
	s.touch(i, e, now)
}

// moment is now, unless the store has a clock of its own.
func (c *Cache) moment(now time.Duration) time.Duration {
	if c.store.moved {
		return c.store.clock()
	}
	return now
}
