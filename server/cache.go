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
// back. A miss is counted by the fetch that follows, if there is somebody to ask.
func (z *Zone) cached(x *request) bool {
	res := z.Cache.Get(&x.query, &x.reply, x.arrival)
	p := z.upstreams(&x.query)
	if !res.Hit() && p != nil {
		return false
	}
	if res.Count() && p != nil {
		z.Cache.Refresh(&x.query, z.Loop.guard(p, asker(p, x.proto, share.Nobody)))
	}
	return res.Hit()
}

// asker asks the upstreams of p for the client that holds place. It holds on to no
// exchange, since it may be used when the client has its reply.
func asker(p *upstream.Pool, via proto, place share.Client) cache.ExchangeFunc {
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
