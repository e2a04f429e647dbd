package resolver

import (
	"context"
	"errors"
	"time"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
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

// refusesOthers reports whether z has zones, no upstreams, and name is in none of the zones. As an authoritative server, z refuses
// the name, as CoreDNS does. For a resolver, a name that none of its upstreams takes is a failure.
func (z *Zone) refusesOthers(name []byte) bool {
	if len(z.Forward) > 0 {
		return false
	}
	authoritative := false
	for _, zones := range z.zoneTables() {
		if zones == nil {
			continue
		}
		if zones.Contains(name) {
			return false
		}
		authoritative = true
	}
	return authoritative
}

// zoneTables returns the sources of zones in their order; nil for a directive that z does not have.
func (z *Zone) zoneTables() [3]authority.Zones {
	return [...]authority.Zones{z.File, z.Auto, z.Secondary}
}

// answerFrom answers r from zones.
func (r *Request) answerFrom(zones authority.Zones, from source) Outcome {
	found, lead := zones.Answer(&r.Query, &r.reply)
	if found == authority.NotMine {
		r.note(stepOf[from], notMine, "the name is in none of its zones, or does not exist and falls through")
		return notMine
	}
	r.source = from
	switch {
	case found == authority.Leads:
		r.note(stepOf[from], Answered, "an alias to "+lead.Target.String())
		return r.followLead(lead)
	case r.trace == nil:
	case found == authority.NotLoaded:
		r.note(stepOf[from], Answered, "the zone is not loaded")
	default:
		r.note(stepOf[from], Answered, replyText(&r.reply))
	}
	return Answered
}

// followLead resolves the name that the aliases in r's reply lead to through the whole path, and
// appends the answers.
func (r *Request) followLead(lead authority.Lead) Outcome {
	sub, o := r.follow(lead.Target)
	switch {
	case sub != nil:
		lead.Zone.Complete(&r.Query, &r.reply, sub.reply.Rcode(), sub.reply.Count(wire.Answer))
	case errors.Is(r.err, errHops):
		lead.Zone.Complete(&r.Query, &r.reply, wire.ServFail, 0)
	}
	return o
}

// transfer is the step of zone transfers. With a stream the reply is the first message, and
// [Request.NextMessage] makes the others.
func (z *Zone) transfer(r *Request) Outcome {
	if r.Query.Type != wire.TypeAXFR && r.Query.Type != wire.TypeIXFR {
		return notMine
	}
	result := z.Transfer.Answer(authority.Transfer{
		Query: &r.Query, Client: r.Client, Streams: r.Streams && r.direct, Wait: r.ctx, Dry: r.trace != nil, Find: z.findTransfer,
	}, &r.reply)
	switch result.Outcome {
	case authority.TransferNotMine:
		return notMine
	case authority.TransferWaits:
		return WouldWait
	case authority.TransferAnswered:
	}
	r.source, r.ordered, r.outgoing, r.outgoingBuf = fromTransfer, true, result.Stream, nil
	r.note(stepOf[fromTransfer], Answered, result.Why)
	return Answered
}

var errNotLoaded = errors.New("the zone is not loaded")

// findTransfer returns the zone with this origin, from the first source that has it, in the order of the path; nil if none does.
func (z *Zone) findTransfer(origin wire.Name) (*authority.Source, error) {
	for _, v := range []view{z.External, z.Cluster} {
		if v == nil {
			continue
		}
		if soa, ok := v.SOA(origin); ok {
			return &authority.Source{SOA: soa, Load: func(ctx context.Context) (authority.Data, error) { return snapshot(ctx, v, origin) }}, nil
		}
	}
	for _, zones := range z.zoneTables() {
		if zones == nil {
			continue
		}
		data, served := zones.Data(origin)
		switch {
		case !served:
			continue
		case data == nil:
			return nil, errNotLoaded
		}
		return &authority.Source{SOA: data.SOA(), Load: func(context.Context) (authority.Data, error) { return data, nil }}, nil
	}
	return nil, nil //nolint:nilnil // there is no such zone
}

// transferWait is how long a transfer waits for the view of the cluster to load what is missing: several namespaces at once, where
// a query needs one.
const transferWait = 5 * time.Second

// snapshot returns the data of a zone that v has. It waits for transferWait at most.
func snapshot(ctx context.Context, v view, origin wire.Name) (*kubernetes.Snapshot, error) {
	limited, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	return v.Snapshot(limited, origin)
}

// Transfers reports whether r's reply is the first message of a transfer. Then the caller sends the messages of
// [Request.NextMessage] after it, and calls [Request.EndTransfer].
func (r *Request) Transfers() bool { return r.outgoing != nil }

// NextMessage returns the next message of the transfer; nil if there is none, or the transfer must end early. The message is
// valid until the next call.
func (r *Request) NextMessage() []byte {
	for r.outgoing.Next(r.ctx, r.outgoingBuf, &r.Query, &r.reply) {
		if r.zone.lists == nil || r.zone.lists.vetMessage(r) {
			r.zone.shape(r)
			r.outgoingBuf = r.message(wire.MaxMessage)
			return r.outgoingBuf
		}
	}
	return nil
}

// EndTransfer ends the transfer. sent says that all messages so far were written. It returns false if the client does
// not have the whole zone, so that its connection must be closed.
func (r *Request) EndTransfer(sent bool) (complete bool) {
	t := r.outgoing
	r.outgoing, r.outgoingBuf = nil, nil
	return t.End(sent)
}

// AnswerUnsupported answers r, which Parse has found [wire.Unsupported]: a NOTIFY for a zone that is transferred from a primary server
// (RFC 1996) triggers a check of the zone and is confirmed, everything else is NOTIMP. It appends the reply to buf; nil is none: a
// NOTIFY of another sender is ignored (RFC 1996, 3.10). The query is not counted.
func (rt *Routes) AnswerUnsupported(r *Request, buf []byte) []byte {
	if r.Query.ParseNotify() {
		switch rt.notify(r) {
		case authority.Notified:
			return wire.AppendNotified(buf, &r.Query)
		case authority.Ignored:
			return nil
		case authority.NotSecondary:
		}
	}
	return wire.AppendError(buf, r.Query.Packet, wire.NotImp)
}

// notify passes the NOTIFY in r to the zone that it is about.
func (rt *Routes) notify(r *Request) (result authority.NotifyResult) {
	z := rt.match(r)
	if z == nil {
		return result
	}
	if z.Secondary != nil {
		result = z.Secondary.Notify(r.Query.Name(), r.Client.Addr())
	}
	if z.RPZ != nil && result == authority.NotSecondary {
		result = z.RPZ.Notify(r.Query.Name(), r.Client.Addr())
	}
	return result
}

// unverified is the step of signatures: it returns true if it has refused r.
func (z *Zone) unverified(r *Request) bool {
	s, refusal, why := z.TSIG.Verify(&r.Query)
	r.signer = s
	if refusal == wire.NoError {
		return false
	}
	r.fail(refusal)
	r.note(stepTSIG, Answered, why)
	return true
}

// message completes the reply and signs it if the query was signed. The message has at most limit bytes, except where the question and
// the TSIG record alone are longer: then it is no longer than the query.
func (r *Request) message(limit int) []byte {
	if r.signer == nil {
		return r.reply.Finish(limit)
	}
	return r.signer.Sign(r.reply.Finish(limit-r.signer.Len()), time.Now())
}
