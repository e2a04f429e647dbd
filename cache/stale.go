package cache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// outage is how many names in a row make it the upstreams that fail, and not the
	// names. With half of it two broken names would do, with twice as many the clients of
	// that many names wait in full.
	outage = 4
	// hurried is the patience in an outage. An upstream that is well answers nearly always
	// in half of that; twice as much is what clients feel with each name.
	hurried = 100 * time.Millisecond
	// probing is how far apart asks are in an outage, whatever the name. Half of it would
	// find the end of an outage half a second earlier, and send twice as much to servers
	// that may be down for having too much to do.
	probing = time.Second
	// claim is how long nobody else is told to fetch a name again, if who was told does
	// not: longer than an ask takes, which is five seconds. With half of it a second one
	// would start while the first is waiting; twice as much is lost time.
	claim = 6 * time.Second
)

// errCrowded is what those get who wait for an ask for which there was no place, and
// have no expired answer.
var errCrowded = errors.New("no place to ask in")

// aged is an expired answer that may be given; zero for none.
type aged struct {
	packed   wire.Packed
	positive bool
}

// usable reports whether e, which has expired, may be given at now.
func (c *Cache) usable(e *slot, now time.Duration) bool {
	return now < e.expires+c.cfg.Stale.For && e.packed.Rcode() != wire.ServFail
}

// positive reports whether e answers its question.
func (e *slot) positive() bool { return e.owner&kindBit == uint32(success) && e.packed.Answers() > 0 }

// holds reports whether old stays where n comes: a failure is worse than whatever may
// still be given, and with `prefer_positive` so is all that is no answer.
func (c *Cache) holds(old *slot, n *entry) bool {
	failed := n.packed.Rcode() == wire.ServFail
	refused := c.cfg.Stale.PreferPositive && old.positive() && (n.kind == denial || n.packed.Answers() == 0)
	return (failed || refused) && (old.alive(n.stored) && old.packed.Rcode() != wire.ServFail || c.usable(old, n.stored))
}

// worse reports whether old is to be given in place of what an ask came to.
func (c *Cache) worse(n *result, old aged) bool {
	return n.failed || n.err != nil || c.cfg.Stale.PreferPositive && old.positive && !n.positive
}

// servedAtOnce reports whether e, which has expired, is given to a client that comes at now
// without waiting for an exchange. The shard is locked.
//
// By RFC 8767, 5 a client waits for the first ask after the end of an entry; when that
// has failed, none waits for the name again until one ask has come to something, and
// asks are as far apart as the failure recheck timer says.
func (c *Cache) servedAtOnce(e *slot, now time.Duration) bool {
	if !c.usable(e, now) {
		return false
	}
	switch mode := c.cfg.Stale.Mode; {
	case c.resting(e, now), mode == config.StaleImmediate:
		return true
	default:
		return mode == config.StaleFallback && e.owner&failedBit != 0
	}
}

// claimStale reports whether the client that is given e, which has expired, at now is to
// refresh it, and if so leaves it to this client for a while. The shard is locked.
func (c *Cache) claimStale(e *slot, now time.Duration) bool {
	if c.resting(e, now) && !c.probes(now) {
		return false
	}
	e.rest(now + c.claim())
	return true
}

// rest keeps everybody from asking for e before until, in whole seconds.
func (e *slot) rest(until time.Duration) {
	e.owner |= failedBit
	e.life = uint32(until / time.Second)
}

// resting reports whether nobody is to ask for e, which has expired, at now. When an
// outage has ended, what failed in it need not wait.
func (c *Cache) resting(e *slot, now time.Duration) bool {
	until := time.Duration(e.life) * time.Second
	if e.owner&failedBit == 0 || now >= until {
		return false
	}
	at := time.Duration(c.recovered.Load())
	return at == 0 || at < until-c.claim()
}

// probes reports whether somebody is to ask in an outage at now although the name rests:
// as soon as one ask comes to something, all that failed is asked for again.
func (c *Cache) probes(now time.Duration) bool {
	if c.failures.Load() < outage {
		return false
	}
	due := c.probe.Load()
	return int64(now) >= due && c.probe.CompareAndSwap(due, int64(now+probing))
}

// claim is how long a name is left alone that somebody was told to ask for: at least as
// long as one that has failed.
func (c *Cache) claim() time.Duration { return max(claim, c.cfg.Stale.Recheck) }

// give makes r the expired answer old.
func (c *Cache) give(p *part, old aged, r *wire.Reply) {
	p.shard.mu.Lock()
	p.stale++
	p.shard.mu.Unlock()
	r.Copy(old.packed, seconds(c.cfg.Stale.TTL))
}

// fetchOver is Fetch where e has expired and may be given. The shard is locked when it
// is called, and not when it returns.
func (c *Cache) fetchOver(ctx context.Context, k *key, e *slot, r *wire.Reply, ask ExchangeFunc) error {
	s, st := k.part.shard, &c.cfg.Stale
	old := aged{e.packed, e.positive()}
	f, done := s.board(k)
	switch {
	case done != nil:
		s.mu.Unlock()
		if st.Mode == config.StaleVerify && (st.Patience > 0 || st.Recheck > 0) { // one verifies
			c.give(k.part, old, r)
			return nil
		}
		return c.sit(ctx, k, seat{f: f, done: done, old: old}, r)
	case st.Patience == 0:
		s.mu.Unlock()
		return c.lead(ctx, f, ask, seat{old: old}, r)
	}
	w := newErrand(k.q) // the flight outlives k's query
	f.q, f.done = &w.q, make(chan struct{})
	done = f.done
	s.mu.Unlock()
	c.send(f, w, ask)
	return c.sit(ctx, k, seat{f: f, done: done, old: old}, r)
}

// send has f led by another goroutine; where there is no place it lands at once.
func (c *Cache) send(f *flight, w *errand, ask ExchangeFunc) {
	if !c.store.run(func(ctx context.Context) {
		_ = c.lead(ctx, f, ask, seat{}, nil)
		errands.Put(w)
	}) {
		f.err, f.failed = errCrowded, true
		f.part.shard.land(f, entry{})
	}
}

// sit waits for a flight, with k's expired answer at hand, as long as the patience lasts.
func (c *Cache) sit(ctx context.Context, k *key, at seat, r *wire.Reply) error {
	patience := c.patience()
	if patience == 0 {
		return c.wait(ctx, at, r)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-at.done:
		return c.deliver(at.f, at.old, r)
	case <-timer.C:
		s := k.part.shard
		s.mu.Lock()
		if c.fail(k, c.cfg.Stale.Recheck) && !at.f.late {
			at.f.late = true
			c.failures.Add(1)
		}
		s.mu.Unlock()
		c.give(k.part, at.old, r)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patience is how long a client waits now before it gets the expired answer; 0 is until
// the flight has landed.
func (c *Cache) patience() time.Duration {
	p := c.cfg.Stale.Patience
	if c.cfg.Stale.Mode == config.StaleFallback && c.failures.Load() >= outage {
		return min(p, hurried)
	}
	return p
}

// note takes down how f has ended. The shard is locked.
func (c *Cache) note(f *flight, e *entry) {
	switch {
	case e.failed && f.began < time.Duration(c.recovered.Load()): // it is of an outage that is over
		c.fail(&f.key, 0)
	case e.failed:
		if c.fail(&f.key, c.cfg.Stale.Recheck) && !f.late {
			c.failures.Add(1)
		}
	case !e.heard:
		c.unclaim(&f.key, c.store.clock())
	case c.failures.Load() != 0 && c.failures.Swap(0) >= outage:
		c.recovered.Store(int64(c.store.clock()))
	}
}

// fail takes down that asking for k's name has failed, so that it rests for a while, and
// reports whether an expired answer is there to be given meanwhile. The shard is locked.
func (c *Cache) fail(k *key, while time.Duration) bool {
	now := c.store.clock()
	e := c.unclaim(k, now)
	if e == nil || e.alive(now) || !c.usable(e, now) {
		return false
	}
	e.rest(now + while)
	return true
}

// unclaim lets somebody else be told to fetch k's entry again before its end, and gives
// the entry, nil if there is none. The shard is locked.
func (c *Cache) unclaim(k *key, now time.Duration) *slot {
	i := k.part.shard.find(k)
	if i == none {
		return nil
	}
	e := k.part.shard.at(i)
	if e.alive(now) && e.used&hitMask == claimed {
		e.used = e.used&^hitMask | uint64(c.cfg.Prefetch.Amount)
	}
	return e
}

// errand is a copy of a query for an ask that outlives it.
type errand struct {
	q      wire.Query
	packet []byte
}

// maxErrand is the longest packet whose buffer is kept for the next one. Stub resolvers
// send 300 bytes at most; twice as much would be kept for the few that pad.
const maxErrand = 512

var errands = sync.Pool{New: func() any { return &errand{packet: make([]byte, 0, maxErrand)} }}

func newErrand(q *wire.Query) *errand {
	w := errands.Get().(*errand)
	w.q = *q
	w.q.Packet = append(w.packet[:0:maxErrand], q.Packet...)
	return w
}
