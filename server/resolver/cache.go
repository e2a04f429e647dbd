package resolver

import (
	"context"
	"errors"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// cached is the step of the cache, for a request that may not wait; false is a miss, which
// leaves the reply as it was. The look-up is counted when the request is finished, but a hit
// after which no step can have to wait is counted at once: that takes one lock less.
func (z *Zone) cached(r *Request) bool {
	if r.direct && z.Autopath == nil && z.DNS64 == nil && z.Rewrite == nil && r.trace == nil {
		found, due := z.Cache.GetFinal(&r.Query, &r.reply, r.now)
		if !found.Hit() {
			r.lookups.add(r, found)
			return false
		}
		if due {
			z.refresh(&r.Query, r.Proto)
		}
	} else {
		found := z.Cache.Get(&r.Query, &r.reply, r.now)
		if r.trace != nil {
			z.traceCache(r, found.Hit())
		}
		if r.lookups.add(r, found); !found.Hit() {
			return false
		}
	}
	r.source = fromCache
	return true
}

// refresh has the answer to q fetched anew while no client waits for it.
func (z *Zone) refresh(q *wire.Query, proto Proto) {
	if p := z.upstreams(q); p != nil {
		z.Cache.Refresh(q, z.Loop.guard(p, z.asker(p, proto, upstream.From{Tap: z.forwarderTap(q, nil)})))
	}
}

// asker asks the upstreams of p on behalf of from, whose query came over via. It holds on to no
// exchange, since it may be used when the client has its reply.
func (z *Zone) asker(p *upstream.Pool, via Proto, from upstream.From) cache.ExchangeFunc {
	from.TCP = via == TCP
	return func(ctx context.Context, q *wire.Query) (wire.Response, error) {
		from := from
		from.Client, from.NoWait = payer(ctx, from.Client), cache.HasStale(ctx)
		resp, err := p.ExchangeFrom(ctx, q, from)
		if err == nil {
			resp = z.screen(p, q, resp)
		}
		return resp, keep(err)
	}
}

// keep returns err, or if it is no reason to fail the next client an unkept.
func keep(err error) error {
	switch {
	case errors.Is(err, upstream.ErrLocal):
		return unkept{err, cache.ErrLocal}
	case errors.Is(err, upstream.ErrUnreachable):
		return unkept{err, cache.ErrUnreachable}
	}
	return err
}

// unkept is an error that is no reason to fail the next client. kind is what it is to the cache.
type unkept struct {
	error
	kind error
}

func (e unkept) Unwrap() error        { return e.error }
func (e unkept) Is(target error) bool { return target == e.kind }

// backgroundKey is the key of a context value that marks work for which no client waits.
type backgroundKey struct{}

// Background returns a copy of ctx for work for which no client waits. Queries to upstreams
// under it are not counted for the client that caused them.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// payer is the client whose share of the upstreams' limits a query under ctx takes: the one
// that holds place, or nobody where no client waits.
func payer(ctx context.Context, place share.Client) share.Client {
	if ctx.Value(backgroundKey{}) != nil {
		return share.NoClient
	}
	return place
}
