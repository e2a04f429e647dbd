package resolver

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
)

// An ACL must also hold for names that an alias, a rewrite rule, an upstream's CNAME or a PTR
// record leads to. So where a zone of the routes has an ACL, every name in a reply is judged
// as if the client had asked for it, by the zone that would take that query, or if there is
// none by the zone of the question. Where a zone has a view, names are also judged by what the
// client would get for them ([vetting.hides]), where policies bind the client, by these ([vetting.byPolicy]), and by the rules of
// response policy zones ([vetting.byRule]), which may also be about the addresses in the reply.
// [vetting.ruling] decides all of it. Each reply is judged anew,
// because the next client may be another one.
//
//   - The names of the chain are the owners in the answer section and the targets of CNAME,
//     DNAME, SVCB and HTTPS records. They are judged for the type in the question. The
//     strictest verdict applies to the whole answer.
//   - What may not be asked forward is not told backward. A PTR record is removed if the client
//     may not ask for its target, with type PTR or the type of the address; an SRV, MX or NS
//     record if it may ask neither for the IPv4 nor for the IPv6 addresses of its target; and an
//     SVCB or HTTPS record if it may not ask for addresses that the record has. If no PTR, SRV, MX
//     or NS record is left, the strictest verdict applies to the whole answer.
//   - In a zone transfer, and an answer to ANY, a record is removed if the client may not ask for its
//     owner and type, or for the name that it leads to.
//   - Records in the additional section are removed if the client may not ask for them.
//
// The authority section and the names of other types are not judged.

// vettedUDP is how many bytes of a reply over UDP are judged at least: some may be left out.
const vettedUDP = 4096

// vet judges the names in the reply to r. It returns true if the client may not have the reply,
// which then says so.
func (rt *Routes) vet(r *Request) bool {
	switch {
	case r.probe || !rt.judges(r):
		return false
	case r.verdicts&anyDenial != 0: // of what an alias leads to
		return r.isDenied() || r.deny()
	case r.source == fromWhoami || r.reply.Count(wire.Answer)+r.reply.Count(wire.Additional) == 0:
		return false
	}
	v := rt.vetting(r)
	if !v.conclude() {
		return false
	}
	if r.outgoing != nil {
		r.EndTransfer(false)
	}
	return true
}

// judges reports whether names in the reply to r are judged.
func (rt *Routes) judges(r *Request) bool { return rt.views || rt.acls || rt.rpz || r.policy != nil }

// isDenied reports whether r's reply is a denial.
func (r *Request) isDenied() bool {
	return r.source == fromACL || r.source == fromPolicy || r.source == fromRPZ
}

// vetMessage judges the names in the next message of the transfer in r. It returns false if no record is left.
func (rt *Routes) vetMessage(r *Request) bool {
	v := rt.vetting(r)
	return len(v.out) == 0 || v.stay > 0 && r.reply.Remove(v.out)
}

// vetting judges the names in the part of the reply that can reach the client.
func (rt *Routes) vetting(r *Request) vetting {
	if r.Proto == UDP {
		r.reply.Truncate(max(int(r.clientSize), vettedUDP)) // records after that do not reach the client
	}
	v := vetting{rt: rt, r: r}
	v.names()
	v.addresses()
	return v
}

// vetting is the judgement of one reply.
type vetting struct {
	rt *Routes
	r  *Request
	decisions
	chain, loose ruling
	each         bool  // each record stands for itself
	out          []int // the records to leave out, in ascending order
	gone         int   // of these, the answers
	stay         int   // answers that stay, of those that may be left out
}

// ruling is a verdict, and the zone of the rule, the policy or the rule of `rpz` behind it.
type ruling struct {
	verdict verdicts
	zone    wire.Name
	denial  dnspolicy.Denial
	rpz     *authority.PolicyRule
}

// strictness orders verdicts; a higher one is stricter.
func strictness(v verdicts) int {
	return slices.Index([]verdicts{allowed, hidden, byRule, forbidden, filtered, blocked, dropped}, v)
}

// add replaces r by other if other is stricter.
func (r *ruling) add(other ruling) {
	if other.verdict != allowed && strictness(other.verdict) > strictness(r.verdict) {
		*r = other
	}
}

// names judges all names.
func (v *vetting) names() {
	names := v.r.reply.Names()
	if v.each = v.r.Query.Type == wire.TypeANY || v.r.source == fromTransfer; v.each {
		names = v.r.reply.AllNames()
	}
	for {
		n, ok := names.Next()
		if !ok {
			break
		}
		v.name(&n)
	}
	if v.each {
		v.stay = v.r.reply.Count(wire.Answer) - v.gone
	}
}

// name judges one name.
func (v *vetting) name(n *wire.NameRef) {
	switch {
	case n.Section == wire.Additional:
		v.leave(n, v.ruling(n.Name, n.Type, false))
	case n.Target && isBackward(n.Type):
		v.leave(n, v.backward(n))
	case v.each && n.Type == wire.TypeSOA: // a transfer begins and ends with it
	case v.each:
		v.leave(n, v.ruling(n.Name, n.Type, true))
	default:
		v.chain.add(v.ruling(n.Name, v.r.Query.Type, true))
	}
	if n.HintsA || n.HintsAAAA {
		v.leave(n, v.hints(n))
	}
}

// hints returns the ruling on the addresses in n's record, of type SVCB or HTTPS.
func (v *vetting) hints(n *wire.NameRef) ruling {
	r := ruling{verdict: allowed}
	if n.HintsA {
		r.add(v.ruling(n.Name, wire.TypeA, true))
	}
	if n.HintsAAAA {
		r.add(v.ruling(n.Name, wire.TypeAAAA, true))
	}
	return r
}

// isBackward reports whether records of type t tell a name in place of an address.
func isBackward(t uint16) bool {
	return t == wire.TypePTR || t == wire.TypeSRV || t == wire.TypeMX || t == wire.TypeNS
}

// backward returns the ruling on a name that the reply tells in place of an address.
func (v *vetting) backward(n *wire.NameRef) ruling {
	if n.Type == wire.TypePTR {
		r := v.judge(n.Name, wire.TypePTR)
		r.add(v.ruling(n.Name, v.family(), false))
		return r
	}
	r := v.ruling(n.Name, wire.TypeA, false)
	if r.verdict == allowed {
		return r
	}
	other := v.ruling(n.Name, wire.TypeAAAA, false)
	if other.verdict == allowed {
		return other
	}
	r.add(other)
	return r
}

// ruling returns the ruling on a query from the client for name and qtype, by access lists, by policies, by rules of response policy
// zones and by views. alias says that the reply tells the name in addition to an address.
func (v *vetting) ruling(name []byte, qtype uint16, alias bool) ruling {
	r := v.judge(name, qtype)
	if r.verdict == allowed && v.rt.policies != nil {
		r = v.byPolicy(name, alias)
	}
	if r.verdict == allowed && v.rt.rpz {
		r = v.byRule(name, qtype)
	}
	if r.verdict == allowed && v.rt.views && v.hides(name, qtype, alias) {
		r.verdict = hidden
	}
	return r
}

// byPolicy returns the ruling of the policies on a name in the reply besides the question's. alias says that it is in a chain of
// aliases: one that was followed led to questions of its own.
func (v *vetting) byPolicy(name []byte, alias bool) ruling {
	if v.r.policy == nil || bytes.Equal(name, v.r.Query.Name()) {
		return ruling{verdict: allowed}
	}
	d := v.r.policy.Judge(name, v.rt.serviceOf(name))
	if d.Policy == nil || d.Audit || !d.Listed && v.fromOthers(alias) && !v.rt.inCluster(name) {
		return ruling{verdict: allowed}
	}
	return ruling{verdict: forbidden, denial: d}
}

// fromOthers reports whether a name in the reply is an upstream's, or was judged as a question of its own.
func (v *vetting) fromOthers(alias bool) bool {
	return alias && (v.r.followed || v.r.source == fromTemplate) || !v.r.fromOwnData()
}

// hides reports whether views keep name from the client: only others' zones take a query for
// it; or the zone that takes the client's query denies the name out of the agent's own data, or
// leaves it to upstreams that don't know the cluster, whose data the reply is from. A source of a zone does
// not hide what it says itself, unless another zone has the name for others. The target of an alias, and a name of the same
// zone, may well not exist: it is hidden only where views choose the zone.
func (v *vetting) hides(name []byte, qtype uint16, alias bool) bool {
	z := v.rt.zoneOf(v.r, name, qtype)
	switch {
	case z == nil:
		return v.rt.hasZone(name, wire.Root, func(*Zone) bool { return true })
	case (alias || z == v.r.zone) && !v.rt.hasZone(name, z.Name, func(other *Zone) bool { return other.View != nil }):
		return false
	}
	sub := newSubquery()
	defer sub.release()
	if !sub.ask(v.r, name, qtype) {
		return true
	}
	return v.denies(z, sub)
}

// denies reports whether z, which takes sub's query, denies the client its name.
func (v *vetting) denies(z *Zone, sub *subquery) bool {
	answered, denied := v.rt.probe(sub)
	switch name := sub.Query.Name(); {
	case answered && !denied:
		return false
	case denied && sub.source != fromCache:
		return z != v.r.zone || sub.source != v.r.source || v.rt.othersHave(name, z)
	default:
		return v.r.source == fromCluster && !z.asksCluster(&sub.Query) && v.rt.othersHave(name, z)
	}
}

// probe asks sub without waiting. answered says that there is a reply, denied that it is NXDOMAIN or REFUSED.
func (rt *Routes) probe(sub *subquery) (answered, denied bool) {
	var counted lookups // by nobody
	sub.ctx, sub.budget, sub.lookups, sub.trace, sub.probe, sub.onPath = nil, nil, &counted, nil, true, true
	answered = rt.Resolve(&sub.Request) == Answered
	rcode := sub.reply.Rcode()
	return answered, answered && (rcode == wire.NXDomain || rcode == wire.Refused)
}

// othersHave reports whether a zone that takes name from other clients than z's has it from the cluster.
func (rt *Routes) othersHave(name []byte, z *Zone) bool {
	least := z.Name
	if z.View != nil { // others' queries may go to shorter zones
		least = wire.Root
	}
	return rt.hasZone(name, least, func(other *Zone) bool { return other != z && longestOrigin(other.origins, name) != "" })
}

// hasZone reports whether holds is true for a zone of name, for whichever client, that is not shorter than least.
func (rt *Routes) hasZone(name []byte, least wire.Name, holds func(*Zone) bool) bool {
	for name = lastLabels(name, rt.depth); len(name) >= len(least); name = parentName(name) {
		for z := rt.zones[wire.Name(name)]; z != nil; z = z.next {
			if holds(z) {
				return true
			}
		}
	}
	return false
}

// leave marks n's record for removal unless r allows it.
func (v *vetting) leave(n *wire.NameRef, r ruling) {
	answer := n.Section == wire.Answer
	if last := len(v.out) - 1; r.verdict != allowed && (last < 0 || v.out[last] != n.Record) {
		v.out = append(v.out, n.Record)
		if answer {
			v.gone++
		}
	}
	switch {
	case answer && r.verdict == allowed:
		v.stay++
	case answer:
		v.loose.add(r)
	}
}

// family returns the type of address record that r's reverse name stands for.
func (v *vetting) family() uint16 {
	if wire.Under(v.r.Query.Name(), "\x03ip6\x04arpa\x00") {
		return wire.TypeAAAA
	}
	return wire.TypeA
}

// judge returns the ruling on a query from the client for name and qtype.
func (v *vetting) judge(name []byte, qtype uint16) ruling {
	if name == nil {
		return ruling{verdict: blocked}
	}
	z := cmp.Or(v.rt.zoneOf(v.r, name, qtype), v.r.zone)
	if z.ACL == nil {
		return ruling{verdict: allowed}
	}
	v.r.verdicts |= listed
	verdict, zone := z.ACL.judge(name, qtype, v.r.Client.Addr(), &v.decisions)
	return ruling{verdict: verdict, zone: zone}
}

// conclude applies the judgement. It returns true if nothing of the reply is left.
func (v *vetting) conclude() bool {
	verdict := v.chain
	if verdict.verdict == 0 && len(v.out) > 0 {
		if v.loose.verdict != 0 && v.stay == 0 {
			verdict = v.loose
		} else if !v.r.reply.Remove(v.out) {
			verdict.verdict = blocked
		}
	}
	if verdict.verdict == 0 {
		return false
	}
	v.r.sentence(verdict)
	return true
}

// sentence replies as the ruling says.
func (r *Request) sentence(by ruling) {
	r.verdicts, r.rule, r.denial = r.verdicts&^anyVerdict|by.verdict, by.zone, by.denial
	if by.rpz != nil {
		r.rpz = by.rpz
	}
	switch {
	case r.trace == nil:
	case by.verdict == byRule:
		// It was traced when it was found.
	case by.verdict == forbidden:
		r.tracePolicy(&by.denial, nil, " because of another name that the reply leads to")
	default:
		r.traceVerdict("because of another name that the reply leads to")
	}
	r.deny()
}

// zoneOf returns the zone that would take a query from the client for name and qtype, nil for
// none.
func (rt *Routes) zoneOf(r *Request, name []byte, qtype uint16) *Zone {
	if !rt.views {
		return rt.longest(lastLabels(name, rt.depth), len(name), qtype, r)
	}
	sub := newSubquery()
	defer sub.release()
	if !sub.ask(r, name, qtype) {
		return nil
	}
	return rt.match(&sub.Request)
}

// deniedElsewhere judges r, which comes from a rewrite rule, by the zone that would have taken
// the question from the client. It returns true if the client may not ask.
func (rt *Routes) deniedElsewhere(r *Request) bool {
	if r.zone.lists == nil {
		return false
	}
	z := rt.zoneOf(r, r.Query.Name(), r.Query.Type)
	if z == nil || z == r.zone || z.ACL == nil {
		return false
	}
	verdict, zone := z.ACL.judge(r.Query.Name(), r.Query.Type, r.Client.Addr(), nil)
	if verdict == allowed {
		r.verdicts |= listed
		return false
	}
	r.sentence(ruling{verdict: verdict, zone: zone})
	return true
}

// vet is [Routes.vet] for a request that may have failed: a reply that the client may not have
// is no error.
func (r *Request) vet() bool {
	if !r.zone.lists.vet(r) {
		return false
	}
	r.err = nil
	return true
}

// inherit copies a denial of other, whose answer is part of r's reply.
func (r *Request) inherit(other *Request) {
	r.verdicts |= other.verdicts & (listed | byFamily | byNamespace)
	if other.verdicts&anyDenial != 0 {
		r.verdicts, r.rule, r.denial = r.verdicts&^anyVerdict|other.verdicts&anyVerdict, other.rule, other.denial
		r.rpz = cmp.Or(other.rpz, r.rpz)
	}
}
