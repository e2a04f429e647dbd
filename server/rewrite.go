package server

import (
	"cmp"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
)

// applyRewrite asks r's question, or what the zone's rules make of it, and makes the reply
// to that r's. Errors are for the log: without permission to wait they are [wouldWait].
func (rt *Routes) applyRewrite(r *request) outcome {
	sub := newSubquery()
	defer sub.release()
	matched, err := sub.change.Apply(r.zone.Rewrite, &r.query)
	switch {
	case err != nil:
		return r.failWith(err)
	case matched && r.zone.denied(r): // by the client's own question
		return answered
	case matched && sub.change.Class == wire.ClassIN:
		sub.ask(r, sub.change.Name(), sub.change.Type)
		sub.zone = r.zone
		return rt.askRewritten(r, sub)
	case r.query.Class != wire.ClassIN:
		return r.fail(wire.Refused)
	}
	return rt.ask(r)
}

// failWith makes the reply SERVFAIL and has err logged, which takes permission to wait.
func (r *request) failWith(err error) outcome {
	if !r.mayWait() {
		return wouldWait
	}
	r.err = err
	return r.fail(wire.ServFail)
}

// askRewritten asks sub's question, and turns the reply into r's.
func (rt *Routes) askRewritten(r *request, sub *subquery) outcome {
	if !rt.deniedElsewhere(&sub.request) && sub.finishForward(rt.ask(&sub.request)) == wouldWait {
		return wouldWait
	}
	other, o, err := rt.resolveAlias(sub)
	if o == wouldWait {
		return wouldWait
	}
	r.source, r.ordered, r.viaSearch = sub.source, sub.ordered, sub.viaSearch
	r.copyVerdict(&sub.request)
	if !r.reply.Rewrite(&sub.reply, &sub.change, other) {
		return r.failWith(rewrite.ErrInvalidName)
	}
	r.reply.CopyEDE(&sub.reply)
	rcode := sub.change.Rcode(sub.reply.Rcode())
	if rcode > maxPlainRcode && !r.query.EDNS {
		rcode = wire.ServFail
	}
	r.reply.SetRcode(rcode)
	r.err = cmp.Or(sub.err, err)
	if r.zone.lists != nil {
		r.vet()
	}
	return answered
}

// maxPlainRcode is the largest rcode in a reply without EDNS (RFC 6891, 6.1.3).
const maxPlainRcode = 15

// resolveAlias resolves the target of the first alias in sub's reply that a rule applies to.
// The outcome is [answered] or [wouldWait]. The error is why the target does not resolve.
func (rt *Routes) resolveAlias(sub *subquery) (*wire.Splice, outcome, error) {
	if sub.hops > maxHops || !sub.change.RewritesCNAME() {
		return nil, answered, nil
	}
	for i, target := range sub.reply.Aliases(sub.name[:]) {
		name, leads, ok := sub.change.CNAMETarget(target)
		if !ok {
			continue
		}
		other, o := sub.lookup(name, sub.hops+1)
		return &wire.Splice{At: i, Target: leads, Answers: &other.reply}, o, other.err
	}
	return nil, answered, nil
}
