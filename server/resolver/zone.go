package resolver

import (
	"context"
	"net/netip"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/upstream"
)

// Zone is what answers the names of one zone on one listening address: the steps
// of the path, nil where the server block does not have them. The steps may be
// shared between zones; the counters are the zone's own.
type Zone struct {
	Name wire.Name
	// View says which queries the zone takes. nil: all.
	View *View
	// Local answers for the machine's own names, Any answers ANY.
	Local *Local
	Any   bool
	// ACL says which clients may ask what. nil: all anything.
	ACL *ACL
	// DNS64 makes IPv6 addresses of IPv4 ones.
	DNS64 *DNS64
	// Rewrite are the rules by which queries are asked in another form.
	Rewrite *rewrite.Rules
	// Template answers with records made of the query.
	Template *template.Templates
	Hosts    *hosts.Table
	// External are the names under which the cluster's Services are reached from
	// outside.
	External External
	Cluster  Cluster
	// Autopath finishes the search paths of clients.
	Autopath *Autopath
	Cache    *cache.Cache
	// Forward are the pools to forward to; the first that takes a name gets it.
	Forward []*upstream.Pool
	// ClusterDNS reports whether p, one of Forward, leads to the cluster's own DNS,
	// which knows what a view does not hold. It is called for every query that needs
	// to know, by all readers at once. nil: none does.
	ClusterDNS func(p *upstream.Pool) bool
	// Designates reports whether p, one of Forward, is for resolver.arpa or names below it
	// and no others; what it says of designated resolvers is given to clients then. nil:
	// none is.
	Designates func(p *upstream.Pool) bool
	// Whoami answers what no pool takes with the client's address.
	Whoami bool
	Loop   *Loop
	// Bufsize is the largest UDP reply, in bytes, for clients that take as much by EDNS;
	// 0 is [wire.SafeUDP].
	Bufsize uint16
	// Shuffle puts the addresses of answers in random order.
	Shuffle bool
	// Ordered says that the answers of Cluster come in an order of their own, which
	// Shuffle leaves as it is.
	Ordered bool
	// Minimal leaves nothing but the answers of replies that have some.
	Minimal bool
	// NSID is what clients are told that ask which server answers; "" is nothing.
	NSID string
	// Errors logs failed queries, Log those it takes; nil logs none.
	Errors *ErrorLog
	Log    *QueryLog
	// Taps are told of all queries and replies.
	Taps []Tap
	// Stats are the zone's counters; they outlive the Zone, so that a reload
	// does not start them from zero. Not nil.
	Stats *Stats

	failed limiter
	// lists are the routes that the zone is of, if any of their zones has an ACL; else nil.
	lists *Routes
	// next is the zone of the same name that gets what the view does not take, nil if
	// there is none.
	next *Zone
}

// Cluster is what the path needs of [kubernetes.Zone], which says what each of its
// methods does.
type Cluster interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name)
	// Mark, Turns and Touch are about copies of answers.
	Mark(q *wire.Query, r *wire.Reply) (epoch.Mark, bool)
	Rotatable(q *wire.Query) bool
	Touch(q *wire.Query)
	// ClientNamespace is false for a client that is nobody's pod, or not for certain.
	ClientNamespace(client netip.Addr) (namespace []byte, ok bool)
	// Origins are never none, and never change.
	Origins() []wire.Name
}

// External is what the path needs of [kubernetes.External].
type External interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name)
}

// view is what an answer hangs on that isn't there yet.
type view interface {
	// Await blocks until the answer to q can be made, or gives ctx's error.
	Await(ctx context.Context, q *wire.Query) error
}

// maxSize bounds the UDP replies of z. The source address of a query may be forged:
// then a reply larger than its query multiplies what the owner of that address gets.
func (z *Zone) maxSize() uint16 {
	if z.Bufsize == 0 {
		return wire.SafeUDP
	}
	return z.Bufsize
}

func (z *Zone) caches(q *wire.Query) bool { return z.Cache != nil && z.Cache.Covers(q.Name()) }
