package server

import (
	"bytes"
	"context"
	"errors"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// cached is the step of the cache, for a request that may not wait; false is a miss, which
// leaves the reply as it was. The look-up is counted when the request is finished.
func (z *Zone) cached(r *request) bool {
	found := z.Cache.Get(&r.query, &r.reply, r.now)
	r.lookups.add(r, found)
	if !found.Hit() {
		return false
	}
	r.source = fromCache
	return true
}

// refresh has the answer to l, one of the look-ups for r, fetched anew while no client waits
// for it.
func (z *Zone) refresh(r *request, l *lookup) {
	q := &r.query
	if l.qtype != q.Type || !bytes.Equal(l.name, q.Name()) {
		q = new(wire.Query)
		if q.Parse(wire.AppendQuery(nil, r.query.ID, l.name, l.qtype, &r.query, wire.MinUDP)) != wire.Serve {
			return
		}
	}
	if p := z.upstreams(q); p != nil {
		z.Cache.Refresh(q, z.Loop.guard(p, asker(p, r.proto, share.NoClient)))
	}
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
