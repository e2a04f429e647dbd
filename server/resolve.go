package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/upstream"
)

// Routes is what one listening address serves: its zones. It is not changed
// once it is served; a reload makes a new one.
type Routes struct {
	zones map[wire.Name]*Zone // the first of each name
	all   []*Zone
	depth int // labels of the longest zone
	// classes says that a zone has rules for queries of other classes than IN.
	classes bool
	// views says that some zones are only for some clients: what others take is then
	// decided by who asks, too.
	views bool
	// dropped is where queries that no zone takes are counted.
	dropped *Zone
	// number is what copies of answers are known by, 0 where there are none.
	number atomic.Uint32
}

// NewRoutes makes the routes of zones, which are of no other routes. Of zones of one
// name the first takes a query whose view takes it. Queries that no zone takes are
// counted in dropped.
func NewRoutes(zones []*Zone, dropped *Stats) *Routes {
	rt := &Routes{zones: make(map[wire.Name]*Zone, len(zones)), all: zones, dropped: &Zone{Stats: dropped}}
	for _, z := range slices.Backward(zones) {
		z.next = rt.zones[z.Name]
		rt.zones[z.Name] = z
		rt.depth = max(rt.depth, z.Name.Labels())
		rt.views = rt.views || z.View != nil
		rt.classes = rt.classes || z.Rewrite.Classes()
	}
	if slices.ContainsFunc(zones, func(z *Zone) bool { return z.ACL != nil }) {
		for _, z := range zones {
			z.lists = rt
		}
	}
	return rt
}

// Zones gives every zone, in the order in which they were given.
func (rt *Routes) Zones() iter.Seq[*Zone] { return slices.Values(rt.all) }

// Dropped are the counters of queries that no zone takes.
func (rt *Routes) Dropped() *Stats { return rt.dropped.Stats }

// step is how far the part of the path that never waits has come.
type step uint8

const (
	// done: the reply is complete.
	done step = iota
	// ask: the upstreams must be asked, which takes a while.
	ask
	// alias: the reply holds a CNAME out of the cluster, whose target must be
	// resolved, which may take a while.
	alias
	// lack: the view of the cluster has to get what the answer hangs on.
	lack
	// large: the answer is made of more objects of the cluster than a reader may look at for
	// one query.
	large
	// walk: one of the names on the client's search path takes waiting.
	walk
	// turn: what answers the query in its other form takes waiting.
	turn
	// made: what the answer that is made of the query leads to takes waiting.
	made
	// mapped: the addresses of the other family, which the answer is made from, take
	// waiting.
	mapped
)

// answer is the query path, up to where it would have to wait. It reads in the
// order of resolution:
//
//  1. What isn't a question of the Internet class in EDNS version 0 is an error.
//  2. The longest zone that the name is in, and whose view the query is in, says who
//     answers; none is REFUSED.
//  3. The zone may have an answer that needs no source ([Zone.guard]).
//  4. The query may be asked in another form than the client's ([Routes.rewritten]).
//  5. The zone's own sources come first (see [Zone.resolve]).
//  6. A name that does not exist may be one of a client's that goes down its search
//     path: what is at the end of that is its answer ([Routes.search]).
//  7. A name without IPv6 addresses may get some made of its IPv4 ones ([Routes.dns64]).
//  8. All else takes waiting, or longer than other clients should wait for, and is for
//     [Routes.completePending].
//
// Each step either writes the whole reply or leaves it as it was.
func (rt *Routes) answer(x *request) step {
	q, r := &x.query, &x.reply
	z, refusal := rt.take(x)
	x.zone = cmp.Or(z, rt.dropped)
	x.limitSize()
	if z == nil {
		r.Fail(refusal)
		return done
	}
	x.expect()
	if rt.observeProbe(z, x) {
		r.Fail(wire.ServFail)
		return done
	}
	if q.Class != wire.ClassIN {
		return rt.foreign(x)
	}
	if at, ok := z.guard(x); ok {
		return at
	}
	return rt.dns64(x, rt.rewritten(x))
}

// take gives the zone that answers x; nil if none does, and then why.
func (rt *Routes) take(x *request) (*Zone, wire.Rcode) {
	if x.query.Class != wire.ClassIN && !rt.classes {
		return nil, wire.Refused
	}
	if x.query.EDNS && x.query.Version != 0 {
		return nil, wire.BadVers
	}
	return rt.match(x), wire.Refused
}

// find asks the zone's own sources, and those of the names on the client's search path.
func (rt *Routes) find(x *request) step {
	at := x.zone.resolve(x)
	if x.zone.Autopath != nil && x.hops == 0 { // what an alias leads to is no client's search
		at = rt.search(x, at)
	}
	return at
}

// resolve asks the zone's sources if the client may ask at all, and sees to it that the
// client may ask for what the reply leads to, too (acl.go, vet.go).
func (z *Zone) resolve(x *request) step {
	if z.denied(x) {
		return done
	}
	at := z.sources(x)
	if z.lists != nil && (at == done || at == alias) && z.lists.vet(x) {
		return done
	}
	return at
}

// sources asks what needs no waiting, one after the other: answers made of a pattern
// (template), names written down by hand (hosts), the names that the cluster's Services
// have outside of it, the cluster's own names, the zone that is never forwarded (ddr.go),
// and what the cache holds. What none of them has is for the zone's upstreams, or where it
// has none says who asked (whoami).
func (z *Zone) sources(x *request) step {
	q, r := &x.query, &x.reply
	if at, ok := z.template(x); ok {
		return at
	}
	if z.Hosts != nil && z.Hosts.Answer(q, r) {
		x.source = fromHosts
		return done
	}
	if at, ok := z.external(x); ok {
		return at
	}
	if at, ok := z.cluster(x); ok {
		return at
	}
	if z.undesignated(x) {
		return done
	}
	if z.caches(q) && z.cached(x) {
		x.source = fromCache
		return done
	}
	if x.pool = z.upstreams(q); x.pool != nil {
		return ask
	}
	z.whoami(x)
	return done
}

// external is the step of the names that Services have outside of the cluster; ok is
// false if it leaves the query to those behind it. No other server need know these
// names, so what the view does not hold it has to get.
func (z *Zone) external(x *request) (at step, ok bool) {
	if z.External == nil {
		return done, false
	}
	outcome, target := z.External.Answer(&x.query, &x.reply, x.budget)
	switch outcome {
	case kubernetes.Answered, kubernetes.Refused:
		x.source = fromExternal
		return done, true
	case kubernetes.Alias:
		x.source, x.target = fromExternal, target
		return alias, true
	case kubernetes.NotSynced:
		x.reply.Fail(wire.ServFail)
		return done, true
	case kubernetes.Incomplete:
		x.missing = z.External
		return lack, true
	case kubernetes.OverBudget:
		return large, true
	case kubernetes.NotMine:
	}
	return done, false
}

// cluster is the step of the cluster's own names; ok is false if it leaves the
// query to those behind it. What the view does not hold, or not yet, the cluster's
// own DNS knows; any other server would say that there is no such name, and the
// cache would keep it.
func (z *Zone) cluster(x *request) (at step, ok bool) {
	if z.Cluster == nil {
		return done, false
	}
	outcome, target := z.Cluster.Answer(&x.query, &x.reply, x.budget)
	switch outcome {
	case kubernetes.Answered, kubernetes.Refused:
		x.source, x.ordered = fromCluster, z.Ordered
		return done, true
	case kubernetes.Alias:
		x.source, x.target = fromCluster, target
		return alias, true
	case kubernetes.NotSynced:
		if !z.asksCluster(&x.query) {
			x.reply.Fail(wire.ServFail)
			return done, true
		}
	case kubernetes.Incomplete:
		if !z.asksCluster(&x.query) {
			x.missing = z.Cluster
			return lack, true
		}
	case kubernetes.OverBudget:
		return large, true
	case kubernetes.NotMine:
	}
	return done, false
}

// asksCluster reports whether q would be forwarded to the cluster's own DNS.
func (z *Zone) asksCluster(q *wire.Query) bool {
	p := z.upstreams(q)
	return p != nil && z.ClusterDNS != nil && z.ClusterDNS(p) && !z.Loop.stops(p)
}

// upstreams is the first pool that takes q's name, nil if there is none.
func (z *Zone) upstreams(q *wire.Query) *upstream.Pool {
	for _, p := range z.Forward {
		if p.Covers(q.Name()) {
			return p
		}
	}
	return nil
}

// zone is the zone called name that takes x, nil if there is none.
func (rt *Routes) zone(name []byte, x *request) *Zone {
	z := rt.zones[wire.Name(name)]
	if z != nil && z.View != nil {
		return z.firstMatching(x)
	}
	return z
}

// match finds the longest zone the qname is in, of those whose view takes x. A DS
// record lives in the zone above the name it is about (RFC 4035, 3.1.4.1), so for it
// the shortest zone wins, but never the root in place of one that matches.
func (rt *Routes) match(x *request) *Zone {
	name := x.query.Name()
	for range x.query.Labels() - rt.depth {
		name = name[1+name[0]:] // longer than any zone
	}
	return rt.longest(name, x.query.Type, x)
}

// longest is match for the last labels of a name and a type of its own.
func (rt *Routes) longest(name []byte, qtype uint16, x *request) (found *Zone) {
	for ; len(name) > 1; name = name[1+name[0]:] {
		if z := rt.zone(name, x); z != nil {
			if qtype != wire.TypeDS {
				return z
			}
			found = z
		}
	}
	if found != nil {
		return found
	}
	return rt.zone(name, x)
}

// complete is the rest of the path, where it may wait: for the upstreams, for what
// an alias points to, for the view of the cluster, and for the names on a search
// path. It has no budget, so that no answer of the cluster is large. The reply is complete
// when it returns, whatever it returns; the error is why it is a SERVFAIL or a REFUSED.
func (rt *Routes) complete(ctx context.Context, x *request, at step) error {
	switch at {
	case ask:
		x.source = fromForward
		return x.vetted(x.zone.forward(ctx, x))
	case alias:
		return x.vetted(rt.chase(ctx, x))
	case lack:
		return rt.await(ctx, x)
	case large:
		return rt.complete(ctx, x, x.zone.resolve(x))
	case walk:
		return rt.searchOn(ctx, x)
	case turn:
		return rt.rewrittenOn(ctx, x)
	case made:
		return x.vetted(rt.templateOn(ctx, x))
	case mapped:
		return rt.dns64On(ctx, x)
	default:
		return nil
	}
}

// forward gets the answer from the zone's upstreams, by way of its cache.
func (z *Zone) forward(ctx context.Context, x *request) error {
	var err error
	if z.caches(&x.query) {
		_, err = z.Cache.Fetch(ctx, &x.query, &x.reply, z.Loop.guard(x.pool, asker(x.pool, x.proto, x.place)))
	} else {
		var resp wire.Response
		if resp, err = z.Loop.guard(x.pool, asker(x.pool, x.proto, x.place))(ctx, &x.query); err == nil {
			x.reply.Pass(resp.Packed)
		}
	}
	switch {
	case errors.Is(err, errLoop):
		z.Loop.fail(&x.reply)
		return nil // the log tells of the loop, not of each query
	case errors.Is(err, upstream.ErrTooMany):
		x.reply.Fail(wire.Refused)
	case err != nil:
		x.reply.Fail(wire.ServFail)
	}
	return err
}

// maxHops bounds the aliases followed through the path for one query. Each is a
// Service somebody made by hand; a chain of eight is a mistake.
const maxHops = 8

// errHops ends a chain of aliases that lead to one another.
var errHops = errors.New("more than 8 aliases lead to one another")

// chase resolves what a cluster name that is an alias points to, through the
// whole path, and appends it. An alias whose target does not resolve is still
// an answer: the CNAME alone (DNS-Based Service Discovery, 2.5).
func (rt *Routes) chase(ctx context.Context, x *request) error {
	if x.hops >= maxHops {
		return errHops
	}
	sub := request{arrival: clock.Now(), proto: x.proto, client: x.client, place: x.place, hops: x.hops + 1}
	if sub.query.Parse(wire.AppendQuery(nil, x.query.ID, []byte(x.target), x.query.Type, &x.query, wire.MinUDP)) != wire.Serve {
		return nil
	}
	sub.reply.Start(nil, &sub.query)
	if err := rt.complete(ctx, &sub, rt.answer(&sub)); err != nil {
		return err
	}
	x.inherit(&sub)
	x.reply.CopyTC(&sub.reply)
	return x.reply.AppendAnswers(sub.reply.Finish(wire.MaxMessage))
}

// clusterWait is how long a query waits for the view of the cluster. What it waits for
// is the list of one namespace, some tens of milliseconds; an API server under load
// is expected to have given it within a second. With half of it a node's first
// queries in a cluster that starts would fail; with twice as much the reply is late
// for clients that ask again after five seconds, and can't tell why there was none.
const clusterWait = 2 * time.Second

// errIncomplete is why a query failed that needs more of the cluster than is in view.
var errIncomplete = errors.New("the view of the cluster did not get the objects that the answer hangs on")

// await waits until the view has what the answer hangs on, and then answers anew.
func (rt *Routes) await(ctx context.Context, x *request) error {
	limited, cancel := context.WithTimeout(ctx, clusterWait)
	defer cancel()
	if err := x.missing.Await(limited, &x.query); err != nil {
		x.reply.Fail(wire.ServFail)
		return fmt.Errorf("%w: %w", errIncomplete, err)
	}
	came := x.arrival
	x.arrival = clock.Now() // what the cache holds has grown older meanwhile
	at := x.zone.resolve(x)
	x.arrival = came
	if at == lack {
		x.reply.Fail(wire.ServFail)
		return errIncomplete
	}
	return rt.complete(ctx, x, at)
}
