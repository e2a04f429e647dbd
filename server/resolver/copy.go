package resolver

import (
	"bytes"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
)

// Copy says how long, and how, a copy of a reply may answer the same question again in place
// of the query path. Times are by package clock.
type Copy struct {
	// FromCluster and FromCache say what the reply is made from: the view of the cluster, the
	// cache, or both. One that is only from hosts has neither.
	FromCluster, FromCache bool
	// Mark moves when what the reply is made of changes, and so does each of More, which are valid until
	// the request's next run.
	Mark epoch.Mark
	More []epoch.Mark
	// Clients are the only clients that get the reply; zero: all do.
	Clients ClientGroup
	// Expires is when queries must come to the path again; 0 is never. Where CountsDown is
	// set TTLs count down to Ends, in seconds rounded up and at most Life; else they stay.
	Expires, Ends time.Duration
	CountsDown    bool
	Life          uint32
	// MaxSize is the largest payload size that the reply's OPT record may claim.
	MaxSize uint16
	// Shuffled says that addresses are in another order in each reply.
	Shuffled bool
	// Waste says that the reply is counted as search waste.
	Waste bool
	// Logged says that some of the queries that the reply answers are logged.
	Logged bool

	denial bool // a negative answer in the cache
	// hosts is the mark of the hosts table that was asked before the other sources; zero: there is none.
	hosts epoch.Mark
}

// ClientGroup is the clients that get the same replies where these depend on the client: on its namespace, or on
// access lists. The zero ClientGroup is all clients.
type ClientGroup struct {
	// Of is the directive that looks at the namespace; nil: nothing depends on it.
	Of *Autopath
	// Namespace is the clients' namespace as a label, nil if it is not known. It must not be changed.
	Namespace []byte
	// Mark moves before a client gets another namespace; zero without Of.
	Mark epoch.Mark
	// ACLs are the routes by whose access lists the clients have the Class; nil: nothing depends on them.
	ACLs  *Routes
	Class uint64
}

// known reports whether g is about clients with a known namespace, or about all clients.
func (g *ClientGroup) known() bool { return g.Of == nil || g.Namespace != nil && g.Mark.Index != 0 }

// IsAll reports whether g is all clients.
func (g *ClientGroup) IsAll() bool { return g.Of == nil && g.ACLs == nil }

// clientGroup returns the clients that get r's reply. If it depends on one part of the group, the group has both, so that
// a client has one group for all replies of a listener.
func (r *Request) clientGroup() (g ClientGroup) {
	g = r.clients
	if g.Of == nil && !r.wasJudged() {
		return ClientGroup{}
	}
	rt := r.routes
	if rt.aclClasses != nil {
		g.ACLs, g.Class = rt, rt.aclClasses.of(r.Client.Addr())
	}
	if g.Of == nil && rt.search != nil {
		rt.search.group(r.Client.Addr().Unmap(), &g)
		if g.Mark.Index == 0 {
			g.Of, g.Namespace = nil, nil
		}
	}
	return g
}

// wasJudged reports whether an access list was asked about r's client.
func (r *Request) wasJudged() bool {
	return r.verdicts&byACL != 0 || r.searched && r.Sources != nil && r.Sources.judged
}

// byACL are the verdicts of access lists that let a reply pass.
const byACL = allowed | listed

// Copy returns how r's reply, which is finished, may be copied. ok is false if it may not: if
// it depends on the client in another way than by its group, or may change without a trace. The caller has read
// [epoch.Table.Any] before Begin, and finds it unmoved after Copy.
func (r *Request) Copy() (c Copy, ok bool) {
	c, refusal := r.copied()
	return c, refusal == copyAllowed
}

// copied is Copy with the reason why there is no copy.
func (r *Request) copied() (c Copy, refusal copyRefusal) {
	if refusal = r.copyRefusal(); refusal != copyAllowed {
		return Copy{}, refusal
	}
	if r.searched {
		c, refusal = r.Sources.copyOf(r)
	} else {
		c, refusal = r.sourceCopy()
		if c.hosts != (epoch.Mark{}) && c.hosts != c.Mark {
			c.More = append(r.Sources.more(), c.hosts)
		}
	}
	c.MaxSize, c.Waste, c.Clients = r.zone.maxSize(r), r.waste, r.clientGroup()
	c.Logged = r.zone.Log != nil
	c.Shuffled = (r.ordered || r.zone.Shuffle) && r.reply.Rcode() == wire.NoError
	return c, refusal
}

// sourceCopy returns what the source of r's reply says of copies, and the hosts table in front of it. In a dry run it
// only says whether there may be one.
func (r *Request) sourceCopy() (c Copy, refusal copyRefusal) {
	switch {
	case r.zone.Hosts != nil && r.hosts.Index == 0:
		return Copy{}, refusedMark
	case r.source == fromHosts:
		return Copy{Mark: r.hosts}, copyAllowed
	case r.source == fromCluster:
		c, refusal = r.clusterCopy()
	default:
		c, refusal = r.cacheCopy()
	}
	c.hosts = r.hosts
	return c, refusal
}

// clusterCopy is sourceCopy for an answer from the view.
func (r *Request) clusterCopy() (c Copy, refusal copyRefusal) {
	mark, ok := r.zone.Cluster.Mark(&r.Query, &r.reply, r.copyBudget())
	if !ok {
		return Copy{}, refusedMark
	}
	return Copy{FromCluster: true, Mark: mark}, copyAllowed
}

// cacheCopy is sourceCopy for an answer from the cache.
func (r *Request) cacheCopy() (c Copy, refusal copyRefusal) {
	if r.trace != nil && r.zone.Cache.MayLease(&r.Query, r.Arrival) {
		return Copy{FromCache: true}, copyAllowed
	}
	if r.trace != nil {
		return Copy{}, refusedLease
	}
	lease, ok := r.zone.Cache.Lease(&r.Query, r.Arrival)
	if !ok {
		return Copy{}, refusedLease
	}
	return Copy{
		FromCache: true, Mark: lease.Mark, Expires: lease.Renew, Ends: lease.Expires, Life: lease.Life,
		CountsDown: lease.CountsDown, denial: lease.Denial,
	}, copyAllowed
}

// copyRefusal is why a reply may not be copied.
type copyRefusal uint8

const (
	copyAllowed copyRefusal = iota
	refusedSource
	refusedView
	refusedDirective // see [Zone.agentOnly]
	refusedRewrite
	refusedACL
	refusedClient
	refusedSearch // see [ReplySources]
	refusedRcode
	refusedOrder
	refusedOrigin
	refusedMark  // there is no [epoch.Mark]
	refusedLease // there is no [cache.Lease]
)

// copyRefusal returns why r's reply, which is finished, is not as good for the next client of the same
// [ClientGroup] that asks the same.
func (r *Request) copyRefusal() copyRefusal {
	if !r.hasSource() { // a query that is not valid has no zone
		return refusedSource
	}
	if refusal := r.zone.neverCopied(r.routes); refusal != copyAllowed {
		return refusal
	}
	if r.rewritten { // it is not made of the answer to its question
		return refusedRewrite
	}
	if refusal := r.clientRefusal(); refusal != copyAllowed {
		return refusal
	}
	switch rcode := r.reply.Rcode(); {
	case rcode != wire.NoError && rcode != wire.NXDomain:
		return refusedRcode
	case r.viaSearch: // its source was asked
	case r.belongsToCluster():
		return refusedOrigin
	case r.keepsOrder():
		return refusedOrder
	}
	return copyAllowed
}

// hasSource reports whether r's reply is from a source of copies, or made of such replies.
func (r *Request) hasSource() bool {
	return r.source == fromCluster || r.source == fromCache || r.source == fromHosts || r.viaSearch
}

// clientRefusal returns why it is not known which other clients get r's reply.
func (r *Request) clientRefusal() copyRefusal {
	switch {
	case r.verdicts&^byACL != 0, r.wasJudged() && r.routes.aclClasses == nil:
		return refusedACL
	case !r.clients.known():
		return refusedClient
	}
	return copyAllowed
}

// neverCopied returns why no reply of z is copied, [copyAllowed] if some are.
func (z *Zone) neverCopied(rt *Routes) copyRefusal {
	switch {
	case rt.views:
		return refusedView
	case len(z.agentOnly) > 0:
		return refusedDirective
	}
	return copyAllowed
}

// belongsToCluster reports whether r's reply is from the cache, although the view of the cluster may come to have the
// name.
func (r *Request) belongsToCluster() bool { return r.source == fromCache && r.zone.inCluster(&r.Query) }

// keepsOrder reports whether the order of the addresses in r's reply must stay.
func (r *Request) keepsOrder() bool {
	return r.ordered && r.reply.Count(wire.Answer) > 1 && !r.zone.Cluster.Rotatable(&r.Query, r.copyBudget())
}

// copyBudget returns a budget for looking at what r's reply was made from.
func (r *Request) copyBudget() *kubernetes.Budget {
	if r.trace != nil { // the budget of a dry run is unlimited, and no use of the view
		return r.budget
	}
	r.ownBudget.Refill()
	return &r.ownBudget
}

// needsAgent returns the directives of z because of which its answers can't be copied: the answer depends
// on who asks, each query has to be seen, or what comes before the sources of copies can change without a trace.
func (z *Zone) needsAgent() (directives []string) {
	for _, d := range [...]struct {
		name  string
		there bool
	}{
		{"auto", z.Auto != nil && z.Auto.FallsThrough()}, {"client_limit", z.Limit != nil}, {"dns64", z.DNS64 != nil}, {"dnstap", len(z.Taps) > 0}, {"file", z.File != nil && z.File.FallsThrough()}, {"header", z.Header != nil},
		{"k8s_external", z.External != nil}, {"loadbalance", z.Balance != nil}, {"log", z.Log.needsAll()}, {"rewrite", z.Rewrite != nil && !z.Rewrite.QuestionOnly()}, {"secondary", z.Secondary != nil && z.Secondary.FallsThrough()}, {"template", z.Template != nil}, {"tsig", z.TSIG != nil},
	} {
		if d.there {
			directives = append(directives, d.name)
		}
	}
	return directives
}

// inCluster reports whether q's name is one that the view of the cluster may come to have.
func (z *Zone) inCluster(q *wire.Query) bool {
	return slices.ContainsFunc(z.origins, func(origin wire.Name) bool { return wire.Under(q.Name(), origin) })
}

// Copied counts the queries that a copy of a reply has answered. It is immutable and safe for
// concurrent use.
type Copied struct {
	zone      *Zone
	name      []byte // the client's, in lower case and wire form
	qtype     uint16
	size      int // of the reply, in bytes
	rcode     wire.Rcode
	source    source
	v6, do    bool
	waste     bool
	viaSearch bool
	verdict   verdictKey
	own       copiedSource   // of the client's question
	more      []copiedSource // of other names on its search path
}

// copiedSource is where an answer came from that a copied reply is made of.
type copiedSource struct {
	zone   *Zone
	query  []byte
	source source
	denial bool // a negative answer in the cache
}

// Copied is for the copy c of r's reply, which has size bytes.
func (r *Request) Copied(c *Copy, size int) *Copied {
	h := &Copied{
		zone: r.zone, name: bytes.Clone(r.Query.Name()), qtype: r.Query.Type, size: size, rcode: r.reply.Rcode(), source: r.source,
		v6: r.OverIPv6(), do: r.Query.DO, waste: r.waste, viaSearch: r.viaSearch,
		verdict: verdictKey{r.rule, r.verdicts & anyVerdict},
		own:     copiedSource{zone: r.zone, query: bytes.Clone(r.Query.Packet), source: r.source, denial: c.denial},
	}
	if r.searched {
		h.own.source, h.own.denial = r.Sources.list[0].source, r.Sources.list[0].denial
		h.more = r.Sources.others(r)
	}
	return h
}

// ReportHits counts n queries that were answered with the copy as if the path had answered
// each with latency, and keeps in use what the reply was made of.
func (c *Copied) ReportHits(n uint64, latency time.Duration) {
	c.CountHits(0, n, latency)
	c.Use(n, clock.Now())
}

// CountHits counts n queries that were answered with the copy as if the path had answered each with
// latency. stripe is as in [Request.Stripe].
func (c *Copied) CountHits(stripe int, n uint64, latency time.Duration) {
	c.zone.Stats.countCopies(c, stripe, n, latency)
	c.own.countHits(stripe, n)
	for i := range c.more {
		c.more[i].countHits(stripe, n)
	}
}

// Use keeps in use what the reply was made of: the copy was sent n times since the last call, the last time at now.
func (c *Copied) Use(n uint64, now time.Duration) {
	c.own.use(n, now)
	for i := range c.more {
		c.more[i].use(n, now)
	}
}

// countHits counts n hits of the answer in the cache.
func (s *copiedSource) countHits(stripe int, n uint64) {
	if s.source == fromCache {
		s.zone.Cache.CountHits(stripe, n, s.denial)
	}
}

// use keeps the answer in use, which was given n times.
func (s *copiedSource) use(n uint64, now time.Duration) {
	var q wire.Query
	if q.Parse(s.query) != wire.Serve {
		return
	}
	switch s.source {
	case fromCluster:
		s.zone.Cluster.Touch(&q)
	case fromCache:
		s.zone.Cache.Use(&q, n, now)
	}
}

// NeedsEachUse reports whether the reply is from a cache that needs to know of each use at once.
func (c *Copied) NeedsEachUse() bool { return c.source == fromCache && c.zone.Cache.NeedsEachUse() }

// ClientQuery returns what is counted for a client that was sent the copy, without the times.
func (c *Copied) ClientQuery() clients.Query {
	return clients.Query{Rcode: c.rcode, Name: c.name, Waste: c.waste}
}

// OverIPv6 reports whether the client came over IPv6.
func (r *Request) OverIPv6() bool { return r.Client.Addr().Is6() && !r.Client.Addr().Is4In6() }
