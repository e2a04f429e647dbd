package resolver

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/upstream"
)

// countClient counts r, which is finished with the reply msg, for its client.
func (r *Request) countClient(msg []byte) {
	rcode := r.reply.Rcode()
	if r.overLimit { // which is no query that was resolved
		r.routes.Clients.Limit(r.Stripe, r.Client.Addr(), clients.ReasonClientLimit, 1)
		return
	}
	if reason, ok := r.limitedBy(); ok {
		r.routes.Clients.Limit(r.Stripe, r.Client.Addr(), reason, 1)
	}
	r.waste = rcode == wire.NXDomain && r.fromSearchPath()
	r.routes.Clients.Count(r.Stripe, r.Client.Addr(), clients.Query{
		Rcode: rcode, NoReply: r.Dropped(), Latency: r.Latency, Now: r.Arrival + r.Latency, Name: r.Query.Name(),
		Upstream: r.ownLookups.asked, Cause: r.cause(rcode),
		Shed:   r.wasShed(),
		Denied: r.verdicts&(forbidden|byRule) != 0 && !r.waste,
		Waste:  r.waste, AAAA: r.Query.Type == wire.TypeAAAA, Stream: r.Proto != UDP,
		Truncated: r.Proto == UDP && wire.IsTruncated(msg), Capped: r.advertised > r.Query.UDPSize,
	})
}

// waits are what a client's query and its subqueries have waited for.
type waits struct {
	asked          bool          // an upstream
	cached         bool          // the cache had an answer when the query could have waited for an upstream
	hedged         bool          // a further one, because one was late
	failure        clients.Cause // why the last one of them failed; LocalCause if none did
	view, upstream time.Duration // the times, with upstream also that for another client's exchange
}

// forwarded notes that the cache had the answer if hit, or else that an exchange with an upstream took so long and
// ended with err. hedged is its [upstream.From.Hedged].
func (w *waits) forwarded(hit bool, took time.Duration, hedged *atomic.Bool, err error) {
	if hit {
		w.cached = true
		return
	}
	w.asked = true
	w.upstream += took
	w.hedged = w.hedged || hedged != nil && hedged.Load()
	if err != nil {
		w.failure = exchangeFailure(err)
	}
}

// limitedBy returns the limit because of which the query failed.
func (r *Request) limitedBy() (reason clients.Reason, ok bool) {
	switch {
	case r.shed:
		return clients.ReasonPlaces, true
	case r.err == nil:
		return 0, false
	case errors.Is(r.err, upstream.ErrOverBudget):
		return clients.ReasonBudget, true
	case errors.Is(r.err, upstream.ErrBusy), errors.Is(r.err, upstream.ErrTooMany):
		return clients.ReasonInFlight, true
	}
	return 0, false
}

// wasShed reports whether the query failed because there are too many.
func (r *Request) wasShed() bool { return r.shed || r.err != nil && errors.Is(r.err, upstream.ErrBusy) }

// cause returns why r's reply is SERVFAIL, or what r has waited for longest.
func (r *Request) cause(rcode wire.Rcode) clients.Cause {
	w := &r.ownLookups.waits
	switch {
	case r.wasShed():
		return clients.QueueCause
	case rcode == wire.ServFail:
		if w.failure == clients.LocalCause && (w.asked || r.source == fromCache) { // which keeps failures of upstreams
			return clients.UpstreamCause
		}
		return w.failure
	case w.view > w.upstream:
		return clients.ViewCause
	case w.hedged:
		return clients.HedgeCause
	case w.asked:
		return clients.UpstreamCause
	}
	return clients.LocalCause
}

// exchangeFailure returns why an exchange failed with err.
func exchangeFailure(err error) clients.Cause {
	switch {
	case errors.Is(err, errLoop):
		return clients.LoopCause
	case errors.Is(err, upstream.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return clients.TimeoutCause
	}
	return clients.UpstreamCause
}

// fromSearchPath reports whether r's name, which does not exist, can only come from the search path of a
// client.
func (r *Request) fromSearchPath() bool {
	return r.zone.fromSearchPath(r.Query.Name()) || r.routes.fromNodeSearch(r.Query.Name(), r.Query.Labels())
}

// fromSearchPath reports by the view of the cluster whether a name can only come from a search path.
func (z *Zone) fromSearchPath(name []byte) bool {
	return z.Cluster != nil && z.Cluster.FromSearchPath(name)
}

// fromNodeSearch reports whether a name of so many labels has two labels or more in front of a search domain of the node.
func (rt *Routes) fromNodeSearch(name []byte, labels int) bool {
	for _, domain := range rt.Search {
		if len(name) > len(domain) && wire.Under(name, domain) && labels >= domain.Labels()+2 {
			return true
		}
	}
	return false
}

// CountDropped counts for the client at addr n packets that the reader of a socket has dropped before it
// parsed them. stripe is the reader's, as in its requests. It allocates only for the first query of a client.
func (t *Routes) CountDropped(stripe int, addr netip.Addr, n uint64) {
	t.Clients.Limit(stripe, addr, clients.ReasonSocket, n)
}

// CountClosed counts for the client at addr a connection that was closed for another one, or refused.
func (t *Routes) CountClosed(stripe int, addr netip.Addr) {
	t.Clients.Limit(stripe, addr, clients.ReasonConnections, 1)
}
