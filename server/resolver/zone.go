package resolver

import (
	"context"
	"net/netip"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/balance"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/upstream"
)

// Zone answers the names of one zone on one listening address. Its fields are the steps of the
// path; nil fields are steps that the server block does not have. Zones may share steps. All
// exported fields are set before [NewRoutes] and do not change.
type Zone struct {
	Name wire.Name
	// Line is the line of the server block in the Corefile, for explanations.
	Line int
	// OnlySetup says that the server block has no step; queries are REFUSED.
	OnlySetup bool
	// Addr is where the zone's queries arrive, for expressions of templates.
	Addr netip.AddrPort
	// View decides which queries the zone takes; nil: all.
	View *View
	// Metadata are the zones whose queries have metadata; nil: none have.
	Metadata []wire.Name
	// Local answers localhost and the loopback zones. Any answers queries of type ANY.
	Local *Local
	Any   bool
	// Chaos answers questions about the server in the class CH; nil: they are REFUSED.
	Chaos *Chaos
	// Header are the flags that are changed in queries and replies; nil: none are.
	Header *config.Header
	// Limit limits the queries of each client; nil: there is no limit.
	Limit *ClientLimit
	// TSIG verifies signed queries and signs their replies; nil: signatures are ignored.
	TSIG authority.Verifier
	// ACL decides which clients may ask what; nil: every client may ask everything.
	ACL *ACL
	// RPZ has rules for names and addresses; nil: there are none.
	RPZ authority.ResponsePolicies
	// DNS64 synthesizes IPv6 addresses from IPv4 addresses. AAAA keeps IPv6 addresses from pods without one; nil: from none.
	DNS64 *DNS64
	AAAA  *AAAA
	// Rewrite changes questions before they are resolved.
	Rewrite *rewrite.Rules
	// Template computes answers from the question.
	Template *template.Templates
	// Transfer sends whole zones to other servers; nil: to none.
	Transfer authority.Transfers
	Hosts    *hosts.Table
	// External has the names under which Services are reached from outside of the cluster.
	External External
	Cluster  Cluster
	// Multicluster are the origins of Cluster that have the names of ServiceImports. Zonal says that the others have names with a
	// topology zone. The names of metadata depend on both.
	Multicluster []wire.Name
	Zonal        bool
	// File answers from zone files, Auto from those of a directory, Secondary from zones that are transferred from primary servers.
	File, Auto, Secondary authority.Zones
	// Autopath follows the search paths of clients.
	Autopath *Autopath
	Cache    *cache.Cache
	// Forward are the zone's upstream pools; the first that takes a name gets the query.
	Forward []*upstream.Pool
	// ClusterDNS reports whether p, one of Forward, leads to the cluster's DNS, which knows the
	// names that a view has not loaded. All readers call it at the same time. nil: no pool
	// does.
	ClusterDNS func(p *upstream.Pool) bool
	// Designates reports whether p, one of Forward, is only for names in a zone that is otherwise served here
	// ([InServedZone]). nil: no pool is.
	Designates func(p *upstream.Pool) bool
	// Whoami answers queries that no pool takes with the client's address.
	Whoami bool
	Loop   *Loop
	// Tunnel finds clients that send data in names; nil: nothing does.
	Tunnel *tunnel.Detector
	// Bufsize is the maximum size of a UDP reply, in bytes, for clients whose EDNS payload size
	// allows it; 0 is [wire.SafeUDP], and no maximum for clients on the node.
	Bufsize uint16
	// Shuffle puts the addresses of an answer in random order.
	Shuffle bool
	// Balance puts addresses in the order of weights or preferred networks, after Shuffle; nil: none.
	Balance *balance.Balancer
	// Ordered says that Cluster orders its answers. Shuffle leaves these as they are.
	Ordered bool
	// PrivateAddress looks at the replies of upstreams; nil: nobody does.
	PrivateAddress *PrivateAddress
	// IsClusterIP reports whether an address is the cluster IP of a Service that the agent knows; nil: none is. It is safe for
	// concurrent use.
	IsClusterIP func(netip.Addr) bool
	// Minimal removes authority and additional records from positive answers.
	Minimal bool
	// NSID is the server identifier for clients that ask for it (RFC 5001); "" is none.
	NSID string
	// Errors logs failed queries, and Log the queries that its rules select; nil logs none.
	Errors *ErrorLog
	Log    *QueryLog
	// Taps receive all queries and replies as dnstap messages.
	Taps []Tap
	// AgentOnly are the directives because of which no answers are copied (see [config.Block.NeedsAgent]).
	AgentOnly []string
	// Tracing selects the queries whose spans are exported; nil: none are.
	Tracing *Tracing
	// Stats are the zone's counters. They outlive the Zone, so that a reload does not reset
	// them. They are not nil.
	Stats *Stats

	failed limiter
	// origins are Cluster's; set by NewRoutes.
	origins []wire.Name
	// lists are the zone's routes if one of their zones has an ACL, a view or response policy zones, or if policies bind
	// clients, else nil.
	lists *Routes
	// next is the next zone with the same name, which gets the queries that View does not
	// match; nil for none.
	next *Zone
}

// Cluster is the part of [kubernetes.Zone] that the path needs. See there for the methods.
type Cluster interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name)
	// NoData makes r, the answer to q, a denial of the type, unless the data are not loaded.
	NoData(q *wire.Query, r *wire.Reply)
	// Mark, Rotatable and Touch are for copies of answers.
	Mark(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (epoch.Mark, bool)
	Rotatable(q *wire.Query, b *kubernetes.Budget) bool
	Touch(q *wire.Query)
	// ClientNamespace returns false for a client that is no pod, or may not be.
	ClientNamespace(client netip.Addr) (namespace []byte, ok bool)
	// ClientMark is the mark of all results of ClientNamespace.
	ClientMark() epoch.Mark
	// FromSearchPath reports whether a name that does not exist can only come from a client's
	// search path.
	FromSearchPath(name []byte) bool
	// Origins returns the zone's origins: at least one, and always the same.
	Origins() []wire.Name
}

// External is the part of [kubernetes.External] that the path needs.
type External interface {
	view
	// Answer leaves the reply as it is with every outcome that isn't an answer.
	Answer(q *wire.Query, r *wire.Reply, b *kubernetes.Budget) (kubernetes.Outcome, wire.Name)
}

// view is a view of the cluster that loads objects on demand.
type view interface {
	// Await blocks until the objects that the answer to q needs are loaded, or returns ctx's
	// error.
	Await(ctx context.Context, q *wire.Query) error
	// SOA returns the SOA record of the zone with this origin; ok is false if the view has none that can be transferred.
	SOA(origin wire.Name) (soa wire.RR, ok bool)
	// Snapshot returns a version of that zone for a transfer. It blocks until the data are in view.
	Snapshot(ctx context.Context, origin wire.Name) (*kubernetes.Snapshot, error)
}

// maxPayload is the largest payload of a UDP datagram over IPv4: 65,535 bytes less the IP and UDP headers.
const maxPayload = 65507

// maxSize returns the maximum size of UDP replies to r's client, in bytes. Senders can forge source addresses, so
// replies that are larger than their queries amplify attacks. A reply to an address on the node never leaves the
// node, so it may be as large as the client says.
func (z *Zone) maxSize(r *Request) uint16 {
	switch {
	case z.Bufsize != 0:
		return min(z.Bufsize, maxPayload)
	case r.advertised > wire.SafeUDP && r.routes.onNode(r.Client.Addr()):
		return maxPayload
	}
	return wire.SafeUDP
}

// caches reports whether the answer to q may be in the cache.
func (z *Zone) caches(q *wire.Query) bool {
	return z.Cache != nil && !q.Uncached && z.Cache.Covers(q.Name())
}
