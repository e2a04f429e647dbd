package upstream

import "time"

// arm sees to it that the bell rings when a leg, or what is held, has to be looked
// after.
func (r *race) arm(now time.Time) {
	next := r.heldUntil
	for _, c := range r.legs[:r.flying] {
		if at := c.leg.alarm; next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	r.alarm = next
	if next.IsZero() || now.Before(r.rings) && !next.Before(r.rings) {
		return // it rings before, and this is called again then
	}
	r.rings = next
	r.timer.Reset(next.Sub(now))
}

// ring looks after the legs that are due. It reports whether what is held has been
// held for long enough. When the timer itself went off late, this process did not get
// the processor, and replies may be there that nobody has read: they have the time
// that their readers need.
func (r *race) ring(now time.Time) bool {
	r.hinted(now)
	if r.alarm.IsZero() || now.Before(r.alarm) {
		return false
	}
	if !r.heldUntil.IsZero() && !now.Before(r.heldUntil) {
		return true
	}
	late := !r.stalled && now.Sub(r.alarm) > hedgeFloor
	r.stalled = r.stalled || late
	for _, c := range r.legs[:r.flying] { // those asked meanwhile are not due
		switch {
		case !c.leg.due(now):
		case late:
			c.leg.alarm = now.Add(hedgeFloor)
		default:
			r.overdue(c, now)
		}
	}
	return false
}

// due reports whether l has to be looked after at now.
func (l *leg) due(now time.Time) bool { return !l.alarm.IsZero() && !now.Before(l.alarm) }

// overdue looks after c, which has not landed at its alarm. Another server is asked as
// soon as that is allowed. The looks until then grow rarer, since with all servers
// frozen there are many that look.
func (r *race) overdue(c *call, now time.Time) {
	l := &c.leg
	s := l.server
	if l.gap == 0 { // the first look
		l.gap = l.waits.hedge
		if !s.doubted.Load() { // what a frozen server does says nothing about its times
			l.late = true
			l.rtt.beyond()
		}
	} else {
		l.gap = min(2*l.gap, max(maxGap, l.waits.hedge))
	}
	if late := l.begun.Add(l.waits.late); !l.missed && !now.Before(late) {
		l.missed = true
		r.pool.miss(s)
	}
	if !l.relieved {
		l.relieved = r.relieve(c, now)
	}
	l.alarm = l.look(now)
}

// look is when to look after l again, after now; zero is never.
func (l *leg) look(now time.Time) time.Time {
	late := l.begun.Add(l.waits.late)
	switch next := now.Add(l.gap); {
	case !l.missed && (l.relieved || late.Before(next)):
		return late
	case l.relieved:
		return time.Time{}
	default:
		return next
	}
}

// maxGap is how rarely a query is looked after for which no other server can be asked.
// With all servers silent there are a thousand of them and more: half of it costs
// some hundredths of a core, double is how long a query waits at worst that could be
// asked elsewhere by now.
const maxGap = 100 * time.Millisecond

// relieve asks another server in place of c's, if that is allowed, and reports whether
// it has. To leave a server that is doubted for one that isn't is no extra query: it
// would be asked there if it came now. Everything else is within the budget, but for
// queries that have waited for too long.
func (r *race) relieve(c *call, now time.Time) bool {
	if r.flying == maxLegs || r.left <= 0 || r.spare <= 0 || !now.Before(r.deadline) {
		return false
	}
	at := r.at
	s, free := r.second(c, now)
	if s == nil || !free && !r.pool.budget.spend() {
		r.at = at
		return false
	}
	r.spare--
	s.hedges.Add(1)
	r.ask(s, now, true)
	return true
}

// rescue is how long a query waits before another server is asked, or the only one again,
// whatever the budget says: it is what a time-out would come to, earlier. A budget that is spent would leave
// a lone query with a frozen server until its end. With half of it, names that their
// servers take a second over would be asked twice when all of them are slow; a client
// feels each second more.
const rescue = time.Second

// second is the server to ask because c is late, nil for none, and whether the budget
// has no say in that.
func (r *race) second(c *call, now time.Time) (s *server, free bool) {
	desperate := now.Sub(c.leg.asked) >= rescue
	if s = r.pick(true); s != nil {
		return s, desperate || c.leg.server.doubted.Load()
	}
	if s = r.pick(false); s == nil && r.lost(c, now) {
		return c.leg.server, desperate
	}
	return s, desperate
}

// lost reports whether c's query, or its answer, was probably lost, and asking the same
// server over another port may help.
func (r *race) lost(c *call, now time.Time) bool {
	l := &c.leg
	if c.tcp || l.server.udp == l.server.tcp {
		return false // TCP sends again itself
	}
	after := resendUnknown
	if tail, known := l.rtt.percentile(); known {
		after = max(resendTails*tail, resendFloor)
	}
	return now.Sub(l.begun) >= after
}
