package upstream

import "time"

// armTimer sees to it that the bell rings when a leg, or what is held, has to be looked
// after.
func (r *exchange) armTimer(now time.Time) {
	next := r.fallbackUntil
	for _, c := range r.queries[:r.inFlight] {
		if at := c.attempt.nextCheck; next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	r.nextCheck = next
	if next.IsZero() || now.Before(r.timerAt) && !next.Before(r.timerAt) {
		return // it rings before, and this is called again then
	}
	r.timerAt = next
	r.timer.Reset(next.Sub(now))
}

// onWakeup looks after the legs that are due. It reports whether what is held has been
// held for long enough. When the timer itself went off late, this process did not get
// the processor, and replies may be there that nobody has read: they have the time
// that their readers need.
func (r *exchange) onWakeup(now time.Time) bool {
	r.hedgeSoftErrors(now)
	if r.nextCheck.IsZero() || now.Before(r.nextCheck) {
		return false
	}
	if !r.fallbackUntil.IsZero() && !now.Before(r.fallbackUntil) {
		return true
	}
	late := !r.timerWasLate && now.Sub(r.nextCheck) > minHedgeDelay
	r.timerWasLate = r.timerWasLate || late
	for _, c := range r.queries[:r.inFlight] { // those asked meanwhile are not due
		switch {
		case !c.attempt.due(now):
		case late:
			c.attempt.nextCheck = now.Add(minHedgeDelay)
		default:
			r.handleOverdue(c, now)
		}
	}
	return false
}

// due reports whether l has to be looked after at now.
func (l *attempt) due(now time.Time) bool { return !l.nextCheck.IsZero() && !now.Before(l.nextCheck) }

// handleOverdue looks after c, which has not landed at its alarm. Another server is asked as
// soon as that is allowed. The looks until then grow rarer, since with all servers
// frozen there are many that look.
func (r *exchange) handleOverdue(c *query, now time.Time) {
	l := &c.attempt
	s := l.server
	if l.checkInterval == 0 { // the first look
		l.checkInterval = l.delays.hedge
		if !s.suspected.Load() { // what a frozen server does says nothing about its times
			l.slowCounted = true
			l.rtt.observeSlow()
		}
	} else {
		l.checkInterval = min(2*l.checkInterval, max(maxCheckInterval, l.delays.hedge))
	}
	if late := l.sent.Add(l.delays.unanswered); !l.unanswered && !now.Before(late) {
		l.unanswered = true
		r.pool.recordUnanswered(s)
	}
	if !l.hedged {
		l.hedged = r.hedge(c, now)
	}
	l.nextCheck = l.nextCheckAfter(now)
}

// nextCheckAfter is when to look after l again, after now; zero is never.
func (l *attempt) nextCheckAfter(now time.Time) time.Time {
	late := l.sent.Add(l.delays.unanswered)
	switch next := now.Add(l.checkInterval); {
	case !l.unanswered && (l.hedged || late.Before(next)):
		return late
	case l.hedged:
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
func (r *exchange) hedge(c *query, now time.Time) bool {
	if r.inFlight == maxOutstanding || r.failuresLeft <= 0 || r.hedgesLeft <= 0 || !now.Before(r.deadline) {
		return false
	}
	at := r.nextIndex
	s, free := r.hedgeTarget(c, now)
	if s == nil || !free && !r.pool.hedgeBudget.withdraw() {
		r.nextIndex = at
		return false
	}
	r.hedgesLeft--
	s.hedges.Add(1)
	r.ask(s, now, true)
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
func (r *exchange) hedgeTarget(c *query, now time.Time) (s *server, free bool) {
	desperate := now.Sub(c.attempt.started) >= forceHedgeAfter
	if s = r.nextServer(true); s != nil {
		return s, desperate || c.attempt.server.suspected.Load()
	}
	if s = r.nextServer(false); s == nil && r.probablyLost(c, now) {
		return c.attempt.server, desperate
	}
	return s, desperate
}

// probablyLost reports whether c's query, or its answer, was probably lost, and asking the same
// server over another port may help.
func (r *exchange) probablyLost(c *query, now time.Time) bool {
	l := &c.attempt
	if c.tcp || l.server.udp == l.server.tcp {
		return false // TCP sends again itself
	}
	after := defaultResendDelay
	if tail, known := l.rtt.percentile95(); known {
		after = max(resendP95s*tail, minResendDelay)
	}
	return now.Sub(l.sent) >= after
}
