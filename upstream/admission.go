package upstream

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

// errAdmitted completes a query that has waited for a slot or a token and now has it. No caller of the Pool sees it.
var errAdmitted = errors.New("admitted")

// phase is how far a query of an exchange is.
type phase uint8

const (
	phaseNone     phase = iota
	awaitingSlot        // in the queue of its gate
	awaitingToken       // in the queue of the budget
	inTransport         // handed to the transport
)

// gate bounds the queries in flight to a server over one transport. It is safe for concurrent use.
type gate struct {
	mu    sync.Mutex
	slots share.Slots[*query]
}

func newGate(n int) *gate { return &gate{slots: share.NewSlots[*query](n)} }

// try takes a slot for c.
func (g *gate) try(c share.Client) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slots.Try(c)
}

// admit takes a slot for q. If none is free, q is queued if it may wait, as by [budget.admit].
func (g *gate) admit(q *query, mayWait bool) admission {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.slots.Try(q.client):
		return admitted
	case !mayWait:
		return refused
	}
	g.slots.Wait(q.client, q.wait())
	return queued
}

// release returns a slot of c. The next query that waits gets it.
func (g *gate) release(c share.Client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots.Release(c)
	if g.slots.Waiting() == 0 {
		return
	}
	if w := g.slots.Next(time.Now()); w != nil {
		w.Value.slot = g
		w.Value.complete(errAdmitted)
	}
}

// inOrderPart is the part of the time for which a query may wait in which a client's queries are sent in order, even if
// there are too many (see [share.Queue]): a half. What is left suffices for a burst that was too much for the first half, and
// an answer that comes in order comes within a second of the default read timeout of two.
const inOrderPart = 2

// wait prepares the waiter of q, which waits until its next check.
func (q *query) wait() *share.Waiter[*query] {
	a := &q.attempt
	q.waiter.Value, q.waiter.Late = q, a.sent.Add(a.nextCheck.Sub(a.sent)/inOrderPart)
	return &q.waiter
}

// cancel takes q out of the queue. It returns false if q has a slot already: then it is in q.done or about to be.
func (g *gate) cancel(q *query) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slots.Cancel(&q.waiter)
}

// send sends q as soon as its server may get it: for the first time, or again because of the server's reply.
func (x *exchange) send(q *query, now time.Time) {
	a := &q.attempt
	a.sent, a.recorded, a.nextCheck = now, 0, now.Add(a.server.readTimeout)
	if x.deadline.Before(a.nextCheck) {
		a.nextCheck = x.deadline
	}
	q.softError.Store(false)
	x.admit(q, now)
}

// dispatch hands q, which may be sent, to its transport.
func (x *exchange) dispatch(q *query, now time.Time) {
	q.phase, q.local, q.readBy = inTransport, netip.AddrPort{}, nil
	if q.overUDP() {
		q.readBy = x.readBy
	}
	a := &q.attempt
	s := a.server
	a.via, a.rtt = s.transportFor(q.tcp)
	a.sent, a.slowCounted, a.checkInterval = now, false, 0
	a.delays = x.delaysFor(s, a.rtt)
	a.nextCheck = now.Add(a.delays.hedge)
	q.deadline = now.Add(s.readTimeout)
	if x.deadline.Before(q.deadline) {
		q.deadline = x.deadline
	}
	q.build(!a.withoutEDNS, s)
	x.recordStart(q)
	a.via.start(q)
}

// admit takes a token and a slot for q and hands it to its transport. If q has to wait, q.attempt is checked when it has waited
// for the read timeout; if it may not wait, it is completed with the reason.
//
// A query waits for its token without a slot, so that a budget that is used up leaves the slots free. If there is no
// slot then, it waits without the token and takes another one when it has the slot: no query leaves with an old token.
func (x *exchange) admit(q *query, now time.Time) {
	s := q.attempt.server
	if !q.hasToken {
		switch s.budget.admit(q, x.urgency, now) {
		case queued:
			q.phase = awaitingToken
			return
		case refused:
			x.refuse(q, ErrOverBudget)
			return
		}
		q.hasToken = true
	}
	if q.slot == nil {
		switch g := s.gateFor(q.tcp); g.admit(q, x.urgency == forClient) {
		case admitted:
			q.slot = g
		case queued:
			q.phase = awaitingSlot
			q.returnToken()
			return
		default:
			x.refuse(q, ErrBusy)
			return
		}
	}
	q.hasToken = false // it is spent
	x.dispatch(q, now)
}

// refuse ends q, which is not sent, and the exchange: no other server was ready either.
func (x *exchange) refuse(q *query, err error) {
	x.failuresLeft = 0
	q.complete(err)
}

// ready reports whether a query of x to s would not have to wait now.
func (x *exchange) ready(s *server, now time.Time) bool {
	return int(s.inFlight.Load()) < s.protocol(x.tcp).maxInFlight && s.budget.available(x.urgency, now)
}

// preferReady returns s, or if s would let the query wait another server that would not.
func (x *exchange) preferReady(s *server, now time.Time) *server {
	if s == nil || len(x.order) < 2 || x.ready(s, now) {
		return s
	}
	for k, i := range x.order {
		if other := x.servers[i]; x.eligible(other, true) && x.ready(other, now) {
			x.nextIndex = k + 1
			return other
		}
	}
	return s
}

// expireWait fails q, which has waited for too long.
func (x *exchange) expireWait(q *query, now time.Time) {
	q.attempt.nextCheck = now.Add(maxCheckInterval) // if it has just got what it waits for
	switch {
	case q.phase == awaitingSlot && q.attempt.server.gateFor(q.tcp).cancel(q):
		x.refuse(q, ErrBusy)
	case q.phase == awaitingToken && q.attempt.server.budget.expire(q):
		x.refuse(q, ErrOverBudget)
	}
}

// waiting reports whether a query of x waits for a slot or a token.
func (x *exchange) waiting() bool {
	for _, q := range x.queries[:x.inFlight] {
		if q.phase == awaitingSlot || q.phase == awaitingToken {
			return true
		}
	}
	return false
}

// stopWaiting is closed when the Pool closes, if x waits outside of the transports, which
// fail their queries themselves.
func (x *exchange) stopWaiting() <-chan struct{} {
	if !x.waiting() && !x.pausing() {
		return nil
	}
	return x.pool.stop.Done()
}

// cancel takes q back from where it waits. It returns false if q is complete: then it is in q.done or about to be.
func (q *query) cancel() bool {
	switch q.phase {
	case awaitingSlot:
		return q.attempt.server.gateFor(q.tcp).cancel(q)
	case awaitingToken:
		return q.attempt.server.budget.cancel(q)
	}
	return q.attempt.via.cancel(q)
}

// returnToken returns q's token, if it has one.
func (q *query) returnToken() {
	if q.hasToken {
		q.hasToken = false
		q.attempt.server.budget.refund()
	}
}

// leave returns q's slot, and its token if q was not sent.
func (q *query) leave() {
	q.returnToken()
	if q.slot != nil {
		q.slot.release(q.client)
		q.slot = nil
	}
	q.phase = phaseNone
}
