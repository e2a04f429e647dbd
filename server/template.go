package server

import (
	"context"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/template"
)

// template is the step of answers that are made of the query; ok is false if it leaves
// the query to those behind it.
func (z *Zone) template(x *request) (at step, ok bool) {
	if z.Template == nil {
		return done, false
	}
	outcome, err := z.Template.Answer(&x.query, x.client.Addr(), &x.reply, nil)
	switch {
	case outcome == template.Waits, err != nil: // which is logged where queries wait
		return made, true
	case outcome == template.Answered:
		x.source = fromTemplate
		return done, true
	default:
		return done, false
	}
}

// templateOn is template where it may wait: for what the aliases that are made lead to.
// Each counts as one hop more than the one before it, so that templates that lead to
// themselves by several aliases are made some hundred times, and not more with each.
func (rt *Routes) templateOn(ctx context.Context, x *request) error {
	x.source = fromTemplate
	hops := x.hops
	_, err := x.zone.Template.Answer(&x.query, x.client.Addr(), &x.reply, func(name []byte) (*wire.Reply, error) {
		if hops >= maxHops {
			return nil, errHops
		}
		hops++
		r, _, err := rt.lookup(x, name, hops, func(x *request, at step) error { return rt.complete(ctx, x, at) })
		return r, err
	})
	return err
}
