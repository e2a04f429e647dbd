package resolver

import (
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// ClientLimit is a limit of the queries of each client, and what happens to those beyond it. It is safe for concurrent
// use.
type ClientLimit struct {
	*ratelimit.Limiter
	Action config.LimitAction
}

// Covers reports whether queries over proto are limited. With the action truncate only those over UDP are: a client whose
// reply is truncated asks again over a connection.
func (l *ClientLimit) Covers(proto Proto) bool {
	return proto == UDP || l.Action != config.LimitTruncate
}

// Refuse appends the reply to a query in packet that is over the limit and has not been parsed; it returns nil for no
// reply.
func (l *ClientLimit) Refuse(b, packet []byte, proto Proto) []byte {
	switch {
	case proto != UDP || l.Action == config.LimitRefuse:
		return wire.AppendRefusal(b, packet, wire.Refused, false)
	case l.Action == config.LimitTruncate:
		return wire.AppendRefusal(b, packet, wire.NoError, true)
	}
	return nil
}

// CountOverLimit counts a query of client that a [ClientLimit] has stopped before it was parsed. stripe is as
// [Request.Stripe].
func (rt *Routes) CountOverLimit(stripe int, client netip.Addr) {
	rt.Clients.Limit(stripe, client, clients.ReasonClientLimit, 1)
}

// limited is the step of the client's limit. It returns true if r, which is the client's own query, is over the limit;
// the reply then says so. A query counts once, however often the path is run for it, and a dry run does not count.
func (z *Zone) limited(r *Request) bool {
	if !r.direct || r.metered || !z.Limit.Covers(r.Proto) {
		return false
	}
	if r.trace != nil {
		return z.traceLimit(r)
	}
	r.metered = true
	if z.Limit.Allow(r.Client.Addr(), r.Arrival) {
		return false
	}
	z.exceed(r)
	return true
}

// exceed makes the reply what a query over the limit gets.
func (z *Zone) exceed(r *Request) {
	r.source, r.overLimit = fromClientLimit, true
	switch {
	case r.Proto != UDP || z.Limit.Action == config.LimitRefuse:
		r.reply.Fail(wire.Refused)
	case z.Limit.Action == config.LimitTruncate:
		r.reply.Empty()
	default:
		r.reply.Fail(wire.NoError)
		r.unsent = true
	}
}

// OverLimit reports whether r was refused because its client exceeds `client_limit`.
func (r *Request) OverLimit() bool { return r.overLimit }

// traceLimit notes whether the client is over its limit now.
func (z *Zone) traceLimit(r *Request) bool {
	limit := fmt.Sprintf("the limit of %d queries/s", z.Limit.Rate())
	if !z.Limit.Limited(r.Client.Addr(), r.Arrival) {
		r.note(stepOf[fromClientLimit], notMine, "the client is within "+limit)
		return false
	}
	z.exceed(r)
	what := map[config.LimitAction]string{
		config.LimitRefuse: "it gets REFUSED", config.LimitTruncate: "it gets a truncated reply", config.LimitDrop: "it gets no reply",
	}[z.Limit.Action]
	if r.Proto != UDP {
		what = "it gets REFUSED"
	}
	r.note(stepOf[fromClientLimit], Answered, "the client exceeds "+limit+" now: "+what)
	return true
}
