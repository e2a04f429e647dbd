package resolver

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// DNSPolicies say what the pods that they bind may ask for (package dnspolicy). The question is judged where an ACL
// judges it ([Routes.ask]): as the client has asked it, whatever a rewrite rule makes of it. A name on the client's search path, and
// the target of an alias in the agent's own data, are questions of their own.
//
// Names in the reply besides the question are judged with those that ACLs judge (vet.go). In a reply from the agent's own data, a
// policy must allow a name that is told in place of an address, such as the target of a PTR or SRV record. An upstream's
// names, such as the targets of a CDN's aliases, are as good as the question; only a deny list excludes them, or that they
// are in a zone of the cluster.
//
// A denied name in a zone of the cluster, or below a search domain of the node, gets NXDOMAIN: with REFUSED, clients would give up
// instead of going on with their search path. That says nothing about the cluster, because names that don't exist are denied, too.

// BindPolicies makes the policies of t bind the clients. It is called before the routes are served. nil: there are none.
func (rt *Routes) BindPolicies(t *dnspolicy.Table) {
	rt.policies = t
	for _, z := range rt.all {
		if t != nil {
			z.lists = rt
		}
	}
}

// Policies returns the table of [Routes.BindPolicies].
func (rt *Routes) Policies() *dnspolicy.Table { return rt.policies }

// bind finds out which policies bind the client of r, which it has sent itself. While they are not known, and clients must not be
// answered until then, it waits as for the view of the cluster, and then fails. Otherwise the outcome is notMine.
func (r *Request) bind() Outcome {
	t := r.routes.policies
	if t.Mark != nil {
		r.policyMark = t.Mark() // before the class
	}
	r.policy = t.ClassOf(r.Client.Addr())
	if r.policy == nil || !r.policy.Unknown {
		return notMine
	}
	if r.trace == nil {
		if !r.mayWait() {
			return WouldWait
		}
		r.awaitPolicies(t)
		if r.policy == nil || !r.policy.Unknown {
			return notMine
		}
	}
	r.note(stepOf[fromPolicy], Answered, "the agent does not know yet which DNSPolicies bind the client")
	r.source, r.lookups.failure = fromPolicy, clients.ViewCause
	r.reply.Fail(wire.ServFail)
	r.reply.SetEDE(wire.EDENotReady)
	return Answered
}

// awaitPolicies waits until it is known which policies of t bind r's client, as long as for a view.
func (r *Request) awaitPolicies(t *dnspolicy.Table) {
	limited, cancel := context.WithTimeout(r.ctx, clusterWait)
	defer cancel()
	began := clock.Now()
	r.policy = t.Await(limited, r.Client.Addr())
	r.now = clock.Now() // what the cache holds has grown older
	r.lookups.view += r.now - began
}

// forbids is the step of the policies. It returns true if they deny r's question; the reply then says so.
func (rt *Routes) forbids(r *Request) bool {
	if rt.policies == nil {
		return false
	}
	r.verdicts |= byPolicy
	if r.policy == nil || r.probe || r.madeByRule {
		return false
	}
	name := r.Query.Name()
	r.denial = r.policy.Judge(name, rt.serviceOf(name))
	if r.trace != nil {
		r.tracePolicy(&r.denial, name, "")
	}
	switch d := &r.denial; {
	case d.Policy == nil:
		return false
	case d.Audit:
		r.verdicts |= audited
		return false
	}
	r.verdicts = r.verdicts&^anyVerdict | forbidden
	return r.deny()
}

// denyByPolicy replies as the policy that denies the name says.
func (r *Request) denyByPolicy() {
	rcode, code := wire.Refused, wire.EDEProhibited
	if r.denial.Policy.NXDomain || r.onPath || r.routes.searched(r.Query.Name()) {
		rcode = wire.NXDomain
	}
	if r.denial.Listed {
		code = wire.EDEBlocked
	}
	r.reply.Fail(rcode)
	r.reply.SetEDE(code)
	r.source = fromPolicy
}

// policyName returns the policy that denies r, or would if it were not in audit mode, as NAMESPACE/NAME, or else the response
// policy zone; "" for none.
func (r *Request) policyName() string {
	switch {
	case r.verdicts&(forbidden|audited) != 0 && r.denial.Policy != nil:
		return r.denial.Policy.Namespace + "/" + r.denial.Policy.Name
	case r.verdicts&(byRule|audited) != 0 && r.rpz != nil:
		return r.rpz.Zone.String()
	}
	return ""
}

// countDenial counts r, which is finished and which a policy or a rule denies, or would deny. Names that only a search path makes are
// not counted.
func (r *Request) countDenial() {
	if r.fromSearchPath() {
		return
	}
	r.denial.Count()
	if r.rpz != nil {
		r.rpz.Count()
	}
}

// fromOwnData reports whether r's reply comes neither from an upstream nor from the cache.
func (r *Request) fromOwnData() bool {
	switch r.source {
	case fromCluster, fromExternal, fromHosts, fromTemplate, fromFile, fromAuto, fromSecondary, fromTransfer:
		return true
	}
	return false
}

// inCluster reports whether name is in a zone that a kubernetes directive answers.
func (rt *Routes) inCluster(name []byte) bool {
	return slices.ContainsFunc(rt.all, func(z *Zone) bool { return longestOrigin(z.origins, name) != "" })
}

// searched reports whether clients may have more names to ask for after name: it is in the cluster, or below a search domain of the
// node.
func (rt *Routes) searched(name []byte) bool {
	return rt.inCluster(name) || slices.ContainsFunc(rt.Search, func(domain wire.Name) bool { return wire.Under(name, domain) })
}

// Judge returns what denies the question for name, which is lower case, to the clients of c, and whether that is counted: names that can only come from
// a search path are not.
func (rt *Routes) Judge(c *dnspolicy.Class, name wire.Name) (d dnspolicy.Denial, counts bool) {
	packed := []byte(name)
	made := slices.ContainsFunc(rt.all, func(z *Zone) bool { return z.fromSearchPath(packed) }) || rt.fromNodeSearch(packed, name.Labels())
	return c.Judge(packed, rt.serviceOf(packed)), !made
}

// svcLabel is the label below which a zone of the cluster has its Services.
const svcLabel = "\x03svc"

// serviceOf returns whose name it is, if it is one of a Service or a namespace below svc in a zone of the cluster. The result is a part
// of name.
func (rt *Routes) serviceOf(name []byte) dnspolicy.Service {
	for _, z := range rt.all {
		origin := longestOrigin(z.origins, name)
		if origin == "" {
			continue
		}
		rest := name[:len(name)-len(origin)]
		service, namespace, last := -1, -1, -1
		for at := 0; at < len(rest); at += 1 + int(rest[at]) {
			service, namespace, last = namespace, last, at
		}
		if namespace < 0 || string(rest[last:]) != svcLabel {
			continue
		}
		if service < 0 {
			service = namespace
		}
		return dnspolicy.Service(rest[service:last])
	}
	return nil
}

// tracePolicy notes what the policies say of name. more is what else led to it.
func (r *Request) tracePolicy(d *dnspolicy.Denial, name []byte, more string) {
	step, outcome := stepOf[fromPolicy], Passes
	var text string
	switch {
	case d.Policy == nil:
		text = fmt.Sprintf("%d DNSPolicies bind the client, and the name is allowed", len(r.policy.Policies()))
	case d.Listed:
		text = fmt.Sprintf("DNSPolicy %s/%s denies %s", d.Policy.Namespace, d.Policy.Name, cmp.Or(d.Entry(name), "a name"))
	default:
		text = fmt.Sprintf("DNSPolicy %s/%s denies the name: no policy allows it", d.Policy.Namespace, d.Policy.Name)
	}
	switch {
	case d.Policy != nil && d.Audit:
		text += ", in audit mode"
	case d.Policy != nil:
		outcome = Answers
	}
	r.trace.add(r, step, outcome, text+more)
}
