package resolver

import (
	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/template"
)

// template is the step of answers that are computed from the question. Without permission to
// wait, no alias is followed and no error reported.
func (z *Zone) template(r *Request) Outcome {
	if z.Template == nil {
		return notMine
	}
	var follow template.Lookup
	if r.mayTakeLong() {
		follow = r.followAliases()
	}
	found, err := z.Template.Answer(&r.Query, r.Client.Addr(), &r.reply, r, follow)
	if r.trace != nil && r.traceTemplate(found, err) {
		return WouldWait
	}
	switch {
	case !r.mayTakeLong() && (found == template.WouldWait || err != nil):
		return WouldWait
	case found == template.NotMine && err == nil:
		return notMine
	}
	r.source, r.err = fromTemplate, err
	return Answered
}

// Env returns what expressions can use of r. It is valid as long as r.
func (r *Request) Env() expression.Env { return &viewEnv{r: r, zone: r.zone, server: r.zone.Addr} }

// followAliases returns a function that resolves the targets of aliases that templates make.
// Each counts as one hop more than the one before, so that templates which lead to
// themselves by several aliases are computed some hundred times, and not more with each.
func (r *Request) followAliases() template.Lookup {
	hops := r.hops
	return func(name []byte) (*wire.Reply, error) {
		if hops >= maxHops {
			return nil, errHops
		}
		hops++
		sub, o := r.lookup(name, hops)
		if o == WouldWait { // only in a dry run
			r.trace.waited = true
		}
		return &sub.reply, sub.err
	}
}
