package resolver

import (
	"cmp"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Another name must not lead around an ACL: an alias, a rule of `rewrite`, an upstream's
// CNAME, a PTR record. So where a zone of the routes has an ACL, every name that a reply
// tells something of is judged as if the client had asked for it. It is judged by the zone
// that would take the query, or where none would by the zone of the question. That is done
// for each reply anew, since the next client may be another one.
//
//   - The names of the chain, which are the owners in the answer section and the targets of
//     CNAME, DNAME, SVCB and HTTPS records, are judged for the type asked for. The strictest
//     verdict is that on the answer.
//   - PTR records whose target the client may not ask for, of its own type or for the
//     address at hand, are left out; if none is left the answer as a whole gets the
//     strictest verdict.
//   - Records of the additional section that the client may not ask for are left out.
//
// Targets of other types (SRV, MX, NS) and the authority section tell names only: the
// client has to ask for their addresses.

// maxUDPReply is the longest reply over UDP that `bufsize` allows. What stands behind it in a
// reply reaches no client over UDP, and isn't judged.
const maxUDPReply = 4096

// vet judges the names in r's reply. It is true if the client may not have it, and then the
// reply says so.
func (rt *Routes) vet(r *Request) bool {
	if r.verdicts&anyDenial != 0 { // of what an alias leads to
		return r.source == fromACL || r.deny()
	}
	if r.source == fromWhoami || r.reply.Count(wire.Answer)+r.reply.Count(wire.Additional) == 0 {
		return false
	}
	v := rt.vetting(r)
	return v.conclude()
}

// vetting judges the names in r's reply, as much of it as can reach the client.
func (rt *Routes) vetting(r *Request) vetting {
	if r.Proto == UDP {
		r.reply.Truncate(maxUDPReply)
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
	pointers     int   // PTR records that stay
}

// ruling is a verdict, and the zone of the rule that it is of.
type ruling struct {
	verdict verdicts
	zone    wire.Name
}

// strictness is the order of verdicts.
func strictness(v verdicts) int {
	return slices.Index([]verdicts{allowed, filtered, blocked, dropped}, v)
}

// add makes r the stricter one of itself and other.
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
			v.leave(&n, v.judge(n.Name, n.Type))
		case n.Target && n.Type == wire.TypePTR:
			r := v.judge(n.Name, wire.TypePTR)
			r.add(v.judge(n.Name, v.family()))
			if v.leave(&n, r); r.verdict == allowed {
				v.pointers++
			}
		default:
			v.chain.add(v.judge(n.Name, qtype))
		}
	}
}

// leave has n's record left out if r isn't that it is allowed.
func (v *vetting) leave(n *wire.NameRef, r ruling) {
	if r.verdict == allowed {
		return
	}
	v.out = append(v.out, n.Record)
	if n.Section == wire.Answer {
		v.loose.add(r)
	}
}

// family is the type of the addresses that r's name, of the reverse zones, is about.
func (v *vetting) family() uint16 {
	if wire.Under(v.r.Query.Name(), "\x03ip6\x04arpa\x00") {
		return wire.TypeAAAA
	}
	return wire.TypeA
}

// judge is the ruling on a query of r's client for name and qtype.
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

// conclude does what the judgement says; it is true if nothing is left of the reply.
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

// sentence makes r's reply what the ruling says.
func (r *Request) sentence(by ruling) {
	r.verdicts, r.rule = r.verdicts&^anyVerdict|by.verdict, by.zone
	r.deny()
}

// zoneOf is the zone that would take a query of r's client for name and qtype, nil if none
// would.
func (rt *Routes) zoneOf(r *Request, name []byte, qtype uint16) *Zone {
	if !rt.views {
		return rt.longest(lastLabels(name, rt.depth), qtype, r)
	}
	sub := newSubquery()
	defer sub.release()
	if !sub.ask(r, name, qtype) {
		return nil
	}
	return rt.match(&sub.Request)
}

// deniedElsewhere judges r, which is asked of its zone by way of a rewrite rule, by the zone that
// would have taken it from the client. It is true if the client may not ask.
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

// vet judges the names in r's reply by the lists of its zone's routes. It is true if the
// client may not have the reply, which then says so.
func (r *Request) vet() bool {
	if !r.zone.lists.vet(r) {
		return false
	}
	r.err = nil
	return true
}

// inherit makes the verdict on other, whose reply r's leads to, that on r, if it is a denial.
func (r *Request) inherit(other *Request) {
	r.verdicts |= other.verdicts & listed
	if other.verdicts&anyDenial != 0 {
		r.verdicts, r.rule = r.verdicts&^anyVerdict|other.verdicts&anyVerdict, other.rule
	}
}

// copyVerdict gives r the marks of other, whose reply is r's. A verdict on other stands for
// that on r.
func (r *Request) copyVerdict(other *Request) {
	if other.verdicts&anyVerdict != 0 {
		r.verdicts, r.rule = r.verdicts&^anyVerdict, other.rule
	}
	r.verdicts |= other.verdicts
}
