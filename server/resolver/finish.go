package resolver

import (
	"math"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/upstream"
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
	if r.verdicts&(forbidden|audited|byRule) != 0 {
		r.countDenial()
	}
	if r.routes.Clients != nil {
		r.countClient(msg)
	}
	if err := r.failure(); err != nil && z.Errors != nil {
		z.Errors.failed(r, err, &z.failed)
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
	if r.Encrypted && (r.Query.Padded || r.Proto == QUIC) { // RFC 7830, 6; RFC 9250, 5.4
		r.reply.SetPadding(wire.ReplyBlock)
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
	case fromServer, fromLocal, fromAny, fromACL, fromPolicy, fromRPZ, fromTunnel, fromClientLimit, fromChaos:
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

// What is known of a request that is finished, for logs. Nothing here is needed, and computed, for
// zones without a log unless `nodens tail` is attached, or spans of the query are exported.

// The values of cache in logs.
const (
	cacheHit   = "hit"
	cacheStale = "stale"
	cacheMiss  = "miss"
)

// The values of search_path in logs: the name does not exist and can only come from a search path, or
// the answer belongs to another name on the client's search path (`autopath`).
const (
	searchWaste    = "waste"
	searchFollowed = "followed"
)

// recordAsked returns where the exchange for r is to record who was asked, nil for nowhere.
func (r *Request) recordAsked() *atomic.Pointer[upstream.Asked] {
	if r.zone.Log == nil && !r.zone.tapsExtra() && !r.routes.Tail.Watches(r.Client.Addr()) {
		return nil
	}
	r.lookups.exchange = new(atomic.Pointer[upstream.Asked])
	return r.lookups.exchange
}

// asked returns who was asked for r, nil if nobody was, or if r has waited for the exchange of another
// client.
func (r *Request) asked() *upstream.Asked {
	if r.ownLookups.exchange == nil {
		return nil
	}
	return r.ownLookups.exchange.Load()
}

// owner returns whose the client's address is now: the pod and its namespace, or (host) or (unknown) in
// place of the namespace, or nothing if the agent does not know the pods.
func (r *Request) owner() (namespace string, pod clients.Pod) {
	if r.routes == nil || r.routes.Owners == nil {
		return "", clients.Pod{}
	}
	kind, pod := r.routes.Owners.Owner(r.Client.Addr())
	return pod.Namespace + kind.String(), pod
}

// workloadName returns the workload as KIND/NAME, "" for none.
func workloadName(w clients.Workload) string {
	if w == (clients.Workload{}) {
		return ""
	}
	return w.Kind + "/" + w.Name
}

// cacheUse returns how the cache was of use: hit, stale or miss, "" if it was not asked. age is the time
// since the reply came from upstream, -1 if it is not known.
func (r *Request) cacheUse() (use string, age time.Duration) {
	z := r.zone
	switch {
	case r.ownLookups.waits.asked:
		use = cacheMiss
	case r.source == fromCache, r.ownLookups.hit():
		use = cacheHit
	}
	if use == "" || z.Cache == nil {
		return "", -1
	}
	entry, ok := z.Cache.Inspect(&r.Query, r.Arrival)
	switch {
	case !ok:
		return use, -1
	case entry.TTL == 0 && r.reply.Rcode() != wire.ServFail: // else the exchange would have replaced it
		return cacheStale, entry.Age
	case use == cacheMiss:
		return use, -1
	}
	return use, entry.Age
}

// hit reports whether a look-up was a hit.
func (l *lookups) hit() bool {
	if l.cached {
		return true
	}
	for i := range l.list {
		if l.list[i].result.Hit() {
			return true
		}
	}
	return false
}

// searchPath returns what the client's search path has to do with r.
func (r *Request) searchPath() string {
	switch {
	case r.viaSearch:
		return searchFollowed
	case r.waste, r.routes != nil && !r.Dropped() && r.reply.Rcode() == wire.NXDomain && r.fromSearchPath():
		return searchWaste
	}
	return ""
}

// sourceName returns the step that made the reply, "" for the path itself.
func (r *Request) sourceName() string { return sourceNames[r.source] }

// publish passes r to those who watch its client, if they take it. answered says that there is a reply.
func (r *Request) publish(answered bool) {
	client := r.Client.Addr()
	if !r.routes.Tail.Watches(client) {
		return
	}
	taken := r.routes.Tail.Take(&tail.Key{
		Client: client, Name: r.Query.Name(), NoReply: !answered, Rcode: r.reply.Rcode(),
		Latency: r.Latency, Now: r.Arrival + r.Latency,
	})
	if taken.Any() {
		taken.Send(r.describe(answered))
	}
}

// describe returns what is known of r.
func (r *Request) describe(answered bool) *tail.Query {
	namespace, pod := r.owner()
	q := &tail.Query{
		Time: time.Now().Add(-r.Latency), Client: netip.AddrPortFrom(r.Client.Addr().Unmap(), r.Client.Port()),
		Namespace: namespace, Pod: pod.Name, Workload: workloadName(pod.Workload),
		Proto: r.Proto.String(), Name: wire.Name(r.Query.Name()).String(), Type: wire.TypeName(r.Query.Type),
		View: r.zone.View.Name(), Source: r.sourceName(), SearchPath: r.searchPath(), Policy: r.policyName(), Latency: r.Latency,
	}
	if r.zone.Name != "" {
		q.Zone = r.zone.Name.String()
	}
	if answered {
		q.Rcode = r.reply.Rcode().String()
	}
	q.Cache, q.Age = r.cacheUse()
	q.Exchange, q.ViewWait = r.ownLookups.waits.upstream, r.ownLookups.waits.view
	if a := r.asked(); a != nil {
		q.Upstream, q.Hedged, q.HedgeWon = a.Server.String(), a.Hedged, a.HedgeWon
	}
	if err := r.failure(); err != nil {
		q.Err = strings.ToValidUTF8(err.Error(), "?")
	}
	return q
}
