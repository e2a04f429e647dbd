package cache

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// askTimeout bounds one ask, as `forward` is bounded: stub resolvers give up after
// five seconds (resolv.conf(5), timeout), so a later answer has no reader, and a
// shorter bound would cut off a second upstream that still has time to answer.
const askTimeout = 5 * time.Second

// boarding is what a flight is found by: a key, and the RD bit. A reply to a query
// without RD is what the upstream happened to have, a referral for example: not
// what a client that wants recursion waits for.
type boarding struct {
	key string
	rd  bool
}

// flight is an ask under way and those who wait for it.
type flight struct {
	shard *shard
	boarding
	done chan struct{} // closed when it lands; the result does not change after

	packed wire.Packed
	ttl    uint32
	err    error

	waiting int // under the shard's lock: clients whose contexts have not ended
	cancel  context.CancelFunc
}

// board finds the flight for key or starts one; s is locked.
func (s *shard) board(key string, rd bool) (f *flight, first bool) {
	if f = s.flights[boarding{key, rd}]; f != nil {
		f.waiting++
		return f, false
	}
	f = &flight{shard: s, boarding: boarding{strings.Clone(key), rd}, done: make(chan struct{}), waiting: 1}
	s.flights[f.boarding] = f
	return f, true
}

// leave is one client's end of waiting. With the last one the ask is over, and the
// next client starts a new flight.
func (f *flight) leave() {
	f.shard.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last {
		f.remove()
	}
	f.shard.mu.Unlock()
	if last {
		// Set before the first client could leave, and all leave under the lock.
		f.cancel()
	}
}

// remove takes f off its shard, which is locked. Another may have taken its place.
func (f *flight) remove() {
	if f.shard.flights[f.boarding] == f {
		delete(f.shard.flights, f.boarding)
	}
}

// land ends the flight: from here on clients find the entry, or start another one.
func (f *flight) land() {
	f.shard.mu.Lock()
	f.remove()
	f.shard.mu.Unlock()
	f.cancel()
	close(f.done)
}

// wait is what all clients but the first do.
func (f *flight) wait(ctx context.Context, r *wire.Reply) error {
	select {
	case <-f.done:
	case <-ctx.Done():
		f.leave()
		return ctx.Err()
	}
	return f.fill(r)
}

func (f *flight) fill(r *wire.Reply) error {
	if f.err == nil {
		r.Copy(f.packed, f.ttl)
	}
	return f.err
}

// lead asks for everybody on board.
func (c *Cache) lead(ctx context.Context, f *flight, q *wire.Query, r *wire.Reply, ask func(context.Context) (wire.Response, error)) error {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	f.cancel = cancel
	f.err = errUnfinished // stands if the ask panics
	defer f.land()
	stop := context.AfterFunc(ctx, f.leave)
	defer stop()

	resp, err := ask(asking)
	switch {
	case err == nil:
		c.settle(f, q, resp)
	case errors.Is(err, ErrLocal), errors.Is(asking.Err(), context.Canceled):
		f.err = err
	default:
		c.settle(f, q, wire.ErrorResponse(q, wire.ServFail))
		f.err = err
	}
	return f.fill(r)
}

// settle makes resp the flight's result and keeps it if it may be kept.
func (c *Cache) settle(f *flight, q *wire.Query, resp wire.Response) {
	if !resp.Packed.For(q) {
		f.shard.mu.Lock()
		f.shard.drops++
		f.shard.mu.Unlock()
		f.err = ErrQuestion
		return
	}
	v := c.judge(q, &resp)
	f.packed, f.ttl, f.err = resp.Packed, seconds(v.life), nil
	if v.keep {
		f.shard.put(f.key, v.kind, entry{packed: resp.Packed, stored: c.now(), life: v.life})
	}
}
