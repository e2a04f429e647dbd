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
	exchange
	change rewrite.Change
	packet [packetBuffer]byte
	out    [replyBuffer]byte
	target [wire.MaxName]byte
}

var turns = sync.Pool{New: func() any { return new(turned) }}

// rewritten asks x's question, or what the zone's rules make of it, and makes the reply
// to that x's. It never waits.
func (rt *Routes) rewritten(x *exchange) step {
	if x.zone.Rewrite == nil {
		return rt.find(x)
	}
	at, err := rt.rewrite(x, x.start, nil)
	if err != nil { // is for the log, which is written where queries wait
		return turn
	}
	return at
}

// foreign is all there is to a query of another class than IN: the rules may turn it into
// one of IN, or it is REFUSED.
func (rt *Routes) foreign(x *exchange) step {
	if x.zone.Rewrite == nil {
		x.r.Fail(wire.Refused)
		return done
	}
	return rt.rewritten(x)
}

// rewrittenOn is rewritten where it may wait. It begins anew.
func (rt *Routes) rewrittenOn(ctx context.Context, x *exchange) error {
	_, err := rt.rewrite(x, clock.Now(), func(x *exchange, at step) error { return rt.complete(ctx, x, at) })
	return err
}

// rewrite puts x through its zone's rules at now. wait completes what takes waiting;
// without it, that is all that comes of it: [onReadable], or where no rule takes x, the step
// that x has come to itself. The error is why the reply is a SERVFAIL.
func (rt *Routes) rewrite(x *exchange, now time.Duration, wait func(*exchange, step) error) (step, error) {
	t := turns.Get().(*turned)
	taken, err := t.change.Take(x.zone.Rewrite, &x.q)
	at := done
	switch {
	case err != nil:
		x.r.Fail(wire.ServFail)
	case taken && x.zone.denied(x): // by the client's own question
	case taken && t.change.Class == wire.ClassIN:
		t.begin(x, now)
		at, err = rt.turned(x, t, wait)
	case x.q.Class != wire.ClassIN:
		x.r.Fail(wire.Refused)
	default:
		at = rt.find(x)
	}
	t.zone, t.pool, t.missing, t.budget = nil, nil, nil, nil // may be gone before the next query
	turns.Put(t)
	return at, err
}

// begin makes t the exchange for what the rules have made of x's question.
func (t *turned) begin(x *exchange, now time.Duration) {
	t.exchange = exchange{zone: x.zone, client: x.client, place: x.place, start: now, lane: x.lane, via: x.via, hops: x.hops, budget: x.budget}
	t.q.Parse(wire.AppendQuery(t.packet[:0], x.q.ID, t.change.Name(), t.change.Type, &x.q, wire.MinUDP))
	t.r.Start(t.out[:0], &t.q)
}

// turned asks what t has become, and turns the reply into x's.
func (rt *Routes) turned(x *exchange, t *turned, wait func(*exchange, step) error) (at step, err error) {
	if !rt.elsewhere(&t.exchange) {
		at = rt.find(&t.exchange)
	}
	if at != done {
		if wait == nil {
			return turn, nil
		}
		err = wait(&t.exchange, at)
	}
	other, waits, failed := rt.splice(t, wait)
	if waits {
		return turn, nil
	}
	err = cmp.Or(err, failed)
	x.source, x.ordered, x.found = t.source, t.ordered, t.found
	x.judgedAs(&t.exchange)
	if !x.r.Rewrite(&t.r, &t.change, other) {
		x.r.Fail(wire.ServFail)
		return done, rewrite.ErrName
	}
	x.r.CopyEDE(&t.r)
	rcode := t.change.Rcode(t.r.Rcode())
	if rcode > maxPlain && !x.q.EDNS {
		rcode = wire.ServFail
	}
	x.r.SetRcode(rcode)
	return done, x.vetted(err)
}

// maxPlain is the last rcode that a client without EDNS can be told (RFC 6891, 6.1.3).
const maxPlain = 15

// splice resolves what an alias in t's reply leads to by the rules, if any takes it.
// waits says that this takes waiting, without wait; the error is why it does not resolve.
func (rt *Routes) splice(t *turned, wait func(*exchange, step) error) (s *wire.Splice, waits bool, err error) {
	if t.hops > maxHops || !t.change.Aliases() {
		return nil, false, nil
	}
	for i, target := range t.r.Aliases(t.target[:]) {
		name, leads, ok := t.change.Target(target)
		if !ok {
			continue
		}
		s = &wire.Splice{At: i, Target: leads}
		s.Answers, waits, err = rt.lookup(&t.exchange, name, t.hops+1, wait)
		return s, waits, err
	}
	return nil, false, nil
}

// lookup asks for name and x's type through the whole path, as x's client, hops aliases
// away from what it asked for, and gives the reply. waits says that this takes waiting,
// without wait. What does not resolve is a reply without answers, and the error says why.
func (rt *Routes) lookup(x *exchange, name []byte, hops uint8, wait func(*exchange, step) error) (r *wire.Reply, waits bool, err error) {
	sub := &exchange{client: x.client, place: x.place, start: x.start, lane: x.lane, via: x.via, hops: hops, budget: x.budget}
	sub.q.Parse(wire.AppendQuery(nil, x.q.ID, name, x.q.Type, &x.q, wire.MinUDP))
	sub.r.Start(nil, &sub.q)
	if at := rt.answer(sub); at != done {
		if wait == nil {
			return nil, true, nil
		}
		err = wait(sub, at)
	}
	x.inherit(sub)
	return &sub.r, false, err
}
