package upstream

import "time"

// armTimer sees to it that the bell rings when a leg, or what is held, has to be looked
// after.
func (x *exchange) armTimer(now time.Time) {
	next := x.fallbackUntil
	for _, q := range x.queries[:x.inFlight] {
		if at := q.attempt.nextCheck; next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	x.nextCheck = next
	if next.IsZero() || now.Before(x.timerAt) && !next.Before(x.timerAt) {
		return // it rings before, and this is called again then
	}
	x.timerAt = next
	x.timer.Reset(next.Sub(now))
}

// onWakeup looks after the legs that are due. It reports whether what is held has been
// held for long enough. When the timer itself went off late, this process did not get
// the processor, and replies may be there that nobody has read: they have the time
// that their readers need.
func (x *exchange) onWakeup(now time.Time) bool {
	x.hedgeSoftErrors(now)
	if x.nextCheck.IsZero() || now.Before(x.nextCheck) {
		return false
	}
	if !x.fallbackUntil.IsZero() && !now.Before(x.fallbackUntil) {
		return true
	}
	late := !x.timerWasLate && now.Sub(x.nextCheck) > minHedgeDelay
	x.timerWasLate = x.timerWasLate || late
	for _, q := range x.queries[:x.inFlight] { // those asked meanwhile are not due
		switch {
		case !q.attempt.due(now):
		case late:
			q.attempt.nextCheck = now.Add(minHedgeDelay)
		default:
			x.handleOverdue(q, now)
		}
	}
	return false
}

// due reports whether l has to be looked after at now.
func (a *attempt) due(now time.Time) bool { return !a.nextCheck.IsZero() && !now.Before(a.nextCheck) }

// handleOverdue looks after c, which has not landed at its alarm. Another server is asked as
// soon as that is allowed. The looks until then grow rarer, since with all servers
// frozen there are many that look.
func (x *exchange) handleOverdue(q *query, now time.Time) {
	a := &q.attempt
	s := a.server
	if a.checkInterval == 0 { // the first look
		a.checkInterval = a.delays.hedge
		if !s.suspected.Load() { // what a frozen server does says nothing about its times
			a.slowCounted = true
			a.rtt.observeSlow()
		}
	} else {
		a.checkInterval = min(2*a.checkInterval, max(maxCheckInterval, a.delays.hedge))
	}
	if late := a.sent.Add(a.delays.unanswered); !a.unanswered && !now.Before(late) {
		a.unanswered = true
		x.pool.recordUnanswered(s)
	}
	if !a.hedged {
		a.hedged = x.hedge(q, now)
	}
	a.nextCheck = a.nextCheckAfter(now)
}

// nextCheckAfter is when to look after l again, after now; zero is never.
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

// maxCheckInterval is how rarely a query is looked after for which no other server can be asked.
// With all servers silent there are a thousand of them and more: half of it costs
// some hundredths of a core, double is how long a query waits at worst that could be
// asked elsewhere by now.
const maxCheckInterval = 100 * time.Millisecond

// hedge asks another server in place of c's, if that is allowed, and reports whether
// it has. To leave a server that is doubted for one that isn't is no extra query: it
// would be asked there if it came now. Everything else is within the budget, but for
// queries that have waited for too long.
func (x *exchange) hedge(q *query, now time.Time) bool {
	if x.inFlight == maxOutstanding || x.failuresLeft <= 0 || x.hedgesLeft <= 0 || !now.Before(x.deadline) {
		return false
	}
	at := x.nextIndex
	s, free := x.hedgeTarget(q, now)
	if s == nil || !free && !x.pool.hedgeBudget.withdraw() {
		x.nextIndex = at
		return false
	}
	x.hedgesLeft--
	s.hedges.Add(1)
	x.ask(s, now, true)
	return true
}

// forceHedgeAfter is how long a query waits before another server is asked, or the only one again,
// whatever the budget says: it is what a time-out would come to, earlier. A budget that is spent would leave
// a lone query with a frozen server until its end. With half of it, names that their
// servers take a second over would be asked twice when all of them are slow; a client
// feels each second more.
const forceHedgeAfter = time.Second

// hedgeTarget is the server to ask because c is late, nil for none, and whether the budget
// has no say in that.
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

// probablyLost reports whether c's query, or its answer, was probably lost, and asking the same
// server over another port may help.
func (x *exchange) probablyLost(q *query, now time.Time) bool {
	a := &q.attempt
	if q.tcp || a.server.udp == a.server.tcp {
		return false // TCP sends again itself
	}
	after := defaultResendDelay
	if tail, known := a.rtt.percentile95(); known {
		after = max(resendP95s*tail, minResendDelay)
	}
	return now.Sub(a.sent) >= after
}
