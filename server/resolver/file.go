package resolver

import (
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// authoritative is the step of the zones that the agent has itself: those of files, of a directory and of primary
// servers, in this order, as in CoreDNS.
func (z *Zone) authoritative(r *Request) Outcome {
	if z.File != nil {
		if o := r.answerFrom(z.File, fromFile); o != notMine {
			return o
		}
	}
	if z.Auto != nil {
		if o := r.answerFrom(z.Auto, fromAuto); o != notMine {
			return o
		}
	}
	if z.Secondary != nil {
		return r.answerFrom(z.Secondary, fromSecondary)
	}
	return notMine
}

// answerFrom answers r from the zones of t.
func (r *Request) answerFrom(t *zonefile.Table, from source) Outcome {
	found, lead := t.Answer(&r.Query, &r.reply)
	if found == zonefile.NotMine {
		r.note(stepOf[from], notMine, "the name is in none of its zones, or does not exist and falls through")
		return notMine
	}
	r.source = from
	switch {
	case found == zonefile.Leads:
		r.note(stepOf[from], Answered, "an alias to "+lead.Target.String())
		return r.followLead(lead)
	case r.trace == nil:
	case found == zonefile.NotLoaded:
		r.note(stepOf[from], Answered, "the zone is not loaded")
	default:
		r.note(stepOf[from], Answered, replyText(&r.reply))
	}
	return Answered
}

// followLead resolves the name that the aliases in r's reply lead to through the whole path, and
// appends the answers.
func (r *Request) followLead(lead zonefile.Lead) Outcome {
	switch {
	case !r.mayTakeLong():
		return WouldWait
	case r.zone.lists != nil && r.vet(): // nobody asks for a target that the client may not have
		return Answered
	case r.hops >= maxHops:
		r.err = errHops
		lead.Complete(&r.Query, &r.reply, wire.ServFail, 0)
		return Answered
	}
	sub, o := r.lookup([]byte(lead.Target), r.hops+1)
	if o == WouldWait { // only in a dry run
		return WouldWait
	}
	rcode, answers := sub.reply.Rcode(), sub.reply.Count(wire.Answer)
	if r.err = sub.err; r.err == nil {
		r.reply.CopyTC(&sub.reply)
		r.err = r.reply.AppendAnswers(sub.reply.Finish(wire.MaxMessage))
	}
	lead.Complete(&r.Query, &r.reply, rcode, answers)
	return Answered
}
