package resolver

import (
	"errors"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/upstream"
)

// countClient counts r, which is finished, for its client.
func (r *Request) countClient() {
	rcode := r.reply.Rcode()
	r.waste = rcode == wire.NXDomain && r.fromSearchPath()
	r.routes.Clients.Count(r.Stripe, r.Client.Addr(), clients.Query{
		Rcode: rcode, NoReply: r.Dropped(), Latency: r.Latency, Now: r.Arrival + r.Latency, Name: r.Query.Name(),
		Upstream: r.ownLookups.upstream,
		Shed:     r.shed || r.err != nil && errors.Is(r.err, upstream.ErrBusy),
		Waste:    r.waste,
	})
}

// fromSearchPath reports whether r's name, which does not exist, can only come from the search path of a
// client: by the view of the cluster, or because it has two labels or more in front of a search domain
// of the node.
func (r *Request) fromSearchPath() bool {
	name := r.Query.Name()
	if c := r.zone.Cluster; c != nil && c.FromSearchPath(name) {
		return true
	}
	for _, domain := range r.routes.Search {
		if len(name) > len(domain) && wire.Under(name, domain) && r.Query.Labels() >= domain.Labels()+2 {
			return true
		}
	}
	return false
}
