package resolver

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// forwarding is what a request has begun of [Request.Forward]. The zero value is nothing.
type forwarding struct {
	begun    bool
	at       time.Duration // when it began, by package clock
	from     upstream.From
	lead     cache.Lead        // in the zone's cache; zero: the request does not lead
	exchange upstream.Exchange // of lead, or of a zone without a cache; zero: none has begun
	panicked any               // what StartForward has recovered
	counted  bool              // by the zone's tunnel detector
	limited  bool              // it is not forwarded
}

// Forward gets the answer from the upstreams, by way of the zone's cache. r may wait. It goes on where
// [Request.StartForward] has ended, and does all of it if that was not called.
func (r *Request) Forward() {
	z, f := r.zone, &r.forwarding
	defer func() { *f = forwarding{} }()
	if r.overTunnelLimit() {
		r.reply.Fail(wire.Refused)
		r.reply.SetEDE(wire.EDEBlocked)
		r.source = fromTunnel
		return
	}
	if !f.begun {
		r.beginForward()
	}
	hit := r.fetch()
	r.lookups.forwarded(hit, clock.Now()-f.at, f.from.Hedged, r.err)
	r.recordEnd(hit, r.err)
	switch {
	case errors.Is(r.err, errLoop):
		z.Loop.fail(&r.reply)
		r.err = nil // the log tells of the loop, not of each query
	case errors.Is(r.err, upstream.ErrTooMany):
		r.reply.Fail(wire.Refused)
	case r.err != nil:
		r.reply.Fail(wire.ServFail)
		r.explainFailure()
	}
	z.withholdIPv6(r)
	if z.lists != nil {
		r.vet()
	}
	if r.policy.Filtered() != nil && r.direct {
		r.admit()
	}
}

// overTunnelLimit counts r as a query that goes to an upstream other than the cluster's own DNS, once, and reports whether it is over the
// limit of a client that is suspected to send data in names.
func (r *Request) overTunnelLimit() bool {
	z, f := r.zone, &r.forwarding
	if z.Tunnel == nil || f.counted || z.ClusterDNS != nil && z.ClusterDNS(r.pool) {
		return f.limited
	}
	f.counted, f.limited = true, z.Tunnel.Observe(r.Client.Addr(), r.Query.Name(), clock.Now())
	return f.limited
}

// explainFailure says in the reply why no upstream has answered (RFC 8914, 4.23 and 4.24). The limits of the agent are nobody's
// business.
func (r *Request) explainFailure() {
	switch err := r.err; {
	case errors.Is(err, upstream.ErrLocal):
	case errors.Is(err, upstream.ErrUnreachable), errors.Is(err, upstream.ErrNoUpstream), errors.Is(err, upstream.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		r.reply.SetEDE(wire.EDENoReachableAuthority)
	default:
		r.reply.SetEDE(wire.EDENetworkError)
	}
}

// beginForward does what comes before the exchange.
func (r *Request) beginForward() {
	z, f := r.zone, &r.forwarding
	if r.direct {
		z.tellQuery(r)
	}
	f.begun = true
	f.from = upstream.From{Client: r.Place, Addr: r.Client.Addr(), Asked: r.recordAsked(), Record: r.recordForward(), Tap: z.forwarderTap(&r.Query, r)}
	if r.routes.Clients != nil {
		f.from.Hedged = new(atomic.Bool)
	}
	f.at = clock.Now()
	r.source = r.upstreamSource()
}

// fetch makes the reply the answer of the cache or of the upstreams, or sets r.err. hit says that it was in the cache.
func (r *Request) fetch() (hit bool) {
	z, q, f := r.zone, &r.Query, &r.forwarding
	switch {
	case f.lead.Begun():
		r.err = z.Cache.FetchLed(r.ctx, f.lead, &r.reply, r.exchange())
	case z.caches(q):
		if hit, r.err = z.Cache.Fetch(r.ctx, q, &r.reply, r.exchange()); hit {
			r.source = fromCache
		}
	default:
		var resp wire.Response
		if resp, r.err = r.exchange()(r.ctx, q); r.err == nil {
			r.reply.CopyRaw(resp.Packed)
		}
	}
	return hit
}

// exchange returns what exchanges for r: the rest of the exchange that has begun, or all of one.
func (r *Request) exchange() cache.ExchangeFunc {
	f := &r.forwarding
	switch e := f.exchange; {
	case f.panicked != nil:
		return func(context.Context, *wire.Query) (wire.Response, error) { panic(f.panicked) }
	case e.Begun():
		return func(ctx context.Context, q *wire.Query) (wire.Response, error) {
			resp, err := e.Wait(ctx)
			if err == nil {
				resp = r.zone.screen(r.pool, q, resp)
			}
			return resp, keep(err)
		}
	}
	return r.zone.Loop.guard(r.pool, r.zone.asker(r.pool, r.Proto, f.from))
}

// StartForward begins [Request.Forward] without blocking, as far as that is possible, for the client that r.ctx belongs to. If it
// returns true, w waits for the answer, and r must not be used until w is told to go on. Then Forward has to be called,
// and after false, where it may wait. A panic is left to Forward.
func (r *Request) StartForward(w *upstream.Waiter) (parked bool) {
	defer func() {
		if p := recover(); p != nil {
			r.forwarding.panicked, parked = p, false
		}
	}()
	z, f := r.zone, &r.forwarding
	if r.overTunnelLimit() || z.Loop.stops(r.pool) || r.policy.Filtered() != nil { // the goroutine that reads replies must not wait for the packet filter
		return false
	}
	r.beginForward()
	var ok bool
	if z.caches(&r.Query) {
		if f.lead, ok = z.Cache.Lead(&r.Query); !ok {
			return false
		}
	}
	from := f.from
	from.TCP = r.Proto == TCP
	f.exchange, ok = r.pool.Start(&r.Query, from, w)
	return ok && f.exchange.Park(r.ctx)
}

// StartsAtOnce reports whether StartForward takes hardly longer than sending a datagram.
func (r *Request) StartsAtOnce() bool { return r.pool.StartsAtOnce() }
