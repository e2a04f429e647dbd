package resolver

import (
	"cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Outcome is what a step, or the whole path, has come to.
type Outcome uint8

const (
	// Answered: the reply is complete.
	Answered Outcome = iota
	// notMine: the step leaves the query to the steps after it, and the reply as it was. The
	// path as a whole never ends so.
	notMine
	// WouldWait: the answer needs something that takes a while, or there is an error to log,
	// and the request may not wait. The run leaves no trace: the path is run again from its
	// beginning, by a request with permission.
	WouldWait
	// Forward: the query is to be forwarded to the request's pool, and nothing else is left
	// to do but [Request.Forward]. The run need not be repeated.
	Forward
	// tryAgain: a source that was incomplete is to be asked again. No step returns it.
	tryAgain
)

// Resolve is the query path. It answers r in this order:
//
//  1. The longest zone that has the name, and whose view takes the query, answers. Without
//     one the reply is REFUSED; it is BADVERS for an unknown EDNS version.
//  2. A loop probe that has come back is SERVFAIL.
//  3. A query beyond the client's limit is refused, truncated or dropped (`client_limit`).
//  4. A class other than IN is REFUSED, unless the question is about the server (`chaos`) or a
//     rewrite rule turns it into IN.
//  5. The zone's built-in names (`local`, `any`) need no data source and no permission.
//  6. A rewrite rule asks another question in place of the client's ([Routes.applyRewrite]).
//  7. The zone's sources and the client's search path are asked ([Routes.ask]), if access lists, the policies
//     that bind the client and response policy zones allow it.
//  8. IPv6 addresses are made of IPv4 ones where a name has none (`dns64`).
//  9. The addresses enter the sets of the policies that bind the client (egress.go).
//
// The same function runs with and without permission to wait. Without, it never blocks and
// is called where other clients' queries are behind this one; its result is [Answered],
// [WouldWait] or [Forward]. With permission it is not [WouldWait]. r.err is why the reply is
// an error.
func (rt *Routes) Resolve(r *Request) Outcome {
	o := rt.resolve(r)
	if o == Answered && r.policy.Filtered() != nil && r.direct {
		return r.admit()
	}
	return o
}

func (rt *Routes) resolve(r *Request) Outcome { //nolint:gocyclo // the order of all steps, in one place
	z, refusal := rt.zoneFor(r)
	r.zone = cmp.Or(z, rt.dropped)
	if r.trace != nil {
		rt.traceZone(r, z)
	}
	r.limitSize()
	if r.direct && r.mayWait() && z != nil {
		z.tellQuery(r) // before what is sent for it
	}
	switch {
	case rt.StartWaiting && r.direct && !r.mayTakeLong():
		return WouldWait
	case z == nil:
		return r.fail(refusal)
	}
	if r.direct && r.Proto == UDP { // what is cut off from the reply need not be written
		r.reply.SetLimit(r.Query.Limit())
	}
	inet := r.Query.Class == wire.ClassIN
	switch {
	case rt.observeProbe(z, r):
		r.note(stepLoop, Answered, "a loop probe has come back")
		return r.fail(wire.ServFail)
	case z.Limit != nil && z.limited(r):
		return Answered
	case z.TSIG != nil && r.direct && z.unverified(r):
		return Answered
	case !inet && z.Chaos.answer(r):
		return Answered
	case !inet && z.Rewrite == nil:
		r.note(stepZone, Answered, onlyIN)
		return r.fail(wire.Refused)
	case inet && z.builtin(r):
		return Answered
	}
	if rt.policies != nil && r.direct {
		if o := r.bind(); o != notMine {
			return o
		}
	}
	if z.Header != nil {
		r.Query.ChangeRD(z.Header.Query.Set, z.Header.Query.Clear)
	}
	var o Outcome
	if z.Rewrite != nil {
		o = rt.applyRewrite(r)
	} else {
		o = rt.ask(r)
	}
	if z.DNS64 != nil && inet {
		o = rt.dns64(r, o)
	}
	return o
}

// ask asks the sources of r's zone, between the two halves of the ACL, the policies and the response policy zones: the client must be
// allowed to ask (acl.go, policy.go, rpz.go), also for the names that the reply leads to (vet.go). What does
// not exist, or is denied by a policy as if it did not, may be found further down the client's search path, which
// subqueries for an alias or for a name on that path do not have.
func (rt *Routes) ask(r *Request) Outcome {
	z := r.zone
	if z.denied(r) {
		return Answered
	}
	o := Answered
	if !rt.forbids(r) {
		if o = z.screenName(r); o == notMine {
			o = z.vetted(r)
		}
	}
	if z.Autopath != nil && r.hops == 0 && !r.onPath {
		o = rt.autopath(r, o)
	}
	return o
}

// vetted asks the zone's sources, and takes from the reply what the client can't use or may not have.
func (z *Zone) vetted(r *Request) Outcome {
	o := z.sources(r)
	if z.AAAA != nil && o == Answered && hasIPv6(r.Query.Type) {
		z.withholdIPv6(r)
	}
	if z.lists != nil && o == Answered {
		r.vet()
	}
	return o
}

// sources asks the zone's sources in this order, until one has the answer:
//
//  1. template: answers computed from the question.
//  2. transfer: whole zones.
//  3. hosts: names written down by hand, which override the cluster's.
//  4. external: names of the cluster's Services outside of the cluster.
//  5. cluster: Services, endpoints and pods.
//  6. file, auto, secondary: zones from zone files and from primary servers.
//  7. resolver.arpa and the reverse zones of link-local and loopback addresses, which must not be
//     forwarded (local.go).
//  8. aaaa: no upstream is asked for addresses that the client can't use.
//  9. cache: answers of the upstreams. With permission to wait the forward step looks there.
//  10. forward: the first pool that takes the name.
//  11. whoami, or an error: there is nobody to ask. It is REFUSED from a server of zones only.
func (z *Zone) sources(r *Request) Outcome { //nolint:gocyclo // the order of all sources, in one place
	if o := z.template(r); o != notMine {
		return o
	}
	if z.Transfer != nil {
		if o := z.transfer(r); o != notMine {
			return o
		}
	}
	if z.Hosts != nil && z.hosts(r) {
		return Answered
	}
	if z.External != nil { // no other server need know these names, so an incomplete view has to load them
		if o := r.askView(z.External, fromExternal); o != notMine {
			return o
		}
	}
	if o := z.cluster(r); o != notMine {
		return o
	}
	if o := z.authoritative(r); o != notMine {
		return o
	}
	if z.servedHere(r) || z.deniesAAAA(r) {
		return Answered
	}
	if r.mayWait() && z.choosePool(r) {
		return Forward
	}
	if z.caches(&r.Query) && z.cached(r) {
		return Answered
	}
	if z.choosePool(r) {
		return Forward
	}
	return z.whoami(r)
}

// hosts is the step of the names written down by hand.
func (z *Zone) hosts(r *Request) bool {
	r.hosts = z.Hosts.Mark() // before the answer
	if !z.Hosts.Answer(&r.Query, &r.reply) {
		r.note(stepOf[fromHosts], notMine, "the table has no such name, or none of its zones has it")
		return false
	}
	r.source = fromHosts
	r.note(stepOf[fromHosts], Answered, "")
	return true
}

// choosePool makes the first pool that takes the name the one to forward to; false if there
// is none.
func (z *Zone) choosePool(r *Request) bool {
	r.pool = z.upstreams(&r.Query)
	if r.trace != nil {
		z.tracePool(r)
	}
	return r.pool != nil
}

// upstreamSource returns the directive whose upstreams answer r.
func (r *Request) upstreamSource() source {
	if r.pool != nil && r.pool.GRPC() {
		return fromGRPC
	}
	return fromForward
}

// finishForward turns [Forward] into [Answered] for a caller that has something left to do
// with the reply. Without permission to wait it is [WouldWait].
func (r *Request) finishForward(o Outcome) Outcome {
	if o != Forward {
		return o
	}
	if !r.mayWait() {
		r.source = r.upstreamSource() // what it will be
		return WouldWait
	}
	r.Forward()
	return Answered
}
