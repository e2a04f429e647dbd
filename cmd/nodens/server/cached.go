package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/nodens-dns/nodens/cache"
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
			z.Cache.Refresh(&x.q, z.Loop.guard(p, asker(p, x.via)))
		}
	case cache.Hit:
	}
	return true
}

// asker asks the upstreams of p. It holds on to no exchange, since it may be used when
// the client has its reply.
func asker(p *upstream.Pool, via transport) cache.Ask {
	return func(ctx context.Context, q *wire.Query) (wire.Response, error) {
		resp, err := p.Exchange(ctx, q, via == tcp)
		if errors.Is(err, upstream.ErrLocal) {
			err = fmt.Errorf("%w: %w", cache.ErrLocal, err) // no reason to fail the next client
		}
		return resp, err
	}
}

// Go runs f on a goroutine of its own: work for which no client waits. It takes a place
// of [Limits.Waiting]; false if there is none, f is then not run. The end of the server
// ends f's context and waits for f, a panic in it is counted like that of a query. It is
// safe for concurrent use while queries are answered.
func (s *Server) Go(f func(ctx context.Context)) bool {
	if !s.acquire() {
		return false
	}
	s.crew.all.Go(func() {
		defer s.release()
		defer func() {
			if p := recover(); p != nil {
				s.panics.Add(1)
				s.log.Error("asking for a name panicked", "panic", p, "stack", string(debug.Stack()))
			}
		}()
		f(s.ctx)
	})
	return true
}
