package server

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
)

// turned is what asking a query in another form takes: an exchange of its own, in buffers
// that are used again for the next one.
type turned struct {
	request
	change rewrite.Change
	packet [packetBuffer]byte
	out    [replyBuffer]byte
	target [wire.MaxName]byte
}

var turns = sync.Pool{New: func() any { return new(turned) }}

// rewritten asks x's question, or what the zone's rules make of it, and makes the reply
// to that x's. It never waits.
func (rt *Routes) rewritten(x *request) step {
	if x.zone.Rewrite == nil {
		return rt.find(x)
	}
	at, err := rt.rewrite(x, x.arrival, nil)
	if err != nil { // is for the log, which is written where queries wait
		return turn
	}
	return at
}

// foreign is all there is to a query of another class than IN: the rules may turn it into
// one of IN, or it is REFUSED.
func (rt *Routes) foreign(x *request) step {
	if x.zone.Rewrite == nil {
		x.reply.Fail(wire.Refused)
		return done
	}
	return rt.rewritten(x)
}

// rewrittenOn is rewritten where it may wait. It begins anew.
func (rt *Routes) rewrittenOn(ctx context.Context, x *request) error {
	_, err := rt.rewrite(x, clock.Now(), func(x *request, at step) error { return rt.complete(ctx, x, at) })
	return err
}

// rewrite puts x through its zone's rules at now. wait completes what takes waiting;
// without it, that is all that comes of it: [onReadable], or where no rule takes x, the step
// that x has come to itself. The error is why the reply is a SERVFAIL.
func (rt *Routes) rewrite(x *request, now time.Duration, wait func(*request, step) error) (step, error) {
	t := turns.Get().(*turned)
	taken, err := t.change.Take(x.zone.Rewrite, &x.query)
	at := done
	switch {
	case err != nil:
		x.reply.Fail(wire.ServFail)
	case taken && x.zone.denied(x): // by the client's own question
	case taken && t.change.Class == wire.ClassIN:
		t.begin(x, now)
		at, err = rt.turned(x, t, wait)
	case x.query.Class != wire.ClassIN:
		x.reply.Fail(wire.Refused)
	default:
		at = rt.find(x)
	}
	t.zone, t.pool, t.missing, t.budget = nil, nil, nil, nil // may be gone before the next query
	turns.Put(t)
	return at, err
}

// begin makes t the exchange for what the rules have made of x's question.
func (t *turned) begin(x *request, now time.Duration) {
	t.request = request{zone: x.zone, client: x.client, place: x.place, arrival: now, stripe: x.stripe, proto: x.proto, hops: x.hops, budget: x.budget}
	t.query.Parse(wire.AppendQuery(t.packet[:0], x.query.ID, t.change.Name(), t.change.Type, &x.query, wire.MinUDP))
	t.reply.Start(t.out[:0], &t.query)
}

// turned asks what t has become, and turns the reply into x's.
func (rt *Routes) turned(x *request, t *turned, wait func(*request, step) error) (at step, err error) {
	if !rt.elsewhere(&t.request) {
		at = rt.find(&t.request)
	}
	if at != done {
		if wait == nil {
			return turn, nil
		}
		err = wait(&t.request, at)
	}
	other, waits, failed := rt.splice(t, wait)
	if waits {
		return turn, nil
	}
	err = cmp.Or(err, failed)
	x.source, x.ordered, x.viaSearch = t.source, t.ordered, t.viaSearch
	x.judgedAs(&t.request)
	if !x.reply.Rewrite(&t.reply, &t.change, other) {
		x.reply.Fail(wire.ServFail)
		return done, rewrite.ErrName
	}
	x.reply.CopyEDE(&t.reply)
	rcode := t.change.Rcode(t.reply.Rcode())
	if rcode > maxPlain && !x.query.EDNS {
		rcode = wire.ServFail
	}
	x.reply.SetRcode(rcode)
	return done, x.vetted(err)
}

// maxPlain is the last rcode that a client without EDNS can be told (RFC 6891, 6.1.3).
const maxPlain = 15

// splice resolves what an alias in t's reply leads to by the rules, if any takes it.
// waits says that this takes waiting, without wait; the error is why it does not resolve.
func (rt *Routes) splice(t *turned, wait func(*request, step) error) (s *wire.Splice, waits bool, err error) {
	if t.hops > maxHops || !t.change.Aliases() {
		return nil, false, nil
	}
	for i, target := range t.reply.Aliases(t.target[:]) {
		name, leads, ok := t.change.Target(target)
		if !ok {
			continue
		}
		s = &wire.Splice{At: i, Target: leads}
		s.Answers, waits, err = rt.lookup(&t.request, name, t.hops+1, wait)
		return s, waits, err
	}
	return nil, false, nil
}

// lookup asks for name and x's type through the whole path, as x's client, hops aliases
// away from what it asked for, and gives the reply. waits says that this takes waiting,
// without wait. What does not resolve is a reply without answers, and the error says why.
func (rt *Routes) lookup(x *request, name []byte, hops uint8, wait func(*request, step) error) (r *wire.Reply, waits bool, err error) {
	sub := &request{client: x.client, place: x.place, arrival: x.arrival, stripe: x.stripe, proto: x.proto, hops: hops, budget: x.budget}
	sub.query.Parse(wire.AppendQuery(nil, x.query.ID, name, x.query.Type, &x.query, wire.MinUDP))
	sub.reply.Start(nil, &sub.query)
	if at := rt.answer(sub); at != done {
		if wait == nil {
			return nil, true, nil
		}
		err = wait(sub, at)
	}
	x.inherit(sub)
	return &sub.reply, false, err
}
