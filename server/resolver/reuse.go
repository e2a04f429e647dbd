package resolver

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/reply"
)

// Reusable says how long, and for whom, a reply may answer the same question again in place of the query path: as a
// copy that a reader keeps, or that is in the kernel. The marks are valid until the request's next run.
type Reusable struct {
	reply.Terms
	// Clients are the only clients that get the reply; zero: all do.
	Clients ClientGroup
	// ByPolicy says that of Clients, only the class of the policies counts.
	ByPolicy bool
	// Logged says that some of the queries that the reply answers are logged.
	Logged bool

	denial bool // a negative answer in the cache
	// hosts is the mark of the hosts table that was asked before the other sources; zero: there is none.
	hosts epoch.Mark
}

// ClientGroup is the clients that get the same replies where these depend on the client: on its namespace, on access lists, on
// policies, or on whether it has an IPv6 address. The zero ClientGroup is all clients.
type ClientGroup struct {
	// Of is the directive that looks at the namespace; nil: nothing depends on it.
	Of *Autopath
	// Namespace is the clients' namespace as a label, nil if it is not known. It must not be changed.
	Namespace []byte
	// Mark moves before a client gets another namespace or other policies; zero without Of and Policies.
	Mark epoch.Mark
	// Policies is the table that has the clients' class Policy; nil: nothing depends on it.
	Policies *dnspolicy.Table
	Policy   *dnspolicy.Class
	// ACLs are the routes by whose access lists the clients have the Class; nil: nothing depends on them.
	ACLs  *Routes
	Class uint64
	// Family is zero if nothing depends on it.
	Family ClientFamily
}

// known reports whether g is about clients with a known namespace, or about all clients.
func (g *ClientGroup) known() bool { return g.Of == nil || g.Namespace != nil && g.Mark.Index != 0 }

// IsAll reports whether g is all clients.
func (g *ClientGroup) IsAll() bool {
	return g.Of == nil && g.ACLs == nil && g.Policies == nil && g.Family == ClientFamily{}
}

// clientGroup returns the clients that get r's reply. If it depends on one part of the group, the group has both, so that
// a client has one group for all replies of a listener.
func (r *Request) clientGroup() (g ClientGroup) {
	g = r.clients
	if g.Of == nil && r.byClient() == 0 {
		return ClientGroup{}
	}
	rt := r.routes
	g.Family = rt.familyOf(r)
	if rt.aclClasses != nil {
		g.ACLs, g.Class = rt, rt.aclClasses.of(r.Client.Addr())
	}
	if g.Of == nil && rt.search != nil {
		rt.search.group(r.Client.Addr().Unmap(), &g)
		if g.Mark.Index == 0 {
			g.Of, g.Namespace = nil, nil
		}
	}
	if rt.policies != nil {
		g.Policies, g.Policy, g.Mark = rt.policies, r.policy, r.policyMark // the mark is read before both
	}
	return g
}

// isByPolicy reports whether of r's client, only its policies count for the reply.
func (r *Request) isByPolicy() bool { return r.clients.Of == nil && r.byClient() == byPolicy }

// hasOtherMark reports whether r's client may get another namespace without a move of the mark of its policies.
func (r *Request) hasOtherMark() bool {
	for _, s := range []*Autopath{r.clients.Of, r.routes.search} {
		if s != nil && s.clientMark().Index != r.policyMark.Index {
			return true
		}
	}
	return false
}

// byClient returns the verdicts on r's client that r's reply depends on: those of access lists, byFamily and byPolicy.
func (r *Request) byClient() (v verdicts) {
	v = r.verdicts
	if r.searched && r.Sources != nil {
		v |= r.Sources.verdicts
	}
	return v & (byACL | byFamily | byPolicy)
}

// byACL are the verdicts of access lists that let a reply pass.
const byACL = allowed | listed

// Reusable returns how r's reply, which is finished, may be sent again. ok is false if it may not: if
// it depends on the client in another way than by its group, or may change without a trace. The caller has read
// [epoch.Table.Any] before Begin, and finds it unmoved afterwards.
func (r *Request) Reusable() (t Reusable, ok bool) {
	t, refusal := r.reuse()
	return t, refusal == reusable
}

// reuse is Reusable with the reason why the reply may not be sent again.
func (r *Request) reuse() (t Reusable, refusal reuseRefusal) {
	if refusal = r.refuseReuse(); refusal != reusable {
		return Reusable{}, refusal
	}
	if r.searched {
		t, refusal = r.Sources.terms(r)
	} else {
		t, refusal = r.sourceTerms()
		if t.hosts != (epoch.Mark{}) && t.hosts != t.Mark {
			t.More = append(r.Sources.more(), t.hosts)
		}
	}
	t.MaxSize, t.Waste, t.Clients, t.ByPolicy = r.zone.maxSize(r), r.waste, r.clientGroup(), r.isByPolicy()
	if m := t.Clients.Family.Mark; r.byClient()&byFamily != 0 && m.Index != t.Mark.Index { // the view says which addresses a pod has
		if t.More == nil {
			t.More = r.Sources.more()
		}
		t.FromCluster, t.More = true, append(t.More, m)
	}
	t.Logged = r.zone.Log != nil
	t.Shuffled = (r.ordered || r.zone.Shuffle) && r.reply.Rcode() == wire.NoError
	return t, refusal
}

// sourceTerms returns what the source of r's reply says about its reuse, and the hosts table in front of it. In a dry
// run it only says whether there may be any.
func (r *Request) sourceTerms() (t Reusable, refusal reuseRefusal) {
	switch {
	case r.zone.Hosts != nil && r.hosts.Index == 0:
		return Reusable{}, refusedMark
	case r.source == fromHosts && r.zone.RPZ != nil: // a change of the rules does not move the mark
		return Reusable{}, refusedMark
	case r.source == fromHosts:
		t.Mark = r.hosts
		return t, reusable
	case r.source == fromAAAA:
		t.FromCluster, t.Mark = true, r.routes.pods.Mark()
	case r.source == fromCluster:
		mark, ok := r.zone.Cluster.Mark(&r.Query, &r.reply, r.reuseBudget())
		if !ok {
			return Reusable{}, refusedMark
		}
		t.FromCluster, t.Mark = true, mark
	default:
		t, refusal = r.cacheTerms()
	}
	t.hosts = r.hosts
	return t, refusal
}

// cacheTerms is sourceTerms for an answer from the cache.
func (r *Request) cacheTerms() (t Reusable, refusal reuseRefusal) {
	if r.trace != nil {
		if !r.zone.Cache.MayLease(&r.Query, r.Arrival) {
			return Reusable{}, refusedLease
		}
		t.FromCache = true
		return t, reusable
	}
	lease, ok := r.zone.Cache.Lease(&r.Query, r.Arrival)
	if !ok {
		return Reusable{}, refusedLease
	}
	t.FromCache, t.Mark, t.Lifetime, t.denial = true, lease.Mark, lease.Lifetime, lease.Denial
	return t, reusable
}

// reuseRefusal is why a reply may not be sent again.
type reuseRefusal uint8

const (
	reusable reuseRefusal = iota
	refusedSource
	refusedView
	refusedDirective // see [Zone.AgentOnly]
	refusedRewrite
	refusedACL
	refusedRPZ
	refusedAudit
	refusedEgress
	refusedClient
	refusedSearch // see [ReplySources]
	refusedRcode
	refusedExplained
	refusedOrder
	refusedOrigin
	refusedMark  // there is no [epoch.Mark]
	refusedLease // there is no [cache.Lease]
)

// refuseReuse returns why r's reply, which is finished, is not as good for the next client of the same
// [ClientGroup] that asks the same.
func (r *Request) refuseReuse() reuseRefusal {
	if !r.hasSource() { // a query that is not valid has no zone
		return refusedSource
	}
	if refusal := r.zone.neverReused(r.routes); refusal != reusable {
		return refusal
	}
	if r.rewritten { // it is not made of the answer to its question
		return refusedRewrite
	}
	if refusal := r.clientRefusal(); refusal != reusable {
		return refusal
	}
	return r.replyRefusal()
}

// replyRefusal returns why the reply itself is not sent again.
func (r *Request) replyRefusal() reuseRefusal {
	switch rcode := r.reply.Rcode(); {
	case rcode != wire.NoError && rcode != wire.NXDomain:
		return refusedRcode
	case r.reply.Explained():
		return refusedExplained
	case r.verdicts&byNamespace != 0:
		return refusedRPZ
	case r.admitted:
		return refusedEgress
	case r.viaSearch: // its source was asked
	case r.belongsToCluster():
		return refusedOrigin
	case r.keepsOrder():
		return refusedOrder
	}
	return reusable
}

// hasSource reports whether r's reply is from a source of copies, or made of such replies.
func (r *Request) hasSource() bool {
	return r.source == fromCluster || r.source == fromCache || r.source == fromHosts || r.source == fromAAAA || r.viaSearch
}

// clientRefusal returns why it is not known which other clients get r's reply.
func (r *Request) clientRefusal() reuseRefusal {
	switch {
	case r.verdicts&audited != 0:
		return refusedAudit
	case r.verdicts&^(byACL|byFamily|byPolicy|byNamespace) != 0, r.byClient()&byACL != 0 && r.routes.aclClasses == nil:
		return refusedACL
	case !r.clients.known(), r.verdicts&byPolicy != 0 && r.hasOtherMark():
		return refusedClient
	case r.verdicts&byPolicy != 0 && r.policyMark.Index == 0:
		return refusedMark
	case r.byClient()&byFamily != 0 && r.routes.pods.Mark().Index == 0:
		return refusedMark
	}
	return reusable
}

// neverReused returns why no reply of z is sent again, [reusable] if some are.
func (z *Zone) neverReused(rt *Routes) reuseRefusal {
	switch {
	case rt.views:
		return refusedView
	case len(z.AgentOnly) > 0:
		return refusedDirective
	}
	return reusable
}

// belongsToCluster reports whether r's reply is from the cache, although the view of the cluster may come to have the
// name.
func (r *Request) belongsToCluster() bool { return r.source == fromCache && r.zone.inCluster(&r.Query) }

// keepsOrder reports whether the order of the addresses in r's reply must stay.
func (r *Request) keepsOrder() bool {
	return r.ordered && r.reply.Count(wire.Answer) > 1 && !r.zone.Cluster.Rotatable(&r.Query, r.reuseBudget())
}

// reuseBudget returns a budget for looking at what r's reply was made from.
func (r *Request) reuseBudget() *kubernetes.Budget {
	if r.trace != nil { // the budget of a dry run is unlimited, and no use of the view
		return r.budget
	}
	r.ownBudget.Refill()
	return &r.ownBudget
}

// inCluster reports whether q's name is one that the view of the cluster may come to have.
func (z *Zone) inCluster(q *wire.Query) bool {
	return slices.ContainsFunc(z.origins, func(origin wire.Name) bool { return wire.Under(q.Name(), origin) })
}

// refusalTexts are what explanations say of them.
var refusalTexts = [...]string{
	reusable:         "",
	refusedSource:    "only answers of kubernetes, hosts and the cache are copied",
	refusedView:      "a server block of the listener has a view",
	refusedDirective: "the server block has ",
	refusedRewrite:   "a rewrite rule changes the query or the reply",
	refusedACL:       "an acl that is about a name in the reply distinguishes too many lists of networks",
	refusedRPZ:       "a rule of a response policy zone is not for all clients",
	refusedAudit:     "a DNSPolicy or a response policy zone in audit mode would deny the name, which is counted for each query",
	refusedEgress:    "the addresses have to be in the egressSet of a DNSPolicy",
	refusedClient:    "the reply depends on the namespace of the client, which is not known",
	refusedSearch:    "an answer for another name of the search path is not copied",
	refusedRcode:     "only replies with NOERROR and NXDOMAIN are copied",
	refusedExplained: "the reply has an extended error",
	refusedOrder:     "the order of the addresses depends on their distance",
	refusedOrigin:    "the name is in a zone of kubernetes, whose view may answer later",
	refusedMark:      "the answer does not depend on the view of the cluster alone",
	refusedLease:     "the cache has no entry of its own for the question, or will soon refresh it",
}

// text says why a reply of z is not copied, "" for [reusable].
func (c reuseRefusal) text(z *Zone) string {
	if c == refusedDirective {
		return refusalTexts[c] + strings.Join(z.AgentOnly, ", ")
	}
	return refusalTexts[c]
}

// whyNotReused returns why no copy may be made of the reply of r, a dry run that was answered.
func (r *Request) whyNotReused() reuseRefusal {
	_, refusal := r.reuse()
	if refusal == refusedSource {
		return cmp.Or(r.zone.neverReused(r.routes), refusal)
	}
	return refusal
}

// refuseReuseLater returns why no copy may be made of any reply to r, a dry run that waits; [reusable] if that
// depends on the reply.
func (r *Request) refuseReuseLater(waits Wait) reuseRefusal {
	refusal := r.zone.neverReused(r.routes)
	switch {
	case refusal == reusable && r.rewritten:
		return refusedRewrite
	case refusal != reusable || waits != WaitUpstream || r.searched:
		return refusal
	case r.source == fromCluster: // an alias to a name outside of the view
		return refusedMark
	case !r.zone.caches(&r.Query):
		return refusedSource
	case r.zone.inCluster(&r.Query):
		return refusedOrigin
	}
	return reusable
}

// maxSources is how many answers a reply along a search path may be made of to be copied: those of its names in the
// cluster, and of a few search domains of the node.
const maxSources = 8

// ReplySources collects, while a client's search path is followed, the answers that the reply is made of: the denials of
// the names that do not exist, and the answer for the one that does. It is scratch space for the copies of one request's
// replies.
type ReplySources struct {
	base    int          // bytes of the client's name in front of the domains of its path
	refusal reuseRefusal // why the reply may not be copied
	ended   bool         // the path was followed to its end, without waiting
	// verdicts are those on the client that the answers depend on.
	verdicts verdicts
	n        int
	list     [maxSources]searchSource
	// first is what the source of the first name says of copies, last that of the last one.
	first, last            Reusable
	expires                time.Duration // the least of all; 0 is never
	fromCluster, fromCache bool
	marks                  []epoch.Mark // of all answers, each once, in allMarks
	allMarks, moreMarks    [2 * maxSources]epoch.Mark
}

// searchSource is where the answer for one name came from. domain is "" for the client's own name.
type searchSource struct {
	zone   *Zone
	domain wire.Name
	source source
	denial bool
}

// begin makes s ready for the search path of r, whose own name does not exist. A nil s collects nothing.
func (s *ReplySources) begin(r *Request, base int) {
	if s == nil {
		return
	}
	s.base, s.n, s.ended, s.verdicts, s.refusal = base, 0, false, 0, reusable
	s.expires, s.fromCluster, s.fromCache, s.marks = 0, false, false, s.allMarks[:0]
	s.add(r, "")
}

// add adds the answer to x, which asks for the client's name in domain.
func (s *ReplySources) add(x *Request, domain wire.Name) {
	if s == nil || s.refusal != reusable {
		return
	}
	refusal, t := x.refuseReuse(), Reusable{}
	if refusal == reusable {
		t, refusal = x.sourceTerms()
	}
	switch {
	case refusal == reusable && s.n < len(s.list):
		s.put(x, domain, &t)
	case s.n == 0:
		s.refusal = refusal
	default:
		s.refusal = refusedSearch
	}
}

// put adds the answer to x, which may be reused as t says.
func (s *ReplySources) put(x *Request, domain wire.Name, t *Reusable) {
	s.verdicts |= x.byClient()
	s.list[s.n] = searchSource{zone: x.zone, domain: domain, source: x.source, denial: t.denial}
	s.marks = addMark(addMark(s.marks, t.Mark), t.hosts)
	if s.n++; s.n == 1 {
		s.first = *t
	}
	s.last = *t
	s.fromCluster, s.fromCache = s.fromCluster || t.FromCluster, s.fromCache || t.FromCache
	if t.Expires != 0 && (s.expires == 0 || t.Expires < s.expires) {
		s.expires = t.Expires
	}
}

// end says that nothing is to be added.
func (s *ReplySources) end() {
	if s != nil {
		s.ended = true
	}
}

// terms returns how the reply to r, whose search path was followed, may be sent again: as long as all answers that it is
// made of.
func (s *ReplySources) terms(r *Request) (t Reusable, refusal reuseRefusal) {
	switch {
	case s == nil || !s.ended:
		return Reusable{}, refusedSearch
	case s.refusal != reusable:
		return Reusable{}, s.refusal
	}
	t = s.first
	if r.viaSearch {
		t = s.last
	}
	t.FromCluster, t.FromCache, t.Expires = s.fromCluster, s.fromCache, s.expires
	t.More = s.more()
	for _, m := range s.marks {
		if m.Index != t.Mark.Index || m.Value != t.Mark.Value {
			t.More = append(t.More, m)
		}
	}
	return t, reusable
}

// more returns an empty list with room for [reply.Terms.More].
func (s *ReplySources) more() []epoch.Mark {
	if s == nil {
		return nil
	}
	return s.moreMarks[:0]
}

// addMark returns list with m, unless it has it or m is the zero Mark.
func addMark(list []epoch.Mark, m epoch.Mark) []epoch.Mark {
	if m == (epoch.Mark{}) || slices.ContainsFunc(list, func(o epoch.Mark) bool { return o.Index == m.Index && o.Value == m.Value }) {
		return list
	}
	return append(list, m)
}

// others returns where the answers came from for the names other than r's own.
func (s *ReplySources) others(r *Request) (list []replyPart) {
	var name [wire.MaxName]byte
	for _, from := range s.list[1:s.n] {
		n := copy(name[:], r.Query.Packet[wire.HeaderLen:wire.HeaderLen+s.base])
		n += copy(name[n:], from.domain)
		list = append(list, replyPart{
			zone: from.zone, query: wire.AppendQuery(nil, r.Query.ID, name[:n], r.Query.Type, &r.Query, wire.MinUDP),
			source: from.source, denial: from.denial,
		})
	}
	return list
}
