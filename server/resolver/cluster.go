package resolver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
)

// cluster is the step of the cluster's own names. What the view does not hold, or not yet,
// the cluster's own DNS knows. Any other server would deny the name, and the cache would
// keep the denial.
func (z *Zone) cluster(r *Request) Outcome {
	if z.Cluster == nil {
		return notMine
	}
	return r.askView(z.Cluster, fromCluster)
}

// askView asks v, one of the views of r's zone. Its answers are counted under from.
func (r *Request) askView(v External, from source) Outcome {
	for waited := false; ; waited = true {
		found, target, err := r.askInTurn(v)
		if err != nil {
			r.err = err
			return r.fail(wire.ServFail)
		}
		if r.trace != nil {
			r.traceView(v, from, found, target)
		}
		switch found {
		case kubernetes.Answered, kubernetes.Refused:
			r.source, r.ordered = from, from == fromCluster && r.zone.Ordered
			return Answered
		case kubernetes.Alias:
			r.source = from
			return r.chase(target)
		case kubernetes.NotMine:
			return notMine
		case kubernetes.OverBudget: // only without permission to wait
			return WouldWait
		}
		// found is NotSynced or Incomplete.
		if o := r.completeView(v, from, found, waited); o != tryAgain {
			r.traceGap(from, found, o)
			return o
		}
	}
}

// askInTurn asks v. An answer that is over the budget of a reader is made only with permission to wait, and in turn: it
// takes up to some milliseconds, and as many of them would keep all cores busy as clients can ask for at once. err is why there was no turn.
func (r *Request) askInTurn(v External) (found kubernetes.Outcome, target wire.Name, err error) {
	if !r.large || !r.mayWait() {
		found, target = v.Answer(&r.Query, &r.reply, r.budget)
		if r.large = found == kubernetes.OverBudget; !r.large || !r.mayWait() {
			return found, target, nil
		}
	}
	if err = r.TakeRoom(r.ctx); err != nil {
		return found, "", err
	}
	if err = r.Turns.Take(r.ctx, r.Place); err != nil {
		return found, "", err
	}
	defer r.passTurn()
	if l, ok := v.(largeAnswerer); ok {
		found, target = l.AnswerLarge(&r.Query, &r.reply)
	} else {
		found, target = v.Answer(&r.Query, &r.reply, nil)
	}
	return found, target, nil
}

// passTurn ends the turn in which r has made a large answer.
func (r *Request) passTurn() {
	r.Turns.Pass(r.Place)
	if r.Made != nil {
		r.Made()
	}
}

// largeAnswerer is a view that keeps its large answers.
type largeAnswerer interface {
	AnswerLarge(q *wire.Query, r *wire.Reply) (kubernetes.Outcome, wire.Name)
}

// completeView handles a query for which v is incomplete, or not synced yet. The outcome is
// tryAgain if v has loaded what the answer needs; waited says that it had before.
func (r *Request) completeView(v External, from source, found kubernetes.Outcome, waited bool) Outcome {
	switch {
	case from == fromCluster && r.zone.asksCluster(&r.Query):
		return notMine
	case found == kubernetes.NotSynced:
		r.lookups.failure = clients.ViewCause
		return r.fail(wire.ServFail)
	case !r.mayWait():
		r.source = from // what it will be
		r.mayBecome(fromServer)
		if endsInArpa(r.Query.Name()) && servedZone(r.Query.Name()) != "" { // see [Zone.servedHere]
			r.mayBecome(fromLocal)
		}
		return WouldWait
	case waited:
		r.err, r.lookups.failure = errIncomplete, clients.ViewCause
		return r.fail(wire.ServFail)
	case !r.awaitView(v):
		return Answered
	}
	return tryAgain
}

// asksCluster reports whether q would be forwarded to the cluster's own DNS.
func (z *Zone) asksCluster(q *wire.Query) bool {
	p := z.upstreams(q)
	return p != nil && z.ClusterDNS != nil && z.ClusterDNS(p) && !z.Loop.stops(p)
}

// clusterWait is how long a query waits for the view of the cluster to load a namespace. A
// list takes some tens of milliseconds, and up to a second where the API server is under
// load. Clients ask again after five seconds.
const clusterWait = 2 * time.Second

// errIncomplete is why a query failed that needs more of the cluster than is in view.
var errIncomplete = errors.New("the view of the cluster has not loaded the objects that the answer needs")

// awaitView waits until v has loaded what the answer to r needs. If it is false it has not,
// and the reply is SERVFAIL.
func (r *Request) awaitView(v External) bool {
	limited, cancel := context.WithTimeout(r.ctx, clusterWait)
	defer cancel()
	r.recordWait(true)
	began := clock.Now()
	err := v.Await(limited, &r.Query)
	r.now = clock.Now() // what the cache holds has grown older
	r.lookups.view += r.now - began
	r.recordEnd(false, err)
	if err != nil {
		r.reply.Fail(wire.ServFail)
		r.err, r.lookups.failure = fmt.Errorf("%w: %w", errIncomplete, err), clients.ViewCause
		return false
	}
	return true
}

// maxHops bounds the aliases that are followed for one query. Services that are aliases are
// written by hand: a longer chain is a mistake.
const maxHops = 8

// errHops ends a chain of aliases that lead to one another.
var errHops = errors.New("more than 8 aliases lead to one another")

// chase resolves the target of the alias in r's reply through the whole path, and appends
// the answers. An alias whose target does not resolve is still an answer: the CNAME alone
// (DNS-Based Service Discovery, 2.5), unless the target is a name of the cluster's own zones. If the target fails, the reply says so (RFC 8914) and
// must not be kept for long.
func (r *Request) chase(target wire.Name) Outcome {
	sub, o := r.follow(target)
	if sub == nil {
		if errors.Is(r.err, errHops) {
			r.reply.SetEDEText(wire.EDEOther, errHops.Error())
			r.reply.LimitTTLs(failedAliasTTL)
		}
		return o
	}
	switch rcode := sub.reply.Rcode(); {
	case sub.err != nil || rcode != wire.NoError && rcode != wire.NXDomain:
		r.explainAlias(sub)
	case r.source == fromCluster && sub.reply.Count(wire.Answer) == 0 && slices.ContainsFunc(r.zone.origins, target.Under):
		r.zone.Cluster.NoData(&r.Query, &r.reply) // as where the zone does not fall through
	}
	return Answered
}

// follow asks for the target of the alias in r's reply through the whole path, and appends the answers. If sub is nil, nobody is
// asked, or the answer takes a wait, and o is the outcome.
func (r *Request) follow(target wire.Name) (sub *Request, o Outcome) {
	switch {
	case r.probe:
		return nil, Answered
	case !r.mayTakeLong():
		return nil, WouldWait
	case r.zone.lists != nil && r.vet(): // nobody asks for a target that the client may not have
		return nil, Answered
	case r.hops >= maxHops:
		r.err = errHops
		return nil, Answered
	}
	if sub, o = r.lookup([]byte(target), r.hops+1); o == WouldWait { // only in a dry run
		return nil, WouldWait
	}
	r.followed = true
	if r.err = sub.err; r.err == nil {
		r.reply.CopyTC(&sub.reply)
		r.err = r.reply.AppendAnswers(sub.reply.Finish(wire.MaxMessage))
	}
	return sub, Answered
}

// failedAliasTTL bounds the TTL, in seconds, of an alias whose target fails: clients would take
// the CNAME alone for "no address" as long as they keep it.
const failedAliasTTL = 5

// explainAlias adds to the reply, an alias, why its target has failed in sub.
func (r *Request) explainAlias(sub *Request) {
	switch {
	case sub.reply.Explained():
		r.reply.CopyEDE(&sub.reply)
	case sub.err != nil:
		r.reply.SetEDE(wire.EDENetworkError)
	default:
		r.reply.SetEDE(wire.EDENoReachableAuthority)
	}
	r.reply.LimitTTLs(failedAliasTTL)
}

// lookup asks for name and r's type through the whole path, on behalf of r's client and so
// many hops away from its name. The outcome is [Answered] or [WouldWait]. The reply to a
// name that does not resolve has no answers, and the error says why.
func (r *Request) lookup(name []byte, hops uint8) (*Request, Outcome) {
	sub := new(Request)
	r.derive(sub)
	sub.hops, sub.exempt = hops, r.exempt
	if !r.parse(sub, name, r.Query.Type, nil, nil) {
		return sub, Answered
	}
	o := sub.finishForward(r.routes.Resolve(sub))
	r.inherit(sub)
	return sub, o
}
