package upstream

import "time"

// rounds is the part of an exchange that asks all servers again, because none could be reached. A server that restarts refuses
// connections for about a second: that is no failure of the queried name.
type rounds struct {
	away    []*server // the servers that have refused the query in this round, and are not asked again in it
	nextAt  time.Time // when the next round begins; zero: one is under way
	begunAt time.Time // when the last round began
	pause   time.Duration
	later   int // rounds after the first
	failed  int // attempts in all rounds
	// unreachable says that a server could not be reached, absent that it was so in this round.
	unreachable, absent bool
	// closed is how often a server has closed the connection without a reply, but has replied to other queries since it was asked.
	closed int
}

// maxClosed is how often that may be a coincidence: the server has replied before it went away, or after it came back. After that the
// fault is the query's.
const maxClosed = 3

// isAway reports whether the server of q, which has failed with err, can't be reached. replying says that it has replied to other queries
// since then.
func (x *exchange) isAway(err error, replying bool) bool {
	if !isUnavailable(err) {
		return false
	}
	if replying && !isUnreachable(err) {
		x.rounds.closed++
	}
	return x.rounds.closed <= maxClosed
}

// noteFailed records that q has failed with err. A server that has refused it is not asked again in this round; one that has closed the
// connection is, because that may have been an old one.
func (x *exchange) noteFailed(q *query, err error, now time.Time) {
	r := &x.rounds
	r.failed++
	replying := q.attempt.server.lastReply.Load() >= x.pool.timestamp(q.attempt.sent)
	away := x.isAway(err, replying)
	if away {
		r.absent, r.unreachable = true, true
	}
	switch {
	case away && q.attempt.isHedge && x.inFlight > 0 && r.failed < maxLaterRounds:
		x.hedgeAgain(q, now)
	case away && isUnreachable(err) && !replying:
		r.away = append(r.away, q.attempt.server)
	default:
		x.failuresLeft--
		if isTimeout(err) { // after so long the others may be back
			r.away = r.away[:0]
		}
	}
}

// hedgeAgain lets the queries in flight be hedged again later, because q, which hedged them, was refused: their server has probably lost
// them in a restart.
func (x *exchange) hedgeAgain(q *query, now time.Time) {
	x.hedgesLeft++
	if q.attempt.repeats && q.tcp { // an ICMP message tells sooner whether the server is still away
		q.attempt.server.tcpSilent.Store(true)
	}
	if q.attempt.paid {
		x.pool.hedgeBudget.refund()
	}
	for _, other := range x.queries[:x.inFlight] {
		a := &other.attempt
		if a.hedged = false; other.phase == inTransport {
			a.nextCheck = now.Add(maxPause)
		}
	}
}

// pausing reports whether x waits for its next round.
func (x *exchange) pausing() bool { return !x.rounds.nextAt.IsZero() }

// pauseRound lets x wait for its next round, after all servers were away in this one. Only a client without an expired answer
// waits, and never longer than for a server that is silent.
func (x *exchange) pauseRound(now time.Time) {
	r := &x.rounds
	if !r.absent || !x.pool.absence.note(now) || x.attemptsUsedUp() || x.urgency != forClient || r.later == maxLaterRounds || !now.Before(x.lastRound()) {
		return
	}
	x.pool.absence.wait(x)
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	x.delayRound(now)
}

// attemptsUsedUp reports whether as many attempts have failed as max_connect_attempts allows. Without that option the pauses
// bound the attempts at servers that are away.
func (x *exchange) attemptsUsedUp() bool {
	return x.pool.cfg.MaxConnectAttempts != 0 && x.rounds.failed >= x.pool.failureLimit(len(x.servers))
}

// delayRound sets the time of the next round.
func (x *exchange) delayRound(now time.Time) {
	x.rounds.nextAt = now.Add(x.rounds.pause)
	if last := x.lastRound(); last.Before(x.rounds.nextAt) {
		x.rounds.nextAt = last
	}
}

// lastRound returns when the last round begins at the latest.
func (x *exchange) lastRound() time.Time {
	if last := x.begun.Add(x.pool.cfg.ReadTimeout); last.Before(x.deadline) {
		return last
	}
	return x.deadline
}

// checkRound begins the next round if it is due or a server has replied to another exchange.
func (x *exchange) checkRound(now time.Time) {
	r, absence := &x.rounds, &x.pool.absence
	if now.Before(r.nextAt) {
		if !absence.over(x) {
			return
		}
		if soon := r.begunAt.Add(firstPause); now.Before(soon) { // so that rounds stay apart while servers come and go
			r.nextAt = soon
			return
		}
	} else if now.Before(x.lastRound()) && !absence.turn(x, now) {
		x.delayRound(now)
		return
	}
	absence.leave(x)
	r.later++
	r.begunAt, r.nextAt, r.away, r.absent = now, time.Time{}, r.away[:0], false
	x.nextIndex, x.allDown, x.servers = 0, false, x.pool.servers()
	x.failuresLeft = len(x.servers)
	x.orderServers()
	x.askNext(now)
}
