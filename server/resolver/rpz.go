package resolver

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// Rules of response policy zones (`rpz`) are looked up for the question, as an ACL is ([Routes.ask]), for the names that the reply
// leads to, by the zone that would take a query for them, and for the addresses in the reply (vet.go). The first of these
// rules makes the reply, for a rule about another name with the question's name as the owner. A rule that says so (passthru)
// exempts the whole reply.
//
// The reply of a rule is never copied. Other replies may be: a change of the rules ends all copies, and whether a rule is for the
// client only matters for names that have one.

// Namespace implements [authority.PolicyClient].
func (r *Request) Namespace() (namespace string, known bool) {
	kind, pod := r.routes.Owners.Owner(r.Client.Addr())
	return pod.Namespace, kind != clients.Unknown
}

// screenName is the step of the rules about names. It is notMine if none makes the reply.
func (z *Zone) screenName(r *Request) Outcome {
	if z.RPZ == nil || r.probe || r.exempt {
		return notMine
	}
	rule := r.applicable(z.RPZ.NameRule(r.Query.Name(), r))
	switch {
	case rule == nil:
		return notMine
	case rule.Action == authority.PolicyPassthru:
		r.exempt = true
		return notMine
	case rule.Action == authority.PolicyRedirect:
		return r.redirect(rule)
	}
	r.verdicts, r.rpz = r.verdicts&^anyVerdict|byRule, rule
	r.deny()
	return Answered
}

// applicable returns rule, which may be nil, if it holds for r, else nil, and notes what is to be known of it.
func (r *Request) applicable(rule *authority.PolicyRule, byClient bool) *authority.PolicyRule {
	if byClient {
		r.verdicts |= byNamespace
	}
	if rule == nil || rule.Audit && rule.Action == authority.PolicyPassthru {
		return nil
	}
	if r.trace != nil {
		r.traceRule(rule)
	}
	switch {
	case rule.Audit:
		r.verdicts |= audited
		r.rpz = cmp.Or(r.rpz, rule)
		return nil
	case rule.Action == authority.PolicyTCPOnly && r.Proto != UDP:
		r.verdicts |= byNamespace // clients over UDP get another reply
		return nil
	}
	return rule
}

// redirect makes the reply an alias of the rule's target, and asks for that. Rules do not apply to it.
func (r *Request) redirect(rule *authority.PolicyRule) Outcome {
	r.exempt = true
	target := r.addRedirect(rule)
	r.source = fromRPZ
	if _, o := r.follow(target); o != Answered {
		return o
	}
	if r.vet() { // by access lists and policies
		return Answered
	}
	r.verdicts, r.rpz = r.verdicts&^anyVerdict|byRule, rule
	return Answered
}

// addRedirect makes the reply the alias, and returns its target.
func (r *Request) addRedirect(rule *authority.PolicyRule) wire.Name {
	target := rule.Target
	if name := r.Query.Name(); len(target) > 2 && target[0] == 1 && target[1] == '*' && len(name)+len(target)-3 <= wire.MaxName {
		target = append(bytes.Clone(name[:len(name)-1]), target[2:]...)
	}
	r.reply.Fail(wire.NoError)
	r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeCNAME, redirectTTL, target)
	r.reply.SetEDE(wire.EDEForgedAnswer)
	return wire.Name(target)
}

// redirectTTL is the TTL of aliases that rules make, in seconds: clients soon learn that a rule is gone.
const redirectTTL = 60

// applyRule makes the reply what r.rpz says. It resolves no other name.
func (r *Request) applyRule() {
	r.source = fromRPZ
	switch rule := r.rpz; rule.Action {
	case authority.PolicyNXDomain:
		r.reply.Fail(wire.NXDomain)
		r.reply.SetEDE(wire.EDEBlocked)
	case authority.PolicyTCPOnly:
		r.reply.Empty()
	case authority.PolicyRedirect:
		r.addRedirect(rule)
	case authority.PolicyLocalData:
		r.reply.Fail(wire.NoError)
		rule.AddData(&r.reply, r.Query.Type)
		r.reply.SetEDE(wire.EDEForgedAnswer)
	default: // PolicyNoData; with PolicyDrop the reply is not sent
		r.reply.Fail(wire.NoError)
		r.reply.SetEDE(wire.EDEBlocked)
		r.unsent = rule.Action == authority.PolicyDrop
	}
}

// byRule returns the ruling of the rules about names on a name in the reply besides the question's.
func (v *vetting) byRule(name []byte, qtype uint16) ruling {
	if v.r.exempt || bytes.Equal(name, v.r.Query.Name()) {
		return ruling{verdict: allowed}
	}
	z := cmp.Or(v.rt.zoneOf(v.r, name, qtype), v.r.zone)
	if z.RPZ == nil {
		return ruling{verdict: allowed}
	}
	v.r.judged = append(v.r.judged[:0], name...) // name itself would be in the heap for each query
	return v.r.rulingOf(z.RPZ.NameRule(v.r.judged, v.r))
}

func (r *Request) rulingOf(rule *authority.PolicyRule, byClient bool) ruling {
	if rule = r.applicable(rule, byClient); rule != nil && rule.Action != authority.PolicyPassthru {
		return ruling{verdict: byRule, rpz: rule}
	}
	return ruling{verdict: allowed}
}

// addresses judges the addresses in the reply by the rules about them. Those of a zone transfer are left as they are.
func (v *vetting) addresses() {
	if z := v.r.zone; z.RPZ != nil && z.RPZ.HasAddrRules() && !v.r.exempt && v.r.source != fromTransfer {
		v.r.reply.EachAddress(func(addr netip.Addr, _ uint32) {
			v.chain.add(v.r.rulingOf(z.RPZ.AddrRule(addr, v.r)))
		})
	}
}

// traceRule notes what a rule says.
func (r *Request) traceRule(rule *authority.PolicyRule) {
	outcome, audit := Answers, ""
	if rule.Audit {
		outcome, audit = Passes, ", in audit mode"
	}
	if rule.Action == authority.PolicyPassthru || rule.Action == authority.PolicyTCPOnly && r.Proto != UDP {
		outcome = Passes
	}
	r.trace.add(r, stepOf[fromRPZ], outcome, fmt.Sprintf("the rule %s says %s%s", wire.Name(rule.Trigger), rule.Action, audit))
}
