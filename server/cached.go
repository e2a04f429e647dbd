package server

import (
	"context"
	"errors"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// cached is the step of what the cache holds; false is a miss, which leaves x as it
// was. An answer that is near its end, or past it, is asked for anew behind the client's
// back.
func (z *Zone) cached(x *exchange) bool {
	switch z.Cache.Answer(&x.q, &x.r, x.start) {
	case cache.Miss:
		return false
	case cache.Refresh:
		if p := z.upstreams(&x.q); p != nil {
			z.Cache.Refresh(&x.q, z.Loop.guard(p, asker(p, x.via, share.Nobody)))
		}
	case cache.Hit:
	}
	return true
}

// asker asks the upstreams of p for the client that holds place. It holds on to no
// exchange, since it may be used when the client has its reply.
func asker(p *upstream.Pool, via transport, place share.Client) cache.Ask {
	return func(ctx context.Context, q *wire.Query) (wire.Response, error) {
		resp, err := p.ExchangeFrom(ctx, q, upstream.From{Client: payer(ctx, place), TCP: via == tcp})
		if errors.Is(err, upstream.ErrLocal) {
			err = unkept{err}
		}
		return resp, err
	}
}

// unkept is an error that is no reason to fail the next client.
type unkept struct{ error }

func (e unkept) Unwrap() error        { return e.error }
func (e unkept) Is(target error) bool { return target == cache.ErrLocal }
