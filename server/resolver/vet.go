package resolver

import (
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// An ACL must also hold for names that an alias, a rewrite rule, an upstream's CNAME or a PTR
// record leads to. So where a zone of the routes has an ACL, every name in a reply is judged
// as if the client had asked for it, by the zone that would take that query, or if there is
// none by the zone of the question. Where a zone has a view, names that stand in place of
// addresses are judged by what the client would get for them. Each reply is judged anew, because the next client may be
// another one.
//
//   - The names of the chain are the owners in the answer section and the targets of CNAME,
//     DNAME, SVCB and HTTPS records. They are judged for the type in the question. The
//     strictest verdict applies to the whole answer.
//   - What may not be asked forward is not told backward. A PTR record is removed if the client
//     may not ask for its target, with type PTR or the type of the address; an SRV record if
//     it may ask neither for the IPv4 nor for the IPv6 addresses of its target. Both are
//     removed if views keep the target from the client ([vetting.hides]). If no PTR or SRV
//     record is left the strictest verdict applies to the whole answer.
//   - Records in the additional section are removed if the client may not ask for them.
//
// Targets of other types (MX, NS) and the authority section are not judged: they are only
// names, whose addresses the client has to ask for.

// vettedUDP is how many bytes of a reply over UDP are judged at least: some may be left out.
const vettedUDP = 4096

// vet judges the names in the reply to r. It returns true if the client may not have the reply,
// which then says so.
func (rt *Routes) vet(r *Request) bool {
	if r.verdicts&anyDenial != 0 { // of what an alias leads to
		return r.source == fromACL || r.deny()
	}
	if r.source == fromWhoami || r.source == fromTransfer || r.reply.Count(wire.Answer)+r.reply.Count(wire.Additional) == 0 {
		return false
	}
	v := rt.vetting(r)
	return v.conclude()
}

// vetting judges the names in the part of the reply that can reach the client.
func (rt *Routes) vetting(r *Request) vetting {
	if r.Proto == UDP {
		r.reply.Truncate(max(int(r.clientSize), vettedUDP)) // records after that do not reach the client
	}
	v := vetting{rt: rt, r: r}
	v.names()
	return v
}

// vetting is the judgement of one reply.
type vetting struct {
	rt *Routes
	r  *Request
	decisions
	chain, loose ruling
	out          []int // the records to leave out
	pointers     int   // PTR and SRV records that stay
}

// ruling is a verdict and the zone of the rule behind it.
type ruling struct {
	verdict verdicts
	zone    wire.Name
}

// strictness orders verdicts; a higher one is stricter.
func strictness(v verdicts) int {
	return slices.Index([]verdicts{allowed, hidden, filtered, blocked, dropped}, v)
}

// add replaces r by other if other is stricter.
func (r *ruling) add(other ruling) {
	if other.verdict != allowed && strictness(other.verdict) > strictness(r.verdict) {
		*r = other
	}
}

// names judges all names.
func (v *vetting) names() {
	qtype := v.r.Query.Type
	for names := v.r.reply.Names(); ; {
		n, ok := names.Next()
		if !ok {
			return
		}
		switch {
		case n.Section == wire.Additional:
			v.leave(&n, v.unlessHidden(v.judge(n.Name, n.Type), n.Name, n.Type))
		case n.Target && (n.Type == wire.TypePTR || n.Type == wire.TypeSRV):
			r := v.backward(&n)
			if v.leave(&n, r); r.verdict == allowed {
				v.pointers++
			}
		default:
			v.chain.add(v.judge(n.Name, qtype))
		}
	}
}

// backward returns the ruling on a name that the reply tells in place of an address: the target
// of a PTR or SRV record.
func (v *vetting) backward(n *wire.NameRef) ruling {
	if n.Type == wire.TypePTR {
		r := v.judge(n.Name, wire.TypePTR)
		r.add(v.judge(n.Name, v.family()))
		return v.unlessHidden(r, n.Name, v.family())
	}
	r := v.unlessHidden(v.judge(n.Name, wire.TypeA), n.Name, wire.TypeA)
	if r.verdict == allowed {
		return r
	}
	other := v.unlessHidden(v.judge(n.Name, wire.TypeAAAA), n.Name, wire.TypeAAAA)
	if other.verdict == allowed {
		return other
	}
	r.add(other)
	return r
}

// unlessHidden returns r, or the ruling on a name that views keep from the client.
func (v *vetting) unlessHidden(r ruling, name []byte, qtype uint16) ruling {
	if r.verdict == allowed && v.rt.views && v.hides(name, qtype) {
		r.verdict = hidden
	}
	return r
}

// hides reports whether views keep name from the client: only others' zones take a query for
// it; or the zone that takes the client's query denies the name out of the agent's own data, or
// leaves it to upstreams that don't know the cluster, whose data the reply is from. A zone does
// not hide what it says itself.
func (v *vetting) hides(name []byte, qtype uint16) bool {
	z := v.rt.zoneOf(v.r, name, qtype)
	switch z {
	case nil:
		return v.rt.hasZone(lastLabels(name, v.rt.depth))
	case v.r.zone:
		return false
	}
	sub := newSubquery()
	defer sub.release()
	if !sub.ask(v.r, name, qtype) {
		return true
	}
	var counted lookups // by nobody
	sub.ctx, sub.budget, sub.lookups, sub.trace = nil, nil, &counted, nil
	if v.rt.Resolve(&sub.Request) == Answered {
		rcode := sub.reply.Rcode()
		denied := rcode == wire.NXDomain || rcode == wire.Refused
		if !denied || sub.source != fromCache {
			return denied
		}
	}
	return v.r.source == fromCluster && !z.asksCluster(&sub.Query) && v.rt.othersCluster(lastLabels(name, v.rt.depth), z)
}

// othersCluster reports whether another zone than z, at least as long, answers name from the
// cluster for other clients.
func (rt *Routes) othersCluster(name []byte, z *Zone) bool {
	for ; len(name) >= len(z.Name); name = name[1+name[0]:] {
		for other := rt.zones[wire.Name(name)]; other != nil; other = other.next {
			if other != z && other.Cluster != nil {
				return true
			}
		}
		if len(name) == 1 {
			break
		}
	}
	return false
}

// hasZone reports whether there is a zone for the name, for whichever client.
func (rt *Routes) hasZone(name []byte) bool {
	for ; len(name) > 1; name = name[1+name[0]:] {
		if rt.zones[wire.Name(name)] != nil {
			return true
		}
	}
	return rt.zones[wire.Root] != nil
}

// leave marks n's record for removal unless r allows it.
func (v *vetting) leave(n *wire.NameRef, r ruling) {
	if r.verdict == allowed {
		return
	}
	v.out = append(v.out, n.Record)
	if n.Section == wire.Answer {
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
	return ruling{verdict, zone}
}

// conclude applies the judgement. It returns true if nothing of the reply is left.
func (v *vetting) conclude() bool {
	verdict := v.chain
	if verdict.verdict == 0 && len(v.out) > 0 {
		if v.loose.verdict != 0 && v.pointers == 0 {
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
	r.verdicts, r.rule = r.verdicts&^anyVerdict|by.verdict, by.zone
	if r.trace != nil {
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
	r.sentence(ruling{verdict, zone})
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
	r.verdicts |= other.verdicts & listed
	if other.verdicts&anyDenial != 0 {
		r.verdicts, r.rule = r.verdicts&^anyVerdict|other.verdicts&anyVerdict, other.rule
	}
}
