package resolver

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/upstream"
)

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

// wantsAsked reports whether who is asked for r is to be recorded.
func (r *Request) wantsAsked() bool {
	return r.zone.Log != nil || r.zone.tapsExtra() || r.routes.Tail.Watches(r.Client.Addr())
}

// recordAsked returns where the exchange for r is to record who was asked, nil for nowhere.
func (r *Request) recordAsked() *atomic.Pointer[upstream.Asked] {
	if !r.wantsAsked() {
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
		View: r.zone.View.Name(), Source: r.sourceName(), SearchPath: r.searchPath(), Latency: r.Latency,
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
	if r.err != nil {
		q.Err = strings.ToValidUTF8(r.err.Error(), "?")
	}
	return q
}
