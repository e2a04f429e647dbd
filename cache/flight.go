package cache

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// flightBuckets is the number of chains in which a shard finds its flights. The
// server lets 4,096 queries wait: were they all flights there would be two to a
// chain. Half as many would make it four; twice as many would save one comparison of
// two numbers.
const flightBuckets = 64

// flight is an ask under way and those who wait for it. The lock of the key's shard
// guards next and done; the first client alone writes the result, and all read it
// after done is closed.
type flight struct {
	// key's query is the first client's, which stays as it is until the flight lands.
	key
	next *flight       // in the chain, or of the spare ones
	done chan struct{} // closed when it has landed; nil as long as nobody waits

	began   time.Duration // the ask, on the store's clock; 0 where nothing expired is ever given
	warm    bool          // it is for the sake of the entry in the cache, see entry
	late    bool          // somebody has waited for longer than the patience
	flushed bool          // what it is about to bring was removed before it came

	result
}

// result is what an ask came to.
type result struct {
	packed wire.Packed
	ttl    uint32
	err    error
	// failed says that an expired answer is better, positive that it answers the question.
	failed, positive bool
}

// seat is what somebody has who waits for a flight, or leads it: done is closed when it
// has landed; old is the expired answer at hand, zero for none.
type seat struct {
	f    *flight
	done <-chan struct{}
	old  aged
}

// flightsOf is the chain that k's flight is in; s is locked.
func (s *shard) flightsOf(k *key) **flight {
	return &s.flights[k.hash%flightBuckets]
}

// board finds the flight for k or starts one; s is locked. done is what to wait for,
// nil for the first client.
func (s *shard) board(k *key) (f *flight, done <-chan struct{}) {
	chain := s.flightsOf(k)
	for f = *chain; f != nil; f = f.next {
		if !f.takes(k) {
			continue
		}
		if f.done == nil {
			f.done = make(chan struct{})
		}
		return f, f.done
	}
	if f = s.spare; f != nil {
		s.spare = f.next
	} else {
		f = new(flight)
	}
	f.key, f.next = *k, *chain
	*chain = f
	return f, nil
}

// takes reports whether k's client may wait for f: the key is the same and so is
// the RD bit. A reply to a query without RD is what the upstream happened to have, a
// referral for example: not what a client that wants recursion waits for.
func (f *flight) takes(k *key) bool {
	a, b := f.q, k.q
	return !f.flushed && f.hash == k.hash && f.part == k.part && f.owner == k.owner && a.RD() == b.RD() &&
		a.Type == b.Type && a.Class == b.Class && bytes.Equal(a.Name(), b.Name())
}

// land ends f and keeps e if its life is not zero: from here on clients find the
// entry, or start another flight. Nobody but those who wait may use f afterwards.
func (s *shard) land(f *flight, e entry) {
	s.mu.Lock()
	if !f.flushed {
		if e.life > 0 && !s.put(&f.key, e) {
			e.heard, e.failed = false, true
		}
		f.part.cache.note(f, &e)
	}
	at := s.flightsOf(&f.key)
	for *at != f {
		at = &(*at).next
	}
	*at = f.next
	done := f.done
	if done == nil {
		*f = flight{next: s.spare}
		s.spare = f
	}
	s.mu.Unlock()
	if done != nil {
		close(done)
	}
	if e.life > 0 {
		s.store.trim(s)
	}
}

// wait is what all clients but the first do, and the first where its flight is another
// goroutine's.
func (c *Cache) wait(ctx context.Context, at seat, r *wire.Reply) error {
	select {
	case <-at.done:
		return c.deliver(at.f, at.old, r)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver makes r what f has brought, or else the expired answer.
func (c *Cache) deliver(f *flight, old aged, r *wire.Reply) error {
	switch {
	case !old.packed.IsZero() && c.worse(&f.result, old):
		c.give(f.part, old, r)
		return nil
	case f.err == nil:
		r.Copy(f.packed, f.ttl)
	}
	return f.err
}

// lead asks for everybody on board, and makes r the result; a nil r is left.
func (c *Cache) lead(ctx context.Context, f *flight, ask ExchangeFunc, at seat, r *wire.Reply) (err error) {
	s := f.part.shard
	f.err, f.failed = errUnfinished, true // stands if the ask panics
	if c.cfg.Stale.For > 0 {
		f.began = c.store.clock()
	}
	var e entry
	defer func() { s.land(f, e) }()

	resp, err := ask(ctx, f.q)
	switch {
	case err == nil:
		e = c.settle(f, &resp)
	case errors.Is(err, ErrLocal), errors.Is(ctx.Err(), context.Canceled):
		f.err = err
	default:
		resp = wire.ErrorResponse(f.q, wire.ServFail)
		e = c.settle(f, &resp)
		f.err = err
	}
	if r == nil {
		return nil
	}
	return c.deliver(f, at.old, r)
}

// settle makes resp the flight's result and gives what is to be kept of it.
func (c *Cache) settle(f *flight, resp *wire.Response) (e entry) {
	if !resp.Packed.For(f.q) {
		s := f.part.shard
		s.mu.Lock()
		f.part.drops++
		s.mu.Unlock()
		f.err = ErrMismatch
		return entry{failed: true}
	}
	v := c.judge(f.q, resp)
	f.result = result{
		packed: resp.Packed, ttl: seconds(v.life), positive: resp.Answered,
		failed: resp.Truncated || resp.Rcode != wire.NoError && resp.Rcode != wire.NXDomain,
	}
	e = entry{heard: !f.failed, failed: f.failed}
	if v.keep {
		e.packed, e.kind, e.stored, e.life = resp.Packed, v.kind, c.store.clock(), v.life
		e.cut, e.warm = c.cfg.NXDomainCut && cuts(f.q, resp), f.warm
	}
	return e
}
