package cache

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// outageTimeout is the client timeout in an outage. A healthy upstream nearly always
	// answers sooner, and clients feel it with each name.
	outageTimeout = 100 * time.Millisecond
	// probeInterval is the time between exchanges in an outage, whatever the name: servers
	// that are down for being overloaded see little of it.
	probeInterval = time.Second
	// refreshTimeout is how long no other client is told to refresh a name: longer than the
	// five seconds that an exchange takes.
	refreshTimeout = 6 * time.Second
)

// errBusy is the error of clients that wait for an exchange that [Options.Go] refused, and
// have no expired answer.
var errBusy = fmt.Errorf("%w: too many exchanges", ErrLocal)

// staleAnswer is an expired answer that may be served; zero for none.
type staleAnswer struct {
	packed   wire.Packed
	positive bool
}

// servable reports whether e may be served at now: it is no failure, and is alive or may be served
// although it has expired.
func (c *Cache) servable(e *entry, now time.Duration) bool {
	return now < e.expires+c.cfg.Stale.For && e.packed.Rcode() != wire.ServFail
}

// keepsOld reports whether old stays where n would replace it. A failure does not replace
// what may still be served; with `prefer_positive` only an answer replaces an answer.
func (c *Cache) keepsOld(old *entry, n *fetched) bool {
	failed := n.packed.Rcode() == wire.ServFail
	lesser := c.cfg.Stale.PreferPositive && old.positive() && (n.kind == denial || n.packed.Answers() == 0)
	return (failed || lesser) && c.servable(old, n.at)
}

// preferStale reports whether old is served in place of n.
func (c *Cache) preferStale(n *callResult, old staleAnswer) bool {
	return n.failed || n.err != nil || c.cfg.Stale.PreferPositive && old.positive && !n.positive
}

// servedAtOnce reports whether e, which has expired, is served at now without waiting for an
// exchange; the shard is locked.
//
// By RFC 8767, 5, a client waits for the first exchange after the expiry. Once that has
// failed, no client waits for the name until an exchange succeeds, and exchanges are as far
// apart as the failure recheck timer says.
func (c *Cache) servedAtOnce(e *entry, now time.Duration) bool {
	if !c.servable(e, now) {
		return false
	}
	switch mode := c.cfg.Stale.Mode; {
	case c.backingOff(e, now), mode == config.StaleImmediate:
		return true
	default:
		return mode == config.StaleFallback && e.flags&failedFlag != 0
	}
}

// claimStale reports whether the client that is served e, which has expired, at now is to
// refresh it. If so, no other client is for a while. The shard is locked.
func (c *Cache) claimStale(e *entry, now time.Duration) bool {
	if c.backingOff(e, now) && !c.claimProbe(now) {
		return false
	}
	e.backOff(now + c.claimTime())
	return true
}

// backingOff reports whether no client is to refresh e, which has expired, at now. The end
// of an outage ends the wait of the names that failed in it.
func (c *Cache) backingOff(e *entry, now time.Duration) bool {
	if e.flags&failedFlag == 0 || now >= e.retryAt() {
		return false
	}
	at := time.Duration(c.recoveredAt.Load())
	return at == 0 || at < e.retryAt()-c.claimTime()
}

// claimProbe reports whether a client is to exchange at now, in an outage, although its name
// backs off: the first success ends the outage for all names.
func (c *Cache) claimProbe(now time.Duration) bool {
	if !c.failures.outage() {
		return false
	}
	at := c.nextProbe.Load()
	return int64(now) >= at && c.nextProbe.CompareAndSwap(at, int64(now+probeInterval))
}

// claimTime is how long a name is left alone that a client was told to refresh: at least as
// long as one that failed.
func (c *Cache) claimTime() time.Duration { return max(refreshTimeout, c.cfg.Stale.Recheck) }

// serveStale makes r the expired answer old.
func (c *Cache) serveStale(p *cacheShard, old staleAnswer, r *wire.Reply) {
	p.shard.mu.Lock()
	p.stale++
	p.shard.mu.Unlock()
	r.Copy(old.packed, seconds(c.cfg.Stale.TTL))
}

// fetchStale is fetch where e has expired and may be served. It is called with the shard
// locked, and unlocks it.
func (c *Cache) fetchStale(ctx context.Context, k *key, e *entry, r *wire.Reply, exchange ExchangeFunc) error {
	s, st := k.shard.shard, &c.cfg.Stale
	old := staleAnswer{e.packed, e.positive()}
	f, done := s.join(k)
	if done == nil {
		f.client = share.AddrOf(ctx)
	}
	switch {
	case done != nil && st.Mode == config.StaleVerify && (st.ClientTimeout > 0 || st.Recheck > 0): // one client verifies
		s.mu.Unlock()
		c.serveStale(k.shard, old, r)
		return nil
	case done != nil:
		f.waiters++
		s.mu.Unlock()
		return c.waitOrStale(ctx, k, waiter{call: f, done: done, old: old}, r, exchange)
	case st.ClientTimeout == 0:
		s.mu.Unlock()
		return c.do(withStale(ctx), f, exchange, waiter{old: old}, r)
	}
	f.copied = copyQuery(k.q) // the call outlives k's query
	f.q, f.done, f.waiters = &f.copied.q, make(chan struct{}, 1), 1
	done = f.done
	s.mu.Unlock()
	c.start(f, exchange)
	return c.waitOrStale(ctx, k, waiter{call: f, done: done, old: old}, r, exchange)
}

// staleKey is the key of a context value that marks an exchange for a client that has an expired answer.
type staleKey struct{}

func withStale(ctx context.Context) context.Context { return context.WithValue(ctx, staleKey{}, true) }

// HasStale reports whether an [ExchangeFunc] that is called with ctx should fail with an [ErrLocal] rather than wait for
// a turn: the client gets its expired answer then.
func HasStale(ctx context.Context) bool { return ctx.Value(staleKey{}) != nil }

// start runs f, which has a query of its own, on another goroutine. If [Options.Go] refuses, f
// ends at once.
func (c *Cache) start(f *call, exchange ExchangeFunc) {
	if !c.store.run(func(ctx context.Context) { _ = c.do(withStale(ctx), f, exchange, waiter{}, nil) }) {
		f.err, f.failed = errBusy, true
		f.shard.shard.finish(f, fetched{})
	}
}

// waitOrStale waits for a call, for at most the client timeout; then it serves k's expired
// answer. If the call's leader is evicted, it goes on with the call on another goroutine.
func (c *Cache) waitOrStale(ctx context.Context, k *key, w waiter, r *wire.Reply, exchange ExchangeFunc) error {
	timeout := c.clientTimeout(ctx)
	if timeout == 0 {
		_, err := c.wait(ctx, w, r, exchange)
		return err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	s := k.shard.shard
	for {
		select {
		case _, leads := <-w.done:
			if !leads {
				return c.deliver(w.call, w.old, r)
			}
			c.start(w.call, exchange)
		case <-timer.C:
			c.timedOut(ctx, k, w)
			s.leave(w.call)
			c.serveStale(k.shard, w.old, r)
			return nil
		case <-ctx.Done():
			s.leave(w.call)
			return c.interrupted(ctx, k.shard, w.old, r)
		}
	}
}

// timedOut records that a client has waited for w's call, for k, longer than the client timeout.
func (c *Cache) timedOut(ctx context.Context, k *key, w waiter) {
	s := k.shard.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.noteFailure(k, c.cfg.Stale.Recheck) && !w.call.late {
		w.call.late = true
		c.failures.add(k.q.Name(), share.AddrOf(ctx))
	}
}

// clientTimeout is how long a client waits now before it is served the expired answer (RFC
// 8767, 5); 0: until the call ends.
func (c *Cache) clientTimeout(ctx context.Context) time.Duration {
	t := c.cfg.Stale.ClientTimeout
	if c.cfg.Stale.Mode == config.StaleFallback && c.failures.outageFor(ctx) {
		return min(t, outageTimeout)
	}
	return t
}

// noteOutcome records how f ended, for the entry of its key and for the detection of
// outages; the shard is locked. A SERVFAIL is a failure of its name, and a sign of life of the server.
func (c *Cache) noteOutcome(f *call, n *fetched) {
	switch {
	case n.failed && f.began < time.Duration(c.recoveredAt.Load()): // it began in an outage that is over
		c.noteFailure(&f.key, 0)
	case n.failed:
		counts := c.noteFailure(&f.key, c.cfg.Stale.Recheck) && !f.late
		if !n.unanswered {
			c.endOutage()
		} else if counts {
			c.failures.add(f.q.Name(), f.client)
		}
	case !n.replied:
		c.endRefresh(&f.key, c.store.clock())
	default:
		c.endOutage()
	}
}

// endOutage records that a server has replied.
func (c *Cache) endOutage() {
	if c.failures.reset() {
		c.recoveredAt.Store(int64(c.store.clock()))
	}
}

// noteFailure records that an exchange for k's name has failed. If an expired answer may be
// served meanwhile, the name backs off for d, and noteFailure returns true. The shard is
// locked.
func (c *Cache) noteFailure(k *key, d time.Duration) bool {
	now := c.store.clock()
	e := c.endRefresh(k, now)
	if e == nil || e.alive(now) || !c.servable(e, now) {
		return false
	}
	e.backOff(now + d)
	return true
}

// endRefresh allows another client to refresh k's entry before it expires. It returns the
// entry, nil if there is none. The shard is locked.
func (c *Cache) endRefresh(k *key, now time.Duration) *entry {
	e := k.find()
	if e != nil && e.alive(now) && e.flags&refreshingFlag != 0 {
		e.flags &^= refreshingFlag
		e.hits = uint16(c.cfg.Prefetch.Amount) //nolint:gosec // config allows no more than maxHits
	}
	return e
}

// queryCopy is a copy of a query for an exchange that outlives it.
type queryCopy struct {
	q      wire.Query
	packet []byte
}

// maxPooledPacket is the longest packet whose buffer is reused: stub resolvers send at most
// 300 bytes.
const maxPooledPacket = 512

var queryCopies = sync.Pool{New: func() any { return &queryCopy{packet: make([]byte, 0, maxPooledPacket)} }}

func copyQuery(q *wire.Query) *queryCopy {
	w := queryCopies.Get().(*queryCopy)
	w.q = *q
	w.q.Packet = append(w.packet[:0:maxPooledPacket], q.Packet...)
	w.q.Options = bytes.Clone(q.Options) // few queries have any
	return w
}

// release makes w available for another query.
func (w *queryCopy) release() { queryCopies.Put(w) }
