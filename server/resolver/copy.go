package resolver

import (
	"bytes"
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
	// FromCluster says that the reply is made from the view of the cluster; else it is from
	// the cache.
	FromCluster bool
	// Mark moves when what the reply is made of changes.
	Mark epoch.Mark
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
}

// Copy returns how r's reply, which is finished, may be copied. ok is false if it may not: if
// it depends on who asks, or may change without a trace. The caller has read
// [epoch.Table.Any] before Begin, and finds it unmoved after Copy.
func (r *Request) Copy() (c Copy, ok bool) {
	if r.copyRefusal() != copyAllowed {
		return Copy{}, false
	}
	c = Copy{MaxSize: r.zone.maxSize(), Shuffled: (r.ordered || r.zone.Shuffle) && r.reply.Rcode() == wire.NoError, Waste: r.waste, Logged: r.zone.Log != nil}
	if r.source == fromCluster {
		c.FromCluster = true
		c.Mark, ok = r.zone.Cluster.Mark(&r.Query, &r.reply, r.copyBudget())
		return c, ok
	}
	lease, ok := r.zone.Cache.Lease(&r.Query, r.Arrival)
	if !ok {
		return Copy{}, false
	}
	c.Mark, c.Expires, c.Ends, c.Life = lease.Mark, lease.Renew, lease.Expires, lease.Life
	c.CountsDown, c.denial = lease.CountsDown, lease.Denial
	return c, true
}

// copyRefusal is why a reply may not be copied.
type copyRefusal uint8

const (
	copyAllowed copyRefusal = iota
	refusedSource
	refusedView
	refusedDirective // see [Zone.agentOnly]
	refusedACL
	refusedSearch
	refusedRcode
	refusedOrder
	refusedOrigin
	// Of these, only explanations know. Others get no [epoch.Mark], or no [cache.Lease].
	refusedMark
	refusedLease
)

// copyRefusal returns why r's reply, which is finished, is not as good for the next client that asks the same.
// A reply with names that an ACL was asked about is not, whatever zone it is of.
func (r *Request) copyRefusal() copyRefusal {
	if r.source != fromCluster && r.source != fromCache { // a query that is not valid has no zone
		return refusedSource
	}
	if refusal := r.zone.neverCopied(r.routes); refusal != copyAllowed {
		return refusal
	}
	switch rcode := r.reply.Rcode(); {
	case r.verdicts != 0:
		return refusedACL
	case r.viaSearch:
		return refusedSearch
	case rcode != wire.NoError && rcode != wire.NXDomain:
		return refusedRcode
	case r.belongsToCluster():
		return refusedOrigin
	case r.keepsOrder():
		return refusedOrder
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
	if r.trace == nil { // the budget of a dry run is unlimited, and no use of the view
		r.ownBudget.Refill()
	}
	return &r.ownBudget
}

// needsAgent returns the directives of z because of which its answers can't be copied: the answer depends
// on who asks, each query has to be seen, or what comes before the sources of copies can change without a trace.
func (z *Zone) needsAgent() (directives []string) {
	for _, d := range [...]struct {
		name  string
		there bool
	}{
		{"acl", z.ACL != nil}, {"auto", z.Auto != nil && z.Auto.FallsThrough()}, {"autopath", z.Autopath != nil}, {"client_limit", z.Limit != nil}, {"dns64", z.DNS64 != nil}, {"dnstap", len(z.Taps) > 0}, {"file", z.File != nil && z.File.FallsThrough()}, {"header", z.Header != nil}, {"hosts", z.Hosts != nil},
		{"k8s_external", z.External != nil}, {"loadbalance", z.Balance != nil}, {"log", z.Log.needsAll()}, {"rewrite", z.Rewrite != nil}, {"secondary", z.Secondary != nil && z.Secondary.FallsThrough()}, {"template", z.Template != nil}, {"tsig", z.TSIG != nil},
	} {
		if d.there {
			directives = append(directives, d.name)
		}
	}
	return directives
}

// inCluster reports whether q's name is one that the view of the cluster may come to have.
func (z *Zone) inCluster(q *wire.Query) bool {
	if z.Cluster == nil {
		return false
	}
	for _, origin := range z.Cluster.Origins() {
		if wire.Under(q.Name(), origin) {
			return true
		}
	}
	return false
}

// Copied counts the queries that a copy of a reply has answered. It is immutable and safe for
// concurrent use.
type Copied struct {
	zone   *Zone
	query  []byte
	name   []byte // in lower case and wire form
	qtype  uint16
	size   int // of the reply, in bytes
	rcode  wire.Rcode
	source source
	v6, do bool
	denial bool
	waste  bool
}

// Copied is for the copy c of r's reply, which has size bytes.
func (r *Request) Copied(c *Copy, size int) *Copied {
	return &Copied{
		zone: r.zone, query: bytes.Clone(r.Query.Packet), name: bytes.Clone(r.Query.Name()), qtype: r.Query.Type, size: size,
		rcode: r.reply.Rcode(), source: r.source, v6: r.OverIPv6(), do: r.Query.DO, denial: c.denial, waste: r.waste,
	}
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
	if c.source == fromCache {
		c.zone.Cache.CountHits(stripe, n, c.denial)
	}
}

// Use keeps in use what the reply was made of: the copy was sent n times since the last call, the last time at now.
func (c *Copied) Use(n uint64, now time.Duration) {
	var q wire.Query
	if q.Parse(c.query) != wire.Serve {
		return
	}
	switch c.source {
	case fromCluster:
		c.zone.Cluster.Touch(&q)
	case fromCache:
		c.zone.Cache.Use(&q, n, now)
	}
}

// Prefetched reports whether the reply is from a cache that needs to know of each use at once.
func (c *Copied) Prefetched() bool { return c.source == fromCache && c.zone.Cache.Prefetches() }

// ClientQuery returns what is counted for a client that was sent the copy, without the times.
func (c *Copied) ClientQuery() clients.Query {
	return clients.Query{Rcode: c.rcode, Name: c.name, Waste: c.waste}
}

// OverIPv6 reports whether the client came over IPv6.
func (r *Request) OverIPv6() bool { return r.Client.Addr().Is6() && !r.Client.Addr().Is4In6() }
