package upstream

import "time"

// armTimer sets the timer for the next check of a query or of the fallback, or for the next round.
func (x *exchange) armTimer(now time.Time) {
	next := x.fallbackUntil
	if x.pausing() {
		next = x.rounds.nextAt
	}
	for _, q := range x.queries[:x.inFlight] {
		if at := q.attempt.nextCheck; next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	x.nextCheck = next
	if next.IsZero() || now.Before(x.timerAt) && !next.Before(x.timerAt) {
		return // the timer fires earlier, and armTimer is called again then
	}
	x.timerAt = next
	x.timer.Reset(next.Sub(now))
}

// onWakeup checks the queries that are due. It reports whether the fallback's time is up.
func (x *exchange) onWakeup(now time.Time) bool {
	if x.pausing() {
		x.checkRound(now)
		return false
	}
	for _, q := range x.queries[:x.inFlight] {
		if q.softError.Swap(false) && !q.attempt.hedged {
			q.attempt.hedged = x.hedge(q, now)
		}
	}
	if x.nextCheck.IsZero() || now.Before(x.nextCheck) {
		return false
	}
	if !x.fallbackUntil.IsZero() && !now.Before(x.fallbackUntil) {
		return true
	}
	x.checkDue(now)
	return false
}

// checkDue checks the queries that are due. If the timer fired late, this process was not
// scheduled and replies may be waiting unread; the checks are then postponed once so that
// the readers can catch up.
func (x *exchange) checkDue(now time.Time) {
	late := !x.timerWasLate && now.Sub(x.nextCheck) > minHedgeDelay
	x.timerWasLate = x.timerWasLate || late
	for _, q := range x.queries[:x.inFlight] { // queries added meanwhile are not due
		switch {
		case !q.attempt.due(now):
		case late:
			q.attempt.nextCheck = now.Add(minHedgeDelay)
		default:
			x.handleOverdue(q, now)
		}
	}
}

// due reports whether a has to be checked at now.
func (a *attempt) due(now time.Time) bool { return !a.nextCheck.IsZero() && !now.Before(a.nextCheck) }

// handleOverdue checks q, which had no reply at its nextCheck. It asks another server as
// soon as that is allowed. The interval between checks grows, because with all servers
// frozen many queries are checked.
func (x *exchange) handleOverdue(q *query, now time.Time) {
	if q.phase != inTransport {
		x.expireWait(q, now)
		return
	}
	a := &q.attempt
	s := a.server
	if a.checkInterval == 0 { // the first check
		a.checkInterval = a.delays.hedge
		if !s.suspected.Load() { // a frozen server's delays say nothing about its RTT
			x.observeSlow(a)
		}
	} else {
		a.checkInterval = min(2*a.checkInterval, max(maxCheckInterval, a.delays.hedge))
	}
	if late := a.sent.Add(a.delays.unanswered); !a.unanswered && !now.Before(late) {
		a.unanswered = true
		if a.repeats {
			s.tcpSilent.Store(q.tcp)
		}
		x.pool.recordUnanswered(s)
	}
	if !a.hedged {
		a.hedged = x.hedge(q, now)
	}
	a.nextCheck = a.nextCheckAfter(now)
}

// nextCheckAfter returns when to check a next, after now; zero means never.
func (a *attempt) nextCheckAfter(now time.Time) time.Time {
	late := a.sent.Add(a.delays.unanswered)
	switch next := now.Add(a.checkInterval); {
	case !a.unanswered && (a.hedged || late.Before(next)):
		return late
	case a.hedged:
		return time.Time{}
	default:
		return next
	}
}

// maxCheckInterval bounds the interval between checks of a query that can't be hedged yet.
// It limits the CPU use with all servers silent and a thousand queries in flight, and the
// time until a query notices that another server is available.
const maxCheckInterval = 100 * time.Millisecond

// hedge asks another server because the one of q is late, if that is allowed, and reports
// whether it did. Moving from a suspect to a trusted server is free: a new query would be
// sent there. Any other hedge costs budget, except for queries that have waited longer than
// forceHedgeAfter.
func (x *exchange) hedge(q *query, now time.Time) bool {
	if x.inFlight == maxOutstanding || x.failuresLeft <= 0 || x.hedgesLeft <= 0 || !now.Before(x.deadline) {
		return false
	}
	at := x.nextIndex
	s, free := x.hedgeTarget(q, now)
	repeats, overTCP := s == q.attempt.server, x.tcp
	if repeats {
		overTCP = q.repeatsOverTCP()
	}
	if s == nil || !x.payHedge(s, overTCP, free, now) {
		x.nextIndex = at
		return false
	}
	x.hedgesLeft--
	s.hedges.Add(1)
	if x.hedged != nil {
		x.hedged.Store(true)
	}
	h := x.newQuery(s, now, true)
	h.tcp, h.attempt.repeats, h.attempt.paid = overTCP, repeats, !free
	h.slot = s.gateFor(h.tcp)
	h.softError.Store(false)
	x.dispatch(h, now)
	return true
}

// payHedge takes what a hedge to s needs: a slot, a token, and unless it is free the credit for a hedge.
func (x *exchange) payHedge(s *server, overTCP, free bool, now time.Time) bool {
	hedges := x.pool.hedgeBudget
	if !free && !hedges.withdrawFor(x.slot) {
		return false
	}
	if !s.acquireSpare(x.client, overTCP, now) {
		if !free {
			hedges.refund()
		}
		return false
	}
	return true
}

// forceHedgeAfter is how long a query waits before it is hedged regardless of the budget.
// It keeps an exhausted budget from leaving a query with a frozen server until its timeout.
const forceHedgeAfter = time.Second

// hedgeTarget returns the server to ask because q is late, nil for none, and whether the
// hedge is free of budget.
func (x *exchange) hedgeTarget(q *query, now time.Time) (s *server, free bool) {
	desperate := now.Sub(q.attempt.started) >= forceHedgeAfter
	if s = x.nextServer(true); s != nil {
		return s, desperate || q.attempt.server.suspected.Load()
	}
	if s = x.nextServer(false); s == nil && x.probablyLost(q, now) {
		return q.attempt.server, desperate
	}
	return s, desperate
}

// probablyLost reports whether q or its reply was probably lost, so that asking the same
// server again may help.
func (x *exchange) probablyLost(q *query, now time.Time) bool {
	a := &q.attempt
	switch {
	case a.server.udp == a.server.tcp, q.tcp && !a.repeats:
		return false // TCP retransmits by itself
	case q.tcp:
		return a.unanswered // TCP may be blocked
	case a.server.lossy.Load():
		return true
	}
	after := defaultResendDelay
	if tail, known := x.percentile95(a.rtt); known {
		after = min(max(resendP95s*tail, minResendDelay), a.server.readTimeout/resendDelays)
	}
	return now.Sub(a.sent) >= after
}

// observeSlow records that a's reply takes longer than the 95th percentile.
func (x *exchange) observeSlow(a *attempt) {
	a.slowCounted = true
	a.rtt.observeSlow()
	if x.slot != noSlot {
		a.rtt.clients[x.slot].observeSlow()
	}
}

// recordRepeat learns from the race between q, which was answered first, and the query that it repeats or that repeats it.
// If a repetition over TCP is answered in the usual time, the query over UDP was lost: that says nothing about response times,
// and the hedge was no extra query.
func (x *exchange) recordRepeat(q *query, now time.Time) {
	a := &q.attempt
	for _, other := range x.queries[:x.inFlight] {
		o := &other.attempt
		switch {
		case o.server != a.server || other.tcp == q.tcp:
		case !q.tcp:
			resetFlag(&a.server.lossy)
		case a.repeats && now.Sub(a.sent) <= a.delays.hedge:
			o.lost = true
			a.server.lossy.Store(true)
			x.forgetSlow(o)
			if a.paid {
				x.pool.hedgeBudget.refund()
			}
		}
	}
}

// forgetSlow undoes observeSlow.
func (x *exchange) forgetSlow(a *attempt) {
	if !a.slowCounted {
		return
	}
	a.rtt.forgetSlow()
	if x.slot != noSlot {
		a.rtt.clients[x.slot].forgetSlow()
	}
}

// percentile95 returns the 95th percentile of the response times that x's client sees, or with too few samples all clients.
func (x *exchange) percentile95(times *rtt) (time.Duration, bool) {
	if x.slot != noSlot {
		if tail, known := times.clients[x.slot].percentile95(); known {
			return tail, true
		}
	}
	return times.percentile95()
}

// delaysFor returns the delays for s. A server without measurements is expected to be as
// fast as the slowest of the others.
func (x *exchange) delaysFor(s *server, times *rtt) delays {
	tail, known := x.percentile95(times)
	if !known {
		for _, other := range x.servers {
			_, times := other.transportFor(x.tcp)
			if t, ok := times.percentile95(); ok {
				tail, known = max(tail, t), true
			}
		}
	}
	return delaysFor(tail, known, s.readTimeout)
}
