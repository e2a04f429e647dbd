package resolver

import (
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// file is the step of zone files.
func (z *Zone) file(r *Request) Outcome {
	if z.File == nil {
		return notMine
	}
	found, lead := z.File.Answer(&r.Query, &r.reply)
	if found == zonefile.NotMine {
		r.note(stepOf[fromFile], notMine, "the name is in none of its zones, or does not exist and falls through")
		return notMine
	}
	r.source = fromFile
	switch {
	case found == zonefile.Leads:
		r.note(stepOf[fromFile], Answered, "an alias to "+lead.Target.String())
		return r.followLead(lead)
	case r.trace == nil:
	case found == zonefile.NotLoaded:
		r.note(stepOf[fromFile], Answered, "the zone file could not be read")
	default:
		r.note(stepOf[fromFile], Answered, replyText(&r.reply))
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
