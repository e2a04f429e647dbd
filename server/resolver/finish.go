package resolver

import (
	"math"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// Finish completes the reply, counts and logs what the run has gathered, and returns the
// message; nil if nothing is to be sent.
func (r *Request) Finish() []byte {
	z := r.zone
	r.countLookups()
	z.shape(r)
	msg := r.message(r.limit())
	if r.Dropped() {
		msg = nil
	}
	r.Latency = clock.Now() - r.Arrival
	z.Stats.count(r, len(msg))
	if r.routes.Clients != nil {
		r.countClient(msg)
	}
	if r.err != nil && z.Errors != nil {
		z.Errors.failed(r, &z.failed)
	}
	if r.routes.Tail.Attached() {
		r.publish(msg != nil)
	}
	if r.ownLookups.recording != nil {
		r.exportSpans(msg != nil)
	}
	if rule := z.Log.rule(r); rule != nil {
		z.Log.write(rule, r, msg)
	}
	if z.Taps != nil {
		z.tell(r, msg)
	}
	return msg
}

// Rejected reports whether r was finished by [Request.Reject].
func (r *Request) Rejected() bool { return r.shed }

// Reject finishes a query that has no place to wait in, or has lost it: the reply is SERVFAIL.
func (r *Request) Reject() []byte {
	r.reply.Fail(wire.ServFail)
	r.source, r.ordered, r.viaSearch, r.err, r.shed = fromServer, false, false, nil, true
	return r.Finish()
}

// CountRejected counts a query of the client at addr that is rejected before it is parsed. stripe is
// as in [Request.Stripe].
func (rt *Routes) CountRejected(stripe int, addr netip.Addr) {
	rt.Clients.Limit(stripe, addr, clients.ReasonPlaces, 1)
}

// shape does what the zone does to every reply before it is sent.
func (z *Zone) shape(r *Request) {
	z.offer(r)
	if z.Minimal {
		r.reply.Minimize()
	}
	if z.NSID != "" && r.Query.NSID {
		r.reply.SetNSID(z.NSID)
	}
	if z.Header != nil && r.resolved() {
		r.reply.ChangeFlags(z.Header.Response.Set, z.Header.Response.Clear)
	}
	if r.reply.Rcode() == wire.NoError {
		z.order(r)
	}
}

// offer says in r's reply what the server offers.
func (z *Zone) offer(r *Request) {
	if len(z.Forward) > 0 {
		r.reply.SetRecursionAvailable()
	}
	if r.Idle > 0 && r.Query.Keepalive {
		r.reply.SetKeepalive(uint16(min(r.Idle/(time.Second/10), math.MaxUint16)))
	}
}

// order puts the addresses of r's reply in order.
func (z *Zone) order(r *Request) {
	if z.Shuffle && !r.ordered {
		r.reply.Shuffle()
	}
	if z.Balance != nil {
		z.Balance.Order(&r.reply, r.ordered)
	}
}

// resolved reports whether r's reply is from a source of the zone: not an error of the path itself, and
// not from a step before the sources.
func (r *Request) resolved() bool {
	switch r.source {
	case fromServer, fromLocal, fromAny, fromACL, fromClientLimit, fromChaos:
		return false
	}
	return r.err == nil
}

// limit is the largest message that the client takes.
func (r *Request) limit() int {
	if r.Proto == UDP {
		return r.Query.Limit()
	}
	return wire.MaxMessage
}
