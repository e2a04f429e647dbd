package resolver

import (
	"cmp"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
)

// applyRewrite asks the question that the zone's rules make of r's, and rewrites the reply. If
// no rule matches it asks r's own question. An error has to be logged, so without permission to
// wait it is [WouldWait].
func (rt *Routes) applyRewrite(r *Request) Outcome {
	sub := newSubquery()
	defer sub.release()
	sub.env = viewEnv{r: r, zone: r.zone, server: r.zone.Addr}
	matched, err := sub.change.Apply(r.zone.Rewrite, &r.Query, &sub.env)
	r.rewritten = matched
	if r.trace != nil {
		r.traceRewrite(&sub.change, matched, err)
	}
	if matched && err == nil { // the client's own question must be allowed, too
		if o := rt.screenQuestion(r); o != notMine {
			return o
		}
	}
	switch {
	case err != nil:
		return r.failWith(err)
	case matched && sub.change.Class == wire.ClassIN:
		sub.ask(r, sub.change.Name(), sub.change.Type)
		sub.zone, sub.madeByRule, sub.exempt = r.zone, true, r.exempt
		sub.Query.Options, sub.Query.Uncached = sub.change.Options(), sub.change.Uncached()
		return rt.askRewritten(r, sub)
	case r.Query.Class != wire.ClassIN:
		r.note(stepZone, Answered, onlyIN)
		return r.fail(wire.Refused)
	}
	return rt.ask(r)
}

// screenQuestion is the step of the ACL, the policies and the response policy zones. It is notMine if the client may ask.
func (rt *Routes) screenQuestion(r *Request) Outcome {
	if r.zone.denied(r) || rt.forbids(r) {
		return Answered
	}
	return r.zone.screenName(r)
}

// failWith replies SERVFAIL because of err, which is logged. That needs permission to wait.
func (r *Request) failWith(err error) Outcome {
	if !r.mayTakeLong() {
		return WouldWait
	}
	r.err = err
	return r.fail(wire.ServFail)
}

// askRewritten asks sub's question and rewrites the reply into r's.
func (rt *Routes) askRewritten(r *Request, sub *subquery) Outcome {
	if !rt.deniedElsewhere(&sub.Request) && sub.finishForward(rt.ask(&sub.Request)) == WouldWait {
		r.source = sub.source // what it will be
		return WouldWait
	}
	other, o, err := rt.resolveAlias(sub)
	if o == WouldWait {
		r.source = sub.source
		return WouldWait
	}
	r.source, r.ordered, r.viaSearch, r.unanswered = sub.source, sub.ordered, sub.viaSearch, sub.unanswered
	r.verdicts, r.rule, r.rpz = sub.verdicts|r.verdicts&(audited|byNamespace), sub.rule, cmp.Or(sub.rpz, r.rpz)
	if sub.verdicts&forbidden != 0 {
		r.denial = sub.denial
	}
	if !r.reply.Rewrite(&sub.reply, &sub.change, other) {
		return r.failWith(rewrite.ErrInvalidName)
	}
	r.reply.CopyEDE(&sub.reply)
	rcode := sub.change.Rcode(sub.reply.Rcode())
	if rcode > maxPlainRcode && !r.Query.EDNS {
		rcode = wire.ServFail
	}
	r.reply.SetRcode(rcode)
	r.err = cmp.Or(sub.err, err)
	if r.zone.lists != nil {
		r.vet()
	}
	return Answered
}

// maxPlainRcode is the largest rcode in a reply without EDNS (RFC 6891, 6.1.3).
const maxPlainRcode = 15

// resolveAlias resolves the target of the first alias in sub's reply that a rule applies to.
// The outcome is [Answered] or [WouldWait]. The error is why the target does not resolve.
func (rt *Routes) resolveAlias(sub *subquery) (*wire.Splice, Outcome, error) {
	if sub.hops > maxHops || !sub.change.RewritesCNAME() {
		return nil, Answered, nil
	}
	for i, target := range sub.reply.Aliases(sub.name[:]) {
		name, leads, ok := sub.change.CNAMETarget(target)
		if !ok {
			continue
		}
		other, o := sub.lookup(name, sub.hops+1)
		return &wire.Splice{At: i, Target: leads, Answers: &other.reply}, o, other.err
	}
	return nil, Answered, nil
}

// ask makes s the request for name and qtype on behalf of r's client; false if that is no valid
// query.
func (s *subquery) ask(r *Request, name []byte, qtype uint16) bool {
	r.derive(&s.Request)
	return r.parse(&s.Request, name, qtype, s.packet[:], s.out[:])
}

// askIn makes s the request for the first base bytes of r's name, in the client's case,
// followed by domain; false if that name is too long.
func (s *subquery) askIn(r *Request, base int, domain wire.Name) bool {
	if base+len(domain) > wire.MaxName {
		return false
	}
	n := copy(s.name[:], r.Query.Packet[wire.HeaderLen:wire.HeaderLen+base])
	n += copy(s.name[n:], domain)
	return s.ask(r, s.name[:n], r.Query.Type)
}
